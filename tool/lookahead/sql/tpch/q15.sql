-- The supplier with the highest revenue of one quarter, or those if there are several.
WITH quarter AS (
    SELECT l_suppkey, sum(l_extendedprice * (1 - l_discount)) AS revenue
    FROM lineitem
    WHERE l_shipdate >= '1996-01-01'
      AND l_shipdate < '1996-04-01'
    GROUP BY l_suppkey
),
ranked AS (
    SELECT l_suppkey, revenue, rank() OVER (ORDER BY revenue DESC) AS place
    FROM quarter
)
SELECT s_suppkey, s_name, s_address, s_phone, revenue
FROM ranked
JOIN supplier ON s_suppkey = l_suppkey
WHERE place = 1
ORDER BY s_suppkey
