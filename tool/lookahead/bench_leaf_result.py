"""From runs to the result of `bench leaf`.

Cases are summarized as those of index scans are (bench_result.py).  One that has
several goals, a time and a share of the waits, say, is as good as the worst of
them.  What was looked ahead is shown of leaf pages and of table blocks apart.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from . import stats
from .bench_leaf import Case
from .bench_result import (
    FAILED,
    LOOKAHEAD,
    assemble,
    cell_result,
    counted,
    counters,
    measured,
    paired,
    wasted_total,
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


def build_result(cases: Sequence[Case], store: Store) -> dict[str, Any]:
    """Make the whole result; safe to call at any time during a run."""
    done = [case_result(case, store) for case in cases]
    total = wasted_total(
        "leaf pages wasted on scans run to their end", counted(done, COMPLETE_GROUPS, "leaf")
    )
    return assemble("leaf", store, done, [total] if total else [])
