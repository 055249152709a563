-- Everything that look-ahead did in this database, and where most was wasted.
SELECT coalesce(sum(scans), 0)::bigint AS scans,
       coalesce(sum(blocks_issued), 0)::bigint AS issued,
       coalesce(sum(blocks_used), 0)::bigint AS used,
       coalesce(sum(blocks_wasted), 0)::bigint AS wasted,
       coalesce(sum(waits), 0)::bigint AS waits,
       coalesce(sum(errors), 0)::bigint AS errors,
       (array_agg(relid::regclass::text ORDER BY blocks_wasted DESC))[1] AS most_wasted
  FROM {schema}.pg_stat_lookahead;
