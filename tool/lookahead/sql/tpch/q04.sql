-- Orders of one quarter with an item that came later than promised, by priority.
SELECT o_orderpriority, count(*)
FROM orders
WHERE o_orderdate >= '1993-07-01'
  AND o_orderdate < '1993-10-01'
  AND o_orderkey IN (SELECT l_orderkey FROM lineitem WHERE l_receiptdate > l_commitdate)
GROUP BY o_orderpriority
ORDER BY o_orderpriority
