-- Customers of seven countries with money above the average who never ordered.
WITH wealthy AS (
    SELECT c_custkey, c_acctbal, substr(c_phone, 1, 2) AS country
    FROM customer
    WHERE substr(c_phone, 1, 2) IN ('13', '17', '18', '23', '29', '30', '31')
      AND c_acctbal > (SELECT avg(c_acctbal)
                       FROM customer
                       WHERE c_acctbal > 0
                         AND substr(c_phone, 1, 2) IN ('13', '17', '18', '23', '29', '30', '31'))
)
SELECT country, count(*) AS customers, sum(c_acctbal) AS money
FROM wealthy
WHERE NOT EXISTS (SELECT FROM orders WHERE o_custkey = c_custkey)
GROUP BY country
ORDER BY country
