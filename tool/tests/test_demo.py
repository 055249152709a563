"""What the demo says of its runs."""

from __future__ import annotations

import pytest

from lookahead.bench_result import LOOKAHEAD, STOCK
from lookahead.demo import conclusions
from lookahead.demo_queries import QUERIES
from lookahead.demo_run import Outcome, Run

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
    said = conclusions([found], 2)
    assert said[0].startswith("1 of 1" if verdict == "faster" else "0 of 1")
    assert ("SLOWER" in "".join(said)) == (verdict == "slower")
    assert ("cannot tell" in "".join(said)) == (verdict == "cannot tell")
    nothing = verdict == "cannot tell" and issued == 0
    assert ("look-ahead read nothing" in "".join(said)) == nothing
