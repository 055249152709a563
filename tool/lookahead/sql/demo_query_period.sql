SELECT channel, count(*), sum(amount * quantity)
FROM (SELECT channel, amount, quantity
      FROM orders
      WHERE placed_at >= '2024-03-01' AND placed_at < '2024-04-15'
      ORDER BY placed_at) period
GROUP BY channel
ORDER BY channel
