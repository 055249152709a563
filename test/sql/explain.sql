--
-- explain: what EXPLAIN (ANALYZE) shows of look-ahead
--
-- 18 shows it at each node, 15 to 17 after the plan.  The functions below make
-- the same of both, and leave nothing that differs from run to run.
--
\getenv abs_srcdir PG_ABS_SRCDIR
\set helpers :abs_srcdir '/data/helpers.sql'
\set ECHO none
\i :helpers
\pset format unaligned
\set ECHO all
-- leaf pages have a test of their own
SET pg_lookahead.leafscan = off;

CREATE TABLE explained (a int, b int, filler text) WITH (fillfactor = 20, autovacuum_enabled = off);
INSERT INTO explained SELECT (i * 7919) % 3001, i % 300, repeat('x', 100) FROM generate_series(1, 3000) i;
CREATE INDEX explained_a ON explained (a);
CREATE INDEX explained_b ON explained (b);
CREATE TABLE "Ex plained" AS SELECT * FROM explained;
CREATE INDEX "Ex b" ON "Ex plained" (b);
VACUUM ANALYZE explained, "Ex plained";

-- text: one row for each line on look-ahead, with the scan that it is about;
-- every issued block must be used or wasted
CREATE FUNCTION text_of(query text, options text DEFAULT 'ANALYZE, BUFFERS, SUMMARY')
RETURNS TABLE (scan text, line text) LANGUAGE plpgsql AS $$
DECLARE
    eighteen boolean := current_setting('server_version_num')::int >= 180000;
    l text;
    m text[];
    inside boolean := false;
BEGIN
    FOR l IN EXECUTE format('EXPLAIN (%s) %s', options, query) LOOP
        IF eighteen THEN
            IF l ~ 'Scan.* using ' THEN
                scan := substring(l FROM '(Index.* on (?:"[^"]*"|\S+)(?: [a-z_0-9]+)?)  \(');
            END IF;
            line := substring(l FROM '^ +Look-Ahead: (.*)$');
        ELSE
            IF inside THEN
                scan := substring(l FROM '^  (Index.*): method=');
                line := substring(l FROM ': (method=.*)$');
                inside := line IS NOT NULL;
            END IF;
            inside := inside OR l = 'Look-Ahead:';
        END IF;
        CONTINUE WHEN line IS NULL;
        -- the summary says neither of these
        scan := replace(regexp_replace(scan, '( on ("[^"]*"|\w+)) \w+$', '\1'), ' Backward', '');
        m := regexp_match(line, '^method=(\w+) issued=(\d+) used=(\d+) wasted=(\d+) hit=\d+ waits=\d+ depth=\d+$');
        IF m IS NULL THEN
            line := 'malformed: ' || line;
        ELSIF m[2]::int <> m[3]::int + m[4]::int THEN
            line := 'unbalanced: ' || line;
        ELSE
            line := regexp_replace(line, '(method|wasted|hit|waits)=\d+', '\1=#', 'g');
            line := regexp_replace(line, '=[1-9]\d*', '=N', 'g');
        END IF;
        RETURN NEXT;
        line := NULL;
    END LOOP;
END $$;

-- JSON: the same, from the nodes or from the array after the plan
CREATE FUNCTION json_of(query text, options text DEFAULT 'ANALYZE, BUFFERS, SUMMARY')
RETURNS TABLE (node text, relation text, index text, properties text) LANGUAGE plpgsql AS $$
DECLARE
    eighteen boolean := current_setting('server_version_num')::int >= 180000;
    document jsonb;
    found jsonb;
    l jsonb;
BEGIN
    EXECUTE format('EXPLAIN (FORMAT json, %s) %s', options, query) INTO document;
    FOR found IN SELECT jsonb_path_query(document, CASE WHEN eighteen THEN 'strict $.** ? (exists(@."Look-Ahead"))'
                                                   ELSE 'strict $[0]."Look-Ahead"[*]' END::jsonpath, silent => true) LOOP
        l := CASE WHEN eighteen THEN found->'Look-Ahead'
                  ELSE found - '{Node Type,Relation Name,Index Name,Alias,Scan Direction,Looks Ahead Of}'::text[] END;
        node := found->>'Node Type';
        relation := found->>'Relation Name';
        index := found->>'Index Name';
        SELECT string_agg(key || CASE jsonb_typeof(value) WHEN 'string' THEN ' = ' || (value #>> '{}')
                                 WHEN 'number' THEN CASE WHEN key IN ('Blocks Wasted', 'Blocks Hit', 'Waits') THEN ' #'
                                      WHEN value::int > 0 THEN ' > 0' ELSE ' = 0' END
                                 ELSE ' ?' END, ', ' ORDER BY key COLLATE "C")
          INTO properties FROM jsonb_each(l);
        RETURN NEXT;
    END LOOP;
END $$;

SELECT la.cold('explained');
SELECT * FROM text_of('SELECT * FROM explained ORDER BY a');
SELECT la.cold('explained');
SELECT * FROM json_of('SELECT * FROM explained ORDER BY a');

-- the methods have names
SELECT la.cold('explained');
SET pg_lookahead.method = 'none';
SELECT * FROM text_of('SELECT * FROM explained WHERE a < 1000 ORDER BY a DESC');
RESET pg_lookahead.method;
DO $$
DECLARE
    method text;
BEGIN
    FOREACH method IN ARRAY la.methods() LOOP
        PERFORM la.cold('explained');
        PERFORM set_config('pg_lookahead.method', method, true);
        ASSERT (SELECT line LIKE 'method=' || method || ' %' FROM text_of('SELECT * FROM explained ORDER BY a'));
    END LOOP;
END $$;

-- index-only scans, names that need quotes, several scans, and what never ran
UPDATE explained SET filler = 'y' WHERE b % 3 = 0;
SELECT la.cold('explained', '"Ex plained"');
SELECT * FROM text_of('SELECT a FROM explained ORDER BY a');
SELECT la.cold('explained', '"Ex plained"');
SET enable_hashjoin = off;
SET enable_nestloop = off;
SET enable_sort = off;
SET enable_material = off;
SELECT * FROM text_of('SELECT e.*, x.* FROM explained e JOIN "Ex plained" x ON e.a = x.b') ORDER BY scan COLLATE "C";
SELECT la.cold('explained', '"Ex plained"');
SELECT * FROM json_of('SELECT e.*, x.* FROM explained e JOIN "Ex plained" x ON e.a = x.b') ORDER BY relation COLLATE "C";
RESET enable_hashjoin;
RESET enable_nestloop;
RESET enable_sort;
RESET enable_material;
SELECT la.cold('explained', '"Ex plained"');
SELECT * FROM text_of('SELECT * FROM explained WHERE a < (SELECT count(x.filler) FROM "Ex plained" x WHERE b = 7) ORDER BY a')
 ORDER BY scan COLLATE "C";
SELECT la.cold('explained', '"Ex plained"');
SELECT * FROM text_of('SELECT * FROM explained WHERE a < 100 UNION ALL (SELECT * FROM "Ex plained" WHERE b = 1 AND random() < 0)')
 ORDER BY scan COLLATE "C";

-- a scan that is stopped before its end
SELECT la.cold('explained');
SELECT * FROM text_of('SELECT * FROM (SELECT * FROM explained ORDER BY a OFFSET 0) t WHERE a > 0 LIMIT 10');
-- rescans
SELECT la.cold('explained');
SELECT * FROM text_of('SELECT * FROM generate_series(1, 50) g, LATERAL (SELECT * FROM explained WHERE b = g ORDER BY b LIMIT 5) l');

-- statements that change the table
SELECT la.cold('explained');
BEGIN;
SELECT * FROM text_of('UPDATE explained SET filler = ''z'' WHERE a < 500');
SELECT la.cold('explained');
SELECT * FROM text_of('DELETE FROM explained WHERE a BETWEEN 1000 AND 1500');
ROLLBACK;

-- a query inside the explained one is not the explained one's
CREATE FUNCTION inner_query() RETURNS bigint LANGUAGE plpgsql AS
'BEGIN RETURN (SELECT count(filler) FROM (SELECT * FROM explained ORDER BY a OFFSET 0) t); END';
SELECT la.cold('explained', '"Ex plained"');
SELECT * FROM text_of('SELECT inner_query()');
SELECT * FROM text_of('SELECT inner_query(), * FROM "Ex plained" WHERE b < 2');

-- when it is not shown: nothing looked ahead, not run, or not asked for
SELECT la.cold('explained');
SELECT * FROM text_of('SELECT * FROM generate_series(1, 3)');
SELECT * FROM text_of('SELECT * FROM explained ORDER BY a', 'COSTS off');
SELECT * FROM text_of('SELECT * FROM explained ORDER BY a', 'ANALYZE, BUFFERS off, SUMMARY off');
SET pg_lookahead.enabled = off;
SELECT * FROM text_of('SELECT * FROM explained ORDER BY a');
SELECT * FROM json_of('SELECT * FROM explained ORDER BY a');
RESET pg_lookahead.enabled;
-- by default it is
SELECT la.cold('explained');
SELECT * FROM text_of('SELECT * FROM explained ORDER BY a', 'ANALYZE');
SELECT la.cold('explained');
SELECT * FROM text_of('SELECT * FROM explained ORDER BY a', 'ANALYZE, TIMING off');

-- the other formats
CREATE FUNCTION has(format text, VARIADIC parts text[]) RETURNS text[] LANGUAGE plpgsql AS $$
DECLARE
    document text;
BEGIN
    PERFORM la.cold('explained');
    EXECUTE format('EXPLAIN (ANALYZE, BUFFERS, SUMMARY, FORMAT %s) SELECT * FROM explained ORDER BY a', format)
       INTO document;
    RETURN ARRAY(SELECT p FROM unnest(parts) p WHERE document ~ p);
END $$;
SELECT has('yaml', 'Look-Ahead:', 'Method: "advice"', 'Blocks Issued: [1-9]', 'Blocks Used: [1-9]',
           'Blocks Wasted: [0-9]', 'Blocks Hit: [0-9]', 'Waits: [0-9]', 'Depth Reached: [1-9]');
SELECT has('xml', '<Look-Ahead>.*</Look-Ahead>', '<Method>advice</Method>', '<Blocks-Issued>[1-9]', '<Blocks-Used>[1-9]',
           '<Blocks-Wasted>[0-9]', '<Blocks-Hit>[0-9]', '<Waits>[0-9]', '<Depth-Reached>[1-9]');

DROP TABLE explained, "Ex plained";
DROP FUNCTION text_of, json_of, inner_query, has;
