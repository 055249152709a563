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
    OUT reason text)
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
    OUT pins_held integer)
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

REVOKE ALL ON FUNCTION pg_lookahead_relations() FROM PUBLIC;
REVOKE ALL ON TABLE pg_stat_lookahead FROM PUBLIC;
REVOKE ALL ON FUNCTION pg_stat_lookahead_reset(oid) FROM PUBLIC;

GRANT EXECUTE ON FUNCTION pg_lookahead_relations() TO pg_monitor;
GRANT SELECT ON TABLE pg_stat_lookahead TO pg_monitor;
