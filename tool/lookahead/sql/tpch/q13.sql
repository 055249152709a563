-- How many customers have how many orders, special requests not counted?
WITH ordered AS (
    SELECT c_custkey, count(o_orderkey) AS orders
    FROM customer
    LEFT JOIN orders ON o_custkey = c_custkey AND o_comment NOT LIKE '%special%requests%'
    GROUP BY c_custkey
)
SELECT orders, count(*) AS customers
FROM ordered
GROUP BY orders
ORDER BY customers DESC, orders DESC
