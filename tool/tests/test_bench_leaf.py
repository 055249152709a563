"""The cases of `bench leaf`, their statements, results and tables."""

from __future__ import annotations

import json
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import pytest

from lookahead import bench_leaf_report, bench_output, report, stats
from lookahead.bench_leaf import (
    ACCOUNTS,
    BITMAP,
    BUILT,
    ELAPSED,
    GROUPS,
    GROWN,
    INDEX_PART,
    WAITED,
    Case,
    Scale,
    cases,
    full,
    quick,
    waits_of,
)
from lookahead.bench_leaf_result import build_result, worst
from lookahead.bench_leaf_run import waited_in
from lookahead.bench_leaf_shape import index_part, shape_of
from lookahead.bench_measure import PlanRejected
from lookahead.bench_result import ARMS, FAILED, LOOKAHEAD, STOCK
from lookahead.bench_store import Store
from lookahead.servers import Server

BIG = full(10_000_000)
PLACE = Path("bin")
SERVERS = [
    Server(f"{major}-test", major, f"{major}.1", Path("pg_config"), PLACE, False, major == 18)
    for major in (15, 18)
]


def made(scale: Scale = BIG, groups: Any = GROUPS) -> list[Case]:
    return cases(SERVERS, scale, groups)[0]


def one(case_id: str) -> Case:
    return next(case for case in made() if case.id == case_id)


def test_the_table_of_the_goals_is_complete() -> None:
    found = made()
    count = {group: sum(case.group == group for case in found) for group in GROUPS}
    assert count == {
        "index-only": 10, "bitmap": 2, "index-scan": 4, "parallel": 4, "limit": 6, "point": 4,
        "accounts": 8, "pgbench": 4, "pgbench-cold": 2, "cached": 20,
    }  # fmt: skip
    assert len({case.id for case in found}) == len(found)
    for case in found:
        json.dumps(case.as_dict())


def test_goals() -> None:
    goals = {
        case.id: {goal.metric: goal.ratio for goal in case.goals}
        for case in made()
        if "18-test" in case.id
    }
    assert goals["index-only/18-test/built backward"] == {ELAPSED: 4.0, WAITED: 12.5}
    assert goals["index-only/18-test/built forward"] == {ELAPSED: 1.0}
    assert goals["index-only/18-test/built forward, direct I/O, io_uring"] == {ELAPSED: 2.5}
    assert goals["index-only/18-test/grown forward"] == {ELAPSED: 2.8, WAITED: 8.333}
    assert goals["index-only/18-test/grown backward"] == {ELAPSED: 2.8, WAITED: 8.333}
    assert goals["bitmap/18-test/30% of grown"] == {INDEX_PART: 2.0}
    beside = "index-scan/18-test/100,000 rows of grown, against heap look-ahead alone"
    assert goals[beside] == {ELAPSED: 1.1}
    assert goals["accounts/18-test/sum(abalance) backward"] == {ELAPSED: 2.0}
    assert goals["limit/18-test/LIMIT 100 of grown"] == {ELAPSED: 0.98}
    assert waits_of(0.08).aim == "≤ 8% waits"
    strict = {case.id.split("/")[0] for case in made() if case.same_blocks}
    assert strict == {"limit", "point", "pgbench-cold"}


def test_the_arms_differ_in_the_library_only() -> None:
    for case in made():
        stock, ahead = (case.conf_of(arm) for arm in ARMS)
        own = {name for name in {*stock, *ahead} if stock.get(name) != ahead.get(name)}
        beside = "heap look-ahead" in case.label
        assert own == ({"pg_lookahead.leafscan"} if beside else set())
        assert case.loaded == ((STOCK, LOOKAHEAD) if beside else (LOOKAHEAD,))
        bare = case.conf_of(STOCK, extension=False)
        assert not any(name.startswith("pg_lookahead.") for name in bare)


def test_notes() -> None:
    _, notes = cases([replace(SERVERS[1], io_uring=False, assertions=True)], BIG, GROUPS)
    assert any("io_uring" in note for note in notes)
    assert any("assertions" in note for note in notes)
    assert cases(SERVERS, BIG, GROUPS)[1] == []


def test_ranges() -> None:
    assert one("index-only/18-test/built backward").range(BIG) == (500_001, 9_500_000)
    first, last = one("index-only/18-test/grown forward").range(BIG)
    assert (first, last) == (1, 1_000_000_000)
    first, last = one("accounts/18-test/count(*) forward").range(BIG)
    assert (first, last) == (500_001, 9_500_000)
    case = one("point/18-test/index scan of built")
    assert case.keys(BIG) == case.keys(BIG)
    assert len(set(case.keys(BIG))) > 390
    assert all(1 <= key <= BIG.rows for key in case.keys(BIG))


@pytest.mark.parametrize("scale", [BIG, quick()])
def test_every_case_has_its_statements(scale: Scale) -> None:
    for case in made(scale):
        if case.clients:
            assert case.table == ACCOUNTS
            continue
        shape = shape_of(case, scale)
        texts = [text.as_string(None) for text in shape.statements]
        assert len(texts) == case.queries
        assert (shape.answer is None) is (case.queries > 1)
        assert all(text.startswith("EXPLAIN (ANALYZE") for text in texts) is (case.kind == BITMAP)
        if case.limit is not None:
            assert all(text.rstrip().endswith(f"LIMIT {case.limit}") for text in texts)
        elif case.queries == 1 and case.kind != BITMAP and not case.workers:
            order = "DESC" if case.direction == "backward" else "ASC"
            assert f" {order}\n" in texts[0]
        assert f'"{case.table}"' in texts[0]
        assert "SET enable_seqscan = off" in shape.session


def test_a_parallel_plan_is_asked_for_and_nothing_else_is_taken() -> None:
    shape = shape_of(one("parallel/15-test/grown, 2 workers"), BIG)
    assert "SET max_parallel_workers_per_gather = 2" in shape.session
    scan = {"Node Type": "Index Only Scan", "Relation Name": GROWN, "Scan Direction": "Forward"}
    part = {"Node Type": "Aggregate", "Plans": [scan]}
    shape.check({"Node Type": "Gather", "Workers Planned": 2, "Plans": [part]})
    for plan in (part, {"Node Type": "Gather", "Workers Planned": 1, "Plans": [part]}):
        with pytest.raises(PlanRejected, match="2 workers"):
            shape.check(plan)


def test_another_plan_is_refused() -> None:
    shape = shape_of(one("index-only/18-test/built backward"), BIG)
    scan = {"Node Type": "Index Only Scan", "Relation Name": BUILT, "Scan Direction": "Backward"}
    shape.check({"Node Type": "Limit", "Plans": [scan]})
    with pytest.raises(PlanRejected, match="Sort"):
        shape.check({"Node Type": "Limit", "Plans": [{"Node Type": "Sort", "Plans": [scan]}]})
    with pytest.raises(PlanRejected):
        shape.check({**scan, "Scan Direction": "Forward"})
    shape = shape_of(one("bitmap/18-test/30% of grown"), BIG)
    below = {"Node Type": "Bitmap Index Scan", "Index Name": "grown_a"}
    heap = {"Node Type": "Bitmap Heap Scan", "Relation Name": GROWN, "Plans": [below]}
    shape.check({"Node Type": "Aggregate", "Plans": [heap]})
    with pytest.raises(PlanRejected, match="Bitmap Heap Scan"):
        shape.check({**heap, "Plans": [{"Node Type": "BitmapAnd", "Plans": [below, below]}]})


def test_the_index_part_of_a_bitmap_scan() -> None:
    below = {
        "Node Type": "Bitmap Index Scan", "Actual Total Time": 40.5, "Actual Loops": 1,
        "Actual Rows": 7, "I/O Read Time": 30.25, "Shared Read Blocks": 12,
    }  # fmt: skip
    plan = {"Node Type": "Bitmap Heap Scan", "Relation Name": GROWN, "Plans": [below]}
    found = index_part([([{"Plan": plan}],)])
    assert (found["index_ms"], found["waited_ms"], found["index_blocks"]) == (40.5, 30.25, 12)
    assert found["entries"] == 7
    with pytest.raises(PlanRejected):
        index_part([([{"Plan": {"Node Type": "Seq Scan"}}],)])


def test_waiting_is_measured_where_the_kernel_tells(monkeypatch: pytest.MonkeyPatch) -> None:
    class Fake:
        pid = 1

        def timed(self, queries: Any) -> tuple[list[float], list[Any]]:
            return [10.0, 20.0], [[1], [2]]

    spent = iter([100.0, 112.5])
    monkeypatch.setattr("lookahead.bench_leaf_run.scheduled_ms", lambda pid: next(spent))
    probe: Any = Fake()
    assert waited_in(probe, [])[2] == 17.5
    monkeypatch.setattr("lookahead.bench_leaf_run.scheduled_ms", lambda pid: None)
    assert waited_in(probe, [])[2] is None


# -- results -------------------------------------------------------------------

METADATA = {
    "command": "./lookahead bench", "commit": "0", "pairs": 5, "servers": {"18-test": "18.1"},
    "relations": {"18-test": {BUILT: {"heap_bytes": 8192, "index_bytes": 8192}}},
    "machine": {"cpus": 2, "cpu_model": "x", "memory": "1", "kernel": "1"},
    "device": {"device": "a", "file_system": "b", "scheduler": "c", "read_ahead_kb": "128"},
}  # fmt: skip

AHEAD = {
    "scans": 1, "windows": 4, "blocks_issued": 1000, "blocks_used": 990, "blocks_wasted": 10,
    "blocks_hit": 0, "blocks_dropped": 0, "waits": 3, "errors": 0, "depth_max": 256,
}  # fmt: skip


@pytest.fixture
def store(tmp_path: Path) -> Store:
    definition = {"scale": asdict(BIG), "build": "abc"}
    made = Store.create(tmp_path / "out", definition, METADATA)
    made.add({"type": "settings", "digest": "s1", "settings": {"jit": "off"}})
    return made


def add_runs(
    store: Store, case: Case, times: dict[str, float], waits: dict[str, float], **fault: Any
) -> None:
    for pair in range(5):
        for arm in ARMS:
            run = {
                "type": "run", "cell": case.id, "pair": pair, "arm": arm, "cache": "drop_caches",
                "settings": "s1", "answer": "a", "elapsed_ms": times[arm] + pair / 100,
                "index_ms": times[arm], "waited_ms": waits[arm], "idx_blks_read": 1000,
                "heap_blks_read": 0, "waits_ms": waits[arm],
            }  # fmt: skip
            if arm == LOOKAHEAD:
                run.update(leaf=AHEAD, table={**AHEAD, "blocks_issued": 0, "blocks_used": 0})
            store.add({**run, **(fault if arm == LOOKAHEAD else {})})


TIMES = {STOCK: 4000.0, LOOKAHEAD: 900.0}
FEW_WAITS = {STOCK: 3000.0, LOOKAHEAD: 200.0}
MANY_WAITS = {STOCK: 3000.0, LOOKAHEAD: 300.0}


def test_a_case_is_as_good_as_the_worst_of_its_goals(store: Store) -> None:
    good, bad = (one(f"index-only/{server}/built backward") for server in ("18-test", "15-test"))
    add_runs(store, good, TIMES, FEW_WAITS)
    add_runs(store, bad, TIMES, MANY_WAITS)
    found, missed = build_result([good, bad], store)["cells"]
    assert found["verdict"] == stats.MET
    assert [goal["verdict"] for goal in found["goals"]] == [stats.MET, stats.MET]
    assert found["also"] == {}
    assert missed["verdict"] == stats.MISSED
    assert [goal["verdict"] for goal in missed["goals"]] == [stats.MET, stats.MISSED]
    assert found["lookahead"]["leaf"]["blocks_issued"] == 5000
    assert found["lookahead"]["leaf"]["depth_max"] == 256
    assert worst([stats.MET, FAILED, stats.MISSED]) == FAILED


def test_one_block_more_is_a_miss(store: Store) -> None:
    case = one("point/18-test/index only scan of built")
    add_runs(store, case, dict.fromkeys(ARMS, 100.0), FEW_WAITS, idx_blks_read=1001)
    (found,) = build_result([case], store)["cells"]
    assert (found["verdict"], found["blocks_more"]) == (stats.MISSED, 1)


def test_waste(store: Store) -> None:
    some = [one("index-only/18-test/grown forward"), one("limit/18-test/LIMIT 1 of grown")]
    for case in some:
        add_runs(store, case, TIMES, FEW_WAITS)
    result = build_result(some, store)
    (total,) = result["totals"]
    # A scan that ends early says nothing of it.
    assert (total["issued"], total["wasted"]) == (5000, 50)
    assert total["verdict"] == stats.MET
    assert total["worst"]["cell"] == some[0].id
    assert build_result(some[1:], store)["totals"] == []


def test_tables(store: Store, tmp_path: Path) -> None:
    """Every group is drawn, also where a case failed; and from the file again."""
    some = made()
    for case in some:
        if case.id == "index-only/15-test/grown backward":
            store.add({"type": "rejected", "cell": case.id, "reason": "another plan"})
        elif case.id == "index-only/15-test/grown forward":
            add_runs(store, case, TIMES, FEW_WAITS, answer="b")
        else:
            add_runs(store, case, TIMES, FEW_WAITS)
    result = build_result(some, store)
    bench_output.write_result(tmp_path, result)
    again = bench_output.load_result(tmp_path)
    assert again == json.loads(json.dumps(result))
    tables = bench_output.tables(again)
    titles = [table.title.split(":")[0] for table in tables]
    names = [f"{group} ({server.name})" for group in GROUPS for server in SERVERS]
    assert titles == [*names, "Totals"]
    for table in tables:
        assert all(len(row) == len(table.columns) for row in table.rows)
        assert report.to_markdown(table)
    text = (tmp_path / bench_output.TABLE_FILE).read_text()
    for words in (
        "built: 10,000,000 rows; grown: 5,000,000", "another plan", "answers of the arms differ",
        "≤ 8% waits", "6.7% [6.7, 6.7]", "no block more", "pg_lookahead.leafscan = off",
        "one leaf page ahead, 2012",
    ):  # fmt: skip
        assert words in text, words
    assert "fillfactor" not in text
    report.refuse_unequal(again, again)
    assert report.comparison_table(again, again).rows


def test_the_patch_of_2012() -> None:
    accounts = [case.as_dict() for case in made(groups=["accounts"])]
    failed = [{**case, "verdict": FAILED, "faults": ["x"]} for case in accounts]
    table = bench_leaf_report.group_table("accounts", failed[:1])
    assert len(table.notes) == 5
    assert table.notes[2].endswith("163,203 → 160,736 ms, ratio 1.015")
