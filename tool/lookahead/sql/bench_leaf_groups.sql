-- A group for each account; see bench_leaf_scan for the OFFSET.
SELECT aid, {aggregate}
FROM {table}
WHERE aid BETWEEN {first} AND {last}
GROUP BY aid
ORDER BY aid {direction}
OFFSET 1000000000
