SELECT a, b
FROM {table}
WHERE a BETWEEN {first} AND {last}
ORDER BY a
LIMIT {limit}
