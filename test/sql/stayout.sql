--
-- stayout: scans that look-ahead leaves alone
--
\getenv abs_srcdir PG_ABS_SRCDIR
\set helpers :abs_srcdir '/data/helpers.sql'
\set ECHO none
\i :helpers
\pset tuples_only on
\pset format unaligned
\set ECHO all

CREATE TABLE alone (a int, b text, filler text) WITH (fillfactor = 20, autovacuum_enabled = off);
INSERT INTO alone SELECT (i * 7919) % 3001, md5(i::text), repeat('x', 100)
  FROM generate_series(1, 3000) i;
CREATE INDEX alone_a ON alone (a);
VACUUM ANALYZE alone;

-- What look-ahead does about a query: nothing, or what it does to a cold table.
CREATE FUNCTION about(query text) RETURNS text LANGUAGE plpgsql AS $$
DECLARE
    before record;
    after record;
    n bigint;
BEGIN
    before := pg_lookahead_session();
    EXECUTE 'SELECT count(q) FROM (' || query || ' OFFSET 0) q' INTO n;
    after := pg_lookahead_session();
    IF n = 0 THEN
        RETURN 'the query has no rows';
    ELSIF after.blocks_issued > before.blocks_issued THEN
        RETURN 'looks ahead';
    ELSIF after.scans > before.scans OR after.blocks_hit > before.blocks_hit
          OR after.blocks_dropped > before.blocks_dropped THEN
        RETURN 'looks, but reads nothing';
    END IF;
    RETURN 'stays out';
END $$;

SELECT la.require_plan('SELECT a, b FROM alone ORDER BY a', 'Index Scan using alone_a');
SELECT la.cold('alone');
SELECT about('SELECT a, b FROM alone ORDER BY a');

-- the switch
SELECT la.cold('alone');
SET pg_lookahead.enabled = off;
SELECT about('SELECT a, b FROM alone ORDER BY a');
SET pg_lookahead.enabled = on;
SELECT la.cold('alone');
SELECT about('SELECT a, b FROM alone ORDER BY a');

-- the method that reads nothing
SELECT la.cold('alone');
SET pg_lookahead.method = 'none';
SELECT about('SELECT a, b FROM alone ORDER BY a');
RESET pg_lookahead.method;

-- SERIALIZABLE: reading an index takes predicate locks, and a second scan would
-- take more than the query's own
SELECT la.cold('alone');
BEGIN ISOLATION LEVEL SERIALIZABLE;
SELECT about('SELECT a, b FROM alone ORDER BY a');
SELECT count(*) > 0 AS locks FROM pg_locks WHERE mode = 'SIReadLock' AND relation = 'alone'::regclass;
COMMIT;
BEGIN ISOLATION LEVEL SERIALIZABLE READ ONLY;
SELECT about('SELECT a, b FROM alone ORDER BY a');
COMMIT;
SELECT la.cold('alone');
BEGIN ISOLATION LEVEL REPEATABLE READ;
SELECT about('SELECT a, b FROM alone ORDER BY a');
COMMIT;

-- system catalogs, in plans and below them
SELECT la.require_plan('SELECT proname, prosrc FROM pg_proc ORDER BY oid', 'Index Scan using pg_proc_oid_index');
SELECT about('SELECT proname, prosrc FROM pg_proc ORDER BY oid');

-- scans that are no index scans
SET enable_seqscan = on;
SET enable_indexscan = off;
SELECT about('SELECT a, b FROM alone');
SET enable_bitmapscan = on;
SET enable_seqscan = off;
SELECT la.cold('alone');
SELECT la.require_plan('SELECT a, b FROM alone WHERE a < 1000', 'Bitmap Heap Scan on alone');
SET pg_lookahead.bitmapscan = off; SET pg_lookahead.leafscan = off;
SELECT about('SELECT a, b FROM alone WHERE a < 1000');
RESET pg_lookahead.bitmapscan; RESET pg_lookahead.leafscan;
RESET enable_bitmapscan;
SET enable_bitmapscan = off;
RESET enable_indexscan;

-- an index-only scan of a table that is all-visible reads no table
SELECT la.require_plan('SELECT a FROM alone ORDER BY a', 'Index Only Scan using alone_a');
SELECT about('SELECT a FROM alone ORDER BY a');

-- one row: nothing comes after it
SELECT about('SELECT a, b FROM alone WHERE a = 77');
SELECT about('SELECT a, b FROM alone ORDER BY a LIMIT 1');

-- by its unique key: such a scan is not even looked at
CREATE TABLE keyed (a int, b int, filler text) WITH (fillfactor = 20, autovacuum_enabled = off);
INSERT INTO keyed SELECT a, nullif(b, 31), repeat('x', 100)
  FROM generate_series(1, 50) a, generate_series(1, 60) b WHERE b < 31 OR a = 50 ORDER BY md5(a || ' ' || b);
UPDATE keyed SET b = NULL WHERE b > 31;
CREATE UNIQUE INDEX keyed_a_b ON keyed (a, b);
VACUUM ANALYZE keyed;
SELECT la.cold('keyed');
SELECT la.require_plan('SELECT * FROM keyed WHERE a = 5 AND b = 7', 'Index Scan using keyed_a_b');
SELECT about('SELECT * FROM keyed WHERE a = 5 AND b = 7');
SELECT about('SELECT * FROM keyed WHERE a = 5 AND b = 8::bigint');
SELECT about('SELECT a FROM keyed WHERE a = 5 AND b = 9');
-- but these may find more rows than one
SELECT la.require_plan('SELECT * FROM keyed WHERE a = 10', 'Index Scan using keyed_a_b');
SELECT about('SELECT * FROM keyed WHERE a = 10');
SELECT la.require_plan('SELECT * FROM keyed WHERE a = 20 AND b > 3', 'Index Scan using keyed_a_b');
SELECT about('SELECT * FROM keyed WHERE a = 20 AND b > 3');
SELECT la.require_plan('SELECT * FROM keyed WHERE a = 30 AND b IN (1, 3, 5, 7, 9, 11)', 'Index Scan using keyed_a_b');
SELECT about('SELECT * FROM keyed WHERE a = 30 AND b IN (1, 3, 5, 7, 9, 11)');
SELECT la.require_plan('SELECT * FROM keyed WHERE a = 50 AND b IS NULL', 'Index Scan using keyed_a_b');
SELECT about('SELECT * FROM keyed WHERE a = 50 AND b IS NULL');
DROP TABLE keyed;

-- operators and support functions that are not written in C
CREATE FUNCTION my_compare(int, int) RETURNS int LANGUAGE plpgsql IMMUTABLE STRICT AS
'BEGIN RETURN CASE WHEN $1 < $2 THEN -1 WHEN $1 > $2 THEN 1 ELSE 0 END; END';
CREATE OPERATOR CLASS my_ops FOR TYPE int USING btree AS
    OPERATOR 1 <, OPERATOR 2 <=, OPERATOR 3 =, OPERATOR 4 >=, OPERATOR 5 >, FUNCTION 1 my_compare(int, int);
DROP INDEX alone_a;
CREATE INDEX alone_mine ON alone (a my_ops);
SELECT la.require_plan('SELECT a, b FROM alone WHERE a > 100 ORDER BY a', 'Index Scan using alone_mine');
SELECT la.cold('alone');
SELECT about('SELECT a, b FROM alone WHERE a > 100 ORDER BY a');

-- written in C, but not if it runs as another user or sets parameters
CREATE FUNCTION my_c_compare(int, int) RETURNS int LANGUAGE internal IMMUTABLE STRICT AS 'btint4cmp';
CREATE OPERATOR CLASS my_c_ops FOR TYPE int USING btree AS
    OPERATOR 1 <, OPERATOR 2 <=, OPERATOR 3 =, OPERATOR 4 >=, OPERATOR 5 >, FUNCTION 1 my_c_compare(int, int);
DROP INDEX alone_mine;
CREATE INDEX alone_mine ON alone (a my_c_ops);
SELECT la.require_plan('SELECT a, b FROM alone WHERE a > 100 ORDER BY a', 'Index Scan using alone_mine');
SELECT la.cold('alone');
SELECT about('SELECT a, b FROM alone WHERE a > 100 ORDER BY a');
ALTER FUNCTION my_c_compare SECURITY DEFINER;
DROP INDEX alone_mine;
CREATE INDEX alone_mine ON alone (a my_c_ops);
SELECT la.cold('alone');
SELECT about('SELECT a, b FROM alone WHERE a > 100 ORDER BY a');
ALTER FUNCTION my_c_compare SECURITY INVOKER SET work_mem = '1MB';
DROP INDEX alone_mine;
CREATE INDEX alone_mine ON alone (a my_c_ops);
SELECT la.cold('alone');
SELECT about('SELECT a, b FROM alone WHERE a > 100 ORDER BY a');

-- the function for a key of another type is not, also in a row; that for the same type is
CREATE FUNCTION my_other(int, bigint) RETURNS int LANGUAGE plpgsql IMMUTABLE STRICT AS
'BEGIN RETURN sign($1 - $2)::int; END';
CREATE OPERATOR CLASS half_ops FOR TYPE int USING btree AS
    OPERATOR 1 <, OPERATOR 2 <=, OPERATOR 3 =, OPERATOR 4 >=, OPERATOR 5 >, FUNCTION 1 btint4cmp(int, int);
ALTER OPERATOR FAMILY half_ops USING btree ADD
    OPERATOR 1 < (int, bigint), OPERATOR 2 <= (int, bigint), OPERATOR 3 = (int, bigint),
    OPERATOR 4 >= (int, bigint), OPERATOR 5 > (int, bigint), FUNCTION 1 (int, bigint) my_other(int, bigint);
DROP INDEX alone_mine;
CREATE INDEX alone_half ON alone (a half_ops, b);
SELECT la.require_plan('SELECT * FROM alone WHERE a > 100', 'Index Scan using alone_half');
SELECT la.cold('alone');
SELECT about('SELECT * FROM alone WHERE a > 100');
SELECT la.require_plan('SELECT * FROM alone WHERE a > 100::bigint', 'Index Scan using alone_half');
SELECT la.cold('alone');
SELECT about('SELECT * FROM alone WHERE a > 100::bigint');
SELECT la.require_plan('SELECT * FROM alone WHERE (a, b) > (100::bigint, ''7'')', 'Index Scan using alone_half');
SELECT la.cold('alone');
SELECT about('SELECT * FROM alone WHERE (a, b) > (100::bigint, ''7'')');
SELECT la.require_plan('SELECT * FROM alone WHERE (a, b) > (100, ''7'')', 'Index Scan using alone_half');
SELECT la.cold('alone');
SELECT about('SELECT * FROM alone WHERE (a, b) > (100, ''7'')');

-- an array of a built-in type whose order is not written in C
CREATE FUNCTION my_point_compare(point, point) RETURNS int LANGUAGE plpgsql IMMUTABLE STRICT AS
'BEGIN RETURN sign($1[0] - $2[0])::int; END';
DO $$
DECLARE
    o text[];
BEGIN
    FOREACH o SLICE 1 IN ARRAY ARRAY[['lt', '<'], ['le', '<='], ['eq', '='], ['ge', '>='], ['gt', '>']] LOOP
        EXECUTE format('CREATE FUNCTION my_point_%s(point, point) RETURNS bool LANGUAGE sql IMMUTABLE STRICT AS '
                       '''SELECT my_point_compare($1, $2) %s 0''', o[1], o[2]);
        EXECUTE format('CREATE OPERATOR %s (LEFTARG = point, RIGHTARG = point, FUNCTION = my_point_%s)', o[2], o[1]);
    END LOOP;
END $$;
CREATE OPERATOR CLASS point_order DEFAULT FOR TYPE point USING btree AS
    OPERATOR 1 <, OPERATOR 2 <=, OPERATOR 3 =, OPERATOR 4 >=, OPERATOR 5 >, FUNCTION 1 my_point_compare(point, point);
CREATE TABLE arranged (p point[], i int[], filler text) WITH (autovacuum_enabled = off);
INSERT INTO arranged SELECT ARRAY[point(i, i)], ARRAY[i], repeat('x', 1000)
  FROM generate_series(1, 400) i ORDER BY md5(i::text);
CREATE INDEX arranged_p ON arranged (p);
CREATE INDEX arranged_i ON arranged (i);
SELECT la.cold('arranged');
SELECT la.require_plan('SELECT p, filler FROM arranged ORDER BY p', 'Index Scan using arranged_p');
SELECT about('SELECT p, filler FROM arranged ORDER BY p');
SELECT la.cold('arranged');
SELECT la.require_plan('SELECT i, filler FROM arranged ORDER BY i', 'Index Scan using arranged_i');
SELECT about('SELECT i, filler FROM arranged ORDER BY i');

-- rows that are looked up by a constraint
CREATE TABLE referenced (id int PRIMARY KEY, filler text) WITH (autovacuum_enabled = off);
INSERT INTO referenced SELECT i, repeat('x', 1000) FROM generate_series(1, 1000) i ORDER BY md5(i::text);
CREATE TABLE referencing (id int REFERENCES referenced ON DELETE CASCADE);
CREATE INDEX ON referencing (id);
SELECT la.cold('referenced');
SELECT la.issued() AS before \gset
INSERT INTO referencing SELECT generate_series(1, 1000);
INSERT INTO referenced SELECT generate_series(1, 500) ON CONFLICT DO NOTHING;
SELECT la.issued() = :before AS stayed_out;

-- the waits that were seen decide, unless a test says otherwise
SET pg_lookahead.start_after = 8;
SELECT la.cold('referenced');
SELECT about('SELECT * FROM referenced WHERE id < 9 ORDER BY id');

DROP TABLE alone, referencing, referenced, arranged;
DROP FUNCTION about;
SET client_min_messages = warning;
DROP FUNCTION my_point_compare, my_point_lt, my_point_le, my_point_eq, my_point_ge, my_point_gt CASCADE;
DROP OPERATOR FAMILY point_order USING btree;
RESET client_min_messages;
DROP OPERATOR FAMILY my_ops USING btree;
DROP OPERATOR FAMILY my_c_ops USING btree;
DROP OPERATOR FAMILY half_ops USING btree;
DROP FUNCTION my_compare, my_c_compare, my_other;
