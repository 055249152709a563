-- Yearly revenue from orders of less than a fifth of a part's usual quantity.
WITH items AS (
    SELECT l_extendedprice,
           l_quantity,
           avg(l_quantity) OVER (PARTITION BY l_partkey) AS usual
    FROM part
    JOIN lineitem ON l_partkey = p_partkey
    WHERE p_brand = 'Brand#23'
      AND p_container = 'MED BOX'
)
SELECT sum(l_extendedprice) / 7 AS yearly
FROM items
WHERE l_quantity < usual / 5
