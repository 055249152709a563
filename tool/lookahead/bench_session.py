"""What every benchmark does around its runs.

The kernel is set up for them and put back, the extension is built, tables are
made, the store is opened; then come the runs, and from the store the result.
The benchmarks of scans differ in what a ScanBench says, and run_scans() does the
rest.  `bench extend`, whose runs make their tables themselves, uses the parts.
"""

from __future__ import annotations

import contextlib
import hashlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Generic, Protocol, TypeVar

from . import build, disk_space, paths, slow_storage
from .bench_measure import device_of
from .bench_output import chosen_groups, console, finish, progress, result_folder
from .bench_pairs import CellT, PairRunner
from .bench_store import Store, build_digest, command_line, device, git_commit, machine
from .cluster import LIBRARY, what_is_dropped
from .data import BenchData
from .errors import LookaheadError, UsageError
from .huge_pages import HugePages
from .kernel_setting import KernelSetting
from .memory_reporting import MemoryReporting, memory_reporting
from .page_out import PageOut, page_out
from .read_ahead import ReadAhead
from .servers import Server

ScaleT = TypeVar("ScaleT")
DataT = TypeVar("DataT", bound=BenchData)
SettingT = TypeVar("SettingT", bound=KernelSetting)


class Named(Protocol):
    """A case of any benchmark."""

    @property
    def id(self) -> str: ...


NamedT = TypeVar("NamedT", bound=Named)


@dataclass(frozen=True)
class Tuned:
    """What is set in the kernel for all runs of a benchmark; None: it is as it was."""

    pages: HugePages | None = None
    memory: MemoryReporting | None = None
    page_out: PageOut | None = None


@dataclass(frozen=True)
class Options:
    """What the command line asks for, of what the benchmarks share."""

    only: Sequence[str] | None
    pairs: int | None
    output: Path | None
    match: str | None
    quick: bool
    resume: bool
    markdown: bool
    huge_pages: bool
    extension: bool
    read_ahead_kb: int | None = None
    read_delay_us: int = 0

    @property
    def wanted(self) -> int:
        """Return how many pairs of runs each case gets."""
        return self.pairs or (1 if self.quick else 5)

    def chosen(self, cases: Sequence[NamedT]) -> list[NamedT]:
        """Return the cases to run."""
        some = [case for case in cases if self.match is None or self.match in case.id]
        if not some:
            raise UsageError("no case is left to run")
        return some

    def folder(self, benchmark: str, servers: Sequence[Server]) -> Path:
        names = "+".join(server.name for server in servers)
        return result_folder(benchmark, names, self.output, resume=self.resume)

    @contextlib.contextmanager
    def tuned_machine(self) -> Iterator[Tuned]:
        pages = HugePages() if self.huge_pages and not self.quick else None
        memory = None if self.quick else memory_reporting()
        idle = None if self.quick else page_out()
        with in_kernel(pages), in_kernel(memory), in_kernel(idle):
            yield Tuned(pages, memory, idle)

    def finish(self, folder: Path, result: dict[str, Any]) -> bool:
        """Write and print a result; say whether the benchmark succeeded."""
        return finish(folder, result, markdown=self.markdown, judged=not self.quick)


@dataclass(frozen=True)
class ScanBench(Generic[CellT, ScaleT, DataT]):
    """A benchmark of scans: what it is made of.

    ensure() makes the tables that some cases of one server need, and returns what
    the result is to say of the extension there.
    """

    name: str
    groups: Sequence[str]
    # Those that read, and so can run on slow storage.
    reading_groups: Sequence[str]
    cases: Callable[[Sequence[Server], ScaleT, Sequence[str]], tuple[list[CellT], list[str]]]
    data: Callable[[Server, ScaleT], DataT]
    ensure: Callable[[DataT, Sequence[CellT], ScaleT, bool], dict[str, str]]
    runner: Callable[[Scans[ScaleT, DataT]], PairRunner[CellT]]
    result: Callable[[Sequence[CellT], Store], dict[str, Any]]
    # MB that the tables of all groups take, by server; nothing for a scale of which none knows.
    space: Callable[[Sequence[Server], ScaleT], dict[str, int]]
    # How the names of its data directories begin.
    data_name: Callable[[ScaleT], str]
    description: Mapping[str, Any] = field(default_factory=dict)
    # Those that are about the extension alone.
    groups_of_ours: Sequence[str] = ()
    # Those that cannot run without slow storage.
    slow_groups: Sequence[str] = ()


@dataclass
class Scans(Generic[ScaleT, DataT]):
    """What the runs of a benchmark of scans are made with, when its tables are there."""

    store: Store
    data: dict[str, DataT]
    scale: ScaleT
    extension: bool
    read_ahead: ReadAhead | None


def run_scans(
    bench: ScanBench[CellT, ScaleT, DataT],
    options: Options,
    scale: ScaleT,
    servers: Sequence[Server],
) -> bool:
    """Run a benchmark; say whether it succeeded."""
    groups = delayed_groups(
        chosen_groups(options.only, bench.groups), bench.reading_groups, options.read_delay_us
    )
    groups, left_out = possible_groups(groups, bench.slow_groups)
    folder = options.folder(bench.name, servers)
    found, notes = bench.cases(servers, scale, groups)
    notes += left_out
    if not options.extension:
        found = [case for case in found if case.group not in bench.groups_of_ours]
    some = options.chosen(found)
    require_space(bench, options, scale, servers)
    dropped = what_is_dropped()
    if dropped:
        progress(dropped)
    with options.tuned_machine() as tuned:
        store = _measure(bench, options, scale, servers, folder, some, notes, tuned)
    # A folder that was resumed with other groups still shows all it has.
    done = done_in(store)
    every, _ = bench.cases(servers, scale, bench.groups)
    result = bench.result([case for case in every if case in some or case.id in done], store)
    return options.finish(folder, result)


def require_space(
    bench: ScanBench[CellT, ScaleT, DataT],
    options: Options,
    scale: ScaleT,
    servers: Sequence[Server],
) -> None:
    """Raise LookaheadError where the tables of a whole run would not find room."""
    if options.only or options.match:
        return
    missing = 0
    for name, mb in bench.space(servers, scale).items():
        there = paths.folder("bench-data", name).glob(f"{bench.data_name(scale)}*")
        missing += max(0, mb - disk_space.used_mb(there))
    hint = "use --only or --rows, or set LOOKAHEAD_CACHE to a folder on a larger disk"
    disk_space.require(paths.folder("bench-data"), missing, f"bench {bench.name}", hint)


def _measure(
    bench: ScanBench[CellT, ScaleT, DataT],
    options: Options,
    scale: ScaleT,
    servers: Sequence[Server],
    folder: Path,
    some: Sequence[CellT],
    notes: Sequence[str],
    tuned: Tuned,
) -> Store:
    """Open the store, have the tables made and the runs; stop the servers at the end.

    A store that cannot be opened is found out before anything is loaded.
    """
    definition = definition_of(options, scale, tuned)
    data: dict[str, DataT] = {}
    with in_kernel(read_ahead_of_data(options.read_ahead_kb)) as read_ahead:
        try:
            store = None
            if options.resume:
                store = Store.resume(folder, definition)
            else:
                Store.expect_none(folder)
            settings = _prepare(bench, options, scale, servers, some, data)
            libraries = libraries_of(data)
            if store is None:
                metadata = {
                    **describe_run(data, options.wanted), **bench.description,
                    **({"extension": settings} if settings else {}),
                    **described(read_ahead, tuned),
                }  # fmt: skip
                store = Store.create(folder, definition, metadata)
            for note in notes:
                store.note(note)
            with contextlib.ExitStack() as stack:
                if options.read_delay_us:
                    store.note(f"a read takes {options.read_delay_us:,} us longer than the disk's")
                    for one in data.values():
                        stack.enter_context(one.on_slow_storage(options.read_delay_us))
                scans = Scans(store, data, scale, options.extension, read_ahead)
                bench.runner(scans).run(some, options.wanted)
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


def _prepare(
    bench: ScanBench[CellT, ScaleT, DataT],
    options: Options,
    scale: ScaleT,
    servers: Sequence[Server],
    some: Sequence[CellT],
    data: dict[str, DataT],
) -> dict[str, dict[str, str]]:
    """Build the extension and make the tables; return its settings, by server."""
    settings = {}
    for server in servers:
        mine = [case for case in some if case.server == server.name]
        if not mine:
            continue
        if options.extension:
            build_for(server)
        # There from now on, to be closed whatever happens.
        kept = data[server.name] = bench.data(server, scale)
        told = bench.ensure(kept, mine, scale, options.extension)
        if told:
            settings[server.name] = told
    return settings


def build_for(server: Server) -> None:
    console.print(f"{server.name}: building the extension")
    # A new compiler's warnings are not what is measured.
    build.build_extension(server, werror=False)


def delayed_groups(groups: list[str], possible: Sequence[str], read_delay_us: int) -> list[str]:
    """Return the groups that can run on slow storage, if that is asked for."""
    if not read_delay_us:
        return groups
    lacking = slow_storage.lacking(progress)
    if lacking:
        raise LookaheadError(f"no slow storage: {lacking}")
    left = [group for group in groups if group in possible]
    if not left:
        raise UsageError(f"--read-delay is for the groups {', '.join(possible)}")
    return left


def possible_groups(groups: list[str], slow: Sequence[str]) -> tuple[list[str], list[str]]:
    """Return the groups that can run here, and what to note of the others."""
    mine = [group for group in groups if group in slow]
    if not mine:
        return groups, []
    lacking = slow_storage.lacking(progress)
    if not lacking:
        return groups, []
    left = [group for group in groups if group not in slow]
    if not left:
        raise LookaheadError(f"no slow storage: {lacking}")
    return left, [f"left out, as there is no slow storage: {', '.join(mine)} ({lacking})"]


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


@contextlib.contextmanager
def in_kernel(setting: SettingT | None) -> Iterator[SettingT | None]:
    """Have something set in the kernel for a while, and say so; None leaves it as it is."""
    if setting is None:
        yield None
        return
    with setting:
        progress(setting.describe())
        yield setting
    progress(f"{setting.name} is {setting.current()} {setting.unit} again")


def read_ahead_of_data(kb: int | None) -> ReadAhead | None:
    """Return the read-ahead of the disk that the data lies on, to be set; None for no change."""
    return None if kb is None else ReadAhead(device_of(paths.folder("bench-data")), kb)


def described(read_ahead: ReadAhead | None, tuned: Tuned) -> dict[str, Any]:
    """Return what a result says of what was set in the kernel."""
    settings: dict[str, KernelSetting | None] = {
        "read_ahead": read_ahead,
        "huge_pages": tuned.pages,
        "memory_reporting": tuned.memory,
        "page_out": tuned.page_out,
    }
    return {name: setting.as_dict() for name, setting in settings.items() if setting is not None}


def libraries_of(data: Mapping[str, BenchData]) -> dict[str, str]:
    """Return what tells one build of the library from another, by server."""
    found = {}
    for name, one in data.items():
        library = one.server.pkglibdir / f"{LIBRARY}.so"
        if library.exists():
            found[name] = hashlib.sha256(library.read_bytes()).hexdigest()
    return found


def definition_of(options: Options, scale: Any, tuned: Tuned) -> dict[str, Any]:
    """Return what must be the same in all runs of one store."""
    definition: dict[str, Any] = {
        "scale": asdict(scale),
        "build": build_digest() if options.extension else "none (both arms are stock)",
    }
    if tuned.pages is not None and tuned.pages.are_there:
        definition["huge_pages"] = True
    if tuned.memory is not None and tuned.memory.problem is None:
        definition["memory_is_kept"] = True
    if tuned.page_out is not None and tuned.page_out.problem is None:
        definition["page_cache_is_kept"] = True
    if options.read_ahead_kb is not None:
        definition["read_ahead_kb"] = options.read_ahead_kb
    if options.read_delay_us:
        definition["read_delay_us"] = options.read_delay_us
    return definition


def open_store(
    options: Options,
    folder: Path,
    definition: dict[str, Any],
    servers: Sequence[Server],
    description: Mapping[str, Any],
) -> Store:
    """Build the extension, and open the store of a benchmark that makes its own tables."""
    if options.resume:
        return Store.resume(folder, definition)
    Store.expect_none(folder)
    if options.extension:
        for server in servers:
            build_for(server)
    metadata = {
        "command": command_line(), "commit": git_commit(), "pairs": options.wanted,
        "machine": machine(), "device": device(paths.temp_root()),
        "servers": {server.name: server.version for server in servers}, **description,
    }  # fmt: skip
    return Store.create(folder, definition, metadata)


def done_in(store: Store) -> set[Any]:
    """Return the cases that have runs."""
    return {line.get("cell") for line in store.lines}
