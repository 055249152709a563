"""Sequential scans on 15 to 17 and the processors: those that others take, and those that idle."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path

import pytest
from lookahead.cluster import Cluster
from lookahead.servers import Server

from seqscan_support import blocks_of, long_table, need_followed_scans, scanning, switch
from support import Connection, cold, connect, gained, ice_cold, rows, sleeps_of, until_served

pytestmark = [
    # Workers that are not needed any more are told so in this way.
    pytest.mark.log_may_have('terminating background worker "parallel worker"'),
    # A test beside it takes the processor that is to be idle.
    pytest.mark.alone,
]


@pytest.fixture
def tables(cluster: Cluster, server: Server) -> Iterator[Cluster]:
    need_followed_scans(server)
    with long_table(cluster, server):
        yield cluster


def scheduled(pid: int) -> tuple[float, float, int]:
    """Return the seconds for which a process ran, and was ready to; and its sleeps."""
    ran, ready = Path(f"/proc/{pid}/schedstat").read_text().split()[:2]
    return int(ran) / 1e9, int(ready) / 1e9, sleeps_of(pid)


@contextmanager
def hogging(processors: list[int]) -> Iterator[None]:
    """A process that always wants to run is on each of these processors."""
    command = [sys.executable, "-c", "while True: pass"]
    running = [subprocess.Popen(command) for _ in processors]
    try:
        for hog, processor in zip(running, processors):
            os.sched_setaffinity(hog.pid, {processor})
        yield
    finally:
        for hog in running:
            hog.kill()
            hog.wait()


@contextmanager
def sharing_its_processor(pid: int, hogs: int) -> Iterator[None]:
    """A process has so many others beside it on the one processor that it may use."""
    processor = min(os.sched_getaffinity(0))
    os.sched_setaffinity(pid, {processor})
    with hogging([processor] * hogs):
        yield


@contextmanager
def others_on_other_processors(pid: int) -> Iterator[None]:
    """A process has its processor for itself, and no other processor is idle."""
    mine, *others = sorted(os.sched_getaffinity(0))
    os.sched_setaffinity(pid, {mine})
    with hogging(others):
        yield


def need_all_processors() -> None:
    """Skip where there is one processor, or the server may not use all there are."""
    if not 1 < len(os.sched_getaffinity(0)) == os.cpu_count():
        pytest.skip("needs a machine of several processors, and all of them")


class Crowd(threading.Thread):
    """How many processes of the machine run or want to, on the average of a `with` block."""

    def __init__(self) -> None:
        super().__init__(daemon=True)
        self._over = threading.Event()
        self._seen: list[int] = []

    def run(self) -> None:
        while not self._over.wait(0.002):
            self._seen.append(int(Path("/proc/loadavg").read_text().split()[3].split("/")[0]))

    def __enter__(self) -> Crowd:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self.join()

    @property
    def size(self) -> float:
        # One of them is who looks.
        return sum(self._seen) / max(len(self._seen), 1) - 1


def test_a_lost_processor_is_no_wait(tables: Cluster) -> None:
    """A scan that shares its processor does not wait for storage more than before."""
    # Much to compute for each block: there is little to wait for in this.
    query = "SELECT count(*), sum(a), max(md5(repeat(filler, 30))) FROM not_alone"
    with connect(tables) as connection:
        connection.execute(
            "CREATE TABLE not_alone WITH (fillfactor = 10, autovacuum_enabled = off) AS"
            " SELECT l.* FROM long l, generate_series(1, 8)"
        )
        scanning(connection, **{"pg_lookahead.start_after": 1})
        pid = connection.info.backend_pid
        try:
            with sharing_its_processor(pid, hogs=8):
                without = None
                issued = []
                blocks = blocks_of(connection, "not_alone")
                for on in (False, True, True, True, True, True):
                    switch(connection, on=on)
                    ice_cold(tables, connection, "not_alone")
                    before, start = scheduled(pid), time.monotonic()
                    with gained(connection) as change:
                        found = rows(connection, query)
                    took = time.monotonic() - start
                    ran, ready, sleeps = (b - a for a, b in zip(before, scheduled(pid)))
                    assert without in (None, found)
                    without = found
                    # Others may use the disk, or leave it the processor.
                    as_meant = ready >= took * 0.45 and took - ran - ready <= took * 0.25
                    if not on and (sleeps < 2 or not as_meant):
                        pytest.skip(
                            f"{sleeps} sleeps; ran {ran:.2f}, ready {ready:.2f} of {took:.2f}"
                        )
                    if on and as_meant:
                        issued.append(change.blocks_issued)
        finally:
            connection.execute("DROP TABLE not_alone")
        if len(issued) < 3:
            pytest.skip("others use the disk, or leave it the processor")
        # A disk that others use, too, may be worth it for a while.
        assert sorted(issued)[len(issued) // 2] < blocks / 4, issued


COMPUTE = "SELECT count(*), max(md5(repeat(filler, 30))) FROM computed"


@contextmanager
def computing(tables: Cluster, method: str = "worker") -> Iterator[tuple[Connection, int]]:
    """There is a table "computed" of so many blocks, and a session that follows its scans."""
    with connect(tables) as connection:
        connection.execute(
            "CREATE TABLE computed WITH (fillfactor = 10, autovacuum_enabled = off) AS"
            " SELECT l.* FROM long l, generate_series(1, 12)"
        )
        scanning(connection, method, **{"pg_lookahead.start_after": 8})
        until_served(connection)
        try:
            yield connection, blocks_of(connection, "computed")
        finally:
            connection.execute("DROP TABLE computed")


@pytest.mark.parametrize("method", ["auto", "worker"])
@pytest.mark.parametrize("resident", [False, True])
def test_workers_copy_for_a_scan_that_computes(
    tables: Cluster, resident: bool, method: str
) -> None:
    """It looks ahead though it waits for nothing, if there is a processor to spare."""
    need_all_processors()
    seen = []
    with computing(tables, method) as (connection, blocks):
        pid = connection.info.backend_pid
        switch(connection, on=False)
        without = rows(connection, COMPUTE)
        switch(connection, on=True)
        for _ in range(10):
            # All of it stays in the page cache.
            cold(connection, "computed")
            if resident:
                middle = "ctid >= '(3000,0)' AND ctid < '(3700,0)'"
                rows(connection, f"SELECT count(*) FROM computed WHERE {middle}")
            before = scheduled(pid)
            with gained(connection) as change, Crowd() as crowd:
                assert rows(connection, COMPUTE) == without
            ran, ready, sleeps = (b - a for a, b in zip(before, scheduled(pid)))
            # After the stretch that is there it looks ahead again.
            if change.blocks_issued > blocks / 4:
                assert change.scans == 1
                assert change.blocks_wasted == 0
                return
            seen.append((ran, ready, crowd.size, sleeps, change.blocks_issued))
    scarce = (os.cpu_count() or 1) - 0.9
    # Workers that copied are in the crowd themselves.  Nor is there anything to win
    # where a block takes very long, as under Valgrind.
    excused = [
        ready > ran / 50 or (running > scarce and issued == 0) or ran > blocks * 150e-6
        for ran, ready, running, _, issued in seen
    ]
    if sum(excused) > len(seen) / 2:
        pytest.skip("no processor to spare, or all too slow, in most of the rounds")
    pytest.fail(f"no look-ahead of {blocks} blocks: {seen}")


def nothing_is_copied(
    tables: Cluster,
    beside: Callable[[int], AbstractContextManager[None]],
    is_as_meant: Callable[[float, float], bool],
) -> None:
    """Scan beside others; where it ran and was ready as is meant nothing is asked for.

    On a busy machine there may be something to wait for, in some of the scans.
    """
    seen, asked = [], []
    with computing(tables) as (connection, _):
        pid = connection.info.backend_pid
        for _ in range(5):
            cold(connection, "computed")
            with beside(pid):
                before, start = scheduled(pid), time.monotonic()
                with gained(connection) as change:
                    rows(connection, COMPUTE)
                took = time.monotonic() - start
                ran, ready, _ = (b - a for a, b in zip(before, scheduled(pid)))
            seen.append(f"ran {ran:.2f}, ready {ready:.2f} of {took:.2f}")
            # What is in the page cache need not stay there, and then the scan waits.
            if is_as_meant(ran, ready) and took - ran - ready < took * 0.15:
                asked.append(change.blocks_issued)
                if asked[-1] == 0:
                    return
    if not asked:
        pytest.skip(f"others take the processor, or leave it, or the page cache: {seen}")
    pytest.fail(f"{asked} blocks were asked for: {seen}")


def test_no_copying_where_processors_are_scarce(tables: Cluster) -> None:
    """A scan that has to wait for its own processor leaves the workers alone."""

    def with_hogs(pid: int) -> AbstractContextManager[None]:
        return sharing_its_processor(pid, hogs=4)

    nothing_is_copied(tables, with_hogs, lambda ran, ready: ready >= ran / 3)


def test_no_copying_where_no_processor_is_idle(tables: Cluster) -> None:
    """A scan that has its own processor whenever it wants leaves those of others to them."""
    need_all_processors()
    nothing_is_copied(tables, others_on_other_processors, lambda ran, ready: ready <= ran / 20)
