"""What the benchmarks read in plans."""

from __future__ import annotations

from typing import Any

import pytest

from lookahead import bench_plan


def node(kind: str, ms: float, loops: int = 1, *below: dict[str, Any], **more: Any) -> Any:
    found = {"Node Type": kind, "Actual Total Time": ms, "Actual Loops": loops, **more}
    return {**found, "Plans": list(below)} if below else found


PARALLEL = node(
    "Aggregate", 1000.0, 1,
    node(
        "Gather", 990.0, 1,
        node(
            "Aggregate", 900.0, 3,
            node("Seq Scan", 700.0, 3, **{"Relation Name": "t", "Parallel Aware": True}),
        ),
        **{"Workers Planned": 2, "Workers Launched": 2},
    ),
)  # fmt: skip


def test_processes_that_work_at_the_same_time_are_averaged() -> None:
    assert bench_plan.seq_scan_ms(PARALLEL) == pytest.approx(700)
    above = bench_plan.find(PARALLEL, lambda n: n["Actual Loops"] == 3)
    assert above is not None
    assert bench_plan.own_ms(above, 3) == pytest.approx(200)


def test_loops_are_added_up() -> None:
    scan = node("Seq Scan", 2.0, 50, **{"Relation Name": "t"})
    loop = node("Nested Loop", 150.0, 1, node("Index Scan", 10.0, 1), scan)
    assert bench_plan.seq_scan_ms(loop) == pytest.approx(100)
    assert bench_plan.own_ms(loop, 1) == pytest.approx(40)


def test_a_scan_does_not_answer_for_its_subplans() -> None:
    inner = node("Seq Scan", 30.0, 1, **{"Parent Relationship": "SubPlan"})
    scan = node("Seq Scan", 100.0, 1, inner)
    assert bench_plan.own_ms(scan, 1) == pytest.approx(70)
    assert bench_plan.seq_scan_ms(scan) == pytest.approx(100)


def test_a_node_that_never_ran_took_no_time() -> None:
    assert bench_plan.seq_scan_ms(node("Seq Scan", 0.0, 0)) == 0.0


@pytest.mark.parametrize("name", bench_plan.READ_TIMES)
def test_reads_of_the_heap_alone(name: str) -> None:
    index = {"Node Type": "Bitmap Index Scan", "Actual Loops": 1, name: 300.0}
    heap = {"Node Type": "Bitmap Heap Scan", "Actual Loops": 1, name: 1000.0, "Plans": [index]}
    assert bench_plan.own_read_ms(heap) == pytest.approx(700)
    assert bench_plan.own_read_ms({"Node Type": "Bitmap Heap Scan", "Actual Loops": 1}) == 0.0


def test_workers_and_shape() -> None:
    assert bench_plan.workers(PARALLEL) == (2, 2)
    assert bench_plan.shape(PARALLEL) == "Aggregate(Gather(Aggregate(Parallel Seq Scan t)))"
    assert bench_plan.scan_of(PARALLEL, "Seq Scan", "t") is not None
    assert bench_plan.scan_of(PARALLEL, "Seq Scan", "u") is None
