-- Saudi suppliers who alone kept orders of several suppliers waiting.
WITH late AS (
    SELECT l_orderkey, l_suppkey
    FROM lineitem
    WHERE l_receiptdate > l_commitdate
)
SELECT s_name, count(*) AS waiting
FROM nation
JOIN supplier ON s_nationkey = n_nationkey
JOIN late ON late.l_suppkey = s_suppkey
JOIN orders ON o_orderkey = late.l_orderkey
WHERE n_name = 'SAUDI ARABIA'
  AND o_orderstatus = 'F'
  AND EXISTS (SELECT
              FROM lineitem other
              WHERE other.l_orderkey = late.l_orderkey AND other.l_suppkey <> late.l_suppkey)
  AND NOT EXISTS (SELECT
                  FROM lineitem other
                  WHERE other.l_orderkey = late.l_orderkey
                    AND other.l_suppkey <> late.l_suppkey
                    AND other.l_receiptdate > other.l_commitdate)
GROUP BY s_name
ORDER BY waiting DESC, s_name
LIMIT 100
