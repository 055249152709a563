-- The twenty customers who sent back most of what they ordered in one quarter.
WITH returned AS (
    SELECT o_custkey, sum(l_extendedprice * (1 - l_discount)) AS lost
    FROM orders
    JOIN lineitem ON l_orderkey = o_orderkey
    WHERE l_returnflag = 'R'
      AND o_orderdate >= '1993-10-01'
      AND o_orderdate < '1994-01-01'
    GROUP BY o_custkey
)
SELECT c_custkey, c_name, lost, c_acctbal, n_name, c_address, c_phone, c_comment
FROM returned
JOIN customer ON c_custkey = o_custkey
JOIN nation ON n_nationkey = c_nationkey
ORDER BY lost DESC
LIMIT 20
