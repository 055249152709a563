"""The I/O service: its processes, what it shows, and that it is in nobody's way."""

from __future__ import annotations

import contextlib
import random
import re
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import psycopg
import pytest
from lookahead.cluster import Cluster
from lookahead.errors import LookaheadError
from lookahead.servers import Server

from conftest import CONF, NewCluster
from support import (
    INDEX_SCANS,
    Connection,
    LogWatch,
    Row,
    cold,
    connect,
    gained,
    require_node,
    rows,
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
from test_standby import caught_up, evict_all, standby_from

WORKERS = 2
SERVICE = {"pg_lookahead.io_workers": str(WORKERS), "shared_buffers": "16MB"}
BACKEND_TYPE = "pg_lookahead io worker"
IDLE = ("Extension", "LookaheadWorkerMain")

# In random order, so that each window is many requests.
SETUP = """
CREATE TABLE served (a int, b int, filler text) WITH (fillfactor = 20, autovacuum_enabled = off);
INSERT INTO served SELECT i, i % 10, repeat('x', 120) FROM generate_series(1, 6000) i
 ORDER BY md5(i::text);
CREATE INDEX served_a ON served (a);
VACUUM ANALYZE served
"""

SCAN = "SELECT a, length(filler) FROM served ORDER BY a"
ALL_ROWS = [(i, 120) for i in range(1, 6001)]

STATUS_COLUMNS = (
    "ios_worker_num", "io_requests", "io_dispatched", "avg_io_size_blks",
    "avg_io_request_latency_history", "avg_io_latency_history", "avg_io_request_latency_ps",
    "avg_io_latency_ps", "blks_read_ps", "io_read_ps", "io_queue_depth", "ring_buff_mem",
)  # fmt: skip

# Those of the last status_interval.
RECENT = ("avg_io_request_latency_ps", "avg_io_latency_ps", "blks_read_ps", "io_read_ps")
NOTHING_LATELY = f"({', '.join(RECENT)}) = (0, 0, 0, 0) FROM ios_status()"

# What a crash, and what follows it, may log.
CRASH = (
    r"terminated by signal 9|recovery|not yet accepting|because of crash of another"
    r"|terminating connection|shutting down|starting up|immediate shutdown|terminating"
    r"|unexpected pageaddr"
)


class Io(NamedTuple):
    """The sums of pg_stat_lookahead_io over all workers."""

    requests: int
    merged: int
    dropped: int
    done: int
    stale: int
    locked: int
    passed: int
    hit: int
    read: int
    reads: int
    errors: int
    depth: int


def io(connection: Connection) -> Io:
    names = (
        "requests", "merged", "dropped", "done", "stale", "locked", "blocks_passed",
        "blocks_hit", "blocks_read", "reads", "errors", "queue_depth",
    )  # fmt: skip
    sums = ", ".join(f"sum({name})" for name in names)
    return Io(*map(int, rows(connection, f"SELECT {sums} FROM pg_stat_lookahead_io")[0]))


def status(connection: Connection) -> dict[str, Any]:
    cursor = connection.execute("SELECT * FROM ios_status()")
    assert cursor.description is not None
    assert tuple(column.name for column in cursor.description) == STATUS_COLUMNS
    [row] = cursor.fetchall()
    return dict(zip(STATUS_COLUMNS, row))


def worker_pids(connection: Connection) -> list[int]:
    found = connection.execute(
        "SELECT pid FROM pg_stat_activity WHERE backend_type = %s ORDER BY pid", (BACKEND_TYPE,)
    )
    return [pid for (pid,) in found]


def all_up(connection: Connection) -> None:
    until(connection, f"(SELECT count(pid) = {WORKERS} FROM pg_stat_lookahead_io)")


def serving(connection: Connection, **more: object) -> None:
    settings(connection, **{**INDEX_SCANS, "pg_lookahead.method": "worker", **more})
    until_served(connection)


def make(new: NewCluster, **conf: str) -> Cluster:
    cluster = new({**SERVICE, **{name.replace("__", "."): text for name, text in conf.items()}})
    with connect(cluster) as connection:
        script(connection, SETUP)
        all_up(connection)
    return cluster


@pytest.fixture(scope="module")
def shared(own_cluster: NewCluster) -> Cluster:
    return make(own_cluster)


@pytest.fixture
def cluster(shared: Cluster) -> Iterator[Cluster]:
    """A cluster with the service, whose log stays clean and whose workers live on."""
    with connect(shared) as connection:
        all_up(connection)
        before = worker_pids(connection)
    with LogWatch(shared):
        yield shared
    with connect(shared) as connection:
        settle(connection)
        assert worker_pids(connection) == before


@pytest.fixture
def own(own_cluster: NewCluster) -> Iterator[Cluster]:
    """A cluster for tests that do something to the service."""
    cluster = make(own_cluster)
    yield cluster
    cluster.close()


def scan_cold(connection: Connection) -> None:
    """Look ahead of a scan; its rows must be right."""
    serving(connection)
    require_node(connection, SCAN, "Index Scan", "served_a")
    cold(connection, "served")
    with gained(connection) as change:
        assert rows(connection, SCAN) == ALL_ROWS
    assert change.blocks_issued > 0


def rows_by_workers(connection: Connection, query: str, step: int) -> list[Row]:
    """Fetch in pieces, so that the service reads nearly all, however late its workers are."""
    found = []
    with connection.transaction():
        connection.execute(f"DECLARE c CURSOR FOR {query}")
        while some := rows(connection, f"FETCH {step} FROM c"):
            found += some
            settle(connection)
    return found


def scan_by_workers(connection: Connection) -> None:
    cold(connection, "served")
    assert rows_by_workers(connection, SCAN, 15) == ALL_ROWS


# ---------------------------------------------------------------------------
# What is shown


def test_ios_status(cluster: Cluster) -> None:
    with connect(cluster) as connection:
        serving(connection)
        settle(connection)
        before, io_before = status(connection), io(connection)
        assert before["ios_worker_num"] == WORKERS
        assert before["io_queue_depth"] == 0
        blocks = value(connection, "SELECT sum(ring_blocks) FROM pg_stat_lookahead_io")
        # Four bytes a buffer, and no worker has more than an eighth of them.
        assert before["ring_buff_mem"] == blocks * 4
        assert blocks <= WORKERS * 2048 / 8

        blocks = value(connection, "SELECT pg_relation_size('served') / 8192")
        connection.execute("SELECT pg_stat_force_next_flush()")
        connection.execute("SELECT pg_stat_reset()")
        with gained(connection) as change:
            scan_by_workers(connection)
        connection.execute("SELECT pg_stat_force_next_flush()")
        own = value(
            connection, "SELECT heap_blks_read FROM pg_statio_user_tables WHERE relname = 'served'"
        )
        assert own < blocks * 0.5, "the service has read other blocks than the scan needs"
        after, io_after = status(connection), io(connection)
        requests = after["io_requests"] - before["io_requests"]
        dispatched = after["io_dispatched"] - before["io_dispatched"]
        assert 0 < dispatched <= requests <= change.blocks_issued + change.blocks_dropped
        assert after["io_requests"] == io_after.requests
        assert after["io_dispatched"] == io_after.requests - io_after.dropped
        read = io_after.read - io_before.read
        assert change.blocks_issued * 0.5 < read <= change.blocks_issued
        assert io_after.reads > io_before.reads
        assert 1 <= after["avg_io_size_blks"] <= 128
        assert 0 < after["avg_io_latency_history"] < 1_000_000
        assert after["avg_io_latency_history"] <= after["avg_io_request_latency_history"] * 128


def test_recent_figures(own_cluster: NewCluster) -> None:
    """Per second, whatever the interval is."""
    cluster = make(own_cluster, pg_lookahead__status_interval="200ms")
    with connect(cluster) as connection, connect(cluster) as other:
        serving(connection)
        before, start = io(connection), time.monotonic()
        seen = []
        while time.monotonic() < start + 60:
            cold(connection, "served")
            assert rows(connection, SCAN) == ALL_ROWS
            seen.append(status(other))
            if time.monotonic() > start + 3 and any(one["blks_read_ps"] > 0 for one in seen):
                break
        # In no interval more than in all; each is a fifth of a second or longer.
        read = io(connection).read - before.read
        assert 0 < max(one["blks_read_ps"] for one in seen) <= 5 * read
        assert all(one["io_read_ps"] <= one["blks_read_ps"] for one in seen)
        assert any(one["avg_io_latency_ps"] > 0 for one in seen)
        # What was lately has been, after two intervals without work.
        settle(connection)
        history = status(connection)["avg_io_latency_history"]
        until(connection, NOTHING_LATELY)
        assert status(connection)["avg_io_latency_history"] == history
    cluster.close()


def recent(connection: Connection) -> tuple[int, ...]:
    found = status(connection)
    return tuple(found[name] for name in RECENT)


def test_status_interval(own_cluster: NewCluster) -> None:
    """The recent figures change once an interval, for each worker; the setting can be reloaded."""
    start = time.monotonic()
    cluster = make(own_cluster, pg_lookahead__status_interval="60s")
    with LogWatch(cluster), connect(cluster) as connection, busy(cluster):
        until(connection, "(SELECT sum(blocks_read) > 0 FROM pg_stat_lookahead_io)")
        # No interval has ended yet.
        time.sleep(2.5)
        figures = recent(connection)
        assert figures == (0, 0, 0, 0) or time.monotonic() - start > 55

        def reload(interval: str) -> None:
            connection.execute(f"ALTER SYSTEM SET pg_lookahead.status_interval = '{interval}'")
            value(connection, "SELECT pg_reload_conf()")

        # More often than with intervals of a second.
        reload("100ms")
        start, changes, last = time.monotonic(), 0, recent(connection)
        while changes <= WORKERS * (time.monotonic() - start + 2):
            assert time.monotonic() - start < 30, changes
            time.sleep(0.02)
            figures = recent(connection)
            changes += figures != last
            last = figures

        reload("60s")
        start = since = time.monotonic()
        while time.monotonic() - since < 2.5:
            assert time.monotonic() - start < 30
            time.sleep(0.02)
            figures = recent(connection)
            if figures != last:
                since, last = time.monotonic(), figures
    cluster.close()


def test_recent_figures_of_workers_that_hang(own: Cluster) -> None:
    """They close no interval any more; what they did before is not lately for ever."""
    with LogWatch(own), connect(own) as connection, busy(own):
        for _ in range(50):
            until(connection, "blks_read_ps > 0 FROM ios_status()")
            with stopped(worker_pids(connection)):
                if status(connection)["blks_read_ps"] > 0:
                    until(connection, NOTHING_LATELY, 15)
                    break
        else:
            pytest.fail("the workers were never stopped while they had just worked")
        until(connection, "blks_read_ps > 0 FROM ios_status()")


def test_recent_figures_of_workers_that_are_gone(own: Cluster) -> None:
    allowed = ["terminating background worker|exited with exit code 1"]
    with LogWatch(own, allowed=allowed), connect(own) as connection, busy(own):
        for _ in range(20):
            until(connection, "blks_read_ps > 0 FROM ios_status()")
            for pid in worker_pids(connection):
                value(connection, "SELECT pg_terminate_backend(%s, 5000)", (pid,))
            found = status(connection)
            all_up(connection)
            if found["ios_worker_num"] == 0:
                assert [found[name] for name in RECENT] == [0, 0, 0, 0]
                break
        else:
            pytest.fail("the workers were always back at once")


def test_accounts_of_the_workers(cluster: Cluster) -> None:
    """Every request is done or dropped, every block read, found, passed or given up."""
    with connect(cluster) as connection:
        settle(connection)
        before = io(connection)
        for _ in range(5):
            scan_cold(connection)
            assert len(rows(connection, f"SELECT * FROM ({SCAN}) s LIMIT 400")) == 400
        settle(connection)
        after = io(connection)
        gain = Io(*(b - a for a, b in zip(before, after)))
        assert gain.done == gain.requests - gain.dropped - gain.merged
        assert gain.read >= gain.reads > 0
        assert gain.errors == 0
        assert after.depth == 0
        per_worker = rows(
            connection,
            "SELECT worker, pid, requests, request_time >= 0, read_time > 0, ring_blocks >= 32"
            " FROM pg_stat_lookahead_io ORDER BY worker",
        )
        assert [row[0] for row in per_worker] == list(range(WORKERS))
        assert sorted(row[1] for row in per_worker) == worker_pids(connection)
        # Stripes of the table go to one and the other.
        assert all(row[2] > 0 and row[3] and row[4] and row[5] for row in per_worker)


def test_statistics_of_the_server(cluster: Cluster, server: Server) -> None:
    """The workers hand over what they have read while they run, not when they end."""
    if server.major < 16:
        pytest.skip("pg_stat_io is of 16 and later")
    reads = (
        "(SELECT coalesce(sum(reads), 0) FROM pg_stat_io"
        " WHERE backend_type = 'background worker' AND object = 'relation')"
    )
    with connect(cluster) as connection:
        before = value(connection, f"SELECT {reads}")
        serving(connection)
        scan_by_workers(connection)
        until(connection, f"{reads} > {before}")


def test_activity(cluster: Cluster) -> None:
    with connect(cluster) as connection:
        settle(connection)
        event = "LookaheadWorkerMain" if cluster.server.major >= 17 else "Extension"
        activity = f"FROM pg_stat_activity WHERE backend_type = '{BACKEND_TYPE}'"
        # A worker without work wakes now and then, to close what it has open.
        until(
            connection,
            f"(SELECT count(*) {activity} AND wait_event_type = 'Extension'"
            f" AND wait_event = '{event}') = {WORKERS}",
        )
        found = rows(connection, f"SELECT datid, coalesce(query, '') {activity}")
        assert found == [(None, "")] * WORKERS
        # Nothing is kept between requests.
        locks = "SELECT count(*) FROM pg_locks WHERE pid = ANY (%s)"
        assert value(connection, locks, (worker_pids(connection),)) == 0


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


def test_privileges(cluster: Cluster) -> None:
    queries = (
        "SELECT * FROM ios_status()",
        "SELECT * FROM pg_lookahead_io()",
        "SELECT * FROM pg_lookahead_owners()",
        "TABLE pg_stat_lookahead_io",
        "TABLE pg_stat_lookahead_owners",
    )
    with connect(cluster) as connection:
        script(connection, "CREATE ROLE nobody; CREATE ROLE watcher IN ROLE pg_monitor")
        try:
            for query in queries:
                connection.execute("SET ROLE nobody")
                with pytest.raises(psycopg.errors.InsufficientPrivilege):
                    connection.execute(query)
                connection.execute("RESET ROLE; SET ROLE watcher")
                connection.execute(query)
                connection.execute("RESET ROLE")
        finally:
            script(connection, "RESET ROLE; DROP ROLE nobody; DROP ROLE watcher")


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


def test_rings_are_a_part_of_shared_buffers(own_cluster: NewCluster) -> None:
    """However many workers there are, and however much they are to have."""
    cluster = own_cluster(
        {"pg_lookahead.io_workers": "16", "shared_buffers": "16MB", "max_worker_processes": "24",
         "pg_lookahead.ring_size": "1GB"}
    )  # fmt: skip
    with connect(cluster) as connection:
        until_served(connection)
        until(connection, "count(*) = 16 AND min(ring_blocks) > 0 FROM pg_stat_lookahead_io")
        rings = value(connection, "SELECT sum(ring_blocks) FROM pg_stat_lookahead_io")
        assert rings <= 2048 / 2
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


@contextlib.contextmanager
def stopped(pids: list[int]) -> Iterator[None]:
    """Processes that do nothing for a while."""
    for pid in pids:
        signal_backend(pid, "STOP")
    try:
        yield
    finally:
        for pid in pids:
            signal_backend(pid, "CONT")


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


def test_time_in_the_queue(own_cluster: NewCluster) -> None:
    """It is part of a request's time, not of a read's; what is refused is not dispatched."""
    cluster = make(
        own_cluster,
        pg_lookahead__max_requests_per_worker="16",
        pg_lookahead__status_interval="2s",
    )
    queued_us = 500_000
    with LogWatch(cluster), connect(cluster) as connection, connect(cluster) as other:
        serving(connection, pg_lookahead__leafscan="off")
        cold(connection, "served")
        settle(other)
        assert io(other).requests == 0
        connection.execute(f"BEGIN; DECLARE c CURSOR FOR {SCAN}")
        with stopped(worker_pids(other)):
            found: list[Row] = []
            while io(other).dropped == 0:
                assert len(found) < 1000
                found += rows(connection, "FETCH 1 FROM c")
            during, depths = status(other), io(other)
            time.sleep(queued_us / 1e6)
        assert during["io_queue_depth"] == depths.depth >= 16
        assert 0 < during["io_dispatched"] == depths.requests - depths.dropped
        assert during["io_dispatched"] < during["io_requests"] == depths.requests

        until(
            other,
            f"avg_io_request_latency_ps >= {queued_us}"
            f" AND avg_io_latency_ps BETWEEN 1 AND {queued_us // 4} FROM ios_status()",
        )
        settle(other)
        after = status(other)
        assert after["avg_io_request_latency_history"] >= queued_us
        assert 0 < after["avg_io_latency_history"] < queued_us / 4
        assert found + rows(connection, "FETCH ALL FROM c") == ALL_ROWS
        connection.execute("COMMIT")
    cluster.close()


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


def test_size_of_requests(own: Cluster) -> None:
    """What was asked for, though nothing of it had to be read."""
    table = SETUP.replace("md5(i::text)", "i").replace("served", "ordered")
    query = SCAN.replace("served", "ordered")
    with LogWatch(own), connect(own) as connection, connect(own) as other:
        script(connection, table)
        serving(connection)
        require_node(connection, query, "Index Scan", "ordered_a")
        settings(other, **INDEX_SCANS, pg_lookahead__enabled="off")
        cold(connection, "ordered")
        assert io(other).requests == 0
        with gained(connection) as change:
            # All is in shared buffers by the time that the workers come to it.
            with stopped(worker_pids(other)):
                connection.execute(f"BEGIN; DECLARE c CURSOR FOR {query}")
                assert rows(connection, "FETCH 300 FROM c") == ALL_ROWS[:300]
                assert rows(other, query) == ALL_ROWS
            settle(other)
            connection.execute("COMMIT")
        done, size = io(other), status(other)["avg_io_size_blks"]
        assert (done.read, done.dropped, done.stale) == (0, 0, 0)
        assert done.hit == change.blocks_issued > done.done
        assert size == (change.blocks_issued + done.done // 2) // done.done > 1


def test_more_scans_than_slots(cluster: Cluster) -> None:
    """Index scans that find none are advised, and leave some to others; all give their rows."""
    with connect(cluster) as connection, connect(cluster) as other:
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
        serving(connection)
        unserved = "SELECT scans_unserved FROM pg_lookahead_status()"
        before = value(connection, unserved)
        connection.execute("BEGIN")
        connection.execute("SELECT pg_stat_lookahead_reset()")
        for i in range(1, 141):
            query = f"SELECT a FROM slot_{i} WHERE f <> '' ORDER BY a"
            connection.execute(f"DECLARE c{i} CURSOR FOR {query}")
            assert rows(connection, f"FETCH 3 FROM c{i}") == [(1,), (2,), (3,)]
            if i % 16 == 0:
                # A worker that has much to read makes no owners.
                settle(other)
        assert value(connection, "SELECT count(*) FROM pg_stat_lookahead_owners") == 128 - 32
        assert value(connection, unserved) == before
        for i in (140, 1, 128, 129):
            assert rows(connection, f"FETCH ALL FROM c{i}") == [(n,) for n in range(4, 13)]
        connection.execute("COMMIT")
        issued = "SELECT blocks_issued FROM pg_stat_lookahead WHERE relname = 'slot_140'"
        assert value(connection, issued) > 0
        assert value(connection, "SELECT count(*) FROM pg_stat_lookahead_owners") == 0
        scan_cold(connection)


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
            assert value(connection, "SELECT pg_terminate_backend(%s, 5000)", (pid,))
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
            value(connection, "SELECT pg_terminate_backend(%s, 5000)", (pid,))
        assert rows(connection, SCAN) == ALL_ROWS
        all_up(connection)
        scan_cold(connection)


def endless(cluster: Cluster) -> tuple[threading.Thread, threading.Event, list[BaseException]]:
    """Keep the service busy until the server goes, or the event is set."""
    stop = threading.Event()
    failures: list[BaseException] = []

    def scan() -> None:
        try:
            with connect(cluster) as connection:
                serving(connection)
                while not stop.is_set():
                    cold(connection, "served")
                    assert rows(connection, SCAN) == ALL_ROWS
        except psycopg.errors.QueryCanceled as error:
            # By statement_timeout: it hung.
            failures.append(error)
        except psycopg.OperationalError:
            pass
        except BaseException as error:
            failures.append(error)

    thread = threading.Thread(target=scan)
    thread.start()
    time.sleep(0.4)
    return thread, stop, failures


@contextlib.contextmanager
def busy(cluster: Cluster) -> Iterator[None]:
    """Keep the service busy meanwhile."""
    thread, stop, failures = endless(cluster)
    try:
        yield
    finally:
        stop.set()
        thread.join(60)
    assert not thread.is_alive()
    assert not failures


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
            assert time.monotonic() - began < 20
            stop.set()
            thread.join(30)
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
        settings(connection, statement_timeout="20s")
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
            began = time.monotonic()
            connection.execute("DROP DATABASE doomed")
            assert time.monotonic() - began < 5
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
        serving(connection, lock_timeout="2s")
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
        thread = threading.Thread(target=script, args=(other, "BEGIN; LOCK TABLE served; COMMIT"))
        thread.start()
        until(third, "(SELECT count(*) = 1 FROM pg_locks WHERE NOT granted)")
        with gained(connection) as change:
            found += rows(connection, "FETCH ALL FROM c")
            settle(third)
            after = io(third)
            # Its requests have come to the workers, who could not serve them.
            assert after.locked > before.locked
            assert after.read == before.read
            connection.execute("COMMIT")
        thread.join(10)
        assert not thread.is_alive()
        assert change.blocks_issued > 0
        assert found == ALL_ROWS
        scan_cold(connection)


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
    allowed = "conflict with recovery|terminating|invalid record|unexpected directory entry"
    with standby_from(primary, standby):
        with LogWatch(standby, allowed=[allowed]), connect(primary) as changing:
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
        settle(connection)
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
