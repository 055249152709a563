"""`lookahead bench`: run the benchmarks, show their results, compare them.

A run writes data first: `runs.jsonl` line by line, then `result.json`, and the
text table is made from that file.  Exit code 1 means that a goal was missed or
a case failed (wrong plan, other answers); "not significant" is no failure.
With --quick the goals are not judged: only failures count.
"""

import contextlib
import hashlib
from collections.abc import Callable, Iterator, Mapping, MutableMapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any, Optional, TypeVar

import typer
from rich.console import Console

from . import (
    bench_extend,
    bench_index_scan,
    bench_io_service,
    bench_leaf,
    build,
    paths,
    report,
    servers,
    slow_storage,
)
from .bench_extend_result import build_result as build_extend_result
from .bench_extend_run import LoadRunner
from .bench_index_scan import Cell, cells
from .bench_io_result import build_result as build_io_result
from .bench_io_run import ServiceRunner, check_service
from .bench_io_service import DEAD_TABLE, Case, cases
from .bench_leaf_data import LeafData
from .bench_leaf_result import build_result as build_leaf_result
from .bench_leaf_run import LeafRunner
from .bench_measure import device_of
from .bench_output import (
    chosen_groups,
    console,
    finish,
    header_text,
    load_result,
    progress,
    result_folder,
    tables,
)
from .bench_result import build_result
from .bench_run import Runner
from .bench_store import Store, build_digest, command_line, device, git_commit, machine
from .cluster import LIBRARY, own_folder
from .data import BenchData, pgbench_name
from .errors import LookaheadError, UsageError
from .huge_pages import HugePages
from .io_data import ServiceData
from .kernel_setting import KernelSetting
from .read_ahead import USUAL_KB, ReadAhead
from .servers import Server

DEFAULT_ROWS = 3_000_000

Setting = TypeVar("Setting", bound=KernelSetting)

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


def delayed_groups(groups: list[str], possible: Sequence[str], read_delay_us: int) -> list[str]:
    """Return the groups that can run on slow storage, if that is asked for."""
    if not read_delay_us:
        return groups
    lacking = slow_storage.why_not()
    if lacking:
        raise LookaheadError(f"no slow storage: {lacking}")
    left = [group for group in groups if group in possible]
    if not left:
        raise UsageError(f"--read-delay is for the groups {', '.join(possible)}")
    return left


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


def describe_run(data: Mapping[str, BenchData], pairs: int) -> dict[str, Any]:
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


def build_for(server: Server) -> None:
    console.print(f"{server.name}: building the extension")
    build.build_extension(server)


def prepare(
    data: MutableMapping[str, BenchData],
    chosen: Sequence[Server],
    some: Sequence[Cell],
    scale: bench_index_scan.Scale,
    *,
    extension: bool,
) -> None:
    """Build the extension and make the tables that the cells need."""
    for server in chosen:
        mine = [cell for cell in some if cell.server == server.name]
        if not mine:
            continue
        if extension:
            build_for(server)
        kept = data[server.name] = BenchData(server, scale.rows, progress=console.print)
        needed = list(dict.fromkeys(cell.table for cell in mine if cell.clients is None))
        if any(cell.clients is not None for cell in mine):
            needed.append(pgbench_name(scale.pgbench_scale))
        kept.ensure(needed, extension=extension)


def prepare_io(
    data: MutableMapping[str, ServiceData],
    chosen: Sequence[Server],
    some: Sequence[Case],
    scale: bench_io_service.Scale,
    *,
    extension: bool,
) -> dict[str, dict[str, str]]:
    """Build the extension, look whether it has the service, make the tables.

    Returns the extension's settings, by server.
    """
    settings = {}
    for server in chosen:
        mine = [case for case in some if case.server == server.name]
        if not mine:
            continue
        if extension:
            build_for(server)
        kept = data[server.name] = ServiceData(server, scale, progress=console.print)
        if extension:
            kept.start({}, preload=True, cold=False)
            with kept.connect() as conn:
                settings[server.name] = check_service(conn, server)
        needed = list(dict.fromkeys(c.table for c in mine if c.table != DEAD_TABLE))
        if any(case.group == "pgbench" for case in mine):
            needed.append(pgbench_name(scale.pgbench_scale))
        kept.ensure(needed, extension=extension)
        if any(case.table == DEAD_TABLE for case in mine):
            kept.for_vacuum().ensure_saved([DEAD_TABLE], extension=extension)
    return settings


def prepare_leaf(
    data: MutableMapping[str, LeafData],
    chosen: Sequence[Server],
    some: Sequence[bench_leaf.Case],
    scale: bench_leaf.Scale,
    *,
    extension: bool,
) -> None:
    """Build the extension and make the tables that the cases need."""
    for server in chosen:
        mine = [case for case in some if case.server == server.name]
        if not mine:
            continue
        if extension:
            build_for(server)
        kept = data[server.name] = LeafData(server, scale, progress=console.print)
        in_pairs = [case for case in mine if case.group == "pgbench"]
        needed = dict.fromkeys(case.table for case in mine if case not in in_pairs)
        accounts = pgbench_name(scale.accounts_scale)
        names = [accounts if name == bench_leaf.ACCOUNTS else name for name in needed]
        kept.ensure(names, extension=extension)
        if in_pairs:
            kept.for_pgbench().ensure([pgbench_name(scale.pgbench_scale)], extension=extension)


@contextlib.contextmanager
def in_kernel(setting: Optional[Setting]) -> Iterator[Optional[Setting]]:
    """Have something set in the kernel for a while, and say so; None leaves it as it is."""
    if setting is None:
        yield None
        return
    with setting:
        progress(setting.describe())
        yield setting
    progress(f"{setting.name} is {setting.current()} {setting.unit} again")


def read_ahead_of_data(kb: Optional[int]) -> Optional[ReadAhead]:
    """Return the read-ahead of the disk that the data lies on, to be set; None for no change."""
    return None if kb is None else ReadAhead(device_of(paths.folder("bench-data")), kb)


def described(read_ahead: Optional[ReadAhead], pages: Optional[HugePages] = None) -> dict[str, Any]:
    """Return what a result says of what was set in the kernel."""
    found = {}
    if read_ahead is not None:
        found["read_ahead"] = read_ahead.as_dict()
    if pages is not None:
        found["huge_pages"] = pages.as_dict()
    return found


def measure(
    folder: Path,
    definition: dict[str, Any],
    data: Mapping[str, BenchData],
    *,
    resume: bool,
    prepare: Callable[[], None],
    describe: Callable[[], dict[str, Any]],
    notes: Sequence[str],
    run: Callable[[Store, Optional[ReadAhead]], None],
    pages: Optional[HugePages] = None,
    read_ahead_kb: Optional[int] = None,
    read_delay_us: int = 0,
) -> Store:
    """Open the store, have *data* made and the runs; stop the servers at the end.

    A store that cannot be opened is found out before anything is loaded.
    """
    with in_kernel(read_ahead_of_data(read_ahead_kb)) as read_ahead:
        try:
            store = None
            if resume:
                store = Store.resume(folder, definition)
            else:
                Store.expect_none(folder)
            prepare()
            libraries = libraries_of(data)
            if store is None:
                metadata = {**describe(), **described(read_ahead, pages)}
                store = Store.create(folder, definition, metadata)
            for note in notes:
                store.note(note)
            with contextlib.ExitStack() as stack:
                if read_delay_us:
                    store.note(f"a read takes {read_delay_us:,} us longer than the disk's")
                    for one in data.values():
                        stack.enter_context(one.on_slow_storage(read_delay_us))
                run(store, read_ahead)
            if libraries_of(data) != libraries:
                raise LookaheadError(
                    "pg_lookahead was built and installed anew while its benchmark ran: the"
                    f" runs in {folder} are of two builds"
                )
        finally:
            for kept in data.values():
                kept.close()
        store.close()
    return store


def libraries_of(data: Mapping[str, BenchData]) -> dict[str, str]:
    """Return what tells one build of the library from another, by server."""
    found = {}
    for name, one in data.items():
        library = one.server.pkglibdir / f"{LIBRARY}.so"
        if library.exists():
            found[name] = hashlib.sha256(library.read_bytes()).hexdigest()
    return found


def definition_of(
    scale: Any,
    *,
    extension: bool,
    pages: Optional[HugePages] = None,
    read_ahead_kb: Optional[int] = None,
    read_delay_us: int = 0,
) -> dict[str, Any]:
    """Return what must be the same in all runs of one store."""
    definition: dict[str, Any] = {
        "scale": asdict(scale),
        "build": build_digest() if extension else "none (both arms are stock)",
    }
    if pages is not None and pages.are_there:
        definition["huge_pages"] = True
    if read_ahead_kb is not None:
        definition["read_ahead_kb"] = read_ahead_kb
    if read_delay_us:
        definition["read_delay_us"] = read_delay_us
    return definition


def done_in(store: Store) -> set[Any]:
    """A folder that was resumed with other groups still shows all it has."""
    return {line.get("cell") for line in store.lines}


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
    groups = chosen_groups(only, bench_index_scan.GROUPS)
    groups = delayed_groups(groups, bench_index_scan.READING_GROUPS, read_delay_us)
    scale = bench_index_scan.quick() if quick else bench_index_scan.full(rows)
    wanted = pairs or (1 if quick else 5)
    chosen = choose_servers(server or [])
    folder = result_folder("index-scan", chosen[0].name, output, resume=resume)
    found, notes = cells(chosen, scale, groups)
    some = [cell for cell in found if match is None or match in cell.id]
    if not some:
        raise UsageError("no case is left to run")
    extension = not no_extension
    data: dict[str, BenchData] = {}

    def run(store: Store, _: Optional[ReadAhead]) -> None:
        Runner(store, data, scale, extension=extension, progress=progress).run(some, wanted)

    with in_kernel(HugePages() if huge_pages and not quick else None) as pages:
        store = measure(
            folder,
            definition_of(
                scale,
                extension=extension,
                pages=pages,
                read_ahead_kb=read_ahead_kb,
                read_delay_us=read_delay_us,
            ),
            data,
            resume=resume,
            prepare=lambda: prepare(data, chosen, some, scale, extension=extension),
            describe=lambda: describe_run(data, wanted),
            notes=notes,
            run=run,
            pages=pages,
            read_ahead_kb=read_ahead_kb,
            read_delay_us=read_delay_us,
        )
    done = done_in(store)
    every, _ = cells(chosen, scale, bench_index_scan.GROUPS)
    result = build_result([cell for cell in every if cell in some or cell.id in done], store)
    if not finish(folder, result, markdown=markdown, judged=not quick):
        raise typer.Exit(1)


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
    groups = chosen_groups(only, bench_io_service.GROUPS)
    groups = delayed_groups(groups, bench_io_service.READING_GROUPS, read_delay_us)
    scale = bench_io_service.quick() if quick else bench_io_service.full(rows)
    wanted = pairs or (1 if quick else 5)
    chosen = choose_io_servers(server or [])
    folder = result_folder("io-service", "+".join(s.name for s in chosen), output, resume=resume)
    found, notes = cases(chosen, scale, groups)
    some = [case for case in found if match is None or match in case.id]
    extension = not no_extension
    if not extension:
        some = [case for case in some if case.group != "kill"]
    if not some:
        raise UsageError("no case is left to run")
    data: dict[str, ServiceData] = {}
    settings: dict[str, dict[str, str]] = {}

    def describe() -> dict[str, Any]:
        return {
            **describe_run(data, wanted),
            **bench_io_service.DESCRIPTION,
            "extension": settings,
        }

    def run(store: Store, read_ahead: Optional[ReadAhead]) -> None:
        assert read_ahead is not None
        runner = ServiceRunner(
            store, data, scale, extension=extension, read_ahead=read_ahead, progress=progress
        )
        runner.run(some, wanted)

    with in_kernel(HugePages() if huge_pages and not quick else None) as pages:
        store = measure(
            folder,
            definition_of(scale, extension=extension, pages=pages, read_delay_us=read_delay_us),
            data,
            resume=resume,
            prepare=lambda: settings.update(
                prepare_io(data, chosen, some, scale, extension=extension)
            ),
            describe=describe,
            notes=notes,
            run=run,
            pages=pages,
            read_ahead_kb=USUAL_KB,
            read_delay_us=read_delay_us,
        )
    done = done_in(store)
    every, _ = cases(chosen, scale, bench_io_service.GROUPS)
    result = build_io_result([case for case in every if case in some or case.id in done], store)
    if not finish(folder, result, markdown=markdown, judged=not quick):
        raise typer.Exit(1)


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
    groups = chosen_groups(only, bench_leaf.GROUPS)
    groups = delayed_groups(groups, bench_leaf.READING_GROUPS, read_delay_us)
    scale = bench_leaf.quick() if quick else bench_leaf.full(rows)
    wanted = pairs or (1 if quick else 5)
    chosen = choose_servers(server or [])
    folder = result_folder("leaf", "+".join(s.name for s in chosen), output, resume=resume)
    found, notes = bench_leaf.cases(chosen, scale, groups)
    some = [case for case in found if match is None or match in case.id]
    if not some:
        raise UsageError("no case is left to run")
    extension = not no_extension
    data: dict[str, LeafData] = {}

    def run(store: Store, _: Optional[ReadAhead]) -> None:
        LeafRunner(store, data, scale, extension=extension, progress=progress).run(some, wanted)

    with in_kernel(HugePages() if huge_pages and not quick else None) as pages:
        store = measure(
            folder,
            definition_of(
                scale,
                extension=extension,
                pages=pages,
                read_ahead_kb=read_ahead_kb,
                read_delay_us=read_delay_us,
            ),
            data,
            resume=resume,
            prepare=lambda: prepare_leaf(data, chosen, some, scale, extension=extension),
            describe=lambda: {**describe_run(data, wanted), **bench_leaf.DESCRIPTION},
            notes=notes,
            run=run,
            pages=pages,
            read_ahead_kb=read_ahead_kb,
            read_delay_us=read_delay_us,
        )
    done = done_in(store)
    every, _ = bench_leaf.cases(chosen, scale, bench_leaf.GROUPS)
    result = build_leaf_result([case for case in every if case in some or case.id in done], store)
    if not finish(folder, result, markdown=markdown, judged=not quick):
        raise typer.Exit(1)


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
    wanted = pairs or (1 if quick else 5)
    scale = (
        bench_extend.Scale(16, 4, 100) if quick else bench_extend.Scale(disk_mb, slow_mb, delay_us)
    )
    chosen = choose_io_servers(server or [])
    folder = result_folder("extend", "+".join(s.name for s in chosen), output, resume=resume)
    lacking = slow_storage.why_not()
    if lacking:
        storages = [name for name in storages if name != bench_extend.SLOW]
        progress(f"no slow storage: {lacking}")
    some = [
        case
        for case in bench_extend.cases(chosen, groups, storages)
        if match is None or match in case.id
    ]
    if not some:
        raise UsageError("no case is left to run")
    extension = not no_extension
    with in_kernel(HugePages() if huge_pages and not quick else None) as pages:
        definition = definition_of(scale, extension=extension, pages=pages)
        if resume:
            store = Store.resume(folder, definition)
        else:
            Store.expect_none(folder)
            if extension:
                for one in chosen:
                    build_for(one)
            metadata = {
                "command": command_line(), "commit": git_commit(), "pairs": wanted,
                "machine": machine(), "device": device(paths.temp_root()),
                "servers": {one.name: one.version for one in chosen},
                **bench_extend.DESCRIPTION, **described(None, pages),
            }  # fmt: skip
            store = Store.create(folder, definition, metadata)
        run_loads(store, scale, chosen, storages, some, extension=extension, pairs=wanted)
        store.close()
    done = done_in(store)
    # With --resume there may be runs of groups that were not asked for this time.
    every = bench_extend.cases(chosen, bench_extend.GROUPS, bench_extend.STORAGES)
    result = build_extend_result([c for c in every if c in some or c.id in done], store)
    if not finish(folder, result, markdown=markdown, judged=not quick):
        raise typer.Exit(1)


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
