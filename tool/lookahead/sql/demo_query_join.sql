SELECT c.segment, count(*), sum(o.amount)
FROM orders o
JOIN customers c USING (customer_id)
WHERE o.product_id BETWEEN 20000 AND 20300
GROUP BY c.segment
ORDER BY c.segment
