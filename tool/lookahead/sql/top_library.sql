-- What the library says of itself.  The functions load it, if that was not done
-- before; its settings are there only afterwards.
SELECT {schema}.pg_lookahead_version() AS library_version,
       s.preloaded,
       s.method,
       s.reason,
       current_setting('pg_lookahead.io_workers', true)::int AS io_workers
  FROM {schema}.pg_lookahead_status() s;
