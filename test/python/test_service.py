"""The I/O service: its processes, its queues, and that it is in nobody's way."""

from __future__ import annotations

import contextlib
import os
import random
import re
import signal
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import psycopg
import pytest
from lookahead.cluster import Cluster
from lookahead.errors import LookaheadError
from lookahead.servers import Server

from conftest import CONF, NewCluster
from extend_support import odd_files
from service_support import (
    ALL_ROWS,
    SCAN,
    SERVICE,
    SETUP,
    WORKERS,
    all_up,
    endless,
    io,
    keeping_workers,
    make,
    rows_by_workers,
    scan_by_workers,
    scan_cold,
    serving,
    status,
    stopped,
    until_left,
    worker_pids,
)
from standby_support import CONFLICT, caught_up, evict_all, standby_from
from support import (
    INDEX_SCANS,
    Connection,
    LogWatch,
    cold,
    connect,
    gained,
    prepare,
    require_node,
    rows,
    rows_without,
    script,
    seed,
    settings,
    settle,
    signal_backend,
    slow_tablespace,
    until,
    until_served,
    value,
)
from test_errors import spoil
from test_interrupts import wait_until_back

# What a crash, and what follows it, may log.
CRASH = (
    r"terminated by signal 9|recovery|not yet accepting|because of crash of another"
    r"|terminating connection|shutting down|starting up|immediate shutdown|terminating"
    r"|unexpected pageaddr"
)


@pytest.fixture(scope="module")
def shared(own_cluster: NewCluster) -> Cluster:
    return make(own_cluster)


@pytest.fixture
def cluster(shared: Cluster) -> Iterator[Cluster]:
    """A cluster with the service, whose log stays clean and whose workers live on."""
    with keeping_workers(shared):
        yield shared


@pytest.fixture(scope="module")
def patient(own_cluster: NewCluster) -> tuple[Cluster, Path]:
    """A server whose reads take two milliseconds more while a file is there."""
    cluster = own_cluster(SERVICE, start=False)
    (slow,) = odd_files(cluster, "LA_SLOW_READS")
    cluster.start()
    prepare(cluster)
    with connect(cluster) as connection:
        script(connection, SETUP)
    return cluster, slow


@pytest.fixture
def own(own_cluster: NewCluster) -> Iterator[Cluster]:
    """A cluster for tests that do something to the service."""
    cluster = make(own_cluster)
    yield cluster
    cluster.close()


@pytest.mark.parametrize("preload", [True, False])
def test_without_the_service(own_cluster: NewCluster, preload: bool) -> None:
    conf = {"pg_lookahead.io_workers": "0"} if preload else {}
    cluster = own_cluster(conf, preload=preload)
    with LogWatch(cluster), connect(cluster) as connection:
        script(connection, SETUP)
        connection.execute("LOAD 'pg_lookahead'")
        for query in (
            "SELECT * FROM ios_status()",
            "TABLE pg_stat_lookahead_io",
            "TABLE pg_stat_lookahead_owners",
        ):
            with pytest.raises(psycopg.errors.ObjectNotInPrerequisiteState) as failed:
                connection.execute(query)
            assert failed.value.diag.message_primary == "the I/O service is not running"
            hint = failed.value.diag.message_hint or ""
            assert "shared_preload_libraries" in hint
            assert "pg_lookahead.io_workers" in hint
        assert worker_pids(connection) == []
        # The next best method serves.
        settings(connection, pg_lookahead__method="worker", **INDEX_SCANS)
        settings(connection, pg_lookahead__start_after=0)
        assert value(connection, "SELECT method FROM pg_lookahead_status()") == "advice"
        cold(connection, "served")
        with gained(connection) as change:
            assert rows(connection, SCAN) == ALL_ROWS
        assert change.blocks_issued > 0
    cluster.close()


def test_default_number_of_workers(own_cluster: NewCluster, server: Server) -> None:
    """Two, or none where the server reads ahead itself; the setting tells no lie."""
    cluster = own_cluster()
    with connect(cluster) as connection:
        expected = 2 if server.major < 18 else 0
        if expected:
            all_up(connection)
        assert len(worker_pids(connection)) == expected
        assert value(connection, "SHOW pg_lookahead.io_workers") in ("-1", str(expected))
    cluster.close()


def test_many_workers(own_cluster: NewCluster) -> None:
    cluster = own_cluster(
        {"pg_lookahead.io_workers": "7", "shared_buffers": "4MB", "max_worker_processes": "16"}
    )
    with LogWatch(cluster), connect(cluster) as connection:
        script(connection, SETUP)
        until(connection, "(SELECT count(pid) = 7 FROM pg_stat_lookahead_io)")
        scan_cold(connection)
        assert status(connection)["ios_worker_num"] == 7
    cluster.close()


@pytest.mark.parametrize(("workers", "megabytes"), [(16, 16), (2, 1)])
def test_rings_are_a_part_of_shared_buffers(
    own_cluster: NewCluster, workers: int, megabytes: int
) -> None:
    """However many workers there are, and however much they are to have."""
    cluster = own_cluster(
        {"pg_lookahead.io_workers": str(workers), "shared_buffers": f"{megabytes}MB",
         "max_worker_processes": "24", "pg_lookahead.ring_size": "1GB"}
    )  # fmt: skip
    ready = f"count(*) = {workers} AND min(ring_blocks) > 0 FROM pg_stat_lookahead_io"
    with LogWatch(cluster), connect(cluster) as connection:
        until_served(connection)
        until(connection, ready)
        rings = "SELECT sum(ring_blocks), max(ring_blocks) FROM pg_stat_lookahead_io"
        [(together, largest)] = rows(connection, rings)
        assert together <= megabytes * 128 / 2
        # What the server makes of any ring.
        assert largest <= megabytes * 128 / 8
    cluster.close()


def test_fewer_processes_than_workers(own_cluster: NewCluster) -> None:
    """Those that max_worker_processes leaves no room for are missing; the rest serve."""
    cluster = own_cluster(
        {
            "pg_lookahead.io_workers": "4",
            "max_worker_processes": "2",
            "pg_lookahead.max_requests_per_worker": "1024",
        }
    )
    with connect(cluster) as connection:
        script(connection, SETUP)
        scan_cold(connection)
        pids = rows(connection, "SELECT pid FROM pg_stat_lookahead_io WHERE pid IS NOT NULL")
        assert 1 <= len(pids) < 4
        assert status(connection)["ios_worker_num"] == len(pids)
        settle(connection)
        # They do the part of those that are missing.
        found = status(connection)
        assert found["io_requests"] == found["io_dispatched"] > 0, found
    cluster.close()


# ---------------------------------------------------------------------------
# Queues


def test_full_queue(own_cluster: NewCluster) -> None:
    cluster = make(own_cluster, pg_lookahead__max_requests_per_worker="16")
    with LogWatch(cluster), connect(cluster) as connection:
        serving(connection)
        cold(connection, "served")
        settle(connection)
        before = io(connection)
        # A DDL command would wait for its locks, and signals: nothing but the scan.
        with stopped(worker_pids(connection)):
            with gained(connection) as change:
                assert rows(connection, SCAN) == ALL_ROWS
            during = io(connection)
        assert during.dropped > before.dropped
        # The kernel is advised of what no queue has taken.
        assert change.blocks_dropped == 0
        assert change.blocks_issued > 0
        assert 16 <= during.depth <= 16 * WORKERS
        assert during.done == before.done
        settle(connection)
        after = io(connection)
        assert after.depth == 0
        # The scan has ended: what was queued for it is void.
        assert after.stale > before.stale
        assert after.read - before.read <= 128 * WORKERS
        scan_cold(connection)
    cluster.close()


def test_scan_that_goes_elsewhere(own: Cluster) -> None:
    """What it has asked for in one round of a nested loop does not hold up the next."""
    query = """
    SELECT s.a, length(s.filler) FROM generate_series(0, 2) g,
     LATERAL (SELECT a, filler FROM served WHERE a > g * 2000 ORDER BY a LIMIT 50) s
    """
    with LogWatch(own), connect(own) as connection:
        serving(connection)
        require_node(connection, query, "Index Scan", "served_a")
        cold(connection, "served")
        settle(connection)
        before = io(connection)
        connection.execute(f"BEGIN; DECLARE c CURSOR FOR {query}")
        with stopped(worker_pids(connection)):
            found = rows(connection, "FETCH 110 FROM c")
            during = io(connection)
        assert during.done == before.done
        settle(connection)
        after = io(connection)
        # The scan has not ended: these are of the rounds before.
        assert after.stale > before.stale
        assert after.read > before.read
        found += rows(connection, "FETCH ALL FROM c")
        connection.execute("COMMIT")
        assert found == [(g * 2000 + i, 120) for g in range(3) for i in range(1, 51)]
        settle(connection)


def test_one_worker_stopped(own: Cluster) -> None:
    """The other goes on, and nobody waits."""
    with LogWatch(own), connect(own) as connection:
        serving(connection)
        cold(connection, "served")
        settle(connection)
        [first, _] = worker_pids(connection)
        before = io(connection)
        with stopped([first]):
            # What a scan has asked for that has ended is not read any more.
            connection.execute(f"BEGIN; DECLARE c CURSOR FOR {SCAN}")
            found = rows(connection, "FETCH 100 FROM c")
            until(
                connection, f"(SELECT sum(blocks_read) > {before.read} FROM pg_stat_lookahead_io)"
            )
            assert found + rows(connection, "FETCH ALL FROM c") == ALL_ROWS
            connection.execute("COMMIT")
        settle(connection)


def test_more_scans_than_slots(cluster: Cluster) -> None:
    """Index scans that find none are advised, and leave some to others; all give their rows."""
    with connect(cluster) as connection, connect(cluster) as other, contextlib.ExitStack() as stack:
        settings(connection, jit="off", max_parallel_workers_per_gather=0)
        # A row to a page.
        connection.execute(
            """
            DO $$
            BEGIN
                FOR i IN 1..140 LOOP
                    EXECUTE format('CREATE TABLE slot_%1$s (a int, f text)', i);
                    EXECUTE format('ALTER TABLE slot_%1$s ALTER f SET STORAGE plain', i);
                    EXECUTE format('INSERT INTO slot_%1$s SELECT g, repeat(''x'', 5000)'
                                   ' FROM generate_series(1, 12) g', i);
                    EXECUTE format('CREATE INDEX ON slot_%1$s (a)', i);
                    EXECUTE format('ALTER TABLE slot_%1$s SET TABLESPACE elsewhere', i);
                END LOOP;
            END $$
            """
        )
        unserved = "SELECT scans_unserved FROM pg_lookahead_status()"
        before = value(connection, unserved)
        connection.execute("SELECT pg_stat_lookahead_reset()")
        sessions = [stack.enter_context(connect(cluster)) for _ in range(4)]
        for session in sessions:
            serving(session)
            session.execute("BEGIN")
        for i in range(1, 141):
            session = sessions[i % 4]
            query = f"SELECT a FROM slot_{i} WHERE f <> '' ORDER BY a"
            session.execute(f"DECLARE c{i} CURSOR FOR {query}")
            assert rows(session, f"FETCH 3 FROM c{i}") == [(1,), (2,), (3,)]
            if i % 16 == 0:
                # A worker that has much to read makes no owners.
                settle(other)
        assert value(connection, "SELECT count(*) FROM pg_stat_lookahead_owners") == 128 - 32
        assert value(connection, unserved) == before
        for i in (140, 1, 128, 129):
            assert rows(sessions[i % 4], f"FETCH ALL FROM c{i}") == [(n,) for n in range(4, 13)]
        for session in sessions:
            session.execute("COMMIT")
        issued = "SELECT blocks_issued FROM pg_stat_lookahead WHERE relname = 'slot_140'"
        assert value(connection, issued) > 0
        assert value(connection, "SELECT count(*) FROM pg_stat_lookahead_owners") == 0
        scan_cold(connection)


PARTITIONS = 120


@pytest.fixture
def parted(cluster: Cluster) -> Cluster:
    """A table of many partitions, with a row to a page."""
    with connect(cluster) as connection:
        if value(connection, "SELECT to_regclass('parted')") is not None:
            return cluster
        connection.execute("CREATE TABLE parted (a int, f text) PARTITION BY RANGE (a)")
        connection.execute(
            f"""
            DO $$
            BEGIN
                FOR i IN 0..{PARTITIONS - 1} LOOP
                    EXECUTE format('CREATE TABLE part_%1$s PARTITION OF parted'
                                   ' FOR VALUES FROM (%2$s) TO (%3$s)', i, i * 12, i * 12 + 12);
                    EXECUTE format('ALTER TABLE part_%1$s ALTER f SET STORAGE plain', i);
                END LOOP;
                INSERT INTO parted
                SELECT g, repeat('x', 5000) FROM generate_series(0, {PARTITIONS} * 12 - 1) g;
                CREATE INDEX ON parted (a);
            END $$
            """
        )
    return cluster


def cold_partitions(connection: Connection) -> None:
    cold(connection, *(f"part_{i}" for i in range(PARTITIONS)))


def test_scans_that_are_over_keep_nothing(parted: Cluster) -> None:
    """Of a plan with many partitions only the scan that runs has a slot of the service."""
    with connect(parted) as connection, connect(parted) as other:
        settings(connection, jit="off", max_parallel_workers_per_gather=0, enable_sort="off")
        cold_partitions(connection)
        serving(connection, enable_mergejoin="off")
        query = "SELECT a FROM parted WHERE f <> '' ORDER BY a"
        require_node(connection, query, "Index Scan")
        last = PARTITIONS * 12 - 4
        with gained(connection) as change, connection.transaction():
            connection.execute(f"DECLARE c CURSOR FOR {query}")
            assert rows(connection, f"FETCH {last} FROM c") == [(n,) for n in range(last)]
            owners = value(other, "SELECT count(*) FROM pg_stat_lookahead_owners")
            assert owners <= 2, owners
            assert rows(connection, "FETCH BACKWARD 30 FROM c") == [
                (n,) for n in range(last - 2, last - 32, -1)
            ]
            assert len(rows(connection, "FETCH ALL FROM c")) == 34
        assert change.scans >= PARTITIONS
        assert change.blocks_issued > PARTITIONS


# The first is told that its last row was the last; of one with a filter the next one finds out.
@pytest.mark.parametrize("more", ["", "AND f <> ''", "AND a % 12 < 3"])
def test_bitmap_scans_that_are_over_keep_nothing(parted: Cluster, more: str) -> None:
    with connect(parted) as connection, connect(parted) as other:
        settings(connection, jit="off", max_parallel_workers_per_gather=0)
        cold_partitions(connection)
        serving(connection, enable_indexscan="off", enable_bitmapscan="on")
        query = f"SELECT a FROM parted WHERE a >= 0 {more}"
        require_node(connection, query, "Bitmap Heap Scan")
        expected = rows_without(connection, query)
        cold_partitions(connection)
        with gained(connection) as change, connection.transaction():
            connection.execute(f"DECLARE c CURSOR FOR {query}")
            last = len(expected) - 2
            assert rows(connection, f"FETCH {last} FROM c") == expected[:last]
            owners = value(other, "SELECT count(*) FROM pg_stat_lookahead_owners")
            assert owners <= 4, owners
            assert rows(connection, "FETCH ALL FROM c") == expected[last:]
        assert change.scans >= PARTITIONS
        assert change.blocks_issued > PARTITIONS


def test_reload(own: Cluster) -> None:
    ring = "SELECT max(ring_blocks) FROM pg_stat_lookahead_io"
    with LogWatch(own), connect(own) as connection:
        serving(connection)
        assert value(connection, ring) == 256
        stop = threading.Event()
        failures: list[BaseException] = []

        def scan() -> None:
            try:
                with connect(own) as other:
                    serving(other)
                    while not stop.is_set():
                        assert rows(other, SCAN) == ALL_ROWS
            except BaseException as error:
                failures.append(error)

        thread = threading.Thread(target=scan)
        thread.start()
        try:
            for size, blocks in (("1MB", 64), ("2MB", 128), ("64MB", 256), ("1MB", 64)):
                connection.execute(f"ALTER SYSTEM SET pg_lookahead.ring_size = '{size}'")
                connection.execute("ALTER SYSTEM SET pg_lookahead.io_batch_size = 1")
                value(connection, "SELECT pg_reload_conf()")
                until(connection, f"({ring}) = {blocks}")
                cold(connection, "served")
        finally:
            stop.set()
            thread.join()
        assert not failures
        # io_batch_size = 1: a read is a block.
        settle(connection)
        before = io(connection)
        scan_by_workers(connection)
        after = io(connection)
        assert after.read - before.read == after.reads - before.reads > 0
        # A setting that needs a restart is not taken over.
        with LogWatch(own, allowed=["cannot be changed without restarting"]):
            connection.execute("ALTER SYSTEM SET pg_lookahead.io_workers = 5")
            value(connection, "SELECT pg_reload_conf()")
            time.sleep(0.3)
            assert len(worker_pids(connection)) == WORKERS


# ---------------------------------------------------------------------------
# Workers that end


def test_terminated_worker_comes_back(own: Cluster) -> None:
    allowed = ["terminating background worker|exited with exit code 1"]
    with LogWatch(own, allowed=allowed), connect(own) as connection:
        serving(connection)
        for pid in worker_pids(connection):
            connection.execute(f"BEGIN; DECLARE c CURSOR FOR {SCAN}")
            found = rows(connection, "FETCH 100 FROM c")
            assert value(connection, "SELECT pg_terminate_backend(%s, 60000)", (pid,))
            found += rows(connection, "FETCH ALL FROM c")
            assert found == ALL_ROWS
            connection.execute("COMMIT")
            all_up(connection)
            assert pid not in worker_pids(connection)
            settle(connection)
            before = io(connection)
            scan_cold(connection)
            settle(connection)
            assert io(connection).done > before.done
        # A query's cancel is nothing to them.
        pids = worker_pids(connection)
        for pid in pids:
            value(connection, "SELECT pg_cancel_backend(%s)", (pid,))
        scan_cold(connection)
        assert worker_pids(connection) == pids


def test_all_workers_gone(own: Cluster) -> None:
    """Until they are back another method serves, or none."""
    allowed = ["terminating background worker|exited with exit code 1"]
    with LogWatch(own, allowed=allowed), connect(own) as connection:
        serving(connection)
        cold(connection, "served")
        for pid in worker_pids(connection):
            value(connection, "SELECT pg_terminate_backend(%s, 60000)", (pid,))
        assert rows(connection, SCAN) == ALL_ROWS
        all_up(connection)
        scan_cold(connection)


@pytest.mark.parametrize("how", ["kill", "immediate", "fast"])
def test_busy_when_the_server_goes(own_cluster: NewCluster, how: str) -> None:
    cluster = make(own_cluster, restart_after_crash="on")
    with LogWatch(cluster, allowed=[CRASH]) as log:
        for n in (1, 2):
            with connect(cluster) as connection:
                all_up(connection)
                pids = worker_pids(connection)
            thread, stop, failures = endless(cluster)
            began = time.monotonic()
            if how == "kill":
                signal_backend(random.Random(seed()).choice(pids), "KILL")
                wait_until_back(cluster, log, n)
            else:
                cluster.restart(how)
            assert time.monotonic() - began < 60
            stop.set()
            thread.join(60)
            assert not thread.is_alive()
            assert not failures
            with connect(cluster) as connection:
                all_up(connection)
                assert not set(pids) & set(worker_pids(connection))
                assert rows(connection, "TABLE pg_stat_lookahead_owners") == []
                scan_cold(connection)
    cluster.close()


# ---------------------------------------------------------------------------
# In nobody's way


def test_drop_database(cluster: Cluster) -> None:
    """Whether its workers rest or have just read in that database."""
    with connect(cluster) as connection:
        settings(connection, statement_timeout="40s")
        for i in range(6):
            connection.execute("CREATE DATABASE doomed")
            with connect(cluster, "doomed") as other:
                script(other, "CREATE EXTENSION pg_lookahead;" + SETUP)
                serving(other)
                other.execute("CHECKPOINT")
                cold(other, "served")
                with gained(other) as change:
                    assert len(rows(other, f"{SCAN} LIMIT {100 + 900 * i}")) == 100 + 900 * i
            if i % 2:
                settle(connection)
            until_left(connection, "doomed")
            began = time.monotonic()
            connection.execute("DROP DATABASE doomed")
            assert time.monotonic() - began < 35
            assert change.blocks_issued > 0
        settle(connection)
        assert io(connection).errors == 0


def test_database_in_another_tablespace(cluster: Cluster) -> None:
    with connect(cluster) as connection:
        settings(connection, statement_timeout="20s")
        connection.execute("CREATE DATABASE mover")
        for place in ("elsewhere", "pg_default") * 2:
            with connect(cluster, "mover") as other:
                if value(other, "SELECT to_regclass('served')") is None:
                    script(other, "CREATE EXTENSION pg_lookahead;" + SETUP)
                serving(other)
                assert rows(other, SCAN) == ALL_ROWS
                assert len(rows(other, f"{SCAN} LIMIT 300")) == 300
            for _ in range(100):
                # The session that was closed may not have ended yet.
                with contextlib.suppress(psycopg.errors.ObjectInUse):
                    connection.execute(f"ALTER DATABASE mover SET TABLESPACE {place}")
                    break
                time.sleep(0.05)
            else:
                pytest.fail("the workers do not leave the database")
            moved = (
                "SELECT spcname FROM pg_database d JOIN pg_tablespace t"
                " ON t.oid = d.dattablespace WHERE datname = 'mover'"
            )
            assert value(connection, moved) == place
        connection.execute("DROP DATABASE mover")
        settle(connection)
        assert io(connection).errors == 0


def test_ddl_does_not_wait(cluster: Cluster) -> None:
    """Not for a scan that has ended, whose requests are void."""
    with connect(cluster) as connection:
        serving(connection, lock_timeout="20s")
        for statement in (
            "TRUNCATE ddl",
            "DROP TABLE ddl",
            "ALTER TABLE ddl ALTER filler TYPE varchar",
            "VACUUM FULL ddl",
            "CLUSTER ddl USING ddl_a",
            "REINDEX TABLE ddl",
            "ALTER TABLE ddl SET TABLESPACE elsewhere",
        ):
            script(connection, SETUP.replace("served", "ddl"))
            cold(connection, "ddl")
            query = SCAN.replace("served", "ddl")
            with gained(connection) as change:
                assert len(rows(connection, f"{query} LIMIT 800")) == 800
            assert change.blocks_issued > 0
            connection.execute(statement)
            # In the same transaction, too: the session's own scan asks no more.
            script(connection, "DROP TABLE IF EXISTS ddl;" + SETUP.replace("served", "ddl"))
            with connection.transaction():
                assert len(rows(connection, f"{query} LIMIT 800")) == 800
                if statement != "VACUUM FULL ddl":
                    connection.execute(statement.replace("REINDEX", "LOCK"))
            connection.execute("DROP TABLE IF EXISTS ddl")
        settle(connection)
        assert io(connection).errors == 0


def test_somebody_waits_for_the_table(cluster: Cluster) -> None:
    """Workers take no lock that goes before one that is waited for."""
    with connect(cluster) as connection, connect(cluster) as other, connect(cluster) as third:
        serving(connection, pg_lookahead__leafscan="off")
        cold(connection, "served")
        connection.execute(f"BEGIN; DECLARE c CURSOR FOR {SCAN}")
        found = rows(connection, "FETCH 50 FROM c")
        settle(connection)
        before = io(connection)
        refused = f"(SELECT sum(locked) > {before.locked} FROM pg_stat_lookahead_io)"
        thread = threading.Thread(target=script, args=(other, "BEGIN; LOCK TABLE served; COMMIT"))
        thread.start()
        until(third, "(SELECT count(*) = 1 FROM pg_locks WHERE NOT granted)")
        with gained(connection) as change:
            found += rows(connection, "FETCH 300 FROM c")
            # Its requests come to the workers while it is open, who cannot serve them.
            until(third, refused)
            found += rows(connection, "FETCH ALL FROM c")
            settle(third)
            assert io(third).read == before.read
            connection.execute("COMMIT")
        thread.join(60)
        assert not thread.is_alive()
        assert change.blocks_issued > 0
        assert found == ALL_ROWS
        scan_cold(connection)


IMPATIENT = {
    "nowait": "LOCK TABLE served IN ACCESS EXCLUSIVE MODE NOWAIT",
    "timeout": "SET LOCAL lock_timeout = '200ms'; LOCK TABLE served IN ACCESS EXCLUSIVE MODE",
    "skip": "VACUUM (FULL, SKIP_LOCKED) served",
}


# So long workers are waited for; seconds.
PATIENCE = 0.1


def has_lock(connection: Connection, statement: str) -> bool:
    """Have a statement take its lock, or fail after it has waited for the workers."""
    start = time.monotonic()
    try:
        script(connection, statement)
    except psycopg.errors.LockNotAvailable:
        assert time.monotonic() - start >= PATIENCE
        return False
    return True


@pytest.mark.thorough
@pytest.mark.parametrize("how", IMPATIENT)
@pytest.mark.parametrize("whose", ["own", "another's"])
def test_lock_that_is_not_waited_for(patient: tuple[Cluster, Path], whose: str, how: str) -> None:
    """Not that of a worker that reads for a cursor of this session, or for one that is closed."""
    if how == "skip" and whose == "own":
        pytest.skip("VACUUM runs outside of transactions")
    cluster, slow = patient
    with connect(cluster) as connection, connect(cluster) as other:
        serving(connection, pg_lookahead__leafscan="off")
        settings(other, client_min_messages="warning")
        issued = had = 0
        for _ in range(10):
            slow.unlink(missing_ok=True)
            cold(connection, "served")
            slow.touch()
            file = value(connection, "SELECT pg_relation_filenode('served')")
            with gained(connection) as change:
                connection.execute(f"BEGIN; DECLARE c CURSOR FOR {SCAN}")
                found = rows(connection, "FETCH 50 FROM c")
                if whose == "own":
                    connection.execute("SAVEPOINT s")
                    if has_lock(connection, IMPATIENT[how]):
                        had += 1
                    else:
                        connection.execute("ROLLBACK TO s")
                    found += rows(connection, "FETCH ALL FROM c")
                    assert found == ALL_ROWS
                connection.execute("COMMIT")
                if how == "skip":
                    start = time.monotonic()
                    other.execute(IMPATIENT[how])
                    took = time.monotonic() - start
                    has_it = value(connection, "SELECT pg_relation_filenode('served')") != file
                    assert has_it or took >= PATIENCE
                    had += has_it
                elif whose != "own":
                    had += has_lock(other, f"BEGIN; {IMPATIENT[how]}")
                    other.execute("ROLLBACK")
            issued += change.blocks_issued
        assert issued > 0
        # A worker may get no processor for as long.
        assert had >= 8


PARENT = """
CREATE TABLE parent (LIKE served) PARTITION BY LIST (a);
ALTER TABLE parent ATTACH PARTITION served DEFAULT
"""

# What has to be there before, what locks the table as it writes to none, and what takes that away.
LOCKING = {
    "policy": ("", "CREATE POLICY p ON served", ""),
    "policy altered": (
        "CREATE POLICY p ON served", "ALTER POLICY p ON served TO public", "DROP POLICY p ON served"
    ),
    "rule": ("", "CREATE RULE r AS ON DELETE TO served DO NOTHING", ""),
    "partition": (
        PARENT,
        "CREATE TABLE other PARTITION OF parent FOR VALUES IN (-1)",
        "ALTER TABLE parent DETACH PARTITION served; DROP TABLE parent",
    ),
}  # fmt: skip


@pytest.mark.thorough
@pytest.mark.parametrize("name", LOCKING)
def test_ddl_waits_for_workers_first(patient: tuple[Cluster, Path], name: str) -> None:
    """Before it asks for its lock: with a worker that does not go on it takes twice as long."""
    cluster, slow = patient
    before, statement, after = LOCKING[name]
    held = (
        "SELECT pid FROM pg_locks JOIN pg_stat_activity USING (pid)"
        " WHERE backend_type = 'pg_lookahead io worker' AND relation = 'served'::regclass"
    )
    took = None
    with connect(cluster) as connection, connect(cluster) as other:
        serving(connection, pg_lookahead__leafscan="off")
        slow.unlink(missing_ok=True)
        script(other, before)
        for _ in range(20):
            slow.unlink(missing_ok=True)
            cold(connection, "served")
            slow.touch()
            connection.execute(f"BEGIN; DECLARE c CURSOR FOR {SCAN}")
            rows(connection, "FETCH 50 FROM c")
            stopped = [int(pid) for (pid,) in rows(other, held)]
            for pid in stopped:
                os.kill(pid, signal.SIGSTOP)
            connection.execute("COMMIT")
            try:
                if not rows(other, held):
                    continue
                start = time.monotonic()
                with pytest.raises(psycopg.errors.LockNotAvailable):
                    script(other, f"BEGIN; SET LOCAL lock_timeout = '50ms'; {statement}")
                took = time.monotonic() - start
                break
            finally:
                for pid in stopped:
                    os.kill(pid, signal.SIGCONT)
                other.execute("ROLLBACK")
        slow.unlink(missing_ok=True)
        script(other, after)
    assert took is not None
    assert took >= 0.095


def test_owner_ends_before_its_lock(cluster: Cluster) -> None:
    """However a scan ends, nothing may be read for it once its lock is gone."""
    owners = "SELECT count(*) FROM pg_stat_lookahead_owners"
    begin = f"BEGIN; DECLARE c CURSOR FOR {SCAN}"
    with connect(cluster) as connection, connect(cluster) as other:
        serving(connection)
        for end in ("COMMIT", "ROLLBACK", "CLOSE c", "SELECT 1 / 0", "SELECT pg_sleep(9)"):
            cold(connection, "served")
            connection.execute(begin)
            assert rows(connection, "FETCH 50 FROM c") == ALL_ROWS[:50]
            assert value(other, owners) == 1
            with contextlib.suppress(psycopg.errors.DivisionByZero, psycopg.errors.QueryCanceled):
                if "sleep" in end:
                    # The abort takes it back.
                    connection.execute("SET LOCAL statement_timeout = '100ms'")
                connection.execute(end)
            assert value(other, owners) == 0, end
            connection.execute("ROLLBACK" if end not in ("COMMIT", "ROLLBACK") else "SELECT 1")
        gone = connect(cluster)
        serving(gone)
        gone.execute(begin)
        rows(gone, "FETCH 50 FROM c")
        gone.close()
        until(other, f"({owners}) = 0")


FAILING_BODY = f"""
DO $$DECLARE r record; n int := 0;
BEGIN
    FOR r IN {SCAN} LOOP
        BEGIN
            n := n + r.a / 0;
        EXCEPTION WHEN division_by_zero THEN
            n := n + 1;
        END;
    END LOOP;
    ASSERT n = {len(ALL_ROWS)};
END$$
"""


def test_subtransactions_that_fail(cluster: Cluster) -> None:
    """What was asked for a scan stays asked for if it has begun outside of them."""
    with connect(cluster) as connection:
        serving(connection)
        # Workers that are late find that the scan is over.
        for _ in range(5):
            cold(connection, "served")
            before = io(connection)
            with gained(connection) as change:
                connection.execute(FAILING_BODY)
            settle(connection)
            assert change.blocks_issued > 0
            after = io(connection)
            if after.stale - before.stale < (after.requests - before.requests) / 4:
                break
        else:
            raise AssertionError((before, after))
        # One that has begun inside, whose lock goes.
        cold(connection, "served")
        connection.execute(f"BEGIN; SAVEPOINT s; DECLARE c CURSOR FOR {SCAN}")
        rows(connection, "FETCH 50 FROM c")
        assert value(connection, "SELECT count(*) FROM pg_stat_lookahead_owners") > 0
        connection.execute("ROLLBACK TO s")
        assert value(connection, "SELECT count(*) FROM pg_stat_lookahead_owners") == 0
        # One that fails inside, and whose locks go, too.
        connection.execute("ROLLBACK")
        cold(connection, "served")
        failing = SCAN.replace("SELECT a", "SELECT a / nullif(a - 400, 0), 1 / (a - 500)")
        connection.execute(f"BEGIN; DECLARE c CURSOR FOR {failing}")
        rows(connection, "FETCH 50 FROM c")
        assert value(connection, "SELECT count(*) FROM pg_stat_lookahead_owners") > 0
        connection.execute("SAVEPOINT s")
        with pytest.raises(psycopg.errors.DivisionByZero):
            connection.execute("FETCH ALL FROM c")
        connection.execute("ROLLBACK TO s")
        assert value(connection, "SELECT count(*) FROM pg_stat_lookahead_owners") == 0
        connection.execute("ROLLBACK")


def test_statement_that_executes_itself(cluster: Cluster) -> None:
    """What EXECUTE runs is not looked for: that might have no end."""
    with connect(cluster) as connection:
        connection.execute("SET lock_timeout = '1s'; SET max_stack_depth = '200kB'")
        pgconn = connection.pgconn
        pgconn.prepare(b"x", b"EXECUTE x")
        result = pgconn.exec_prepared(b"x", [])
        assert b"stack depth limit exceeded" in result.error_message


def test_vacuum_and_truncation(cluster: Cluster) -> None:
    """Pages that VACUUM freezes and cuts off right behind a scan, again and again."""
    with connect(cluster) as connection, connect(cluster) as other:
        script(other, SETUP.replace("served", "shrinking"))
        serving(connection)
        settings(other, statement_timeout="20s")
        query = SCAN.replace("served", "shrinking")
        count = 6000
        for _ in range(8):
            cold(other, "shrinking")
            assert len(rows(connection, f"{query} LIMIT 700")) == 700
            other.execute("DELETE FROM shrinking WHERE (ctid::text::point)[0] > 60")
            size = value(other, "SELECT pg_relation_size('shrinking')")
            assert rows(connection, query)
            other.execute("VACUUM (FREEZE, TRUNCATE on) shrinking")
            assert value(other, "SELECT pg_relation_size('shrinking')") < size
            kept = rows(connection, query)
            assert 0 < len(kept) < count
            other.execute(
                "INSERT INTO shrinking SELECT i, 0, repeat('x', 120)"
                " FROM generate_series(1, 6000) i WHERE NOT EXISTS"
                " (SELECT FROM shrinking WHERE a = i) ORDER BY md5(i::text)"
            )
            assert rows(connection, query) == ALL_ROWS
        other.execute("DROP TABLE shrinking")
        settle(connection)
        assert io(connection).errors == 0


# ---------------------------------------------------------------------------
# Damage

LOGGED = re.compile(r"LOG:  could not read ahead blocks (\d+) to (\d+) of relation (\d+)")


# Relations of which a failure is logged within a minute.
LOGGED_AT_ONCE = 16


def damaged(cluster: Cluster, how: str) -> tuple[int, int]:
    """Damage a block in the middle, or cut the file; return the key before it, and the oid.

    Rows of this table are in the order of their keys, so that a scan from 1
    meets the damage behind that key.
    """
    with connect(cluster) as connection:
        connection.execute(
            "CREATE TABLE damaged (a int, filler text)"
            " WITH (fillfactor = 20, autovacuum_enabled = off);"
            "INSERT INTO damaged SELECT i, repeat('x', 120) FROM generate_series(1, 3000) i;"
            "CREATE INDEX damaged_a ON damaged (a); ANALYZE damaged"
        )
        path = cluster.data / value(connection, "SELECT pg_relation_filepath('damaged')")
        oid = value(connection, "SELECT 'damaged'::regclass::oid")
        bad = 100
        last = value(connection, f"SELECT max(a) FROM damaged WHERE (ctid::text::point)[0] < {bad}")
        connection.execute("CHECKPOINT")
    cluster.stop()
    if how == "checksum":
        spoil(path, bad)
    else:
        _cut(path, bad)
    cluster.start()
    return last, oid


def _cut(path: Path, blocks: int) -> None:
    with path.open("r+b") as file:
        file.truncate(blocks * 8192)


SHARED_FAILURES = "SELECT coalesce(sum(checksum_failures), 0) FROM pg_stat_database WHERE datid = 0"
DAMAGED = "SELECT a, length(filler) FROM damaged WHERE a > 0 ORDER BY a"
EXPECTED = r"page verification failed|invalid page|could not read block|zeroing|checksum"


@pytest.mark.parametrize("how", ["checksum", "short"])
def test_damage(own: Cluster, how: str) -> None:
    """Logged once, counted, and seen by nobody who does not need the block."""
    last, oid = damaged(own, how)
    taken = last - 10
    early = f"SELECT * FROM ({DAMAGED} OFFSET 0) t WHERE a > 0 AND length <> 7 LIMIT {taken}"
    notices: list[str | None] = []
    with LogWatch(own, allowed=[EXPECTED]) as log, connect(own) as connection:
        connection.add_notice_handler(lambda d: notices.append(d.message_primary))
        serving(connection)
        require_node(connection, DAMAGED, "Index Scan", "damaged_a")
        # On a busy machine the query may be over before a worker gets to it.
        for turn in range(100):
            with gained(connection) as change:
                assert rows(connection, early) == [(i, 120) for i in range(1, taken + 1)]
            assert not change.errors
            settle(connection)
            if turn >= 3 and io(connection).errors > 0:
                break
        assert not notices
        assert io(connection).errors >= 1
        found = LOGGED.findall(log.text())
        assert len(found) == 1
        # Of a file cut short every later block is missing: whichever is read first is named.
        first, end = int(found[0][0]), int(found[0][1])
        assert end >= 100 and (how == "short" or first <= 100)
        assert int(found[0][2]) == oid
        assert "A query that needs these blocks reads them itself." in log.text()
        # The service lives, and serves others.
        assert len(worker_pids(connection)) == WORKERS
        scan_cold(connection)

        # Who needs it hears of it as ever.
        errors = []
        for enabled in ("off", "on"):
            settings(connection, pg_lookahead__enabled=enabled)
            with pytest.raises(psycopg.Error) as failed:
                rows(connection, DAMAGED)
            errors.append((failed.value.sqlstate, failed.value.diag.message_primary))
        assert errors[0] == errors[1]
        # Workers are of no database: it is no damage of the relations that all share.
        assert value(connection, SHARED_FAILURES) == 0


def test_damage_everywhere(own: Cluster) -> None:
    """Of many relations that cannot be read not every one is logged: a disk may be gone."""
    tables = [f"damaged_{i}" for i in range(LOGGED_AT_ONCE + 4)]
    with connect(own) as connection:
        for table in tables:
            script(
                connection,
                f"CREATE TABLE {table} WITH (fillfactor = 20, autovacuum_enabled = off) AS"
                " SELECT i AS a, repeat('x', 120) AS filler FROM generate_series(1, 600) i;"
                f"CREATE INDEX {table}_a ON {table} (a); ANALYZE {table}",
            )
        paths = [value(connection, "SELECT pg_relation_filepath(%s)", (t,)) for t in tables]
        connection.execute("CHECKPOINT")
    own.stop()
    for path in paths:
        _cut(own.data / path, 20)
    own.start()
    start = time.monotonic()
    with LogWatch(own, allowed=[EXPECTED]) as log, connect(own) as connection:
        serving(connection)
        for table in tables:
            before = io(connection).errors
            query = f"SELECT a FROM {table} WHERE a > 0 AND filler <> '' ORDER BY a"
            require_node(connection, query, "Index Scan", f"{table}_a")
            # Ten rows a block: the last that are there are read for the row 200.
            with connection.transaction():
                connection.execute(f"DECLARE c CURSOR FOR {query}")
                for start_at in range(1, 180, 20):
                    found = rows(connection, "FETCH 20 FROM c")
                    assert found == [(i,) for i in range(start_at, start_at + 20)]
                    settle(connection)
            assert io(connection).errors > before
        logged = LOGGED.findall(log.text())
        minutes = int(time.monotonic() - start) // 60
        assert len({oid for _, _, oid in logged}) >= LOGGED_AT_ONCE
        assert len(logged) <= LOGGED_AT_ONCE * (1 + minutes)


@pytest.mark.parametrize("setting", ["zero_damaged_pages", "ignore_checksum_failure"])
@pytest.mark.parametrize("where", ["file", "session"])
def test_damage_that_is_put_up_with(own: Cluster, server: Server, setting: str, where: str) -> None:
    """The query's own read warns; a worker does not repair a page in silence.

    An index scan would not be looked ahead of: its second scan reads the index.
    """
    last, _ = damaged(own, "checksum")
    query = "SELECT a, length(filler) FROM damaged WHERE a > 0"
    notices: list[str | None] = []
    if where == "file":
        own.configure({**own.conf, setting: "on"})
        own.restart()
    with LogWatch(own, allowed=[EXPECTED]), connect(own) as connection:
        serving(connection, enable_indexscan="off", enable_bitmapscan="on")
        if where == "session":
            connection.execute(f"SET {setting} = on")
        connection.add_notice_handler(lambda d: notices.append(d.message_primary))
        require_node(connection, query, "Bitmap Heap Scan")
        before = io(connection)
        found = rows_by_workers(connection, query, 20)
        assert [a for a, _ in found[:last]] == list(range(1, last + 1))
        assert len(found) < 3000 or setting == "ignore_checksum_failure"
        assert notices, "the page was repaired or accepted in silence"
        # From 18 on the server reads such a scan ahead by itself.
        assert io(connection).requests > before.requests or server.major >= 18
        if where == "file":
            assert io(connection).read == before.read


# ---------------------------------------------------------------------------
# Elsewhere


def test_writing_for_room_fails(own_cluster: NewCluster) -> None:
    """Who reads a page may have to write another one, of anybody's, and that may fail.

    A worker counts it and goes on, without a lock left behind.
    """
    cluster = own_cluster(
        {
            "pg_lookahead.io_workers": str(WORKERS),
            "shared_buffers": "4MB",
            "bgwriter_lru_maxpages": "0",
            "checkpoint_timeout": "1h",
        }
    )
    failing = cluster.dir / "failing"
    query = "SELECT count(f) FROM (SELECT f FROM far ORDER BY a OFFSET 0) t"
    allowed = r"could not write block|Multiple failures|checkpoint request failed"
    with (
        slow_tablespace(cluster, failing=failing),
        LogWatch(cluster, allowed=[allowed]),
        connect(cluster) as connection,
    ):
        script(
            connection,
            "CREATE TABLE far AS SELECT i AS a, repeat('x', 2000) AS f"
            " FROM generate_series(1, 4000) i ORDER BY md5(i::text);"
            "CREATE INDEX far_a ON far (a); VACUUM ANALYZE far;"
            "CREATE TABLE dirty TABLESPACE slow AS SELECT i AS a, repeat('y', 2000) AS f"
            " FROM generate_series(1, 400) i",
        )
        all_up(connection)
        pids = worker_pids(connection)
        serving(connection)
        require_node(connection, query, "Index Scan", "far_a")
        before = io(connection).errors
        # On a busy machine the queries may be over before a worker gets to them.
        for turn in range(50):
            if turn >= 5 and io(connection).errors > before:
                break
            connection.execute("UPDATE dirty SET a = a + 1")
            failing.touch()
            for i in range(10):
                # One row is all that the query needs; more is read ahead.
                few = (
                    f"SELECT a FROM (SELECT a, f FROM far WHERE a > {i * 377}"
                    " ORDER BY a OFFSET 0) t WHERE f <> '' LIMIT 1"
                )
                with contextlib.suppress(psycopg.errors.IoError):
                    assert rows(connection, few) == [(i * 377 + 1,)]
                with contextlib.suppress(psycopg.errors.IoError):
                    assert rows(connection, query) == [(4000,)]
            failing.unlink()
        assert rows(connection, query) == [(4000,)]
        assert io(connection).errors > before
        assert worker_pids(connection) == pids
        connection.execute("SET lock_timeout = '5s'; DROP TABLE far, dirty")


def test_standby(own_cluster: NewCluster, server: Server) -> None:
    primary = make(own_cluster, wal_level="replica", max_wal_senders="5")
    with connect(primary) as connection:
        connection.execute("CHECKPOINT")
    standby = Cluster(server, conf={**CONF, **SERVICE, "hot_standby": "on"})
    with standby_from(primary, standby):
        watch = LogWatch(standby, allowed=[CONFLICT, "terminating"])
        with watch, connect(primary) as changing:
            evict_all(primary, standby)
            with connect(standby) as connection:
                all_up(connection)
                serving(connection)
                before = io(connection)
                with gained(connection) as change:
                    assert rows(connection, SCAN) == ALL_ROWS
                assert change.blocks_issued > 0
                settle(connection)
                assert io(connection).requests > before.requests
            # Replay takes exclusive locks: it does not wait for the service.
            for i in range(5):
                changing.execute("TRUNCATE served")
                changing.execute(
                    "INSERT INTO served SELECT i, 0, repeat('x', 120)"
                    " FROM generate_series(1, 6000) i ORDER BY md5(i::text)"
                )
                caught_up(primary, standby)
                with connect(standby) as connection:
                    serving(connection)
                    assert rows(connection, f"{SCAN} LIMIT 500") == ALL_ROWS[:500]
                    if i % 2:
                        assert rows(connection, SCAN) == ALL_ROWS
            caught_up(primary, standby)
            with connect(standby) as connection:
                settle(connection)
                assert io(connection).errors == 0
    primary.close()


def test_direct_io(own_cluster: NewCluster, server: Server) -> None:
    """What the service is for where the kernel reads nothing ahead."""
    if server.major < 16:
        pytest.skip("direct I/O is of 16 and later")
    try:
        cluster = make(own_cluster, debug_io_direct="data")
    except LookaheadError as error:
        pytest.skip(f"cannot be used here: {error}")
    with LogWatch(cluster), connect(cluster) as connection:
        scan_cold(connection)
        scan_by_workers(connection)
        assert io(connection).read > 0
        settings(connection, pg_lookahead__method="auto")
        if server.major < 18:
            assert value(connection, "SELECT method FROM pg_lookahead_status()") == "worker"
        cold(connection, "served")
        assert rows(connection, SCAN) == ALL_ROWS
    cluster.close()


@pytest.mark.parametrize(
    "symbol",
    [
        "pg_lookahead_status",
        "pg_lookahead_session",
        "pg_lookahead_relations",
        "pg_lookahead_extend",
        "pg_lookahead_ios_status",
        "pg_lookahead_io",
        "pg_lookahead_owners",
    ],
)
def test_functions_of_another_version(cluster: Cluster, symbol: str) -> None:
    """A function that was created with other columns fails; it shows nothing that is shifted."""
    is_one_row = symbol.endswith(("_status", "_session"))
    returned = "record" if is_one_row else "SETOF record"
    with connect(cluster) as connection:
        connection.execute(
            "CREATE FUNCTION of_another_version(OUT a bigint, OUT b bigint)"
            f" RETURNS {returned} LANGUAGE c AS 'pg_lookahead', '{symbol}'"
        )
        try:
            with pytest.raises(psycopg.Error, match="does not have the columns") as raised:
                connection.execute("SELECT * FROM of_another_version()")
            assert raised.value.diag.message_hint is not None
            assert "ALTER EXTENSION pg_lookahead UPDATE" in raised.value.diag.message_hint
        finally:
            connection.execute("DROP FUNCTION of_another_version()")
