--
-- oldversions: what each upgrade step leaves behind is what an installation of
-- that version makes
--
SET client_min_messages = warning;

-- Everything that belongs to the extension: definition, comment, privileges of
-- others than the owner.
CREATE VIEW objects AS
SELECT pg_describe_object(d.classid, d.objid, 0) AS object,
       coalesce(obj_description(d.objid, d.classid::regclass::name), 'NO COMMENT') AS comment,
       (SELECT string_agg(a.grantee::regrole || ': ' || a.privilege_type, ', ' ORDER BY a.grantee)
          FROM aclexplode(coalesce(p.proacl, c.relacl,
                                   acldefault(CASE WHEN p.oid IS NULL THEN 'r' ELSE 'f' END::"char",
                                              coalesce(p.proowner, c.relowner)))) a
         WHERE a.grantee <> a.grantor) AS privileges,
       CASE WHEN p.oid IS NOT NULL THEN pg_get_functiondef(p.oid)
            ELSE pg_get_viewdef(c.oid) END AS definition
  FROM pg_depend d
       LEFT JOIN pg_proc p ON d.classid = 'pg_proc'::regclass AND p.oid = d.objid
       LEFT JOIN pg_class c ON d.classid = 'pg_class'::regclass AND c.oid = d.objid
 WHERE d.refclassid = 'pg_extension'::regclass AND d.deptype = 'e'
   AND d.refobjid = (SELECT oid FROM pg_extension WHERE extname = 'pg_lookahead')
   AND d.classid <> 'pg_type'::regclass;

SELECT name, version FROM pg_available_extension_versions
 WHERE name = 'pg_lookahead' ORDER BY version;
SELECT default_version FROM pg_available_extensions WHERE name = 'pg_lookahead';

DROP EXTENSION IF EXISTS pg_lookahead;

-- 0.1.0
CREATE EXTENSION pg_lookahead VERSION '0.1.0';
\pset format unaligned
SELECT object, comment, privileges FROM objects ORDER BY object COLLATE "C";
\pset format aligned
\d pg_stat_lookahead
\d pg_stat_lookahead_io
\d pg_stat_lookahead_owners
SELECT pg_lookahead_version() AS library;

-- it can be made anew, in another schema, and moved
DROP EXTENSION pg_lookahead;
CREATE SCHEMA place;
CREATE EXTENSION pg_lookahead SCHEMA place;
SELECT place.pg_lookahead_version();
\d place.pg_stat_lookahead
ALTER EXTENSION pg_lookahead SET SCHEMA public;
SELECT scans >= 0 AS session FROM public.pg_lookahead_session();
SELECT 'public.pg_stat_lookahead'::regclass;
DROP SCHEMA place;

-- every older version can be had, and updated to what a new installation is
CREATE TABLE fresh AS SELECT * FROM objects;
DO $$
DECLARE
    old record;
    n bigint;
BEGIN
    FOR old IN SELECT v.version FROM pg_available_extension_versions v, pg_available_extensions e
                WHERE v.name = 'pg_lookahead' AND e.name = v.name AND v.version <> e.default_version LOOP
        DROP EXTENSION pg_lookahead;
        EXECUTE format('CREATE EXTENSION pg_lookahead VERSION %L', old.version);
        ALTER EXTENSION pg_lookahead UPDATE;
        SELECT count(*) INTO n
          FROM (TABLE fresh EXCEPT TABLE objects) a FULL JOIN (TABLE objects EXCEPT TABLE fresh) b USING (object);
        IF n > 0 THEN
            RAISE WARNING '% objects differ after an update from %', n, old.version;
        END IF;
    END LOOP;
END $$;

DROP TABLE fresh;
DROP VIEW objects;
