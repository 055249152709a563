"""What the tests of the I/O service share: a table, what is counted, workers that are stopped."""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Iterator
from typing import Any, NamedTuple

import psycopg
from lookahead.cluster import Cluster

from conftest import NewCluster
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
    settings,
    settle,
    signal_backend,
    until,
    until_served,
)

WORKERS = 2
SERVICE = {"pg_lookahead.io_workers": str(WORKERS), "shared_buffers": "16MB"}
BACKEND_TYPE = "pg_lookahead io worker"

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


STATUS_COLUMNS = (
    "ios_worker_num", "io_requests", "io_dispatched", "avg_io_size_blks",
    "avg_io_request_latency_history", "avg_io_latency_history", "avg_io_request_latency_ps",
    "avg_io_latency_ps", "blks_read_ps", "io_read_ps", "io_queue_depth", "ring_buff_mem",
)  # fmt: skip


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


def until_left(connection: Connection, database: str) -> None:
    """Wait for sessions of a database that were closed: they may not have ended yet."""
    until(
        connection,
        "NOT EXISTS (SELECT FROM pg_stat_activity"
        f" WHERE datname = '{database}' AND backend_type = 'client backend')",
    )


def serving(connection: Connection, **more: object) -> None:
    settings(connection, **{**INDEX_SCANS, "pg_lookahead.method": "worker", **more})
    until_served(connection)


def make(new: NewCluster, **conf: str) -> Cluster:
    cluster = new({**SERVICE, **{name.replace("__", "."): text for name, text in conf.items()}})
    with connect(cluster) as connection:
        script(connection, SETUP)
        all_up(connection)
    return cluster


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


@contextlib.contextmanager
def keeping_workers(cluster: Cluster) -> Iterator[None]:
    """Do something after which the log is clean, and the workers are those of before."""
    with connect(cluster) as connection:
        all_up(connection)
        before = worker_pids(connection)
    with LogWatch(cluster):
        yield
    with connect(cluster) as connection:
        settle(connection)
        assert worker_pids(connection) == before
