"""Leaf pages are split, deleted and replaced while scans look ahead of them.

Three sessions change one index: one inserts in bursts that split pages, one
deletes ranges of keys and vacuums, so that whole pages go, one rebuilds the
index.  Beside them others scan it forward and backward, index-only, plain,
through bitmaps, with parallel workers and scrolling to and fro.  In one
REPEATABLE READ snapshot every scan must return what a sequential scan does, in
order, and the rows that nobody touches must always be there.  Nothing may hang:
every statement has a timeout.
"""

from __future__ import annotations

import random
import re
import time

import psycopg
import pytest
from lookahead.servers import Server

from conftest import NewCluster
from crowd import Workers, crowded_cluster
from leaf_support import PARALLEL
from support import (
    SEQUENTIAL_SCANS,
    Connection,
    LogWatch,
    cold_index,
    comes_with,
    connect,
    gained,
    no_pins,
    require_node,
    rows,
    script,
    settings,
    value,
)
from test_scroll import Oracle, scroll

# Keys, of which every APART-th is a sentinel: nobody touches its rows.
KEYS = 60000
APART = 4000
SENTINELS = 15
ROWS_OF_SENTINEL = 5

# Keys so wide that some 18 fill a page, of leaves and of the level above: there are 30 leaf pages
# between two sentinels, and pages of that level are split and deleted, too.
WIDTH = 400

SETUP = f"""
CREATE TABLE leaves (k int, id int, w text COLLATE "C");
ALTER TABLE leaves ALTER w SET STORAGE plain;
CREATE INDEX leaves_w ON leaves (w, id) INCLUDE (k);
INSERT INTO leaves SELECT s * {APART}, r
  FROM generate_series(0, {SENTINELS - 1}) s, generate_series(1, {ROWS_OF_SENTINEL}) r;
INSERT INTO leaves SELECT k, k FROM generate_series(1, {KEYS}, 7) k WHERE k % {APART} <> 0;
UPDATE leaves SET w = lpad(k::text, {WIDTH}, '0');
VACUUM (FULL, FREEZE, ANALYZE) leaves
"""

EVERYTHING = "SELECT k, id FROM leaves"

# Kinds of scans, and the settings that bring them about.
COMMON = {
    "enable_seqscan": "off",
    "enable_sort": "off",
    "enable_incremental_sort": "off",
    "max_parallel_workers_per_gather": "0",
    "cursor_tuple_fraction": "1",
}
ONLY = {"enable_bitmapscan": "off", "enable_indexscan": "on", "enable_indexonlyscan": "on"}
PLAIN = {**ONLY, "enable_indexonlyscan": "off"}
BITMAP = {**PLAIN, "enable_bitmapscan": "on", "enable_indexscan": "off"}
# The node that the plan must have, settings, and how its rows are fetched.
KINDS = [
    ("Index Only Scan", ONLY, "at once"),
    ("Index Only Scan", ONLY, "piece by piece"),
    ("Index Only Scan", ONLY, "to and fro"),
    ("Index Scan", PLAIN, "at once"),
    ("Index Scan", PLAIN, "piece by piece"),
    ("Bitmap Index Scan", BITMAP, "at once"),
    ("Gather Merge", {**ONLY, **PARALLEL}, "at once"),
]


def test_split_in_front_of_the_scan(own_cluster: NewCluster) -> None:
    """The new neighbour of a page that was split is not foreseen; what comes after it was."""
    cluster = own_cluster({"shared_buffers": "16MB"})
    query = "SELECT k FROM ahead ORDER BY k"
    with LogWatch(cluster), connect(cluster) as connection, connect(cluster) as other:
        script(
            connection,
            "CREATE TABLE ahead (k int, pad text) WITH (autovacuum_enabled = off);"
            "INSERT INTO ahead SELECT g, repeat('p', 90) FROM generate_series(1, 30000) g;"
            "CREATE INDEX ahead_k ON ahead (k) INCLUDE (pad) WITH (fillfactor = 50);"
            "VACUUM (FREEZE, ANALYZE) ahead",
        )
        settings(connection, **COMMON, **ONLY)
        require_node(connection, query, "Index Only Scan")
        cold_index(connection, "ahead_k")
        with gained(connection) as change:
            connection.execute("BEGIN")
            connection.execute(f"DECLARE c CURSOR FOR {query}")
            found = rows(connection, "FETCH 6000 FROM c")
            # In front of the scout, which may be a thousand entries ahead, and in the window.
            other.execute(
                "INSERT INTO ahead SELECT 7400, repeat('p', 90) FROM generate_series(1, 150) g"
            )
            found += rows(connection, "FETCH ALL FROM c")
            connection.execute("COMMIT")
        assert found == [(k,) for k in range(1, 30001)]
        assert change.scans >= 1
        assert change.blocks_used > 300
        assert change.blocks_wasted <= 2


def wide(key: str) -> str:
    """Return the wide form of a key, in SQL."""
    return f"lpad({key}, {WIDTH}, '0')"


def split(connection: Connection, choice: random.Random) -> None:
    """Insert many rows of few keys, or of all: pages are split."""
    low = choice.randrange(KEYS)
    width = choice.choice((60, 3000, KEYS))
    connection.execute(
        f"INSERT INTO leaves SELECT k, {choice.randrange(1 << 30)}, {wide('k::text')}"
        f" FROM (SELECT ({low} + (g * 7919::bigint) % {width}) % {KEYS} AS k"
        f" FROM generate_series(1, {choice.choice((50, 200))}) g) s WHERE k % {APART} <> 0"
    )
    # The table is not to grow without end.
    time.sleep(0.05)


class Deleter:
    """Deletes ranges and vacuums; counts the index pages that went."""

    def __init__(self) -> None:
        self.deleted = 0

    def __call__(self, connection: Connection, choice: random.Random) -> None:
        notices: list[str] = []

        def note(diagnostic: psycopg.errors.Diagnostic) -> None:
            notices.append(diagnostic.message_primary or "")

        low = choice.randrange(KEYS)
        connection.execute(
            f"DELETE FROM leaves WHERE k BETWEEN {low} AND {low + choice.choice((500, 9000))}"
            f" AND k % {APART} <> 0"
        )
        connection.add_notice_handler(note)
        try:
            connection.execute("VACUUM (VERBOSE, INDEX_CLEANUP on) leaves")
        finally:
            connection.remove_notice_handler(note)
        for found in re.findall(r"(\d+) newly deleted", "\n".join(notices)):
            self.deleted += int(found)


def rebuild(connection: Connection, choice: random.Random) -> None:
    # It waits for everybody's snapshots, several times.
    settings(connection, statement_timeout="300s")
    connection.execute("REINDEX INDEX CONCURRENTLY leaves_w")
    time.sleep(choice.random())


def scan(connection: Connection, choice: random.Random) -> None:
    """Compare a scan of the index with the table, in one snapshot."""
    settings(connection, pg_lookahead__max_distance=choice.choice((8, 64, 256)))
    connection.execute("BEGIN ISOLATION LEVEL REPEATABLE READ")
    settings(connection, **{**SEQUENTIAL_SCANS, "enable_sort": "on"})
    everything = sorted(rows(connection, EVERYTHING))
    sentinels = [(k, i) for k, i in everything if k % APART == 0]
    assert len(sentinels) == SENTINELS * ROWS_OF_SENTINEL

    kind, conf, how = choice.choice(KINDS)
    settings(connection, **{**COMMON, **conf})
    low, high = sorted(choice.sample(range(KEYS), 2)) if choice.random() < 0.5 else (0, KEYS)
    few = sorted(choice.sample(range(KEYS), 300))
    expected = [row for row in everything if low <= row[0] <= high]
    between = f"{wide(repr(str(low)))} AND {wide(repr(str(high)))}"
    query = f"{EVERYTHING} WHERE w BETWEEN {between}"
    if choice.random() < 0.2 and kind != "Gather Merge":
        query = f"{EVERYTHING} WHERE w IN ({', '.join(wide(repr(str(k))) for k in (0, *few))})"
        expected = [row for row in everything if row[0] in {0, *few}]
    is_backward = choice.random() < 0.5
    if kind != "Bitmap Index Scan":
        query += " ORDER BY w DESC, id DESC" if is_backward else " ORDER BY w, id"
        expected = expected[::-1] if is_backward else expected
    require_node(connection, query, kind)
    if how == "to and fro":
        scroll(connection, query, Oracle(expected), choice)
    elif how == "piece by piece":
        connection.execute(f"DECLARE c CURSOR FOR {query}")
        found = []
        while some := rows(connection, f"FETCH {choice.choice((10, 300, 2000))} FROM c"):
            found += some
        assert found == expected, query
    else:
        found = rows(connection, query)
        assert (sorted(found) if kind == "Bitmap Index Scan" else found) == expected, query
    connection.execute("COMMIT")


@pytest.mark.thorough
@pytest.mark.parametrize("which", [0, 1])
def test_changes_of_the_index(own_cluster: NewCluster, server: Server, which: int) -> None:
    cluster, io_method = crowded_cluster(own_cluster, server, which)
    with connect(cluster) as connection:
        script(connection, SETUP)
        if comes_with(connection, "pageinspect"):
            connection.execute("CREATE EXTENSION pageinspect")
            level = "SELECT level FROM bt_metap('leaves_w')"
            assert value(connection, level) >= 2
        connection.execute("SELECT pg_stat_lookahead_reset()")
    deleter = Deleter()
    with LogWatch(cluster, allowed=['terminating background worker "parallel worker"']):
        workers = Workers(cluster, statement_timeout="180s")
        workers.want(lambda: deleter.deleted > 0)
        methods = ["advice", "aio"] if io_method else ["advice", "worker"]
        for i, method in enumerate(methods):
            workers.add(f"scan {i} {method}", scan, pg_lookahead__method=method)
        workers.add("split", split)
        workers.add("delete", deleter)
        workers.add("rebuild", rebuild)
        workers.join()
        assert deleter.deleted > 0
        with connect(cluster) as connection:
            # An index that was replaced has no name any more.
            issued = value(
                connection,
                "SELECT sum(blocks_issued) FROM pg_stat_lookahead"
                " WHERE relid <> 'leaves'::regclass",
            )
            assert issued > 0
            no_pins(cluster)
            settings(connection, **SEQUENTIAL_SCANS)
            count = value(connection, f"SELECT count(*) FROM leaves WHERE k % {APART} = 0")
            assert count == SENTINELS * ROWS_OF_SENTINEL
    cluster.close()
