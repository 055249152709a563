SELECT count(f) FROM generate_series(1, 500) g JOIN t ON t.a = g
