"""How a case of `bench io-service` is run: which statements, in which order.

A run of a `Shape`, on a server that was started with empty caches:

    session     SET ...; in both arms
    warm        statements on small tables: program code is read from disk, too
    (checked)   EXPLAIN of the timed query proves the plan and loads the catalog
    timed       one statement
    after       what the timed statement left; the answer of a command
    undo        takes it back, for the next run

A query's answer is what it returns.  Where it returns nothing, because sending
rows is not what is measured, `answer` is another query over the same rows that
does, run once per arm and untimed, and cold as well.  EXPLAIN (ANALYZE) slows a
query down, so a case that is judged by the time of an operator is run twice,
each time cold: as it is for the time end to end, explained for the operator.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from psycopg import sql

from . import bench_plan, tpch
from .bench_io_service import DIRECT, WAITED, Case, Scale
from .bench_measure import PlanRejected, load_sql, scan_query
from .bench_run import PLANNER
from .data import WARM_ROWS, WARM_TABLE

EXPLAIN = sql.SQL("EXPLAIN (ANALYZE, BUFFERS, FORMAT JSON) ")
# Without a clock for every row, which is most of what EXPLAIN adds.
EXPLAIN_READS = sql.SQL("EXPLAIN (ANALYZE, BUFFERS, TIMING OFF, FORMAT JSON) ")

BUILT_INDEX = "bench_built"


@dataclass(frozen=True)
class Shape:
    """The statements of a case; see the drawing above."""

    timed: sql.Composed
    warm: Sequence[sql.Composed]
    session: Sequence[str] = ()
    # The scan that the plan must have, as (node type, table).
    scan: tuple[str, str] | None = None
    parallel: int = 0
    # It is run once more, explained; or it is timed as EXPLAIN of this kind.
    explained: bool = False
    prefix: sql.SQL | None = None
    is_command: bool = False
    answer: sql.Composed | None = None
    after: sql.Composed | None = None
    undo: Sequence[sql.Composed] = field(default_factory=list)
    # Only the table is to be cold, not its indexes.
    indexes_cached: bool = False
    # The data directory has to be put back before each run.
    restored: bool = False

    @property
    def statement(self) -> sql.Composed:
        """Return what is sent to be timed."""
        return self.timed if self.prefix is None else self.prefix + self.timed

    def check(self, plan: dict[str, Any]) -> None:
        """Raise PlanRejected unless the plan is the one this case measures."""
        if self.scan is None:
            return
        kind, table = self.scan
        if bench_plan.scan_of(plan, kind, table) is None:
            raise PlanRejected(f"wanted {kind} on {table}; the plan is {bench_plan.shape(plan)}")
        planned, _ = bench_plan.workers(plan)
        if planned != self.parallel:
            raise PlanRejected(f"wanted {self.parallel} parallel workers; {planned} are planned")


def shape_of(case: Case, scale: Scale) -> Shape:
    """Return how a case is run; not for groups with roads of their own."""
    return _MAKERS[case.group](case, scale)


def _seqscan(case: Case, scale: Scale) -> Shape:
    return Shape(
        timed=load_sql("bench_heavy", table=case.table),
        warm=[load_sql("bench_heavy", table=WARM_TABLE)],
        scan=("Seq Scan", case.table),
        parallel=case.parallel,
        explained=True,
    )


def _tpch(case: Case, scale: Scale) -> Shape:
    return Shape(
        timed=tpch.query(case.query),
        warm=[load_sql("bench_heavy", table=WARM_TABLE)],
        explained=True,
    )


def _vacuum(case: Case, scale: Scale) -> Shape:
    relation = sql.Identifier(case.table)
    return Shape(
        timed=sql.SQL("VACUUM {}").format(relation),
        warm=[sql.SQL("VACUUM {}").format(sql.Identifier(WARM_TABLE))],
        is_command=True,
        after=load_sql("bench_vacuumed", table=sql.Literal(case.table), relation=relation),
        restored=True,
    )


def _vacuum_index(case: Case, scale: Scale) -> Shape:
    # Few pages have dead rows: by itself VACUUM would leave the index for later.
    vacuum = sql.SQL("VACUUM (INDEX_CLEANUP ON, TRUNCATE OFF) {}")
    return replace(_vacuum(case, scale), timed=vacuum.format(sql.Identifier(case.table)))


def _create_index(case: Case, scale: Scale) -> Shape:
    return _build_index(case, sql.SQL("CREATE INDEX {} ON {} (a)"))


def _validate_index(case: Case, scale: Scale) -> Shape:
    # With the wide column it is large enough to be worth it.
    return _build_index(case, sql.SQL("CREATE INDEX CONCURRENTLY {} ON {} (a, b)"))


def _build_index(case: Case, command: sql.SQL) -> Shape:
    def create(name: str, table: str) -> sql.Composed:
        return command.format(sql.Identifier(name), sql.Identifier(table))

    def drop(name: str) -> sql.Composed:
        return sql.SQL("DROP INDEX IF EXISTS {}").format(sql.Identifier(name))

    warm = f"{BUILT_INDEX}_{WARM_TABLE}"
    return Shape(
        timed=create(BUILT_INDEX, case.table),
        # Also what a run that was interrupted left.
        warm=[drop(BUILT_INDEX), drop(warm), create(warm, WARM_TABLE), drop(warm)],
        is_command=True,
        after=load_sql("bench_built", index=sql.Literal(BUILT_INDEX)),
        undo=[drop(BUILT_INDEX)],
    )


def _bitmap(case: Case, scale: Scale) -> Shape:
    assert case.metric == WAITED
    direct = DIRECT.items() <= case.conf.items()
    warm = [scan_query("bench_scan", WARM_TABLE, 1, WARM_ROWS, "forward")]
    if direct:
        # There is no page cache to have the index in.
        warm.append(load_sql("bench_prewarm_indexes", table=sql.Literal(case.table)))
    return Shape(
        timed=load_sql("bench_bitmap", table=case.table),
        prefix=EXPLAIN_READS,
        warm=warm,
        scan=("Bitmap Heap Scan", case.table),
        answer=load_sql("bench_bitmap_answer", table=case.table),
        indexes_cached=not direct,
    )


def _index_scan(case: Case, scale: Scale) -> Shape:
    first = 1 + (scale.rows - scale.random_rows) // 2
    last = first + scale.random_rows - 1
    return Shape(
        timed=scan_query("bench_scan", case.table, first, last, "forward"),
        warm=[scan_query("bench_scan", WARM_TABLE, 1, WARM_ROWS, "forward")],
        session=PLANNER,
        scan=("Index Scan", case.table),
        answer=scan_query("bench_answer", case.table, first, last, "forward"),
    )


_MAKERS = {
    "seqscan": _seqscan,
    "seqscan-direct": _seqscan,
    "tpch": _tpch,
    "vacuum": _vacuum,
    "vacuum-wal": _vacuum,
    "vacuum-index": _vacuum_index,
    "create-index": _create_index,
    "validate-index": _validate_index,
    "bitmap": _bitmap,
    "index-scan": _index_scan,
}
