"""Functions that look-ahead does not call, and how it finds out: without waiting for others.

More of it is in sql/stayout.sql, and catalogs that are locked in test_interrupts.py.
"""

from __future__ import annotations

import pytest
from lookahead.cluster import Cluster
from lookahead.servers import Server

from support import (
    INDEX_SCANS,
    cold,
    connect,
    gained,
    require_node,
    rows,
    rows_without,
    script,
    settings,
)

ROWS = 2000

ORDERS = f"""
CREATE TYPE order_line AS (article int);
CREATE TABLE orders (id int, lines order_line[], filler text);
INSERT INTO orders SELECT i, ARRAY[row(i)::order_line], repeat('x', 300)
  FROM generate_series(1, {ROWS}) i ORDER BY md5(i::text);
VACUUM ANALYZE orders;
"""

SKIPPED = f"""
CREATE OPERATOR === (LEFTARG = int, RIGHTARG = int, FUNCTION = plpgsql_equal);
CREATE OPERATOR CLASS strange_ops FOR TYPE int USING btree AS
    OPERATOR 1 <, OPERATOR 2 <=, OPERATOR 3 ===, OPERATOR 4 >=, OPERATOR 5 >,
    FUNCTION 1 btint4cmp(int, int);
CREATE TABLE skipped (a int, b int, filler text);
INSERT INTO skipped SELECT i % 5, i % 20, repeat('x', 300)
  FROM generate_series(1, {ROWS}) i ORDER BY md5(i::text);
VACUUM ANALYZE skipped;
"""


@pytest.mark.parametrize("columns", ["(id) INCLUDE (lines)", "(id, lines)"])
def test_row_type_of_somebody(cluster: Cluster, columns: str) -> None:
    """A type that the query does not look at may be locked: so much is known without it."""
    query = "SELECT id, length(filler) FROM orders WHERE id > 5 ORDER BY id"
    with connect(cluster) as other:
        script(other, ORDERS)
        other.execute(f"CREATE INDEX orders_id ON orders {columns}")
        expected = rows_without(other, query)
        other.execute("BEGIN")
        other.execute("ALTER TYPE order_line RENAME ATTRIBUTE article TO item")
        # A session that knows nothing of the type yet.
        with connect(cluster) as connection:
            settings(connection, **INDEX_SCANS, lock_timeout="2s")
            require_node(connection, query, "Index Scan", "orders_id")
            assert rows(connection, query) == expected
        other.execute("ROLLBACK")
        script(other, "DROP TABLE orders; DROP TYPE order_line")


# Each is of something that the index does not show: what is inside may have any function.
HIDDEN = {
    "hash of rows": (
        "CREATE TYPE inside AS (x int);"
        "CREATE TABLE hidden AS SELECT row(i % 4)::inside AS v, repeat('x', 300) AS filler"
        f" FROM generate_series(1, {ROWS}) i; CREATE INDEX hidden_v ON hidden USING hash (v)",
        "v = row(3)::inside",
        "DROP TABLE hidden; DROP TYPE inside",
    ),
    "multiranges": (
        "CREATE TYPE inside AS RANGE (subtype = int, multirange_type_name = insides);"
        "CREATE TABLE hidden AS SELECT insides(inside(i % 4, i % 4 + 1)) AS v, repeat('x', 300)"
        f" AS filler FROM generate_series(1, {ROWS}) i;"
        "CREATE INDEX hidden_v ON hidden USING gist (v)",
        "v && insides(inside(3, 4))",
        "DROP TABLE hidden; DROP TYPE inside",
    ),
    "a hash of numbers": (
        "CREATE TABLE hidden AS SELECT i % 4 AS v, repeat('x', 300) AS filler"
        f" FROM generate_series(1, {ROWS}) i; CREATE INDEX hidden_v ON hidden USING hash (v)",
        "v = 3",
        "DROP TABLE hidden",
    ),
}


@pytest.mark.parametrize("name", HIDDEN)
def test_what_an_index_does_not_show(cluster: Cluster, name: str) -> None:
    setup, condition, undo = HIDDEN[name]
    query = f"SELECT ctid, length(filler) FROM hidden WHERE {condition}"
    with connect(cluster) as connection:
        script(connection, setup)
        settings(connection, **INDEX_SCANS)
        require_node(connection, query, "Index Scan", "hidden_v")
        expected = sorted(rows_without(connection, query))
        assert len(expected) == ROWS // 4
        cold(connection, "hidden")
        with gained(connection) as change:
            assert len(rows(connection, query)) == len(expected)
        assert (change.blocks_issued > 0) == (name == "a hash of numbers")
        script(connection, undo)


def test_operators_of_skip_scans(cluster: Cluster, server: Server) -> None:
    """For a column without a key 18 makes one, with an operator of the index's family."""
    if server.major < 18:
        pytest.skip("skip scans are of 18 and later")
    query = "SELECT a, b, length(filler) FROM skipped WHERE b = 7"
    with connect(cluster) as connection:
        connection.execute(
            "CREATE FUNCTION plpgsql_equal(int, int) RETURNS bool LANGUAGE plpgsql IMMUTABLE"
            " AS 'BEGIN RETURN $1 = $2; END'"
        )
        script(connection, SKIPPED)
        settings(connection, **INDEX_SCANS)
        for operators, looks_ahead in (("int4_ops", True), ("strange_ops", False)):
            connection.execute(f"CREATE INDEX skipped_a_b ON skipped (a {operators}, b)")
            require_node(connection, query, "Index Scan", "skipped_a_b")
            expected = sorted(rows_without(connection, query))
            assert len(expected) == ROWS // 20
            cold(connection, "skipped")
            with gained(connection) as change:
                assert sorted(rows(connection, query)) == expected
            assert (change.blocks_issued > 0) == looks_ahead
            connection.execute("DROP INDEX skipped_a_b")
        script(
            connection,
            "DROP TABLE skipped; DROP OPERATOR FAMILY strange_ops USING btree;"
            " DROP OPERATOR === (int, int); DROP FUNCTION plpgsql_equal",
        )
