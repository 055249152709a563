-- The same scan, every byte of its result in order: run untimed, once per arm.
SELECT count(*), md5(string_agg(found::text, ','))
FROM (
    SELECT {columns}
    FROM {table}
    WHERE a BETWEEN {first} AND {last}
    ORDER BY a {direction}
) found
