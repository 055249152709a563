-- Parts that make up more than 0.01 % of the value of Germany's stock (at scale 1).
WITH stock AS (
    SELECT ps_partkey, sum(ps_availqty * ps_supplycost) AS value
    FROM nation
    JOIN supplier ON s_nationkey = n_nationkey
    JOIN partsupp ON ps_suppkey = s_suppkey
    WHERE n_name = 'GERMANY'
    GROUP BY ps_partkey
)
SELECT ps_partkey, value
FROM stock
WHERE value > 0.0001 * (SELECT sum(value) FROM stock)
ORDER BY value DESC
