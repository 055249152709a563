-- The I/O service: its own figures, and the counters of each worker.
SELECT extract(epoch FROM clock_timestamp())::float8 AS at,
       (SELECT to_jsonb(s) FROM {schema}.ios_status() s) AS status,
       (SELECT coalesce(jsonb_agg(to_jsonb(w) ORDER BY w.worker), '[]')
          FROM {schema}.pg_stat_lookahead_io w) AS rows;
