INSERT INTO products
SELECT i,
       i % 40,
       (ARRAY['compact', 'sturdy', 'quiet', 'folding', 'heavy-duty'])[1 + (random() * 4)::int]
       || ' '
       || (ARRAY['lamp', 'drill', 'kettle', 'chair', 'router', 'pump', 'scale'])[1 + i % 7]
       || ' no. ' || i,
       round((5 + 400 * random() ^ 3)::numeric, 2),
       (SELECT string_agg(
                  (ARRAY['Made for daily use in small workshops.',
                         'The housing is recycled aluminium.',
                         'Ships with two spare parts and a printed manual.',
                         'Tested for ten years of continuous service.',
                         'Customers praise how quiet it is.',
                         'Not suitable for outdoor use.'])[1 + (random() * 5)::int], ' ')
        FROM generate_series(1, 8 + i % 12))
FROM generate_series({first}::int, {last}::int) i
