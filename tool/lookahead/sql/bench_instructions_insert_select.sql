INSERT INTO filled SELECT nextval('more'), a, f FROM t LIMIT 1000
