-- What the I/O service did so far, its workers together.
SELECT sum(requests)::bigint AS requests,
       sum(merged)::bigint AS merged,
       sum(dropped)::bigint AS dropped,
       sum(stale)::bigint AS stale,
       sum(locked)::bigint AS locked,
       sum(blocks_passed)::bigint AS blocks_passed,
       sum(blocks_hit)::bigint AS blocks_hit,
       sum(blocks_read)::bigint AS blocks_read,
       sum(reads)::bigint AS reads,
       sum(errors)::bigint AS errors
FROM pg_stat_lookahead_io
