SELECT pg_relation_size({index}::regclass),
       (SELECT reltuples::bigint FROM pg_class WHERE oid = {index}::regclass)
