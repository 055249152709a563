"""What the I/O service shows of itself: ios_status(), its views, the activity of its workers."""

from __future__ import annotations

import time
from collections.abc import Iterator

import psycopg
import pytest
from lookahead.cluster import Cluster
from lookahead.servers import Server

from conftest import NewCluster
from service_support import (
    ALL_ROWS,
    BACKEND_TYPE,
    SCAN,
    SETUP,
    WORKERS,
    Io,
    all_up,
    busy,
    io,
    keeping_workers,
    make,
    scan_by_workers,
    scan_cold,
    serving,
    status,
    stopped,
    worker_pids,
)
from support import (
    INDEX_SCANS,
    Connection,
    LogWatch,
    Row,
    cold,
    connect,
    gained,
    require_node,
    reset_statistics,
    rows,
    script,
    settings,
    settle,
    until,
    value,
)

# Those of the last status_interval.
RECENT = ("avg_io_request_latency_ps", "avg_io_latency_ps", "blks_read_ps", "io_read_ps")
NOTHING_LATELY = f"({', '.join(RECENT)}) = (0, 0, 0, 0) FROM ios_status()"


@pytest.fixture(scope="module")
def shared(own_cluster: NewCluster) -> Cluster:
    return make(own_cluster)


@pytest.fixture
def cluster(shared: Cluster) -> Iterator[Cluster]:
    """A cluster with the service, whose log stays clean and whose workers live on."""
    with keeping_workers(shared):
        yield shared


@pytest.fixture
def own(own_cluster: NewCluster) -> Iterator[Cluster]:
    """A cluster for tests that do something to the service."""
    cluster = make(own_cluster)
    yield cluster
    cluster.close()


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
        reset_statistics(connection)
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
    with LogWatch(own), connect(own) as connection:
        serving(connection)
        for _ in range(50):
            scan_by_workers(connection)
            # They rest now: one that is at work may have a spinlock, for which we would wait.
            with stopped(worker_pids(connection)):
                if status(connection)["blks_read_ps"] > 0:
                    until(connection, NOTHING_LATELY, 60)
                    break
        else:
            pytest.fail("the workers were never stopped when they had just worked")
        with busy(own):
            until(connection, "blks_read_ps > 0 FROM ios_status()")


def test_recent_figures_of_workers_that_are_gone(own: Cluster) -> None:
    allowed = ["terminating background worker|exited with exit code 1"]
    with LogWatch(own, allowed=allowed), connect(own) as connection, busy(own):
        for _ in range(20):
            until(connection, "blks_read_ps > 0 FROM ios_status()")
            for pid in worker_pids(connection):
                value(connection, "SELECT pg_terminate_backend(%s, 60000)", (pid,))
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
        # None of them may have waited for a worker.
        scan_by_workers(connection)
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


def test_time_in_the_queue(own_cluster: NewCluster) -> None:
    """It is part of a request's time, not of a read's; what is refused is not dispatched."""
    cluster = make(
        own_cluster,
        pg_lookahead__max_requests_per_worker="16",
        # For so long the figures are shown.
        pg_lookahead__status_interval="10s",
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
            60,
        )
        settle(other)
        after = status(other)
        assert after["avg_io_request_latency_history"] >= queued_us
        assert 0 < after["avg_io_latency_history"] < queued_us / 4
        assert found + rows(connection, "FETCH ALL FROM c") == ALL_ROWS
        connection.execute("COMMIT")
    cluster.close()


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
