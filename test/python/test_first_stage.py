"""The first stage of an index scan: until it has read something nobody follows it.

Most tests look ahead from the first row on (start_after = 0), where there is no
such stage; here there is.  Whatever ends it, the scan goes on as if it had been
followed from its beginning.

Of an index that the session has used before nothing is even registered when the
plan starts, if it is just a scan of that (deferred.c).
"""

from __future__ import annotations

import random
from itertools import product

import psycopg
import pytest
from lookahead.cluster import Cluster

from conftest import NewCluster
from support import (
    INDEX_SCANS,
    Connection,
    cold,
    connect,
    evict_tablespaces,
    gained,
    has_extension,
    once,
    plan_nodes,
    require_node,
    rows,
    rows_without,
    script,
    seed,
    settings,
    slow_tablespace,
    value,
)
from test_scroll import QUERIES, Oracle, create, evict, scroll

# As many rows of each value as the value says, and a few dead ones between them.
SETUP = """
CREATE TABLE staged (id int, a int, h int, filler text) WITH (fillfactor = 20);
INSERT INTO staged
SELECT row_number() OVER (), n, n, repeat('x', 300)
  FROM generate_series(0, 5) n, generate_series(1, 7) i
 WHERE i <= n + (n % 3 = 1)::int;
CREATE INDEX staged_a ON staged (a, id);
CREATE INDEX staged_hash ON staged USING hash (h);
VACUUM ANALYZE staged;
DELETE FROM staged WHERE id IN (2, 9, 17);
"""

# 1 waits before look-ahead starts, and the default.
PATIENCE = (1, 8)

MOVES = ("FORWARD 1", "BACKWARD 1", "FORWARD 2", "ABSOLUTE 0")
MOVES_IN_A_ROW = 5


@pytest.fixture
def connection(cluster: Cluster) -> Connection:
    with connect(cluster) as connection:
        once(connection, "staged", SETUP)
        settings(connection, **INDEX_SCANS, enable_sort="off", cursor_tuple_fraction=1)
        yield connection


@pytest.mark.thorough
@pytest.mark.parametrize("patience", PATIENCE)
@pytest.mark.parametrize(
    ("node", "query"),
    [
        ("Index Scan", "SELECT id, filler FROM staged WHERE a = {} ORDER BY id"),
        ("Index Scan", "SELECT id, filler FROM staged WHERE a = {} ORDER BY id DESC"),
        ("Index Only Scan", "SELECT id FROM staged WHERE a = {} ORDER BY id"),
        ("Index Scan", "SELECT id FROM staged WHERE h = {}"),
    ],
    ids=["forward", "backward", "index_only", "hash"],
)
def test_any_way_through_a_few_rows(
    connection: Connection, node: str, query: str, patience: int
) -> None:
    settings(connection, pg_lookahead__start_after=patience)
    for n in range(4):
        one = query.format(n)
        require_node(connection, one, node, "staged_hash" if "h = " in query else "staged_a")
        expected = rows_without(connection, one)
        connection.execute("BEGIN")
        for moves in product(MOVES, repeat=MOVES_IN_A_ROW):
            oracle = Oracle(expected)
            connection.execute(f"DECLARE c SCROLL CURSOR FOR {one}")
            for move in moves:
                assert rows(connection, f"FETCH {move} FROM c") == oracle.fetch(move), (one, moves)
            connection.execute("CLOSE c")
        connection.execute("COMMIT")


@pytest.mark.parametrize("patience", PATIENCE)
@pytest.mark.parametrize(
    ("nodes", "query"),
    [
        (
            {"Merge Join"},
            "SELECT x.id, y.id FROM staged x JOIN staged y USING (a) WHERE {} ORDER BY a, 1, 2",
        ),
        (
            {"Nested Loop"},
            "SELECT n, id FROM generate_series(-1, 7) n LEFT JOIN LATERAL"
            " (SELECT id FROM staged WHERE a = n AND {0}) s ON true ORDER BY 1, 2",
        ),
        (
            {"Nested Loop"},
            "SELECT n, id FROM generate_series(-1, 7) n LEFT JOIN LATERAL"
            " (SELECT id FROM staged WHERE a = n AND {0} ORDER BY id LIMIT abs(n) % 3) s ON true"
            " ORDER BY 1, 2",
        ),
        (
            {"Function Scan"},
            "SELECT n, (SELECT max(id) FROM staged WHERE a = n AND {0}),"
            " EXISTS (SELECT FROM staged WHERE a = n + 1 AND {0})"
            " FROM generate_series(-1, 7) n ORDER BY 1",
        ),
    ],
    ids=["marks", "rescans", "limits", "subplans"],
)
def test_marks_and_rescans(
    connection: Connection, nodes: set[str], query: str, patience: int
) -> None:
    """Each rescan begins with another number of rows, before and after one is followed."""
    settings(connection, pg_lookahead__start_after=patience)
    settings(connection, enable_hashjoin="off", enable_material="off", enable_memoize="off")
    if "Merge Join" in nodes:
        settings(connection, enable_nestloop="off")
        condition = "x.filler IS NOT NULL AND y.filler IS NOT NULL AND x.a {} AND y.a {}"
        ranges = ["IN (0, 1)", "< 3", ">= 1", "IN (1, 4)", "> 7"]
        queries = [query.format(condition.format(r, r)) for r in ranges]
    else:
        settings(connection, enable_mergejoin="off")
        queries = [query.format(c) for c in ("true", "filler IS NOT NULL", "id % 2 = 0")]
    for one in queries:
        found = {node["Node Type"] for node in plan_nodes(connection, one)}
        assert nodes <= found, (one, found)
        assert found & {"Index Scan", "Index Only Scan"}, (one, found)
        expected = rows_without(connection, one)
        for _ in range(2):
            assert rows(connection, one) == expected, one


def test_errors_at_the_first_rows(connection: Connection) -> None:
    """Descriptors of scans that were broken off are used again by others."""
    settings(connection, pg_lookahead__start_after=8)
    query = "SELECT 1 / (id - {}) FROM staged WHERE a = 3 ORDER BY id"
    ids = [id for (id,) in rows(connection, "SELECT id FROM staged WHERE a = 3 ORDER BY id")]
    for _ in range(50):
        for id in ids:
            with pytest.raises(psycopg.errors.DivisionByZero):
                rows(connection, query.format(id))
        connection.execute("BEGIN")
        for number, id in enumerate(ids):
            connection.execute(f"DECLARE c{number} CURSOR FOR {query.format(id)}")
            if number:
                rows(connection, f"FETCH 1 FROM c{number}")
            connection.execute("SAVEPOINT s")
            with pytest.raises(psycopg.errors.DivisionByZero):
                rows(connection, f"FETCH ALL FROM c{number}")
            connection.execute("ROLLBACK TO s")
        connection.execute("COMMIT")
        assert len(rows(connection, "SELECT id FROM staged WHERE a = 3 ORDER BY id")) == len(ids)


@pytest.mark.parametrize("patience", PATIENCE)
@pytest.mark.parametrize("name", QUERIES)
def test_long_ways(cluster: Cluster, name: str, patience: int) -> None:
    """In shared buffers, out of them, and with parts in them: here and there a block is read."""
    create(cluster)
    query, node = QUERIES[name]
    choice = random.Random(f"{seed()} {name} {patience}")
    with connect(cluster) as connection:
        settings(connection, **INDEX_SCANS, cursor_tuple_fraction=1)
        settings(connection, enable_hashjoin="off", enable_sort="off", enable_nestloop="off")
        settings(connection, pg_lookahead__start_after=patience)
        assert node in {found["Node Type"] for found in plan_nodes(connection, query)}
        expected = rows_without(connection, query)
        for state in ("cached", "cold", "in part", "cached"):
            if state != "cached":
                cold(connection, "scrolled")
            if state == "in part":
                rows(connection, "SELECT filler FROM scrolled WHERE a BETWEEN 40 AND 1500")
            with gained(connection) as change:
                connection.execute("BEGIN")
                scroll(connection, query, Oracle(expected), choice)
                connection.execute("COMMIT")
            assert not change.errors


BLOCKS = 400

# A scan by "a" goes back in steps of 51 blocks, and forward by 349 after each seventh.
JUMPING = f"""
CREATE TABLE {{0}} (a int, filler text) WITH (fillfactor = 10) TABLESPACE slow;
INSERT INTO {{0}} SELECT (i * 149) % {BLOCKS}, repeat('x', 700)
  FROM generate_series(0, {BLOCKS - 1}) i;
CREATE INDEX {{0}}_a ON {{0}} (a);
VACUUM ANALYZE {{0}};
"""


def test_what_was_read_in_it_counts(new_cluster: NewCluster) -> None:
    """Look-ahead starts after as many waits as if the scan had been followed from its start.

    The first read tells that there is something to be watched, and start_after more are waited
    for; what comes next is read ahead.  The scan goes back in steps of 51 blocks, and forward by
    349 after each seventh: that is no scan in the order of the table, for which it must not rest.
    """
    cluster = new_cluster()
    with slow_tablespace(cluster, read_us=2000):
        with connect(cluster) as connection:
            script(connection, JUMPING.format("waited"))
            blocks = "SELECT count(DISTINCT (ctid::text::point)[0]) FROM waited"
            assert value(connection, blocks) == BLOCKS
        for patience, is_used in ((8, False), (2, True), (1, False), (20, True), (8, True)):
            cluster.restart()
            evict_tablespaces(cluster)
            with connect(cluster) as connection:
                settings(connection, **INDEX_SCANS, pg_lookahead__start_after=patience)
                query = "SELECT sum(length(filler)) FROM waited WHERE a >= 0"
                require_node(connection, query, "Index Scan", "waited_a")
                if is_used:
                    rows(connection, "SELECT filler FROM waited WHERE a = -1")
                with gained(connection) as change:
                    assert value(connection, query) == 700 * BLOCKS
                # Until it has gone back far enough it may be one that goes forward.
                most = BLOCKS - patience - 2
                assert most - 8 < change.blocks_issued <= most, (patience, change)


# Nodes that only pass on what the scan finds, and what takes the rows.
SHAPES = {
    "scan": "SELECT a, length(filler) FROM shaped WHERE a >= 0",
    "backward": "SELECT a, length(filler) FROM shaped WHERE a >= 0 ORDER BY a DESC",
    "limit": "SELECT a, length(filler) FROM shaped WHERE a >= 0 ORDER BY a LIMIT 300 OFFSET 9",
    "sort": "SELECT a, length(filler) FROM shaped WHERE a >= 0 ORDER BY filler DESC, a",
    "aggregate": "SELECT a % 5 AS b, count(filler) FROM shaped WHERE a >= 0 GROUP BY 1 ORDER BY 1",
    "locks": "SELECT a, length(filler) FROM shaped WHERE a >= 0 ORDER BY a FOR UPDATE",
    "update": "UPDATE shaped SET filler = filler WHERE a >= 0 RETURNING a",
    "delete": "DELETE FROM shaped WHERE a >= 0 RETURNING a, length(filler)",
}


@pytest.mark.parametrize("is_cursor", [False, True], ids=["at once", "in pieces"])
def test_plans_that_are_deferred(new_cluster: NewCluster, is_cursor: bool) -> None:
    """They look ahead once their scan waits, whatever takes its rows, and answer as any."""
    cluster = new_cluster()
    with slow_tablespace(cluster, read_us=1000):
        with connect(cluster) as connection:
            script(connection, JUMPING.format("shaped"))
        for name, query in SHAPES.items():
            if is_cursor and not query.startswith("SELECT"):
                continue
            cluster.restart()
            with connect(cluster) as connection:
                settings(connection, **INDEX_SCANS, cursor_tuple_fraction=1)
                settings(connection, max_parallel_workers_per_gather=0)
                found = {node["Node Type"] for node in plan_nodes(connection, query)}
                assert "Index Scan" in found, (name, found)
                connection.execute("BEGIN")
                expected = rows_without(connection, query)
                connection.execute("ROLLBACK")
            cluster.restart()
            evict_tablespaces(cluster)
            with connect(cluster) as connection:
                settings(connection, **INDEX_SCANS, cursor_tuple_fraction=1)
                settings(connection, pg_lookahead__start_after=8)
                rows(connection, "SELECT filler FROM shaped WHERE a = -1")
                with gained(connection) as change:
                    connection.execute("BEGIN")
                    if is_cursor:
                        connection.execute(f"DECLARE c CURSOR FOR {query}")
                        # Another one, which is not deferred, and this one's end.
                        connection.execute(
                            "DECLARE d CURSOR FOR SELECT a FROM shaped WHERE a BETWEEN 7 AND 9"
                        )
                        answer = rows(connection, "FETCH 5 FROM c")
                        assert rows(connection, "FETCH ALL FROM d") == [(7,), (8,), (9,)]
                        answer += rows(connection, "FETCH 20 FROM c")
                        connection.execute("CLOSE d")
                        answer += rows(connection, "FETCH ALL FROM c")
                        connection.execute("CLOSE c")
                    else:
                        answer = rows(connection, query)
                    connection.execute("ROLLBACK")
                assert answer == expected, name
                assert len(answer) > 4
                assert change.blocks_used > BLOCKS / 3, (name, change)
                if name == "limit":
                    assert change.blocks_issued <= len(answer) + 9
                assert not change.errors


def test_one_that_is_deferred_calls_others(connection: Connection) -> None:
    """Queries of functions begin and end, by errors too, while the one around them waits."""
    connection.execute(
        """
        CREATE FUNCTION staged_ids(key int) RETURNS bigint LANGUAGE plpgsql AS $$
        DECLARE
            found bigint;
        BEGIN
            SELECT sum(id) INTO found FROM staged WHERE a = key;
            BEGIN
                SELECT sum(1 / (id - id)) INTO found FROM staged WHERE a = key;
            EXCEPTION WHEN division_by_zero THEN
                RETURN -found;
            END;
            RETURN found;
        END $$
        """
    )
    query = (
        "SELECT id, staged_ids(a), staged_ids((a + id) % 6) FROM staged WHERE a = {} ORDER BY id"
    )
    for patience in PATIENCE:
        settings(connection, pg_lookahead__start_after=patience)
        for n in range(6):
            one = query.format(n)
            require_node(connection, one, "Index Only Scan", "staged_a")
            expected = rows_without(connection, one)
            for _ in range(2):
                assert rows(connection, one) == expected
            # The scan goes on after an error in a function that was not caught.
            connection.execute("BEGIN")
            connection.execute(f"DECLARE c CURSOR FOR {one}")
            answer = rows(connection, "FETCH 1 FROM c")
            connection.execute("SAVEPOINT s")
            with pytest.raises(psycopg.errors.DivisionByZero):
                rows(connection, f"SELECT 1 / (id - id) FROM staged WHERE a = {max(n, 1)}")
            connection.execute("ROLLBACK TO s")
            answer += rows(connection, "FETCH ALL FROM c")
            assert answer == expected
            connection.execute("COMMIT")


def test_ends_of_one_that_is_deferred(connection: Connection) -> None:
    """A cursor that outlives its transaction, and a function whose error is caught around it."""
    connection.execute(
        "CREATE FUNCTION staged_failing(key int) RETURNS int LANGUAGE sql"
        " AS 'SELECT 1 / (id - id) FROM staged WHERE a = key'"
    )
    connection.execute(
        """
        CREATE FUNCTION staged_caught(key int) RETURNS bigint LANGUAGE plpgsql AS $$
        DECLARE
            found bigint;
        BEGIN
            BEGIN
                found := staged_failing(key);
            EXCEPTION WHEN division_by_zero THEN
            END;
            SELECT sum(id) INTO found FROM staged WHERE a = key;
            RETURN found;
        END $$
        """
    )
    settings(connection, pg_lookahead__start_after=8)
    query = "SELECT id, filler FROM staged WHERE a = {} ORDER BY id"
    for n in range(1, 6):
        expected = rows_without(connection, query.format(n))
        ids = sum(id for id, _ in expected)
        connection.execute("BEGIN")
        connection.execute(f"DECLARE c SCROLL CURSOR WITH HOLD FOR {query.format(n)}")
        answer = rows(connection, "FETCH 1 FROM c") if n % 2 else []
        for key in (n, 6 - n, n):
            caught = value(connection, f"SELECT staged_caught({key})")
            assert (caught == ids) == (key == n), (n, key)
        connection.execute("COMMIT")
        assert value(connection, f"SELECT staged_caught({n})") == ids
        answer += rows(connection, "FETCH ALL FROM c")
        assert answer == expected
        assert rows(connection, "FETCH BACKWARD ALL FROM c") == expected[::-1]
        connection.execute("CLOSE c")
        assert rows(connection, query.format(n)) == expected


def test_index_changes_while_one_is_deferred(cluster: Cluster, connection: Connection) -> None:
    """The relation cache entry is made anew under a cursor, and settings are changed."""
    query = "SELECT id, filler FROM staged WHERE a = {} ORDER BY id"
    settings(connection, pg_lookahead__start_after=8)
    with connect(cluster) as other:
        for n in range(1, 6):
            expected = rows_without(connection, query.format(n))
            for change in (
                "CREATE INDEX staged_more ON staged (filler)",
                "ANALYZE staged",
                "",
                "SET pg_lookahead.start_after = 0",
                "SET pg_lookahead.enabled = off",
            ):
                rows(connection, query.format(-1))
                connection.execute("BEGIN")
                connection.execute(f"DECLARE c SCROLL CURSOR FOR {query.format(n)}")
                answer = rows(connection, "FETCH 1 FROM c") if n % 2 else []
                (connection if change.startswith("SET") else other).execute(change)
                answer += rows(connection, "FETCH 2 FROM c")
                answer += rows(connection, "FETCH ALL FROM c")
                assert answer == expected, (n, change)
                assert rows(connection, "FETCH BACKWARD ALL FROM c") == expected[::-1]
                connection.execute("ROLLBACK")
                other.execute("DROP INDEX IF EXISTS staged_more")


def test_what_was_passed_in_it_counts(new_cluster: NewCluster) -> None:
    """Blocks and leaf pages that were there count as passed when the first is not."""
    cluster = new_cluster()
    half = BLOCKS // 2
    with slow_tablespace(cluster, read_us=2000):
        with connect(cluster) as connection:
            script(
                connection,
                f"""
                CREATE TABLE passing (a int, filler text)
                  WITH (fillfactor = 10) TABLESPACE slow;
                INSERT INTO passing SELECT (i * 149) % {BLOCKS}, repeat('x', 700)
                  FROM generate_series(0, {BLOCKS - 1}) i;
                CREATE INDEX passing_a ON passing (a);
                CREATE TABLE leaves (a int, wide text);
                INSERT INTO leaves SELECT i, repeat('x', 450) || i
                  FROM generate_series(1, {16 * BLOCKS}) i ORDER BY md5(i::text);
                CREATE INDEX leaves_a ON leaves (a, wide) TABLESPACE slow;
                VACUUM ANALYZE passing, leaves;
                """,
            )
        # Query, what of it is cached, node.
        cases = {
            "passing": (
                "SELECT sum(length(filler)) FROM passing WHERE a {}",
                (">= 0", f"< {half}"),
                "Index Scan",
            ),
            "leaves": (
                "SELECT count(wide) FROM (SELECT a, wide FROM leaves WHERE a {}"
                " ORDER BY a DESC, wide DESC OFFSET 0) l",
                ("> 0", f"> {8 * BLOCKS}"),
                "Index Only Scan",
            ),
        }
        for name, (query, (every, cached), node) in cases.items():
            issued = {}
            for patience, is_used in ((8, False), (half // 2, False), (half // 2, True)):
                cluster.restart()
                evict_tablespaces(cluster)
                with connect(cluster) as connection:
                    settings(connection, **INDEX_SCANS, pg_lookahead__start_after=patience)
                    scan = plan_nodes(connection, query.format(every))[-1]
                    assert (scan["Node Type"], scan["Relation Name"]) == (node, name)
                    settings(connection, pg_lookahead__enabled="off")
                    rows(connection, query.format(cached))
                    settings(connection, pg_lookahead__enabled="on")
                    if is_used:
                        rows(connection, query.format("< 0"))
                    with gained(connection) as change:
                        rows(connection, query.format(every))
                    issued[patience, is_used] = change.blocks_issued
            # Not counted, the second would have let pass as many blocks as its patience.
            assert issued[8, False] > half // 2, (name, issued)
            for is_used in (False, True):
                assert issued[half // 2, is_used] > issued[8, False] - 20, (name, issued)


def test_marks_before_the_first_read(new_cluster: NewCluster) -> None:
    """A scan that was marked, and went back, while all was cached reads its blocks later."""
    cluster = new_cluster()
    if cluster.server.major < 17 or not has_extension(cluster, "pg_buffercache"):
        pytest.skip("this server cannot evict a table under a cursor")
    query = "SELECT x.id, y.id FROM marked_one x JOIN marked_two y USING (a) ORDER BY a"
    with slow_tablespace(cluster, read_us=2000), connect(cluster) as connection:
        for table in ("marked_one", "marked_two"):
            script(
                connection,
                f"""
                CREATE TABLE {table} (id int, a int, filler text)
                  WITH (fillfactor = 10) TABLESPACE slow;
                INSERT INTO {table} SELECT i, (i * 149) % {BLOCKS} / 4, repeat('x', 700)
                  FROM generate_series(0, {BLOCKS - 1}) i;
                CREATE INDEX {table}_a ON {table} (a);
                VACUUM ANALYZE {table};
                """,
            )
        settings(connection, **INDEX_SCANS, cursor_tuple_fraction=1, enable_material="off")
        settings(connection, enable_hashjoin="off", enable_sort="off", enable_nestloop="off")
        join, *sides = plan_nodes(connection, query)
        assert join["Node Type"] == "Merge Join"
        assert [side["Node Type"] for side in sides] == ["Index Scan"] * 2
        # The outer side stays in shared buffers.
        inner = sides[1]["Relation Name"]
        expected = rows_without(connection, query)
        assert len(expected) == 4 * BLOCKS
        for patience in PATIENCE:
            for fetched in (1, 5, 9, 200):
                settings(connection, pg_lookahead__start_after=patience)
                with gained(connection) as change:
                    connection.execute("BEGIN")
                    connection.execute(f"DECLARE c NO SCROLL CURSOR FOR {query}")
                    found = rows(connection, f"FETCH {fetched} FROM c")
                    evict(connection, inner)
                    evict_tablespaces(cluster)
                    found += rows(connection, "FETCH ALL FROM c")
                    connection.execute("COMMIT")
                assert found == expected, (patience, fetched)
                assert change.blocks_used > BLOCKS / 2, (patience, fetched, change)
                assert not change.errors


def test_few_rows_after_many_that_are_dead(new_cluster: NewCluster) -> None:
    """A LIMIT is no reason to leave a scan alone if it has to pass by many entries."""
    cluster = new_cluster()
    with slow_tablespace(cluster, read_us=2000):
        with connect(cluster) as connection:
            script(
                connection,
                f"""
                CREATE TABLE passed (a int, filler text)
                  WITH (fillfactor = 10, autovacuum_enabled = off) TABLESPACE slow;
                INSERT INTO passed SELECT (i * 149) % {BLOCKS}, repeat('x', 700)
                  FROM generate_series(0, {BLOCKS - 1}) i;
                CREATE INDEX passed_a ON passed (a);
                VACUUM ANALYZE passed;
                DELETE FROM passed WHERE a BETWEEN 2 AND {BLOCKS - 20};
                """,
            )
        cluster.restart()
        evict_tablespaces(cluster)
        with connect(cluster) as connection:
            settings(connection, **INDEX_SCANS)
            query = "SELECT a, length(filler) FROM passed WHERE a >= 0 ORDER BY a LIMIT 4"
            require_node(connection, query, "Index Scan", "passed_a")
            with gained(connection) as change:
                found = [a for a, _ in rows(connection, query)]
            assert found == [0, 1, BLOCKS - 19, BLOCKS - 18]
            assert change.blocks_issued > 0, change
