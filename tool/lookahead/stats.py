"""Medians, spreads and verdicts: what may be concluded from a few noisy runs.

A benchmark of cold reads has few runs and a long tail, so everything here
works on medians and asks the runs themselves how certain the ratio is.  The
interval is a bootstrap over *pairs*: a stock and a look-ahead run that were
made one after the other are drawn together, so that a disk that was slow for a
minute is slow for both.

Example: stock 100, 104, 101 and look-ahead 52, 50, 51 gives a ratio of 101/51
= 1.98 with an interval from about 1.9 to 2.1, which meets a goal of 1.5.
"""

from __future__ import annotations

import itertools
import math
import random
import statistics
from collections.abc import Sequence
from dataclasses import asdict, dataclass

# Below this many pairs there is no interval and no verdict: with three, both runs
# of an arm that is no different fall on one side in a quarter of all cases.
MIN_PAIRS = 5

# All 5**5 draws of five pairs can be listed; above that we draw at random.
MAX_EXACT_DRAWS = 5000
RANDOM_DRAWS = 4000

MET = "met"
MISSED = "missed"
NOT_SIGNIFICANT = "not significant"


@dataclass(frozen=True)
class Summary:
    """One arm of one case: the median and how far the runs are spread."""

    runs: int
    median: float
    low: float
    high: float
    q1: float
    q3: float

    def as_dict(self) -> dict[str, float]:
        return asdict(self)


@dataclass(frozen=True)
class Ratio:
    """Stock over look-ahead (above 1: look-ahead is faster), with its interval.

    low and high are None when there are too few pairs for an interval.
    """

    value: float
    low: float | None
    high: float | None

    def as_dict(self) -> dict[str, float | None]:
        return asdict(self)

    @property
    def change(self) -> str:
        """Say which way the runs point, when they point anywhere at all."""
        if self.low is None or self.high is None:
            return NOT_SIGNIFICANT
        if self.low > 1.0:
            return "faster"
        if self.high < 1.0:
            return "slower"
        return NOT_SIGNIFICANT


def summarize(values: Sequence[float]) -> Summary:
    """Return median, range and quartiles of a non-empty list."""
    ordered = sorted(values)
    return Summary(
        runs=len(ordered),
        median=statistics.median(ordered),
        low=ordered[0],
        high=ordered[-1],
        q1=quantile(ordered, 0.25),
        q3=quantile(ordered, 0.75),
    )


def quantile(ordered: Sequence[float], share: float) -> float:
    """Return the linearly interpolated quantile of an ordered list."""
    place = share * (len(ordered) - 1)
    below = math.floor(place)
    above = min(below + 1, len(ordered) - 1)
    return ordered[below] + (ordered[above] - ordered[below]) * (place - below)


def _draws(count: int, seed: int) -> list[tuple[int, ...]]:
    """List the index draws of a bootstrap over *count* pairs, repeatably."""
    if count**count <= MAX_EXACT_DRAWS:
        return list(itertools.product(range(count), repeat=count))
    rng = random.Random(seed)
    return [tuple(rng.randrange(count) for _ in range(count)) for _ in range(RANDOM_DRAWS)]


def _drawn_ratios(
    stock: Sequence[float], lookahead: Sequence[float], draws: list[tuple[int, ...]]
) -> list[float]:
    return [
        statistics.median([stock[i] for i in draw])
        / statistics.median([lookahead[i] for i in draw])
        for draw in draws
    ]


def ratio(
    stock: Sequence[float],
    lookahead: Sequence[float],
    *,
    confidence: float = 0.95,
    seed: int = 2,
) -> Ratio:
    """Return the ratio of medians with a bootstrap interval over pairs."""
    if len(stock) != len(lookahead) or not stock:
        raise ValueError("both arms need the same number of runs, at least one")
    value = statistics.median(stock) / statistics.median(lookahead)
    if len(stock) < MIN_PAIRS:
        return Ratio(value, None, None)
    drawn = sorted(_drawn_ratios(stock, lookahead, _draws(len(stock), seed)))
    tail = (1.0 - confidence) / 2
    return Ratio(value, quantile(drawn, tail), quantile(drawn, 1.0 - tail))


def geometric_mean(values: Sequence[float]) -> float:
    """Return the geometric mean of positive numbers."""
    return math.exp(sum(math.log(v) for v in values) / len(values))


def geometric_mean_ratio(
    cells: Sequence[tuple[Sequence[float], Sequence[float]]],
    *,
    confidence: float = 0.95,
    seed: int = 2,
) -> Ratio:
    """Return the geometric mean of the cells' ratios with its interval.

    Cells are independent measurements, so each is drawn anew in every round.
    """
    value = geometric_mean([statistics.median(s) / statistics.median(a) for s, a in cells])
    if min(len(s) for s, _ in cells) < MIN_PAIRS:
        return Ratio(value, None, None)
    rng = random.Random(seed)
    rounds = 1000
    logs = [0.0] * rounds
    for stock, lookahead in cells:
        draws = [tuple(rng.randrange(len(stock)) for _ in range(len(stock))) for _ in range(rounds)]
        for i, drawn in enumerate(_drawn_ratios(stock, lookahead, draws)):
            logs[i] += math.log(drawn)
    means = sorted(math.exp(total / len(cells)) for total in logs)
    tail = (1.0 - confidence) / 2
    return Ratio(value, quantile(means, tail), quantile(means, 1.0 - tail))


def verdict(measured: Ratio, goal: float) -> str:
    """Judge a ratio against the least it should be.

    The median decides whether a goal is met.  A median below the goal is a
    miss only when the whole interval is below it: otherwise the runs cannot
    tell, and "not significant" is the answer.
    """
    if measured.low is None or measured.high is None:
        return NOT_SIGNIFICANT
    if measured.value >= goal:
        return MET
    return MISSED if measured.high < goal else NOT_SIGNIFICANT
