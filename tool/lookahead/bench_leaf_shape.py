"""How a case of `bench leaf` is run: which statements, and which plan they must have.

    session     SET ...; in both arms
    warm        the like of the timed queries on a small table
    (checked)   EXPLAIN of the first timed query proves the plan
    timed       one query, or many small ones
    answer      the same rows, returned: once per arm and untimed, cold as well.
                Small queries return their rows anyway and have none.

The index part of a bitmap scan is over before the first row comes, and only
EXPLAIN (ANALYZE) tells how long it took: such a case is timed as EXPLAIN.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from psycopg import sql

from . import bench_plan
from .bench_io_shape import EXPLAIN
from .bench_leaf import ACCOUNTS, BACKWARD, BITMAP, INDEX, INDEX_ONLY, Case, Scale
from .bench_measure import HARMLESS_NODES, PlanRejected, load_sql
from .data import WARM_ROWS, WARM_TABLE

# The planner is held to one kind of scan, in the order of the index.
PLANNER = {
    INDEX_ONLY: {"enable_bitmapscan": "off"},
    INDEX: {"enable_bitmapscan": "off", "enable_indexonlyscan": "off"},
    BITMAP: {"enable_indexscan": "off", "enable_indexonlyscan": "off"},
}
ALWAYS = {"enable_seqscan": "off", "enable_sort": "off", "enable_hashagg": "off"}

# Parallel, whatever it costs and however small the index.
PARALLEL = {
    "parallel_setup_cost": "0",
    "parallel_tuple_cost": "0",
    "min_parallel_index_scan_size": "0",
}


@dataclass(frozen=True)
class Shape:
    """The statements of a case; see the drawing above."""

    kind: str
    table: str
    direction: str
    session: Sequence[str]
    warm: Sequence[sql.Composed]
    timed: Sequence[sql.Composed]
    answer: sql.Composed | None = None
    prefix: sql.SQL | None = None
    workers: int = 0

    @property
    def statements(self) -> list[sql.Composed]:
        """Return what is sent to be timed."""
        return [self.prefix + text if self.prefix else text for text in self.timed]

    def check(self, plan: dict[str, Any]) -> None:
        """Raise PlanRejected unless the plan is one scan of the kind that is measured."""
        node = plan
        workers = 0
        while node["Node Type"] in (*HARMLESS_NODES, *bench_plan.GATHERS):
            workers = node.get("Workers Planned", workers)
            if len(node.get("Plans", [])) != 1:
                break
            node = node["Plans"][0]
        wanted: tuple[str | None, ...]
        if self.kind == BITMAP:
            below = [child["Node Type"] for child in node.get("Plans", [])]
            found = (node["Node Type"], node.get("Relation Name"), *below)
            wanted = ("Bitmap Heap Scan", self.table, BITMAP)
        else:
            found = (node["Node Type"], node.get("Relation Name"), node.get("Scan Direction"))
            wanted = (self.kind, self.table, self.direction.capitalize())
        if found != wanted or workers != self.workers:
            raise PlanRejected(
                f"wanted {', '.join(map(str, wanted))} and {self.workers} workers;"
                f" the plan is {bench_plan.shape(plan)}"
            )


def settings_of(case: Case) -> list[str]:
    """Return the statements that hold the planner to a kind of scan."""
    wanted = {**ALWAYS, **PLANNER[case.kind]}
    if case.workers:
        wanted |= {**PARALLEL, "max_parallel_workers_per_gather": str(case.workers)}
    return [f"SET {name} = {value}" for name, value in wanted.items()]


def shape_of(case: Case, scale: Scale) -> Shape:
    """Return how a case is run; not for groups that run pgbench."""
    common: dict[str, Any] = {
        "kind": case.kind,
        "table": case.table,
        "direction": case.direction,
        "session": settings_of(case),
        "warm": [_warm(case)],
        "workers": case.workers,
    }
    if case.queries > 1:
        return Shape(timed=_small(case, scale), **common)
    if case.table == ACCOUNTS:
        return Shape(
            timed=[_groups("bench_leaf_groups", case, scale)],
            answer=_groups("bench_leaf_groups_answer", case, scale),
            **common,
        )
    first, last = case.range(scale)
    if case.kind == BITMAP or case.workers:
        text = _sum(case.table, first, last)
        prefix = EXPLAIN if case.kind == BITMAP else None
        return Shape(timed=[text], answer=text, prefix=prefix, **common)
    return Shape(
        timed=[_scan("bench_leaf_scan", case, case.table, first, last)],
        answer=_scan("bench_leaf_answer", case, case.table, first, last),
        **common,
    )


def _order(case: Case) -> sql.SQL:
    return sql.SQL("DESC" if case.direction == BACKWARD else "ASC")


def _columns(case: Case) -> sql.SQL:
    """Name what an index-only scan has, or more than that."""
    return sql.SQL("a, b") if case.kind == INDEX else sql.SQL("a")


def _scan(name: str, case: Case, table: str, first: int, last: int) -> sql.Composed:
    return load_sql(
        name, table=table, columns=_columns(case), first=first, last=last, direction=_order(case)
    )


def _sum(table: str, first: int, last: int) -> sql.Composed:
    return load_sql("bench_leaf_sum", table=table, first=first, last=last)


def _groups(name: str, case: Case, scale: Scale) -> sql.Composed:
    first, last = case.range(scale)
    # One of two texts of our own, and no identifier.
    aggregate = {"count(*)": sql.SQL("count(*)"), "sum(abalance)": sql.SQL("sum(abalance)")}
    return load_sql(
        name, table=case.table, aggregate=aggregate[case.aggregate],
        first=first, last=last, direction=_order(case),
    )  # fmt: skip


def _small(case: Case, scale: Scale) -> list[sql.Composed]:
    """Return the small queries of a run."""
    if case.limit is not None:
        return [
            load_sql("bench_leaf_limit", table=case.table, first=key, limit=case.limit)
            for key in case.keys(scale)
        ]
    return [
        load_sql("bench_leaf_point", table=case.table, columns=_columns(case), key=key)
        for key in case.keys(scale)
    ]


def _warm(case: Case) -> sql.Composed:
    """Load code and catalogs without touching the blocks that are timed."""
    if case.kind == BITMAP or case.workers:
        return _sum(WARM_TABLE, 1, WARM_ROWS)
    return _scan("bench_leaf_scan", case, WARM_TABLE, 1, WARM_ROWS)


def index_part(rows: Sequence[Any]) -> dict[str, Any]:
    """Return what EXPLAIN says of the bitmap index scan of a plan."""
    plan = rows[0][0][0]["Plan"]
    node = bench_plan.find(plan, lambda some: some["Node Type"] == BITMAP)
    if node is None:
        raise PlanRejected(f"there is no bitmap index scan in {bench_plan.shape(plan)}")
    return {
        "index_ms": round(max(float(node["Actual Total Time"]), 0.001), 3),
        # The server's count of the time in its reads; those of the table are not in it.
        "waited_ms": round(max(bench_plan.own_read_ms(node), 0.01), 3),
        "index_blocks": node.get("Shared Read Blocks", 0),
        "plan": bench_plan.shape(plan),
        "entries": node["Actual Rows"],
    }
