-- Articles on one topic lie near each other, as real embeddings do, but they
-- were written at different times, so that near neighbours are far apart on disk.
INSERT INTO articles
SELECT i,
       topic,
       'Article ' || i || ' on topic ' || topic,
       (SELECT string_agg(
                  (ARRAY['How to choose the right tool for the job.',
                         'A short history of the workshop and its people.',
                         'What changed in the new edition, and what did not.',
                         'Readers asked about noise, weight and spare parts.',
                         'Measured in our own laboratory over four weeks.'])
                      [1 + (random() * 4)::int], ' ')
        FROM generate_series(1, 10 + i % 20)),
       (SELECT array_agg(sin(topic * k * 0.7) + 0.4 * (random() - 0.5))
        FROM generate_series(1, 32) k)::vector
FROM generate_series({first}::int, {last}::int) i,
     LATERAL (SELECT (i * 7919 % 97)::int AS topic) t
