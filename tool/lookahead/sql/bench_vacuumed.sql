-- What VACUUM left: the rows that live, and pages that it could not clean.
SELECT count(*), sum(a),
       (SELECT (relpages, relallvisible)::text FROM pg_class WHERE oid = {table}::regclass)
FROM {relation}
