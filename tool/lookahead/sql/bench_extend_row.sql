INSERT INTO loaded VALUES (1, 2, repeat('x', 1000));
