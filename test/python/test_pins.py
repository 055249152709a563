"""Between two calls of the executor look-ahead pins nothing.

A cursor that is not fetched from may stay open for hours.  Its own pins are
what they are without look-ahead; ours must be none, or VACUUM would wait.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from lookahead.cluster import Cluster

from conftest import NewCluster
from support import (
    INDEX_SCANS,
    Connection,
    Row,
    Variant,
    cold,
    conf_of,
    connect,
    evict_relations,
    gained,
    has_extension,
    need_extensions,
    nothing_pinned,
    once,
    pinned_alone,
    pins,
    plan_nodes,
    reads_in_flight,
    rows,
    script,
    session,
    settings,
    until,
    use,
    value,
)

SETUP = """
CREATE TABLE pinned (id int, a int, b int, p point, filler text) WITH (fillfactor = 20);
INSERT INTO pinned SELECT i, (i * 7919) % 4001, i % 40, point((i * 7919) % 4001, i),
       repeat('x', 100) FROM generate_series(1, 4000) i;
CREATE INDEX pinned_a ON pinned (a);
CREATE INDEX pinned_b ON pinned (b);
CREATE INDEX pinned_hash ON pinned USING hash (b);
CREATE INDEX pinned_gist ON pinned USING gist (p);
CREATE INDEX pinned_spgist ON pinned USING spgist (p);
VACUUM ANALYZE pinned;
UPDATE pinned SET filler = 'y' WHERE id % 3 = 0;
CREATE UNLOGGED TABLE unlogged (a int, filler text) WITH (fillfactor = 20);
INSERT INTO unlogged SELECT a, filler FROM pinned;
CREATE INDEX unlogged_a ON unlogged (a);
ANALYZE unlogged;
"""

# Rows of a page have neighbouring keys, the pages are in random order.  All is
# frozen, then the pages from key 100 on get new rows.
FREEZE_SETUP = """
DROP TABLE IF EXISTS pages;
CREATE TABLE pages (a int, filler text) WITH (fillfactor = 40);
INSERT INTO pages SELECT ((i / 10) * 79) % 400 * 10 + i % 10, repeat('x', 280)
  FROM generate_series(0, 3999) i;
CREATE INDEX pages_a ON pages (a);
VACUUM (FREEZE, ANALYZE) pages;
UPDATE pages SET filler = repeat('y', 280) WHERE a >= 100;
"""

# A scan that is cold at first, and goes on in shared buffers.  Pages of indexes
# that are not in the WAL stay pinned while a scan is on them.
REST_SETUP = """
DROP TABLE IF EXISTS resting;
CREATE UNLOGGED TABLE resting (a int, filler text);
INSERT INTO resting SELECT ((i / 20) * 79) % 1200 * 20 + i % 20, repeat('x', 340)
  FROM generate_series(0, 23999) i;
CREATE INDEX resting_a ON resting (a);
ANALYZE resting;
"""
FREE_BUFFERS = "SELECT count(*) FROM pg_buffercache WHERE relfilenode IS NULL"
HELD = """
CREATE OR REPLACE FUNCTION held(i int) RETURNS int LANGUAGE plpgsql AS
 'BEGIN IF i = 22000 THEN PERFORM pg_advisory_xact_lock(1); END IF; RETURN i; END'
"""

# name: (query, a node of its plan)
QUERIES = {
    "btree": ("SELECT a, id FROM pinned WHERE a > 10 ORDER BY a", "Index Scan"),
    "backward": ("SELECT a, id FROM pinned ORDER BY a DESC", "Index Scan"),
    "index_only": ("SELECT a FROM pinned WHERE a > 10 ORDER BY a", "Index Only Scan"),
    "hash": ("SELECT id FROM pinned WHERE b = 7", "Index Scan"),
    "gist": ("SELECT id FROM pinned WHERE p <@ box '((0,0),(3000,3000))'", "Index Scan"),
    "nearest": ("SELECT id FROM pinned ORDER BY p <-> point '(9,9)'", "Index Scan"),
    "unlogged": ("SELECT a, filler FROM unlogged WHERE a > 10 ORDER BY a", "Index Scan"),
    "merge": (
        "SELECT x.id, y.id FROM pinned x JOIN pinned y ON x.a = y.b AND y.id > 2",
        "Merge Join",
    ),
    "nested": (
        "SELECT x.id, y.id FROM pinned x, LATERAL (SELECT id FROM pinned y WHERE y.a > x.b"
        " ORDER BY y.a LIMIT 20) y WHERE x.a > 10 ORDER BY x.a",
        "Nested Loop",
    ),
}

RELATIONS = (
    "pinned", "pinned_a", "pinned_b", "pinned_hash", "pinned_gist", "pinned_spgist",
    "unlogged", "unlogged_a",
)  # fmt: skip

MOVES = ("1", "1", "30", "300", "BACKWARD 5", "1", "FORWARD 40", "1")


@pytest.fixture
def tables(cluster: Cluster) -> Cluster:
    if not has_extension(cluster, "pg_buffercache"):
        pytest.skip("this server has no pg_buffercache")
    with connect(cluster) as connection:
        once(connection, "pinned", SETUP)
    return cluster


def prepared(connection: Connection, name: str, variant: Variant, *, enabled: bool) -> str:
    """Set a session up for a query, with cold tables; return the query."""
    query, node = QUERIES[name]
    use(
        connection,
        variant,
        **INDEX_SCANS,
        enable_material="off",
        enable_sort="off",
        enable_hashjoin="off",
        cursor_tuple_fraction="1",
        pg_lookahead__enabled="on" if enabled else "off",
    )
    cold(connection, "pinned", "unlogged")
    assert node in {found["Node Type"] for found in plan_nodes(connection, query)}
    return query


def walk(connection: Connection, query: str) -> Iterator[list[Row]]:
    """Move a cursor about; yield the rows of each move."""
    connection.execute("BEGIN")
    connection.execute(f"DECLARE c SCROLL CURSOR FOR {query}")
    for move in MOVES:
        yield rows(connection, f"FETCH {move} FROM c")
    connection.execute("COMMIT")


# The rows and the pins after each move, for each query, if nothing is read ahead: in one cluster
# they are the same whatever the method.
Moved = list[tuple[list[Row], list[Row]]]
without_look_ahead: dict[tuple[Path, str], Moved] = {}


def moved_without(
    tables: Cluster, connection: Connection, other: Connection, name: str, variant: Variant
) -> Moved:
    key = (tables.dir, name)
    if key not in without_look_ahead:
        query = prepared(connection, name, variant, enabled=False)
        without_look_ahead[key] = [
            (found, pins(other, *RELATIONS)) for found in walk(connection, query)
        ]
    return without_look_ahead[key]


@pytest.mark.parametrize("name", QUERIES)
def test_no_pins_after_a_fetch(tables: Cluster, variant: Variant, name: str) -> None:
    with connect(tables) as connection, connect(tables) as other:
        expected = moved_without(tables, connection, other, name, variant)
        query = prepared(connection, name, variant, enabled=True)
        with gained(connection) as change:
            for found, (wanted, pinned) in zip(walk(connection, query), expected, strict=True):
                assert reads_in_flight(other, connection) == 0
                assert session(connection).reads_in_flight == 0
                assert found == wanted
                pinned_alone(other, pinned, *RELATIONS)
        assert change.scans > 0
        if variant.reads:
            assert change.blocks_issued > 0
        nothing_pinned(other)


def test_vacuum_freeze_beside_an_idle_cursor(tables: Cluster, variant: Variant) -> None:
    """VACUUM FREEZE wants each page that it freezes for itself.

    The page that the cursor stands on, and pins, has nothing to freeze; those
    that look-ahead has come to have.
    """
    with connect(tables) as connection, connect(tables) as other:
        script(connection, FREEZE_SETUP)
        cold(connection, "pages")
        use(connection, variant, **INDEX_SCANS)
        connection.execute("BEGIN")
        connection.execute("DECLARE c CURSOR FOR SELECT a, filler FROM pages ORDER BY a")
        assert [a for a, _ in rows(connection, "FETCH 25 FROM c")] == list(range(25))
        assert len(pins(other, "pages", "pages_a")) == 1

        settings(other, statement_timeout="20s")
        frozen = "SELECT relfrozenxid::text FROM pg_class WHERE relname = 'pages'"
        before = value(other, frozen)
        other.execute("VACUUM (FREEZE, INDEX_CLEANUP on) pages")
        assert value(other, frozen) != before

        rest = [a for a, _ in rows(connection, "FETCH ALL FROM c")]
        assert rest == list(range(25, 4000))
        with gained(connection) as change:
            connection.execute("COMMIT")
        assert not variant.reads or change.blocks_issued > 0


@pytest.mark.usefixtures("tables")
def test_a_scan_that_rests(own_cluster: NewCluster, variant: Variant) -> None:
    """In the middle of a query that looks ahead no more only the scan's own page is pinned."""
    cluster = own_cluster({**conf_of(variant.io_method), "shared_buffers": "32MB"})
    need_extensions(cluster, "pg_buffercache")
    query = "SELECT count(held(a)), sum(length(filler)) FROM resting WHERE a >= 0"
    with connect(cluster) as connection, connect(cluster) as other:
        script(connection, REST_SETUP)
        connection.execute(HELD)
        found = {}
        for enabled in ("off", "on", "on", "on"):
            cold(connection, "resting")
            use(connection, variant, **INDEX_SCANS, pg_lookahead__enabled="off")
            rows(connection, "SELECT filler FROM resting WHERE a > 4000")
            evict_relations(cluster, connection, "resting")
            settings(
                connection,
                pg_lookahead__enabled=enabled,
                pg_lookahead__start_after=1,
                pg_lookahead__max_distance=32,
            )
            assert "Index Scan" in {node["Node Type"] for node in plan_nodes(connection, query)}
            # Else what is read could take the place of the rest of the table.
            assert value(other, FREE_BUFFERS) > 1000
            with gained(connection) as change, other.transaction():
                value(other, "SELECT pg_advisory_xact_lock(1)")
                thread = threading.Thread(
                    target=lambda: found.update({enabled: rows(connection, query)})
                )
                thread.start()
                until(
                    other,
                    "EXISTS (SELECT FROM pg_locks WHERE locktype = 'advisory' AND NOT granted)",
                )
                seen = pins(other, "resting", "resting_a")
            thread.join()
            assert [name for name, _, _ in seen].count("resting_a") == 1, seen
            # On a busy machine no read need be seen waiting, or one is late.
            if change.scans > 0 and change.blocks_hit < 512 + 4 * 32:
                break
        assert change.scans > 0
        # It has stopped long before: the rest, some 870 blocks, was in shared buffers.
        assert 0 < change.blocks_hit < 512 + 4 * 32
        assert found["on"] == found["off"] == [(24000, 24000 * 340)]
    cluster.close()
