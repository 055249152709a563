-- Canadian suppliers who hold more of a forest part than half of what 1994 took.
WITH shipped AS (
    SELECT l_partkey, l_suppkey, sum(l_quantity) AS pieces
    FROM lineitem
    JOIN part ON p_partkey = l_partkey
    WHERE p_name LIKE 'forest%'
      AND l_shipdate >= '1994-01-01'
      AND l_shipdate < '1995-01-01'
    GROUP BY l_partkey, l_suppkey
)
SELECT DISTINCT s_name, s_address
FROM shipped
JOIN partsupp ON ps_partkey = l_partkey AND ps_suppkey = l_suppkey
JOIN supplier ON s_suppkey = ps_suppkey
JOIN nation ON n_nationkey = s_nationkey
WHERE ps_availqty > pieces / 2
  AND n_name = 'CANADA'
ORDER BY s_name
