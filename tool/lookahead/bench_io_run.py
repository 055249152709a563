"""Runs the cases of `bench io-service`.

A cold run is as in bench_run.py: memory is filled and dropped, the server starts
with the library or without, a session warms up, and then one statement is timed;
bench_io_shape.py has the statements.  In the look-ahead arm the workers of the
I/O service have to run, or the run fails.

Groups with roads of their own: in `validate-index` the command is timed from its
middle on; in `pgbench` two servers run at once and are
visited by turns, each with a scan that reads its table from disk in a loop; in
`kill` nothing is timed: all workers are killed in the middle of a query, and what
counts is answers and that the service comes back.
"""

from __future__ import annotations

import contextlib
import functools
import os
import signal
import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import psycopg
from psycopg import sql

from . import bench_plan
from .bench_beside import DisturbedQuery, LoopingScan
from .bench_io_service import BITMAP_TABLE, TPCH, Case, Scale
from .bench_io_shape import EXPLAIN, Shape, shape_of
from .bench_measure import (
    PlanRejected,
    Probe,
    answer_digest,
    fill_page_cache,
    load_sql,
    postmaster_of,
    scheduled_ms,
)
from .bench_pairs import SPARE_BYTES, PairRunner, Progress, RunFailed, pgbench, until
from .bench_result import ARMS, LOOKAHEAD, STOCK
from .bench_store import Store
from .bench_validation import held_up
from .data import ACCOUNTS, BenchData, pgbench_name
from .io_data import ServiceData
from .read_ahead import ReadAhead
from .servers import Server

# What can be known of a command from outside, while it runs.
OUTSIDE = ("waits_ms", "server_cpu_ms", "service")


class NoService(RunFailed):
    """The extension that was built has no I/O service, or it does not start."""


def check_service(conn: psycopg.Connection[Any], server: Server) -> dict[str, str]:
    """Return the extension's settings; raise NoService if those of the service lack."""
    found = conn.execute(load_sql("bench_service_settings")).fetchall()
    settings = {name: setting for name, setting, _ in found}
    methods = next((values for name, _, values in found if name == "pg_lookahead.method"), None)
    if "pg_lookahead.io_workers" not in settings:
        raise NoService(
            f"{server.name}: the extension has no setting pg_lookahead.io_workers,"
            " so this build of it has no I/O service"
        )
    if "worker" not in (methods or []):
        raise NoService(f"{server.name}: pg_lookahead.method cannot be worker in this build")
    return settings


class ServiceRunner(PairRunner[Case]):
    """Makes the runs of `bench io-service`."""

    def __init__(
        self,
        store: Store,
        data: dict[str, ServiceData],
        scale: Scale,
        *,
        extension: bool,
        read_ahead: ReadAhead,
        progress: Progress,
    ) -> None:
        super().__init__(store, extension=extension, progress=progress)
        self.data = data
        self.scale = scale
        self.read_ahead = read_ahead

    def _pair_of(self, group: str) -> Callable[[list[Case], int], None]:
        own = {
            "validate-index": self._validation_pair,
            "pgbench": self._pgbench_pair,
            "kill": self._kill,
        }
        return own.get(group, self._cold_pair)

    # -- starting ---------------------------------------------------------------

    def _has_service(self, case: Case, arm: str) -> bool:
        return case.service and self._is_ahead(arm)

    def _conf(self, case: Case, arm: str) -> dict[str, str]:
        return case.conf_of(arm, extension=self._is_ahead(arm))

    def _data(self, case: Case, shape: Shape) -> ServiceData:
        data = self.data[case.server]
        return data.for_vacuum(case.table) if shape.restored else data

    def _start(self, case: Case, arm: str, shape: Shape) -> str:
        """Start the server of a case with empty caches; say how they were emptied."""
        data = self._data(case, shape)
        if shape.restored:
            data.restore(self.data[case.server].read_us, case.flush_us)
        fill_page_cache(data.folder, data.bytes_of(case.table) + SPARE_BYTES)
        cache = data.start(self._conf(case, arm), preload=self._is_ahead(arm), cold=True)
        if shape.indexes_cached:
            data.read_into_page_cache(case.table, heap=False)
        return cache

    @contextlib.contextmanager
    def _session(
        self, case: Case, arm: str, shape: Shape
    ) -> Iterator[tuple[psycopg.Connection[Any], Probe]]:
        """Connect and warm up; the timed statement is next."""
        data = self._data(case, shape)
        with data.connect() as conn:
            service = self._has_service(case, arm)
            if service:
                self._await_workers(conn, case)
            for statement in shape.session:
                conn.execute(statement.encode())
            for text in shape.warm:
                conn.execute(text)
            if not shape.is_command:
                self._check_plan(conn, shape)
            table = None if case.table == TPCH else case.table
            yield conn, Probe(conn, data.folder, table, self._is_ahead(arm), service=service)

    @staticmethod
    def _await_workers(conn: psycopg.Connection[Any], case: Case) -> None:
        """Wait until all workers run that there should be."""

        def all_run() -> bool:
            row = conn.execute(load_sql("bench_service_workers")).fetchone()
            return row is not None and row[0] == row[1] > 0

        if not until(all_run):
            raise NoService(f"{case.id}: the workers of the I/O service do not run")

    @staticmethod
    def _check_plan(conn: psycopg.Connection[Any], shape: Shape) -> None:
        row = conn.execute(sql.SQL("EXPLAIN (FORMAT JSON) ") + shape.timed).fetchone()
        assert row is not None
        shape.check(row[0][0]["Plan"])

    # -- cold runs --------------------------------------------------------------

    def _cold_pair(self, batch: list[Case], pair: int) -> None:
        (case,) = batch
        shape = shape_of(case, self.scale)
        for arm in self._order(pair):
            if self.store.is_rejected(case.id):
                return
            try:
                if shape.answer is not None and not self.store.has_answer(case.id, arm):
                    self._answer_run(case, arm, shape, shape.answer)
                if not self.store.has_run(case.id, pair, arm):
                    self._cold_run(case, pair, arm, shape)
            except PlanRejected as reason:
                self._reject(case, reason)

    def _answer_run(self, case: Case, arm: str, shape: Shape, answer: sql.Composed) -> None:
        """Run the case once untimed, for the rows; in the same state of the caches."""
        self._start(case, arm, shape)
        with self._session(case, arm, shape) as (_, probe):
            _, answers = probe.timed([answer])
        self._add_answer(case, arm, answers)

    def _cold_run(self, case: Case, pair: int, arm: str, shape: Shape) -> None:
        cache = self._start(case, arm, shape)
        with self._session(case, arm, shape) as (conn, probe):
            settings = self.store.settings(conn, case.apart)
            before = probe.snapshot()
            elapsed, rows, waited = probe.waited(shape.statement, rows_come=not shape.is_command)
            spent = probe.since(before)
            if shape.after is not None:
                rows = conn.execute(shape.after).fetchall()
            for text in shape.undo:
                conn.execute(text)
        more: dict[str, Any] = {"waited_ms": None if waited is None else round(waited, 3)}
        if shape.prefix is not None:
            more.update(explained(rows, waited))
        else:
            more["answer"] = answer_digest([rows])
        if shape.explained:
            more.update(self._explain_run(case, arm, shape))
        self._record(
            case, pair, arm, cache, settings,
            elapsed_ms=round(elapsed, 3), read_ahead_kb=self.read_ahead.current(),
            **spent, **more,
        )  # fmt: skip

    def _explain_run(self, case: Case, arm: str, shape: Shape) -> dict[str, Any]:
        """Run the query once more from cold, for the times of its operators."""
        self._start(case, arm, shape)
        with self._session(case, arm, shape) as (_, probe):
            (elapsed,), (rows,) = probe.timed([EXPLAIN + shape.timed])
        plan = rows[0][0][0]["Plan"]
        planned, launched = bench_plan.workers(plan)
        if shape.parallel and launched < planned:
            raise PlanRejected(f"only {launched} of {planned} parallel workers were launched")
        return {
            # A query without such a scan has a ratio, too: it is 1.
            "operator_ms": round(max(bench_plan.seq_scan_ms(plan), 0.001), 3),
            "explained_ms": round(elapsed, 3),
            "parallel_workers": [planned, launched],
            "plan": bench_plan.shape(plan),
        }

    # -- the validation of an index -----------------------------------------------

    def _validation_pair(self, batch: list[Case], pair: int) -> None:
        (case,) = batch
        for arm in self._order(pair):
            if not self.store.has_run(case.id, pair, arm):
                self._validation_run(case, pair, arm, shape_of(case, self.scale))

    def _validation_run(self, case: Case, pair: int, arm: str, shape: Shape) -> None:
        """Time CREATE INDEX CONCURRENTLY from where it has built the index."""
        cache = self._start(case, arm, shape)
        data = self._data(case, shape)
        assert shape.after is not None
        with self._session(case, arm, shape) as (conn, _), data.connect() as watch:
            settings = self.store.settings(conn, case.apart)
            pid = conn.info.backend_pid
            probe = Probe(
                watch, data.folder, case.table, self._is_ahead(arm),
                service=self._has_service(case, arm),
            )  # fmt: skip
            with held_up(data, conn, case.table, shape.timed) as build:
                data.evict(case.table, indexes=True)
                before, ran = probe.snapshot(), scheduled_ms(pid)
                start = time.perf_counter_ns()
                build.release()
                build.wait_until_index_is_read()
                index_ms = (time.perf_counter_ns() - start) / 1e6
                build.wait()
                elapsed = (time.perf_counter_ns() - start) / 1e6
            spent = probe.since(before)
            ran_until_now = scheduled_ms(pid)
            rows = conn.execute(shape.after).fetchall()
            for text in shape.undo:
                conn.execute(text)
        if ran is not None and ran_until_now is not None:
            spent["waits_ms"] = round(max(0.0, elapsed - (ran_until_now - ran)), 3)
        self._record(
            case, pair, arm, cache, settings,
            elapsed_ms=round(elapsed, 3), index_ms=round(index_ms, 3),
            read_ahead_kb=self.read_ahead.current(), answer=answer_digest([rows]),
            **{name: spent[name] for name in OUTSIDE if name in spent},
        )  # fmt: skip

    # -- pgbench beside a scan ----------------------------------------------------

    def _pgbench_pair(self, batch: list[Case], pair: int) -> None:
        (case,) = batch
        if all(self.store.has_run(case.id, pair, arm) for arm in ARMS):
            return
        tps: dict[str, list[float]] = {arm: [] for arm in ARMS}
        scans: dict[str, list[float]] = {arm: [] for arm in ARMS}
        settings = {}
        needed = [case.table, pgbench_name(self.scale.pgbench_scale)]
        data = self.data[case.server]
        conf = functools.partial(self._conf, case)
        with self._both(data, needed, conf, pair) as arms:
            for arm, one in arms.items():
                with one.connect() as conn:
                    if self._has_service(case, arm):
                        self._await_workers(conn, case)
                    settings[arm] = self.store.settings(conn, case.apart)
                    one.prewarm(conn, ACCOUNTS)
                self._pgbench_turn(case, one, [])
            for turn in range(self.scale.pgbench_turns):
                for arm in self._order(pair + turn):
                    tps[arm].append(self._pgbench_turn(case, arms[arm], scans[arm]))
        for arm in ARMS:
            self._record(
                case, pair, arm, "pgbench in shared buffers, the scan's table nowhere",
                settings[arm],
                # Of 1,000 transactions, over all turns.
                elapsed_ms=round(1e6 / statistics.mean(tps[arm]), 3),
                tps=tps[arm], scans_ms=[round(ms, 1) for ms in scans[arm]],
                read_ahead_kb=self.read_ahead.current(),
            )  # fmt: skip

    def _pgbench_turn(self, case: Case, data: BenchData, scans: list[float]) -> float:
        query = load_sql("bench_heavy", table=case.table)
        with LoopingScan(data, case.table, query) as scan:
            tps = pgbench(data, "tpcb-like", self.scale.pgbench_clients, self.scale.pgbench_seconds)
        scans += scan.scans_ms
        return tps

    # -- killing workers ----------------------------------------------------------

    def _kill(self, batch: list[Case], pair: int) -> None:
        (case,) = batch
        if not self.extension or self.store.has_check(case.id):
            return
        data = self.data[case.server]
        query = load_sql("bench_heavy", table=case.table)
        data.start(self._conf(case, STOCK), preload=False, cold=True)
        with data.connect() as conn:
            start = time.monotonic()
            right = conn.execute(query).fetchall()
            usual = time.monotonic() - start
        rounds = []
        data.start(self._conf(case, LOOKAHEAD), preload=True, cold=True)
        for number in range(self.scale.kills):
            # Serial and parallel, soon after the start or later, but before an
            # end that comes sooner than usual.
            workers = number % 2 * 2
            delay = usual * (number + 1) / (self.scale.kills + 1) / (2 + workers)
            found = self._kill_round(case, data, query, right, delay, workers=workers)
            rounds.append(found)
            self.progress(f"{case.id}  query {number + 1}  {found}")
            if not found["back"]:
                break
        self.store.add({"type": "check", "cell": case.id, "rounds": rounds})

    def _kill_round(
        self,
        case: Case,
        data: ServiceData,
        query: sql.Composed,
        right: Sequence[Any],
        delay: float,
        *,
        workers: int,
    ) -> dict[str, Any]:
        """Kill all workers in the middle of a query; say what came of it.

        A process that dies by SIGKILL may have damaged shared memory, so the
        server ends all sessions and starts anew.  A query may be lost to that;
        it may not return anything else than its answer.
        """
        data.evict(case.table)
        # These sessions end with the server, and there is nothing to commit then.
        with (
            contextlib.closing(data.connect()) as watch,
            contextlib.closing(data.connect()) as conn,
        ):
            self._await_workers(watch, case)
            conn.execute(sql.SQL("SET max_parallel_workers_per_gather = {}").format(workers))
            pids = self._worker_pids(watch, data)
            running = DisturbedQuery(conn, query)
            time.sleep(delay)
            row = watch.execute(load_sql("bench_owners"), (conn.info.backend_pid,)).fetchone()
            in_the_middle = running.is_running
            for pid in pids:
                os.kill(pid, signal.SIGKILL)
            running.wait()
        # The postmaster takes a moment to notice; whoever comes before is sent away.
        back = until(lambda: self._is_back(data, set(pids)))
        again, serves = None, False
        if back:
            with data.connect() as conn:
                before = self._blocks_read(conn)
                data.evict(case.table)
                again = conn.execute(query).fetchall()
                serves = until(lambda: self._blocks_read(conn) > before, 5)
        return {
            "parallel_workers": workers,
            "killed": len(pids),
            "in_the_middle": in_the_middle,
            "looked_ahead": bool(row and row[0]),
            "query": "lost" if running.rows is None else _judge(running.rows, right),
            "again": "lost" if again is None else _judge(again, right),
            "back": back and serves,
        }

    def _worker_pids(self, conn: psycopg.Connection[Any], data: BenchData) -> list[int]:
        """Return the workers' processes, after a look that they are this server's."""
        query = "SELECT pid FROM pg_stat_lookahead_io WHERE pid <> 0"
        pids = [int(pid) for (pid,) in conn.execute(query)]
        postmaster = postmaster_of(data.folder)
        return [pid for pid in pids if parent_of(pid) == postmaster]

    def _is_back(self, data: BenchData, old: set[int]) -> bool:
        with contextlib.suppress(psycopg.Error), data.connect() as conn:
            row = conn.execute(load_sql("bench_service_workers")).fetchone()
            pids = set(self._worker_pids(conn, data))
            return row is not None and row[0] == len(pids) > 0 and not pids & old
        return False

    @staticmethod
    def _blocks_read(conn: psycopg.Connection[Any]) -> int:
        row = conn.execute("SELECT sum(blocks_read) FROM pg_stat_lookahead_io").fetchone()
        return int(row[0] or 0) if row else 0


def _judge(rows: Sequence[Any], right: Sequence[Any]) -> str:
    return "right" if list(rows) == list(right) else "wrong"


def parent_of(pid: int) -> int | None:
    """Return the parent of a process, or None where that cannot be seen."""
    with contextlib.suppress(OSError, ValueError, IndexError):
        return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])
    return None


def explained(rows: Sequence[Any], waited: float | None) -> dict[str, Any]:
    """Return what EXPLAIN says of a bitmap heap scan and its waits."""
    plan = rows[0][0][0]["Plan"]
    scan = bench_plan.scan_of(plan, "Bitmap Heap Scan", BITMAP_TABLE)
    if scan is None:
        raise PlanRejected(f"there is no bitmap heap scan in {bench_plan.shape(plan)}")
    counted = bench_plan.own_read_ms(scan)
    return {
        # The server's count misses waits for other processes' reads; where the
        # kernel does not tell, there is no other.
        "waited_ms": round(max(counted if waited is None else waited, 0.01), 3),
        "read_ms": round(counted, 3),
        "heap_blocks": [scan.get("Exact Heap Blocks", 0), scan.get("Lossy Heap Blocks", 0)],
        "plan": bench_plan.shape(plan),
        "answer": answer_digest([scan["Actual Rows"]]),
    }
