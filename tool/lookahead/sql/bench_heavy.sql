-- Reads every row and computes about as long on it as a disk needs for it; the
-- computing is the aggregate's and not the scan's.
SELECT count(*), max(md5(b || a)), sum(length(b))
FROM {table}
