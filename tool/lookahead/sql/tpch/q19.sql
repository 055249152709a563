-- Revenue from three kinds of parts, delivered in person by air.
WITH kinds (brand, containers, least, largest) AS (
    VALUES ('Brand#12', ARRAY['SM CASE', 'SM BOX', 'SM PACK', 'SM PKG'], 1, 5),
           ('Brand#23', ARRAY['MED BAG', 'MED BOX', 'MED PKG', 'MED PACK'], 10, 10),
           ('Brand#34', ARRAY['LG CASE', 'LG BOX', 'LG PACK', 'LG PKG'], 20, 15)
)
SELECT sum(l_extendedprice * (1 - l_discount)) AS revenue
FROM kinds
JOIN part ON p_brand = brand
         AND p_container = ANY (containers)
         AND p_size BETWEEN 1 AND largest
JOIN lineitem ON l_partkey = p_partkey
             AND l_quantity BETWEEN least AND least + 10
WHERE l_shipmode IN ('AIR', 'AIR REG')
  AND l_shipinstruct = 'DELIVER IN PERSON'
