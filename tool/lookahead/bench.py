"""`lookahead bench`: run the benchmarks, show their results, compare them.

A run writes data first: `runs.jsonl` line by line, then `result.json`, and the
text table is made from that file.  Exit code 1 means that a goal was missed or
a case failed (wrong plan, other answers); "not significant" is no failure.
With --quick the goals are not judged: only failures count.
"""

import json
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any, Optional

import typer
from rich.console import Console

from . import build, report, servers, stats
from .bench_index_scan import GROUPS, Cell, Scale, cells, full, quick
from .bench_result import FAILED, build_result
from .bench_run import Runner
from .bench_store import (
    Store,
    build_digest,
    command_line,
    device,
    git_commit,
    machine,
    now,
)
from .data import BenchData
from .errors import UsageError
from .paths import REPOSITORY
from .servers import Server

DEFAULT_ROWS = 3_000_000
RESULT_FILE = "result.json"
TABLE_FILE = "table.txt"
RESULTS = REPOSITORY / "bench" / "results"

# typer evaluates annotations, and Python 3.9 cannot evaluate "X | None": that is
# why this file says Optional.
app = typer.Typer(
    help="Measure look-ahead against stock PostgreSQL, and read the results.",
    no_args_is_help=True,
)
console = Console(stderr=True)


def choose_servers(names: Sequence[str]) -> list[Server]:
    """Return the servers to measure; the first one runs every group.

    By default an 18 built for speed with io_uring if there is one, else the
    embedded one, and the oldest supported major for the group `random`.
    """
    if names:
        return [servers.by_name(name) for name in names]
    chosen = [servers.source(18, "release") or servers.embedded()]
    oldest = servers.debian(15)
    return chosen + ([oldest] if oldest else [])


def load_result(path: Path) -> dict[str, Any]:
    """Read a result file, or the one in a folder."""
    file = path / RESULT_FILE if path.is_dir() else path
    try:
        result = json.loads(file.read_text())
    except (OSError, ValueError) as error:
        raise UsageError(f"cannot read {file}: {error}") from error
    if not isinstance(result, dict) or result.get("benchmark") != "index-scan":
        raise UsageError(f"{file} is not a result of bench index-scan")
    return result


def write_result(folder: Path, result: dict[str, Any]) -> None:
    """Write the JSON and, from it, the text table."""
    (folder / RESULT_FILE).write_text(json.dumps(result, indent=1) + "\n")
    with (folder / TABLE_FILE).open("w") as file:
        wide = Console(file=file, width=220, no_color=True)
        wide.print(report.header_text(result), markup=False, highlight=False)
        wide.print()
        report.show(report.tables(result), markdown=False, console=wide)


def describe_run(data: dict[str, BenchData], pairs: int) -> dict[str, Any]:
    """Collect what a reader needs to judge the numbers."""
    first = next(iter(data.values()))
    found = {name: some.describe() for name, some in data.items()}
    return {
        "command": command_line(),
        "commit": git_commit(),
        "pairs": pairs,
        "machine": machine(),
        "device": device(first.folder),
        "servers": {name: d["version"] for name, d in found.items()},
        "relations": {name: d["relations"] for name, d in found.items()},
        "cold": "server stopped, caches dropped, server started before every run",
        "warm_up": "connection, a scan of the table `warm`, EXPLAIN of the query",
        "arms": {
            "stock": "library not loaded",
            "lookahead": "shared_preload_libraries (cached: session_preload_libraries), defaults",
        },
    }


def prepare(
    chosen: Sequence[Server], some: Sequence[Cell], scale: Scale, *, extension: bool
) -> dict[str, BenchData]:
    """Build the extension and make the tables that the cells need."""
    data = {}
    for server in chosen:
        mine = [cell for cell in some if cell.server == server.name]
        if not mine:
            continue
        if extension:
            console.print(f"{server.name}: building the extension")
            build.build_extension(server)
        kept = BenchData(server, scale.rows, progress=console.print)
        tables = dict.fromkeys(cell.table for cell in mine if cell.clients is None)
        uses_pgbench = any(cell.clients is not None for cell in mine)
        kept.ensure(
            tables,
            pgbench_scale=scale.pgbench_scale if uses_pgbench else None,
            extension=extension,
        )
        data[server.name] = kept
    return data


@app.command("index-scan")
def index_scan(
    server: Annotated[
        Optional[list[str]],
        typer.Option(help="Server to measure; the first runs all groups, others `random`."),
    ] = None,
    quick_run: Annotated[
        bool, typer.Option("--quick", help="A smoke test of under a minute; judges nothing.")
    ] = False,
    only: Annotated[
        Optional[list[str]],
        typer.Option(help=f"Group to run, or several by commas: {', '.join(GROUPS)}."),
    ] = None,
    pairs: Annotated[Optional[int], typer.Option(min=1, help="Alternating pairs of runs.")] = None,
    output: Annotated[Optional[Path], typer.Option(help="Folder for the results.")] = None,
    rows: Annotated[int, typer.Option(min=1000, help="Rows of each table.")] = DEFAULT_ROWS,
    resume: Annotated[
        bool, typer.Option("--resume", help="Continue the run in the --output folder.")
    ] = False,
    match: Annotated[
        Optional[str], typer.Option(help="Only cases whose name contains this text.")
    ] = None,
    markdown: Annotated[bool, typer.Option("--markdown", help="Print Markdown.")] = False,
    no_extension: Annotated[
        bool, typer.Option("--no-extension", hidden=True, help="Both arms are stock.")
    ] = False,
) -> None:
    """Run the index scan benchmark: cold and cached scans, stock and look-ahead."""
    groups = [name for given in only or GROUPS for name in given.split(",")]
    unknown = [group for group in groups if group not in GROUPS]
    if unknown:
        raise UsageError(f"no such group: {', '.join(unknown)}; there are {', '.join(GROUPS)}")
    if resume and output is None:
        raise UsageError("--resume needs the --output folder to continue")
    scale = quick() if quick_run else full(rows)
    pairs = pairs or (1 if quick_run else 5)
    chosen = choose_servers(server or [])
    some, notes = cells(chosen, scale, groups)
    some = [cell for cell in some if match is None or match in cell.id]
    if not some:
        raise UsageError("no case is left to run")

    extension = not no_extension
    definition = {
        "scale": asdict(scale),
        "build": build_digest() if extension else "none (both arms are stock)",
    }
    stamp = now().replace("-", "").replace(":", "")[:15]
    folder = output or RESULTS / f"index-scan-{chosen[0].name}-{stamp}"
    data: dict[str, BenchData] = {}
    try:
        store = None
        if resume:
            store = Store.resume(folder, definition)
        else:
            Store.expect_none(folder)
        data = prepare(chosen, some, scale, extension=extension)
        if store is None:
            store = Store.create(folder, definition, describe_run(data, pairs))
        for note in notes:
            store.note(note)
        runner = Runner(store, data, scale, extension=extension, progress=progress)
        runner.run(some, pairs)
    finally:
        for kept in data.values():
            kept.close()
    store.close()
    # A folder that was resumed with other groups still shows all it has.
    every, _ = cells(chosen, scale, GROUPS)
    done = {line.get("cell") for line in store.lines}
    result = build_result([cell for cell in every if cell in some or cell.id in done], store)
    write_result(folder, result)
    report.show(report.tables(result), markdown=markdown)
    console.print(f"results: {folder}", soft_wrap=True)
    bad = [FAILED] if quick_run else [FAILED, stats.MISSED]
    if any(result["verdicts"].get(verdict) for verdict in bad):
        raise typer.Exit(1)


def progress(text: str) -> None:
    """Print one line per run: a log file shows how far a long run has come."""
    console.print(f"{now()}  {text}", markup=False, highlight=False, soft_wrap=True)


@app.command("show")
def show(
    files: Annotated[list[Path], typer.Argument(help="Result files or their folders.")],
    markdown: Annotated[bool, typer.Option("--markdown", help="Print Markdown.")] = False,
) -> None:
    """Print the tables of results that were made before."""
    output = Console()
    for file in files:
        result = load_result(file)
        output.print(report.header_text(result), markup=False, highlight=False, soft_wrap=True)
        output.print()
        report.show(report.tables(result), markdown=markdown, console=output)


@app.command("compare")
def compare(
    first: Annotated[Path, typer.Argument(help="Result file or folder, the older one.")],
    second: Annotated[Path, typer.Argument(help="Result file or folder, the newer one.")],
    markdown: Annotated[bool, typer.Option("--markdown", help="Print Markdown.")] = False,
) -> None:
    """Compare two results of two builds made under the same conditions."""
    one, other = load_result(first), load_result(second)
    report.refuse_unequal(one, other)
    report.show([report.comparison_table(one, other)], markdown=markdown)
