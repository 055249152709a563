SELECT count(*), sum(a::bigint), sum(d::bigint), sum(hashtext(b)::bigint), sum(length(c))
FROM {table}
WHERE a > 100
