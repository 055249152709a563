SELECT a
FROM {table}
WHERE a >= {first}
ORDER BY a
LIMIT {limit}
