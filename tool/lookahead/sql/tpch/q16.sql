-- How many suppliers without complaints are there for parts of some kinds and sizes?
SELECT p_brand, p_type, p_size, count(DISTINCT ps_suppkey) AS suppliers
FROM part
JOIN partsupp ON ps_partkey = p_partkey
LEFT JOIN supplier ON s_suppkey = ps_suppkey AND s_comment LIKE '%Customer%Complaints%'
WHERE s_suppkey IS NULL
  AND p_brand <> 'Brand#45'
  AND p_type NOT LIKE 'MEDIUM POLISHED%'
  AND p_size IN (3, 9, 14, 19, 23, 36, 45, 49)
GROUP BY p_brand, p_type, p_size
ORDER BY suppliers DESC, p_brand, p_type, p_size
