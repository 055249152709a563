-- The timed query: the scan and nothing beside it.  OFFSET beyond the end throws
-- the rows away without sending them to the client.
SELECT {columns}
FROM {table}
WHERE a BETWEEN {first} AND {last}
ORDER BY a {direction}
OFFSET 1000000000
