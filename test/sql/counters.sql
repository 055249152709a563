--
-- counters: of the session and of each relation
--
\getenv abs_srcdir PG_ABS_SRCDIR
\set helpers :abs_srcdir '/data/helpers.sql'
\set ECHO none
\i :helpers
\set ECHO all
-- leaf pages have a test of their own
SET pg_lookahead.leafscan = off;

CREATE TABLE counted (a int, filler text) WITH (fillfactor = 20, autovacuum_enabled = off);
INSERT INTO counted SELECT (i * 7919) % 3001, repeat('x', 100) FROM generate_series(1, 3000) i;
CREATE INDEX counted_a ON counted (a);
VACUUM ANALYZE counted;
CREATE SCHEMA other;
CREATE TABLE other.counted AS SELECT * FROM counted;
CREATE INDEX counted_b ON other.counted (a);

CREATE TABLE noted AS SELECT * FROM pg_lookahead_session();
CREATE PROCEDURE note() LANGUAGE sql AS
'DELETE FROM noted; INSERT INTO noted SELECT * FROM pg_lookahead_session()';
CREATE VIEW gain AS
SELECT s.scans - n.scans AS scans, s.windows - n.windows AS windows,
       s.blocks_issued - n.blocks_issued AS issued, s.blocks_used - n.blocks_used AS used,
       s.blocks_wasted - n.blocks_wasted AS wasted, s.blocks_hit - n.blocks_hit AS hit,
       s.blocks_dropped - n.blocks_dropped AS dropped, s.errors - n.errors AS errors,
       s.depth_max, s.reads_in_flight
  FROM pg_lookahead_session() s, noted n;
SELECT pg_relation_size('counted') / current_setting('block_size')::int AS blocks \gset

--
-- The session
--
-- a cold table, read to the end: every block is read ahead once, nearly all are used
SELECT la.cold('counted');
CALL note();
SELECT count(filler) FROM (SELECT * FROM counted ORDER BY a OFFSET 0) t;
SELECT scans, windows > 1 AS windows, issued > :blocks * 0.5 AS issued, issued = used + wasted AS accounted,
       wasted <= issued * 0.02 AS little_wasted, dropped, errors, depth_max > 8 AS deep, reads_in_flight
  FROM gain;

-- the table in shared buffers: looked at, found there
CALL note();
SET enable_seqscan = on;
SELECT count(filler) FROM counted;
SET enable_seqscan = off;
SELECT count(filler) FROM (SELECT * FROM counted WHERE a < 300 ORDER BY a OFFSET 0) t;
SELECT scans, issued + hit > 50 AS looked, issued <= hit AS mostly_hit FROM gain;

-- a query that stops early wastes what it does not come to
SELECT la.cold('counted');
CALL note();
SELECT count(filler) FROM (SELECT * FROM (SELECT * FROM counted ORDER BY a OFFSET 0) u WHERE a > 0 LIMIT 5) t;
SELECT scans, issued > 0 AS issued, wasted > 0 AS wasted, issued = used + wasted AS accounted FROM gain;

-- LIMIT directly above the scan is known in advance
SELECT la.cold('counted');
CALL note();
SELECT count(filler) FROM (SELECT * FROM counted ORDER BY a LIMIT 5) t;
SELECT scans, issued > 0 AS issued, wasted, issued = used AS all_used FROM gain;

-- method none: everything is dropped
SELECT la.cold('counted');
SET pg_lookahead.method = 'none';
CALL note();
SELECT count(filler) FROM (SELECT * FROM counted ORDER BY a OFFSET 0) t;
SELECT scans, issued, used, wasted, dropped > :blocks * 0.5 AS dropped FROM gain;
RESET pg_lookahead.method;

-- every method keeps the same account
DO $$
DECLARE
    method text;
    g record;
BEGIN
    FOREACH method IN ARRAY la.methods() LOOP
        PERFORM la.cold('counted');
        PERFORM set_config('pg_lookahead.method', method, true);
        CALL note();
        PERFORM count(filler) FROM (SELECT * FROM counted WHERE a % 2 = 1 ORDER BY a OFFSET 0) t;
        SELECT * INTO g FROM gain;
        ASSERT g.scans = 1 AND g.issued > 0 AND g.issued = g.used + g.wasted AND g.reads_in_flight = 0, method || g;
    END LOOP;
END $$;

--
-- Each relation
--
SELECT pg_stat_lookahead_reset();
SELECT count(*) FROM pg_stat_lookahead;
SELECT la.cold('counted', 'other.counted');
SELECT count(filler) FROM (SELECT * FROM counted ORDER BY a OFFSET 0) t;
SELECT count(filler) FROM (SELECT * FROM counted WHERE a < 2000 ORDER BY a DESC OFFSET 0) t;
SELECT count(filler) FROM (SELECT * FROM other.counted ORDER BY a OFFSET 0) t;
SELECT schemaname, relname, relid = to_regclass(schemaname || '.' || relname) AS relid, scans,
       windows > 0 AS windows, blocks_issued > 0 AS issued, blocks_used > 0 AS used,
       blocks_issued = blocks_used + blocks_wasted AS accounted, errors, depth_max > 0 AS depth,
       stats_reset BETWEEN now() - interval '1 hour' AND clock_timestamp() AS stats_reset
  FROM pg_stat_lookahead ORDER BY schemaname;
-- one relation is forgotten, the other is not; 0 is none
SELECT pg_stat_lookahead_reset('counted'::regclass);
SELECT pg_stat_lookahead_reset(0);
SELECT schemaname, relname FROM pg_stat_lookahead;
SELECT count(filler) FROM (SELECT * FROM counted WHERE a < 100 ORDER BY a OFFSET 0) t;
SELECT schemaname, relname, scans FROM pg_stat_lookahead ORDER BY schemaname;
-- what was read stays read, also if the transaction is rolled back
SELECT pg_stat_lookahead_reset();
BEGIN;
SELECT count(filler) FROM (SELECT * FROM counted WHERE a < 100 ORDER BY a OFFSET 0) t;
ROLLBACK;
SELECT relname, scans FROM pg_stat_lookahead;
-- a dropped relation has no name any more
DROP TABLE counted CASCADE;
SELECT schemaname, relname, scans FROM pg_stat_lookahead;
SELECT pg_stat_lookahead_reset(relid) FROM pg_stat_lookahead;
SELECT count(*) FROM pg_stat_lookahead;

DROP SCHEMA other CASCADE;
DROP PROCEDURE note;
DROP VIEW gain;
DROP TABLE noted;
