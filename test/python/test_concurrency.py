"""Scans while everything else goes on: changes, VACUUM, REINDEX CONCURRENTLY.

Rows that nobody touches must always be found, each once.  In one REPEATABLE
READ snapshot a sequential scan, an index scan and an index-only scan must see
the same.  Nothing may hang: every statement has a timeout.
"""

from __future__ import annotations

import random

import pytest
from lookahead.servers import Server

from conftest import NewCluster
from crowd import Workers, crowded_cluster
from support import (
    INDEX_SCANS,
    SEQUENTIAL_SCANS,
    Connection,
    LogWatch,
    connect,
    no_pins,
    rows,
    script,
    settings,
    value,
)

ROWS = 4000

# The numbers 0, 10, 20, ... of `id` are never touched.
SETUP = f"""
CREATE TABLE busy (id int, a int, filler text) WITH (fillfactor = 30);
INSERT INTO busy SELECT i, (i * 7919) % 4001, repeat('x', 100) FROM generate_series(1, {ROWS}) i;
CREATE INDEX busy_a ON busy (a);
CREATE INDEX busy_id ON busy (id);
CREATE INDEX busy_hash ON busy USING hash ((a % 20));
CREATE INDEX busy_gist ON busy USING gist (point(a, id));
VACUUM ANALYZE busy
"""

EVERYTHING = "SELECT id, a FROM busy WHERE a >= 0 AND filler <> 'z'"
SCANS = (
    ("SELECT id, a FROM busy WHERE a >= 0 AND filler <> 'z' ORDER BY a", lambda row: True),
    ("SELECT id, a FROM busy WHERE a BETWEEN 1000 AND 3000 AND filler <> 'z' ORDER BY a DESC",
     lambda row: 1000 <= row[1] <= 3000),
    ("SELECT id, a FROM busy WHERE id > 0 AND filler <> 'z' ORDER BY id", lambda row: True),
    ("SELECT id, a FROM busy WHERE a % 20 = 7 AND filler <> 'z'", lambda row: row[1] % 20 == 7),
    ("SELECT id, a FROM busy WHERE point(a, id) <@ box '((500,0),(2500,3000))' AND filler <> 'z'",
     lambda row: 500 <= row[1] <= 2500 and 0 <= row[0] <= 3000),
)  # fmt: skip


def churn(connection: Connection, choice: random.Random) -> None:
    low = choice.randrange(ROWS)
    connection.execute(
        choice.choice(
            (
                f"UPDATE busy SET a = (a + {choice.randint(1, 900)}) % 4001"
                f" WHERE id BETWEEN {low} AND {low + 60} AND id % 10 <> 0",
                f"UPDATE busy SET filler = repeat('y', {choice.randint(1, 200)})"
                f" WHERE a BETWEEN {low} AND {low + 60} AND id % 10 <> 0",
                f"DELETE FROM busy WHERE a BETWEEN {low} AND {low + 40} AND id % 10 <> 0",
                f"INSERT INTO busy SELECT {low} / 10 * 10 + 1 + g % 9, (g * 37) % 4001, 'new'"
                " FROM generate_series(1, 40) g",
            )
        )
    )


def maintain(connection: Connection, choice: random.Random) -> None:
    # REINDEX CONCURRENTLY waits for the transactions of those who scan, of several statements.
    settings(connection, statement_timeout="150s")
    connection.execute(
        choice.choice(
            (
                "VACUUM (INDEX_CLEANUP on, TRUNCATE on) busy",
                "VACUUM (INDEX_CLEANUP on) busy",
                "VACUUM (FREEZE) busy",
                "REINDEX INDEX CONCURRENTLY busy_a",
                "REINDEX INDEX CONCURRENTLY busy_gist",
                "REINDEX TABLE CONCURRENTLY busy",
                "ANALYZE busy",
            )
        )
    )


def scan(connection: Connection, choice: random.Random) -> None:
    """One snapshot, all kinds of scans."""
    settings(
        connection,
        pg_lookahead__max_distance=choice.choice((8, 64, 256)),
        cursor_tuple_fraction=1,
    )
    connection.execute("BEGIN ISOLATION LEVEL REPEATABLE READ")
    settings(connection, **SEQUENTIAL_SCANS)
    everything = rows(connection, EVERYTHING)
    assert {i for i, _ in everything if i % 10 == 0} == set(range(10, ROWS + 1, 10))
    settings(connection, **INDEX_SCANS)
    query, belongs = choice.choice(SCANS)
    if choice.random() < 0.5:
        found = rows(connection, query)
    else:
        connection.execute(f"DECLARE c CURSOR FOR {query}")
        found = []
        while some := rows(connection, f"FETCH {choice.choice((10, 100, 1000))} FROM c"):
            found += some
    assert sorted(found) == sorted(row for row in everything if belongs(row)), query
    # Once more, without the table where it is all-visible.
    only = [a for (a,) in rows(connection, "SELECT a FROM busy WHERE a >= 0 ORDER BY a")]
    assert only == sorted(a for _, a in everything)
    connection.execute("COMMIT")


@pytest.mark.parametrize("which", [0, 1])
def test_everything_at_once(own_cluster: NewCluster, server: Server, which: int) -> None:
    cluster, io_method = crowded_cluster(own_cluster, server, which)
    with connect(cluster) as connection:
        script(connection, SETUP)
    with LogWatch(cluster, allowed=["canceling autovacuum"]):
        workers = Workers(cluster, statement_timeout="60s")
        methods = ["advice", "aio"] if io_method else ["advice", "auto"]
        for i, method in enumerate(methods):
            workers.add(f"scan {i} {method}", scan, pg_lookahead__method=method)
        workers.add("churn", churn, pg_lookahead__method=methods[1])
        workers.add("maintain", maintain)
        workers.join()
        assert workers.issued > 0
        no_pins(cluster)
        with connect(cluster) as connection:
            settings(connection, **SEQUENTIAL_SCANS)
            count = value(connection, "SELECT count(*) FROM busy WHERE id % 10 = 0")
            assert count == ROWS // 10
    cluster.close()
