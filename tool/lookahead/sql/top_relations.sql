-- What look-ahead has done for each relation of this database.
SELECT extract(epoch FROM clock_timestamp())::float8 AS at,
       coalesce(jsonb_agg(to_jsonb(r)), '[]') AS rows
  FROM (SELECT s.relid::bigint AS relid,
               -- A session that finds no schema by itself names public, too.
               regexp_replace(s.relid::regclass::text, '^public[.]', '') AS relation,
               s.scans,
               s.blocks_issued,
               s.blocks_used,
               s.blocks_wasted,
               s.blocks_hit,
               s.blocks_dropped,
               s.waits,
               s.errors,
               extract(epoch FROM s.stats_reset)::float8 AS stats_reset
          FROM {schema}.pg_stat_lookahead s) AS r;
