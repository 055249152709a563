SELECT article_id, topic, title, length(body)
FROM articles
ORDER BY embedding <-> (SELECT array_agg(sin(41 * k * 0.7))::vector FROM generate_series(1, 32) k)
LIMIT 600
