/* pg_lookahead--0.1.0.sql */

-- complain if script is sourced in psql, rather than via CREATE EXTENSION
\echo Use "CREATE EXTENSION pg_lookahead" to load this file. \quit

CREATE FUNCTION pg_lookahead_version()
RETURNS text
AS 'MODULE_PATHNAME', 'pg_lookahead_version'
LANGUAGE C STABLE STRICT PARALLEL SAFE;

COMMENT ON FUNCTION pg_lookahead_version() IS
'version of the loaded library';

CREATE FUNCTION pg_lookahead_status(
    OUT preloaded boolean,
    OUT io_method text,
    OUT direct_io boolean,
    OUT method text,
    OUT reason text,
    OUT relations_lost bigint,
    OUT scans_unserved bigint)
RETURNS record
AS 'MODULE_PATHNAME', 'pg_lookahead_status'
LANGUAGE C VOLATILE STRICT PARALLEL RESTRICTED;

COMMENT ON FUNCTION pg_lookahead_status() IS
'how this session reads ahead, and why';

CREATE FUNCTION pg_lookahead_session(
    OUT scans bigint,
    OUT windows bigint,
    OUT blocks_issued bigint,
    OUT blocks_used bigint,
    OUT blocks_wasted bigint,
    OUT blocks_hit bigint,
    OUT blocks_dropped bigint,
    OUT waits bigint,
    OUT errors bigint,
    OUT depth_max integer,
    OUT reads_in_flight integer)
RETURNS record
AS 'MODULE_PATHNAME', 'pg_lookahead_session'
LANGUAGE C VOLATILE STRICT PARALLEL RESTRICTED;

COMMENT ON FUNCTION pg_lookahead_session() IS
'what look-ahead did in this session';

CREATE FUNCTION pg_lookahead_relations(
    OUT relid oid,
    OUT scans bigint,
    OUT windows bigint,
    OUT blocks_issued bigint,
    OUT blocks_used bigint,
    OUT blocks_wasted bigint,
    OUT blocks_hit bigint,
    OUT blocks_dropped bigint,
    OUT waits bigint,
    OUT errors bigint,
    OUT depth_max integer,
    OUT stats_reset timestamptz)
RETURNS SETOF record
AS 'MODULE_PATHNAME', 'pg_lookahead_relations'
LANGUAGE C VOLATILE STRICT PARALLEL RESTRICTED;

COMMENT ON FUNCTION pg_lookahead_relations() IS
'what look-ahead did for each relation of this database; see pg_stat_lookahead';

CREATE VIEW pg_stat_lookahead AS
SELECT s.relid,
       n.nspname AS schemaname,
       c.relname,
       s.scans,
       s.windows,
       s.blocks_issued,
       s.blocks_used,
       s.blocks_wasted,
       s.blocks_hit,
       s.blocks_dropped,
       s.waits,
       s.errors,
       s.depth_max,
       s.stats_reset
  FROM pg_lookahead_relations() s
       LEFT JOIN pg_catalog.pg_class c ON c.oid = s.relid
       LEFT JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace;

COMMENT ON VIEW pg_stat_lookahead IS
'what look-ahead did for each relation of this database since stats_reset';

CREATE FUNCTION pg_stat_lookahead_reset(relid oid DEFAULT NULL)
RETURNS void
AS 'MODULE_PATHNAME', 'pg_stat_lookahead_reset'
LANGUAGE C VOLATILE PARALLEL RESTRICTED;

COMMENT ON FUNCTION pg_stat_lookahead_reset(oid) IS
'forgets the counters of one relation, or of all relations of this database';

CREATE FUNCTION ios_status(
    OUT ios_worker_num integer,
    OUT io_requests bigint,
    OUT io_dispatched bigint,
    OUT avg_io_size_blks integer,
    OUT avg_io_request_latency_history integer,
    OUT avg_io_latency_history integer,
    OUT avg_io_request_latency_ps integer,
    OUT avg_io_latency_ps integer,
    OUT blks_read_ps integer,
    OUT io_read_ps integer,
    OUT io_queue_depth integer,
    OUT ring_buff_mem integer)
RETURNS record
AS 'MODULE_PATHNAME', 'pg_lookahead_ios_status'
LANGUAGE C VOLATILE STRICT PARALLEL RESTRICTED;

COMMENT ON FUNCTION ios_status() IS
'what the I/O service did since the server started, and lately';

CREATE FUNCTION pg_lookahead_io(
    OUT worker integer,
    OUT pid integer,
    OUT requests bigint,
    OUT merged bigint,
    OUT dropped bigint,
    OUT done bigint,
    OUT stale bigint,
    OUT locked bigint,
    OUT blocks_passed bigint,
    OUT blocks_hit bigint,
    OUT blocks_read bigint,
    OUT reads bigint,
    OUT errors bigint,
    OUT request_time double precision,
    OUT read_time double precision,
    OUT queue_depth integer,
    OUT ring_blocks integer)
RETURNS SETOF record
AS 'MODULE_PATHNAME', 'pg_lookahead_io'
LANGUAGE C VOLATILE STRICT PARALLEL RESTRICTED;

COMMENT ON FUNCTION pg_lookahead_io() IS
'what each worker of the I/O service did; see pg_stat_lookahead_io';

CREATE VIEW pg_stat_lookahead_io AS
SELECT s.worker,
       s.pid,
       s.requests,
       s.merged,
       s.dropped,
       s.done,
       s.stale,
       s.locked,
       s.blocks_passed,
       s.blocks_hit,
       s.blocks_read,
       s.reads,
       s.errors,
       s.request_time,
       s.read_time,
       s.queue_depth,
       s.ring_blocks
  FROM pg_lookahead_io() s;

COMMENT ON VIEW pg_stat_lookahead_io IS
'what each worker of the I/O service did since the server started';

CREATE FUNCTION pg_lookahead_owners(
    OUT pid integer,
    OUT dbid oid,
    OUT relid oid,
    OUT "position" bigint,
    OUT frontier bigint)
RETURNS SETOF record
AS 'MODULE_PATHNAME', 'pg_lookahead_owners'
LANGUAGE C VOLATILE STRICT PARALLEL RESTRICTED;

COMMENT ON FUNCTION pg_lookahead_owners() IS
'scans and commands that have a slot of the I/O service now; see pg_stat_lookahead_owners';

CREATE VIEW pg_stat_lookahead_owners AS
SELECT s.pid,
       s.dbid,
       s.relid,
       s."position",
       s.frontier
  FROM pg_lookahead_owners() s;

COMMENT ON VIEW pg_stat_lookahead_owners IS
'scans and commands that have a slot of the I/O service now, and how far it is';

CREATE FUNCTION pg_lookahead_extend(
    OUT scope text,
    OUT extensions bigint,
    OUT pages_added bigint,
    OUT pages_returned bigint,
    OUT busy bigint,
    OUT errors bigint,
    OUT extend_time double precision,
    OUT index_builds bigint,
    OUT index_pages bigint,
    OUT writes bigint,
    OUT pages_written bigint,
    OUT wal_wakeups bigint)
RETURNS SETOF record
AS 'MODULE_PATHNAME', 'pg_lookahead_extend'
LANGUAGE C VOLATILE STRICT PARALLEL RESTRICTED;

COMMENT ON FUNCTION pg_lookahead_extend() IS
'space that was added to tables before it was needed: by this session, and by all';

CREATE FUNCTION pg_lookahead_unused_pages(regclass)
RETURNS bigint
AS 'MODULE_PATHNAME', 'pg_lookahead_unused_pages'
LANGUAGE C VOLATILE STRICT PARALLEL RESTRICTED;

COMMENT ON FUNCTION pg_lookahead_unused_pages(regclass) IS
'pages at the end of a table that the free space map knows to be empty';

REVOKE ALL ON FUNCTION pg_lookahead_unused_pages(regclass) FROM PUBLIC;
REVOKE ALL ON FUNCTION pg_lookahead_relations() FROM PUBLIC;
REVOKE ALL ON TABLE pg_stat_lookahead FROM PUBLIC;
REVOKE ALL ON FUNCTION pg_stat_lookahead_reset(oid) FROM PUBLIC;

GRANT EXECUTE ON FUNCTION pg_lookahead_unused_pages(regclass) TO pg_stat_scan_tables;
GRANT EXECUTE ON FUNCTION pg_lookahead_relations() TO pg_monitor;
GRANT SELECT ON TABLE pg_stat_lookahead TO pg_monitor;

REVOKE ALL ON FUNCTION ios_status(), pg_lookahead_io(), pg_lookahead_owners() FROM PUBLIC;
REVOKE ALL ON TABLE pg_stat_lookahead_io, pg_stat_lookahead_owners FROM PUBLIC;

GRANT EXECUTE ON FUNCTION ios_status(), pg_lookahead_io(), pg_lookahead_owners() TO pg_monitor;
GRANT SELECT ON TABLE pg_stat_lookahead_io, pg_stat_lookahead_owners TO pg_monitor;
