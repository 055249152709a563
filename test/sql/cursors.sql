--
-- cursors: scans that stop, go on, turn round and outlive their transaction
--
\getenv abs_srcdir PG_ABS_SRCDIR
\set helpers :abs_srcdir '/data/helpers.sql'
\set ECHO none
\i :helpers
\pset tuples_only on
\pset format unaligned
\set ECHO all

-- a is unique and in random order; about 250 blocks
CREATE TABLE moved (a int, filler text) WITH (fillfactor = 20, autovacuum_enabled = off);
INSERT INTO moved SELECT (i * 7919) % 3001, repeat('x', 100) FROM generate_series(1, 3000) i;
CREATE INDEX moved_a ON moved (a);
CREATE INDEX moved_hash ON moved USING hash ((a % 7));
VACUUM ANALYZE moved;
SELECT la.require_plan('SELECT a, length(filler) FROM moved ORDER BY a', 'Index Scan using moved_a');

--
-- Forward, backward, absolute, relative; to both ends and back
--
CREATE PROCEDURE about(method text) LANGUAGE plpgsql AS $$
DECLARE
    c SCROLL CURSOR FOR SELECT a, length(filler) AS l FROM moved ORDER BY a;
    r record;
    got int[] := '{}';
    n int;
BEGIN
    PERFORM set_config('pg_lookahead.method', method, true);
    OPEN c;
    FOR i IN 1..30 LOOP FETCH c INTO r; got := got || r.a; END LOOP;
    RAISE NOTICE 'next %', got;
    got := '{}';
    FOR i IN 1..12 LOOP FETCH PRIOR FROM c INTO r; got := got || r.a; END LOOP;
    RAISE NOTICE 'prior %', got;
    FETCH ABSOLUTE 1000 FROM c INTO r;
    RAISE NOTICE 'absolute %', r;
    FETCH RELATIVE 500 FROM c INTO r;
    RAISE NOTICE 'relative %', r;
    FETCH RELATIVE -1200 FROM c INTO r;
    RAISE NOTICE 'relative %', r;
    FETCH ABSOLUTE -3 FROM c INTO r;
    RAISE NOTICE 'third last %', r;
    FETCH LAST FROM c INTO r;
    RAISE NOTICE 'last %', r;
    FETCH NEXT FROM c INTO r;
    RAISE NOTICE 'after the end %', r;
    FETCH PRIOR FROM c INTO r;
    RAISE NOTICE 'and back %', r;
    FETCH FIRST FROM c INTO r;
    RAISE NOTICE 'first %', r;
    FETCH PRIOR FROM c INTO r;
    RAISE NOTICE 'before the start %', r;
    FETCH NEXT FROM c INTO r;
    RAISE NOTICE 'and on %', r;
    MOVE FORWARD 2000 FROM c;
    FETCH c INTO r;
    RAISE NOTICE 'after a move %', r;
    MOVE BACKWARD ALL FROM c;
    FETCH c INTO r;
    RAISE NOTICE 'from the start %', r;
    MOVE FORWARD ALL FROM c;
    got := '{}';
    FOR i IN 1..40 LOOP FETCH PRIOR FROM c INTO r; got := got || r.a; END LOOP;
    RAISE NOTICE 'backward from the end %', got;
    CLOSE c;
END $$;
SET client_min_messages = notice;
SELECT la.cold('moved');
SELECT la.issued() AS before \gset
CALL about('advice');
SELECT la.issued() > :before AS looked_ahead;
-- the other method must say the same; on servers without it, advice does again
SELECT la.cold('moved');
SELECT la.issued() AS before \gset
SELECT (la.methods())[array_upper(la.methods(), 1)] AS method \gset
CALL about(:'method');
SELECT la.issued() > :before AS looked_ahead;

--
-- A few rows at a time, in a transaction
--
SELECT la.cold('moved');
BEGIN;
DECLARE c CURSOR FOR SELECT a FROM moved WHERE length(filler) > 0 ORDER BY a;
FETCH 3 FROM c;
FETCH 2 FROM c;
-- something else in between, through the same index
SELECT sum(length(filler)) FROM moved WHERE a BETWEEN 100 AND 900;
FETCH 2 FROM c;
-- settings that change under the cursor
SET LOCAL pg_lookahead.enabled = off;
FETCH 2 FROM c;
SET LOCAL pg_lookahead.enabled = on;
SET LOCAL pg_lookahead.method = 'none';
SET LOCAL pg_lookahead.max_distance = 8;
FETCH 2 FROM c;
CLOSE c;
COMMIT;

-- closed early, by CLOSE, by COMMIT and by ROLLBACK
BEGIN;
DECLARE c CURSOR FOR SELECT a, filler FROM moved ORDER BY a DESC;
FETCH 1 FROM c \g /dev/null
CLOSE c;
DECLARE c CURSOR FOR SELECT a, filler FROM moved ORDER BY a DESC;
FETCH 1 FROM c \g /dev/null
COMMIT;
BEGIN;
DECLARE c CURSOR FOR SELECT a, filler FROM moved ORDER BY a DESC;
FETCH 1 FROM c \g /dev/null
ROLLBACK;
-- never fetched from
BEGIN;
DECLARE c CURSOR FOR SELECT a, filler FROM moved ORDER BY a DESC;
COMMIT;
SELECT reads_in_flight FROM pg_lookahead_session();

--
-- Savepoints
--
SELECT la.cold('moved');
BEGIN;
DECLARE outside SCROLL CURSOR FOR SELECT a, length(filler) FROM moved ORDER BY a;
FETCH 2 FROM outside;
SAVEPOINT s;
FETCH 2 FROM outside;
DECLARE inside CURSOR FOR SELECT a, length(filler) FROM moved ORDER BY a DESC;
FETCH 2 FROM inside;
SELECT 1 / 0;
ROLLBACK TO s;
FETCH 2 FROM outside;
FETCH inside;
ROLLBACK TO s;
FETCH BACKWARD 2 FROM outside;
RELEASE s;
FETCH 3 FROM outside;
-- the cursor's own query fails
DECLARE failing CURSOR FOR SELECT 10 / (a - 25), filler FROM moved ORDER BY a;
MOVE 20 FROM failing;
SAVEPOINT s;
MOVE 20 FROM failing;
ROLLBACK TO s;
FETCH failing;
ROLLBACK TO s;
FETCH 3 FROM outside;
COMMIT;
SELECT reads_in_flight FROM pg_lookahead_session();

--
-- WITH HOLD
--
SELECT la.cold('moved');
SELECT la.issued() AS before \gset
BEGIN;
DECLARE held SCROLL CURSOR WITH HOLD FOR SELECT a, length(filler) FROM moved WHERE a > 10 ORDER BY a;
FETCH 2 FROM held;
COMMIT;
SELECT la.issued() > :before AS looked_ahead;
FETCH 2 FROM held;
FETCH BACKWARD 3 FROM held;
DELETE FROM moved WHERE a = 13;
FETCH ABSOLUTE 2990 FROM held;
FETCH 5 FROM held;
CLOSE held;
-- held, but rolled back
BEGIN;
DECLARE held CURSOR WITH HOLD FOR SELECT a, length(filler) FROM moved ORDER BY a;
FETCH 2 FROM held;
ROLLBACK;
FETCH held;

--
-- A cursor sees the table as it was when it was opened
--
BEGIN;
DECLARE c SCROLL CURSOR FOR SELECT a, length(filler) FROM moved WHERE a BETWEEN 1000 AND 2000 ORDER BY a;
FETCH 2 FROM c;
DELETE FROM moved WHERE a BETWEEN 1003 AND 1500;
UPDATE moved SET a = a + 10000 WHERE a BETWEEN 1600 AND 1700;
INSERT INTO moved SELECT 1001, 'new' FROM generate_series(1, 1000);
MOVE 497 FROM c;
FETCH 2 FROM c;
MOVE 99 FROM c;
FETCH 2 FROM c;
MOVE FORWARD ALL FROM c;
FETCH PRIOR FROM c;
FETCH ABSOLUTE 5 FROM c;
ROLLBACK;
-- WHERE CURRENT OF
BEGIN;
DECLARE c CURSOR FOR SELECT a FROM moved WHERE length(filler) > 0 AND a > 500 ORDER BY a FOR UPDATE;
MOVE 10 FROM c;
FETCH c;
UPDATE moved SET filler = 'here' WHERE CURRENT OF c;
MOVE 10 FROM c;
FETCH c;
DELETE FROM moved WHERE CURRENT OF c;
FETCH c;
SELECT a, left(filler, 4) FROM moved WHERE a IN (511, 522) ORDER BY a;
ROLLBACK;

--
-- Hash: pins its bucket, can turn round
--
DROP INDEX moved_a;
SELECT la.require_plan('SELECT a FROM moved WHERE a % 7 = 3', 'Index Scan using moved_hash');
SELECT la.cold('moved');
SELECT la.issued() AS before \gset
SELECT array_agg(a) AS everything FROM (SELECT a FROM moved WHERE a % 7 = 3) t \gset
BEGIN;
DECLARE c SCROLL CURSOR FOR SELECT a FROM moved WHERE a % 7 = 3;
MOVE 50 FROM c;
CREATE TEMP TABLE got (n int GENERATED ALWAYS AS IDENTITY, a int);
CREATE FUNCTION take(direction text, n int) RETURNS boolean LANGUAGE plpgsql AS $$
DECLARE
    c refcursor := 'c';
    r record;
BEGIN
    FOR i IN 1..n LOOP
        EXECUTE format('FETCH %s FROM c', direction) INTO r;
        INSERT INTO got (a) VALUES (r.a);
    END LOOP;
    RETURN true;
END $$;
SELECT take('NEXT', 10), take('PRIOR', 30), take('NEXT', 100);
SELECT array_agg(a ORDER BY n) =
       (SELECT array_agg((:'everything'::int[])[p] ORDER BY n)
          FROM unnest(ARRAY(SELECT generate_series(51, 60)) || ARRAY(SELECT generate_series(59, 30, -1))
                      || ARRAY(SELECT generate_series(31, 130))) WITH ORDINALITY AS u (p, n)) AS same
  FROM got;
CLOSE c;
SELECT la.issued() > :before AS looked_ahead;
ROLLBACK;

DROP PROCEDURE about;
DROP TABLE moved;
