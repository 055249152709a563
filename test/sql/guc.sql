--
-- guc: names, types, ranges and defaults of the settings
--
LOAD 'pg_lookahead';
SET client_min_messages = warning;

-- where the library is not preloaded, the number of workers has no effect
SELECT name, setting, unit,
       CASE WHEN name = 'pg_lookahead.io_workers' AND context = 'sighup' THEN 'postmaster'
            ELSE context END AS context,
       vartype, min_val, max_val, enumvals, boot_val
  FROM pg_settings WHERE name LIKE 'pg\_lookahead.%' ORDER BY name COLLATE "C";
-- every setting is described, and by a sentence
SELECT name FROM pg_settings
 WHERE name LIKE 'pg\_lookahead.%'
   AND (short_desc !~ '^(Sets|Enables) .*\.$' OR extra_desc IS NULL OR extra_desc !~ '\.$');

-- anybody may set them, for a session or for a transaction
CREATE ROLE regress_la_user;
SET ROLE regress_la_user;
SET pg_lookahead.enabled = off;
SHOW pg_lookahead.enabled;
RESET pg_lookahead.enabled;
SHOW pg_lookahead.enabled;
BEGIN;
SET LOCAL pg_lookahead.method = 'none';
SHOW pg_lookahead.method;
COMMIT;
SHOW pg_lookahead.method;
RESET ROLE;
DROP ROLE regress_la_user;

-- the ends of the ranges, and beyond; the wording differs between servers
CREATE FUNCTION try(name text, value text) RETURNS text LANGUAGE plpgsql AS $$
BEGIN
    RETURN set_config('pg_lookahead.' || name, value, false);
EXCEPTION WHEN invalid_parameter_value THEN
    RETURN 'refused';
END $$;
SELECT name, value, try(name, value)
  FROM (VALUES ('max_distance', '8'), ('max_distance', '4096'), ('max_distance', '1MB'),
               ('max_distance', '7'), ('max_distance', '4097'), ('max_distance', 'far'),
               ('io_concurrency', '1'), ('io_concurrency', '1000'),
               ('io_concurrency', '0'), ('io_concurrency', '1001'),
               ('start_after', '0'), ('start_after', '1000000'),
               ('start_after', '-1'), ('start_after', '1000001'),
               ('min_table_size', '8MB'), ('min_table_size', '1'), ('min_table_size', '1GB'),
               ('parallel_chunk_size', '0'), ('parallel_chunk_size', '8192'),
               ('parallel_chunk_size', '-1'), ('parallel_chunk_size', '8193'),
               ('seqscan', 'off'), ('seqscan', 'some'), ('bitmapscan', 'off'), ('bitmapscan', 'some'),
               ('enabled', 'off'), ('enabled', 'perhaps'),
               ('method', 'advice'), ('method', 'worker'), ('method', 'NONE'), ('method', 'auto'), ('method', 'magic')) v (name, value);
DROP FUNCTION try;

-- those of the I/O service are everybody's: not for a session
SET pg_lookahead.io_batch_size = 8;
SET pg_lookahead.max_requests_per_worker = 100;
SET pg_lookahead.protect_time = '2s';
SET pg_lookahead.ring_size = '32MB';
SET pg_lookahead.status_interval = '2s';
DO $$
BEGIN
    SET pg_lookahead.io_workers = 3;
EXCEPTION WHEN cant_change_runtime_param THEN
    RAISE WARNING 'cannot be changed now';
END $$;

SET pg_lookahead.method = 'magic';
-- aio is only for 18
DO $$
DECLARE
    eighteen boolean := current_setting('server_version_num')::int >= 180000;
BEGIN
    SET pg_lookahead.method = 'aio';
    ASSERT eighteen;
EXCEPTION WHEN invalid_parameter_value THEN
    ASSERT NOT eighteen;
    ASSERT SQLERRM = 'invalid value for parameter "pg_lookahead.method": "aio"', SQLERRM;
END $$;

-- the prefix is reserved
SET pg_lookahead.no_such_setting = 1;

-- what the session makes of them; the method depends on the server
RESET ALL;
SELECT method, method = 'advice' AS serves FROM pg_lookahead_status();
SET pg_lookahead.method = 'none';
SELECT method, reason FROM pg_lookahead_status();
RESET pg_lookahead.method;
SET pg_lookahead.enabled = off;
SELECT method, reason FROM pg_lookahead_status();
RESET pg_lookahead.enabled;
SELECT (io_method IS NOT NULL) = (current_setting('server_version_num')::int >= 180000) AS io_method,
       direct_io
  FROM pg_lookahead_status();
SELECT pg_lookahead_version() = extversion AS same_version
  FROM pg_extension WHERE extname = 'pg_lookahead';
