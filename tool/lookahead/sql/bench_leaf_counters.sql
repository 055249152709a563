-- What was looked ahead in all sessions: of leaf pages, or of tables' blocks.
SELECT coalesce(sum(l.scans), 0)::bigint AS scans,
       coalesce(sum(l.windows), 0)::bigint AS windows,
       coalesce(sum(l.blocks_issued), 0)::bigint AS blocks_issued,
       coalesce(sum(l.blocks_used), 0)::bigint AS blocks_used,
       coalesce(sum(l.blocks_wasted), 0)::bigint AS blocks_wasted,
       coalesce(sum(l.blocks_hit), 0)::bigint AS blocks_hit,
       coalesce(sum(l.blocks_dropped), 0)::bigint AS blocks_dropped,
       coalesce(sum(l.waits), 0)::bigint AS waits,
       coalesce(sum(l.errors), 0)::bigint AS errors,
       coalesce(max(l.depth_max), 0)::bigint AS depth_max
FROM pg_stat_lookahead l
JOIN pg_class c ON c.oid = l.relid
WHERE (c.relkind = 'i') = {leaves}
