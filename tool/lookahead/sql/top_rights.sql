-- Which of the objects that are needed exist, and whether this user may read
-- them.  A view of a function needs the right to both.
SELECT part,
       bool_and(f.oid IS NOT NULL AND (view IS NULL OR v.oid IS NOT NULL)) AS there,
       bool_and(coalesce(has_function_privilege(f.oid, 'EXECUTE'), false)
                AND (view IS NULL OR coalesce(has_table_privilege(v.oid, 'SELECT'), false)))
           AS allowed
  FROM (VALUES ('service', 'ios_status', NULL),
               ('service', 'pg_lookahead_io', 'pg_stat_lookahead_io'),
               ('owners', 'pg_lookahead_owners', 'pg_stat_lookahead_owners'),
               ('relations', 'pg_lookahead_relations', 'pg_stat_lookahead'))
           AS needed (part, function, view),
       LATERAL (SELECT to_regprocedure(%(schema)s::text || '.' || function || '()')::oid) AS f (oid),
       LATERAL (SELECT to_regclass(%(schema)s::text || '.' || view)::oid) AS v (oid)
 GROUP BY part;
