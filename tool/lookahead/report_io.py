"""Tables of the results of `bench io-service`; see report.py.

One table per group, with the servers below each other, a line for each number
that was measured.  Only the first of a case has a goal and a verdict.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from . import tpch
from .bench_io_service import ELAPSED, GROUPS, INDEX_PART, OPERATOR, WAITED
from .report import Table, both, count, milliseconds, ratio_text, spread

NAMES = {
    ELAPSED: "end to end",
    OPERATOR: "SeqScan operator",
    WAITED: "waited for heap reads",
    INDEX_PART: "until the index was read",
}
PER_TRANSACTION = "1,000 transactions"

DETAILS = ("waits ms", "blocks read", "server CPU ms", "read by the service", "reads", "dropped")

TITLES = {
    "seqscan": "CPU-heavy aggregate over a cold table",
    "seqscan-direct": "the same with direct I/O",
    "tpch": "TPC-H, each query from cold",
    "vacuum": "VACUUM of a table with dead rows on every page, cold",
    "vacuum-wal": "the same where a flush of WAL takes a millisecond longer",
    "vacuum-index": "VACUUM of an index, of a table with few dead rows, cold",
    "create-index": "CREATE INDEX on a cold table",
    "validate-index": "validation by CREATE INDEX CONCURRENTLY, index and table cold",
    "bitmap": "bitmap heap scan, cold",
    "pgbench": "pgbench tpcb-like, cached, beside a cold scan in a loop",
    "index-scan": "index scan in random order, direct I/O, cold",
    "kill": "all workers of the service killed in the middle of queries",
}


def metric_name(case: dict[str, Any], metric: str) -> str:
    """Return the name of a number of a case, for a reader."""
    return PER_TRANSACTION if case["group"] == "pgbench" else NAMES[metric]


def case_rows(case: dict[str, Any]) -> list[list[str]]:
    """Return the lines of one case."""
    label = f"{case['server']} {case['label']}"
    name = f"{label}: {metric_name(case, case['metric'])}"
    if "ratio" not in case:
        return [[name, *["-"] * 3, case["aim"], case["verdict"], *["-"] * len(DETAILS)]]
    stock, ahead = case["stock"], case["lookahead"]
    service = ahead.get("service") or {}
    rows = [
        [
            name, spread(stock["ms"]), spread(ahead["ms"]), ratio_text(case["ratio"]),
            case["aim"], case["verdict"],
            both(stock, ahead, "waits_ms", milliseconds),
            both(stock, ahead, "blocks_read", count),
            both(stock, ahead, "server_cpu_ms", milliseconds),
            count(service.get("blocks_read")), count(service.get("reads")),
            count(service.get("dropped")),
        ]
    ]  # fmt: skip
    for metric, found in case["also"].items():
        rows.append(
            [
                f"{label}: {metric_name(case, metric)}",
                spread(found["stock"]["ms"]), spread(found["lookahead"]["ms"]),
                ratio_text(found["ratio"]), "", "", *[""] * len(DETAILS),
            ]
        )  # fmt: skip
    return rows


def case_notes(case: dict[str, Any]) -> list[str]:
    """Return what has to be said of a case beside its numbers."""
    label = f"{case['server']} {case['label']}"
    notes = [f"{label}: {fault}" for fault in case["faults"]]
    for arm, name in (("stock", "stock"), ("lookahead", "look-ahead")):
        found = case.get(arm, {})
        if "tps" in found:
            scans = found.get("scans_ms", {"runs": 0, "median": None})
            notes.append(
                f"{label}, {name}: {found['tps']['median']:,.0f} tps; "
                f"{scans['runs']} scans beside it, {milliseconds(scans['median'])} ms each"
            )
    return notes


def group_table(group: str, cases: Sequence[dict[str, Any]]) -> Table:
    """Return the table of a group: both arms, ratio, goal, verdict, details."""
    table = Table(
        title=f"{group}: {TITLES[group]}",
        columns=["case", "stock ms", "look-ahead ms", "ratio [95 %]", "goal", "verdict", *DETAILS],
        details=DETAILS,
    )
    for case in cases:
        table.rows += case_rows(case)
        table.notes += case_notes(case)
    table.notes += own_settings(cases)
    return table


def own_settings(cases: Sequence[dict[str, Any]]) -> list[str]:
    """Say in words what settings only one arm has, and in which cases."""
    having: dict[tuple[str, str], list[str]] = {}
    for case in cases:
        for arm, name in (("stock", "stock"), ("lookahead", "look-ahead")):
            settings = ", ".join(f"{n} = {v}" for n, v in case["arms"].get(arm, {}).items())
            if settings:
                having.setdefault((name, settings), []).append(f"{case['server']} {case['label']}")
    return [
        f"{name} arm only{_which(labels, len(cases))}: {text}"
        for (name, text), labels in having.items()
    ]


def _which(labels: Sequence[str], every: int) -> str:
    return "" if len(labels) == every else f" ({'; '.join(labels)})"


def tpch_table(cases: Sequence[dict[str, Any]]) -> Table:
    """Return one line per query: both numbers side by side."""
    table = Table(
        title=f"tpch ({cases[0]['server']}): {TITLES['tpch']}",
        columns=[
            "query", "stock ms", "look-ahead ms", "ratio [95 %]", "goal", "verdict",
            "SeqScan stock", "SeqScan look-ahead", "SeqScan ratio", "question",
        ],
        words=("query", "goal", "verdict", "question"),
        details=("question",),
    )  # fmt: skip
    table.notes += own_settings(cases)
    for case in cases:
        table.notes += case_notes(case)
        asked = tpch.question(case["query"])
        if "ratio" not in case:
            table.rows.append(
                [case["label"], *["-"] * 3, case["aim"], case["verdict"], *["-"] * 3, asked]
            )
            continue
        scans = case["also"][OPERATOR]
        table.rows.append(
            [
                case["label"], spread(case["stock"]["ms"]), spread(case["lookahead"]["ms"]),
                ratio_text(case["ratio"]), case["aim"], case["verdict"],
                milliseconds(scans["stock"]["ms"]["median"]),
                milliseconds(scans["lookahead"]["ms"]["median"]),
                ratio_text(scans["ratio"]), asked,
            ]
        )  # fmt: skip
    return table


def check_table(cases: Sequence[dict[str, Any]]) -> Table:
    """Return what came of the queries whose workers were killed."""
    names = list(dict.fromkeys(name for case in cases for name in case["counts"]))
    table = Table(
        title=f"kill: {TITLES['kill']}",
        columns=["case", *names, "goal", "verdict"],
    )
    for case in cases:
        counts = [count(case["counts"].get(name)) for name in names]
        table.rows.append([case["server"], *counts, case["aim"], case["verdict"]])
        table.notes += [f"{case['server']}: {fault}" for fault in case["faults"]]
    return table


def totals_table(result: dict[str, Any]) -> Table:
    """Return the sums over TPC-H's queries, and the count of verdicts."""
    table = Table(
        title="Totals",
        columns=["case", "stock ms", "look-ahead ms", "ratio [95 %]", "goal", "verdict"],
    )
    for total in result["totals"]:
        table.rows.append(
            [
                total["name"], spread(total["stock"]["ms"]), spread(total["lookahead"]["ms"]),
                ratio_text(total["ratio"]), total["aim"], total["verdict"],
            ]
        )  # fmt: skip
    found = ", ".join(f"{n} {verdict}" for verdict, n in result["verdicts"].items())
    table.notes.append(f"verdicts: {found}")
    return table


def tables(result: dict[str, Any]) -> list[Table]:
    """Return all tables of a result, in the order of the groups."""
    groups: dict[str, list[dict[str, Any]]] = {group: [] for group in GROUPS}
    for case in result["cells"]:
        groups[case["group"]].append(case)
    found: list[Table] = []
    for group, cases in groups.items():
        if not cases:
            continue
        if group == "tpch":
            servers = dict.fromkeys(case["server"] for case in cases)
            found += [tpch_table([c for c in cases if c["server"] == name]) for name in servers]
        elif group == "kill":
            found.append(check_table(cases))
        else:
            found.append(group_table(group, cases))
    return [*found, totals_table(result)]
