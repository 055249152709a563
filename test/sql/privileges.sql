--
-- privileges: who may see the counters, and who may forget them
--
LOAD 'pg_lookahead';
SET client_min_messages = warning;
CREATE ROLE regress_la_nobody;
CREATE ROLE regress_la_monitor IN ROLE pg_monitor;  -- which is in pg_stat_scan_tables

SET ROLE regress_la_nobody;
SELECT pg_lookahead_version() IS NOT NULL AS version;
SELECT method IS NOT NULL AS status FROM pg_lookahead_status();
SELECT scans >= 0 AS session FROM pg_lookahead_session();
SELECT count(*) FROM pg_stat_lookahead;
SELECT count(*) FROM pg_lookahead_relations();
SELECT * FROM ios_status();
SELECT * FROM pg_lookahead_io();
SELECT * FROM pg_lookahead_owners();
SELECT count(*) FROM pg_stat_lookahead_io;
SELECT count(*) FROM pg_stat_lookahead_owners;
SELECT pg_stat_lookahead_reset();
SELECT pg_stat_lookahead_reset('pg_class'::regclass);
SELECT pg_lookahead_unused_pages('pg_class');

SET ROLE regress_la_monitor;
SELECT count(*) >= 0 AS view FROM pg_stat_lookahead;
SELECT count(*) >= 0 AS function FROM pg_lookahead_relations();
-- the I/O service may not be there, so these are not called
SELECT f, has_function_privilege(f, 'EXECUTE') AS may_call
  FROM unnest(ARRAY['ios_status()', 'pg_lookahead_io()', 'pg_lookahead_owners()',
                    'pg_lookahead_unused_pages(regclass)']) f;
SELECT v, has_table_privilege(v, 'SELECT') AS may_read
  FROM unnest(ARRAY['pg_stat_lookahead_io', 'pg_stat_lookahead_owners']) v;
SELECT pg_stat_lookahead_reset();

-- what can be granted
RESET ROLE;
GRANT EXECUTE ON FUNCTION pg_stat_lookahead_reset(oid) TO regress_la_nobody;
SET ROLE regress_la_nobody;
SELECT pg_stat_lookahead_reset();
SELECT count(*) FROM pg_stat_lookahead;

RESET ROLE;
REVOKE EXECUTE ON FUNCTION pg_stat_lookahead_reset(oid) FROM regress_la_nobody;
DROP ROLE regress_la_nobody, regress_la_monitor;
