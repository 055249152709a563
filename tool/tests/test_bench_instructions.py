"""`bench instructions`: its cases, how counts are judged, and that they repeat."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from lookahead import report
from lookahead.bench_instructions import (
    BUFFERS,
    GOALS,
    QUICK,
    STATEMENTS,
    build_result,
    cases,
    tables,
)
from lookahead.bench_measure import load_sql
from lookahead.bench_output import TABLES
from lookahead.bench_result import ARMS, LOOKAHEAD, STOCK
from lookahead.bench_store import Store
from lookahead.servers import Server


def of_server() -> list[Server]:
    server: Any = type("S", (), {"name": "18-x"})
    return [server]


def test_every_case_has_its_statement() -> None:
    assert set(QUICK) < set(STATEMENTS)
    for name, statement in STATEMENTS.items():
        assert load_sql(f"bench_instructions_{name}").as_string(None).strip()
        assert statement.times >= 10


@pytest.mark.parametrize(
    ("counted", "verdict"),
    [
        ({STOCK: 1000, LOOKAHEAD: 1000}, "met"),
        ({STOCK: 1000, LOOKAHEAD: 900}, "met"),
        ({STOCK: 1000, LOOKAHEAD: 1020}, "met"),
        ({STOCK: 1000, LOOKAHEAD: 1021}, "missed"),
        ({STOCK: 1000}, "failed"),
    ],
)
def test_verdicts(tmp_path: Path, counted: dict[str, int], verdict: str) -> None:
    some = [case for case in cases(of_server(), ["point", "index"]) if case.place == BUFFERS]
    store = Store.create(tmp_path / "run", {"scale": {}}, {})
    for arm in ARMS:
        if arm in counted:
            run = {"cell": some[0].id, "pair": 0, "arm": arm, "instructions": counted[arm]}
            store.add({"type": "run", **run})
    store.close()
    result = build_result(some, store)
    point, index = result["cells"]
    assert point["verdict"] == verdict
    assert index["verdict"] == "failed"
    assert result["benchmark"] in TABLES
    (table,) = tables(result)
    assert [row[-1] for row in table.rows] == [verdict, "failed"]
    assert all(f"≥ {GOALS[BUFFERS]}" in row for row in table.rows)
    report.show([table], markdown=True)
