"""Draws the panels of `lookahead top`: on a live terminal, or as plain text."""

from __future__ import annotations

import io
import sys

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.markup import escape
from rich.table import Table as RichTable
from rich.text import Text

from .report import Table
from .top_panels import CHART_WIDTHS, GAP, Panels, Size, is_chart

# A pipe or a file has no width; it gets all columns.
PLAIN_WIDTH = 140

SEVERE = "bold red"

# What should stay nothing is marked where it does not.
MARKED = {
    "dropped/s": SEVERE,
    "errors": SEVERE,
    "errors/s": SEVERE,
    "wasted": "yellow",
    "wasted/s": "yellow",
    "passed/s": "yellow",
}
NOTHING = ("", "0", "-")

CHART = "cyan"


def render(picture: Panels) -> RenderableType:
    parts: list[RenderableType] = [Text(picture.title, style="bold")]
    for alert in picture.alerts:
        parts.append(Text(alert.text, style=SEVERE if alert.severe else "yellow"))
        parts += [Text(f"  {hint}", overflow="fold") for hint in alert.hints]
    for table in picture.tables:
        parts += ["", to_rich(table)]
        parts += [Text(note, style="dim") for note in table.notes]
    return Group(*parts)


def to_rich(table: Table) -> RichTable:
    """Draw a table without lines: every row counts in a terminal."""
    drawn = RichTable(
        box=None, pad_edge=False, padding=(0, GAP, 0, 0), header_style="bold underline"
    )
    for place, column in enumerate(table.columns):
        drawn.add_column(
            escape(column),
            justify="left" if column in table.words else "right",
            no_wrap=True,
            overflow="ellipsis",
            min_width=CHART_WIDTHS[place] if is_chart(table) else None,
        )
    for row in table.rows:
        drawn.add_row(*_cells(table, row))
    return drawn


def _cells(table: Table, row: list[str]) -> list[Text]:
    cells = []
    for place, (column, text) in enumerate(zip(table.columns, row)):
        # The lines of a chart are named in its first column.
        name = row[0] if is_chart(table) and column == "now" else column
        style = MARKED.get(name, "") if text not in NOTHING else ""
        if is_chart(table) and place == 2:
            style = CHART
        cells.append(Text(text, style=style))
    return cells


class _Console(Console):
    def on_broken_pipe(self) -> None:
        # Otherwise it would end the program by itself.
        raise BrokenPipeError


class Plain:
    """Writes picture after picture, without any control of the terminal."""

    def __init__(self) -> None:
        width = None if sys.stdout.isatty() else PLAIN_WIDTH
        self._console = _Console(highlight=False, width=width)

    def __enter__(self) -> Plain:
        return self

    def __exit__(self, *exception: object) -> None:
        pass

    @property
    def size(self) -> Size:
        return Size(self._console.width, None, not _can_draw(self._console))

    def show(self, picture: Panels) -> None:
        self._console.print(render(picture))
        self._console.print()
        self._console.file.flush()


class Screen:
    """Takes the whole terminal, and leaves the last picture when it ends."""

    def __init__(self) -> None:
        self._console = _Console(highlight=False)
        self._last: RenderableType | None = None
        self._live = Live(
            console=self._console,
            screen=True,
            auto_refresh=False,
            redirect_stdout=False,
            redirect_stderr=False,
        )

    def __enter__(self) -> Screen:
        self._live.start()
        return self

    def __exit__(self, *exception: object) -> None:
        self._live.stop()
        if self._last is not None:
            self._console.print(self._last)

    @property
    def size(self) -> Size:
        return Size(self._console.width, self._console.height, not _can_draw(self._console))

    def show(self, picture: Panels) -> None:
        self._last = render(picture)
        self._live.update(self._last, refresh=True)


def write_any_name() -> None:
    """Have letters replaced that the output's encoding lacks, instead of failing."""
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="replace")


def _can_draw(console: Console) -> bool:
    return console.encoding.lower().replace("-", "").startswith("utf")


def can_take_terminal() -> bool:
    """Is there a terminal that can be drawn on?"""
    return sys.stdout.isatty() and not Console().is_dumb_terminal
