-- pages, and those that the free space map knows to be empty, of the table or its partitions
SELECT sum(pg_relation_size(c.oid))::bigint / 8192,
       sum((SELECT count(*) FROM pg_freespace(c.oid)
             WHERE avail > 8000 AND blkno < pg_relation_size(c.oid) / 8192))::bigint
  FROM pg_class c LEFT JOIN pg_inherits i ON i.inhrelid = c.oid
 WHERE 'loaded'::regclass IN (c.oid, i.inhparent) AND c.relkind = 'r'
