INSERT INTO {table}
SELECT i, md5(i::text)
FROM generate_series(1, {rows}) i
ORDER BY {order}
