SELECT customer_id, count(*), sum(amount), max(length(note))
FROM orders
WHERE customer_id BETWEEN 100 AND 119
GROUP BY customer_id
ORDER BY customer_id
