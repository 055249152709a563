SELECT (SELECT sum(heap_blks_read + coalesce(idx_blks_read, 0))
        FROM pg_statio_user_tables) AS blocks_read,
       (SELECT blk_read_time
        FROM pg_stat_database
        WHERE datname = current_database()) AS waits_ms
