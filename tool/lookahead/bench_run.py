"""Runs the cases: who is restarted when, in which order, and what is timed.

One run, cold: the server is stopped, the kernel's caches are dropped, the
server starts with the settings of the case, with the library or without; a
session connects, runs the same query on a small table of its own (so that the
code of the executor, and of the extension, has been read from disk), explains
the query (which loads the catalog and proves the plan), and only then is timed,
after the kernel has filled and dropped as much memory as it will (see
fill_page_cache()).
Both arms do exactly this.

The order of runs is that of bench_pairs.py.

What is cached is too fast for arms that are seconds apart, and where a server's
shared buffers happen to lie in memory is worth several per cent.  So in the group
cached both arms are sessions of one server, on the same buffers, that alternate
from query to query: one of them loads the library (session_preload_libraries).
In the group pagecache too, and before each query the table is taken out of
shared buffers; where the server cannot do that, before 18, each arm starts it.
In the group pgbench two servers run at once, one with the library preloaded, and
pgbench visits them by turns; both restart for every pair.
"""

from __future__ import annotations

import contextlib
import math
import statistics
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import psycopg

from .bench_index_scan import BLOCK, EVICTS_SINCE, Cell, Scale
from .bench_measure import (
    PlanRejected,
    Probe,
    answer_digest,
    check_join,
    check_plan,
    fill_page_cache,
    load_sql,
    one_processor,
    scan_query,
)
from .bench_pairs import SPARE_BYTES, PairRunner, Progress, RunFailed
from .bench_result import ARMS
from .bench_store import Store
from .data import WARM_TABLE, BenchData

# The planner is held to plain index scans; both arms say this in the session.
PLANNER = (
    "SET enable_seqscan = off",
    "SET enable_bitmapscan = off",
    "SET enable_indexonlyscan = off",
)

# And to the join of a cell that joins.
JOIN_PLANNER = {
    "merge join": ("SET enable_mergejoin = on", "SET enable_nestloop = off"),
    "nested loop": ("SET enable_mergejoin = off", "SET enable_nestloop = on"),
}
JOINS_ONLY = (
    "SET enable_hashjoin = off",
    "SET enable_material = off",
    "SET enable_memoize = off",
)

# Rows that a scan returns in a second, and the most and the fewest repeats;
# only sets how often to repeat.
CACHED_ROWS = 5_000_000
CACHED_REPEATS = (9, 400)
PAGECACHE_ROWS = 500_000
PAGECACHE_REPEATS = (6, 100)

# Of many tiny queries, the share that is left out at the slow end.
TRIMMED = 0.1


def trimmed(elapsed: Sequence[float]) -> float:
    """Return the sum of many like times, without what interrupted a few of them.

    A query of a tenth of a millisecond that loses its processor for four counts
    as much as forty that do not.  Only the slowest tenth is left out, so that a
    cost which one query in five has to bear still shows.
    """
    kept = sorted(elapsed)[: max(1, round(len(elapsed) * (1 - TRIMMED)))]
    return statistics.mean(kept) * len(elapsed)


def by_median_ratio(elapsed: dict[str, list[float]]) -> dict[str, float]:
    """Return a time for each arm, of repetitions that alternated, an even number.

    Their ratio is the geometric mean of two medians: of the repetitions that began
    with the one arm, and of those that began with the other.
    """
    stock, lookahead = (elapsed[arm] for arm in ARMS)
    ratios = [a / b for a, b in zip(stock, lookahead)]
    ratio = math.sqrt(statistics.median(ratios[::2]) * statistics.median(ratios[1::2]))
    took = statistics.median(stock)
    return dict(zip(ARMS, (took, took / ratio)))


class Runner(PairRunner[Cell]):
    """Makes the runs of `bench index-scan`."""

    def __init__(
        self,
        store: Store,
        data: dict[str, BenchData],
        scale: Scale,
        *,
        extension: bool,
        progress: Progress,
    ) -> None:
        super().__init__(store, extension=extension, progress=progress)
        self.data = data
        self.scale = scale

    def _pair_of(self, group: str) -> Callable[[list[Cell], int], None]:
        return {
            "cached": self._together_pair,
            "pagecache": self._pagecache_pair,
            "pgbench": self._pgbench_pair,
        }.get(group, self._scan_pair)

    def _batches(self, group: str, cells: Sequence[Cell]) -> Iterator[list[Cell]]:
        if group not in ("cached", "pagecache"):
            yield from super()._batches(group, cells)
            return
        by_table: dict[str, list[Cell]] = {}
        for cell in cells:
            by_table.setdefault(cell.table, []).append(cell)
        yield from by_table.values()

    def _start(self, cell: Cell, arm: str, *, cold: bool) -> str:
        """Start the server of a cell for one arm; return the state of the caches."""
        preload = self._is_ahead(arm)
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
        return Probe(conn, self.data[cell.server].folder, cell.table, self._is_ahead(arm))

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

    def _queries(self, cell: Cell, name: str) -> list[Any]:
        ranges = cell.ranges(self.scale.rows)
        if cell.limit is not None:
            return [
                load_sql("bench_limit", table=cell.table, first=a, last=b, limit=cell.limit)
                for a, b in ranges
            ]
        if cell.join is not None:
            name = name.replace("bench", "bench_join")
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
            is_small = cell.limit is not None
            with one_processor(pair, probe.pid) if is_small else contextlib.nullcontext():
                elapsed, answers = probe.timed(queries)
            spent = probe.since(before)
        self._record(
            cell, pair, arm, cache, settings,
            elapsed_ms=round(sum(elapsed) if cell.limit is None else trimmed(elapsed), 3),
            query_ms=[round(ms, 3) for ms in elapsed],
            answer=answer_digest(answers),
            **spent,
        )  # fmt: skip

    # -- everything in shared buffers, or in the page cache -------------------

    def _pagecache_pair(self, batch: list[Cell], pair: int) -> None:
        if self.data[batch[0].server].server.major >= EVICTS_SINCE:
            self._together_pair(batch, pair)
        else:
            for cell in batch:
                self._scan_pair([cell], pair)

    def _together_pair(self, batch: list[Cell], pair: int) -> None:
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
                library = self._is_ahead(arm)
                conn = stack.enter_context(self._connect(data, library=library))
                if first.group == "cached":
                    data.prewarm(conn, first.table)
                probes[arm] = Probe(conn, data.folder, first.table, library)
                probes[arm].pin(pair)
            if first.group == "pagecache":
                conn.execute("CREATE EXTENSION IF NOT EXISTS pg_buffercache")
                data.read_into_page_cache(first.table)
            for cell in missing:
                try:
                    self._together_run(cell, pair, probes)
                except PlanRejected as reason:
                    self._reject(cell, reason)

    def _repeats(self, cell: Cell) -> int:
        """Say how often a run repeats a scan that waits for nothing."""
        cached = cell.group == "cached"
        least, most = CACHED_REPEATS if cached else PAGECACHE_REPEATS
        rows = CACHED_ROWS if cached else PAGECACHE_ROWS
        return max(least, min(most, round(self.scale.cached_seconds / cell.rows * rows)))

    def _together_run(self, cell: Cell, pair: int, probes: dict[str, Probe]) -> None:
        """Time many short repetitions that alternate.

        Nothing makes a cached scan faster than it is, but whatever else the
        machine does makes it slower: the run is the fastest, what the scan itself
        costs.  From the page cache they are fewer and longer, and a processor may
        change its speed meanwhile: what counts is the median ratio of two that
        follow each other, of those that begin with the one arm and of those that
        begin with the other alike.
        """

        def timed(probe: Probe, queries: Sequence[Any]) -> tuple[list[float], list[Any]]:
            if cell.group == "pagecache":
                self.data[cell.server].evict_buffers(probe.conn, cell.table)
            return probe.timed(queries)

        checks = self._queries(cell, "bench_answer")
        for arm, probe in probes.items():
            if cell.join is None:
                check_plan(probe.conn, checks[0], cell.table, cell.direction)
            else:
                for statement in (*JOINS_ONLY, *JOIN_PLANNER[cell.join]):
                    probe.conn.execute(statement)
                check_join(probe.conn, checks[0], cell.table, cell.join)
            if not self.store.has_answer(cell.id, arm):
                self._add_answer(cell, arm, timed(probe, checks)[1])
        queries = self._queries(cell, "bench_scan")
        for probe in probes.values():
            # Maps the shared buffers into this backend's page tables.
            timed(probe, queries)
        repeats = self._repeats(cell)
        before = {arm: probe.snapshot() for arm, probe in probes.items()}
        elapsed: dict[str, list[float]] = {arm: [] for arm in ARMS}
        for repeat in range(repeats):
            for arm in self._order(repeat + pair):
                elapsed[arm] += timed(probes[arm], queries)[0]
        of_all = {arm: min(elapsed[arm]) for arm in ARMS}
        if cell.group == "pagecache":
            of_all = by_median_ratio(elapsed)
        for arm, probe in probes.items():
            spent = probe.since(before[arm])
            self._check_where_it_was(cell, spent, repeats)
            self._record(
                cell, pair, arm,
                "shared buffers" if cell.group == "cached" else "page cache",
                self.store.settings(probe.conn),
                elapsed_ms=round(of_all[arm], 4),
                median_ms=round(statistics.median(elapsed[arm]), 4),
                repeats=repeats,
                # The server's other counters are both arms' together.
                backend_cpu_ms=spent["backend_cpu_ms"],
                lookahead=spent.get("lookahead"),
            )  # fmt: skip

    @staticmethod
    def _check_where_it_was(cell: Cell, spent: dict[str, Any], repeats: int) -> None:
        """Raise RunFailed unless the blocks came from where the group has them."""
        if cell.group == "cached":
            if spent["heap_blks_read"]:
                raise RunFailed(f"{cell.id}: the table is not in shared buffers")
            return
        if not spent["heap_blks_read"]:
            raise RunFailed(f"{cell.id}: the table was in shared buffers")
        if (spent["backend_read_bytes"] or 0) > repeats * BLOCK:
            raise RunFailed(f"{cell.id}: the table is not in the page cache")

    # -- pgbench ------------------------------------------------------------

    def _pgbench_pair(self, batch: list[Cell], pair: int) -> None:
        (cell,) = batch
        assert cell.clients is not None
        self._pgbench_cached(
            cell, pair, self.data[cell.server], cell.conf, scale=self.scale.pgbench_scale,
            clients=cell.clients, turns=self.scale.pgbench_turns,
        )  # fmt: skip
