-- The timed query of a join: two index scans that take turns, and nothing beside
-- them.  OFFSET beyond the end throws the rows away.
SELECT x.a, y.b
FROM {table} x
JOIN {table} y ON y.a = x.a
WHERE x.a BETWEEN {first} AND {last}
  AND y.a BETWEEN {first} AND {last}
ORDER BY x.a {direction}
OFFSET 1000000000
