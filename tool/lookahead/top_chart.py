"""The last minute as a line of blocks: what is kept of it, and how it is drawn."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Sequence

from .top_rates import Figures

# From nothing to the most there was.
BARS = "▁▂▃▄▅▆▇█"
ASCII_BARS = "_.-:=+*#"

SECONDS = 60

# With long intervals a chart covers more than a minute.
LEAST_POINTS = 20


class History:
    """The figures of the last minute, by the number of the refresh.

    Numbers that are left out, because the server was away or slow, are gaps.
    """

    def __init__(self, interval: float) -> None:
        self.points = max(LEAST_POINTS, round(SECONDS / interval))
        self.seconds = self.points * interval
        self._kept: deque[tuple[int, Figures]] = deque()
        self._newest = 0

    def add(self, number: int, figures: Figures) -> None:
        self._kept.append((number, figures))
        self._newest = number
        while self._kept[0][0] <= number - self.points:
            self._kept.popleft()

    def values(self, name: str) -> list[float | None]:
        """Return one figure over time, the newest last; gaps are None."""
        found: list[float | None] = [None] * self.points
        for number, figures in self._kept:
            found[number - self._newest - 1] = figures.get(name)
        return found

    def most(self, name: str) -> float | None:
        return max((v for v in self.values(name) if v is not None), default=None)

    def line(self, name: str, width: int, *, ascii_only: bool = False) -> str:
        """Draw one figure, at most this wide."""
        cells = condense(self.values(name), width, self._newest)
        return sparkline(cells, ascii_only=ascii_only)


def condense(values: Sequence[float | None], width: int, newest: int) -> list[float | None]:
    """Average neighbours until no more than `width` are left.

    Which ones are averaged depends on their number and not on their place, so
    that a chart moves without flickering.
    """
    group = math.ceil(len(values) / max(width, 1))
    if group <= 1:
        return list(values)
    cells: dict[int, list[float]] = {}
    for place, value in enumerate(values):
        if value is not None:
            cells.setdefault((newest - len(values) + 1 + place) // group, []).append(value)
    last = newest // group
    numbers = range(last - len(values) // group + 1, last + 1)
    return [sum(cells[n]) / len(cells[n]) if n in cells else None for n in numbers]


def sparkline(values: Sequence[float | None], *, ascii_only: bool = False) -> str:
    """Draw values from 0 to the greatest; gaps are blanks."""
    bars = ASCII_BARS if ascii_only else BARS
    most = max((v for v in values if v is not None), default=0)
    return "".join(" " if v is None else bars[_height(v, most, len(bars) - 1)] for v in values)


def _height(value: float, most: float, top: int) -> int:
    # Only nothing is drawn as nothing.
    return min(math.ceil(value / most * top), top) if value > 0 else 0
