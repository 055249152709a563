-- The largest tables of this database and their files.
SELECT pg_relation_filepath(oid) AS path, pg_relation_size(oid) / 8192 AS blocks
  FROM pg_class
 WHERE relkind IN ('r', 'm') AND relpersistence <> 't' AND relpages > 0
 ORDER BY relpages DESC
 LIMIT 5;
