DO $$
DECLARE
    i int;
BEGIN
    FOR i IN SELECT a FROM parted WHERE a >= 0 LOOP
    END LOOP;
END $$
