"""Look-ahead gives its memory back, and needs no more for many scans than for one."""

from __future__ import annotations

import re
from pathlib import Path

import psycopg
import pytest
from lookahead.cluster import Cluster

from support import (
    INDEX_SCANS,
    Connection,
    Variant,
    connect,
    gained,
    once,
    require_node,
    rows,
    settings,
    use,
    value,
)

SETUP = """
CREATE TABLE counted_bytes (a int, b int, p point, filler text) WITH (fillfactor = 20);
INSERT INTO counted_bytes SELECT i, i % 100, point(i, i % 37), repeat('x', 100)
  FROM generate_series(1, 3000) i ORDER BY md5(i::text);
CREATE INDEX counted_bytes_a ON counted_bytes (a);
CREATE INDEX counted_bytes_hash ON counted_bytes USING hash (b);
CREATE INDEX counted_bytes_gist ON counted_bytes USING gist (p);
CREATE INDEX counted_bytes_spgist ON counted_bytes USING spgist (p);
VACUUM ANALYZE counted_bytes
"""

QUERIES = {
    "btree": "SELECT a, filler FROM counted_bytes WHERE a < 400 ORDER BY a",
    "hash": "SELECT a, filler FROM counted_bytes WHERE b = 7",
    "gist": "SELECT a, filler FROM counted_bytes ORDER BY p <-> point '(5,5)' LIMIT 200",
    "spgist": "SELECT a, filler FROM counted_bytes WHERE p <@ box '((0,0),(600,20))'",
}

# Allocators keep a block or two; a leak of one context per query is far more.
SLACK = 64 * 1024


@pytest.fixture
def tables(cluster: Cluster) -> Cluster:
    with connect(cluster) as connection:
        once(connection, "counted_bytes", SETUP)
    return cluster


def used(connection: Connection) -> int:
    return int(value(connection, "SELECT sum(used_bytes) FROM pg_backend_memory_contexts"))


def ours(connection: Connection) -> list[str]:
    found = rows(
        connection,
        "SELECT name FROM pg_backend_memory_contexts WHERE name LIKE 'pg\\_lookahead %'",
    )
    return [name for (name,) in found]


@pytest.mark.parametrize("name", QUERIES)
def test_many_queries(tables: Cluster, variant: Variant, name: str) -> None:
    query = QUERIES[name]
    with connect(tables) as connection:
        use(connection, variant, **INDEX_SCANS)
        require_node(connection, query, "Index Scan")

        def repeat(times: int) -> None:
            for i in range(times):
                if i % 3 == 0:
                    connection.execute(f"BEGIN; DECLARE c CURSOR FOR {query}")
                    rows(connection, "FETCH 10 FROM c")
                    connection.execute("ROLLBACK" if i % 2 else "COMMIT")
                elif i % 3 == 1:
                    rows(connection, query)
                else:
                    failing = query.replace("SELECT a", "SELECT 1 / (a - a)")
                    with pytest.raises(psycopg.errors.DivisionByZero):
                        rows(connection, failing)

        with gained(connection) as change:
            repeat(12)
        assert change.scans > 0
        before = used(connection)
        repeat(90)
        assert used(connection) - before < SLACK
        assert ours(connection) == []


@pytest.mark.parametrize("name", QUERIES)
def test_many_rescans(tables: Cluster, variant: Variant, name: str) -> None:
    """A nested loop's inner side is started again and again within one query."""
    inner = {
        "btree": "SELECT a, filler FROM counted_bytes WHERE a > g ORDER BY a LIMIT 5",
        "hash": "SELECT a, filler FROM counted_bytes WHERE b = g % 100 LIMIT 5",
        "gist": "SELECT a, filler FROM counted_bytes ORDER BY p <-> point(g, 5) LIMIT 5",
        "spgist": "SELECT a, filler FROM counted_bytes"
        " WHERE p <@ box(point(g, 0), point(g + 50, 30)) LIMIT 5",
    }[name]
    query = f"SELECT g, l.a FROM generate_series(1, 1500) g, LATERAL ({inner}) l"
    with connect(tables) as connection:
        use(connection, variant, **INDEX_SCANS, cursor_tuple_fraction=1)
        connection.execute(f"BEGIN; DECLARE c CURSOR FOR {query}")
        rows(connection, "FETCH 200 FROM c")
        before = used(connection)
        rows(connection, "FETCH 6000 FROM c")
        assert used(connection) - before < 4 * SLACK
        assert len(ours(connection)) <= 4
        connection.execute("COMMIT")
        assert ours(connection) == []


def test_wide_window(tables: Cluster, variant: Variant) -> None:
    """The largest distance costs less than a megabyte for a scan."""
    with connect(tables) as connection:
        use(connection, variant, **INDEX_SCANS)
        settings(connection, pg_lookahead__max_distance=4096, pg_lookahead__io_concurrency=1000)
        query = "SELECT a, filler FROM counted_bytes ORDER BY a"
        require_node(connection, query, "Index Scan")
        with gained(connection) as change:
            connection.execute("BEGIN")
            # The statement itself has its memory before look-ahead has any.
            connection.execute(f"DECLARE b CURSOR FOR {query}")
            before = used(connection)
            connection.execute(f"DECLARE c CURSOR FOR {query}")
            rows(connection, "FETCH 1 FROM c")
            rows(connection, "FETCH 500 FROM c")
            assert used(connection) - before < 1024 * 1024
            assert ours(connection) != []
            connection.execute("COMMIT")
        assert change.scans > 0


def peak(connection: Connection) -> int:
    """Return the most memory that the backend has had, in bytes."""
    status = Path(f"/proc/{connection.info.backend_pid}/status").read_text()
    found = re.search(r"VmHWM:\s+(\d+) kB", status)
    assert found
    return int(found[1]) * 1024


def test_many_calls_of_a_function(tables: Cluster) -> None:
    """Each call is a query of its own; what it needs goes before the calling one ends."""
    grown = {}
    with connect(tables) as connection:
        connection.execute(
            "CREATE OR REPLACE FUNCTION next_to(int) RETURNS int LANGUAGE sql STABLE AS"
            " 'SELECT a FROM counted_bytes WHERE a >= $1 ORDER BY a LIMIT 1'"
        )
    for enabled in ("off", "on"):
        with connect(tables) as connection:
            settings(connection, **INDEX_SCANS, pg_lookahead__enabled=enabled)
            query = "SELECT sum(next_to(i % 3000)) FROM generate_series(1, {}) i"
            rows(connection, query.format(5000))
            before = peak(connection)
            rows(connection, query.format(100000))
            grown[enabled] = peak(connection) - before
    # Some 70 bytes for each call would be 7 MB.
    assert grown["on"] - grown["off"] < 3 * 1024 * 1024, grown
