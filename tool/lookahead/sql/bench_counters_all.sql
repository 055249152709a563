-- As bench_counters, of all tables together.
SELECT sum(heap_blks_read) AS heap_blks_read,
       sum(heap_blks_hit) AS heap_blks_hit,
       sum(coalesce(idx_blks_read, 0)) AS idx_blks_read,
       sum(coalesce(idx_blks_hit, 0)) AS idx_blks_hit,
       (SELECT blk_read_time FROM pg_stat_database
        WHERE datname = current_database()) AS waits_ms
FROM pg_statio_user_tables
