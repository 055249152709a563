-- The same join, every byte of its result in order: run untimed, once per arm.
SELECT count(*), md5(string_agg(a::text || b, ','))
FROM (
    SELECT x.a, y.b
    FROM {table} x
    JOIN {table} y ON y.a = x.a
    WHERE x.a BETWEEN {first} AND {last}
      AND y.a BETWEEN {first} AND {last}
    ORDER BY x.a {direction}
) rows
