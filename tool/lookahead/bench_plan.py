"""What EXPLAIN (ANALYZE, FORMAT JSON) says about single nodes of a plan.

EXPLAIN adds up: a node's time and reads contain those of the nodes below it, and
its time is the average of one loop, with the loops of all processes counted.
Here they are taken apart again.  A node's own time is the time that passed in
it, in one process: below a Gather, where several processes work at the same
time, their times are averaged and not added.

    Gather (Workers Launched 2)            3 processes
      Aggregate   900 ms, 3 loops          900 * 3 / 3 - 700 * 3 / 3 = 200 ms
        Seq Scan  700 ms, 3 loops          700 * 3 / 3               = 700 ms
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

Node = dict[str, Any]

GATHERS = ("Gather", "Gather Merge")

# 17 tells reads of shared, local and temporary buffers apart; older ones do not.
READ_TIMES = ("Shared I/O Read Time", "I/O Read Time")


def nodes(plan: Node, processes: int = 1) -> Iterator[tuple[Node, int]]:
    """Return every node of a plan, with the processes that it ran in."""
    yield plan, processes
    if plan["Node Type"] in GATHERS:
        processes = plan.get("Workers Launched", 0) + 1
    for child in plan.get("Plans", []):
        yield from nodes(child, processes)


def _total(node: Node, processes: int) -> float:
    """Return the ms in a node and below it, in one process."""
    return float(node.get("Actual Total Time", 0.0)) * float(node["Actual Loops"]) / processes


def own_ms(node: Node, processes: int) -> float:
    """Return the ms in a node without the nodes below it, in one process."""
    below = sum(_total(child, processes) for child in node.get("Plans", []))
    return max(0.0, _total(node, processes) - below)


def seq_scan_ms(plan: Node) -> float:
    """Return the own ms of all sequential scans of a plan."""
    return sum(own_ms(node, n) for node, n in nodes(plan) if node["Node Type"] == "Seq Scan")


def own_read_ms(node: Node) -> float:
    """Return the ms of a node's own reads as the server counts them, all processes'."""

    def read(some: Node) -> float:
        return float(next((some[name] for name in READ_TIMES if name in some), 0.0))

    return max(0.0, read(node) - sum(read(child) for child in node.get("Plans", [])))


def find(plan: Node, wanted: Callable[[Node], bool]) -> Node | None:
    """Return the first node that is wanted."""
    return next((node for node, _ in nodes(plan) if wanted(node)), None)


def scan_of(plan: Node, kind: str, table: str) -> Node | None:
    """Return the first scan of this kind on this table."""
    return find(plan, lambda n: n["Node Type"] == kind and n.get("Relation Name") == table)


def workers(plan: Node) -> tuple[int, int]:
    """Return the parallel workers that were planned, and those that were launched.

    What was never executed needed none.
    """
    found = [
        node
        for node, _ in nodes(plan)
        if node["Node Type"] in GATHERS and node.get("Actual Loops", 1)
    ]
    return (
        sum(node.get("Workers Planned", 0) for node in found),
        sum(node.get("Workers Launched", 0) for node in found),
    )


def shape(plan: Node) -> str:
    """Return a plan as text, without anything that differs from run to run."""
    name = plan["Node Type"]
    if plan.get("Parallel Aware"):
        name = f"Parallel {name}"
    if "Relation Name" in plan:
        name += f" {plan['Relation Name']}"
    inner = ", ".join(shape(child) for child in plan.get("Plans", []))
    return f"{name}({inner})" if inner else name
