"""Hot standby and logical replication.

On a standby, scans look ahead while replay changes the table under them.  In
an apply worker rows are found one at a time: there look-ahead stays out, but
the triggers of the subscriber may scan, and those look ahead as ever.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator

import psycopg
import pytest
from lookahead.cluster import Cluster
from lookahead.servers import Server

from conftest import CONF, NewCluster
from seqscan_support import SCAN as SEQUENTIAL_SCAN
from seqscan_support import SETUP as SEQUENTIAL_SETUP
from seqscan_support import blocks_of, need_followed_scans, scanning
from standby_support import CONFLICT, caught_up, evict_all, standby_from
from support import (
    INDEX_SCANS,
    SEQUENTIAL_SCANS,
    Connection,
    LogWatch,
    connect,
    gained,
    require_node,
    rows,
    script,
    settings,
    value,
)

ROWS = 4000
CHURN_SECONDS = 6

SETUP = f"""
CREATE TABLE replicated (id int PRIMARY KEY, a int, filler text) WITH (fillfactor = 20);
INSERT INTO replicated SELECT i, (i * 7919) % 4001, repeat('x', 100)
  FROM generate_series(1, {ROWS}) i;
CREATE INDEX replicated_a ON replicated (a);
CREATE INDEX replicated_hash ON replicated USING hash ((a % 10));
VACUUM ANALYZE replicated;
"""

INDEX_SCAN = "SELECT a, id, length(filler) FROM replicated WHERE a >= 0 ORDER BY a, id"
INDEX_ONLY_SCAN = "SELECT a FROM replicated WHERE a >= 0 ORDER BY a"


def index_scans(connection: Connection, **more: object) -> None:
    settings(connection, **INDEX_SCANS, **more)


@pytest.fixture(scope="module")
def pair(own_cluster: NewCluster, server: Server) -> Iterator[tuple[Cluster, Cluster]]:
    """A primary and its streaming standby."""
    primary = own_cluster({"wal_level": "logical", "max_wal_senders": "5"})
    with connect(primary) as connection:
        script(connection, SETUP)
        # The backup begins with a checkpoint, which it would wait for.
        connection.execute("CHECKPOINT")
    standby = Cluster(
        server,
        conf={
            **CONF,
            "hot_standby": "on",
            "hot_standby_feedback": "on",
            "max_standby_streaming_delay": "3s",
            "wal_level": "logical",
        },
    )
    with standby_from(primary, standby):
        yield primary, standby


def test_standby_reads_what_the_primary_has(pair: tuple[Cluster, Cluster]) -> None:
    primary, standby = pair
    methods = ["advice", "aio"] if primary.server.major >= 18 else ["advice"]
    with LogWatch(standby, allowed=[CONFLICT, "terminating connection"]):
        for query, kind in ((INDEX_SCAN, "Index Scan"), (INDEX_ONLY_SCAN, "Index Only Scan")):
            with connect(primary) as connection:
                # Pages that are not all-visible, for the index-only scan.
                connection.execute("UPDATE replicated SET filler = filler WHERE id % 5 = 0")
                expected = rows(connection, query)
            for method in methods:
                evict_all(primary, standby)
                with connect(standby) as connection:
                    assert value(connection, "SELECT pg_is_in_recovery()")
                    index_scans(connection, pg_lookahead__method=method)
                    require_node(connection, query, kind, "replicated_a")
                    with gained(connection) as change:
                        assert rows(connection, query) == expected
                    assert change.blocks_issued > 0


@pytest.mark.parametrize("method", ["worker", "advice"])
def test_sequential_scans(pair: tuple[Cluster, Cluster], server: Server, method: str) -> None:
    """Scans of 15 to 17 look ahead, and replay of a truncation does not wait for them."""
    need_followed_scans(server)
    primary, standby = pair
    with LogWatch(standby, allowed=[CONFLICT]), connect(primary) as changing:
        changing.execute("DROP TABLE IF EXISTS long, keys")
        script(changing, SEQUENTIAL_SETUP)
        expected = rows(changing, SEQUENTIAL_SCAN)
        evict_all(primary, standby)
        with connect(standby) as connection:
            scanning(connection, method)
            require_node(connection, SEQUENTIAL_SCAN, "Seq Scan")
            blocks = blocks_of(connection, "long")
            with gained(connection) as change:
                assert rows(connection, SEQUENTIAL_SCAN) == expected
            assert change.blocks_issued > blocks * 0.8
            assert change.errors == 0
            # Nothing is left of the scan, so replay finds nobody in its way.
            changing.execute("TRUNCATE long")
            caught_up(primary, standby)
            assert rows(connection, SEQUENTIAL_SCAN) == []


def test_standby_under_churn(pair: tuple[Cluster, Cluster]) -> None:
    """In one snapshot, three kinds of scans see the same, whatever replay does."""
    primary, standby = pair
    stop = threading.Event()
    failures: list[BaseException] = []

    def churn() -> None:
        try:
            with connect(primary) as connection:
                n = 0
                while not stop.is_set():
                    n += 1
                    low = (n * 617) % ROWS
                    connection.execute(
                        f"UPDATE replicated SET a = a + 1 WHERE id BETWEEN {low} AND {low + 40}"
                        " AND id % 10 <> 0"
                    )
                    connection.execute(
                        f"DELETE FROM replicated WHERE id BETWEEN {low + 100} AND {low + 130}"
                        " AND id % 10 <> 0"
                    )
                    connection.execute(
                        f"INSERT INTO replicated SELECT {ROWS} + {n} * 100 + g, (g * 37) % 4001,"
                        " 'new' FROM generate_series(1, 30) g"
                    )
                    connection.execute("VACUUM replicated")
                    # Not concurrently: that takes indexes away from standbys' scans.
                    if n % 10 == 0:
                        connection.execute("REINDEX INDEX replicated_a")
        except BaseException as error:
            failures.append(error)

    # Too few buffers for the table.
    standby.configure({**standby.conf, "shared_buffers": "2MB"})
    standby.restart()
    thread = threading.Thread(target=churn)
    conflicts = compared = issued = 0
    with LogWatch(standby, allowed=[CONFLICT, "terminating connection"]):
        thread.start()
        try:
            start = time.monotonic()
            # On a busy machine until enough has been compared.
            while time.monotonic() < start + 60 and not failures:
                if time.monotonic() > start + CHURN_SECONDS and compared > 3 and issued > 0:
                    break
                try:
                    issued += one_snapshot(standby)
                    compared += 1
                except psycopg.errors.QueryCanceled:
                    # By statement_timeout: it hung.
                    raise
                except (psycopg.errors.SerializationFailure, psycopg.errors.DeadlockDetected):
                    conflicts += 1
                except psycopg.OperationalError:
                    # The session was ended; the log must not say anything worse.
                    conflicts += 1
        finally:
            stop.set()
            thread.join(180)
    assert not thread.is_alive()
    assert not failures
    assert compared > 3, f"only {compared} comparisons, {conflicts} conflicts"
    assert issued > 0

    with connect(primary) as connection:
        settings(connection, **SEQUENTIAL_SCANS)
        expected = sorted(rows(connection, INDEX_SCAN))
    caught_up(primary, standby)
    with connect(standby) as connection:
        index_scans(connection)
        assert sorted(rows(connection, INDEX_SCAN)) == expected


def one_snapshot(standby: Cluster) -> int:
    """Compare the scans in one snapshot; return the blocks issued."""
    with connect(standby) as connection:
        settings(connection, statement_timeout="60s")
        connection.execute("BEGIN ISOLATION LEVEL REPEATABLE READ")
        settings(connection, **SEQUENTIAL_SCANS)
        everything = sorted(rows(connection, INDEX_SCAN))
        settings(connection, **INDEX_SCANS)
        with gained(connection) as change:
            assert sorted(rows(connection, INDEX_SCAN)) == everything
            found = [a for (a,) in rows(connection, INDEX_ONLY_SCAN)]
            assert sorted(found) == sorted(a for a, _, _ in everything)
            by_hash = "SELECT id FROM replicated WHERE a % 10 = 3"
            assert sorted(rows(connection, by_hash)) == [
                (i,) for i, a in sorted((i, a) for a, i, _ in everything) if a % 10 == 3
            ]
        connection.execute("COMMIT")
        untouched = {i for _, i, _ in everything if i <= ROWS and i % 10 == 0}
        assert len(untouched) == ROWS // 10
        return change.blocks_issued


def test_promotion(pair: tuple[Cluster, Cluster]) -> None:
    """An open cursor lives through promotion."""
    primary, standby = pair
    caught_up(primary, standby)
    with LogWatch(standby, allowed=[CONFLICT, "terminating", "received promote"]):
        with connect(standby) as connection:
            expected = rows(connection, INDEX_SCAN)
            index_scans(connection)
            connection.execute("BEGIN")
            connection.execute(f"DECLARE c CURSOR FOR {INDEX_SCAN}")
            found = rows(connection, "FETCH 500 FROM c")
            with connect(standby) as other:
                assert value(other, "SELECT pg_promote(true, 60)")
                other.execute("DELETE FROM replicated WHERE a % 2 = 1")
                other.execute("VACUUM replicated")
            found += rows(connection, "FETCH ALL FROM c")
            connection.execute("COMMIT")
            assert found == expected
            left = [row for row in expected if row[0] % 2 == 0]
            assert rows(connection, INDEX_SCAN) == left


def test_logical_replication(pair: tuple[Cluster, Cluster]) -> None:
    """From one database to another of the same server."""
    primary, _ = pair
    with connect(primary) as connection:
        connection.execute("CREATE DATABASE subscriber")
        connection.execute("CREATE PUBLICATION p FOR TABLE replicated")
        value(connection, "SELECT pg_create_logical_replication_slot('s', 'pgoutput')")
    try:
        with LogWatch(primary, allowed=["terminating logical replication worker"]) as log:
            try:
                replicate(primary)
            except AssertionError:
                print(log.text())
                raise
    finally:
        with connect(primary, "subscriber") as connection:
            script(
                connection,
                "ALTER SUBSCRIPTION s DISABLE; ALTER SUBSCRIPTION s SET (slot_name = NONE);"
                " DROP SUBSCRIPTION s",
            )
        with connect(primary) as connection:
            connection.execute("DROP DATABASE subscriber WITH (FORCE)")


def replicate(primary: Cluster) -> None:
    with connect(primary) as connection:
        everything = rows(connection, "SELECT * FROM replicated ORDER BY id")
        before = value(connection, "SELECT coalesce(max(id), 0) FROM replicated")
    with connect(primary, "subscriber") as connection:
        connection.execute("CREATE EXTENSION pg_lookahead")
        connection.execute(
            "CREATE TABLE replicated (id int PRIMARY KEY, a int, filler text)"
            " WITH (fillfactor = 20)"
        )
        with connection.cursor() as cursor:
            cursor.executemany("INSERT INTO replicated VALUES (%s, %s, %s)", everything)
        connection.execute("CREATE INDEX ON replicated (a)")
        # The trigger's query is a scan that looks ahead, in the apply worker.
        script(
            connection,
            """
            CREATE TABLE looked_at (a int, filler text) WITH (fillfactor = 20);
            INSERT INTO looked_at SELECT i, repeat('x', 100)
              FROM generate_series(1, 2000) i ORDER BY md5(i::text);
            CREATE INDEX looked_at_a ON looked_at (a);
            VACUUM ANALYZE looked_at;
            CREATE TABLE noted (n bigint)
            """,
        )
        connection.execute(
            """
            CREATE FUNCTION look() RETURNS trigger LANGUAGE plpgsql
            SET search_path = public SET enable_seqscan = off SET enable_bitmapscan = off AS $$
            BEGIN
                INSERT INTO noted SELECT count(filler)
                  FROM (SELECT * FROM looked_at WHERE a <= 1000 ORDER BY a OFFSET 0) t;
                RETURN NULL;
            END $$
            """
        )
        script(
            connection,
            "CREATE TRIGGER look AFTER DELETE ON replicated FOR EACH ROW"
            " WHEN (OLD.id % 100 = 0) EXECUTE FUNCTION look();"
            "ALTER TABLE replicated ENABLE ALWAYS TRIGGER look;"
            "ALTER TABLE looked_at SET TABLESPACE elsewhere;"
            "SELECT pg_stat_lookahead_reset()",
        )
        connection.execute(
            f"CREATE SUBSCRIPTION s CONNECTION '{primary.dsn('postgres')}' PUBLICATION p"
            " WITH (create_slot = false, slot_name = s, copy_data = false)"
        )
    with connect(primary) as connection:
        script(
            connection,
            "UPDATE replicated SET a = a + 1, filler = filler || 'z' WHERE id % 3 = 0;"
            "DELETE FROM replicated WHERE id % 4 = 0;"
            f"INSERT INTO replicated SELECT {before} + g, g, 'n' FROM generate_series(1, 500) g",
        )
        expected = rows(connection, "SELECT * FROM replicated ORDER BY id")
    with connect(primary, "subscriber") as connection:
        # A worker that has ended is started again after five seconds.
        end = time.monotonic() + 120
        while rows(connection, "SELECT * FROM replicated ORDER BY id") != expected:
            assert time.monotonic() < end, "the changes do not come"
            time.sleep(0.1)
        assert rows(connection, "SELECT * FROM replicated ORDER BY id") == expected
        assert {n for (n,) in rows(connection, "SELECT n FROM noted")} == {1000}
        # The worker reports when its scans end: nothing of the table applied to.
        seen: dict[str, int] = dict(
            rows(connection, "SELECT relname, blocks_issued FROM pg_stat_lookahead")
        )
        assert seen.get("looked_at", 0) > 0
        assert "replicated" not in seen
