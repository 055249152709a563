-- Trade between France and Germany, in both directions, by year.
SELECT seller.n_name AS seller,
       buyer.n_name AS buyer,
       extract(year FROM l_shipdate) AS shipped,
       sum(l_extendedprice * (1 - l_discount)) AS revenue
FROM lineitem
JOIN supplier ON s_suppkey = l_suppkey
JOIN nation seller ON seller.n_nationkey = s_nationkey
JOIN orders ON o_orderkey = l_orderkey
JOIN customer ON c_custkey = o_custkey
JOIN nation buyer ON buyer.n_nationkey = c_nationkey
WHERE (seller.n_name, buyer.n_name) IN (('FRANCE', 'GERMANY'), ('GERMANY', 'FRANCE'))
  AND l_shipdate BETWEEN '1995-01-01' AND '1996-12-31'
GROUP BY 1, 2, 3
ORDER BY 1, 2, 3
