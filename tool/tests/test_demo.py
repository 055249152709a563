"""What the demo says of its runs."""

from __future__ import annotations

import time
from typing import cast

import pytest

from lookahead.bench_result import LOOKAHEAD, STOCK
from lookahead.cluster import Cluster
from lookahead.demo import conclusions, faults
from lookahead.demo_data import QUICK
from lookahead.demo_queries import QUERIES, Query, judge
from lookahead.demo_run import DemoRunner, Outcome, Run, without_planning

QUERY = next(query for query in QUERIES if query.name == "cached")


def outcome(stock: list[float], lookahead: list[float], *, issued: int | None) -> Outcome:
    def run(ms: float, seen: int | None) -> Run:
        counters = None if seen is None else {"blocks_issued": seen}
        return Run(ms, 0.0, 0, "same", ["same"], "dropped", counters)

    return Outcome(
        QUERY,
        {
            STOCK: [run(ms, None) for ms in stock],
            LOOKAHEAD: [run(ms, issued) for ms in lookahead],
        },
    )


@pytest.mark.parametrize(
    ("stock", "lookahead", "issued", "verdict"),
    [
        ([164, 160], [128, 130], 0, "cannot tell"),
        ([164, 160], [128, 130], 1, "faster"),
        ([164, 160], [128, 130], None, "faster"),
        ([128, 130], [164, 160], 0, "slower"),
        ([42, 45], [80, 44], 0, "cannot tell"),
        ([80, 44], [42, 45], 1, "cannot tell"),
        ([42, 45], [44, 43], 0, "no difference"),
    ],
)
def test_no_credit_for_what_it_did_not_read(
    stock: list[float], lookahead: list[float], issued: int | None, verdict: str
) -> None:
    found = outcome(stock, lookahead, issued=issued)
    assert found.verdict == verdict
    assert found.as_dict()["verdict"] == verdict
    said = conclusions([found])
    assert said[0].startswith("1 of 1" if verdict == "faster" else "0 of 1")
    assert ("SLOWER" in "".join(said)) == (verdict == "slower")
    assert ("cannot tell" in "".join(said)) == (verdict == "cannot tell")
    nothing = verdict == "cannot tell" and issued == 0
    assert ("look-ahead read nothing" in "".join(said)) == nothing


EXPLAIN_18 = """\
Index Scan using orders_customer on orders (actual rows=25.00 loops=1)
  Buffers: shared read=28
  Look-Ahead: method=advice issued=20
Planning:
  Buffers: shared hit=5
Planning Time: 0.1 ms
Execution Time: 1.5 ms"""

EXPLAIN_15 = """\
Index Scan using orders_customer on orders (actual rows=25 loops=1)
  Buffers: shared read=28
Planning:
  Buffers: shared hit=5
Planning Time: 0.1 ms
Look-Ahead:
  Index Scan on orders: method=advice issued=20
Execution Time: 1.5 ms"""


@pytest.mark.parametrize("text", [EXPLAIN_18, EXPLAIN_15])
def test_explain_without_planning(text: str) -> None:
    """On 15 to 17 what look-ahead did stands behind the times of planning."""
    lines = text.splitlines()
    wanted = [line for line in lines if "Planning" not in line and "hit=5" not in line]
    assert without_planning(lines) == wanted


def test_other_answers_and_plans_are_faults() -> None:
    found = outcome([164, 160], [128, 130], issued=1)
    assert faults([found]) == []
    found.runs[LOOKAHEAD][1].answer = "another"
    assert faults([found]) == [f"the answers differ: {QUERY.title}"]
    found.runs[LOOKAHEAD][1].answer = "same"
    found.runs[STOCK][0].plan = ["another"]
    assert faults([found]) == [f"the plans differ: {QUERY.title}"]


@pytest.mark.parametrize(
    ("times", "issued", "runs"),
    [
        # Apart by chance: seen when the pairs are made once more.
        ({STOCK: [100, 100, 150, 150], LOOKAHEAD: [150, 150, 100, 100]}, 0, 4),
        ({STOCK: [150] * 4, LOOKAHEAD: [100] * 4}, 0, 4),
        # Not apart; and apart for a reason.
        ({STOCK: [100] * 2, LOOKAHEAD: [100] * 2}, 0, 2),
        ({STOCK: [150] * 2, LOOKAHEAD: [100] * 2}, 1, 2),
    ],
)
def test_what_chance_may_have_done_is_done_again(
    monkeypatch: pytest.MonkeyPatch,
    times: dict[str, list[float]],
    issued: int,
    runs: int,
) -> None:
    left = {arm: list(ms) for arm, ms in times.items()}

    def run(self: DemoRunner, query: Query, arm: str) -> Run:
        seen = {"blocks_issued": issued} if arm == LOOKAHEAD else None
        return Run(left[arm].pop(0), 0.0, 0, "same", ["same"], "dropped", seen)

    monkeypatch.setattr(DemoRunner, "run", run)
    runner = DemoRunner(cast(Cluster, None), QUICK, extension=True)
    outcomes, made = runner.measure(
        [QUERY], 2, most=4, deadline=float("inf"), advance=lambda _: None
    )
    assert made == 2
    assert [len(outcomes[0].runs[arm]) for arm in (STOCK, LOOKAHEAD)] == [runs, runs]
    assert (outcomes[0].verdict == "faster") == bool(issued)
    assert outcomes[0].verdict != "slower"


NINE = [float(ms) for ms in range(100, 109)]


@pytest.mark.parametrize(
    ("stock", "lookahead", "verdict"),
    [
        # One stray run of nine does not hide a third, nor do two make up for it.
        ([*NINE[:8], 60], [70.0] * 9, "faster"),
        ([*NINE[:7], 60, 60], [70.0] * 9, "cannot tell"),
        ([70.0] * 9, [*NINE[:8], 60], "slower"),
        # Of four all have to say the same.
        ([100.0, 101, 102, 103], [70.0, 71, 72, 73], "faster"),
        ([100.0, 101, 102, 69], [70.0, 71, 72, 73], "cannot tell"),
        # Each pair for itself: the machine may be slower in one of them.
        ([100.0, 200, 100, 200], [70.0, 140, 70, 140], "faster"),
    ],
)
def test_more_than_three_pairs(stock: list[float], lookahead: list[float], verdict: str) -> None:
    assert judge(stock, lookahead) == verdict


class Counted(DemoRunner):
    """Runs nothing; the second arm takes what it is told."""

    def __init__(self, ratios: dict[str, list[float]]) -> None:
        self.ratios = ratios

    def run(self, query: Query, arm: str) -> Run:
        done = self.ratios[query.name]
        factor = 1.0
        if arm == LOOKAHEAD:
            factor = done.pop(0) if len(done) > 1 else done[0]
        return Run(100 * factor, 0.0, 0, "same", ["same"], "dropped", {"blocks_issued": 1})


def test_what_is_doubtful_is_run_to_the_end() -> None:
    """Slower runs, too; and not only until they say what is wanted."""
    queries = QUERIES[:3]
    ratios = {
        queries[0].name: [0.5],
        queries[1].name: [1.5],
        # Cannot tell after three, no difference after four.
        queries[2].name: [1.3, 0.9, 1.2, 1.0, 1.0, 1.0, 1.0, 1.0, 1.0],
    }
    outcomes, made = Counted(ratios).measure(
        queries, 3, most=9, deadline=time.monotonic() + 1e6, advance=lambda _: None
    )
    assert made == 3
    assert [found.pairs for found in outcomes] == [3, 9, 9]
    assert [found.verdict for found in outcomes] == ["faster", "slower", "no difference"]
