-- A few hundred rows, each on a page of its own.
DELETE FROM {table} WHERE d % 100000 = 7
