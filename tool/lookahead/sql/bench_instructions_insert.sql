INSERT INTO filled VALUES (nextval('more'), 1, repeat('x', 100))
