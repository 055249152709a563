-- Random numbers up to {last}, into an index that is there already.
INSERT INTO {table}
SELECT (random() * {last})::integer, i
FROM generate_series(1, {rows}) i
