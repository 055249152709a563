SELECT count(*), sum(a::bigint)
FROM {table}
WHERE a BETWEEN {first} AND {last}
