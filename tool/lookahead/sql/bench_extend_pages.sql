-- pages, and those that the free space map knows to be empty
SELECT pg_relation_size('loaded') / 8192,
       (SELECT count(*) FROM pg_freespace('loaded')
         WHERE avail > 8000 AND blkno < pg_relation_size('loaded') / 8192)
