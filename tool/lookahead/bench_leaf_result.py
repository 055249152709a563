"""From runs to the result of `bench leaf`.

Cases are summarized as those of index scans are (bench_result.py).  One that has
several goals, a time and a share of the waits, say, is as good as the worst of
them.  What was looked ahead is shown of leaf pages and of table blocks apart.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from . import stats
from .bench_leaf import WASTED_GOAL, Case
from .bench_result import (
    FAILED,
    LEAST_ISSUED,
    LOOKAHEAD,
    assemble,
    cell_result,
    counters,
    measured,
    paired,
)
from .bench_store import Store

# From the best to the worst.
VERDICTS = (stats.MET, stats.NOT_SIGNIFICANT, stats.MISSED, FAILED)

# Scans of these groups run to the end of their range, so that a leaf page that
# was read and never used is waste and not an early end of the query.
COMPLETE_GROUPS = ("index-only", "bitmap", "index-scan", "accounts")

KINDS = ("leaf", "table")


def worst(verdicts: Sequence[str]) -> str:
    """Return the worst of several verdicts."""
    return max(verdicts, key=VERDICTS.index)


def case_result(case: Case, store: Store) -> dict[str, Any]:
    """Summarize one case from what the store has of it."""
    result = cell_result(case, store, case.metric)
    if "ratio" not in result:
        return result
    pairs = paired(run for run in store.of("run") if run["cell"] == case.id)
    judged = []
    for goal in case.goals:
        ratio, found = measured(pairs, goal.metric)
        judged.append(
            {
                "metric": goal.metric,
                "goal": goal.ratio,
                "aim": goal.aim,
                "verdict": stats.verdict(ratio, goal.ratio),
                **found,
            }
        )
    result["goals"] = judged
    result["also"] = {
        name: measured(pairs, name)[1]
        for name in case.also
        if name not in [goal.metric for goal in case.goals]
    }
    result["verdict"] = worst([result["verdict"], *(goal["verdict"] for goal in judged)])
    for kind in KINDS:
        result[LOOKAHEAD][kind] = counters((ahead for _, ahead in pairs), kind)
    return result


def wasted_total(cases: Sequence[dict[str, Any]]) -> dict[str, Any] | None:
    """Return the share of leaf pages that complete scans read ahead and never used."""
    seen = [
        (case["id"], case[LOOKAHEAD]["leaf"])
        for case in cases
        if case["group"] in COMPLETE_GROUPS and case.get(LOOKAHEAD, {}).get("leaf")
    ]
    issued = sum(n["blocks_issued"] for _, n in seen)
    if not issued:
        return None
    wasted = sum(n["blocks_wasted"] for _, n in seen)
    shares = [
        (n["blocks_wasted"] / n["blocks_issued"], name)
        for name, n in seen
        if n["blocks_issued"] >= LEAST_ISSUED
    ]
    most = max(shares, default=None)
    return {
        "name": "leaf pages wasted on scans run to their end",
        "issued": issued,
        "used": sum(n["blocks_used"] for _, n in seen),
        "wasted": wasted,
        "share": wasted / issued,
        "worst": {"cell": most[1], "share": most[0]} if most else None,
        "goal": WASTED_GOAL,
        "verdict": stats.MET if wasted / issued <= WASTED_GOAL else stats.MISSED,
    }


def build_result(cases: Sequence[Case], store: Store) -> dict[str, Any]:
    """Make the whole result; safe to call at any time during a run."""
    done = [case_result(case, store) for case in cases]
    total = wasted_total(done)
    return assemble("leaf", store, done, [total] if total else [])
