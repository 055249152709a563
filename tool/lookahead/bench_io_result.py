"""From runs to the result of `bench io-service`.

Cases are summarized as those of index scans are (bench_result.py), by the number
that each is judged by; the others that a run has are put beside it.  TPC-H has
totals over its queries, and the check of killed workers is no time at all.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from . import stats
from .bench_io_service import (
    ELAPSED,
    OPERATOR,
    TPCH_GOAL,
    TPCH_SCAN_GOAL,
    Case,
    less_time,
    percent,
)
from .bench_result import (
    ARMS,
    FAILED,
    LOOKAHEAD,
    assemble,
    cell_result,
    counters,
    measured,
    paired,
)
from .bench_store import Store

# The totals of TPC-H: what is added up over the queries, and how much less it
# should be.
TPCH_TOTALS = (
    (OPERATOR, "SeqScan operators", TPCH_SCAN_GOAL),
    (ELAPSED, "end to end", TPCH_GOAL),
)

Pairs = list[tuple[dict[str, Any], dict[str, Any]]]


def pairs_of(case: Case, store: Store) -> Pairs:
    return paired(run for run in store.of("run") if run["cell"] == case.id)


def case_result(case: Case, store: Store) -> dict[str, Any]:
    """Summarize one case from what the store has of it."""
    if case.group == "kill":
        return check_result(case, store)
    result = cell_result(case, store, case.metric)
    if "ratio" not in result:
        return result
    pairs = pairs_of(case, store)
    result["also"] = {name: measured(pairs, name)[1] for name in case.also}
    result[LOOKAHEAD]["service"] = counters((ahead for _, ahead in pairs), "service")
    for place, arm in enumerate(ARMS):
        for name in ("tps", "scans_ms"):
            values = [value for pair in pairs for value in pair[place].get(name, [])]
            if values:
                result[arm][name] = stats.summarize(values).as_dict()
    return result


def check_result(case: Case, store: Store) -> dict[str, Any]:
    """Say whether every query that was disturbed had its answer, and the service came back."""
    result = case.as_dict()
    rounds = [r for line in store.of("check") if line["cell"] == case.id for r in line["rounds"]]
    result["rounds"] = rounds
    result["faults"] = check_faults(rounds)
    result["verdict"] = FAILED if result["faults"] else stats.MET
    result["counts"] = {
        "queries": len(rounds),
        "workers killed": sum(r["killed"] for r in rounds),
        "in the middle of a query": sum(r["in_the_middle"] for r in rounds),
        "while it was looked ahead for": sum(r["looked_ahead"] for r in rounds),
        "answered": sum(r["query"] == "right" for r in rounds),
        "ended by the restart": sum(r["query"] == "lost" for r in rounds),
        "right when asked again": sum(r["again"] == "right" for r in rounds),
        "service back": sum(r["back"] for r in rounds),
    }
    return result


def check_faults(rounds: Sequence[dict[str, Any]]) -> list[str]:
    """List what must not happen when workers are killed."""
    if not rounds:
        return ["it was not run"]
    found = []
    for number, one in enumerate(rounds, 1):
        if "wrong" in (one["query"], one["again"]):
            found.append(f"query {number}: a wrong answer")
        if one["again"] == "lost":
            found.append(f"query {number}: no answer after the restart")
        if not one["back"]:
            found.append(f"query {number}: the service did not come back")
        if not one["killed"]:
            found.append(f"query {number}: there was no worker to kill")
    if sum(one["in_the_middle"] for one in rounds) * 2 < len(rounds):
        found.append("few queries were still running when the workers were killed")
    return found


def tpch_totals(cases: Sequence[Case], store: Store) -> list[dict[str, Any]]:
    """Add up the queries of TPC-H, pair by pair, for each server."""
    totals = []
    for server in dict.fromkeys(case.server for case in cases if case.group == "tpch"):
        mine = [case for case in cases if case.group == "tpch" and case.server == server]
        sums = summed([pairs_of(case, store) for case in mine])
        if not sums:
            continue
        for metric, name, share in TPCH_TOTALS:
            ratio, found = measured(sums, metric)
            totals.append(
                {
                    "name": f"tpch, {server}: {name}, {len(mine)} queries",
                    "goal": less_time(share),
                    "aim": percent(share),
                    "verdict": stats.verdict(ratio, less_time(share)),
                    **found,
                }
            )
    return totals


def summed(queries: Sequence[Pairs]) -> Pairs:
    """Return pairs of sums over all queries; only pairs that every query has."""
    complete = min((len(pairs) for pairs in queries), default=0)
    return [
        (one, other)
        for one, other in (
            [
                {m: sum(pairs[n][place][m] for pairs in queries) for m, _, _ in TPCH_TOTALS}
                for place in range(len(ARMS))
            ]
            for n in range(complete)
        )
    ]


def build_result(cases: Sequence[Case], store: Store) -> dict[str, Any]:
    """Make the whole result; safe to call at any time during a run."""
    done = [case_result(case, store) for case in cases]
    return assemble("io-service", store, done, tpch_totals(cases, store))
