PREPARE by_key (int) AS SELECT f FROM t WHERE id = $1;
SELECT count(*) FROM t;
SELECT count(*) FROM filled;
SELECT count(*) FROM parted
