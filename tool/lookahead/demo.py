"""`lookahead demo`: one command that shows what look-ahead does, and does not.

Everything happens on a private server on a Unix socket in a temporary folder,
which is removed at the end, on an error, and on Ctrl-C; only the cache folder
stays.  See demo_data.py for the tables, demo_queries.py for the queries and
demo_run.py for how they are measured.
"""

import json
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Optional

import typer
from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table

from . import build, disk_space, paths, servers
from .bench_result import ARMS, LOOKAHEAD, STOCK
from .bench_store import file_system
from .cluster import Cluster, clear_up, what_is_dropped
from .demo_data import FULL, QUICK, Loader, Size
from .demo_queries import QUERIES, SHOWN, Query
from .demo_run import LOAD_CONF, DemoRunner, Outcome
from .errors import LookaheadError, UsageError
from .servers import Server

FULL_PAIRS = 3
QUICK_PAIRS = 2

# Of a query of which fewer cannot tell.
FULL_MOST = 9
QUICK_MOST = 4

# The whole demo ends within five minutes; EXPLAIN and clean-up need the rest.
SECONDS = 270.0

# Below this many columns the table leaves out what is in --json as well.
WIDE = 110

IN_MEMORY = ("tmpfs", "ramfs", "devtmpfs")

# A pipe or a log has no width of its own, and the table needs one.
console = Console(width=None if sys.stdout.isatty() else 132)


def choose(server: Optional[str], pg_config: Optional[Path]) -> Server:
    """Return the server to show it on: the embedded 18 unless told otherwise."""
    if server and pg_config:
        raise UsageError("give either --server or --pg-config")
    if pg_config:
        return servers.from_pg_config(pg_config)
    if server:
        return servers.by_name(server)
    with console.status("getting PostgreSQL 18 (once)"):
        return servers.embedded()


def check_place(folder: Path, size: Size) -> None:
    """Refuse a folder that is too small or that is memory and never cold."""
    hint = "use --quick, or set LOOKAHEAD_TMP to a folder on a larger disk"
    disk_space.require(folder, size.disk_mb, "the demo", hint)
    kind = file_system(folder)
    if kind in IN_MEMORY:
        raise LookaheadError(
            f"{folder} is in memory ({kind}), where no read ever waits; "
            "set LOOKAHEAD_TMP to a folder on a disk"
        )


def bar(text: str = "") -> Progress:
    return Progress(
        TextColumn("{task.description:<34}"), BarColumn(), TextColumn("{task.percentage:>3.0f} %"),
        TimeElapsedColumn(), TextColumn(text), console=console, transient=not console.is_terminal,
    )  # fmt: skip


def milliseconds(value: float) -> str:
    return f"{value:,.0f}" if value >= 100 else f"{value:.1f}"


def result_table(outcomes: Sequence[Outcome]) -> Table:
    """Return the table of times, waits and blocks, with the ratio."""
    arrow = " → " if console.encoding.startswith("utf") else " -> "
    table = Table(title="Cold, alternating: medians", title_justify="left")
    table.add_column("query")
    columns = ["without ms", "with ms", "ratio", "waits ms", "blocks read", "ahead", "wasted"]
    if console.width < WIDE:
        columns = columns[:4]
    for column in columns:
        table.add_column(column, justify="right", no_wrap=True)
    table.add_column("", no_wrap=True)
    styles = {
        "faster": "green",
        "slower": "red",
        "no difference": "yellow",
        "cannot tell": "yellow",
    }
    for outcome in outcomes:
        seen = outcome.counters
        waits = [milliseconds(outcome.median(arm, "waits_ms")) for arm in ARMS]
        blocks = [f"{outcome.median(arm, 'blocks_read'):,.0f}" for arm in ARMS]
        cells = [
            milliseconds(outcome.median(STOCK, "ms")),
            milliseconds(outcome.median(LOOKAHEAD, "ms")),
            f"{outcome.ratio:.2f}",
            arrow.join(waits),
            blocks[0] if blocks[0] == blocks[1] else arrow.join(blocks),
            f"{seen.get('blocks_issued', 0):,}" if seen else "-",
            f"{seen.get('blocks_wasted', 0):,}" if seen else "-",
        ]
        table.add_row(
            outcome.query.title,
            *cells[: len(columns)],
            f"[{styles[outcome.verdict]}]{outcome.verdict}[/]",
        )
    return table


def conclusions(outcomes: Sequence[Outcome]) -> list[str]:
    """Return what the runs say in words, the unflattering part included."""
    lines = []
    faster = [o for o in outcomes if o.verdict == "faster"]
    lines.append(f"{len(faster)} of {len(outcomes)} queries became faster.")
    for outcome in outcomes:
        if outcome.verdict == "faster":
            continue
        if outcome.verdict == "slower":
            lines.append(f"SLOWER: {outcome.query.title} ({outcome.ratio:.2f}).")
        elif outcome.verdict == "cannot tell":
            why = "look-ahead read nothing" if outcome.read_nothing else "the runs overlap"
            lines.append(
                f"{outcome.pairs} pairs cannot tell: {outcome.query.title}"
                f" ({outcome.ratio:.2f}, but {why})."
            )
        elif outcome.query.expect == "no loss":
            lines.append(f"Nothing to gain and nothing lost: {outcome.query.title}.")
        else:
            why = "the kernel's own read-ahead serves reads in heap order"
            hint = f" ({why})" if outcome.query.name == "period" else ""
            lines.append(f"Not faster: {outcome.query.title}{hint}.")
    return lines


def faults(outcomes: Sequence[Outcome]) -> list[str]:
    """Return what must never happen: other answers, other plans."""
    found = [f"the answers differ: {o.query.title}" for o in outcomes if not o.answers_agree]
    return found + [f"the plans differ: {o.query.title}" for o in outcomes if not o.plans_agree]


def load(cluster: Cluster, size: Size, *, extension: bool) -> tuple[int, bool]:
    """Make the tables; return their size in bytes and whether pgvector is there."""
    with bar() as progress, cluster.connect() as conn:
        loader = Loader(conn, size, progress)
        loader.load()
        if extension:
            conn.execute("CREATE EXTENSION pg_lookahead")
        return loader.bytes(), loader.vectors


def show_explain(runner: DemoRunner, query: Query) -> dict[str, list[str]]:
    """Print one EXPLAIN (ANALYZE, BUFFERS) before and after."""
    found = {}
    for arm in ARMS:
        found[arm] = runner.explained(query, arm)
        name = "without look-ahead" if arm == STOCK else "with look-ahead"
        console.print(f"\nEXPLAIN (ANALYZE, BUFFERS), {query.title}, {name}:", style="bold")
        for line in found[arm]:
            style = "green" if "Look-Ahead" in line else ""
            console.print(f"  {line}", style=style, markup=False, highlight=False, soft_wrap=True)
    return found


def main(
    quick: Annotated[
        bool, typer.Option("--quick", help="A quarter of a GB and two pairs of runs.")
    ] = False,
    pg_config: Annotated[
        Optional[Path],
        typer.Option(help="pg_config of the PostgreSQL to use instead of the embedded 18."),
    ] = None,
    server: Annotated[Optional[str], typer.Option(help="Name of a server of this tool.")] = None,
    json_file: Annotated[
        Optional[Path], typer.Option("--json", help="Write everything measured to this file.")
    ] = None,
    no_extension: Annotated[
        bool, typer.Option("--no-extension", hidden=True, help="Both arms are stock.")
    ] = False,
) -> None:
    """Load a small shop and run its queries without and with look-ahead."""
    extension = not no_extension
    size = QUICK if quick else FULL
    pairs, most = (QUICK_PAIRS, QUICK_MOST) if quick else (FULL_PAIRS, FULL_MOST)
    if json_file and not json_file.absolute().parent.is_dir():
        raise UsageError(f"no folder {json_file.absolute().parent} for --json")
    clear_up()
    check_place(paths.temp_root(), size)
    dropped = what_is_dropped()
    if dropped:
        console.print(dropped, style="yellow", highlight=False)
    chosen = choose(server, pg_config)
    if extension:
        with console.status(f"building the extension for PostgreSQL {chosen.version}"):
            build.build_extension(chosen, werror=False)
    # Downloads and builds happen once per machine; the five minutes start here.
    deadline = time.monotonic() + SECONDS
    with Cluster(chosen, conf=LOAD_CONF, preload=extension) as cluster:
        loaded, vectors = load(cluster, size, extension=extension)
        articles = " and articles" if vectors else ""
        console.print(
            f"PostgreSQL {chosen.version} ({chosen.name}), shared_buffers = 128MB, "
            f"{loaded / 1e9:.2f} GB of orders, customers, products{articles}",
            highlight=False,
        )
        queries = [q for q in QUERIES if vectors or not q.vectors]
        runner = DemoRunner(cluster, size, extension=extension)
        with console.status("running every query once, untimed"):
            runner.settle(queries)
        with bar() as progress:
            task = progress.add_task("", total=pairs * len(queries) * len(ARMS))

            def advance(text: str) -> None:
                progress.update(task, description=text, advance=1)

            outcomes, made = runner.measure(
                queries, pairs, most=most, deadline=deadline, advance=advance
            )
            progress.update(task, completed=pairs * len(queries) * len(ARMS))
        report(outcomes, made, pairs)
        shown = next(query for query in queries if query.name == SHOWN)
        plans = show_explain(runner, shown)
    if json_file:
        write_json(json_file, chosen, loaded, outcomes, plans)
    if not vectors:
        console.print("No pgvector on this server: the nearest-neighbour query was left out.")
    console.print("The private server is stopped and its files are removed.")
    if faults(outcomes):
        raise typer.Exit(1)


def report(outcomes: Sequence[Outcome], made: int, pairs: int) -> None:
    """Print the table and what it says."""
    console.print(result_table(outcomes))
    caches = {run.cache for o in outcomes for runs in o.runs.values() for run in runs}
    if caches != {"drop_caches"}:
        console.print(
            "The kernel's caches could not be dropped (that needs root, and in a container a "
            "/proc/sys that can be written to), so the data files "
            "were evicted with POSIX_FADV_DONTNEED, which is less thorough: some reads may "
            "still be served from memory, and the ratios be smaller than on a cold machine.",
            style="yellow",
        )
    if made < pairs:
        console.print(f"Stopped after {made} pairs of runs: the demo ends within five minutes.")
    console.print(
        "Planner: index scans only, in both arms. Waits: time the query waited for reads. "
        "Ahead, wasted: blocks look-ahead asked for, and those it did not need.",
        style="dim",
    )
    for line in conclusions(outcomes):
        console.print(line, highlight=False)
    wrong = faults(outcomes)
    for line in wrong:
        console.print(line, style="bold red")
    if not wrong:
        console.print("All answers and plans agree.", style="green")


def write_json(
    file: Path,
    server: Server,
    loaded: int,
    outcomes: Sequence[Outcome],
    plans: dict[str, list[str]],
) -> None:
    """Write everything that was measured."""
    content = {
        "server": {"name": server.name, "version": server.version},
        "bytes": loaded,
        "queries": [outcome.as_dict() for outcome in outcomes],
        "explain": plans,
    }
    file.write_text(json.dumps(content, indent=1) + "\n")
