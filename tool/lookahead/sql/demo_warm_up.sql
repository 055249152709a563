SELECT relkind, count(*), max(relname), sum(relpages)
FROM pg_class
WHERE oid >= 1
GROUP BY relkind
ORDER BY relkind DESC
LIMIT 3
