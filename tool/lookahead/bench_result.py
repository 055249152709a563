"""From runs to the result: the JSON that every table and page is made from.

Per cell: both arms' medians and spreads, their ratio with its interval, blocks,
waits and CPU, and a verdict.  A cell can be met, missed or not significant; and
it is *failed*, whatever its times, when the plan was not the intended one, the
answers differ, or the two arms ran under different settings.
"""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Protocol

from . import stats
from .bench_index_scan import MATRIX_MEAN_GOAL, WASTED_GOAL, Cell
from .bench_measure import LEVELS
from .bench_store import FORMAT, Store, now

STOCK = "stock"
LOOKAHEAD = "lookahead"
ARMS = (STOCK, LOOKAHEAD)
FAILED = "failed"

# Scans of these groups run to the end of their range, so that a block that was
# read and never used is waste and not an early end of the query.
COMPLETE_GROUPS = ("random", "matrix", "pagecache")

# The share of wasted blocks in a handful of reads is chance.
LEAST_ISSUED = 1000

METRICS = (
    "heap_blks_read", "heap_blks_hit", "idx_blks_read", "idx_blks_hit",
    "heap_tuples", "waits_ms", "backend_cpu_ms", "server_cpu_ms",
    "device_reads", "device_read_bytes", "instructions",
)  # fmt: skip


class JudgedCell(Protocol):
    """What a case has to say for its runs to be judged."""

    @property
    def id(self) -> str: ...
    @property
    def goal(self) -> float: ...
    @property
    def same_blocks(self) -> bool: ...
    def as_dict(self) -> dict[str, Any]: ...


def medians(runs: Sequence[dict[str, Any]]) -> dict[str, float]:
    """Return the median of every metric that the runs have."""
    found = {}
    for name in METRICS:
        values = [run[name] for run in runs if run.get(name) is not None]
        if values:
            found[name] = round(statistics.median(values), 3)
    if "heap_blks_read" in found:
        found["blocks_read"] = found["heap_blks_read"] + found.get("idx_blks_read", 0)
    return found


def counters(runs: Iterable[dict[str, Any]], kind: str = "lookahead") -> dict[str, int] | None:
    """Add up the extension's counters; depth_max is the largest seen."""
    total: dict[str, int] = {}
    for run in runs:
        for name, value in (run.get(kind) or {}).items():
            if name in LEVELS:
                total[name] = max(total.get(name, 0), value)
            else:
                total[name] = total.get(name, 0) + value
    return total or None


def paired(runs: Iterable[dict[str, Any]]) -> list[tuple[dict[str, Any], dict[str, Any]]]:
    """Return (stock, look-ahead) of every pair of which both runs exist."""
    by_pair: dict[int, dict[str, dict[str, Any]]] = {}
    for run in runs:
        by_pair.setdefault(run["pair"], {})[run["arm"]] = run
    return [
        (both[STOCK], both[LOOKAHEAD])
        for _, both in sorted(by_pair.items())
        if len(both) == len(ARMS)
    ]


def faults(
    pairs: Sequence[tuple[dict[str, Any], dict[str, Any]]], answers: dict[str, str]
) -> list[str]:
    """List what makes the runs of a cell unfit for comparison."""
    found = []
    runs = [run for pair in pairs for run in pair]
    if len({run["settings"] for run in runs}) > 1:
        found.append("the arms ran under different settings")
    if any(s.get("answer") != a.get("answer") for s, a in pairs):
        found.append("the answers of the arms differ")
    if len(set(answers.values())) > 1:
        found.append("the answers of the arms differ")
    if len({run.get("plan") for run in runs}) > 1:
        found.append("the plans of the arms differ")
    if len({run.get("heap_tuples") for run in runs if "heap_tuples" in run}) > 1:
        found.append("the arms fetched different numbers of rows")
    if any((a.get("lookahead") or {}).get("reads_in_flight") for _, a in pairs):
        found.append("pins were left after the query")
    if any(
        (run.get(kind) or {}).get("errors") for run in runs for kind in ("lookahead", "service")
    ):
        found.append("look-ahead met errors")
    return sorted(set(found))


def blocks_more(pairs: Sequence[tuple[dict[str, Any], dict[str, Any]]]) -> int:
    """Return how many blocks more look-ahead read, at worst over the pairs.

    A block that was issued but not used may have been advice to the kernel,
    which no counter of the server shows, so it counts as read.
    """

    def total(run: dict[str, Any]) -> float:
        return float(run.get("heap_blks_read", 0) + run.get("idx_blks_read", 0))

    worst = 0
    for stock, ahead in pairs:
        seen = ahead.get("lookahead") or {}
        unused = seen.get("blocks_issued", 0) - seen.get("blocks_used", 0)
        worst = max(worst, int(total(ahead) - total(stock)), unused)
    return worst


def measured(
    pairs: Sequence[tuple[dict[str, Any], dict[str, Any]]], metric: str
) -> tuple[stats.Ratio, dict[str, Any]]:
    """Return the ratio of one number of the runs, and it as it goes into the result."""
    times = [[run[metric] for run in side] for side in zip(*pairs)]
    ratio = stats.ratio(times[0], times[1])
    found: dict[str, Any] = {"ratio": ratio.as_dict(), "change": ratio.change}
    for arm, values in zip(ARMS, times):
        found[arm] = {"ms": stats.summarize(values).as_dict(), "times_ms": values}
    return ratio, found


def cell_result(cell: JudgedCell, store: Store, metric: str = "elapsed_ms") -> dict[str, Any]:
    """Summarize one cell from what the store has of it, judged by one number."""
    result: dict[str, Any] = cell.as_dict()
    rejected = [r["reason"] for r in store.of("rejected") if r["cell"] == cell.id]
    pairs = paired(run for run in store.of("run") if run["cell"] == cell.id)
    result["pairs"] = len(pairs)
    if rejected or not pairs:
        result["verdict"] = FAILED
        result["faults"] = rejected or ["no complete pair of runs"]
        return result

    ratio, found = measured(pairs, metric)
    answers = {r["arm"]: r["answer"] for r in store.of("answer") if r["cell"] == cell.id}
    result["ratio"] = found["ratio"]
    result["change"] = found["change"]
    result["faults"] = faults(pairs, answers)
    result["settings"] = sorted({run["settings"] for pair in pairs for run in pair})
    result["cache"] = sorted({run["cache"] for pair in pairs for run in pair})
    for arm, side in zip(ARMS, zip(*pairs)):
        result[arm] = {**found[arm], **medians(side)}
    result[LOOKAHEAD]["counters"] = counters(a for _, a in pairs)
    result["verdict"] = stats.verdict(ratio, cell.goal)
    if cell.same_blocks:
        result["blocks_more"] = blocks_more(pairs)
        if result["blocks_more"] > 0:
            result["verdict"] = stats.MISSED
    if result["faults"]:
        result["verdict"] = FAILED
    return result


def matrix_total(cells: Sequence[dict[str, Any]]) -> dict[str, Any] | None:
    """Return the geometric mean over the matrix, and over each I/O method."""
    measured = [c for c in cells if c["group"] == "matrix" and "ratio" in c]
    if not measured:
        return None

    def mean(some: Sequence[dict[str, Any]]) -> stats.Ratio:
        return stats.geometric_mean_ratio(
            [(c[STOCK]["times_ms"], c[LOOKAHEAD]["times_ms"]) for c in some]
        )

    overall = mean(measured)
    methods = sorted({c["io_method"] or "" for c in measured})
    return {
        "name": "matrix, geometric mean",
        "cells": len(measured),
        "ratio": overall.as_dict(),
        "goal": MATRIX_MEAN_GOAL,
        "verdict": stats.verdict(overall, MATRIX_MEAN_GOAL),
        "by_io_method": {
            method: mean([c for c in measured if (c["io_method"] or "") == method]).value
            for method in methods
        },
    }


def wasted_total(name: str, seen: Sequence[tuple[str, Mapping[str, int]]]) -> dict[str, Any] | None:
    """Return the share of issued blocks that complete scans never used.

    seen: the cases that run their scans to the end, and what they counted.
    """
    issued = sum(n["blocks_issued"] for _, n in seen)
    if not issued:
        return None
    wasted = sum(n["blocks_wasted"] for _, n in seen)
    shares = [
        (n["blocks_wasted"] / n["blocks_issued"], case)
        for case, n in seen
        if n["blocks_issued"] >= LEAST_ISSUED
    ]
    most = max(shares, default=None)
    return {
        "name": name,
        "issued": issued,
        "used": sum(n["blocks_used"] for _, n in seen),
        "wasted": wasted,
        "share": wasted / issued,
        "worst": {"cell": most[1], "share": most[0]} if most else None,
        "goal": WASTED_GOAL,
        "verdict": stats.MET if wasted / issued <= WASTED_GOAL else stats.MISSED,
    }


def counted(
    cells: Sequence[dict[str, Any]], groups: Sequence[str], name: str
) -> list[tuple[str, Mapping[str, int]]]:
    """Return the cells of some groups by their name, with what their look-ahead runs counted."""
    return [
        (cell["id"], cell[LOOKAHEAD][name])
        for cell in cells
        if cell["group"] in groups and cell.get(LOOKAHEAD, {}).get(name)
    ]


def build_result(cells: Sequence[Cell], store: Store) -> dict[str, Any]:
    """Make the whole result; safe to call at any time during a run."""
    done = [cell_result(cell, store) for cell in cells]
    wasted = wasted_total(
        "blocks wasted on scans run to their end", counted(done, COMPLETE_GROUPS, "counters")
    )
    totals = [t for t in (matrix_total(done), wasted) if t]
    return assemble("index-scan", store, done, totals)


def assemble(
    benchmark: str, store: Store, cells: list[dict[str, Any]], totals: list[dict[str, Any]]
) -> dict[str, Any]:
    """Put the summaries of a benchmark together with what is known of its run."""
    verdicts = [item["verdict"] for item in [*cells, *totals]]
    header = store.header
    return {
        "format": FORMAT,
        "benchmark": benchmark,
        "started": header["started"],
        "finished": now(),
        "definition": header["definition"],
        "metadata": header["metadata"],
        "settings": {s["digest"]: s["settings"] for s in store.of("settings")},
        "notes": [n["text"] for n in store.of("note")],
        "verdicts": {v: verdicts.count(v) for v in sorted(set(verdicts))},
        "totals": totals,
        "cells": cells,
    }
