--
-- extend: tables that are being filled grow by more than a page at a time
--
LOAD 'pg_lookahead';
SET client_min_messages = warning;
CREATE TABLE rows_to_load AS
SELECT i AS a, repeat('x', 100) AS b FROM generate_series(1, 30000) i;
CREATE TEMPORARY TABLE noted AS
SELECT * FROM pg_lookahead_extend() WHERE scope = 'session';
CREATE PROCEDURE note() LANGUAGE sql AS
$$DELETE FROM noted;
INSERT INTO noted SELECT * FROM pg_lookahead_extend() WHERE scope = 'session'$$;
CREATE VIEW gain AS
SELECT s.extensions - n.extensions > 0 AS extended, s.pages_added - n.pages_added > 0 AS added,
       s.errors - n.errors AS errors, s.extend_time > n.extend_time AS timed
  FROM pg_lookahead_extend() s, noted n WHERE s.scope = 'session';

-- INSERT
CALL note();
CREATE TABLE loaded (a int, b text);
INSERT INTO loaded SELECT * FROM rows_to_load;
SELECT * FROM gain;
SELECT count(*), sum(a) FROM loaded;

-- what has been added and not used is used next
SELECT pg_relation_size('loaded') AS size \gset
INSERT INTO loaded SELECT * FROM rows_to_load LIMIT 60;
SELECT pg_relation_size('loaded') = :size AS same_size;

-- when half of it is used, more is added
CALL note();
INSERT INTO loaded SELECT * FROM rows_to_load LIMIT 2000;
SELECT extended, added FROM gain;

-- empty pages are not rows to the planner
CREATE FUNCTION planned(query text) RETURNS bigint LANGUAGE plpgsql AS $$
DECLARE
    plan json;
BEGIN
    EXECUTE 'EXPLAIN (FORMAT json) ' || query INTO plan;
    RETURN plan -> 0 -> 'Plan' ->> 'Plan Rows';
END $$;
CREATE TABLE wide (a char(1000)) WITH (fillfactor = 10, autovacuum_enabled = off);
INSERT INTO wide SELECT 'x' FROM generate_series(1, 1000);
CREATE TABLE stock (LIKE wide) WITH (fillfactor = 10, autovacuum_enabled = off);
SET pg_lookahead.heap_extend_size = 0;
INSERT INTO stock SELECT 'x' FROM generate_series(1, 1000);
RESET pg_lookahead.heap_extend_size;
SELECT pg_relation_size('wide') / 8192 > 1000 AS has_more, pg_lookahead_unused_pages('wide') > 0 AS unused,
       pg_relation_size('wide') / 8192 - pg_lookahead_unused_pages('wide') AS used,
       planned('SELECT * FROM wide') = planned('SELECT * FROM stock') AS same;
DROP TABLE wide, stock;
DROP FUNCTION planned(text);
SELECT pg_lookahead_unused_pages(0);
CREATE VIEW nothing AS SELECT 1;
SELECT pg_lookahead_unused_pages('nothing');
DROP VIEW nothing;

-- UPDATE, and rows that are routed
CALL note();
UPDATE loaded SET a = a + 1;
SELECT extended FROM gain;
CREATE TABLE parts (a int, b text) PARTITION BY RANGE (a);
CREATE TABLE part PARTITION OF parts DEFAULT;
CALL note();
INSERT INTO parts SELECT * FROM rows_to_load;
SELECT extended FROM gain;
SELECT count(*), sum(a) FROM parts;

-- CREATE TABLE AS, a materialized view
CALL note();
CREATE TABLE made AS SELECT * FROM rows_to_load;
SELECT extended FROM gain;
CALL note();
CREATE MATERIALIZED VIEW seen AS SELECT * FROM rows_to_load;
SELECT extended FROM gain;
SELECT (SELECT sum(a) FROM made) = (SELECT sum(a) FROM seen) AS same;

-- not: temporary tables, small tables, without the setting, switched off
CREATE TEMPORARY TABLE mine (a int, b text);
CREATE TABLE small (a int, b text);
CREATE TABLE plain (a int, b text);
CALL note();
INSERT INTO mine SELECT * FROM rows_to_load;
INSERT INTO small SELECT * FROM rows_to_load LIMIT 10000;
SELECT extended FROM gain;
SET pg_lookahead.heap_extend_size = 0;
INSERT INTO plain SELECT * FROM rows_to_load;
SELECT extended FROM gain;
RESET pg_lookahead.heap_extend_size;
SET pg_lookahead.enabled = off;
INSERT INTO plain SELECT * FROM rows_to_load;
SELECT extended FROM gain;
RESET pg_lookahead.enabled;

-- EXPLAIN
CREATE FUNCTION space(query text) RETURNS text LANGUAGE plpgsql AS $$
DECLARE
    line text;
BEGIN
    FOR line IN EXECUTE 'EXPLAIN (ANALYZE, BUFFERS, COSTS OFF, TIMING OFF) ' || query LOOP
        IF line ~ 'extensions=' THEN
            RETURN regexp_replace(trim(line), '[1-9]\d*', 'N', 'g');
        END IF;
    END LOOP;
    RETURN 'nothing';
END $$;
SELECT space('INSERT INTO plain SELECT * FROM rows_to_load') ~ 'extensions=N pages=N$' AS shown;
SELECT space('INSERT INTO small SELECT * FROM rows_to_load LIMIT 1') AS shown;
SELECT space('UPDATE plain SET a = a + 1') ~ 'extensions=N pages=N$' AS shown;
SELECT space('MERGE INTO plain p USING rows_to_load r ON p.a = -r.a
              WHEN NOT MATCHED THEN INSERT VALUES (r.a, r.b)') ~ 'extensions=N pages=N$' AS shown;
CREATE FUNCTION space_in(format text, query text) RETURNS text LANGUAGE plpgsql AS $$
DECLARE
    line text;
    plan text := '';
BEGIN
    FOR line IN EXECUTE format('EXPLAIN (ANALYZE, BUFFERS, COSTS OFF, TIMING OFF, FORMAT %s) %s', format, query) LOOP
        plan := plan || line || E'\n';
    END LOOP;
    plan := regexp_replace(plan, '[1-9]\d*', 'N', 'g');
    RETURN regexp_replace(substring(plan FROM 'Space.*?(Extensions.*?Pages.Added[^N]*N)'), '\s+', ' ', 'g');
END $$;
SELECT space_in('json', 'INSERT INTO plain SELECT * FROM rows_to_load');
SELECT space_in('yaml', 'INSERT INTO plain SELECT * FROM rows_to_load');
SELECT space_in('xml', 'INSERT INTO plain SELECT * FROM rows_to_load');

DROP MATERIALIZED VIEW seen;
DROP VIEW gain;
DROP PROCEDURE note();
DROP FUNCTION space(text);
DROP FUNCTION space_in(text, text);
DROP TABLE rows_to_load, noted, loaded, parts, made, mine, small, plain;
