-- The share of one month's revenue that came from parts on promotion, in per cent.
SELECT 100 * sum(l_extendedprice * (1 - l_discount)) FILTER (WHERE p_type LIKE 'PROMO%')
           / sum(l_extendedprice * (1 - l_discount)) AS share
FROM lineitem
JOIN part ON p_partkey = l_partkey
WHERE l_shipdate >= '1995-09-01'
  AND l_shipdate < '1995-10-01'
