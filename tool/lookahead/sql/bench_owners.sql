-- Is the service at work for a session?  It has asked for blocks, then.
SELECT count(*)
FROM pg_stat_lookahead_owners
WHERE pid = %s AND frontier > 0
