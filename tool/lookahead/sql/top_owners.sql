-- What the I/O service reads for now, with names.  No lock is taken on any of
-- these relations (pg_relation_size() takes one), as CLUSTER holds the strongest
-- on its own: sizes come from the progress of commands, or from the last VACUUM
-- or ANALYZE.
SELECT extract(epoch FROM clock_timestamp())::float8 AS at,
       coalesce(jsonb_agg(to_jsonb(r) ORDER BY r.frontier DESC, r.pid, r.relid), '[]') AS rows
  FROM (SELECT o.pid,
               d.datname AS database,
               o.relid::bigint AS relid,
               regexp_replace(c.oid::regclass::text, '^public[.]', '') AS relation,
               o.position,
               o.frontier,
               coalesce(p.blocks, nullif(greatest(c.relpages, 0), 0)) AS blocks,
               p.command,
               p.phase,
               a.usename AS username,
               a.backend_type,
               left(regexp_replace(a.query, '\s+', ' ', 'g'), 200) AS query
          FROM {schema}.pg_stat_lookahead_owners o
               LEFT JOIN pg_database d ON d.oid = o.dbid
               LEFT JOIN pg_class c
                   ON c.oid = o.relid
                   AND (o.dbid = 0 OR d.datname = current_database())
               LEFT JOIN pg_stat_activity a ON a.pid = o.pid
               LEFT JOIN (SELECT pid, relid, 'VACUUM' AS command, phase,
                                 nullif(heap_blks_total, 0) AS blocks
                            FROM pg_stat_progress_vacuum
                           UNION ALL
                          SELECT pid, relid, 'ANALYZE', phase,
                                 nullif(sample_blks_total, 0)
                            FROM pg_stat_progress_analyze
                           UNION ALL
                          SELECT pid, relid, command, phase,
                                 nullif(heap_blks_total, 0)
                            FROM pg_stat_progress_cluster
                           UNION ALL
                          SELECT pid, relid, command, phase,
                                 nullif(blocks_total, 0)
                            FROM pg_stat_progress_create_index) AS p
                   ON p.pid = o.pid AND p.relid = o.relid) AS r;
