--
-- scans: every kind of index scan gives the same rows with look-ahead, without
-- it and without the index
--
\getenv abs_srcdir PG_ABS_SRCDIR
\set helpers :abs_srcdir '/data/helpers.sql'
\set ECHO none
\i :helpers
\pset tuples_only on
\pset format unaligned
\set ECHO all

-- a is unique and in random order, b has ten duplicates of each value and some
-- NULLs, c is correlated with the table's order; rows are wide, blocks many
CREATE TABLE scans (
    id int NOT NULL, a int NOT NULL, b int, c int, t text, p point, r int4range, filler text
) WITH (fillfactor = 25, autovacuum_enabled = off);
INSERT INTO scans
SELECT i, (i * 7919) % 4001, nullif((i * 31) % 400, 0), i / 8 + (i * 13) % 5,
       'k' || lpad(((i * 7919) % 4001)::text, 5, '0'),
       point((i * 7919) % 4001, sqrt(i)),
       int4range((i * 7919) % 4001, (i * 7919) % 4001 + 3), repeat('x', 100)
  FROM generate_series(1, 4000) i;
CREATE UNIQUE INDEX scans_a ON scans (a);
CREATE INDEX scans_b ON scans (b);
CREATE INDEX scans_ba ON scans (b, a);
CREATE INDEX scans_c ON scans (c, id);
CREATE INDEX scans_cover ON scans (a) INCLUDE (b);
CREATE INDEX scans_hash ON scans USING hash (b);
CREATE INDEX scans_gist ON scans USING gist (p);
CREATE INDEX scans_range ON scans USING gist (r);
CREATE INDEX scans_spgist ON scans USING spgist (p);
CREATE INDEX scans_text ON scans USING spgist (t);
CREATE INDEX scans_partial ON scans (id) WHERE b < 40;
CREATE INDEX scans_expression ON scans ((a % 1000), id);
-- dead index entries, and pages that are not all-visible
DELETE FROM scans WHERE id % 17 = 0;
UPDATE scans SET filler = 'y' WHERE id % 19 = 0;
VACUUM (FREEZE, ANALYZE, INDEX_CLEANUP off) scans;
DELETE FROM scans WHERE id % 23 = 0;
UPDATE scans SET b = b + 1 WHERE id % 29 = 0;

-- Most queries below have exactly one index that may be used.
CREATE FUNCTION use_index(VARIADIC names text[]) RETURNS void
LANGUAGE sql AS $$
UPDATE pg_index SET indisvalid = indexrelid::regclass::text = ANY (names)
 WHERE indrelid = 'scans'::regclass
$$;

--
-- B-tree
--
SELECT use_index('scans_a');
SELECT * FROM la.check('equal to each of a list',
    'SELECT id, a, b FROM scans WHERE a IN (17, 170, 1701, 3000, 3001, 3500, 3501, 3502, 3503, 4000)',
    'Index Scan using scans_a on scans', 'scans');
SELECT * FROM la.check('long list',
    'SELECT id, a FROM scans WHERE a = ANY (ARRAY(SELECT g * 3 FROM generate_series(1, 1000) g)) ORDER BY a',
    'Index Scan using scans_a on scans', 'scans');
SELECT * FROM la.check('less',
    'SELECT id, a FROM scans WHERE a < 1500 ORDER BY a',
    'Index Scan using scans_a on scans', 'scans');
SELECT * FROM la.check('range',
    'SELECT id, a FROM scans WHERE a > 100 AND a <= 2100 ORDER BY a',
    'Index Scan using scans_a on scans', 'scans');
SELECT * FROM la.check('everything',
    'SELECT id, a FROM scans ORDER BY a',
    'Index Scan using scans_a on scans', 'scans');
SELECT * FROM la.check('backward',
    'SELECT id, a FROM scans WHERE a BETWEEN 300 AND 3300 ORDER BY a DESC',
    'Index Scan Backward using scans_a on scans', 'scans');
SELECT * FROM la.check('filter',
    'SELECT id, a FROM scans WHERE a < 3000 AND id % 7 = 3 ORDER BY a',
    'Index Scan using scans_a on scans.*Filter', 'scans');
SELECT * FROM la.check('limit',
    'SELECT id, a FROM scans ORDER BY a LIMIT 333',
    'Limit.*Index Scan using scans_a on scans', 'scans');
SELECT * FROM la.check('limit and offset',
    'SELECT id, a FROM scans ORDER BY a DESC LIMIT 33 OFFSET 777',
    'Limit.*Index Scan Backward using scans_a on scans', 'scans');
SELECT * FROM la.check('with ties',
    'SELECT id, a FROM scans ORDER BY a FETCH FIRST 100 ROWS WITH TIES',
    'Limit.*Index Scan using scans_a on scans', 'scans');

SELECT use_index('scans_b');
SELECT * FROM la.check('equal, duplicates',
    'SELECT id, b FROM scans WHERE b = 77',
    'Index Scan using scans_b on scans', 'scans');
SELECT * FROM la.check('nulls first',
    'SELECT id, b FROM scans ORDER BY b DESC',
    'Index Scan Backward using scans_b on scans', 'scans');
SELECT * FROM la.check('is null',
    'SELECT id, b FROM scans WHERE b IS NULL',
    'Index Scan using scans_b on scans', 'scans');
SELECT * FROM la.check('is not null',
    'SELECT id, b FROM scans WHERE b IS NOT NULL ORDER BY b',
    'Index Scan using scans_b on scans', 'scans');

SELECT use_index('scans_ba');
SELECT * FROM la.check('row comparison',
    'SELECT id, b, a FROM scans WHERE (b, a) > (100, 2000) AND (b, a) <= (250, 10) ORDER BY b, a',
    'Index Scan using scans_ba on scans', 'scans');
SELECT * FROM la.check('two lists',
    'SELECT id, b, a FROM scans
      WHERE b = ANY (ARRAY(SELECT g * 2 FROM generate_series(1, 150) g)) AND a < 3000 ORDER BY b, a',
    'Index Scan using scans_ba on scans', 'scans');
SELECT * FROM la.check('leading column missing, skip scan on 18',
    'SELECT id, b, a FROM scans WHERE a BETWEEN 1000 AND 1100',
    'Index Scan using scans_ba on scans', 'scans');
SELECT * FROM la.check('prefix and second column backward',
    'SELECT id, b, a FROM scans WHERE b >= 300 AND a > 2000 ORDER BY b DESC, a DESC',
    'Index Scan Backward using scans_ba on scans', 'scans');

SELECT use_index('scans_c');
SELECT * FROM la.check('correlated',
    'SELECT id, c, a FROM scans WHERE c < 300 ORDER BY c, id',
    'Index Scan using scans_c on scans', 'scans');
SELECT * FROM la.check('correlated backward, limit',
    'SELECT id, c, a FROM scans ORDER BY c DESC, id DESC LIMIT 1000',
    'Index Scan Backward using scans_c on scans', 'scans');

SELECT use_index('scans_partial');
SELECT * FROM la.check('partial index',
    'SELECT id, b FROM scans WHERE b < 40 ORDER BY id',
    'Index Scan using scans_partial on scans', 'scans');

SELECT use_index('scans_expression');
SELECT * FROM la.check('index on an expression',
    'SELECT id, a FROM scans WHERE a % 1000 BETWEEN 10 AND 200 ORDER BY a % 1000, id',
    'Index Scan using scans_expression on scans', 'scans');

--
-- Index-only scans of a table some of whose pages are not all-visible
--
SELECT use_index('scans_a');
SELECT * FROM la.check('index only',
    'SELECT a FROM scans WHERE a < 3000 ORDER BY a',
    'Index Only Scan using scans_a on scans', 'scans');
SELECT * FROM la.check('index only backward',
    'SELECT a FROM scans WHERE a > 1000 ORDER BY a DESC LIMIT 2000',
    'Index Only Scan Backward using scans_a on scans', 'scans');
SELECT * FROM la.check('index only, count',
    'SELECT count(*) FROM scans WHERE a > 17',
    'Index Only Scan using scans_a on scans', 'scans');
SELECT use_index('scans_cover');
SELECT * FROM la.check('index only, included column',
    'SELECT a, b FROM scans WHERE a BETWEEN 500 AND 3500 ORDER BY a',
    'Index Only Scan using scans_cover on scans', 'scans');
SELECT use_index('scans_ba');
SELECT * FROM la.check('index only, list',
    'SELECT b, a FROM scans WHERE b IN (7, 70, 170, 270, 271, 272) ORDER BY b, a',
    'Index Only Scan using scans_ba on scans', 'scans');

--
-- Other access methods
--
SELECT use_index('scans_hash');
SELECT * FROM la.check('hash',
    'SELECT id, b FROM scans WHERE b = 123',
    'Index Scan using scans_hash on scans', 'scans');

SELECT use_index('scans_gist');
SELECT * FROM la.check('GiST',
    'SELECT id, p FROM scans WHERE p <@ box ''((100,10),(2000,50))''',
    'Index Scan using scans_gist on scans', 'scans');
SELECT * FROM la.check('GiST, nearest first',
    'SELECT id, p FROM scans ORDER BY p <-> point ''(2000,30)'' LIMIT 500',
    'Index Scan using scans_gist on scans.*Order By', 'scans');
SELECT * FROM la.check('GiST, nearest first with a condition',
    'SELECT id, p FROM scans WHERE p <@ box ''((100,10),(2000,50))'' ORDER BY p <-> point ''(0,0)''',
    'Index Scan using scans_gist on scans.*Order By', 'scans');
SELECT * FROM la.check('GiST, index only',
    'SELECT p FROM scans WHERE p <@ box ''((100,10),(2000,50))''',
    'Index Only Scan using scans_gist on scans', 'scans');
SELECT use_index('scans_range');
SELECT * FROM la.check('GiST, ranges',
    'SELECT id, r FROM scans WHERE r && int4range(1000, 1500)',
    'Index Scan using scans_range on scans', 'scans');

SELECT use_index('scans_spgist');
SELECT * FROM la.check('SP-GiST',
    'SELECT id, p FROM scans WHERE p <@ box ''((100,10),(2000,50))''',
    'Index Scan using scans_spgist on scans', 'scans');
SELECT * FROM la.check('SP-GiST, nearest first',
    'SELECT id, p FROM scans ORDER BY p <-> point ''(1000,20)'' LIMIT 400',
    'Index Scan using scans_spgist on scans.*Order By', 'scans');
SELECT use_index('scans_text');
SELECT * FROM la.check('SP-GiST, text',
    'SELECT id, t FROM scans WHERE t ^@ ''k01''',
    'Index Scan using scans_text on scans', 'scans');
SELECT * FROM la.check('SP-GiST, index only',
    'SELECT t FROM scans WHERE t ^@ ''k02''',
    'Index Only Scan using scans_text on scans', 'scans');

--
-- Above the scan
--
SELECT use_index('scans_a', 'scans_b');
CREATE TABLE probe (k int, n int);
INSERT INTO probe SELECT (g * 37) % 500, g FROM generate_series(1, 60) g;
CREATE INDEX probe_k ON probe (k);
ANALYZE probe;
SET enable_hashjoin = off;
SET enable_material = off;
SET enable_memoize = off;

SET enable_mergejoin = off;
SELECT * FROM la.check('nested loop, rescans',
    'SELECT n, id FROM probe JOIN scans ON b = k ORDER BY n, id',
    'Nested Loop.*Index Scan using scans_b on scans', 'scans', 'probe');
SELECT * FROM la.check('lateral, limit in each round',
    'SELECT n, l.a FROM probe, LATERAL (SELECT a FROM scans WHERE a > k ORDER BY a LIMIT 20) l',
    'Nested Loop.*Limit.*Index Only Scan using scans_a on scans', 'scans');
SELECT * FROM la.check('lateral, columns of the table',
    'SELECT n, l.a, l.id FROM probe, LATERAL (SELECT a, id FROM scans WHERE a > k ORDER BY a DESC LIMIT 20) l',
    'Nested Loop.*Limit.*Index Scan Backward using scans_a on scans', 'scans');
SELECT * FROM la.check('exists',
    'SELECT n FROM probe WHERE EXISTS (SELECT FROM scans WHERE b = k AND id > 1000)',
    'Index Scan using scans_b on scans', 'scans');
SELECT * FROM la.check('not exists',
    'SELECT n FROM probe WHERE NOT EXISTS (SELECT FROM scans WHERE b = k AND id > 1000)',
    'Index Scan using scans_b on scans', 'scans');
SELECT * FROM la.check('subquery in the select list',
    'SELECT n, (SELECT sum(id) FROM scans WHERE b = k) FROM probe',
    'SubPlan.*Index Scan using scans_b on scans', 'scans');
RESET enable_mergejoin;

SET enable_nestloop = off;
SET enable_sort = off;
SELECT * FROM la.check('merge join',
    'SELECT x.id, y.id FROM scans x JOIN scans y ON x.a = y.b WHERE x.id > 100',
    'Merge Join.*Index Scan using scans_a on scans x.*Index Scan using scans_b on scans y', 'scans');
SELECT * FROM la.check('merge join, duplicates on both sides: mark and restore',
    'SELECT x.id, y.id FROM scans x JOIN scans y USING (b) WHERE y.a < 2000',
    'Merge Join.*Index Scan using scans_b on scans (x|y).*Index Scan using scans_b on scans (x|y)', 'scans');
SELECT * FROM la.check('merge semi join',
    'SELECT x.id FROM scans x WHERE EXISTS (SELECT FROM scans y WHERE x.b = y.b AND y.id % 3 = 0)',
    'Merge Semi Join.*Index Scan using scans_b on scans', 'scans');
SELECT * FROM la.check('merge anti join',
    'SELECT x.id FROM scans x WHERE NOT EXISTS (SELECT FROM scans y WHERE x.b = y.b AND y.id % 300 = 0)',
    'Merge Anti Join.*Index Scan using scans_b on scans', 'scans');
SELECT * FROM la.check('full join',
    'SELECT x.id, y.id FROM scans x FULL JOIN scans y ON x.a = y.b',
    'Merge Full Join.*Index Scan using scans_a on scans x.*Index Scan using scans_b on scans y', 'scans');
RESET enable_sort;
RESET enable_nestloop;
RESET enable_hashjoin;
RESET enable_material;
RESET enable_memoize;

SELECT use_index('scans_a', 'scans_b', 'scans_c');
SELECT * FROM la.check('union all in order',
    '(SELECT a, id FROM scans WHERE a < 1000 ORDER BY a) UNION ALL
     (SELECT c, a FROM scans WHERE c < 100 ORDER BY c, id) ORDER BY 1, 2 LIMIT 700',
    'Index Scan using scans_a on scans.*Index Scan using scans_c on scans', 'scans');
SELECT * FROM la.check('window function that stops early',
    'SELECT * FROM (SELECT a, id, row_number() OVER (ORDER BY a) AS n FROM scans) w WHERE n <= 300',
    'WindowAgg.*Index Scan using scans_a on scans', 'scans');
SELECT * FROM la.check('distinct',
    'SELECT DISTINCT b FROM scans ORDER BY b',
    'Unique.*Index (Only )?Scan using scans_b on scans', 'scans');
SELECT * FROM la.check('common table expression',
    'WITH w AS MATERIALIZED (SELECT a, id FROM scans WHERE a < 2000 ORDER BY a)
     SELECT x.id, y.id FROM w x, w y WHERE x.a = y.a + 1',
    'CTE w.*Index Scan using scans_a on scans', 'scans');

--
-- Changing the table that is scanned
--
SELECT use_index('scans_a');
SELECT * FROM la.check_dml('update',
    'UPDATE scans SET c = -1 WHERE a BETWEEN 500 AND 1500',
    'Update.*Index Scan using scans_a on scans', 'SELECT id, a, c FROM scans', 'scans');
SELECT * FROM la.check_dml('update of the index''s column',
    'UPDATE scans SET a = a + 5000 WHERE a > 2000',
    'Update.*Index Scan using scans_a on scans', 'SELECT id, a, c FROM scans', 'scans');
SELECT * FROM la.check_dml('delete',
    'DELETE FROM scans WHERE a < 1200',
    'Delete.*Index Scan using scans_a on scans', 'SELECT id, a FROM scans', 'scans');
SELECT * FROM la.check_dml('update from a join',
    'UPDATE scans s SET c = n FROM probe WHERE k = 111 AND s.a BETWEEN n * 3 AND n * 4',
    'Index Scan using scans_a on scans', 'SELECT id, a, c FROM scans', 'scans');
SELECT * FROM la.check_dml('merge',
    'MERGE INTO scans s USING (SELECT g FROM generate_series(1, 900) g) v ON s.a = v.g * 5
     WHEN MATCHED AND v.g % 2 = 0 THEN DELETE WHEN MATCHED THEN UPDATE SET c = g
     WHEN NOT MATCHED THEN INSERT (id, a) VALUES (-g, g * 5)',
    'Merge on scans.*Index Scan using scans_a on scans', 'SELECT id, a, c FROM scans', 'scans');
SELECT * FROM la.check_dml('insert into the table from itself',
    'INSERT INTO scans (id, a) SELECT -id, a + 10000 FROM scans WHERE a < 1000',
    'Index Scan using scans_a on scans', 'SELECT id, a FROM scans', 'scans');
SELECT * FROM la.check_dml('modifying common table expression',
    'WITH d AS (DELETE FROM scans WHERE a < 800 RETURNING id, a)
     INSERT INTO scans (id, a) SELECT -id, a + 20000 FROM d',
    'Delete.*Index Scan using scans_a on scans', 'SELECT id, a FROM scans', 'scans');
SELECT * FROM la.check_dml('insert on conflict',
    'INSERT INTO scans (id, a) SELECT -id, a FROM scans WHERE a < 1000
     ON CONFLICT (a) DO UPDATE SET c = -7',
    'Index Scan using scans_a on scans', 'SELECT id, a, c FROM scans', 'scans');
BEGIN;
SELECT la.cold('scans');
CREATE FUNCTION for_update() RETURNS SETOF int LANGUAGE sql AS
'SELECT id FROM scans WHERE a < 1000 ORDER BY a FOR UPDATE';
SELECT la.require_plan('SELECT id FROM scans WHERE a < 1000 ORDER BY a FOR UPDATE',
    'LockRows.*Index Scan using scans_a on scans');
SELECT la.issued() AS before \gset
SELECT (SELECT array_agg(f) FROM for_update() f)
     = (SELECT array_agg(id ORDER BY a) FROM scans WHERE a < 1000) AS for_update;
SELECT la.issued() > :before AS looked_ahead;
ROLLBACK;

--
-- From a function
--
CREATE FUNCTION in_a_loop(low int, high int) RETURNS TABLE (n bigint, s bigint)
LANGUAGE plpgsql AS $$
DECLARE
    r record;
    c CURSOR FOR SELECT id, a FROM scans WHERE a BETWEEN low AND high ORDER BY a DESC;
BEGIN
    n := 0;
    s := 0;
    FOR r IN SELECT id, a FROM scans WHERE a BETWEEN low AND high ORDER BY a LOOP
        -- a statement of its own in each round, through the same index
        s := s + (SELECT id FROM scans x WHERE x.a = r.a);
        n := n + 1;
        BEGIN
            IF n % 100 = 0 THEN
                RAISE EXCEPTION 'subtransaction %', n;
            END IF;
        EXCEPTION WHEN raise_exception THEN
            NULL;
        END;
    END LOOP;
    RETURN NEXT;
    FOR r IN c LOOP
        EXIT WHEN n < 1000;
        n := n - 1;
        s := s - r.id;
    END LOOP;
    RETURN NEXT;
END $$;
SELECT la.cold('scans');
SELECT la.issued() AS before \gset
SELECT * FROM in_a_loop(100, 3900);
SELECT la.issued() > :before AS looked_ahead;

--
-- Other kinds of tables
--
CREATE TABLE parted (k int, v int, filler text) PARTITION BY RANGE (k);
CREATE TABLE parted_1 PARTITION OF parted FOR VALUES FROM (0) TO (1000) WITH (autovacuum_enabled = off);
CREATE TABLE parted_2 PARTITION OF parted FOR VALUES FROM (1000) TO (2000) WITH (autovacuum_enabled = off);
CREATE TABLE parted_3 PARTITION OF parted FOR VALUES FROM (2000) TO (3000) WITH (autovacuum_enabled = off);
INSERT INTO parted SELECT (g * 7919) % 3000, g, repeat('x', 300) FROM generate_series(1, 3000) g;
CREATE INDEX parted_k ON parted (k);
ANALYZE parted;
SELECT * FROM la.check('partitioned table',
    'SELECT k, v FROM parted WHERE k BETWEEN 500 AND 2500 ORDER BY k',
    'Append.*Index Scan using parted_1.*Index Scan using parted_3', 'parted');
SELECT * FROM la.check('partitioned table, backward and limit',
    'SELECT k, v FROM parted ORDER BY k DESC LIMIT 1500',
    'Index Scan Backward using parted_3', 'parted');
SET plan_cache_mode = force_generic_plan;
PREPARE pruned(int, int) AS SELECT count(*), sum(v) FROM parted WHERE k BETWEEN $1 AND $2;
SELECT la.cold('parted');
SELECT la.issued() AS before \gset
EXECUTE pruned(100, 900);
EXECUTE pruned(1900, 2100);
SELECT la.issued() > :before AS looked_ahead;
DEALLOCATE pruned;
RESET plan_cache_mode;

CREATE TABLE hashed (k int, v int, filler text) PARTITION BY HASH (v);
CREATE TABLE hashed_1 PARTITION OF hashed FOR VALUES WITH (MODULUS 2, REMAINDER 0) WITH (autovacuum_enabled = off);
CREATE TABLE hashed_2 PARTITION OF hashed FOR VALUES WITH (MODULUS 2, REMAINDER 1) WITH (autovacuum_enabled = off);
INSERT INTO hashed SELECT (g * 7919) % 3000, g, repeat('x', 300) FROM generate_series(1, 3000) g;
CREATE INDEX hashed_k ON hashed (k);
ANALYZE hashed;
SELECT * FROM la.check('partitions merged in order',
    'SELECT k, v FROM hashed WHERE k > 300 ORDER BY k LIMIT 1500',
    'Merge Append.*Index Scan using hashed_1.*Index Scan using hashed_2', 'hashed');

CREATE UNLOGGED TABLE unlogged (k int, v int, filler text) WITH (autovacuum_enabled = off);
INSERT INTO unlogged SELECT (g * 7919) % 3000, g, repeat('x', 300) FROM generate_series(1, 3000) g;
CREATE INDEX unlogged_k ON unlogged (k);
ANALYZE unlogged;
SELECT * FROM la.check('unlogged table',
    'SELECT k, v FROM unlogged WHERE k BETWEEN 500 AND 2500 ORDER BY k',
    'Index Scan using unlogged_k', 'unlogged');

CREATE TEMP TABLE own (k int, v int, filler text);
INSERT INTO own SELECT (g * 7919) % 3000, g, repeat('x', 300) FROM generate_series(1, 3000) g;
CREATE INDEX own_k ON own (k);
ANALYZE own;
SELECT * FROM la.check('temporary table',
    'SELECT k, v FROM own WHERE k BETWEEN 500 AND 2500 ORDER BY k',
    'Index Scan using own_k', 'own');
SELECT * FROM la.check('temporary table, index only',
    'SELECT k FROM own WHERE k BETWEEN 500 AND 2500 ORDER BY k DESC',
    'Index Only Scan Backward using own_k', 'own');

-- TOAST: the values come through an index that is not the query's
CREATE TABLE toasted (k int, long text, filler text) WITH (autovacuum_enabled = off);
ALTER TABLE toasted ALTER long SET STORAGE external;
INSERT INTO toasted SELECT (g * 37) % 101, repeat(chr(65 + g % 26), 5000), repeat('x', 1500) FROM generate_series(1, 101) g;
CREATE INDEX toasted_k ON toasted (k);
ANALYZE toasted;
SELECT * FROM la.check('values out of line',
    'SELECT k, md5(long) FROM toasted ORDER BY k',
    'Index Scan using toasted_k', 'toasted');

DROP TABLE scans, probe, parted, hashed, unlogged, own, toasted;
DROP FUNCTION use_index, in_a_loop;
