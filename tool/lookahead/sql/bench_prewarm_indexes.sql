SELECT sum(pg_prewarm(indexrelid))
FROM pg_index
WHERE indrelid = {table}::regclass
