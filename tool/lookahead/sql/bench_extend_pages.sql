-- pages, and those that the free space map knows to be empty
SELECT sum(pg_relation_size(relid))::bigint / 8192,
       sum((SELECT count(*) FROM pg_freespace(relid)
             WHERE avail > 8000 AND blkno < pg_relation_size(relid) / 8192))::bigint
  FROM pg_partition_tree('loaded') WHERE isleaf
