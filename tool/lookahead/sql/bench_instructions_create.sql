CREATE TABLE t (id int PRIMARY KEY, a int, f text) WITH (fillfactor = 20);
INSERT INTO t SELECT i, (i * 7919) % {rows}, repeat('x', 100) FROM generate_series(1, {rows}) i;
CREATE INDEX t_a ON t (a);
CREATE TABLE ranged (r int4range, f text);
INSERT INTO ranged SELECT int4range(i, i + 3), repeat('x', 100) FROM generate_series(1, {rows}) i;
CREATE INDEX ON ranged USING gist (r);
CREATE TABLE filled (id int PRIMARY KEY, a int, f text);
INSERT INTO filled SELECT * FROM t;
CREATE SEQUENCE more START 1000000;
CREATE TABLE parted (a int, f text) PARTITION BY RANGE (a);
DO $$
BEGIN
    FOR i IN 0..{partitions} - 1 LOOP
        EXECUTE format('CREATE TABLE parted_%s PARTITION OF parted FOR VALUES FROM (%s) TO (%s)',
                       i, i * 20, (i + 1) * 20);
    END LOOP;
END $$;
INSERT INTO parted SELECT i, repeat('x', 100) FROM generate_series(0, {partitions} * 20 - 1) i;
CREATE INDEX ON parted (a);
VACUUM ANALYZE;
CHECKPOINT;
