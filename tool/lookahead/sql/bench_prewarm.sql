SELECT sum(pg_prewarm(relation))
FROM (SELECT %s::regclass
      UNION ALL
      SELECT indexrelid FROM pg_index WHERE indrelid = %s::regclass) r (relation)
