INSERT INTO loaded SELECT i, i::bigint * 7919 % 1000003, repeat('x', 44) FROM generate_series(1, {rows}) i
