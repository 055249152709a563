--
-- bitmap: bitmap heap scans give the same rows with look-ahead, without it and
-- without any index
--
\getenv abs_srcdir PG_ABS_SRCDIR
\set helpers :abs_srcdir '/data/helpers.sql'
\set ECHO none
\i :helpers
\pset tuples_only on
\pset format unaligned
\set ECHO all
SET enable_bitmapscan = on;
SET enable_indexscan = off;
SET enable_indexonlyscan = off;

CREATE TABLE bits (
    id int NOT NULL, a int NOT NULL, b int, c int[], filler text
) WITH (fillfactor = 10, autovacuum_enabled = off);
INSERT INTO bits
SELECT i, (i * 7919) % 6007, nullif(i % 50, 0), ARRAY[i % 50, i % 7], repeat('x', 100)
  FROM generate_series(1, 6000) i;
CREATE INDEX bits_a ON bits (a);
CREATE INDEX bits_b ON bits (b);
CREATE INDEX bits_hash ON bits USING hash (b);
CREATE INDEX bits_gin ON bits USING gin (c);
CREATE INDEX bits_brin ON bits USING brin (id) WITH (pages_per_range = 4);
-- dead rows, pages with nothing but dead rows, rows that have moved
DELETE FROM bits WHERE id % 17 = 0 OR id BETWEEN 2000 AND 2400;
UPDATE bits SET filler = 'y' WHERE id % 19 = 0;
VACUUM (FREEZE, ANALYZE, INDEX_CLEANUP off) bits;
DELETE FROM bits WHERE id % 23 = 0;
UPDATE bits SET b = b + 1 WHERE id % 29 = 0;

-- Runs a query without look-ahead, with it on a cold table, and without any
-- index, and compares.
CREATE FUNCTION check_bitmap(name text, query text, VARIADIC tables regclass[] DEFAULT '{bits}')
RETURNS TABLE (test text, has_rows boolean, verdict text)
LANGUAGE plpgsql AS $$
DECLARE
    with_it text[];
    without text[];
    oracle text[];
    before bigint;
    wrong text := 'ok';
BEGIN
    PERFORM la.require_plan(query, 'Bitmap Heap Scan on ' || tables[1]);
    PERFORM set_config('pg_lookahead.enabled', 'off', true);
    without := la.rows_of(query);
    PERFORM set_config('enable_bitmapscan', 'off', true),
            set_config('enable_seqscan', 'on', true);
    oracle := la.rows_of(query);
    PERFORM set_config('enable_bitmapscan', 'on', true),
            set_config('enable_seqscan', 'off', true),
            set_config('pg_lookahead.enabled', 'on', true);
    PERFORM la.cold(VARIADIC tables);
    before := la.issued();
    with_it := la.rows_of(query);
    IF la.sorted(without) IS DISTINCT FROM la.sorted(oracle) THEN
        wrong := 'the index does not agree with the table';
    ELSIF with_it IS DISTINCT FROM without THEN
        wrong := 'wrong answer';
    ELSIF la.issued() = before THEN
        wrong := 'did not look ahead';
    END IF;
    RETURN QUERY SELECT name, cardinality(without) > 0, wrong;
END $$;

--
-- Bitmaps
--
SELECT * FROM check_bitmap('exact', 'SELECT id, a, b FROM bits WHERE a BETWEEN 100 AND 3000');
SELECT * FROM check_bitmap('filter', 'SELECT id, a FROM bits WHERE a < 5000 AND filler = ''y''');
SELECT * FROM check_bitmap('filter that throws all away',
    'SELECT id, a FROM bits WHERE a < 5000 AND length(filler) > 1000');
SELECT * FROM check_bitmap('no columns', 'SELECT count(*) FROM bits WHERE a < 5000');
SELECT * FROM check_bitmap('and', 'SELECT id FROM bits WHERE a < 4000 AND b < 20');
SELECT * FROM check_bitmap('or', 'SELECT id FROM bits WHERE a < 700 OR b = 7 OR b IS NULL');
SELECT * FROM check_bitmap('list',
    'SELECT id FROM bits WHERE a = ANY (ARRAY(SELECT g * 3 FROM generate_series(1, 1000) g))');
SELECT * FROM check_bitmap('gin', 'SELECT id FROM bits WHERE c @> ARRAY[3]');
SELECT * FROM check_bitmap('brin, whose pages are lossy',
    'SELECT id, a FROM bits WHERE id BETWEEN 300 AND 5500 AND id % 100 = 0');
SELECT * FROM check_bitmap('many per page', 'SELECT id, b, filler FROM bits WHERE b IN (3, 4, 5)');
SET work_mem = '64kB';
CREATE FUNCTION is_lossy(query text) RETURNS boolean LANGUAGE plpgsql AS $$
DECLARE
    line text;
BEGIN
    FOR line IN EXECUTE 'EXPLAIN (ANALYZE, COSTS OFF, TIMING OFF) ' || query LOOP
        IF line ~ 'Heap Blocks: exact=\d+ lossy=\d+' THEN
            RETURN true;
        END IF;
    END LOOP;
    RETURN false;
END $$;
SELECT is_lossy('SELECT id, a FROM bits WHERE a < 5900');
SELECT * FROM check_bitmap('small work_mem', 'SELECT id, a FROM bits WHERE a < 5900');
SELECT * FROM check_bitmap('small work_mem, filter',
    'SELECT id, a FROM bits WHERE a < 5900 AND filler = ''y''');
RESET work_mem;

--
-- Rounds
--
CREATE TABLE keys AS SELECT g * 300 AS k FROM generate_series(0, 18) g;
ANALYZE keys;
SET enable_hashjoin = off;
SET enable_mergejoin = off;
SET enable_material = off;
SELECT * FROM check_bitmap('inner side of a nested loop',
    'SELECT k, o.id FROM keys CROSS JOIN LATERAL
       (SELECT id FROM bits WHERE a BETWEEN k AND k + 250 OFFSET 0) o');
SELECT * FROM check_bitmap('rounds that are not finished',
    'SELECT k, o.id FROM keys CROSS JOIN LATERAL
       (SELECT id FROM bits WHERE a BETWEEN k AND k + 250 LIMIT 30) o');
SELECT * FROM check_bitmap('two at once',
    'SELECT count(*), sum(x.id + y.id) FROM bits x JOIN bits y ON y.a = x.b
      WHERE x.a BETWEEN 1000 AND 1500');
SELECT * FROM check_bitmap('sub-select',
    'SELECT k, (SELECT count(*) FROM bits WHERE a > k AND filler <> ''y'') FROM keys');
RESET enable_hashjoin;
RESET enable_mergejoin;
RESET enable_material;
SELECT * FROM check_bitmap('limit', 'SELECT id FROM bits WHERE a < 5000 LIMIT 1000');
SELECT * FROM check_bitmap('limit and offset',
    'SELECT id FROM bits WHERE a < 5000 OFFSET 500 LIMIT 20');

--
-- Cursors, also past the end and with a change of the table in between
--
BEGIN;
SELECT la.cold('bits');
DECLARE c CURSOR FOR SELECT id FROM bits WHERE a < 3000;
FETCH 2 FROM c;
SELECT la.issued() > 0 AS looked_ahead;
UPDATE bits SET filler = 'z' WHERE id % 31 = 0;
DELETE FROM bits WHERE id % 37 = 0;
MOVE FORWARD ALL FROM c;
FETCH 2 FROM c;
ROLLBACK;
BEGIN;
SELECT la.cold('bits');
DECLARE c CURSOR WITH HOLD FOR SELECT id FROM bits WHERE a < 3000;
COMMIT;
FETCH 2 FROM c;
CLOSE c;

--
-- Statements that change what they scan
--
CREATE FUNCTION state_of_bits(statement text) RETURNS text[]
LANGUAGE sql AS $$SELECT la.state_after(statement, 'SELECT id, a, b, filler FROM bits')$$;
CREATE FUNCTION check_change(name text, statement text)
RETURNS TABLE (test text, verdict text)
LANGUAGE plpgsql AS $$
DECLARE
    with_it text[];
    without text[];
    before bigint;
BEGIN
    PERFORM la.require_plan(statement, 'Bitmap Heap Scan on bits');
    PERFORM set_config('pg_lookahead.enabled', 'off', true);
    without := state_of_bits(statement);
    PERFORM set_config('pg_lookahead.enabled', 'on', true);
    PERFORM la.cold('bits');
    before := la.issued();
    with_it := state_of_bits(statement);
    RETURN QUERY SELECT name, CASE
        WHEN with_it IS DISTINCT FROM without THEN 'wrong'
        WHEN la.issued() = before THEN 'did not look ahead'
        ELSE 'ok' END;
END $$;
SELECT * FROM check_change('update', 'UPDATE bits SET a = a + 10000 WHERE a < 3000');
SELECT * FROM check_change('delete', 'DELETE FROM bits WHERE a < 3000 AND b > 10');
SELECT * FROM check_change('insert', 'INSERT INTO bits SELECT id, a, b FROM bits WHERE a < 3000');

--
-- Kinds of tables
--
CREATE TEMP TABLE bits_temp AS SELECT * FROM bits;
CREATE INDEX bits_temp_a ON bits_temp (a);
ANALYZE bits_temp;
CREATE UNLOGGED TABLE bits_unlogged WITH (fillfactor = 20) AS SELECT * FROM bits;
CREATE INDEX bits_unlogged_a ON bits_unlogged (a);
ANALYZE bits_unlogged;
CREATE TABLE bits_parts (LIKE bits) PARTITION BY RANGE (a);
CREATE TABLE bits_part_1 PARTITION OF bits_parts FOR VALUES FROM (0) TO (3000);
CREATE TABLE bits_part_2 PARTITION OF bits_parts FOR VALUES FROM (3000) TO (10000);
CREATE INDEX ON bits_parts (a);
INSERT INTO bits_parts SELECT * FROM bits;
ANALYZE bits_parts;
-- Local buffers cannot be emptied from here; what matters is that it works.
SELECT verdict IN ('ok', 'did not look ahead') AS temporary
  FROM check_bitmap('temporary', 'SELECT id FROM bits_temp WHERE a < 3000', 'bits_temp');
SELECT * FROM check_bitmap('unlogged', 'SELECT id FROM bits_unlogged WHERE a < 3000',
                           'bits_unlogged');
SELECT * FROM check_bitmap('partitions', 'SELECT id FROM bits_parts WHERE a BETWEEN 50 AND 5000',
                           'bits_part_1', 'bits_part_2');

--
-- What is left alone
--
CREATE FUNCTION looks_ahead(query text, VARIADIC tables regclass[] DEFAULT '{bits}') RETURNS boolean
LANGUAGE plpgsql AS $$
DECLARE
    before bigint;
BEGIN
    PERFORM la.require_plan(query, 'Bitmap Heap Scan');
    PERFORM la.cold(VARIADIC tables);
    before := la.issued();
    PERFORM la.rows_of(query);
    RETURN la.issued() > before;
END $$;
SELECT looks_ahead('SELECT id FROM bits WHERE a < 3000');
SET pg_lookahead.bitmapscan = off;
SELECT looks_ahead('SELECT id FROM bits WHERE a < 3000');
RESET pg_lookahead.bitmapscan;
-- who has chosen to have no prefetching has none
SET effective_io_concurrency = 0;
SELECT looks_ahead('SELECT id FROM bits WHERE a < 3000');
RESET effective_io_concurrency;
ALTER TABLESPACE pg_default SET (effective_io_concurrency = 0);
ALTER TABLESPACE regress_la_cold SET (effective_io_concurrency = 0);
SELECT looks_ahead('SELECT id FROM bits WHERE a < 3000');
ALTER TABLESPACE pg_default RESET (effective_io_concurrency);
ALTER TABLESPACE regress_la_cold RESET (effective_io_concurrency);
BEGIN ISOLATION LEVEL SERIALIZABLE;
SELECT looks_ahead('SELECT id FROM bits WHERE a < 3000');
COMMIT;
SELECT looks_ahead('SELECT oid FROM pg_class WHERE oid < 100000');

-- A scan that never waits does not start, one that ends at once neither.
SET pg_lookahead.start_after = 8;
SELECT looks_ahead('SELECT id FROM bits WHERE a < 3000 LIMIT 8');
SELECT count(*) > 0 FROM bits WHERE a < 3000;
SELECT la.issued() AS before \gset
SELECT count(*) > 0 FROM bits WHERE a < 3000;
SELECT la.issued() = :before AS cached_scan_is_left_alone;
SET pg_lookahead.start_after = 0;

-- A complete scan wastes nothing.
SELECT la.cold('bits');
SELECT blocks_wasted AS before FROM pg_lookahead_session() \gset
SELECT count(*) > 0 FROM bits WHERE a < 3000;
SELECT count(*) > 0 FROM bits WHERE a < 3000 AND filler <> 'y';
SELECT blocks_wasted = :before AS nothing_wasted, errors = 0 AS no_error
  FROM pg_lookahead_session();
DROP TABLE bits, bits_temp, bits_unlogged, bits_parts, keys;
