-- helpers.sql: what the regression tests share.  Included with \i.
--
-- la.cold(table, ...)  takes tables out of shared buffers, without a restart
--						and whatever the size of shared buffers: a table that
--						moves to another tablespace is copied past them.
-- la.check(...)		runs a query without look-ahead, with it on a cold
--						table, and without any index, and compares.
-- la.check_dml(...)	the same for a statement that changes a table.
--
-- Both refuse a query whose plan is not the one that is to be tested.

SET client_min_messages = warning;
LOAD 'pg_lookahead';
CREATE SCHEMA IF NOT EXISTS la;

SET allow_in_place_tablespaces = on;
SELECT count(*) = 0 AS missing FROM pg_tablespace WHERE spcname = 'regress_la_cold' \gset
\if :missing
CREATE TABLESPACE regress_la_cold LOCATION '';
\endif

-- Every leaf partition of a table, or the table itself.
CREATE OR REPLACE FUNCTION la.cold(VARIADIC tables regclass[]) RETURNS void
LANGUAGE plpgsql AS $$
DECLARE
    leaf regclass;
    place text;
BEGIN
    FOR leaf IN
        SELECT coalesce(p.relid, t)
          FROM unnest(tables) t LEFT JOIN pg_partition_tree(t) p ON p.isleaf
    LOOP
        SELECT CASE c.reltablespace WHEN 0 THEN 'regress_la_cold' ELSE 'pg_default' END
          INTO place FROM pg_class c WHERE c.oid = leaf;
        EXECUTE format('ALTER TABLE %s SET TABLESPACE %I', leaf, place);
    END LOOP;
END $$;

CREATE OR REPLACE FUNCTION la.plan(query text) RETURNS text
LANGUAGE plpgsql AS $$
DECLARE
    line text;
    plan text := '';
BEGIN
    FOR line IN EXECUTE 'EXPLAIN (COSTS OFF) ' || query LOOP
        plan := plan || line || E'\n';
    END LOOP;
    RETURN plan;
END $$;

CREATE OR REPLACE FUNCTION la.require_plan(query text, pattern text) RETURNS void
LANGUAGE plpgsql AS $$
DECLARE
    plan text := la.plan(query);
BEGIN
    IF plan !~ pattern THEN
        RAISE EXCEPTION E'not the plan to be tested:\n%', plan;
    END IF;
END $$;

-- The methods that this server has.
CREATE OR REPLACE FUNCTION la.methods() RETURNS text[]
LANGUAGE sql AS
$$SELECT CASE WHEN current_setting('server_version_num')::int >= 180000
              THEN '{advice,aio}'::text[] ELSE '{advice}' END$$;

-- Blocks that this session has begun to read ahead.
CREATE OR REPLACE FUNCTION la.issued() RETURNS bigint
LANGUAGE sql AS 'SELECT blocks_issued FROM pg_lookahead_session()';

CREATE OR REPLACE FUNCTION la.rows_of(query text) RETURNS text[]
LANGUAGE plpgsql AS $$
DECLARE
    result text[];
BEGIN
    EXECUTE format('SELECT array_agg(q::text) FROM (%s) q', query) INTO result;
    RETURN coalesce(result, '{}');
END $$;

CREATE OR REPLACE FUNCTION la.sorted(text[]) RETURNS text[]
LANGUAGE sql AS 'SELECT coalesce(array_agg(x ORDER BY x COLLATE "C"), ''{}'') FROM unnest($1) x';

CREATE OR REPLACE FUNCTION la.index_scans(allowed boolean) RETURNS void
LANGUAGE plpgsql AS $$
BEGIN
    PERFORM set_config('enable_seqscan', (NOT allowed)::text, true);
    PERFORM set_config('enable_indexscan', allowed::text, true);
    PERFORM set_config('enable_indexonlyscan', allowed::text, true);
END $$;

-- The plan must match the pattern.  "verdict" is ok, or says what is wrong.
CREATE OR REPLACE FUNCTION la.check(name text, query text, pattern text,
                                    VARIADIC tables regclass[])
RETURNS TABLE (test text, has_rows boolean, verdict text)
LANGUAGE plpgsql AS $$
DECLARE
    with_it text[];
    without text[];
    oracle text[];
    before bigint;
    wrong text[] := '{}';
    method text;
BEGIN
    PERFORM la.require_plan(query, pattern);

    PERFORM set_config('pg_lookahead.enabled', 'off', true);
    without := la.rows_of(query);
    PERFORM la.index_scans(false);
    oracle := la.rows_of(query);
    PERFORM la.index_scans(true);
    IF la.sorted(without) IS DISTINCT FROM la.sorted(oracle) THEN
        wrong := wrong || 'the index does not agree with the table'::text;
    END IF;

    PERFORM set_config('pg_lookahead.enabled', 'on', true);
    FOREACH method IN ARRAY la.methods() LOOP
        PERFORM la.cold(VARIADIC tables);
        PERFORM set_config('pg_lookahead.method', method, true);
        before := la.issued();
        with_it := la.rows_of(query);
        IF with_it IS DISTINCT FROM without THEN
            wrong := wrong || (method || ': wrong answer');
        ELSIF la.issued() = before THEN
            wrong := wrong || (method || ': did not look ahead');
        END IF;
    END LOOP;

    RETURN QUERY SELECT name, cardinality(without) > 0,
        CASE wrong WHEN '{}' THEN 'ok' ELSE array_to_string(wrong, ', ') END;
END $$;

-- Runs the statement in a subtransaction, notes what "state" selects, and
-- takes it back.
CREATE OR REPLACE FUNCTION la.state_after(statement text, state text) RETURNS text[]
LANGUAGE plpgsql AS $$
DECLARE
    result text[];
BEGIN
    BEGIN
        EXECUTE statement;
        result := la.sorted(la.rows_of(state));
        RAISE EXCEPTION 'take it back' USING errcode = 'LA001';
    EXCEPTION WHEN SQLSTATE 'LA001' THEN
        NULL;
    END;
    RETURN result;
END $$;

CREATE OR REPLACE FUNCTION la.check_dml(name text, statement text, pattern text, state text,
                                        VARIADIC tables regclass[])
RETURNS TABLE (test text, has_effect boolean, verdict text)
LANGUAGE plpgsql AS $$
DECLARE
    with_it text[];
    without text[];
    oracle text[];
    before bigint;
    wrong text[] := '{}';
    method text;
BEGIN
    PERFORM la.require_plan(statement, pattern);

    PERFORM set_config('pg_lookahead.enabled', 'off', true);
    without := la.state_after(statement, state);
    PERFORM la.index_scans(false);
    oracle := la.state_after(statement, state);
    PERFORM la.index_scans(true);
    IF without IS DISTINCT FROM oracle THEN
        wrong := wrong || 'the index does not agree with the table'::text;
    END IF;

    PERFORM set_config('pg_lookahead.enabled', 'on', true);
    FOREACH method IN ARRAY la.methods() LOOP
        PERFORM la.cold(VARIADIC tables);
        PERFORM set_config('pg_lookahead.method', method, true);
        before := la.issued();
        with_it := la.state_after(statement, state);
        IF with_it IS DISTINCT FROM without THEN
            wrong := wrong || (method || ': wrong answer');
        ELSIF la.issued() = before THEN
            wrong := wrong || (method || ': did not look ahead');
        END IF;
    END LOOP;

    RETURN QUERY SELECT name, without IS DISTINCT FROM la.sorted(la.rows_of(state)),
        CASE wrong WHEN '{}' THEN 'ok' ELSE array_to_string(wrong, ', ') END;
END $$;

-- Settings that every test wants.
SET jit = off;
SET max_parallel_workers_per_gather = 0;
SET enable_bitmapscan = off;
SET enable_seqscan = off;
SET pg_lookahead.start_after = 0;
