"""Runs the cases of `bench leaf`.

A cold run is as in bench_run.py: memory is filled and dropped, the server starts
with the library or without, a session warms up, and then the statements of
bench_leaf_shape.py are timed.  Beside the time, the wait is measured: how long
the backend neither ran nor was ready to run.

What the library counts is taken from its view and not from the session, because
the view tells leaf pages from table blocks.

Groups with roads of their own: in `cached` both arms are sessions of one server
that alternate from query to query; in `pgbench` two servers run at once and are
visited by turns; in `pgbench-cold` pgbench is the session that is timed, with
the same transactions in every run.
"""

from __future__ import annotations

import contextlib
import statistics
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import psycopg
from psycopg import sql
from psycopg.rows import dict_row

from .bench_leaf import Case, Scale
from .bench_leaf_data import LeafData
from .bench_leaf_shape import Shape, index_part, shape_of
from .bench_measure import (
    PlanRejected,
    Probe,
    answer_digest,
    fill_page_cache,
    load_sql,
    one_processor,
    scheduled_ms,
)
from .bench_pairs import (
    SELECT_ONLY,
    SPARE_BYTES,
    PairRunner,
    Progress,
    RunFailed,
    pgbench_transactions,
    until,
)
from .bench_result import ARMS
from .bench_run import CACHED_ROWS, trimmed
from .bench_store import Store

# Of pgbench: transactions that load code and catalogs, and the two seeds.
WARM_TRANSACTIONS = 20
WARM_SEED = 7
SEED = 42

# As the library's view calls them.
KINDS = {"leaf": True, "table": False}


class LeafRunner(PairRunner[Case]):
    """Makes the runs of `bench leaf`."""

    def __init__(
        self,
        store: Store,
        data: dict[str, LeafData],
        scale: Scale,
        *,
        extension: bool,
        progress: Progress,
    ) -> None:
        super().__init__(store, extension=extension, progress=progress)
        self.data = data
        self.scale = scale

    def _pair_of(self, group: str) -> Callable[[list[Case], int], None]:
        return {
            "cached": self._cached_pair,
            "pgbench": self._pgbench_pair,
        }.get(group, self._cold_pair)

    def _batches(self, group: str, cells: Sequence[Case]) -> Iterator[list[Case]]:
        if group != "cached":
            yield from super()._batches(group, cells)
            return
        by_table: dict[str, list[Case]] = {}
        for case in cells:
            by_table.setdefault(case.table, []).append(case)
        yield from by_table.values()

    # -- starting ---------------------------------------------------------------

    def _is_loaded(self, case: Case, arm: str) -> bool:
        return self.extension and arm in case.loaded

    def _start(self, case: Case, arm: str) -> str:
        """Start the server of a case with empty caches; say how they were emptied."""
        data = self.data[case.server]
        loaded = self._is_loaded(case, arm)
        is_small = case.queries > 1 or case.clients > 0
        size = 0 if is_small else data.bytes_of(case.table)
        fill_page_cache(data.folder, size + SPARE_BYTES)
        return data.start(case.conf_of(arm, extension=loaded), preload=loaded, cold=True)

    @contextlib.contextmanager
    def _session(
        self, case: Case, arm: str, shape: Shape
    ) -> Iterator[tuple[psycopg.Connection[Any], Probe]]:
        """Connect and warm up; the timed statements are next."""
        data = self.data[case.server]
        loaded = self._is_loaded(case, arm)
        with data.connect() as conn:
            for statement in shape.session:
                conn.execute(statement.encode())
            for text in shape.warm:
                conn.execute(text)
            self._check_plan(conn, shape)
            if loaded:
                conn.execute("SELECT pg_stat_lookahead_reset()")
            yield conn, Probe(conn, data.folder, case.table, loaded)

    @staticmethod
    def _check_plan(conn: psycopg.Connection[Any], shape: Shape) -> None:
        row = conn.execute(sql.SQL("EXPLAIN (FORMAT JSON) ") + shape.timed[0]).fetchone()
        assert row is not None
        shape.check(row[0][0]["Plan"])

    # -- cold runs --------------------------------------------------------------

    def _cold_pair(self, batch: list[Case], pair: int) -> None:
        (case,) = batch
        for arm in self._order(pair):
            if self.store.is_rejected(case.id):
                return
            try:
                if case.clients:
                    if not self.store.has_run(case.id, pair, arm):
                        self._pgbench_run(case, pair, arm)
                    continue
                shape = shape_of(case, self.scale)
                if shape.answer is not None and not self.store.has_answer(case.id, arm):
                    self._answer_run(case, arm, shape, shape.answer)
                if not self.store.has_run(case.id, pair, arm):
                    self._cold_run(case, pair, arm, shape)
            except PlanRejected as reason:
                self._reject(case, reason)

    def _answer_run(self, case: Case, arm: str, shape: Shape, answer: sql.Composed) -> None:
        """Run the case once untimed, for the rows; in the same state of the caches."""
        self._start(case, arm)
        with self._session(case, arm, shape) as (_, probe):
            _, answers = probe.timed([answer])
        self._add_answer(case, arm, answers)

    def _cold_run(self, case: Case, pair: int, arm: str, shape: Shape) -> None:
        cache = self._start(case, arm)
        with self._session(case, arm, shape) as (conn, probe):
            settings = self.store.settings(conn)
            before = probe.snapshot()
            is_small = case.queries > 1
            with one_processor(pair, probe.pid) if is_small else contextlib.nullcontext():
                elapsed, answers, waited = waited_in(probe, shape.statements)
            spent = probe.since(before)
            counted = self._counted(conn, case, arm)
        more: dict[str, Any] = {}
        if shape.prefix is None:
            # Where the kernel does not tell, the server's count has to do.
            slept = spent["waits_ms"] if waited is None else waited
            more = {"waited_ms": round(max(slept, 0.01), 3), "answer": answer_digest(answers)}
        else:
            found = index_part(answers[0])
            more = {**found, "answer": answer_digest([found["entries"]])}
        self._record(
            case, pair, arm, cache, settings,
            elapsed_ms=round(sum(elapsed) if case.queries == 1 else trimmed(elapsed), 3),
            **spent, **counted, **more,
        )  # fmt: skip

    def _counted(self, conn: psycopg.Connection[Any], case: Case, arm: str) -> dict[str, Any]:
        """Return what the library counted of leaf pages, and of table blocks."""
        if not self._is_loaded(case, arm):
            return {}
        found: dict[str, Any] = {}
        with conn.cursor(row_factory=dict_row) as cur:
            for name, leaves in KINDS.items():
                query = load_sql("bench_leaf_counters", leaves=sql.Literal(leaves))
                found[name] = cur.execute(query).fetchone()
        return found

    # -- pgbench with nothing cached ----------------------------------------------

    def _pgbench_run(self, case: Case, pair: int, arm: str) -> None:
        cache = self._start(case, arm)
        data = self.data[case.server]
        loaded = self._is_loaded(case, arm)
        with data.connect() as conn:
            settings = self.store.settings(conn)
            self._run_pgbench(conn, data, WARM_TRANSACTIONS, WARM_SEED)
            if loaded:
                conn.execute("SELECT pg_stat_lookahead_reset()")
            # The session that is looked at is not the one that is timed.
            probe = Probe(conn, data.folder, case.table, False)
            before = probe.snapshot()
            tps = self._run_pgbench(conn, data, self.scale.transactions, SEED)
            spent = probe.since(before)
            counted = self._counted(conn, case, arm)
        if loaded:
            counted["lookahead"] = {
                name: counted["leaf"][name] + counted["table"][name]
                for name in ("scans", "blocks_issued", "blocks_used", "blocks_wasted", "waits")
            }
        for name in ("backend_cpu_ms", "backend_read_bytes", "server_cpu_ms"):
            spent.pop(name)
        self._record(
            case, pair, arm, cache, settings,
            elapsed_ms=round(1e3 * self.scale.transactions / tps, 3),
            tps=[tps], **spent, **counted,
        )  # fmt: skip

    @staticmethod
    def _run_pgbench(
        conn: psycopg.Connection[Any], data: LeafData, transactions: int, seed: int
    ) -> float:
        tps = pgbench_transactions(data, SELECT_ONLY, 1, transactions, seed)

        def has_ended() -> bool:
            row = conn.execute(load_sql("bench_leaf_sessions")).fetchone()
            return row is not None and row[0] == 0

        # A session hands its counters over when it ends.
        if not until(has_ended):
            raise RunFailed(f"{data.server.name}: pgbench's session does not end")
        return tps

    # -- everything in shared buffers ---------------------------------------------

    def _cached_pair(self, batch: list[Case], pair: int) -> None:
        """Run all cases of one table on one start of the server."""
        missing = [
            case
            for case in batch
            if not self.store.is_rejected(case.id)
            and not all(self.store.has_run(case.id, pair, arm) for arm in ARMS)
        ]
        if not missing:
            return
        first = missing[0]
        data = self.data[first.server]
        data.start(first.conf, preload=False, cold=False)
        with contextlib.ExitStack() as stack:
            probes = {}
            for arm in ARMS:
                library = self._is_loaded(first, arm)
                conn = stack.enter_context(data.connect(library=library))
                data.prewarm(conn, first.table)
                probes[arm] = Probe(conn, data.folder, first.table, library)
                probes[arm].pin(pair)
            for case in missing:
                try:
                    self._cached_run(case, pair, probes)
                except PlanRejected as reason:
                    self._reject(case, reason)

    def _cached_run(self, case: Case, pair: int, probes: dict[str, Probe]) -> None:
        """Time many short repetitions that alternate; the run is the fastest."""
        shape = shape_of(case, self.scale)
        assert shape.answer is not None
        for arm, probe in probes.items():
            probe.conn.execute("RESET ALL")
            for statement in shape.session:
                probe.conn.execute(statement.encode())
            self._check_plan(probe.conn, shape)
            if not self.store.has_answer(case.id, arm):
                self._add_answer(case, arm, probe.timed([shape.answer])[1])
        for probe in probes.values():
            # Maps the shared buffers into this backend's page tables.
            probe.timed(shape.timed)
        rows = max(1, round(case.share * self.scale.rows_of(case.table)))
        repeats = max(9, min(400, round(self.scale.cached_seconds / rows * CACHED_ROWS)))
        before = {arm: probe.snapshot() for arm, probe in probes.items()}
        elapsed: dict[str, list[float]] = {arm: [] for arm in ARMS}
        for repeat in range(repeats):
            for arm in self._order(repeat):
                elapsed[arm] += probes[arm].timed(shape.timed)[0]
        for arm, probe in probes.items():
            spent = probe.since(before[arm])
            if spent["heap_blks_read"] or spent["idx_blks_read"]:
                raise RunFailed(f"{case.id}: the table is not in shared buffers")
            self._record(
                case, pair, arm, "shared buffers", self.store.settings(probe.conn),
                elapsed_ms=round(min(elapsed[arm]), 4),
                median_ms=round(statistics.median(elapsed[arm]), 4),
                repeats=repeats,
                # The server's other counters are both arms' together.
                backend_cpu_ms=spent["backend_cpu_ms"],
                lookahead=spent.get("lookahead"),
            )  # fmt: skip

    # -- pgbench in shared buffers ------------------------------------------------

    def _pgbench_pair(self, batch: list[Case], pair: int) -> None:
        (case,) = batch
        self._pgbench_cached(
            case, pair, self.data[case.server].for_pgbench(), case.conf,
            scale=self.scale.pgbench_scale, clients=case.clients, turns=self.scale.pgbench_turns,
        )  # fmt: skip


def waited_in(
    probe: Probe, statements: Sequence[sql.Composed]
) -> tuple[list[float], list[Any], float | None]:
    """Run statements; return each one's elapsed ms and rows, and the ms they waited."""
    before = scheduled_ms(probe.pid)
    elapsed, answers = probe.timed(statements)
    after = scheduled_ms(probe.pid)
    if before is None or after is None:
        return elapsed, answers, None
    return elapsed, answers, max(0.0, sum(elapsed) - (after - before))
