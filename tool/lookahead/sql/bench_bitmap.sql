-- Two fifths of a table through a bitmap that is partly lossy; no row is sent.
SELECT a, b, c, d
FROM {table}
WHERE a > 100
OFFSET 1000000000
