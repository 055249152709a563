-- Brazil's share of what America bought of one kind of steel, by year.
WITH sales AS (
    SELECT extract(year FROM o_orderdate) AS ordered,
           l_extendedprice * (1 - l_discount) AS volume,
           seller.n_name AS seller
    FROM part
    JOIN lineitem ON l_partkey = p_partkey
    JOIN supplier ON s_suppkey = l_suppkey
    JOIN nation seller ON seller.n_nationkey = s_nationkey
    JOIN orders ON o_orderkey = l_orderkey
    JOIN customer ON c_custkey = o_custkey
    JOIN nation buyer ON buyer.n_nationkey = c_nationkey
    JOIN region ON r_regionkey = buyer.n_regionkey
    WHERE p_type = 'ECONOMY ANODIZED STEEL'
      AND r_name = 'AMERICA'
      AND o_orderdate BETWEEN '1995-01-01' AND '1996-12-31'
)
SELECT ordered,
       coalesce(sum(volume) FILTER (WHERE seller = 'BRAZIL'), 0) / sum(volume) AS share
FROM sales
GROUP BY ordered
ORDER BY ordered
