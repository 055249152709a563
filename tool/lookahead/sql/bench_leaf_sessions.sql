-- Others of the server's sessions that have not quite ended yet.
SELECT count(*)
FROM pg_stat_activity
WHERE backend_type = 'client backend' AND pid <> pg_backend_pid()
