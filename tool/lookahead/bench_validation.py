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
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

import psycopg
from psycopg import sql

from .bench_pairs import RunFailed, until
from .data import BenchData

BEFORE_BUILD = "waiting for writers before build"
BEFORE_VALIDATION = "waiting for writers before validation"
READING_INDEX = "index validation: scanning index"

# How long an index build may take, and how often it is looked at.
LONG_SECONDS = 1200.0
LOOK_SECONDS = 0.005

# It has made the list of those it waits for when it knows how many they are.
PROGRESS = "SELECT phase, lockers_total FROM pg_stat_progress_create_index"


@dataclass(frozen=True)
class HeldUpBuild:
    """An index build that goes on in a thread."""

    building: Future[Any]
    watch: psycopg.Connection[Any]
    writer: psycopg.Connection[Any]

    def _progress(self) -> tuple[str, int]:
        return self.watch.execute(PROGRESS).fetchone() or ("", 0)

    def come_to(self, phase: str) -> None:
        """Wait until the command waits for a writer."""

        def waits() -> bool:
            found, lockers = self._progress()
            return found == phase and lockers > 0

        came = until(lambda: self.building.done() or waits(), LONG_SECONDS, every=LOOK_SECONDS)
        if self.building.done():
            self.building.result()
        if self.building.done() or not came:
            raise RunFailed(f"the index build did not wait: {phase!r} was not seen")

    def release(self) -> None:
        """Let it validate the index."""
        self.writer.rollback()

    def wait_until_index_is_read(self) -> None:
        """Return when it is beyond the index that it validates."""
        before = (BEFORE_VALIDATION, READING_INDEX)
        if not until(lambda: self._progress()[0] not in before, LONG_SECONDS, every=LOOK_SECONDS):
            raise RunFailed(f"the index build is where it was: {self._progress()}")

    def wait(self) -> None:
        """Return when it has ended; raise its error."""
        self.building.result(LONG_SECONDS)


@contextlib.contextmanager
def held_up(
    data: BenchData, conn: psycopg.Connection[Any], table: str, statement: sql.Composed
) -> Iterator[HeldUpBuild]:
    """Run a build that waits to validate the index until release()."""
    lock = sql.SQL("BEGIN; LOCK TABLE {} IN ROW EXCLUSIVE MODE").format(sql.Identifier(table))
    with (
        data.connect() as watch,
        data.connect() as first,
        data.connect() as second,
        ThreadPoolExecutor(1) as pool,
    ):
        first.execute(lock)
        build = HeldUpBuild(pool.submit(conn.execute, statement), watch, second)
        try:
            build.come_to(BEFORE_BUILD)
            second.execute(lock)
            first.rollback()
            build.come_to(BEFORE_VALIDATION)
            yield build
        finally:
            if not build.building.done():
                conn.cancel_safe()
