SELECT (pg_buffercache_evict_relation(relation)).buffers_skipped
FROM (SELECT %s::regclass
      UNION ALL
      SELECT indexrelid FROM pg_index WHERE indrelid = %s::regclass) r (relation)
