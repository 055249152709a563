-- Who in Europe sells brass parts of size 15 at the lowest cost there is in Europe?
WITH offers AS (
    SELECT s_acctbal, s_name, s_address, s_phone, s_comment, n_name, p_partkey, p_mfgr,
           ps_supplycost,
           min(ps_supplycost) OVER (PARTITION BY p_partkey) AS lowest
    FROM part
    JOIN partsupp ON ps_partkey = p_partkey
    JOIN supplier ON s_suppkey = ps_suppkey
    JOIN nation ON n_nationkey = s_nationkey
    JOIN region ON r_regionkey = n_regionkey
    WHERE p_size = 15
      AND p_type LIKE '%BRASS'
      AND r_name = 'EUROPE'
)
SELECT s_acctbal, s_name, n_name, p_partkey, p_mfgr, s_address, s_phone, s_comment
FROM offers
WHERE ps_supplycost = lowest
ORDER BY s_acctbal DESC, n_name, s_name, p_partkey
LIMIT 100
