-- random() ^ 3 makes a few customers and products account for much of the
-- trade; up to six hours of delay keep placed_at from following the heap exactly.
INSERT INTO orders
SELECT i,
       1 + floor({customers} * random() ^ 3)::int,
       1 + floor({products} * random() ^ 2)::int,
       timestamptz '2023-01-01 00:00+00'
           + i * (interval '3 years' / {orders}) + random() * interval '6 hours',
       (ARRAY['delivered', 'delivered', 'delivered', 'shipped', 'open', 'returned'])
           [1 + (random() * 5)::int],
       (ARRAY['web', 'app', 'shop', 'partner'])[1 + (random() * 3)::int],
       1 + (random() * 4)::int,
       round((5 + 900 * random() ^ 4)::numeric, 2),
       (ARRAY['Leave the parcel with the neighbours if nobody answers the door, please.',
              'Invoice to the head office; the delivery address differs from last time.',
              'Gift wrapping requested. Do not put the price list into the box.',
              'Please call half an hour ahead, the gate is locked during the day.',
              'Second attempt after a damaged delivery, see the earlier correspondence.'])
           [1 + (random() * 4)::int]
       || ' Reference ' || i * 7919 % 1000003 || '.'
FROM generate_series({first}::bigint, {last}::bigint) i
