INSERT INTO customers
SELECT i,
       (ARRAY['Ada', 'Boris', 'Chen', 'Dilip', 'Elif', 'Femi', 'Greta', 'Hugo'])[1 + i % 8]
       || ' '
       || (ARRAY['Almeida', 'Baker', 'Castro', 'Dubois', 'Eriksen', 'Fischer', 'Garcia'])[1 + i % 7],
       'customer' || i || '@example.com',
       (ARRAY['Lisbon', 'Oslo', 'Pune', 'Quito', 'Riga', 'Seoul', 'Turin', 'Utrecht', 'Vienna'])
           [1 + (random() * 8)::int],
       (ARRAY['private', 'private', 'private', 'business', 'public'])[1 + (random() * 4)::int],
       timestamptz '2019-01-01 00:00+00' + random() * interval '5 years'
FROM generate_series({first}::int, {last}::int) i
