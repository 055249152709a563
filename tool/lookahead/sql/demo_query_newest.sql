SELECT order_id, customer_id, placed_at, status, amount
FROM orders
WHERE product_id = 7
ORDER BY placed_at DESC
LIMIT 2000
