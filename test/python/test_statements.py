"""Kinds of statements of which src/README.md says what look-ahead does about them.

Each gives what it gives by a sequential scan, and the counters tell that its scan was followed,
or that it was not.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest
from lookahead.cluster import Cluster

from support import (
    INDEX_SCANS,
    SEQUENTIAL_SCANS,
    Connection,
    Row,
    cold,
    connect,
    gained,
    once,
    plan_nodes,
    require_node,
    rows,
    script,
    settings,
)

ROWS = 3000
KEYS = 30
BITMAP_SCANS = {**SEQUENTIAL_SCANS, "enable_seqscan": "off", "enable_bitmapscan": "on"}

# How far a scan looks ahead that has just begun.
FIRST_DISTANCE = 16

# Some 250 blocks, in no order of the indexes; as many rows of each b.
SETUP = f"""
CREATE TABLE stated (a int, b int, filler text) WITH (fillfactor = 20, autovacuum_enabled = off);
INSERT INTO stated SELECT i, i % {KEYS}, repeat('x', 100)
  FROM generate_series(1, {ROWS}) i ORDER BY md5(i::text);
CREATE INDEX stated_a ON stated (a);
CREATE INDEX stated_b ON stated (b);
CREATE TABLE stated_keys AS SELECT i AS k FROM generate_series(0, {KEYS - 1}) i;
VACUUM ANALYZE stated, stated_keys;
CREATE TABLE parents (id int PRIMARY KEY);
INSERT INTO parents SELECT k FROM stated_keys WHERE k < 3;
CREATE TABLE children (id int REFERENCES parents ON DELETE CASCADE, filler text)
  WITH (fillfactor = 20, autovacuum_enabled = off);
INSERT INTO children SELECT a % 3, filler FROM stated;
CREATE INDEX children_id ON children (id);
VACUUM ANALYZE parents, children
"""


@pytest.fixture
def connection(cluster: Cluster) -> Iterator[Connection]:
    """A session that scans by index, of table blocks only."""
    with connect(cluster) as session:
        once(session, "stated", SETUP)
        settings(session, **INDEX_SCANS, pg_lookahead__leafscan="off")
        yield session


def sequentially(connection: Connection, query: str) -> list[Row]:
    """Return what a query says without an index."""
    settings(connection, **SEQUENTIAL_SCANS)
    found = rows(connection, query)
    settings(connection, **INDEX_SCANS)
    return found


def test_skip_locked(cluster: Cluster, connection: Connection) -> None:
    """Rows that are passed over make a LIMIT reach further, and look-ahead with it."""
    locked, limit = 150, 100
    query = (
        f"SELECT a, length(filler) FROM stated WHERE a > 0 ORDER BY a LIMIT {limit}"
        " FOR UPDATE SKIP LOCKED"
    )
    require_node(connection, query, "LockRows")
    require_node(connection, query, "Index Scan", "stated_a")
    cold(connection, "stated")
    with connect(cluster) as other:
        settings(other, **INDEX_SCANS, pg_lookahead__enabled="off")
        other.execute(f"BEGIN; SELECT FROM stated WHERE a <= {locked} FOR UPDATE")
        expected = [(a, 100) for a in range(locked + 1, locked + limit + 1)]
        connection.execute("BEGIN")
        with gained(connection) as change:
            assert rows(connection, query) == expected
        connection.execute("ROLLBACK; BEGIN")
        settings(connection, enable_sort="on")
        assert sequentially(connection, query) == expected
        connection.execute("ROLLBACK")
    assert change.scans == 1
    # The first 100 entries, of which the LIMIT speaks, are on blocks that the other one has read.
    assert change.blocks_hit > 0
    assert change.blocks_used > limit / 5
    # How far it reaches is looked at again and again.
    assert change.blocks_wasted == 0


QUERY = "SELECT a, filler FROM stated WHERE a > 100"


def copied_out(connection: Connection) -> list[Row]:
    """Return what COPY gives of the query."""
    with connection.cursor() as cursor, cursor.copy(f"COPY ({QUERY}) TO STDOUT") as copy:
        copy.set_types(["int4", "text"])
        return list(copy.rows())


def refreshed(connection: Connection) -> list[Row]:
    """Return what is in a materialized view of the query, refreshed."""
    connection.execute("REFRESH MATERIALIZED VIEW stated_view")
    return rows(connection, "TABLE stated_view")


@pytest.mark.parametrize("statement", [copied_out, refreshed], ids=["copy", "refresh"])
def test_queries_in_other_statements(
    connection: Connection, statement: Callable[[Connection], list[Row]]
) -> None:
    """They run in the executor, and are followed there."""
    connection.execute(f"CREATE MATERIALIZED VIEW stated_view AS {QUERY} WITH NO DATA")
    try:
        require_node(connection, QUERY, "Index Scan", "stated_a")
        cold(connection, "stated")
        with gained(connection) as change:
            found = statement(connection)
        assert sorted(found) == sorted(sequentially(connection, QUERY))
        assert change.scans == 1
        assert change.blocks_used > 100
        assert change.blocks_wasted == 0
    finally:
        connection.execute("DROP MATERIALIZED VIEW stated_view")


def test_cascade(connection: Connection) -> None:
    """A foreign key's cascade to many rows is a query like others; the check of a row is not."""
    counted = "SELECT id, count(*) FROM children GROUP BY id ORDER BY id"
    cold(connection, "children")
    connection.execute("BEGIN")
    with gained(connection) as change:
        connection.execute("DELETE FROM parents WHERE id = 1")
    assert sequentially(connection, counted) == [(0, ROWS // 3), (2, ROWS // 3)]
    connection.execute("ROLLBACK")
    assert change.scans == 1
    assert change.blocks_used > 100
    assert change.blocks_wasted == 0

    connection.execute("BEGIN")
    with gained(connection) as change:
        connection.execute("INSERT INTO children SELECT 0 FROM generate_series(1, 100)")
    connection.execute("ROLLBACK")
    assert change.scans == 0


@pytest.mark.parametrize("kind", ["index", "bitmap"])
def test_tables_of_another_access_method(connection: Connection, kind: str) -> None:
    """A row's address need not be a place in a file: such scans are left alone.

    The server builds indexes of heap's only, so the table is one until it has its index.
    """
    script(
        connection,
        """
        CREATE OR REPLACE FUNCTION la_other_am_handler(internal) RETURNS table_am_handler
            AS 'la_other_am' LANGUAGE C;
        CREATE ACCESS METHOD stated_am TYPE TABLE HANDLER la_other_am_handler;
        CREATE TABLE stated_other (LIKE stated) WITH (fillfactor = 20, autovacuum_enabled = off);
        INSERT INTO stated_other SELECT * FROM stated;
        CREATE INDEX stated_other_a ON stated_other (a);
        ANALYZE stated_other;
        UPDATE pg_class SET relam = (SELECT oid FROM pg_am WHERE amname = 'stated_am')
         WHERE relname = 'stated_other'
        """,
    )
    try:
        for table, followed in (("stated", True), ("stated_other", False)):
            query = f"SELECT a, filler FROM {table} WHERE a > 1000"
            settings(connection, **(INDEX_SCANS if kind == "index" else BITMAP_SCANS))
            node = "Index Scan" if kind == "index" else "Bitmap Heap Scan"
            require_node(connection, query, node)
            cold(connection, table)
            with gained(connection) as change:
                found = rows(connection, query)
            assert sorted(found) == sorted(sequentially(connection, query))
            assert (change.scans > 0) == (change.blocks_issued > 0) == followed, table
    finally:
        script(connection, "DROP TABLE stated_other; DROP ACCESS METHOD stated_am")


@pytest.mark.parametrize("operation", ["EXCEPT", "INTERSECT", "INTERSECT ALL"])
def test_sets(connection: Connection, operation: str) -> None:
    """Both sides are scans like others."""
    query = (
        f"SELECT a, filler FROM stated WHERE a > 500 {operation}"
        " SELECT a, filler FROM stated WHERE a > 2000"
    )
    scans = [node for node in plan_nodes(connection, query) if node["Node Type"] == "Index Scan"]
    assert len(scans) == 2
    cold(connection, "stated")
    with gained(connection) as change:
        found = rows(connection, query)
    assert sorted(found) == sorted(sequentially(connection, query))
    assert len(found) == (1500 if operation == "EXCEPT" else ROWS - 2000)
    assert change.scans == 2
    assert change.blocks_used > 100
    assert change.blocks_wasted == 0


@pytest.mark.parametrize("kind", ["Semi", "Anti"])
def test_first_match_is_enough(connection: Connection, kind: str) -> None:
    """A round that ends with the first row never starts; if it does, the first window is all."""
    word = "EXISTS" if kind == "Semi" else "NOT EXISTS"
    query = (
        f"SELECT k FROM stated_keys WHERE {word} (SELECT FROM stated WHERE b = k AND filler <> 'y')"
    )
    joins = {
        f"enable_{way}": "off"
        for way in ("hashjoin", "mergejoin", "material", "memoize", "hashagg", "sort")
    }
    settings(connection, **joins)
    joined = [node.get("Join Type") for node in plan_nodes(connection, query)]
    assert kind in joined, joined
    require_node(connection, query, "Index Scan", "stated_b")
    expected = [(k,) for k in range(KEYS)] if kind == "Semi" else []
    for start_after in (8, 0):
        settings(connection, pg_lookahead__start_after=start_after)
        cold(connection, "stated")
        with gained(connection) as change:
            assert sorted(rows(connection, query)) == expected
        if start_after:
            assert change.scans == change.blocks_issued == 0
        else:
            assert change.scans > 0
            assert 0 < change.blocks_wasted <= KEYS * FIRST_DISTANCE
    settings(connection, enable_sort="on")
    assert sorted(sequentially(connection, query)) == expected


def test_limit_above_a_subquery(connection: Connection) -> None:
    """It bounds what is read for the scan below."""
    query = (
        "SELECT length(filler), a FROM (SELECT a, filler FROM stated WHERE a > 0 ORDER BY a"
        " OFFSET 0) s LIMIT 40"
    )
    kinds = [node["Node Type"] for node in plan_nodes(connection, query)]
    assert kinds == ["Limit", "Subquery Scan", "Index Scan"]
    cold(connection, "stated")
    with gained(connection) as change:
        found = rows(connection, query)
    assert found == [(100, a) for a in range(1, 41)]
    assert change.scans == 1
    assert change.blocks_used > 10
    assert change.blocks_wasted == 0


def test_one_subplan_of_many_partitions(connection: Connection) -> None:
    """A condition that all partitions share has one sub-plan, whose scan they all start."""
    parts = 3
    script(
        connection,
        "CREATE TABLE stated_parts (k int) PARTITION BY LIST (k)"
        + "".join(
            f"; CREATE TABLE stated_part_{i} PARTITION OF stated_parts FOR VALUES IN ({i}, {i + 9})"
            for i in range(parts)
        )
        + f"; INSERT INTO stated_parts SELECT k FROM stated_keys WHERE k % 9 < {parts} AND k < 18"
        "; ANALYZE stated_parts",
    )
    try:
        query = (
            "SELECT k FROM stated_parts p"
            " WHERE (SELECT count(filler) FROM stated s WHERE s.b = p.k) >= 100"
        )
        shown = [
            node["Subplan Name"] for node in plan_nodes(connection, query) if "Subplan Name" in node
        ]
        assert shown == ["SubPlan 1"], shown
        conditions = [node.get("Filter", "") for node in plan_nodes(connection, query)]
        assert sum("SubPlan 1" in condition for condition in conditions) == parts, conditions
        require_node(connection, query, "Index Scan", "stated_b")
        cold(connection, "stated")
        with gained(connection) as change:
            found = rows(connection, query)
        assert sorted(found) == sorted(sequentially(connection, query))
        assert sorted(found) == [(k,) for k in (0, 1, 2, 9, 10, 11)]
        assert change.scans == 1
        assert change.blocks_used > 100
        assert change.blocks_wasted == 0
        assert not change.errors
    finally:
        connection.execute("DROP TABLE stated_parts")
