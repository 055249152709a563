SELECT order_id, placed_at, status, amount
FROM orders
WHERE customer_id = {customer}
ORDER BY placed_at DESC
LIMIT 10
