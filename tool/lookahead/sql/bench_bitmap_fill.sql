-- Five stretches of equal length.  a > 100 holds for nearly all rows of the second
-- and the fourth, and for none of the others.
INSERT INTO {table}
SELECT CASE stretch
           WHEN 2 THEN i % 2000
           WHEN 3 THEN i % 10
           WHEN 4 THEN i
           ELSE i % 100
       END,
       md5(i::text),
       'twenty-six letters of text',
       i
FROM generate_series(1, 5) stretch,
     LATERAL generate_series(1, {rows} + 0 * stretch) i
