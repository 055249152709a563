-- Two rows of each page: 22 fill one.
DELETE FROM {table} WHERE a % 11 = 0
