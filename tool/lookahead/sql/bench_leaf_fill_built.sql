-- The numbers from 1 on.  The index is built afterwards.
INSERT INTO {table}
SELECT i, i
FROM generate_series(1, {rows}) i
