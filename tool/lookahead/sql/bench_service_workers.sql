-- Workers of the I/O service that there should be, and those that run.
SELECT count(*), count(nullif(pid, 0))
FROM pg_stat_lookahead_io
