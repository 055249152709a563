"""What `lookahead top` draws, from stored samples."""

from __future__ import annotations

import io
import json
from dataclasses import replace
from pathlib import Path

import pytest
from rich.cells import cell_len
from rich.console import Console

from lookahead import top
from lookahead.report import Table
from lookahead.top_chart import History, condense, sparkline
from lookahead.top_draw import render
from lookahead.top_panels import Panels, Size, data, duration, number, panels, point, share
from lookahead.top_rates import rates
from lookahead.top_sample import Missing, Part, Sample, from_json

SAMPLES = Path(__file__).parent / "test_top_samples.json"
WIDE = Size(140)


@pytest.fixture
def samples() -> list[Sample]:
    return [from_json(data) for data in json.loads(SAMPLES.read_text())]


def picture(samples: list[Sample], size: Size = WIDE) -> Panels:
    """Show samples one after the other, and return the last picture."""
    history = History(1)
    before = None
    shown = None
    for tick, sample in enumerate(samples):
        found = rates(before, sample)
        history.add(tick, point(found))
        shown = panels(sample, found, history, 1, size)
        before = sample
    assert shown is not None
    return shown


def drawn(shown: Panels, width: int) -> list[str]:
    output = io.StringIO()
    Console(file=output, width=width, color_system=None).print(render(shown))
    return [line.rstrip() for line in output.getvalue().splitlines()]


def table(shown: Panels, head: str) -> Table:
    found = [table for table in shown.tables if table.columns[0].startswith(head)]
    assert len(found) == 1
    return found[0]


def cell(table: Table, row: int, column: str) -> str:
    return table.rows[row][list(table.columns).index(column)]


# ----------------------------------------------------------------------
# Charts


def test_sparkline() -> None:
    assert sparkline([0, 1, 4, 7, 14, None, 14]) == "▁▂▃▅█ █"
    assert sparkline([0, 0.001, 100]) == "▁▂█"
    assert sparkline([0, 0]) == "▁▁"
    assert sparkline([None, None]) == "  "
    assert sparkline([]) == ""
    assert sparkline([0, None, 8], ascii_only=True) == "_ #"


def test_history_has_gaps() -> None:
    history = History(1)
    assert history.points == 60
    for tick in (0, 1, 4):
        history.add(tick, {"a": float(tick)})
    assert history.values("a")[-6:] == [None, 0, 1, None, None, 4]
    assert history.values("b") == [None] * 60
    assert history.most("a") == 4
    assert history.most("b") is None


def test_history_forgets() -> None:
    history = History(1)
    for tick in range(200):
        history.add(tick, {"a": float(tick)})
    assert history.values("a") == list(range(140, 200))
    # The server was away for longer than the chart is.
    history.add(900, {"a": 1.0})
    assert history.values("a") == [None] * 59 + [1]


@pytest.mark.parametrize(
    ("interval", "points", "seconds"), [(0.5, 120, 60), (2, 30, 60), (10, 20, 200)]
)
def test_history_of_other_intervals(interval: float, points: int, seconds: float) -> None:
    history = History(interval)
    assert (history.points, history.seconds) == (points, seconds)


def test_condense() -> None:
    assert condense([1, 2, 3], 3, 2) == [1, 2, 3]
    assert condense([0, 1, 2, 3], 2, 3) == [0.5, 2.5]
    # One refresh later the old pairs are still pairs.
    assert condense([1, 2, 3, 4], 2, 4) == [2.5, 4]
    assert condense([None, None, 2, None], 2, 3) == [None, 2]


def test_charts_are_as_wide_as_they_may_be() -> None:
    for interval in (0.1, 0.7, 1, 7, 100):
        history = History(interval)
        for tick in range(700):
            history.add(tick, {"a": 1.0})
            for width in (1, 7, 10, 33, 60):
                line = history.line("a", width)
                assert 1 <= len(line) <= width


# ----------------------------------------------------------------------
# Cells


@pytest.mark.parametrize(
    ("value", "text"),
    [(None, "-"), (0, "0"), (0.0, "0"), (2.5, "2.5"), (7, "7"), (12.34, "12"), (12345, "12,345")],
)
def test_number(value: float | None, text: str) -> None:
    assert number(value) == text


@pytest.mark.parametrize(
    ("value", "text"),
    [(None, "-"), (0, "0 B"), (8192, "8.0 kB"), (52428800, "50.0 MB"), (1 << 31, "2.0 GB")],
)
def test_data(value: float | None, text: str) -> None:
    assert data(value) == text


@pytest.mark.parametrize(
    ("value", "text"),
    [(None, "-"), (12.4, "12 us"), (999, "999 us"), (1840, "1.84 ms"), (25000, "25 ms")],
)
def test_duration(value: float | None, text: str) -> None:
    assert duration(value) == text


# ----------------------------------------------------------------------
# Pictures


def test_service(samples: list[Sample]) -> None:
    shown = picture(samples[:2])
    assert shown.alerts == []
    for word in ("17.6", "shop", "0.1.0", "method worker", "2 of 2 workers", "10:00:02"):
        assert word in shown.title
    charts = {row[0]: row[1:] for row in table(shown, "I/O service").rows}
    assert [charts["data read"][i] for i in (0, 2)] == ["50.0 MB/s"] * 2
    assert charts["blocks read/s"][0] == "6,400"
    assert charts["request latency"][0] == "2.00 ms"
    assert charts["disk latency"][3] == "400 us"
    assert charts["dropped/s"] == ["2.5", charts["dropped/s"][1], "2.5", "5"]
    assert "errors/s" not in charts
    assert table(shown, "look-ahead").rows[1][1] == "3,050"


def test_a_package_with_a_name_of_its_own(samples: list[Sample]) -> None:
    server = samples[0].server
    assert server
    server = replace(server, version="15.20 (Debian 15.20-0+deb12u1)")
    assert picture([replace(samples[0], server=server)]).title.startswith("PostgreSQL 15.20, ")


def test_errors_are_shown_where_there_are_any(samples: list[Sample]) -> None:
    workers = samples[0].workers
    assert workers is not None
    workers.rows[0]["errors"] = 3
    labels = [row[0] for row in table(picture(samples[:1]), "I/O service").rows]
    assert "errors/s" in labels


def test_workers(samples: list[Sample]) -> None:
    shown = picture(samples[:2])
    found = table(shown, "worker")
    assert cell(found, 0, "read") == "25.0 MB/s"
    assert cell(found, 1, "dropped/s") == "2.5"
    assert cell(found, 1, "blocks/read") == "16"
    assert cell(found, 1, "passed/s") == "4"


def test_owners(samples: list[Sample]) -> None:
    found = table(picture(samples[:2]), "looked ahead now")
    assert [row[0] for row in found.rows] == [
        "orders",
        "items",
        "products",
        "archive: relation 20000",
    ]
    assert found.rows[0][1:] == [
        "4711", "29,000", "33,000", "31.2 MB", "21%", "4,500",
        "SELECT count(*) FROM orders WHERE total < 0",
    ]  # fmt: skip
    assert cell(found, 1, "for") == "VACUUM, scanning heap"
    assert [cell(found, 2, c) for c in ("position", "frontier", "ahead")] == ["-"] * 3


def test_relations(samples: list[Sample]) -> None:
    found = table(picture(samples[:2]), "busiest in 2 s")
    assert found.rows[1][:4] == ["products", "2", "800", "800"]


def test_nothing_going_on(samples: list[Sample]) -> None:
    idle = replace(samples[0], owners=Part(1, []), relations=Part(1, []))
    shown = picture([idle])
    assert table(shown, "looked ahead now").notes == ["nothing"]
    assert table(shown, "busiest").notes == ["none"]


def test_away(samples: list[Sample]) -> None:
    """The past is still shown, and nothing else."""
    shown = picture(samples[:4])
    assert shown.alerts[0].severe
    assert "shutting down" in shown.alerts[0].text
    assert [table.columns[0] for table in shown.tables] == ["I/O service", "look-ahead"]
    row = shown.tables[0].rows[0]
    assert row[1] == "-"
    assert row[2].strip()


def test_back_again(samples: list[Sample]) -> None:
    shown = picture(samples)
    assert [alert.text for alert in shown.alerts] == ["1 of 2 workers of the I/O service run"]
    # The history has outlived the restart.
    row = table(shown, "I/O service").rows[0]
    assert (row[0], row[1], row[3]) == ("blocks read/s", "-", "6,400")
    assert cell(table(shown, "worker"), 1, "pid") == "-"


def test_what_is_missing(samples: list[Sample]) -> None:
    missing = Missing(("service", "owners"), "no service", "Set it.", ("ALTER SYSTEM …;",))
    sample = replace(samples[0], status=None, workers=None, owners=None, missing=(missing,))
    shown = picture([sample])
    assert shown.alerts[0].text == "no service"
    assert shown.alerts[0].hints == ("Set it.", "ALTER SYSTEM …;")
    assert [table.columns[0] for table in shown.tables] == ["look-ahead", "busiest relations"]


def test_nothing_is_read_ahead(samples: list[Sample]) -> None:
    server = samples[0].server
    assert server
    server = replace(server, method="none", reason="pg_lookahead.enabled is off")
    shown = picture([replace(samples[0], server=server)])
    assert "pg_lookahead.enabled is off" in shown.alerts[0].text


# ----------------------------------------------------------------------
# Room


def test_share() -> None:
    assert share([5, 1, 9], 9) == [4, 1, 4]
    assert share([1, 1], 9) == [1, 1]
    assert share([2, 2], -3) == [0, 0]
    assert share([], 4) == []


@pytest.mark.parametrize("width", [80, 100, 120, 200])
@pytest.mark.parametrize("height", [24, 30, 50, 100])
def test_it_fits(samples: list[Sample], width: int, height: int) -> None:
    """Also with 32 workers and many scans."""
    for part, most in ((samples[1].workers, 32), (samples[1].owners, 100)):
        assert part is not None
        part.rows[:] = [dict(part.rows[i % 2], worker=i, pid=i) for i in range(most)]
    found = picture(samples[:2], Size(width, height))
    lines = drawn(found, width)
    assert len(lines) <= height
    assert max(map(len, lines)) <= width
    assert table(found, "I/O service").rows
    assert len(table(found, "looked ahead now").rows) >= 2
    # Headings are whole: rich has nothing cut.
    assert not [line for line in lines if "…" in line and "SELECT" not in line]


def test_without_an_end_nothing_is_left_out(samples: list[Sample]) -> None:
    part = samples[1].owners
    assert part is not None
    part.rows[:] = [dict(part.rows[0], pid=i) for i in range(100)]
    found = table(picture(samples[:2]), "looked ahead now")
    assert len(found.rows) == 100
    assert found.notes == []


@pytest.mark.parametrize("height", [1, 5, 12])
def test_a_tiny_terminal(samples: list[Sample], height: int) -> None:
    drawn(picture(samples[:2], Size(40, height)), 40)


def test_long_names_are_cut(samples: list[Sample]) -> None:
    owners = samples[1].owners
    assert owners is not None
    owners.rows[0]["relation"] = "x" * 200
    lines = drawn(picture(samples[:2], Size(80)), 80)
    line = next(line for line in lines if line.startswith("xxx"))
    assert "x…" in line
    assert line.endswith("4,500")


def test_wide_letters(samples: list[Sample]) -> None:
    owners = samples[1].owners
    assert owners is not None
    owners.rows[0]["relation"] = "表" * 60
    lines = drawn(picture(samples[:2], Size(80)), 80)
    line = next(line for line in lines if line.startswith("表"))
    assert cell_len(line) <= 80
    assert line.endswith("4,500")


def test_names_cannot_control_the_terminal(samples: list[Sample]) -> None:
    for part in (samples[1].owners, samples[1].relations):
        assert part is not None
        for row in part.rows:
            row.update(relation="a\x1b[2J", query="b\x9b1m\r", database="c\a")
    lines = drawn(picture(samples[:2]), 140)
    assert all(line.isprintable() for line in lines)
    assert any("a?[2J" in line for line in lines)


def test_ascii(samples: list[Sample]) -> None:
    lines = drawn(picture(samples[:4], Size(80, None, ascii_only=True)), 80)
    "\n".join(lines).encode("ascii")


# ----------------------------------------------------------------------
# Time


class Clock:
    def __init__(self) -> None:
        self.now = 100.0

    def monotonic(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        self.now += seconds


def test_ticks(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = Clock()
    monkeypatch.setattr(top, "time", clock)
    seen = []
    for tick in top.ticks(2, 5):
        seen.append((tick, clock.now))
        # The third answer takes a while.
        clock.now += 5 if tick == 3 else 0.3
    assert seen == [(1, 102), (2, 104), (3, 106), (6, 112), (7, 114)]


def test_ticks_without_an_end(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(top, "time", Clock())
    found = top.ticks(1, None)
    assert [next(found) for _ in range(100)][-1] == 100
