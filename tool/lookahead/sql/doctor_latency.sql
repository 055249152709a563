-- Time single reads of blocks.  A target list is evaluated from left to right,
-- so the two clocks enclose the read, and the network has no part in it.
SELECT extract(epoch FROM finished - started) * 1e6 AS microseconds
  FROM (SELECT clock_timestamp() AS started,
               length(pg_read_binary_file(path, position, 8192, true)) AS bytes,
               clock_timestamp() AS finished
          FROM unnest(%s::text[], %s::bigint[]) AS sample (path, position)
        OFFSET 0) AS reads
 WHERE bytes = 8192;
