-- Profit on green parts, by the supplier's country and year.
SELECT n_name,
       extract(year FROM o_orderdate) AS ordered,
       sum(l_extendedprice * (1 - l_discount) - l_quantity * ps_supplycost) AS profit
FROM lineitem
JOIN part ON p_partkey = l_partkey
JOIN partsupp ON ps_partkey = l_partkey AND ps_suppkey = l_suppkey
JOIN supplier ON s_suppkey = l_suppkey
JOIN nation ON n_nationkey = s_nationkey
JOIN orders ON o_orderkey = l_orderkey
WHERE p_name LIKE '%green%'
GROUP BY n_name, ordered
ORDER BY n_name, ordered DESC
