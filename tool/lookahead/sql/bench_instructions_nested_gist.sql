SELECT count(f) FROM generate_series(1, 100) g JOIN ranged ON r && int4range(g * 100, g * 100 + 3)
