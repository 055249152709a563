-- one row a page, each by a statement of its own
CREATE TABLE loaded (a int, c text);
ALTER TABLE loaded ALTER c SET STORAGE PLAIN;
DO $$BEGIN FOR i IN 1..{rows} LOOP INSERT INTO loaded VALUES (i, repeat('x', 5000)); END LOOP; END$$
