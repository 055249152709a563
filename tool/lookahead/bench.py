"""`lookahead bench`: run the benchmarks, show their results, compare them.

A run writes data first: `runs.jsonl` line by line, then `result.json`, and the
text table is made from that file.  Exit code 1 means that a goal was missed or
a case failed (wrong plan, other answers); "not significant" is no failure.
With --quick the goals are not judged: only failures count.
"""

import contextlib
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any, Optional

import typer
from rich.console import Console

from . import (
    bench_extend,
    bench_index_scan,
    bench_instructions,
    bench_io_service,
    bench_leaf,
    bench_leaf_data,
    disk_space,
    io_data,
    paths,
    report,
    servers,
    slow_storage,
    valgrind,
)
from .bench_extend_result import build_result as build_extend_result
from .bench_extend_run import LoadRunner
from .bench_index_scan import Cell, cells
from .bench_io_result import build_result as build_io_result
from .bench_io_run import ServiceRunner, check_service
from .bench_io_service import Case, cases
from .bench_leaf_data import LeafData
from .bench_leaf_result import build_result as build_leaf_result
from .bench_leaf_run import LeafRunner
from .bench_output import chosen_groups, console, header_text, load_result, progress, tables
from .bench_result import build_result
from .bench_run import Runner
from .bench_session import (
    Options,
    ScanBench,
    Scans,
    Tuned,
    definition_of,
    described,
    done_in,
    open_store,
    run_scans,
)
from .bench_store import Store
from .cluster import own_folder
from .data import BenchData, definition_hash, pgbench_name
from .errors import UsageError
from .io_data import VACUUM_COPIES, ServiceData
from .read_ahead import USUAL_KB
from .servers import Server

DEFAULT_ROWS = 3_000_000

# typer evaluates annotations, and Python 3.9 cannot evaluate "X | None": that is
# why this file says Optional.
app = typer.Typer(
    help="Measure look-ahead against stock PostgreSQL, and read the results.",
    no_args_is_help=True,
)

# The options that the benchmarks share.
Quick = Annotated[
    bool, typer.Option("--quick", help="A smoke test of a minute per server; judges nothing.")
]
Pairs = Annotated[
    Optional[int],
    typer.Option(min=1, help="Alternating pairs of runs; by default 5, with --quick 1."),
]
Output = Annotated[Optional[Path], typer.Option(help="Folder for the results.")]
Rows = Annotated[int, typer.Option(min=1000, help="Rows of each table.")]
Resume = Annotated[bool, typer.Option("--resume", help="Continue the run in the --output folder.")]
Match = Annotated[Optional[str], typer.Option(help="Only cases whose name contains this text.")]
Markdown = Annotated[bool, typer.Option("--markdown", help="Print Markdown.")]
KernelReadAhead = Annotated[
    Optional[int],
    typer.Option(
        "--read-ahead",
        min=0,
        help="Kernel's read-ahead of the disk in kB for the runs (Linux sets 128); put back after.",
    ),
]
ReadDelay = Annotated[
    int,
    typer.Option(
        "--read-delay",
        min=0,
        help="Microseconds by which a read takes longer: the data lies on a FUSE file system of"
        " ours, which sleeps. Leaves out the groups that read nothing.",
    ),
]
WithHugePages = Annotated[
    bool,
    typer.Option(
        "--huge-pages/--no-huge-pages",
        help="Reserve huge pages for both servers, as on a machine that is set up for a database;"
        " put back after. Needs root.",
    ),
]
NoExtension = Annotated[
    bool, typer.Option("--no-extension", hidden=True, help="Both arms are stock.")
]


def only_option(groups: Sequence[str]) -> Any:
    return typer.Option(help=f"Group to run, or several by commas: {', '.join(groups)}.")


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


def choose_io_servers(names: Sequence[str]) -> list[Server]:
    """Return the servers to measure: by default a 15, a 17 and an 18 built for speed."""
    if names:
        return [servers.by_name(name) for name in names]
    chosen = [
        servers.debian(15),
        servers.source(17, "release") or servers.debian(17),
        servers.source(18, "release") or servers.embedded(),
    ]
    return [server for server in chosen if server is not None]


def end(good: bool) -> None:
    """End the command with the status that says how the benchmark went."""
    if not good:
        raise typer.Exit(1)


# ---------------------------------------------------------------------------
# Index scans


def ensure_tables(
    kept: BenchData, mine: Sequence[Cell], scale: bench_index_scan.Scale, extension: bool
) -> dict[str, str]:
    """Make the tables that the cells need."""
    needed = list(dict.fromkeys(cell.table for cell in mine if cell.clients is None))
    if any(cell.clients is not None for cell in mine):
        needed.append(pgbench_name(scale.pgbench_scale))
    kept.ensure(needed, extension=extension)
    return {}


def index_scan_space(chosen: Sequence[Server], scale: bench_index_scan.Scale) -> dict[str, int]:
    """Seven tables on the first server, one on the others; see bench/README.md."""
    if scale != bench_index_scan.full(DEFAULT_ROWS):
        return {}
    return {server.name: 9000 if server is chosen[0] else 1500 for server in chosen}


INDEX_SCAN = ScanBench(
    name="index-scan",
    groups=bench_index_scan.GROUPS,
    reading_groups=bench_index_scan.READING_GROUPS,
    cases=cells,
    data=lambda server, scale: BenchData(server, scale.rows, progress=console.print),
    ensure=ensure_tables,
    runner=lambda scans: Runner(
        scans.store, scans.data, scans.scale, extension=scans.extension, progress=progress
    ),
    result=build_result,
    space=index_scan_space,
    data_name=lambda scale: definition_hash(scale.rows),
)


@app.command("index-scan")
def index_scan(
    server: Annotated[
        Optional[list[str]],
        typer.Option(help="Server to measure; the first runs all groups, others `random`."),
    ] = None,
    quick: Quick = False,
    only: Annotated[Optional[list[str]], only_option(bench_index_scan.GROUPS)] = None,
    pairs: Pairs = None,
    output: Output = None,
    rows: Rows = DEFAULT_ROWS,
    resume: Resume = False,
    match: Match = None,
    markdown: Markdown = False,
    read_ahead_kb: KernelReadAhead = None,
    read_delay_us: ReadDelay = 0,
    huge_pages: WithHugePages = True,
    no_extension: NoExtension = False,
) -> None:
    """Run the index scan benchmark: cold and cached scans, stock and look-ahead."""
    scale = bench_index_scan.quick() if quick else bench_index_scan.full(rows)
    options = Options(
        only=only, pairs=pairs, output=output, match=match, quick=quick, resume=resume,
        markdown=markdown, huge_pages=huge_pages, extension=not no_extension,
        read_ahead_kb=read_ahead_kb, read_delay_us=read_delay_us,
    )  # fmt: skip
    end(run_scans(INDEX_SCAN, options, scale, choose_servers(server or [])))


# ---------------------------------------------------------------------------
# The I/O service


def ensure_io_tables(
    kept: ServiceData, mine: Sequence[Case], scale: bench_io_service.Scale, extension: bool
) -> dict[str, str]:
    """Look whether the extension has the service, make the tables; return its settings."""
    settings = {}
    if extension:
        kept.start({}, preload=True, cold=False)
        with kept.connect() as conn:
            settings = check_service(conn, kept.server)
    needed = list(dict.fromkeys(case.table for case in mine if case.table not in VACUUM_COPIES))
    if any(case.group == "pgbench" for case in mine):
        needed.append(pgbench_name(scale.pgbench_scale))
    kept.ensure(needed, extension=extension)
    for table in {case.table for case in mine} & {*VACUUM_COPIES}:
        kept.for_vacuum(table).ensure_saved([table], extension=extension)
    return settings


def service_runner(scans: Scans[bench_io_service.Scale, ServiceData]) -> ServiceRunner:
    assert scans.read_ahead is not None
    return ServiceRunner(
        scans.store, scans.data, scans.scale,
        extension=scans.extension, read_ahead=scans.read_ahead, progress=progress,
    )  # fmt: skip


def io_service_space(chosen: Sequence[Server], scale: bench_io_service.Scale) -> dict[str, int]:
    """What the groups of each release need; see bench/README.md."""
    if scale != bench_io_service.full(DEFAULT_ROWS):
        return {}
    return {server.name: {15: 11000, 18: 5000}.get(server.major, 13000) for server in chosen}


IO_SERVICE = ScanBench(
    name="io-service",
    groups=bench_io_service.GROUPS,
    reading_groups=bench_io_service.READING_GROUPS,
    cases=cases,
    data=lambda server, scale: ServiceData(server, scale, progress=console.print),
    ensure=ensure_io_tables,
    runner=service_runner,
    result=build_io_result,
    space=io_service_space,
    data_name=io_data.data_name,
    description=bench_io_service.DESCRIPTION,
    groups_of_ours=("kill",),
    slow_groups=bench_io_service.SLOW_GROUPS,
)


@app.command("io-service")
def io_service(
    server: Annotated[
        Optional[list[str]],
        typer.Option(help="Server to measure, may be repeated; by default a 15, a 17 and an 18."),
    ] = None,
    quick: Quick = False,
    only: Annotated[Optional[list[str]], only_option(bench_io_service.GROUPS)] = None,
    pairs: Pairs = None,
    output: Output = None,
    rows: Rows = DEFAULT_ROWS,
    resume: Resume = False,
    match: Match = None,
    markdown: Markdown = False,
    read_delay_us: ReadDelay = 0,
    huge_pages: WithHugePages = True,
    no_extension: NoExtension = False,
) -> None:
    """Run the benchmark of the I/O service: sequential scans, VACUUM, index builds, TPC-H.

    The kernel's read-ahead of the device is set to 128 kB for as long as it runs.
    """
    scale = bench_io_service.quick() if quick else bench_io_service.full(rows)
    options = Options(
        only=only, pairs=pairs, output=output, match=match, quick=quick, resume=resume,
        markdown=markdown, huge_pages=huge_pages, extension=not no_extension,
        read_ahead_kb=USUAL_KB, read_delay_us=read_delay_us,
    )  # fmt: skip
    end(run_scans(IO_SERVICE, options, scale, choose_io_servers(server or [])))


# ---------------------------------------------------------------------------
# Leaf pages


def ensure_leaf_tables(
    kept: LeafData, mine: Sequence[bench_leaf.Case], scale: bench_leaf.Scale, extension: bool
) -> dict[str, str]:
    """Make the tables that the cases need."""
    in_pairs = [case for case in mine if case.group == "pgbench"]
    needed = dict.fromkeys(case.table for case in mine if case not in in_pairs)
    accounts = pgbench_name(scale.accounts_scale)
    names = [accounts if name == bench_leaf.ACCOUNTS else name for name in needed]
    kept.ensure(names, extension=extension)
    if in_pairs:
        kept.for_pgbench().ensure([pgbench_name(scale.pgbench_scale)], extension=extension)
    return {}


def leaf_space(chosen: Sequence[Server], scale: bench_leaf.Scale) -> dict[str, int]:
    """The three tables; see bench/README.md."""
    if scale != bench_leaf.full(bench_leaf.DEFAULT_ROWS):
        return {}
    return {server.name: 3500 for server in chosen}


LEAF = ScanBench(
    name="leaf",
    groups=bench_leaf.GROUPS,
    reading_groups=bench_leaf.READING_GROUPS,
    cases=bench_leaf.cases,
    data=lambda server, scale: LeafData(server, scale, progress=console.print),
    ensure=ensure_leaf_tables,
    runner=lambda scans: LeafRunner(
        scans.store, scans.data, scans.scale, extension=scans.extension, progress=progress
    ),
    result=build_leaf_result,
    space=leaf_space,
    data_name=bench_leaf_data.data_name,
    description=bench_leaf.DESCRIPTION,
)


@app.command("leaf")
def leaf(
    server: Annotated[
        Optional[list[str]],
        typer.Option(help="Server to measure, may be repeated; by default an 18 and a 15."),
    ] = None,
    quick: Quick = False,
    only: Annotated[Optional[list[str]], only_option(bench_leaf.GROUPS)] = None,
    pairs: Pairs = None,
    output: Output = None,
    rows: Rows = bench_leaf.DEFAULT_ROWS,
    resume: Resume = False,
    match: Match = None,
    markdown: Markdown = False,
    read_ahead_kb: KernelReadAhead = None,
    read_delay_us: ReadDelay = 0,
    huge_pages: WithHugePages = True,
    no_extension: NoExtension = False,
) -> None:
    """Run the benchmark of B-tree leaf pages: scans that read an index that is not cached."""
    scale = bench_leaf.quick() if quick else bench_leaf.full(rows)
    options = Options(
        only=only, pairs=pairs, output=output, match=match, quick=quick, resume=resume,
        markdown=markdown, huge_pages=huge_pages, extension=not no_extension,
        read_ahead_kb=read_ahead_kb, read_delay_us=read_delay_us,
    )  # fmt: skip
    end(run_scans(LEAF, options, scale, choose_servers(server or [])))


# ---------------------------------------------------------------------------
# Loads


def run_loads(
    store: Store,
    scale: bench_extend.Scale,
    chosen: Sequence[Server],
    storages: Sequence[str],
    some: Sequence[bench_extend.LoadCase],
    *,
    extension: bool,
    pairs: int,
) -> None:
    """Make the runs of `bench extend`, each storage in a folder of its own."""
    with contextlib.ExitStack() as stack:
        places = {}
        work = stack.enter_context(own_folder())
        for name in storages:
            if name == bench_extend.SLOW:
                places[name] = stack.enter_context(
                    slow_storage.mounted(
                        work / "mounted",
                        read_us=0,
                        write_us=scale.delay_us,
                        allocate_us=scale.delay_us,
                        log=progress,
                    )
                )
            else:
                places[name] = work / "disk"
                places[name].mkdir()
        runner = LoadRunner(store, scale, extension=extension, progress=progress)
        stack.callback(runner.close)
        for one in chosen:
            if any(case.server == one.name for case in some):
                runner.add(one, places)
        runner.run(some, pairs)


@app.command("extend")
def extend(
    server: Annotated[
        Optional[list[str]],
        typer.Option(help="Server to measure, may be repeated; by default a 15, a 17 and an 18."),
    ] = None,
    quick: Quick = False,
    only: Annotated[Optional[list[str]], only_option(bench_extend.GROUPS)] = None,
    storage: Annotated[
        Optional[list[str]], typer.Option(help="disk or slow, may be repeated; by default both.")
    ] = None,
    pairs: Pairs = None,
    output: Output = None,
    disk_mb: Annotated[int, typer.Option(min=1, help="MB to load on the machine's disk.")] = 1024,
    slow_mb: Annotated[int, typer.Option(min=1, help="MB to load on slow storage.")] = 128,
    delay_us: Annotated[
        int, typer.Option(min=0, help="What a request costs on slow storage.")
    ] = 1000,
    resume: Resume = False,
    match: Match = None,
    markdown: Markdown = False,
    huge_pages: WithHugePages = True,
    no_extension: NoExtension = False,
) -> None:
    """Run the benchmark of loads: INSERT, COPY, single rows, an index build.

    Slow storage is a FUSE file system of ours, whose writes and allocations sleep.
    """
    groups = chosen_groups(only, bench_extend.GROUPS)
    storages = chosen_groups(storage, bench_extend.STORAGES)
    scale = (
        bench_extend.Scale(16, 4, 100) if quick else bench_extend.Scale(disk_mb, slow_mb, delay_us)
    )
    options = Options(
        only=only, pairs=pairs, output=output, match=match, quick=quick, resume=resume,
        markdown=markdown, huge_pages=huge_pages, extension=not no_extension,
    )  # fmt: skip
    chosen = choose_io_servers(server or [])
    folder = options.folder("extend", chosen)
    lacking = slow_storage.lacking(progress) if bench_extend.SLOW in storages else None
    if lacking:
        storages = [name for name in storages if name != bench_extend.SLOW]
        progress(f"no slow storage: {lacking}")
    some = options.chosen(bench_extend.cases(chosen, groups, storages))
    disk_space.require(
        paths.temp_root(),
        bench_extend.space_mb(scale, storages) * len({case.server for case in some}),
        "bench extend",
        "use --disk-mb, or set LOOKAHEAD_TMP to a folder on a larger disk",
    )
    with options.tuned_machine() as tuned:
        definition = definition_of(options, scale, tuned)
        description = {**bench_extend.DESCRIPTION, **described(None, tuned)}
        store = open_store(options, folder, definition, chosen, description)
        run_loads(
            store, scale, chosen, storages, some,
            extension=options.extension, pairs=options.wanted,
        )  # fmt: skip
        store.close()
    done = done_in(store)
    # With --resume there may be runs of groups that were not asked for this time.
    every = bench_extend.cases(chosen, bench_extend.GROUPS, bench_extend.STORAGES)
    result = build_extend_result([c for c in every if c in some or c.id in done], store)
    end(options.finish(folder, result))


# ---------------------------------------------------------------------------
# Instructions


@app.command("instructions")
def instructions(
    server: Annotated[
        Optional[list[str]],
        typer.Option(help="Server to measure, may be repeated; by default a 15, a 17 and an 18."),
    ] = None,
    quick: Quick = False,
    pairs: Annotated[
        Optional[int],
        typer.Option(min=1, help="Alternating pairs of runs; by default 2, with --quick 1."),
    ] = None,
    output: Output = None,
    resume: Resume = False,
    match: Match = None,
    markdown: Markdown = False,
) -> None:
    """Count instructions (Valgrind) of statements that find all they need in shared buffers.

    Where nothing is to be read ahead the library is to cost nothing; this says what it
    costs, also on a machine that is busy.
    """
    valgrind.require("bench instructions")
    names = bench_instructions.QUICK if quick else tuple(bench_instructions.STATEMENTS)
    options = Options(
        only=None, pairs=pairs or (1 if quick else 2), output=output, match=match, quick=quick,
        resume=resume, markdown=markdown, huge_pages=False, extension=True,
    )  # fmt: skip
    chosen = choose_io_servers(server or [])
    folder = options.folder("instructions", chosen)
    some = options.chosen(bench_instructions.cases(chosen, names))
    definition = definition_of(options, bench_instructions.Scale(), Tuned())
    store = open_store(options, folder, definition, chosen, bench_instructions.DESCRIPTION)
    bench_instructions.run(store, chosen, some, options.wanted, progress)
    store.close()
    end(options.finish(folder, bench_instructions.build_result(some, store)))


# ---------------------------------------------------------------------------
# Results


@app.command("show")
def show(
    files: Annotated[list[Path], typer.Argument(help="Result files or their folders.")],
    markdown: Markdown = False,
) -> None:
    """Print the tables of results that were made before."""
    output = Console()
    for file in files:
        result = load_result(file)
        output.print(header_text(result), markup=False, highlight=False, soft_wrap=True)
        output.print()
        report.show(tables(result), markdown=markdown, console=output)


@app.command("compare")
def compare(
    first: Annotated[Path, typer.Argument(help="Result file or folder, the older one.")],
    second: Annotated[Path, typer.Argument(help="Result file or folder, the newer one.")],
    markdown: Markdown = False,
) -> None:
    """Compare two results of two builds made under the same conditions."""
    one, other = load_result(first), load_result(second)
    if one["benchmark"] != other["benchmark"]:
        raise UsageError(f"cannot compare {one['benchmark']} with {other['benchmark']}")
    report.refuse_unequal(one, other)
    report.show([report.comparison_table(one, other)], markdown=markdown)
