"""Medians, intervals and verdicts of the benchmarks."""

from __future__ import annotations

import pytest

from lookahead import stats
from lookahead.demo_queries import judge


def test_summary() -> None:
    found = stats.summarize([5.0, 1.0, 3.0, 2.0, 4.0])
    assert (found.median, found.low, found.high) == (3.0, 1.0, 5.0)
    assert (found.q1, found.q3) == (2.0, 4.0)


def test_ratio_of_clear_runs() -> None:
    found = stats.ratio([100, 104, 101, 99, 102], [50, 51, 52, 50, 49])
    assert found.value == pytest.approx(101 / 50)
    assert found.low is not None
    assert found.high is not None
    assert 1.8 < found.low <= found.value <= found.high < 2.2
    assert found.change == "faster"


def test_same_runs_are_no_difference() -> None:
    """The negative control: an arm compared with itself."""
    runs = [10.0, 12.0, 11.0, 14.0, 9.0]
    found = stats.ratio(runs, [12.0, 9.0, 11.0, 10.0, 14.0])
    assert found.value == 1.0
    assert found.change == stats.NOT_SIGNIFICANT
    assert stats.ratio(runs, runs).value == 1.0


@pytest.mark.parametrize(
    ("lookahead", "expected"),
    [
        ([50.0, 51.0, 52.0, 50.0, 49.0], stats.MET),
        ([105.0, 106.0, 107.0, 105.0, 108.0], stats.MISSED),
        ([90.0, 106.0, 107.0, 105.0, 92.0], stats.NOT_SIGNIFICANT),
    ],
)
def test_verdict(lookahead: list[float], expected: str) -> None:
    assert stats.verdict(stats.ratio([100.0] * 5, lookahead), 0.97) == expected


def test_few_pairs_prove_nothing() -> None:
    found = stats.ratio([100.0] * 4, [1.0] * 4)
    assert (found.low, found.high) == (None, None)
    assert stats.verdict(found, 2.0) == stats.NOT_SIGNIFICANT


def test_unequal_numbers_of_runs() -> None:
    with pytest.raises(ValueError, match="same number"):
        stats.ratio([1.0, 2.0], [1.0])


def test_geometric_mean_ratio() -> None:
    cells = [([4.0] * 5, [1.0] * 5), ([1.0] * 5, [1.0] * 5)]
    found = stats.geometric_mean_ratio(cells)
    assert found.value == pytest.approx(2.0)
    assert found.low == pytest.approx(2.0)
    assert found.high == pytest.approx(2.0)


def test_the_demo_judges_carefully() -> None:
    assert judge([100, 110], [50, 60]) == "faster"
    assert judge([50, 60], [100, 110]) == "slower"
    # One run of the faster arm was slower than one of the other.
    assert judge([100, 50], [40, 55]) == "cannot tell"
    assert judge([100, 101], [96, 97]) == "no difference"
