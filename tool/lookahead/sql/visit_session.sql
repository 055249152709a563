-- Looking must not wait for long, and not for a table that somebody rewrites; nobody's
-- functions are called in place of the server's.  For one transaction: the session may
-- be one of a pool.
SELECT pg_catalog.set_config('search_path', 'pg_catalog, pg_temp', true),
       pg_catalog.set_config('statement_timeout', %s, true),
       pg_catalog.set_config('lock_timeout', '1s', true);
