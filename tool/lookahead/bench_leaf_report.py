"""Tables of the results of `bench leaf`; see report.py.

One table per group and server.  A case has a line for each of its goals, and
further lines for what was measured beside them; only the first one has the
details.  Of what was waited the share is shown that is left of stock's.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from . import report, stats
from .bench_leaf import ELAPSED, GROUPS, INDEX_PART, WAITED
from .report import Table, both, count, milliseconds, ratio_text, spread

NAMES = {
    ELAPSED: "time",
    WAITED: "waited",
    INDEX_PART: "bitmap index scan",
}

DETAILS = (
    "index read", "table read", "server CPU ms",
    "leaves ahead", "wasted", "depth", "table ahead",
)  # fmt: skip

TITLES = {
    "index-only": "index-only scan of most of an index, cold",
    "bitmap": "bitmap index scan, cold",
    "index-scan": "index scan, table in random order, cold",
    "parallel": "index-only scan of most of an index by several processes, cold",
    "limit": "index-only scan with LIMIT, from random places, cold",
    "point": "single keys, cold",
    "accounts": "a group for each of pgbench's accounts, in the order of the index, cold",
    "pgbench": "pgbench -S, cached",
    "pgbench-cold": "pgbench -S, cold",
    "cached": "everything in shared buffers",
}

# What a patch that read one leaf page ahead gained with these queries, and 90
# million groups of 100 million accounts, when it was proposed in 2012: ms without
# and with it.
IN_2012 = {
    "count(*) forward": (33_649, 32_876),
    "count(*) backward": (163_203, 160_736),
    "sum(abalance) forward": (425_497, 418_523),
    "sum(abalance) backward": (1_794_715, 1_764_391),
}


def ratio_of(metric: str, ratio: dict[str, float | None]) -> str:
    """Return stock / look-ahead, or of the waits the share that is left of them."""
    if metric != WAITED or not ratio["value"]:
        return ratio_text(ratio)
    text = f"{1 / ratio['value']:.1%}"
    if not ratio["low"] or not ratio["high"]:
        return text
    return f"{text} [{100 / ratio['high']:.1f}, {100 / ratio['low']:.1f}]"


def details(case: dict[str, Any]) -> list[str]:
    """Return what stands right of a case's verdict."""
    stock, ahead = case["stock"], case["lookahead"]
    leaf, table = ahead.get("leaf") or {}, ahead.get("table") or {}
    issued = leaf.get("blocks_issued", 0)
    return [
        both(stock, ahead, "idx_blks_read", count),
        both(stock, ahead, "heap_blks_read", count),
        both(stock, ahead, "server_cpu_ms", milliseconds),
        count(leaf.get("blocks_issued")),
        f"{leaf['blocks_wasted'] / issued:.1%}" if issued else "-",
        count(leaf.get("depth_max")),
        count(table.get("blocks_issued")),
    ]


def line(
    name: str, metric: str, found: dict[str, Any], aim: str = "", verdict: str = ""
) -> list[str]:
    """Return the line of one number of a case, with no details."""
    return [
        name, spread(found["stock"]["ms"]), spread(found["lookahead"]["ms"]),
        ratio_of(metric, found["ratio"]), aim, verdict, *[""] * len(DETAILS),
    ]  # fmt: skip


def case_rows(case: dict[str, Any]) -> list[list[str]]:
    """Return the lines of one case."""
    label = case["label"]
    if "ratio" not in case:
        return [[label, *["-"] * 3, case["aim"], case["verdict"], *["-"] * len(DETAILS)]]
    rows: list[list[str]] = []
    for goal in case["goals"]:
        name = f"  {NAMES[goal['metric']]}" if rows else label
        rows.append(line(name, goal["metric"], goal, goal["aim"], goal["verdict"]))
    rows[0][-len(DETAILS) :] = details(case)
    if case["faults"]:
        rows[0][5] = case["verdict"]
    if case["same_blocks"]:
        verdict = stats.MISSED if case["blocks_more"] > 0 else stats.MET
        rows.append(["  blocks", *[""] * 3, "no block more", verdict, *[""] * len(DETAILS)])
    for metric, found in case["also"].items():
        rows.append(line(f"  {NAMES[metric]}", metric, found))
    return rows


def case_notes(case: dict[str, Any]) -> list[str]:
    """Return what has to be said of a case beside its numbers."""
    label = case["label"]
    notes = [f"{label}: {fault}" for fault in case["faults"]]
    if case.get("blocks_more", 0) > 0:
        notes.append(f"{label}: {case['blocks_more']} blocks more were read")
    for arm, settings in case["arms"].items():
        text = ", ".join(f"{name} = {value}" for name, value in settings.items())
        name = "stock" if arm == "stock" else "look-ahead"
        loaded = " has the library loaded, with" if arm in case["loaded"] else ":"
        notes.append(f"{label}: the {name} arm{loaded} {text}")
    return notes


def group_table(group: str, cases: Sequence[dict[str, Any]]) -> Table:
    """Return the table of a group: both arms, ratio, goal, verdict, details."""
    table = Table(
        title=f"{group} ({cases[0]['server']}): {TITLES[group]}",
        columns=["case", "stock ms", "look-ahead ms", "ratio [95 %]", "goal", "verdict", *DETAILS],
        details=DETAILS,
    )
    for case in cases:
        table.rows += case_rows(case)
        table.notes += case_notes(case)
    if group == "accounts":
        table.notes += [
            f"one leaf page ahead, 2012, {label}: {stock:,} → {ahead:,} ms,"
            f" ratio {stock / ahead:.3f}"
            for label, (stock, ahead) in IN_2012.items()
        ]
    return table


def totals_table(result: dict[str, Any]) -> Table:
    """Return the share of leaf pages that were wasted, and the count of verdicts."""
    table = Table(title="Totals", columns=["case", "measured", "goal", "verdict"])
    for total in result["totals"]:
        table.rows.append(
            [
                total["name"], f"{total['share']:.2%} of {count(total['issued'])}",
                f"≤ {total['goal']:.0%}", total["verdict"],
            ]
        )  # fmt: skip
        if total["worst"]:
            worst = total["worst"]
            table.notes.append(f"most wasted: {worst['cell']}, {worst['share']:.2%}")
    found = ", ".join(f"{n} {verdict}" for verdict, n in result["verdicts"].items())
    table.notes.append(f"verdicts: {found}")
    return table


def tables(result: dict[str, Any]) -> list[Table]:
    """Return all tables of a result, in the order of the groups."""
    found = []
    for group in GROUPS:
        mine = [case for case in result["cells"] if case["group"] == group]
        for server in dict.fromkeys(case["server"] for case in mine):
            found.append(group_table(group, [c for c in mine if c["server"] == server]))
    return [*found, totals_table(result)]


def header_text(result: dict[str, Any]) -> str:
    """Return the lines that say what was measured, where and how."""
    scale = result["definition"]["scale"]
    # That line is of the tables that index scans are measured on.
    lines = [line for line in report.header_text(result).splitlines() if "fillfactor" not in line]
    pairs = min((case["pairs"] for case in result["cells"] if "pairs" in case), default=0)
    data = (
        f"built: {scale['rows']:,} rows; grown: {scale['grown_rows']:,};"
        f" pgbench's scale: {scale['accounts_scale']}; at least {pairs} pairs of runs"
    )
    return "\n".join([*lines, data])
