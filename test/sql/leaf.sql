--
-- leaf: leaf pages of B-trees are looked ahead of, in both directions, and no
-- answer depends on it
--
\getenv abs_srcdir PG_ABS_SRCDIR
\set helpers :abs_srcdir '/data/helpers.sql'
\set ECHO none
\i :helpers
\pset tuples_only on
\pset format unaligned
\set ECHO all

CREATE TABLE leaves (a int, b int, c text, d int) WITH (autovacuum_enabled = off);
INSERT INTO leaves
SELECT nullif((i * 7919::bigint) % 20011, 3), i % 8, 'value ' || i % 300, i
  FROM generate_series(1, 20000) i;
CREATE INDEX leaves_a ON leaves (a);
CREATE INDEX leaves_desc ON leaves (a DESC NULLS LAST, d);
CREATE INDEX leaves_b_a ON leaves (b, a);
CREATE INDEX leaves_dup ON leaves (b);
CREATE INDEX leaves_include ON leaves (d) INCLUDE (c);
-- few downlinks for each parent, and three levels
CREATE INDEX leaves_wide ON leaves ((lpad(d::text, 1200, 'x'))) WITH (fillfactor = 50);
VACUUM (FREEZE, ANALYZE) leaves;

-- Runs a query without look-ahead, with it on a cold index, and without any
-- index, and compares.
CREATE FUNCTION check_leaves(name text, query text, pattern text, index regclass,
                             plain boolean DEFAULT true, may_waste int DEFAULT 2)
RETURNS TABLE (test text, has_rows boolean, verdict text)
LANGUAGE plpgsql AS $$
DECLARE
    with_it text[];
    without text[];
    oracle text[];
    before record;
    after record;
    wrong text[] := '{}';
    method text;
BEGIN
    PERFORM la.require_plan(query, pattern);
    PERFORM set_config('pg_lookahead.enabled', 'off', true);
    without := la.rows_of(query);
    PERFORM set_config('enable_bitmapscan', 'off', true);
    PERFORM la.index_scans(false);
    oracle := la.rows_of(query);
    PERFORM la.index_scans(true);
    PERFORM set_config('enable_bitmapscan', (NOT plain)::text, true);
    IF NOT plain THEN
        PERFORM set_config('enable_indexscan', 'off', true), set_config('enable_indexonlyscan', 'off', true);
    END IF;
    IF la.sorted(without) IS DISTINCT FROM la.sorted(oracle) THEN
        wrong := wrong || 'the index does not agree with the table'::text;
    END IF;
    PERFORM set_config('pg_lookahead.enabled', 'on', true);
    FOREACH method IN ARRAY la.methods() LOOP
        PERFORM la.cold(index);
        PERFORM set_config('pg_lookahead.method', method, true);
        SELECT * INTO before FROM pg_lookahead_session();
        with_it := la.rows_of(query);
        SELECT * INTO after FROM pg_lookahead_session();
        IF with_it IS DISTINCT FROM without THEN
            wrong := wrong || (method || ': wrong answer');
        ELSIF after.blocks_issued = before.blocks_issued THEN
            wrong := wrong || (method || ': did not look ahead');
        ELSIF after.blocks_wasted - before.blocks_wasted > may_waste THEN
            wrong := wrong || (method || ': wasted ' || after.blocks_wasted - before.blocks_wasted);
        END IF;
    END LOOP;
    RETURN QUERY SELECT name, cardinality(without) > 0,
        CASE wrong WHEN '{}' THEN 'ok' ELSE array_to_string(wrong, ', ') END;
END $$;

-- both directions, and every kind of end
SELECT * FROM check_leaves('all', 'SELECT a FROM leaves ORDER BY a',
                           'Index Only Scan using leaves_a', 'leaves_a');
SELECT * FROM check_leaves('all, backward', 'SELECT a FROM leaves ORDER BY a DESC',
                           'Index Only Scan Backward using leaves_a', 'leaves_a');
SELECT * FROM check_leaves('between', 'SELECT a FROM leaves WHERE a > 3000 AND a <= 9000 ORDER BY a',
                           'Index Only Scan using leaves_a', 'leaves_a');
SELECT * FROM check_leaves('between, backward', 'SELECT a FROM leaves WHERE a >= 3000 AND a < 9000 ORDER BY a DESC',
                           'Index Only Scan Backward using leaves_a', 'leaves_a');
SELECT * FROM check_leaves('not null', 'SELECT a FROM leaves WHERE a IS NOT NULL ORDER BY a',
                           'Index Only Scan using leaves_a', 'leaves_a');
SELECT * FROM check_leaves('descending', 'SELECT a, d FROM leaves WHERE a < 9000 AND a > 3000 ORDER BY a DESC, d',
                           'Index Only Scan using leaves_desc', 'leaves_desc');
SELECT * FROM check_leaves('descending, backward',
                           'SELECT a, d FROM leaves WHERE a < 9000 AND a > 3000 ORDER BY a NULLS FIRST, d DESC',
                           'Index Only Scan Backward using leaves_desc', 'leaves_desc');
-- columns
SELECT * FROM check_leaves('prefix', 'SELECT b, a FROM leaves WHERE b = 7 AND a > 100 ORDER BY a',
                           'Index Only Scan using leaves_b_a', 'leaves_b_a');
SELECT * FROM check_leaves('prefix, backward', 'SELECT b, a FROM leaves WHERE b = 7 AND a < 19000 ORDER BY a DESC',
                           'Index Only Scan Backward using leaves_b_a', 'leaves_b_a');
SELECT * FROM check_leaves('row', 'SELECT b, a FROM leaves WHERE (b, a) >= (3, 100) AND (b, a) < (6, 50) ORDER BY b, a',
                           'Index Only Scan using leaves_b_a', 'leaves_b_a');
SELECT * FROM check_leaves('row, backward',
                           'SELECT b, a FROM leaves WHERE (b, a) >= (3, 100) AND (b, a) < (6, 50) ORDER BY b DESC, a DESC',
                           'Index Only Scan Backward using leaves_b_a', 'leaves_b_a');
SELECT * FROM check_leaves('include', 'SELECT d, c FROM leaves WHERE d BETWEEN 5000 AND 15000 ORDER BY d DESC',
                           'Index Only Scan Backward using leaves_include', 'leaves_include');
SELECT * FROM check_leaves('wide keys', $$SELECT count(*) FROM (SELECT lpad(d::text, 1200, 'x') FROM leaves
                                          WHERE lpad(d::text, 1200, 'x') > lpad('15000', 1200, 'x')
                                          ORDER BY lpad(d::text, 1200, 'x') OFFSET 0) s$$,
                           'Index Scan using leaves_wide', 'leaves_wide');
SELECT * FROM check_leaves('wide keys, backward', $$SELECT count(*) FROM (SELECT lpad(d::text, 1200, 'x') FROM leaves
                                          WHERE lpad(d::text, 1200, 'x') > lpad('15000', 1200, 'x')
                                          ORDER BY lpad(d::text, 1200, 'x') DESC OFFSET 0) s$$,
                           'Index Scan Backward using leaves_wide', 'leaves_wide');

-- bitmap index scans
SET enable_bitmapscan = on;
SET enable_indexscan = off;
SET enable_indexonlyscan = off;
SELECT * FROM check_leaves('bitmap', 'SELECT sum(a) FROM leaves WHERE d < 9000',
                           'Bitmap Index Scan on leaves_include', 'leaves_include', false);
SELECT * FROM check_leaves('bitmap of two', 'SELECT sum(a) FROM leaves WHERE d < 9000 OR b = 7',
                           'BitmapOr', 'leaves_include', false);
-- each of the two
SELECT la.require_plan('SELECT sum(a) FROM leaves WHERE d < 9000 OR b = 7', 'leaves_dup');
SELECT la.cold('leaves_include'), la.cold('leaves_dup');
SELECT pg_stat_lookahead_reset();
SELECT sum(a) FROM leaves WHERE d < 9000 OR b = 7;
SELECT relname, blocks_issued > 0 FROM pg_stat_lookahead
 WHERE relname IN ('leaves_include', 'leaves_dup') ORDER BY relname;
SELECT * FROM check_leaves('bitmap of a list', 'SELECT sum(d) FROM leaves WHERE b IN (1, 5, 6)',
                           'Bitmap Index Scan on leaves_', 'leaves_dup', false);
SELECT * FROM check_leaves('bitmap of duplicates', 'SELECT sum(d) FROM leaves WHERE b BETWEEN 2 AND 6',
                           'Bitmap Index Scan on leaves_dup', 'leaves_dup', false);
SET enable_bitmapscan = off;
SET enable_indexscan = on;
SET enable_indexonlyscan = on;

-- lists and, in 18, skip scans may jump
SELECT * FROM check_leaves('list', 'SELECT b, a FROM leaves WHERE b IN (1, 5, 6) ORDER BY b, a',
                           'Index Only Scan using leaves_b_a', 'leaves_b_a', may_waste => 30);
-- nothing to look ahead of: one page, no page
CREATE TABLE small (a int PRIMARY KEY);
VACUUM small;
SELECT count(*) FROM (SELECT a FROM small ORDER BY a OFFSET 0) s;
INSERT INTO small SELECT generate_series(1, 50);
VACUUM ANALYZE small;
SELECT count(*) FROM (SELECT a FROM small ORDER BY a DESC OFFSET 0) s;
SELECT count(*) FROM pg_stat_lookahead WHERE relname = 'small_pkey' AND blocks_issued > 0;

-- a cursor turns round on the way
BEGIN;
DECLARE c SCROLL CURSOR FOR SELECT a FROM leaves WHERE a > 10 ORDER BY a;
SELECT la.cold('leaves_dup');
MOVE 9000 FROM c;
FETCH 2 FROM c;
FETCH BACKWARD 3 FROM c;
MOVE BACKWARD 5000 FROM c;
FETCH BACKWARD 1 FROM c;
MOVE 6000 FROM c;
FETCH 1 FROM c;
COMMIT;

-- off: leaf pages are left alone
SET pg_lookahead.leafscan = off;
SELECT la.cold('leaves_a');
SELECT la.issued() AS before \gset
SELECT count(*) FROM (SELECT a FROM leaves ORDER BY a DESC OFFSET 0) s;
SELECT la.issued() - :before;
RESET pg_lookahead.leafscan;

-- a LIMIT that one page satisfies reads no other
RESET pg_lookahead.start_after;
SELECT la.cold('leaves_a');
SELECT la.issued() AS before \gset
SELECT a FROM leaves ORDER BY a LIMIT 1;
SELECT a FROM leaves WHERE a = 4000;
SELECT la.issued() - :before;
SET pg_lookahead.start_after = 0;

-- EXPLAIN shows leaf pages apart from the table's blocks
CREATE FUNCTION shown(query text) RETURNS TABLE (line text) LANGUAGE plpgsql AS $$
BEGIN
    FOR line IN EXECUTE 'EXPLAIN (ANALYZE, BUFFERS, COSTS off, TIMING off, SUMMARY) ' || query LOOP
        CONTINUE WHEN line !~ '(leaf pages|Leaf Look-Ahead): method=\w+ issued=[1-9]';
        line := 'leaf pages, ' || substring(line FROM 'method=\w+');
        RETURN NEXT;
    END LOOP;
END $$;
SET pg_lookahead.method = advice;
SELECT la.cold('leaves_a');
SELECT * FROM shown('SELECT a FROM leaves ORDER BY a DESC');
SELECT la.cold('leaves_include');
SET enable_indexscan = off;
SET enable_indexonlyscan = off;
SET enable_bitmapscan = on;
SELECT * FROM shown('SELECT sum(a) FROM leaves WHERE d < 9000');
