-- What was shipped up to 90 days before the last day, by return flag and status.
SELECT l_returnflag AS flag,
       l_linestatus AS status,
       sum(l_quantity) AS quantity,
       sum(l_extendedprice) AS listed,
       sum(l_extendedprice * (1 - l_discount)) AS discounted,
       sum(l_extendedprice * (1 - l_discount) * (1 + l_tax)) AS charged,
       avg(l_quantity) AS mean_quantity,
       avg(l_extendedprice) AS mean_listed,
       avg(l_discount) AS mean_discount,
       count(*) AS items
FROM lineitem
WHERE l_shipdate <= date '1998-12-01' - 90
GROUP BY flag, status
ORDER BY flag, status
