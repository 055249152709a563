"""What runs beside something else that is measured: a scan in a loop, a query to disturb.

Both run in a thread with a session of their own.  psycopg waits for the server
without holding Python's lock, so the thread takes next to nothing from what it
runs beside.
"""

from __future__ import annotations

import threading
import time
from typing import Any

import psycopg
from psycopg import sql

from .cluster import evict
from .data import BenchData
from .errors import LookaheadError

JOIN_SECONDS = 120


class LoopingScan:
    """Reads a table from disk again and again, for as long as a `with` block lasts."""

    def __init__(self, data: BenchData, table: str, query: sql.Composed) -> None:
        self.query = query
        self.files = data.files(table)[0]
        self.conn = data.connect()
        self.scans_ms: list[float] = []
        self.error: psycopg.Error | None = None
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._loop, daemon=True)

    def __enter__(self) -> LoopingScan:
        self._thread.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        self._over.set()
        try:
            self.conn.cancel_safe(timeout=JOIN_SECONDS)
            self._thread.join(JOIN_SECONDS)
        finally:
            self.conn.close()
        if self.error is not None and kind is None:
            raise LookaheadError(f"the scan beside it failed: {self.error}")

    def _loop(self) -> None:
        try:
            while not self._over.is_set():
                for file in self.files:
                    evict(file)
                start = time.perf_counter_ns()
                self.conn.execute(self.query).fetchall()
                self.scans_ms.append((time.perf_counter_ns() - start) / 1e6)
        except psycopg.Error as error:
            # The last one is cut short; that is how the loop ends.
            if not self._over.is_set():
                self.error = error


class DisturbedQuery:
    """A query in a thread, to be waited for whatever becomes of it."""

    def __init__(self, conn: psycopg.Connection[Any], query: sql.Composed) -> None:
        self.conn = conn
        self.query = query
        self.rows: list[Any] | None = None
        self.error: psycopg.Error | None = None
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        try:
            self.rows = self.conn.execute(self.query).fetchall()
        except psycopg.Error as error:
            self.error = error

    @property
    def is_running(self) -> bool:
        return self._thread.is_alive()

    def wait(self) -> None:
        """Wait for its end, good or bad."""
        self._thread.join(JOIN_SECONDS)
        if self._thread.is_alive():
            raise LookaheadError("a query did not end after its server was disturbed")
