"""Tables from result files: on the terminal, as Markdown, and comparisons.

Everything here reads the JSON that a run wrote and nothing else, so a table
can be made again at any time.  A `Table` is plain data; `to_rich` and
`to_markdown` are the two ways to draw it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from rich import box
from rich.console import Console
from rich.table import Table as RichTable
from rich.text import Text

from . import stats
from .bench_store import differences
from .errors import LookaheadError

# What may differ between two results that are compared: the build, which is
# what is being compared, and how much of the benchmark was run.
COMPARABLE = (
    "definition.build", "metadata.commit", "metadata.command", "metadata.pairs",
    "metadata.machine.load_average", "metadata.read_ahead", "metadata.huge_pages",
    "metadata.memory_reporting", "metadata.page_out", "metadata.extension",
)  # fmt: skip

DETAILS = ("waits ms", "blocks read", "server CPU ms", "wasted", "depth")

# Columns a terminal needs to show the details as well.
WIDE = 170

_STYLES = {
    stats.MET: "green",
    stats.MISSED: "bold red",
    "failed": "bold red",
    stats.NOT_SIGNIFICANT: "yellow",
    "faster": "green",
    "slower": "red",
}


@dataclass
class Table:
    """A table as data: title, headings, rows of strings, notes below it."""

    title: str
    columns: Sequence[str]
    rows: list[list[str]] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    # Columns that hold words; all others hold numbers and are set right.
    words: Sequence[str] = ("case", "goal", "verdict", "change")
    # Columns that a narrow terminal has no room for.
    details: Sequence[str] = ()


def to_rich(table: Table, width: int) -> RichTable:
    """Draw a table for a terminal; details are left out where it is narrow."""
    drawn = RichTable(title=table.title, title_justify="left", caption_justify="left")
    drawn.caption = "\n".join(table.notes) or None
    drawn.box = box.SIMPLE_HEAD
    kept = [
        place
        for place, column in enumerate(table.columns)
        if width >= WIDE or column not in table.details
    ]
    for place in kept:
        left = table.columns[place] in table.words
        drawn.add_column(table.columns[place], justify="left" if left else "right")
    for row in table.rows:
        drawn.add_row(*(Text(row[i], style=_STYLES.get(row[i], "")) for i in kept))
    return drawn


def to_markdown(table: Table) -> str:
    def line(cells: Sequence[str]) -> str:
        return "| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |"

    rule = ["---" if column in table.words else "---:" for column in table.columns]
    lines = [f"### {table.title}", "", line(table.columns), line(rule)]
    lines += [line(row) for row in table.rows]
    lines += ["", *(f"{note}  " for note in table.notes)] if table.notes else []
    return "\n".join(lines) + "\n"


def show(tables: Sequence[Table], *, markdown: bool, console: Console | None = None) -> None:
    console = console or Console()
    if not console.is_terminal and not markdown:
        # A log file or a pipe has room for everything.
        console.width = max(console.width, WIDE + 50)
    for table in tables:
        if markdown:
            console.file.write(to_markdown(table) + "\n")
        else:
            console.print(to_rich(table, console.width))
            console.print()


def milliseconds(value: float | None) -> str:
    if value is None:
        return "-"
    return f"{value:,.0f}" if value >= 100 else f"{value:.1f}" if value >= 1 else f"{value:.3f}"


def spread(summary: dict[str, float]) -> str:
    """Return `median [lowest, highest]`."""
    low, high = milliseconds(summary["low"]), milliseconds(summary["high"])
    return f"{milliseconds(summary['median'])} [{low}, {high}]"


def ratio_text(ratio: dict[str, float | None] | None) -> str:
    """Return `ratio [interval]`, with the decimals that matter near 1."""
    if ratio is None or ratio["value"] is None:
        return "-"
    digits = 2 if ratio["value"] >= 2 else 3
    text = f"{ratio['value']:.{digits}f}"
    if ratio["low"] is None or ratio["high"] is None:
        return text
    return f"{text} [{ratio['low']:.{digits}f}, {ratio['high']:.{digits}f}]"


def count(value: float | None) -> str:
    return "-" if value is None else f"{value:,.0f}"


def both(
    stock: dict[str, Any], ahead: dict[str, Any], name: str, text: Callable[[float | None], str]
) -> str:
    """Return `stock → look-ahead` of one metric, or a dash if nobody measured it."""
    if stock.get(name) is None and ahead.get(name) is None:
        return "-"
    return f"{text(stock.get(name))} → {text(ahead.get(name))}"


def group_table(group: str, cells: Sequence[dict[str, Any]]) -> Table:
    """Return one line per cell with both arms, ratio, goal and verdict."""
    table = Table(
        title=f"{group} ({cells[0]['server']})",
        columns=[
            "case", "stock ms", "look-ahead ms", "ratio [95 %]", "goal", "verdict",
            *DETAILS,
        ],
        details=DETAILS,
    )  # fmt: skip
    for cell in cells:
        if "ratio" not in cell:
            table.rows.append(
                [cell["label"], *["-"] * 3, f"≥ {cell['goal']}", "failed", *["-"] * 5]
            )
            table.notes += [f"{cell['label']}: {fault}" for fault in cell["faults"]]
            continue
        stock, ahead = cell["stock"], cell["lookahead"]
        seen = ahead.get("counters") or {}
        issued = seen.get("blocks_issued", 0)
        goal = f"≥ {cell['goal']}" + (", no block more" if cell["same_blocks"] else "")
        table.rows.append(
            [
                cell["label"],
                spread(stock["ms"]),
                spread(ahead["ms"]),
                ratio_text(cell["ratio"]),
                goal,
                cell["verdict"],
                both(stock, ahead, "waits_ms", milliseconds),
                both(stock, ahead, "blocks_read", count),
                both(stock, ahead, "server_cpu_ms", milliseconds),
                f"{seen['blocks_wasted'] / issued:.1%}" if issued else "-",
                count(seen.get("depth_max")),
            ]
        )
        table.notes += [f"{cell['label']}: {fault}" for fault in cell["faults"]]
        if cell.get("blocks_more"):
            table.notes.append(f"{cell['label']}: {cell['blocks_more']} blocks more were read")
    return table


def grid_table(group: str, cells: Sequence[dict[str, Any]]) -> Table:
    """Return the ratios of a matrix as a grid: the shape at one glance."""

    def method(cell: dict[str, Any]) -> str:
        return cell["io_method"] or "own"

    heads = list(dict.fromkeys((method(c), c["direction"]) for c in cells))
    lines: dict[tuple[str, float], dict[tuple[str, str], dict[str, Any]]] = {}
    for cell in cells:
        row = lines.setdefault((cell["fuzz"], cell["fraction"]), {})
        row[method(cell), cell["direction"]] = cell
    table = Table(
        title=f"{group}: stock / look-ahead",
        columns=["fuzz", "rows", *(f"{m} {d}" for m, d in heads)],
        words=("fuzz",),
        notes=["- marks a ratio below the goal, ? one the runs cannot tell from it"],
    )
    marks = {stats.MET: "", stats.MISSED: " -", "failed": " failed"}
    for (fuzz, fraction), row in lines.items():
        texts = []
        for head in heads:
            found = row.get(head)
            if found is None or "ratio" not in found:
                texts.append("failed" if found else "")
                continue
            value = found["ratio"]["value"]
            mark = "" if value >= found["goal"] else marks.get(found["verdict"], " ?")
            texts.append(f"{value:.2f}{mark}")
        table.rows.append([fuzz, f"{fraction:.1%}".replace(".0%", "%"), *texts])
    return table


def totals_table(result: dict[str, Any]) -> Table:
    """Return the lines that stand for many cells, and the count of verdicts."""
    table = Table(title="Totals", columns=["case", "measured", "goal", "verdict"])
    for total in result["totals"]:
        if "share" in total:
            worst = total["worst"]
            table.rows.append(
                [total["name"], f"{total['share']:.2%} of {count(total['issued'])}",
                 f"≤ {total['goal']:.0%}", total["verdict"]]
            )  # fmt: skip
            if worst:
                table.notes.append(f"most wasted: {worst['cell']}, {worst['share']:.2%}")
        else:
            table.rows.append(
                [f"{total['name']} of {total['cells']} cells", ratio_text(total["ratio"]),
                 f"≥ {total['goal']}", total["verdict"]]
            )  # fmt: skip
            for method, value in total["by_io_method"].items():
                table.rows.append([f"  {method or 'own reads'}", f"{value:.2f}", "", ""])
    found = ", ".join(f"{n} {verdict}" for verdict, n in result["verdicts"].items())
    table.notes.append(f"verdicts: {found}")
    return table


def _size_text(scale: dict[str, Any]) -> str:
    """Say how large the tables of a run were."""
    if "rows" in scale:
        return f"{scale['rows']:,} rows per table, fillfactor 20"
    return (
        f"{scale['disk_mb']:,} MB loaded on disk, {scale['slow_mb']:,} MB on storage"
        f" with {scale['delay_us']:,} us a request"
    )


def header_text(result: dict[str, Any]) -> str:
    """Return the lines that say what was measured, where and how."""
    meta, definition = result["metadata"], result["definition"]
    machine, disk = meta["machine"], meta["device"]
    lines = [
        f"started {result['started']}, finished {result['finished']}",
        f"command: {meta['command']}",
        f"commit {meta['commit']}, build {definition['build']}",
        *(f"server {name}: {text}" for name, text in meta["servers"].items()),
        f"{machine['cpus']} x {machine['cpu_model']}, {machine['memory']}",
        f"kernel {machine['kernel']}",
        f"device {disk['device']} ({disk['file_system']}), scheduler {disk['scheduler']}, "
        f"read-ahead {disk['read_ahead_kb']} kB",
        f"{_size_text(definition['scale'])}; "
        f"at least {min((c['pairs'] for c in result['cells'] if 'pairs' in c), default=0)}"
        " pairs of runs",
    ]
    settings = ("read_ahead", "huge_pages", "memory_reporting", "page_out")
    lines += [meta[name]["text"] for name in settings if name in meta]
    lines += [f"note: {note}" for note in result["notes"]]
    return "\n".join(lines)


def tables(result: dict[str, Any]) -> list[Table]:
    """Return all tables of a result, the grids first where there are many cells."""
    found: list[Table] = []
    groups: dict[tuple[str, str], list[dict[str, Any]]] = {}
    for cell in result["cells"]:
        groups.setdefault((cell["group"], cell["server"]), []).append(cell)
    for (group, _), cells in groups.items():
        if len(cells) > 12 and cells[0]["fraction"] is not None:
            found.append(grid_table(group, cells))
        found.append(group_table(group, cells))
    return [*found, totals_table(result)]


class CannotCompare(LookaheadError):
    """Two results were made under different conditions."""


def refuse_unequal(one: dict[str, Any], other: dict[str, Any]) -> None:
    """Raise CannotCompare with everything that differs beside the build."""
    one, other = _common_servers(one, other), _common_servers(other, one)
    found = [
        line
        for part in ("definition", "metadata")
        for line in differences(one[part], other[part], part)
        if not line.startswith(COMPARABLE)
    ]
    ours = {cell["id"]: cell for cell in one["cells"] if "ratio" in cell}
    for cell in other["cells"]:
        mine = ours.get(cell["id"])
        if mine is None or "ratio" not in cell or mine["settings"] == cell["settings"]:
            continue
        for here, there in zip(mine["settings"], cell["settings"]):
            found += differences(
                one["settings"][here], other["settings"][there], f"{cell['id']} settings"
            )
    if found:
        lines = "\n  ".join(found)
        raise CannotCompare("the results cannot be compared, these differ:\n  " + lines)


def _common_servers(result: dict[str, Any], other: dict[str, Any]) -> dict[str, Any]:
    """Return a result without the servers and tables that only it has."""
    mine, theirs = result["metadata"], other["metadata"]
    if "relations" not in mine or "relations" not in theirs:
        # Loads make their tables anew, each run.
        mine, theirs = {"relations": {}, **mine}, {"relations": {}, **theirs}
    relations = {
        server: {name: size for name, size in tables.items() if name in there}
        for server, tables in mine["relations"].items()
        if (there := theirs["relations"].get(server)) is not None
    }
    versions = {name: text for name, text in mine["servers"].items() if name in theirs["servers"]}
    return {**result, "metadata": {**mine, "relations": relations, "servers": versions}}


def comparison_table(one: dict[str, Any], other: dict[str, Any]) -> Table:
    """Return cell by cell how look-ahead changed from one result to the other.

    The stock column is the check on the machine: the server has not changed,
    so where stock moves as much as look-ahead, the disk is what moved.
    """
    table = Table(
        title="first → second",
        columns=["case", "stock ms", "look-ahead ms", "ratio", "second / first", "change"],
        words=("case", "change"),
    )
    ours = {cell["id"]: cell for cell in one["cells"] if "ratio" in cell}
    for cell in other["cells"]:
        mine = ours.get(cell["id"])
        if mine is None or "ratio" not in cell:
            continue
        before, after = mine["ratio"], cell["ratio"]
        table.rows.append(
            [
                cell["id"],
                *(
                    f"{milliseconds(mine[arm]['ms']['median'])} → "
                    f"{milliseconds(cell[arm]['ms']['median'])}"
                    for arm in ("stock", "lookahead")
                ),
                f"{before['value']:.2f} → {after['value']:.2f}",
                f"{after['value'] / before['value']:.2f}",
                _change(before, after),
            ]
        )
    return table


def _change(before: dict[str, Any], after: dict[str, Any]) -> str:
    """Judge by the intervals: only disjoint ones are a change."""
    if None in (before["low"], after["low"]):
        return stats.NOT_SIGNIFICANT
    if after["low"] > before["high"]:
        return "faster"
    return "slower" if after["high"] < before["low"] else stats.NOT_SIGNIFICANT
