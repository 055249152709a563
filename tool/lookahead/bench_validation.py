"""CREATE INDEX CONCURRENTLY, held up where it has built the index.

It reads the index then, and the table once more, to find rows that are missing.
What it has just written is cached, unless it is larger than memory; so it waits
until the caches were emptied.  It waits for all who write to the table, but only
for those who did when it began to wait:

    first writer     locks the table
    the command      waits for the first writer, before it builds
    second writer    locks the table
    first writer     ends
    the command      builds the index, and waits for the second writer
                     (the caches are emptied)
    second writer    ends: release()
    the command      reads the index, then the table
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from types import TracebackType
from typing import Any

import psycopg
from psycopg import sql

from .bench_pairs import RunFailed
from .data import BenchData

BEFORE_BUILD = "waiting for writers before build"
BEFORE_VALIDATION = "waiting for writers before validation"
READING_INDEX = "index validation: scanning index"

# How long an index build may take, and how often it is looked at.
LONG_SECONDS = 1200.0
LOOK_SECONDS = 0.005

# It has made the list of those it waits for when it knows how many they are.
PROGRESS = "SELECT phase, lockers_total FROM pg_stat_progress_create_index"


class HeldUpBuild:
    """An index build in a thread, which waits to validate the index until release()."""

    def __init__(
        self, data: BenchData, conn: psycopg.Connection[Any], table: str, statement: sql.Composed
    ) -> None:
        self._conn = conn
        self._statement = statement
        self._lock = sql.SQL("BEGIN; LOCK TABLE {} IN ROW EXCLUSIVE MODE").format(
            sql.Identifier(table)
        )
        self._ends = contextlib.ExitStack()
        self._watch = self._ends.enter_context(data.connect())
        self._writers = [self._ends.enter_context(data.connect()) for _ in range(2)]

    def __enter__(self) -> HeldUpBuild:
        first, second = self._writers
        first.execute(self._lock)
        self._building = self._ends.enter_context(ThreadPoolExecutor(1)).submit(
            self._conn.execute, self._statement
        )
        try:
            self._come_to(BEFORE_BUILD)
            second.execute(self._lock)
            first.rollback()
            self._come_to(BEFORE_VALIDATION)
        except BaseException:
            self._end()
            raise
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._end()

    def _end(self) -> None:
        if not self._building.done():
            self._conn.cancel_safe()
        self._ends.close()

    def _progress(self) -> tuple[str, int] | None:
        return self._watch.execute(PROGRESS).fetchone()

    def _come_to(self, phase: str) -> None:
        """Wait until the command waits for a writer."""

        def waits() -> bool:
            found = self._progress()
            return found is not None and found[0] == phase and found[1] > 0

        self._until(lambda: self._building.done() or waits())
        if self._building.done():
            self._building.result()
            raise RunFailed(f"the index build did not wait: {phase!r} was not seen")

    def _until(self, condition: Callable[[], bool]) -> None:
        end = time.monotonic() + LONG_SECONDS
        while not condition():
            if time.monotonic() > end:
                raise RunFailed(f"the index build is where it was: {self._progress()}")
            time.sleep(LOOK_SECONDS)

    def release(self) -> None:
        """Let it go on."""
        self._writers[1].rollback()

    def wait_until_index_is_read(self) -> None:
        """Return when it is beyond the index that it validates."""

        def is_beyond() -> bool:
            found = self._progress()
            return found is None or found[0] not in (BEFORE_VALIDATION, READING_INDEX)

        self._until(is_beyond)

    def wait(self) -> None:
        """Return when it has ended; raise its error."""
        self._building.result(LONG_SECONDS)
