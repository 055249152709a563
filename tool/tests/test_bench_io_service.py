"""The cases of `bench io-service`, their results and their tables."""

from __future__ import annotations

import json
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import pytest

from lookahead import bench_output, report, report_io, stats
from lookahead.bench_io_result import build_result, check_faults, summed
from lookahead.bench_io_run import NoService, check_service, explained, parent_of
from lookahead.bench_io_service import (
    ELAPSED,
    GROUPS,
    OPERATOR,
    WAITED,
    Case,
    cases,
    full,
    less_time,
    quick,
)
from lookahead.bench_io_shape import BUILT_INDEX, shape_of
from lookahead.bench_measure import PlanRejected
from lookahead.bench_pairs import until
from lookahead.bench_result import ARMS, FAILED, LOOKAHEAD, STOCK
from lookahead.bench_store import Store
from lookahead.errors import UsageError
from lookahead.servers import Server

BIG = full(3_000_000)
COMMANDS = ("vacuum", "vacuum-wal", "vacuum-index", "create-index", "validate-index")
PLACE = Path("bin")
SERVERS = [
    Server(f"{major}-test", major, f"{major}.1", Path("pg_config"), PLACE, False, major == 18)
    for major in (15, 17, 18)
]


def made(scale: Any = BIG, groups: Any = GROUPS) -> list[Case]:
    return cases(SERVERS, scale, groups)[0]


def test_the_issue_s_table_is_complete() -> None:
    found = made()
    count = {group: sum(case.group == group for case in found) for group in GROUPS}
    assert count == {
        "seqscan": 6, "seqscan-direct": 2, "tpch": 44, "vacuum": 3, "vacuum-wal": 3,
        "vacuum-index": 3, "create-index": 4, "validate-index": 3, "bitmap": 4, "pgbench": 2,
        "index-scan": 1, "kill": 2,
    }  # fmt: skip
    assert len({case.id for case in found}) == len(found)
    on_18 = {case.group for case in found if case.server == "18-test"}
    assert on_18 == {"seqscan", "vacuum-wal", "bitmap"}


def test_the_index_of_a_bitmap_scan_is_cached() -> None:
    """In the kernel's page cache, or, where direct I/O passes that by, in shared buffers."""
    buffered, direct = [case for case in made() if case.id.startswith("bitmap/18-test")]
    assert direct.conf["io_method"] == "io_uring"
    assert direct.conf["debug_io_direct"] == "data"
    shapes = [shape_of(case, BIG) for case in (buffered, direct)]
    assert [shape.indexes_cached for shape in shapes] == [True, False]
    warmed = ["pg_prewarm" in " ".join(text.as_string(None) for text in s.warm) for s in shapes]
    assert warmed == [False, True]


def test_goals() -> None:
    goals = {case.id: case.goal for case in made()}
    assert goals["seqscan/15-test/serial"] == pytest.approx(1 / 0.7, abs=0.001)
    assert goals["seqscan/17-test/2 parallel workers"] == 1.25
    assert goals["seqscan/18-test/serial"] == 0.98
    assert goals["seqscan-direct/17-test/serial"] == 2.0
    assert goals["vacuum/17-test/buffered"] == 1.5
    assert goals["vacuum/17-test/direct I/O"] == 2.0
    assert goals["vacuum-index/17-test/direct I/O"] == 2.0
    assert goals["tpch/17-test/q21"] == pytest.approx(1 / 1.03, abs=0.001)
    assert less_time(0.5) == 2.0


def test_what_the_arms_differ_in() -> None:
    for case in made():
        stock, ahead = (case.conf_of(arm) for arm in ARMS)
        own = {name for name in {*stock, *ahead} if stock.get(name) != ahead.get(name)}
        others = {name for name in own if not name.startswith("pg_lookahead.")}
        assert others <= case.apart
        assert case.apart == ({"effective_io_concurrency"} if case.group == "bitmap" else set())
        # Without the extension nothing of it is left.
        bare = case.conf_of(LOOKAHEAD, extension=False)
        assert not any(name.startswith("pg_lookahead.") for name in bare)
        on_18 = case.server == "18-test"
        method = ahead.get("pg_lookahead.method")
        assert method == (None if on_18 or case.group == "tpch" else "worker")
        assert case.service is not on_18
        json.dumps(case.as_dict())


def test_small_tables_are_looked_ahead_for() -> None:
    for case in made(quick()):
        if case.service:
            assert case.arms[LOOKAHEAD]["pg_lookahead.min_table_size"] == "8MB"


def test_notes_say_what_is_not_default() -> None:
    _, notes = cases([replace(SERVERS[1], assertions=True)], BIG, GROUPS)
    assert any("assertions" in note for note in notes)
    assert any("min_table_size" in note for note in notes)
    assert any("io_workers" in note for note in notes)
    assert cases(SERVERS[2:], BIG, GROUPS)[1] == []


def test_every_case_has_its_statements() -> None:
    for case in made():
        if case.group in ("pgbench", "kill"):
            continue
        shape = shape_of(case, BIG)
        text = shape.statement.as_string(None)
        assert text
        assert shape.is_command is (case.group in COMMANDS)
        assert shape.is_command is (shape.after is not None)
        assert shape.explained is (OPERATOR in (case.metric, *case.also))
        assert text.startswith("EXPLAIN (ANALYZE") is (case.metric == WAITED)
        if case.group == "create-index":
            assert [part.as_string(None) for part in shape.undo] == [
                f'DROP INDEX IF EXISTS "{BUILT_INDEX}"'
            ]


def test_another_plan_is_refused() -> None:
    case = next(c for c in made() if c.id == "seqscan/17-test/2 parallel workers")
    shape = shape_of(case, BIG)
    scan = {"Node Type": "Seq Scan", "Relation Name": "t_0"}
    shape.check({"Node Type": "Gather", "Workers Planned": 2, "Plans": [scan]})
    with pytest.raises(PlanRejected, match="0 are planned"):
        shape.check({"Node Type": "Aggregate", "Plans": [scan]})
    with pytest.raises(PlanRejected, match="Index Only Scan t_0"):
        shape.check({"Node Type": "Index Only Scan", "Relation Name": "t_0"})


# -- results -------------------------------------------------------------------

METADATA = {
    "command": "./lookahead bench", "commit": "0", "pairs": 5, "servers": {"17-test": "17.1"},
    "relations": {"17-test": {"t_0": {"heap_bytes": 8192, "index_bytes": 8192}}},
    "machine": {"cpus": 2, "cpu_model": "x", "memory": "1", "kernel": "1"},
    "device": {"device": "a", "file_system": "b", "scheduler": "c", "read_ahead_kb": "128"},
    "read_ahead": {"current": 128, "was": 8192, "text": "kernel read-ahead set"},
}  # fmt: skip


@pytest.fixture
def store(tmp_path: Path) -> Store:
    definition = {"scale": asdict(BIG), "build": "abc"}
    made = Store.create(tmp_path / "out", definition, METADATA)
    made.add({"type": "settings", "digest": "s1", "settings": {"jit": "off"}})
    return made


def add_runs(store: Store, case: Case, times: dict[str, float], **fault: Any) -> None:
    """Add five pairs; an operator takes half of the time and waits for a tenth of it."""
    for pair in range(5):
        for arm in ARMS:
            elapsed = times[arm] + pair / 100
            run = {
                "type": "run", "cell": case.id, "pair": pair, "arm": arm, "cache": "drop_caches",
                "settings": "s1", "answer": "a", "plan": "Seq Scan t_0", "elapsed_ms": elapsed,
                "operator_ms": elapsed / 2, "waited_ms": elapsed / 10,
                "index_ms": elapsed / 4,
            }  # fmt: skip
            if arm == LOOKAHEAD:
                run["service"] = {"blocks_read": 1000, "reads": 10, "dropped": 0}
            store.add({**run, **(fault if arm == LOOKAHEAD else {})})


TIMES = {STOCK: 1000.0, LOOKAHEAD: 500.0}


def one(case_id: str) -> Case:
    return next(case for case in made() if case.id == case_id)


def test_a_case_is_judged_by_its_own_number(store: Store) -> None:
    case = one("seqscan/17-test/serial")
    add_runs(store, case, TIMES)
    (found,) = build_result([case], store)["cells"]
    assert found["verdict"] == stats.MET
    assert found["stock"]["ms"]["median"] == pytest.approx(500, abs=0.1)
    assert found["also"][ELAPSED]["stock"]["ms"]["median"] == pytest.approx(1000, abs=0.1)
    assert found["lookahead"]["service"] == {"blocks_read": 5000, "reads": 50, "dropped": 0}
    slow = one("seqscan/15-test/serial")
    add_runs(store, slow, {STOCK: 1000.0, LOOKAHEAD: 900.0})
    assert build_result([slow], store)["cells"][0]["verdict"] == stats.MISSED


@pytest.mark.parametrize(
    ("fault", "text"), [({"plan": "Sort"}, "plans"), ({"answer": "b"}, "answers")]
)
def test_faults(store: Store, fault: dict[str, Any], text: str) -> None:
    case = one("tpch/17-test/q06")
    add_runs(store, case, TIMES, **fault)
    (found,) = build_result([case], store)["cells"]
    assert found["verdict"] == FAILED
    assert text in found["faults"][0]


def test_totals_of_tpch(store: Store) -> None:
    some = [one(f"tpch/17-test/q{number:02}") for number in (1, 6, 13)]
    # One query gains much, two nothing: 3,000 to 2,500 ms.
    for case, ahead in zip(some, (500.0, 1000.0, 1000.0)):
        add_runs(store, case, {STOCK: 1000.0, LOOKAHEAD: ahead})
    result = build_result(some, store)
    operators, whole = result["totals"]
    assert operators["stock"]["ms"]["median"] == pytest.approx(1500, abs=0.1)
    assert operators["ratio"]["value"] == pytest.approx(1.2, abs=0.001)
    assert operators["verdict"] == stats.MISSED
    assert whole["verdict"] == stats.MET
    json.dumps(result)


def test_sums_need_every_query() -> None:
    assert summed([]) == []
    run = {OPERATOR: 1.0, ELAPSED: 2.0}
    assert summed([[(run, run)], []]) == []
    assert summed([[(run, run)] * 2, [(run, run)]]) == [
        ({OPERATOR: 2.0, ELAPSED: 4.0}, {OPERATOR: 2.0, ELAPSED: 4.0})
    ]


GOOD_ROUND = {
    "parallel_workers": 0, "killed": 2, "in_the_middle": True, "looked_ahead": True,
    "query": "lost", "again": "right", "back": True,
}  # fmt: skip


@pytest.mark.parametrize(
    ("change", "text"),
    [
        ({"query": "wrong"}, "a wrong answer"),
        ({"again": "wrong"}, "a wrong answer"),
        ({"again": "lost"}, "no answer"),
        ({"back": False}, "did not come back"),
        ({"killed": 0}, "no worker to kill"),
        ({"in_the_middle": False}, "few queries were still running"),
    ],
)
def test_what_must_not_happen_when_workers_are_killed(change: dict[str, Any], text: str) -> None:
    assert check_faults([GOOD_ROUND, {**GOOD_ROUND, "query": "right"}]) == []
    assert any(text in fault for fault in check_faults([{**GOOD_ROUND, **change}]))


def test_the_check_has_its_place_in_the_result(store: Store) -> None:
    case = one("kill/17-test/10 queries")
    assert build_result([case], store)["cells"][0]["verdict"] == FAILED
    store.add({"type": "check", "cell": case.id, "rounds": [GOOD_ROUND] * 10})
    assert store.has_check(case.id)
    (found,) = build_result([case], store)["cells"]
    assert found["verdict"] == stats.MET
    assert found["counts"]["workers killed"] == 20


def test_tables(store: Store, tmp_path: Path) -> None:
    """Every group is drawn, also where a case failed; and from the file again."""
    some = made()
    for case in some:
        if case.group == "kill":
            store.add({"type": "check", "cell": case.id, "rounds": [GOOD_ROUND]})
        elif case.label == "q22":
            store.add({"type": "rejected", "cell": case.id, "reason": "another plan"})
        else:
            more = {"tps": [100.0, 101.0], "scans_ms": [900.0]} if case.group == "pgbench" else {}
            add_runs(store, case, TIMES, **more)
    result = build_result(some, store)
    bench_output.write_result(tmp_path, result)
    again = bench_output.load_result(tmp_path)
    assert again == json.loads(json.dumps(result))
    titles = [table.title for table in bench_output.tables(again)]
    assert [title.split(":")[0].split(" ")[0] for title in titles] == [
        "seqscan", "seqscan-direct", "tpch", "tpch", "vacuum", "vacuum-wal", "vacuum-index",
        "create-index", "validate-index", "bitmap", "pgbench", "index-scan", "kill", "Totals",
    ]  # fmt: skip
    for table in bench_output.tables(again):
        assert all(len(row) == len(table.columns) for row in table.rows)
        assert report.to_markdown(table)
    text = (tmp_path / bench_output.TABLE_FILE).read_text()
    for words in ("kernel read-ahead set", "SeqScan operator", "another plan", "tps", "≥ 1.5"):
        assert words in text
    report.refuse_unequal(again, again)
    assert report.comparison_table(again, again).rows


def test_own_settings_are_shown() -> None:
    bitmap = [case.as_dict() for case in made(groups=["bitmap"])]
    stock, old, new = report_io.own_settings(bitmap)
    assert stock == "stock arm only: effective_io_concurrency = 1"
    assert "17-test" in old
    assert old.endswith("pg_lookahead.method = worker")
    assert new.endswith("): effective_io_concurrency = 16")


def test_options() -> None:
    assert bench_output.chosen_groups(None, GROUPS) == list(GROUPS)
    assert bench_output.chosen_groups(["tpch,kill"], GROUPS) == ["tpch", "kill"]
    with pytest.raises(UsageError, match="no such group: x"):
        bench_output.chosen_groups(["x"], GROUPS)
    with pytest.raises(UsageError, match="--output"):
        bench_output.result_folder("io-service", "17", None, resume=True)


# -- running --------------------------------------------------------------------


def test_what_is_read_from_a_bitmap_scan() -> None:
    scan = {
        "Node Type": "Bitmap Heap Scan", "Relation Name": "t_bitmap", "Actual Loops": 1,
        "Actual Rows": 7, "Exact Heap Blocks": 3, "Lossy Heap Blocks": 4, "I/O Read Time": 5.0,
        "Plans": [{"Node Type": "Bitmap Index Scan", "Actual Loops": 1, "I/O Read Time": 1.0}],
    }  # fmt: skip
    plan = {"Node Type": "Limit", "Actual Loops": 1, "Plans": [scan]}
    found = explained([([{"Plan": plan}],)], 12.0)
    assert (found["waited_ms"], found["read_ms"], found["heap_blocks"]) == (12.0, 4.0, [3, 4])
    # Without the kernel's word the server's has to do; nothing is never zero.
    assert explained([([{"Plan": plan}],)], None)["waited_ms"] == 4.0
    assert explained([([{"Plan": plan}],)], 0.0)["waited_ms"] == 0.01
    with pytest.raises(PlanRejected):
        explained([([{"Plan": {"Node Type": "Seq Scan", "Actual Loops": 1}}],)], 1.0)


class Settings:
    """Stands in for a session with a library that has these settings."""

    def __init__(self, *rows: tuple[str, str, list[str] | None]) -> None:
        self.rows = list(rows)

    def execute(self, query: Any) -> Settings:
        return self

    def fetchall(self) -> list[Any]:
        return self.rows


def test_a_build_without_the_service_is_refused() -> None:
    workers = ("pg_lookahead.io_workers", "2", None)
    method = ("pg_lookahead.method", "auto", ["auto", "worker"])
    found: Any = Settings(workers, method)
    assert check_service(found, SERVERS[1])["pg_lookahead.io_workers"] == "2"
    found = Settings(method)
    with pytest.raises(NoService, match="17-test: the extension has no setting"):
        check_service(found, SERVERS[1])
    found = Settings(workers, ("pg_lookahead.method", "auto", ["auto", "advice"]))
    with pytest.raises(NoService, match="cannot be worker"):
        check_service(found, SERVERS[1])


def test_small_helpers() -> None:
    assert until(lambda: True)
    assert not until(lambda: False, 0.05)
    assert parent_of(1) == 0
    assert parent_of(2**30) is None
