-- A row in many pages' distance from the next.
DELETE FROM {table} WHERE d % 100000 = 7
