-- What small orders of 1994 would have brought without their discount of 5 to 7 %.
SELECT sum(l_discount * l_extendedprice) AS foregone
FROM lineitem
WHERE l_quantity < 24
  AND l_discount BETWEEN 0.05 AND 0.07
  AND l_shipdate >= '1994-01-01'
  AND l_shipdate < '1995-01-01'
