-- The same scan, every byte of its result in order: run untimed, once per arm.
SELECT count(*), md5(string_agg(a::text || b, ','))
FROM (
    SELECT a, b
    FROM {table}
    WHERE a BETWEEN {first} AND {last}
    ORDER BY a {direction}
) rows
