-- What the server counted so far.  Blocks "read" may still have come from the
-- kernel's page cache; waits need track_io_timing.
SELECT io.heap_blks_read, io.heap_blks_hit,
       io.idx_blks_read, io.idx_blks_hit,
       coalesce(tab.idx_tup_fetch, 0) AS heap_tuples,
       (SELECT blk_read_time FROM pg_stat_database
        WHERE datname = current_database()) AS waits_ms
FROM pg_statio_user_tables io
JOIN pg_stat_user_tables tab USING (relid)
WHERE io.relid = %s::regclass
