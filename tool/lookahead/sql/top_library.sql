-- What the library says of itself.  The functions load it, if that was not done
-- before; its settings are there only afterwards.  -1 workers are the library's
-- usual number: none where the server has asynchronous I/O of its own.
SELECT {schema}.pg_lookahead_version() AS library_version,
       s.preloaded,
       s.method,
       s.reason,
       CASE current_setting('pg_lookahead.io_workers', true)
           WHEN '-1' THEN CASE
               WHEN current_setting('server_version_num')::int >= 180000 THEN 0
               ELSE 2
           END
           ELSE current_setting('pg_lookahead.io_workers', true)::int
       END AS io_workers
  FROM {schema}.pg_lookahead_status() s;
