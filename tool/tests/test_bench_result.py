"""From stored runs to results: what fails a case, what compares, what resumes."""

from __future__ import annotations

import copy
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from lookahead import report, stats
from lookahead.bench_index_scan import (
    GROUPS,
    Cell,
    cells,
    expected_blocks,
    full,
    queries_per_run,
    quick,
)
from lookahead.bench_result import ARMS, FAILED, build_result
from lookahead.bench_store import RUNS_FILE, Store, StoreError, file_system, read_lines
from lookahead.servers import Server

SERVER = Server("18-test", 18, "18.6", Path("pg_config"), Path("bin"), False, True)
OLD = Server("15-test", 15, "15.20", Path("pg_config"), Path("bin"), False, False)
DEFINITION = {"scale": {"rows": 1000}, "build": "abc"}
METADATA = {
    "command": "./lookahead bench", "commit": "0", "pairs": 5, "servers": {"18-test": "18.6"},
    "relations": {"18-test": {"t_0": {"heap_bytes": 8192, "index_bytes": 8192}}},
    "machine": {"cpus": 2, "cpu_model": "x", "memory": "1", "kernel": "1"},
    "device": {"device": "a", "file_system": "b", "scheduler": "c", "read_ahead_kb": "128"},
}  # fmt: skip


def some_cell(group: str = "random", **parts: Any) -> Cell:
    found, _ = cells([SERVER], full(3_000_000), [group])
    return replace(found[0], **parts)


def add_runs(store: Store, cell: Cell, times: dict[str, float], **lookahead: Any) -> None:
    """Add five pairs; keyword arguments replace fields of the look-ahead runs."""
    for pair in range(5):
        for arm in ARMS:
            run = {
                "type": "run", "cell": cell.id, "pair": pair, "arm": arm, "cache": "drop_caches",
                "settings": "s1", "answer": "a", "elapsed_ms": times[arm] + pair / 100,
                "heap_blks_read": 100.0, "idx_blks_read": 10.0, "heap_tuples": 1000.0,
            }  # fmt: skip
            store.add({**run, **(lookahead if arm == "lookahead" else {})})


@pytest.fixture
def store(tmp_path: Path) -> Store:
    made = Store.create(tmp_path / "out", DEFINITION, METADATA)
    made.add({"type": "settings", "digest": "s1", "settings": {"jit": "off"}})
    return made


GOOD = {"stock": 500.0, "lookahead": 100.0}
COUNTERS = {"blocks_issued": 2000, "blocks_used": 1990, "blocks_wasted": 10, "reads_in_flight": 0}


def test_a_good_cell_is_met(store: Store) -> None:
    cell = some_cell()
    add_runs(store, cell, GOOD, lookahead=COUNTERS)
    result = build_result([cell], store)
    assert result["cells"][0]["verdict"] == stats.MET
    assert result["cells"][0]["ratio"]["value"] == pytest.approx(5.0, abs=0.01)
    (wasted,) = result["totals"]
    assert wasted["share"] == pytest.approx(0.005)
    assert wasted["verdict"] == stats.MET
    json.dumps(result)


@pytest.mark.parametrize(
    ("fault", "text"),
    [
        ({"answer": "b"}, "answers"),
        ({"settings": "s2"}, "settings"),
        ({"heap_tuples": 999.0}, "numbers of rows"),
        ({"lookahead": {**COUNTERS, "reads_in_flight": 1}}, "pins"),
    ],
)
def test_faults_fail_a_cell_whatever_its_times(
    store: Store, fault: dict[str, Any], text: str
) -> None:
    cell = some_cell()
    add_runs(store, cell, GOOD, **fault)
    (found,) = build_result([cell], store)["cells"]
    assert found["verdict"] == FAILED
    assert text in found["faults"][0]


def test_answers_of_the_untimed_runs_count(store: Store) -> None:
    cell = some_cell()
    add_runs(store, cell, GOOD)
    for arm in ARMS:
        store.add({"type": "answer", "cell": cell.id, "arm": arm, "answer": arm})
    assert build_result([cell], store)["cells"][0]["verdict"] == FAILED


def test_a_rejected_plan_is_a_failure(store: Store) -> None:
    cell = some_cell()
    store.add({"type": "rejected", "cell": cell.id, "reason": "the plan is Sort"})
    result = build_result([cell], store)
    assert result["cells"][0]["verdict"] == FAILED
    assert result["verdicts"] == {FAILED: 1}
    assert report.tables(result)


def test_one_block_more_misses_the_goal(store: Store) -> None:
    cell = some_cell("limit")
    assert cell.same_blocks
    same = {"stock": 10.0, "lookahead": 10.0}
    add_runs(store, cell, same)
    assert build_result([cell], store)["cells"][0]["verdict"] == stats.MET
    advised = {**COUNTERS, "blocks_issued": 11, "blocks_used": 10}
    for line in store.of("run"):
        if line["arm"] == "lookahead":
            line["lookahead"] = advised
    found = build_result([cell], store)["cells"][0]
    assert (found["verdict"], found["blocks_more"]) == (stats.MISSED, 1)


def test_comparison_refuses_other_conditions(store: Store) -> None:
    cell = some_cell()
    add_runs(store, cell, GOOD)
    one = build_result([cell], store)
    other = copy.deepcopy(one)
    other["definition"]["build"] = "def"
    report.refuse_unequal(one, other)
    assert report.comparison_table(one, other).rows[0][-1] == stats.NOT_SIGNIFICANT
    other["settings"]["s2"] = {"jit": "on"}
    other["cells"][0]["settings"] = ["s2"]
    with pytest.raises(report.CannotCompare, match="jit: off -> on"):
        report.refuse_unequal(one, other)
    other = copy.deepcopy(one)
    other["metadata"]["device"]["read_ahead_kb"] = "8192"
    with pytest.raises(report.CannotCompare, match="read_ahead_kb: 128 -> 8192"):
        report.refuse_unequal(one, other)


def test_resume(store: Store) -> None:
    cell = some_cell()
    add_runs(store, cell, GOOD)
    store.close()
    with (store.folder / RUNS_FILE).open("a") as file:
        file.write('{"type": "run", "cell": "cut o')
    again = Store.resume(store.folder, DEFINITION)
    assert again.has_run(cell.id, 4, "lookahead")
    assert not again.has_run(cell.id, 5, "stock")
    again.note("continued")
    again.close()
    assert read_lines(store.folder / RUNS_FILE)[-1] == {"type": "note", "text": "continued"}
    with pytest.raises(StoreError, match="build: abc -> other"):
        Store.resume(store.folder, {**DEFINITION, "build": "other"})
    with pytest.raises(StoreError, match="--resume"):
        Store.create(store.folder, DEFINITION, METADATA)


def test_the_issue_s_table_is_complete() -> None:
    found, notes = cells([SERVER, OLD], full(3_000_000), GROUPS)
    count = {group: sum(cell.group == group for cell in found) for group in GROUPS}
    # Four methods on 18 and one line on 15; 7 x 4 x 2 x 3 cells; five limits; two joins.
    assert (count["random"], count["matrix"], count["limit"]) == (5, 168, 5)
    assert (count["cached"], count["pgbench"], count["pagecache"]) == (58, 2, 56)
    assert len({cell.id for cell in found}) == len(found)
    assert notes == []


def test_a_server_without_io_uring_is_noted() -> None:
    found, notes = cells([replace(SERVER, io_uring=False)], quick(), GROUPS)
    assert all("io_uring" not in cell.id for cell in found)
    assert "io_uring" in notes[0]


def test_ranges_do_not_overlap_and_repeat() -> None:
    for cell in cells([SERVER], full(3_000_000), ["matrix"])[0]:
        found = sorted(cell.ranges(3_000_000))
        assert found == sorted(cell.ranges(3_000_000))
        assert len(found) == cell.queries
        assert found[0][0] >= 1
        assert found[-1][1] <= 3_000_000
        assert all(one[1] < other[0] for one, other in zip(found, found[1:]))
        assert all(last - first + 1 == cell.rows for first, last in found)


def test_small_ranges_are_read_many_times() -> None:
    assert expected_blocks("0", 3000, 3_000_000) == pytest.approx(136, abs=2)
    assert expected_blocks("random", 100_000, 3_000_000) == pytest.approx(70_000, rel=0.1)
    assert queries_per_run("0", 3000, 3_000_000) == 20
    assert queries_per_run("random", 3000, 3_000_000) == 2
    assert queries_per_run("0", 990_000, 3_000_000) == 1


def test_results_without_tables_compare() -> None:
    """Loads make their tables anew, and say nothing of their sizes."""
    metadata = {name: what for name, what in METADATA.items() if name != "relations"}
    one = {"metadata": metadata, "cells": [], "definition": DEFINITION}
    report.refuse_unequal(one, copy.deepcopy(one))


def test_file_system_of_a_mount_point() -> None:
    assert file_system(Path("/proc")) == "proc"
    assert file_system(Path("/proc/self/fdinfo")) == "proc"
    assert file_system(Path("/")) != "proc"
