"""Runs the cases: who is restarted when, in which order, and what is timed.

One run, cold: the server is stopped, the kernel's caches are dropped, the
server starts with the settings of the case, with the library or without; a
session connects, runs the same query on a small table of its own (so that the
code of the executor, and of the extension, has been read from disk), explains
the query (which loads the catalog and proves the plan), and only then is timed,
after the kernel has filled and dropped as much memory as it will (see
fill_page_cache()).
Both arms do exactly this.

The order is pair by pair, not case by case: pair 1 of all cases, then pair 2.
A minute in which the disk is slow then spoils one pair of several cases and not
all pairs of one.  Within a pair the two arms follow each other, and the arm
that goes first changes from pair to pair.

What is cached is too fast for arms that are seconds apart, and where a server's
shared buffers happen to lie in memory is worth several per cent.  So in the group
cached both arms are sessions of one server, on the same buffers, that alternate
from query to query: one of them loads the library (session_preload_libraries).
In the group pgbench two servers run at once, one with the library preloaded, and
pgbench visits them by turns; both restart for every pair.
"""

from __future__ import annotations

import contextlib
import re
import statistics
import subprocess
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import psycopg

from .bench_index_scan import Cell, Scale
from .bench_measure import (
    PlanRejected,
    Probe,
    answer_digest,
    check_plan,
    difference,
    fill_page_cache,
    load_sql,
    scan_query,
)
from .bench_result import ARMS, LOOKAHEAD
from .bench_store import Store, now
from .data import WARM_TABLE, BenchData
from .errors import LookaheadError

# The planner is held to plain index scans; both arms say this in the session.
PLANNER = (
    "SET enable_seqscan = off",
    "SET enable_bitmapscan = off",
    "SET enable_indexonlyscan = off",
)

# Rows that a cached scan returns in a second; only sets how often to repeat.
CACHED_ROWS = 5_000_000

# Of many tiny queries, the share that is left out at the slow end.
TRIMMED = 0.1

# Memory beside the blocks that are read: shared buffers, a backend's own.
SPARE_BYTES = 256 * 1024 * 1024

Progress = Callable[[str], None]


class RunFailed(LookaheadError):
    """A run could not be made at all."""


def trimmed(elapsed: Sequence[float]) -> float:
    """Return the sum of many like times, without what interrupted a few of them.

    A query of a tenth of a millisecond that loses its processor for four counts
    as much as forty that do not.  Only the slowest tenth is left out, so that a
    cost which one query in five has to bear still shows.
    """
    kept = sorted(elapsed)[: max(1, round(len(elapsed) * (1 - TRIMMED)))]
    return statistics.mean(kept) * len(elapsed)


class Runner:
    """Makes the runs of all cells that the store does not have yet."""

    def __init__(
        self,
        store: Store,
        data: dict[str, BenchData],
        scale: Scale,
        *,
        extension: bool,
        progress: Progress,
    ) -> None:
        self.store = store
        self.data = data
        self.scale = scale
        self.extension = extension
        self.progress = progress
        self._twin_ready = False

    def run(self, cells: Sequence[Cell], pairs: int) -> None:
        """Make every missing run, group by group and pair by pair."""
        by_group: dict[tuple[str, str], list[Cell]] = {}
        for cell in cells:
            by_group.setdefault((cell.server, cell.group), []).append(cell)
        for (_, group), some in by_group.items():
            runner = {
                "cached": self._cached_pair,
                "pgbench": self._pgbench_pair,
            }.get(group, self._scan_pair)
            most = pairs * max(cell.pair_factor for cell in some)
            for pair in range(most):
                wanted = [c for c in some if pair < pairs * c.pair_factor]
                for batch in self._batches(group, wanted):
                    runner(batch, pair)

    @staticmethod
    def _batches(group: str, cells: Sequence[Cell]) -> Iterator[list[Cell]]:
        """Cells that share one start of the server; cold runs share none."""
        if group != "cached":
            yield from ([cell] for cell in cells)
            return
        by_table: dict[str, list[Cell]] = {}
        for cell in cells:
            by_table.setdefault(cell.table, []).append(cell)
        yield from by_table.values()

    def _order(self, pair: int) -> tuple[str, ...]:
        return ARMS if pair % 2 == 0 else ARMS[::-1]

    def _start(self, cell: Cell, arm: str, *, cold: bool) -> str:
        """Start the server of a cell for one arm; return the state of the caches."""
        preload = self.extension and arm == LOOKAHEAD
        if cold:
            size = cell.most_bytes(self.scale.rows) + SPARE_BYTES
            fill_page_cache(self.data[cell.server].folder, size)
        return self.data[cell.server].start(cell.conf, preload=preload, cold=cold)

    @staticmethod
    def _connect(data: BenchData, *, library: bool = False) -> psycopg.Connection[Any]:
        conn = data.connect(library=library)
        for statement in PLANNER:
            conn.execute(statement)
        return conn

    def _probe(self, conn: psycopg.Connection[Any], cell: Cell, arm: str) -> Probe:
        lookahead = self.extension and arm == LOOKAHEAD
        return Probe(conn, self.data[cell.server].folder, cell.table, lookahead)

    def _record(
        self, cell: Cell, pair: int, arm: str, cache: str, settings: str, **parts: Any
    ) -> None:
        self.store.add(
            {
                "type": "run", "cell": cell.id, "pair": pair, "arm": arm,
                "first": self._order(pair)[0] == arm, "at": now(),
                "cache": cache, "settings": settings, **parts,
            }
        )  # fmt: skip
        self.progress(f"{cell.id}  pair {pair + 1}  {arm}  {parts['elapsed_ms']:,.1f} ms")

    # -- scans that read: cold, or from the page cache ----------------------

    def _scan_pair(self, batch: list[Cell], pair: int) -> None:
        (cell,) = batch
        cold = cell.group != "pagecache"
        for arm in self._order(pair):
            if self.store.is_rejected(cell.id):
                return
            try:
                if cell.limit is None and not self.store.has_answer(cell.id, arm):
                    self._answer_run(cell, arm, cold=cold)
                if not self.store.has_run(cell.id, pair, arm):
                    self._scan_run(cell, pair, arm, cold=cold)
            except PlanRejected as reason:
                self._reject(cell, reason)

    def _reject(self, cell: Cell, reason: PlanRejected) -> None:
        self.store.add({"type": "rejected", "cell": cell.id, "reason": str(reason)})
        self.progress(f"{cell.id}  rejected: {reason}")

    def _add_answer(self, cell: Cell, arm: str, answers: Sequence[Any]) -> None:
        digest = answer_digest(answers)
        self.store.add({"type": "answer", "cell": cell.id, "arm": arm, "answer": digest})

    def _queries(self, cell: Cell, name: str) -> list[Any]:
        ranges = cell.ranges(self.scale.rows)
        if cell.limit is not None:
            return [
                load_sql("bench_limit", table=cell.table, first=a, last=b, limit=cell.limit)
                for a, b in ranges
            ]
        return [scan_query(name, cell.table, a, b, cell.direction) for a, b in ranges]

    def _warm_up(self, conn: psycopg.Connection[Any], cell: Cell, queries: Sequence[Any]) -> None:
        """Load code and catalogs without touching the blocks that are timed."""
        conn.execute(scan_query("bench_scan", WARM_TABLE, 1, 10_000, cell.direction)).fetchall()
        check_plan(conn, queries[0], cell.table, cell.direction)

    def _answer_run(self, cell: Cell, arm: str, *, cold: bool) -> None:
        """Run the case once untimed, hashing every row in order.

        In the same cache state as the timed runs: look-ahead that is idle
        because everything is cached would prove nothing.
        """
        self._start(cell, arm, cold=cold)
        with self._connect(self.data[cell.server]) as conn:
            queries = self._queries(cell, "bench_answer")
            self._warm_up(conn, cell, queries)
            _, answers = self._probe(conn, cell, arm).timed(queries)
        self._add_answer(cell, arm, answers)

    def _scan_run(self, cell: Cell, pair: int, arm: str, *, cold: bool) -> None:
        cache = self._start(cell, arm, cold=cold)
        if not cold:
            self.data[cell.server].read_into_page_cache(cell.table)
        with self._connect(self.data[cell.server]) as conn:
            settings = self.store.settings(conn)
            queries = self._queries(cell, "bench_scan")
            self._warm_up(conn, cell, queries)
            probe = self._probe(conn, cell, arm)
            before = probe.snapshot()
            elapsed, answers = probe.timed(queries)
            spent = difference(before, probe.snapshot())
        self._record(
            cell, pair, arm, cache, settings,
            elapsed_ms=round(sum(elapsed) if cell.limit is None else trimmed(elapsed), 3),
            query_ms=[round(ms, 3) for ms in elapsed],
            answer=answer_digest(answers),
            **spent,
        )  # fmt: skip

    # -- everything in shared buffers ---------------------------------------

    def _cached_pair(self, batch: list[Cell], pair: int) -> None:
        """Run all cells of one table on one start of the server."""
        missing = [
            cell
            for cell in batch
            if not self.store.is_rejected(cell.id)
            and not all(self.store.has_run(cell.id, pair, arm) for arm in ARMS)
        ]
        if not missing:
            return
        first = missing[0]
        data = self.data[first.server]
        data.start(first.conf, preload=False, cold=False)
        with contextlib.ExitStack() as stack:
            probes = {}
            for arm in ARMS:
                library = self.extension and arm == LOOKAHEAD
                conn = stack.enter_context(self._connect(data, library=library))
                data.prewarm(conn, first.table)
                probes[arm] = Probe(conn, data.folder, first.table, library)
                probes[arm].pin(pair)
            for cell in missing:
                try:
                    self._cached_run(cell, pair, probes)
                except PlanRejected as reason:
                    self._reject(cell, reason)

    def _cached_run(self, cell: Cell, pair: int, probes: dict[str, Probe]) -> None:
        """Time many short repetitions that alternate; the run is the fastest.

        Nothing makes a cached scan faster than it is, but whatever else the
        machine does makes it slower: the minimum is what the scan itself costs.
        """
        checks = self._queries(cell, "bench_answer")
        for arm, probe in probes.items():
            check_plan(probe.conn, checks[0], cell.table, cell.direction)
            if not self.store.has_answer(cell.id, arm):
                self._add_answer(cell, arm, probe.timed(checks)[1])
        queries = self._queries(cell, "bench_scan")
        for probe in probes.values():
            # Maps the shared buffers into this backend's page tables.
            probe.timed(queries)
        repeats = max(9, min(400, round(self.scale.cached_seconds / cell.rows * CACHED_ROWS)))
        before = {arm: probe.snapshot() for arm, probe in probes.items()}
        elapsed: dict[str, list[float]] = {arm: [] for arm in ARMS}
        for repeat in range(repeats):
            for arm in self._order(repeat):
                elapsed[arm] += probes[arm].timed(queries)[0]
        for arm, probe in probes.items():
            spent = difference(before[arm], probe.snapshot())
            if spent["heap_blks_read"]:
                raise RunFailed(f"{cell.id}: the table is not in shared buffers")
            self._record(
                cell, pair, arm, "shared buffers", self.store.settings(probe.conn),
                elapsed_ms=round(min(elapsed[arm]), 4),
                median_ms=round(statistics.median(elapsed[arm]), 4),
                repeats=repeats,
                # The server's other counters are both arms' together.
                backend_cpu_ms=spent["backend_cpu_ms"],
                lookahead=spent.get("lookahead"),
            )  # fmt: skip

    # -- pgbench ------------------------------------------------------------

    @contextlib.contextmanager
    def _both(self, cell: Cell) -> Iterator[dict[str, BenchData]]:
        """Run two servers at once, one for each arm, with the same settings."""
        data = self.data[cell.server]
        twin = data.twin()
        if not self._twin_ready:
            twin.ensure([], pgbench_scale=self.scale.pgbench_scale, extension=self.extension)
            self._twin_ready = True
        arms = dict(zip(ARMS, (data, twin)))
        try:
            for arm, one in arms.items():
                one.start(cell.conf, preload=self.extension and arm == LOOKAHEAD, cold=False)
            yield arms
        finally:
            for one in arms.values():
                one.stop()

    def _pgbench_pair(self, batch: list[Cell], pair: int) -> None:
        """Run pgbench on both servers by turns, a second at a time."""
        (cell,) = batch
        if all(self.store.has_run(cell.id, pair, arm) for arm in ARMS):
            return
        tps: dict[str, list[float]] = {arm: [] for arm in ARMS}
        settings = {}
        with self._both(cell) as arms:
            for arm, data in arms.items():
                with self._connect(data) as conn:
                    settings[arm] = self.store.settings(conn)
                    data.prewarm(conn, "pgbench_accounts")
                self._pgbench(cell, data)
            for turn in range(self.scale.pgbench_turns):
                for arm in self._order(turn):
                    tps[arm].append(self._pgbench(cell, arms[arm]))
        for arm in ARMS:
            self._record(
                cell, pair, arm, "shared buffers", settings[arm],
                elapsed_ms=round(1e6 / max(tps[arm]), 3),
                tps=tps[arm],
            )  # fmt: skip

    @staticmethod
    def _pgbench(cell: Cell, data: BenchData) -> float:
        """Run `pgbench -S` for a second; return transactions per second."""
        clients = str(cell.clients)
        command = [
            str(data.server.bindir / "pgbench"), "--select-only", "--no-vacuum",
            "--client", clients, "--jobs", clients, "--time", "1", data.dsn(),
        ]  # fmt: skip
        done = subprocess.run(command, check=False, capture_output=True, text=True)
        found = re.search(r"^tps = ([0-9.]+)", done.stdout, re.MULTILINE)
        if done.returncode or found is None:
            raise RunFailed(f"pgbench failed: {done.stderr.strip()}")
        return float(found.group(1))
