"""What `lookahead top` shows: a title, alerts, and tables of strings.

Made from a sample, the rates since the one before and the history, and from
nothing else.  Which columns and rows there is room for is decided here; how
they look is for top_draw.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from rich.cells import cell_len, set_cell_size

from .report import Table, count
from .top_chart import History
from .top_rates import Figures, Rates
from .top_sample import Missing, Row, Sample
from .visit import clean

# Blanks between two columns.
GAP = 2

# Charts have the same columns everywhere; the drawn one gets what is left.
CHART_WIDTHS = (15, 9, 0, 9, 11)
CHART_MOST, CHART_LEAST = 60, 10

# Names and queries are cut, but not to less than this.
LEAST_TEXT = 20

# Lines of a table besides its rows: an empty one, and the headings.
TABLE_LINES = 2

# With less room than this a list says nothing.
LEAST_ROWS = 3

KB, MB, GB = 1 << 10, 1 << 20, 1 << 30


@dataclass(frozen=True)
class Alert:
    """Something to know: a line, and lines that say what to do."""

    text: str
    hints: tuple[str, ...] = ()
    severe: bool = False


@dataclass
class Panels:
    """One picture."""

    title: str
    alerts: list[Alert] = field(default_factory=list)
    tables: list[Table] = field(default_factory=list)


@dataclass(frozen=True)
class Size:
    """The room there is; without a height there is no end to it."""

    width: int
    height: int | None = None
    ascii_only: bool = False


def panels(sample: Sample, found: Rates, history: History, interval: float, size: Size) -> Panels:
    """Return the picture of this moment."""
    picture = Panels(title(sample, found, interval), alerts(sample, found))
    picture.tables = charts(sample, found, history, size)
    lists = [
        workers_table(found.workers),
        owners_table(found.owners, sample),
        relations_table(found.relations, found.seconds),
    ]
    for table in lists:
        if table is not None:
            narrow(table, size)
            picture.tables.append(table)
    fit(picture, size)
    return picture


# ----------------------------------------------------------------------
# Above the tables


def title(sample: Sample, found: Rates, interval: float) -> str:
    clock = sample.time[11:19]
    every = f"{clock}, every {interval:g} s"
    server = sample.server
    if server is None:
        return every
    words = [
        # Packages add a name of their own.
        f"PostgreSQL {server.version.split()[0]}",
        f"database {server.database}",
        f"pg_lookahead {server.library_version}",
        f"method {server.method}",
    ]
    if sample.status is not None:
        words.append(f"{sample.status['ios_worker_num']} of {server.io_workers} workers")
    return clean(", ".join([*words, every]))


def alerts(sample: Sample, found: Rates) -> list[Alert]:
    if sample.away is not None:
        return [Alert(clean(sample.away), ("Trying again.",), severe=True)]
    result = [Alert(clean(missing.reason), _hints(missing)) for missing in sample.missing]
    server, status = sample.server, sample.status
    if server is not None and server.method == "none":
        result.append(Alert(f"this session reads nothing ahead: {server.reason}"))
    if server is not None and status is not None:
        running = status["ios_worker_num"]
        if server.io_workers is not None and running < server.io_workers:
            result.append(
                Alert(
                    f"{running} of {server.io_workers} workers of the I/O service run",
                    ("max_worker_processes may be too small; the server's log says more.",),
                    severe=True,
                )
            )
    return result


def _hints(missing: Missing) -> tuple[str, ...]:
    return tuple(clean(line) for line in (missing.hint, *missing.commands) if line)


# ----------------------------------------------------------------------
# Charts


@dataclass(frozen=True)
class Chart:
    """One line of a table of charts: a figure, and how it is written."""

    label: str
    name: str
    text: Callable[[float | None], str]
    # What is said of the time since the server started.
    total: Callable[[Row, Figures], str] = lambda status, figures: ""


def charts(sample: Sample, found: Rates, history: History, size: Size) -> list[Table]:
    """Return the tables of charts; while the server is away, the past alone."""
    tables = []
    if found.service is not None or history.most("queue_depth") is not None:
        status, figures = sample.status or {}, found.service or {}
        shown = [c for c in SERVICE_CHARTS if c.name != ERRORS or figures.get("errors_total")]
        tables.append(
            _charts("I/O service", shown, status, figures, history, size, total="since start")
        )
    if found.lookahead is not None or history.most("scans_per_second") is not None:
        tables.append(
            _charts("look-ahead", LOOKAHEAD_CHARTS, {}, found.lookahead or {}, history, size)
        )
    return tables


def _charts(
    name: str,
    shown: Sequence[Chart],
    status: Row,
    figures: Figures,
    history: History,
    size: Size,
    total: str = "",
) -> Table:
    others = sum(CHART_WIDTHS) + GAP * (len(CHART_WIDTHS) - 1)
    width = max(CHART_LEAST, min(CHART_MOST, size.width - others))
    last = f"last {_span(history.seconds)}"
    table = Table("", [name, "now", last, "most", total], words=(name, last))
    for chart in shown:
        line = history.line(chart.name, width, ascii_only=size.ascii_only)
        most = chart.text(history.most(chart.name))
        since = chart.total(status, figures) if status else ""
        table.rows.append([chart.label, chart.text(figures.get(chart.name)), line, most, since])
    return table


def _span(seconds: float) -> str:
    if seconds < 90:
        return "minute" if round(seconds) == 60 else f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min"


def number(value: float | None) -> str:
    """Write a count, with a decimal where it is small and not whole."""
    if value is None:
        return "-"
    return f"{value:.1f}" if 0 < value < 10 and value != int(value) else f"{value:,.0f}"


def data_rate(value: float | None) -> str:
    return "-" if value is None else f"{data(value)}/s"


def data(value: float | None) -> str:
    """Write bytes in PostgreSQL's units: 1 MB is 1024 kB."""
    if value is None:
        return "-"
    for unit, name in ((GB, "GB"), (MB, "MB"), (KB, "kB")):
        if value >= unit:
            amount = value / unit
            return f"{amount:.1f} {name}" if amount < 100 else f"{amount:,.0f} {name}"
    return f"{value:,.0f} B"


def duration(microseconds: float | None) -> str:
    if microseconds is None:
        return "-"
    if microseconds < 1000:
        return f"{microseconds:.0f} us"
    milliseconds = microseconds / 1000
    return f"{milliseconds:.2f} ms" if milliseconds < 10 else f"{milliseconds:,.0f} ms"


def _total(name: str, text: Callable[[float | None], str] = count) -> Callable[[Row, Figures], str]:
    return lambda status, figures: text(figures.get(f"{name}_total"))


def _average(name: str) -> Callable[[Row, Figures], str]:
    # Nothing was measured yet where it is 0.
    return lambda status, figures: duration(status[name] or None)


ERRORS = "errors_per_second"

SERVICE_CHARTS = (
    Chart("blocks read/s", "blocks_read_per_second", number, _total("blocks_read")),
    Chart("data read", "bytes_per_second", data_rate),
    Chart("reads/s", "reads_per_second", number, _total("reads")),
    Chart("requests/s", "requests_per_second", number, _total("requests")),
    Chart("dropped/s", "dropped_per_second", number, _total("dropped")),
    Chart(
        "request latency",
        "request_latency_us",
        duration,
        _average("avg_io_request_latency_history"),
    ),
    Chart("disk latency", "read_latency_us", duration, _average("avg_io_latency_history")),
    Chart("queue depth", "queue_depth", number),
    Chart("errors/s", ERRORS, number, _total("errors")),
)

LOOKAHEAD_CHARTS = (
    Chart("scans ended/s", "scans_per_second", number),
    Chart("issued/s", "blocks_issued_per_second", number),
    Chart("used/s", "blocks_used_per_second", number),
    Chart("wasted/s", "blocks_wasted_per_second", number),
    Chart("waits/s", "waits_per_second", number),
)

# Charts to do without, the first one first.
EXPENDABLE = ("requests/s", "blocks read/s", "reads/s", "disk latency", "scans ended/s")

# What is kept of each refresh.
CHARTED = tuple(chart.name for chart in (*SERVICE_CHARTS, *LOOKAHEAD_CHARTS))


def point(found: Rates) -> Figures:
    """Return what the charts remember of one refresh."""
    figures = {**(found.service or {}), **(found.lookahead or {})}
    return {name: figures.get(name) for name in CHARTED}


# ----------------------------------------------------------------------
# Lists


def workers_table(workers: Sequence[Row] | None) -> Table | None:
    if workers is None:
        return None
    details = ("blocks/read", "merged/s", "hit/s", "passed/s", "ring", "errors")
    table = Table(
        "",
        ["worker", "pid", "read", "reads/s", "blocks/read", "requests/s", "merged/s",
         "dropped/s", "hit/s", "passed/s", "request", "disk", "queue", "ring", "errors"],
        words=("worker",),
        details=details,
    )  # fmt: skip
    for row in workers:
        table.rows.append(
            [
                str(row["worker"]),
                str(row["pid"] or "-"),
                data_rate(row["bytes_per_second"]),
                number(row["reads_per_second"]),
                number(row["blocks_per_read"]),
                number(row["requests_per_second"]),
                number(row["merged_per_second"]),
                number(row["dropped_per_second"]),
                number(row["blocks_hit_per_second"]),
                number(row["blocks_passed_per_second"]),
                duration(row["request_latency_us"]),
                duration(row["read_latency_us"]),
                number(row["queue_depth"]),
                data(row["ring_bytes"]),
                count(row["errors_total"]),
            ]
        )
    return table


def owners_table(owners: Sequence[Row] | None, sample: Sample) -> Table | None:
    if owners is None:
        return None
    head = "looked ahead now"
    table = Table(
        "",
        [head, "pid", "position", "frontier", "ahead", "done", "blocks/s", "for"],
        words=(head, "for"),
        details=("for",),
    )
    block_size = sample.server.block_size if sample.server else 0
    for row in owners:
        ahead, done = row["ahead_blocks"], row["done"]
        moves = ahead is not None
        table.rows.append(
            [
                _owner_name(row, sample),
                str(row["pid"]),
                count(row["position"]) if moves else "-",
                count(row["frontier"]) if moves else "-",
                data(ahead * block_size) if moves else "-",
                f"{done:.0%}" if done is not None else "-",
                number(row["blocks_per_second"]),
                _purpose(row),
            ]
        )
    if not owners:
        table.notes.append("nothing")
    return table


def _owner_name(row: Row, sample: Sample) -> str:
    name = str(row["relation"] or f"relation {row['relid']}")
    ours = sample.server.database if sample.server else None
    # Shared relations belong to no database.
    return clean(f"{row['database']}: {name}" if row["database"] not in (None, ours) else name)


def _purpose(row: Row) -> str:
    if row["command"]:
        return f"{row['command']}, {row['phase']}"
    return clean(row["query"] or row["backend_type"] or "-")


def relations_table(relations: Sequence[Row] | None, seconds: float | None) -> Table | None:
    if relations is None:
        return None
    head = "busiest relations"
    if seconds is not None:
        head = f"busiest in {seconds:.3g} s"
    table = Table(
        "",
        [head, "scans", "issued", "used", "wasted", "hit", "waits", "dropped", "errors"],
        words=(head,),
        details=("dropped", "errors"),
    )
    names = (
        "scans", "blocks_issued", "blocks_used", "blocks_wasted", "blocks_hit", "waits",
        "blocks_dropped", "errors",
    )  # fmt: skip
    for row in relations:
        table.rows.append([clean(row["relation"]), *(count(row[name]) for name in names)])
    if not relations:
        table.notes.append("none")
    return table


# ----------------------------------------------------------------------
# Room


def narrow(table: Table, size: Size) -> None:
    """Leave out details, then cut names, so that a table is not too wide.

    What can be cut is the text at the end, or else the name at the beginning.
    """

    def widths() -> list[int]:
        cells = zip(table.columns, *table.rows) if table.rows else ((c,) for c in table.columns)
        return [max(map(cell_len, column)) for column in cells]

    def room(elastic: int) -> int:
        others = sum(w for i, w in enumerate(widths()) if i != elastic)
        return size.width - others - GAP * (len(table.columns) - 1)

    elastic = len(table.columns) - 1 if table.columns[-1] in table.words else 0
    if room(elastic) < min(widths()[elastic], LEAST_TEXT):
        drop_details(table)
        elastic = 0
    most = max(room(elastic), LEAST_TEXT)
    for row in table.rows:
        row[elastic] = cut(row[elastic], most, size)


def cut(text: str, width: int, size: Size) -> str:
    mark = "..." if size.ascii_only else "…"
    return text if cell_len(text) <= width else set_cell_size(text, width - len(mark)) + mark


def drop_details(table: Table) -> None:
    kept = [i for i, column in enumerate(table.columns) if column not in table.details]
    table.columns = [table.columns[i] for i in kept]
    table.rows = [[row[i] for i in kept] for row in table.rows]
    table.details = ()


def fit(picture: Panels, size: Size) -> None:
    """Shorten tables so that the picture is not higher than the terminal.

    Of the charts those of look-ahead go first, then single ones, then all.
    Lists share what is left, and say how many rows are not shown.
    """
    if size.height is None:
        return
    texts = [picture.title]
    for alert in picture.alerts:
        texts += [alert.text, *(f"  {hint}" for hint in alert.hints)]
    room = size.height - sum(math.ceil(cell_len(text) / size.width) for text in texts)
    charted = [table for table in picture.tables if is_chart(table)]
    lists = [table for table in picture.tables if not is_chart(table)]
    least = sum(TABLE_LINES + min(_lines(table), LEAST_ROWS) for table in lists)

    def taken() -> int:
        return sum(TABLE_LINES + _lines(table) for table in charted)

    while len(charted) > 1 and taken() + least > room:
        charted.pop()
    for label in EXPENDABLE:
        if charted and taken() + least > room:
            charted[0].rows = [row for row in charted[0].rows if row[0] != label]
    if taken() + least > room:
        charted.clear()
    room -= taken()
    room -= TABLE_LINES * len(lists)
    wanted = [_lines(table) for table in lists]
    for table, lines in zip(lists, share(wanted, room)):
        _shorten(table, lines)
    picture.tables = [*charted, *lists]


def is_chart(table: Table) -> bool:
    return table.columns[1] == "now"


def _lines(table: Table) -> int:
    return len(table.rows) + len(table.notes)


def _shorten(table: Table, lines: int) -> None:
    if _lines(table) <= lines:
        return
    kept = max(lines - 1, 0)
    table.notes = [f"and {len(table.rows) - kept} more"]
    table.rows = table.rows[:kept]


def share(wanted: Sequence[int], room: int) -> list[int]:
    """Share room out, a line at a time, to those who want more."""
    given = [0] * len(wanted)
    while room > 0 and given != list(wanted):
        for i, most in enumerate(wanted):
            if room > 0 and given[i] < most:
                given[i] += 1
                room -= 1
    return given
