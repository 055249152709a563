"""From runs to the result of `bench extend`, and its table."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from . import stats
from .bench_extend import CALLS_GOAL, GROUPS, LoadCase
from .bench_extend_run import size_faults
from .bench_result import ARMS, assemble, cell_result
from .bench_store import Store
from .report import Table, ratio_text, spread

TITLES = {
    "insert": "INSERT ... SELECT, one session",
    "copy": "COPY FROM, one session",
    "copy-4": "COPY FROM, four sessions into one table",
    "copy-parts": "COPY FROM, one session into eight partitions",
    "rows": "INSERTs of single rows, 16 sessions",
    "create-index": "CREATE INDEX",
    "calls": "system calls that make a file longer, INSERT ... SELECT",
    "size": "pages of small tables; pages that are spare a second after a load",
}

# Verdict of a case that could not be counted here; a note says why.
NOT_RUN = "not run"


def check_result(case: LoadCase, store: Store) -> dict[str, Any]:
    """Judge what was counted instead of timed."""
    result = case.as_dict()
    lines = [line["found"] for line in store.of("check") if line["cell"] == case.id]
    result["found"] = lines[-1] if lines else None
    if not lines:
        result["faults"] = []
    elif case.group == "size":
        result["faults"] = size_faults(lines[-1])
    else:
        few = lines[-1]["ratio"] < CALLS_GOAL
        result["faults"] = ["too many calls make the file longer"] if few else []
    result["verdict"] = stats.MISSED if result["faults"] else stats.MET
    if not lines:
        result["verdict"] = NOT_RUN
    return result


def case_result(case: LoadCase, store: Store) -> dict[str, Any]:
    if case.group in ("calls", "size"):
        return check_result(case, store)
    result = cell_result(case, store)
    runs = [run for run in store.of("run") if run["cell"] == case.id]
    for arm in ARMS:
        some = [run for run in runs if run["arm"] == arm]
        if arm in result and some:
            result[arm]["spare"] = max(run["spare"] for run in some)
            result[arm]["pages"] = max(run["pages"] for run in some)
    return result


def build_result(cases: Sequence[LoadCase], store: Store) -> dict[str, Any]:
    """Make the whole result; safe to call at any time during a run."""
    return assemble("extend", store, [case_result(case, store) for case in cases], [])


def tables(result: dict[str, Any]) -> list[Table]:
    """Return a table for each group."""
    found = []
    for group in GROUPS:
        cases = [case for case in result["cells"] if case["group"] == group]
        if not cases:
            continue
        table = Table(
            title=f"{group}: {TITLES[group]}",
            columns=["case", "stock ms", "look-ahead ms", "ratio [95 %]", "goal", "verdict",
                     "pages", "spare"],
            details=("pages", "spare"),
        )  # fmt: skip
        for case in cases:
            table.rows.append(_row(case))
            table.notes += [f"{case['id']}: {fault}" for fault in case["faults"]]
        found.append(table)
    return found


def _row(case: dict[str, Any]) -> list[str]:
    name = f"{case['server']} {case['storage']}"
    seen = case.get("found")
    if seen and case["group"] == "calls":
        calls = [f"{seen[arm]:,} calls" for arm in ARMS]
        return [name, *calls, f"{seen['ratio']:g}", case["aim"], case["verdict"], "", ""]
    if seen:
        small = [f"{seen[arm]['small_pages']} pages" for arm in ARMS]
        ahead = seen[ARMS[1]]
        return [name, *small, "", case["aim"], case["verdict"], f"{ahead['pages']:,}",
                f"{ahead['spare']:,}"]  # fmt: skip
    if "ratio" not in case:
        return [name, "-", "-", "-", case["aim"], case["verdict"], "", ""]
    stock, ahead = case["stock"], case["lookahead"]
    return [
        name, spread(stock["ms"]), spread(ahead["ms"]), ratio_text(case["ratio"]),
        case["aim"], case["verdict"],
        f"{stock.get('pages', 0):,} / {ahead.get('pages', 0):,}", f"{ahead.get('spare', 0):,}",
    ]  # fmt: skip
