"""Sequential scans on 15 to 17 beside others: what these see of them, and do to their tables."""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Iterator

import psycopg
import pytest
from lookahead.cluster import Cluster
from lookahead.servers import Server

from seqscan_support import (
    MIN_BLOCKS,
    QUERIES,
    SCAN,
    blocks_of,
    long_table,
    need_followed_scans,
    read_by_workers,
    scanning,
)
from support import (
    Connection,
    Row,
    cold,
    connect,
    gained,
    has_extension,
    nothing_pinned,
    pins,
    reset_statistics,
    rows,
    seed,
    session,
    settings,
    settle,
    value,
)


@pytest.fixture
def tables(cluster: Cluster, server: Server) -> Iterator[Cluster]:
    need_followed_scans(server)
    with long_table(cluster, server):
        yield cluster


def test_statistics(tables: Cluster) -> None:
    statistics = (
        "SELECT seq_scan, seq_tup_read, heap_blks_read + heap_blks_hit FROM pg_stat_user_tables"
        " JOIN pg_statio_user_tables USING (relid) WHERE pg_stat_user_tables.relname = 'long'"
    )
    found = []
    # What tests before have added and left empty the planner looks for in the free space
    # map, once in 10 ms, in pages that ANALYZE has not counted.
    with connect(tables) as connection:
        connection.execute("ANALYZE long")
    for enabled in (False, True):
        with connect(tables) as connection:
            scanning(connection, enabled=enabled)
            cold(connection, "long")
            settle(connection)
            reset_statistics(connection, sessions=2)
            with gained(connection) as change:
                for name in ("all", "few", "aggregate"):
                    rows(connection, QUERIES[name][0])
            assert (change.blocks_issued > 0) == enabled
            connection.execute("SELECT pg_stat_force_next_flush()")
            found.append(rows(connection, statistics))
            blocks = blocks_of(connection, "long")
    assert found[0] == found[1]
    scans, _, counted = found[0][0]
    assert (scans, counted) == (3, 3 * blocks)


def test_explain(tables: Cluster) -> None:
    with connect(tables) as connection:
        scanning(connection)
        for query in (SCAN, QUERIES["few"][0]):
            cold(connection, "long")
            document = value(connection, f"EXPLAIN (ANALYZE, FORMAT json) {query}")
            [shown] = document[0]["Look-Ahead"]
            assert shown["Node Type"] == "Seq Scan"
            assert shown["Relation Name"] == "long"
            assert shown["Method"] == "worker"
            assert shown["Blocks Issued"] > MIN_BLOCKS / 2


def test_table_that_grows(tables: Cluster) -> None:
    """What others add while a cursor is open is nothing to it; the next scan sees it."""
    with connect(tables) as connection, connect(tables) as other:
        other.execute(
            "CREATE TABLE growing WITH (fillfactor = 10, autovacuum_enabled = off)"
            " AS SELECT id, filler FROM long"
        )
        scanning(connection)
        query = "SELECT id, length(filler) FROM growing"
        cold(connection, "growing")
        expected = rows(connection, query)
        cold(connection, "growing")
        for synchronized in ("off", "on"):
            settings(connection, synchronize_seqscans=synchronized)
            connection.execute("BEGIN")
            connection.execute(f"DECLARE c CURSOR FOR {query}")
            found: list[Row] = []
            while True:
                some = rows(connection, "FETCH 500 FROM c")
                found += some
                if not some:
                    break
                other.execute("INSERT INTO growing SELECT -i, 'n' FROM generate_series(1, 60) i")
                connection.execute("INSERT INTO growing SELECT 0, 'own' FROM keys")
            connection.execute("COMMIT")
            assert sorted(found) == sorted(expected)
            expected = rows(connection, query)
        other.execute("DROP TABLE growing")


# What a scan may get to hear of while its table is replaced.
ACCEPTED = (
    psycopg.errors.UndefinedTable,
    psycopg.errors.LockNotAvailable,
    psycopg.errors.DeadlockDetected,
    # "cached plan" and its kin: the table was dropped and is another one now
    psycopg.errors.FeatureNotSupported,
)

CREATE_TARGET = (
    "CREATE TABLE target WITH (fillfactor = 10, autovacuum_enabled = off)"
    " AS SELECT i AS id, repeat('x', 120) AS filler FROM generate_series(1, 6000) i"
)
FILL = "INSERT INTO target SELECT i, repeat('x', 120) FROM generate_series(1, 6000) i"


def _replace(choice: random.Random, connection: Connection) -> None:
    what = choice.randrange(8)
    if what == 0:
        with connection.transaction():
            connection.execute("TRUNCATE target")
            connection.execute(FILL)
    elif what == 1:
        with connection.transaction():
            connection.execute("DROP TABLE target")
            connection.execute(CREATE_TARGET)
    elif what == 2:
        connection.execute("TRUNCATE target")
        connection.execute(FILL)
    elif what == 3:
        # Truncated by VACUUM at its end, and extended again over the same blocks.
        with connection.transaction():
            connection.execute("DELETE FROM target WHERE id > 300")
        connection.execute("VACUUM (TRUNCATE on) target")
        connection.execute(FILL.replace("series(1,", "series(301,"))
    elif what == 4:
        connection.execute("ALTER TABLE target ALTER filler TYPE varchar")
        connection.execute("ALTER TABLE target ALTER filler TYPE text USING filler || ''")
    elif what == 5:
        connection.execute("CREATE INDEX IF NOT EXISTS target_id ON target (id)")
        connection.execute("CLUSTER target USING target_id")
    elif what == 6:
        connection.execute("VACUUM FULL target")
    else:
        # Files of other relations that come and go under the service's nose.
        place = choice.choice(("elsewhere", "pg_default"))
        connection.execute(f"ALTER TABLE target SET TABLESPACE {place}")


def test_ddl_beside_scans(tables: Cluster) -> None:
    """Scans that stop early leave requests behind; the table is gone the moment after.

    A worker that read a block of a file that is not the table's any more would
    leave a buffer behind, and who extends the table next would find "unexpected
    data beyond EOF", or worse.  The log must have nothing of it.
    """
    failures: list[BaseException] = []
    stop = threading.Event()
    counts: list[int] = []
    choice = random.Random(seed())

    def scan(number: int) -> None:
        try:
            with connect(tables) as connection:
                scanning(connection, statement_timeout="20s")
                while not stop.is_set():
                    query = (
                        "SELECT id, length(filler) FROM target",
                        "SELECT id, length(filler) FROM target WHERE id > -1 LIMIT 400",
                    )[number % 2]
                    try:
                        found = rows(connection, query)
                    except ACCEPTED:
                        continue
                    except psycopg.errors.InternalError_ as error:
                        if "could not open relation" not in str(error):
                            raise
                        continue
                    assert {length for _, length in found} <= {120}
                    ids = [i for i, _ in found]
                    assert len(set(ids)) == len(ids)
                    counts.append(len(ids))
        except BaseException as error:
            failures.append(error)

    with connect(tables) as connection:
        connection.execute(CREATE_TARGET)
        settings(connection, statement_timeout="20s")
        before = read_by_workers(connection)
        threads = [threading.Thread(target=scan, args=(i,)) for i in range(3)]
        for thread in threads:
            thread.start()
        done = 0
        start = time.monotonic()
        try:
            # For some seconds, and on a busy machine until enough has happened.
            while not failures and time.monotonic() < start + 60:
                if time.monotonic() > start + 8 and done > 10 and counts.count(6000) > 3:
                    break
                _replace(choice, connection)
                done += 1
        finally:
            stop.set()
            for thread in threads:
                thread.join()
        assert not failures
        assert done > 10
        assert counts.count(6000) > 3
        assert read_by_workers(connection) > before
        assert rows(connection, "TABLE pg_stat_lookahead_owners") == []
        connection.execute("DROP TABLE target")


def test_nothing_is_pinned(tables: Cluster) -> None:
    """A cursor keeps the pages that it stands on, and nothing of what is far ahead."""
    if not has_extension(tables, "pg_buffercache"):
        pytest.skip("this server has no pg_buffercache")
    with connect(tables) as connection, connect(tables) as other:
        scanning(connection)
        cold(connection, "long")
        connection.execute("BEGIN")
        connection.execute("DECLARE c CURSOR FOR SELECT ctid::text FROM long")
        found = rows(connection, "FETCH 1000 FROM c")
        block = int(found[-1][0][1:].split(",")[0])
        assert session(connection).reads_in_flight == 0
        # 17 has a few of the next pages in its own hands.
        assert {at for _, at, _ in pins(other, "long")} <= set(range(block, block + 32))
        connection.execute("COMMIT")
        nothing_pinned(other)


def test_vacuum_beside_scans(tables: Cluster) -> None:
    """Rows that VACUUM freezes, and pages that it cuts off, while the service reads."""
    with connect(tables) as connection, connect(tables) as other:
        settings(other, statement_timeout="20s")
        other.execute("CREATE TABLE icy (LIKE long) WITH (fillfactor = 10)")
        scanning(connection)
        for i in range(4):
            other.execute("INSERT INTO icy SELECT * FROM long")
            expected = rows(connection, "SELECT id FROM icy")
            cold(other, "icy")
            assert rows(connection, "SELECT id FROM icy LIMIT 500") == expected[:500]
            other.execute("VACUUM (FREEZE) icy")
            assert rows(connection, "SELECT id FROM icy") == expected
            blocks = blocks_of(other, "icy")
            other.execute(f"DELETE FROM icy WHERE id > {300 * i}")
            left = [row for row in expected if row[0] <= 300 * i]
            assert rows(connection, "SELECT id FROM icy LIMIT 50") == left[:50]
            # Without FREEZE it would pass by a page that a worker has just pinned to read it.
            other.execute("VACUUM (FREEZE, TRUNCATE on) icy")
            assert blocks_of(other, "icy") < blocks / 2
            other.execute("DELETE FROM icy")
        other.execute("DROP TABLE icy")
