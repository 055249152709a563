SELECT customer_id, count(*), min(placed_at), max(placed_at)
FROM orders
WHERE customer_id BETWEEN 2000 AND 2100
GROUP BY customer_id
ORDER BY customer_id
