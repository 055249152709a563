"""Sessions that work side by side for a while, on a server with few buffers."""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Callable

import psycopg
import pytest
from lookahead.cluster import Cluster
from lookahead.servers import Server

from conftest import NewCluster
from support import Change, Connection, connect, gained, seed, settings

SECONDS = 9

# Each does its work so often, and all go on for longer if one needs it.
ROUNDS = 3
MOST_SECONDS = 300

# What concurrent maintenance may answer, with or without look-ahead.
ACCEPTED = (psycopg.errors.DeadlockDetected, psycopg.errors.LockNotAvailable)

Body = Callable[[Connection, random.Random], None]


class Workers:
    """Threads that do one thing again and again for a while."""

    def __init__(self, cluster: Cluster, *, statement_timeout: str) -> None:
        self.cluster = cluster
        self.statement_timeout = statement_timeout
        self.start = time.monotonic()
        self.failures: list[BaseException] = []
        self.done: dict[str, int] = {}
        self.changes: list[Change] = []
        self.wanted: list[Callable[[], bool]] = []
        self.threads: list[threading.Thread] = []

    def add(self, name: str, body: Body, **conf: object) -> None:
        self.done[name] = 0
        thread = threading.Thread(target=self._run, args=(name, body, conf))
        self.threads.append(thread)
        thread.start()

    def want(self, condition: Callable[[], bool]) -> None:
        """Go on until this is so, if it takes no longer than all may take."""
        self.wanted.append(condition)

    def _is_over(self) -> bool:
        seconds = time.monotonic() - self.start
        if self.failures or seconds >= MOST_SECONDS:
            return True
        if not all(condition() for condition in self.wanted):
            return False
        return seconds >= SECONDS and all(n >= ROUNDS for n in list(self.done.values()))

    def _run(self, name: str, body: Body, conf: dict[str, object]) -> None:
        choice = random.Random(f"{seed()} {name}")
        try:
            with connect(self.cluster) as connection:
                settings(connection, statement_timeout=self.statement_timeout, **conf)
                with gained(connection) as change:
                    while not self._is_over():
                        try:
                            body(connection, choice)
                        except ACCEPTED:
                            connection.execute("ROLLBACK")
                            continue
                        self.done[name] += 1
                self.changes.append(change)
        except BaseException as error:
            self.failures.append(error)

    def join(self) -> None:
        """Wait for all; each must have done its work several times without an error."""
        for thread in self.threads:
            thread.join(MOST_SECONDS + 60)
            assert not thread.is_alive()
        if self.failures:
            raise self.failures[0]
        assert all(n >= ROUNDS for n in self.done.values()), self.done
        assert not any(change.errors for change in self.changes)

    @property
    def issued(self) -> int:
        return sum(change.blocks_issued for change in self.changes)


def crowded_cluster(
    own_cluster: NewCluster, server: Server, which: int
) -> tuple[Cluster, str | None]:
    """Start a server with fewer buffers than the tables have pages, and one of its I/O methods.

    `which` is 0 or 1; the test is skipped where there are fewer methods.
    """
    methods: list[str | None] = [None]
    if server.major >= 18:
        methods = ["worker", "io_uring"] if server.io_uring else ["worker"]
    if which >= len(methods):
        pytest.skip("this server has one io_method")
    conf = {"shared_buffers": "2MB", "deadlock_timeout": "500ms"}
    io_method = methods[which]
    if io_method:
        conf.update(io_method=io_method, io_max_concurrency="32")
    return own_cluster(conf), io_method
