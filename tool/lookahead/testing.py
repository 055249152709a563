"""`lookahead test`: every suite on every server that is at hand.

Per server: the extension is built with warnings as errors, then come its own
regression, isolation and Python tests, and on servers built with assertions
PostgreSQL's own suites; on the embedded one the demo and the benchmarks, as
small as they can be.  Two servers are tested side by side where there are two
processors; then, with nothing beside them, come those benchmarks and the Python
tests that are about who gets a processor first.  Logs stay in the cache's
results folder.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import re
import shutil
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime, timezone
from pathlib import Path
from typing import Union

from rich.console import Console
from rich.table import Table

from . import build, paths, servers, source_build, suites, valgrind
from .cluster import what_is_dropped
from .crew import Crew, Tell
from .errors import LookaheadError
from .page_out import page_out
from .regress import NO_TEST, Outcome
from .servers import Server
from .start import COMMAND

KEEP_RESULTS = 20
RUN_NAME = re.compile(r"\d{8}T\d{6}x*")
DETAIL_LINES = 150
SHOW_NAMES = 20

Suite = Callable[[suites.Context], Outcome]

console = Console(highlight=False, soft_wrap=True)


@dataclass(frozen=True)
class Plan:
    """What the command line asks for."""

    servers: list[str]
    suites: tuple[str, ...]
    build_kinds: tuple[str, ...] = ()
    select: str | None = None
    valgrind: bool = False
    # So many servers are tested side by side.
    jobs: int = 1


@dataclass
class Result:
    """One line of the summary."""

    server: str
    suite: str
    outcome: Outcome
    seconds: float
    work: Path


class Lane:
    """What runs one after another: the suites of a server, or those of none."""

    # Nothing runs beside it.
    alone = False

    def __init__(self, name: str, plan: Plan, folder: Path) -> None:
        self.name = name
        self.plan = plan
        self.folder = folder
        self.tell: Tell[str | Result] = lambda _: None

    def run(self, tell: Tell[str | Result]) -> None:
        """Run the suites; tell the name of each that begins and its result."""
        self.tell = tell
        self.suites()

    def suites(self) -> None:
        raise NotImplementedError

    def suite(self, name: str, function: Callable[[Path], Outcome], *, quiet: bool = False) -> bool:
        """Run one suite and tell its result; return if it is good."""
        work = self.folder / self.name / name
        work.parent.mkdir(exist_ok=True)
        self.tell(name)
        started = time.monotonic()
        try:
            outcome = function(work)
        except LookaheadError as error:
            outcome = Outcome(failed=[NO_TEST], details=str(error))
        seconds = time.monotonic() - started
        if not (quiet and not outcome.failed):
            self.tell(Result(self.name, name, outcome, seconds, work))
        return not outcome.failed


class ServerLane(Lane):
    """Builds the extension for a server and runs its suites."""

    def __init__(self, server: Server, relatives: list[Server], plan: Plan, folder: Path) -> None:
        super().__init__(server.name, plan, folder)
        self.server = server
        self.relatives = relatives

    def suites(self) -> None:
        def make(_: Path) -> Outcome:
            build.build_extension(self.server, werror=True)
            return Outcome()

        # A build that works is not a test; one that fails is a failed one.
        if not self.suite("build", make, quiet=True):
            return
        for name, function in self._suites():
            self._on_server(name, function)

    def _on_server(self, name: str, function: Suite) -> None:
        def run(work: Path) -> Outcome:
            context = suites.Context(
                server=self.server, work=work, select=self.plan.select, relatives=self.relatives
            )
            if self.plan.valgrind:
                return suites.under_valgrind(context, function)
            return function(context)

        self.suite(name, run)

    def _suites(self) -> Iterator[tuple[str, Suite]]:
        wanted = self.plan.suites
        if "regress" in wanted:
            yield "regress", suites.regress
        if "isolation" in wanted:
            yield "isolation", suites.isolation
        if "python" in wanted:
            yield "python", suites.python
        # -k means tests of our own; PostgreSQL's build upon one another.
        has_core = self.server.assertions and self.server.build_tree is not None
        if "core" in wanted and has_core and not self.plan.select:
            yield "core-regress", suites.core_regress
            yield "core-isolation", suites.core_isolation


class AloneLane(ServerLane):
    """Runs the tests that others would decide, if anything ran beside them."""

    alone = True

    def _suites(self) -> Iterator[tuple[str, Suite]]:
        yield "python-alone", suites.python_alone


class SmokeLane(ServerLane):
    """Runs the demo and the benchmarks, which empty the machine's page cache again and again."""

    alone = True

    def _suites(self) -> Iterator[tuple[str, Suite]]:
        yield "smoke", suites.smoke


class ToolLane(Lane):
    """Runs what belongs to no server."""

    def __init__(self, plan: Plan, folder: Path) -> None:
        super().__init__("-", plan, folder)

    def suites(self) -> None:
        def run(work: Path) -> Outcome:
            # The server is not looked at.
            context = suites.Context(server=servers.embedded(), work=work, select=self.plan.select)
            return suites.tool(context)

        self.suite("tool", run)


class Run:
    """One run of the tests: its folder, its results."""

    def __init__(self, plan: Plan) -> None:
        self.plan = plan
        stamp = datetime.now(timezone.utc).strftime("%Y%m%dT%H%M%S")
        results = paths.folder("results")
        _remove_old(results)
        self.folder = _make_own(results / stamp)
        self.folder.chmod(paths.FOLDER_MODE)
        # To the end of the process and of those it forks.
        self._claim = _claim(self.folder)
        self.results: list[Result] = []

    def lanes(self, lanes: Sequence[Lane]) -> None:
        """Run lanes side by side, as many as the plan allows, those that take longest first."""
        waiting = sorted(lanes, key=lambda lane: (lane.alone, _turn(lane)))
        doing: dict[str, str] = {}
        with Crew[Union[str, Result]]() as crew:
            while waiting or crew:
                while waiting and len(crew) < (1 if waiting[0].alone else self.plan.jobs):
                    lane = waiting.pop(0)
                    crew.start(lane.name, lane.run)
                status = ", ".join(f"{name}: {suite}" for name, suite in sorted(doing.items()))
                # Ends before the next lane starts: it has a thread.
                with console.status(status or "starting"):
                    news = crew.wait()
                for name, told in news:
                    if isinstance(told, Result):
                        self.results.append(told)
                        self._show(told)
                    elif isinstance(told, str):
                        doing[name] = told
                    else:
                        suite = doing.pop(name, "start")
                        if told:
                            self._broke_off(name, suite, told)
        order = [lane.name for lane in lanes]
        self.results.sort(key=lambda result: order.index(result.server))

    def _broke_off(self, name: str, suite: str, status: int) -> None:
        details = f"ended with status {status}; what it said is above"
        outcome = Outcome(failed=[NO_TEST], details=details)
        self.results.append(Result(name, suite, outcome, 0.0, self.folder / name / suite))
        self._show(self.results[-1])

    def _show(self, result: Result) -> None:
        outcome = result.outcome
        verdict = "[red]FAILED[/]" if outcome.failed else "[green]ok[/]"
        if not outcome.failed and not outcome.passed:
            verdict = "[yellow]skipped[/]" if outcome.skipped else "[dim]nothing[/]"
        note = f" ({outcome.note})" if outcome.note else ""
        console.print(
            f"{result.server:<16} {result.suite:<15} {verdict}"
            f"  {len(outcome.passed)} passed, {len(outcome.failed)} failed,"
            f" {len(outcome.skipped)} skipped, {result.seconds:.0f} s{note}"
        )
        if outcome.failed:
            names = outcome.failed[:SHOW_NAMES]
            more = len(outcome.failed) - len(names)
            console.print("  failed: " + " ".join(names) + (f" and {more} more" if more else ""))
            lines = outcome.details.splitlines()
            if len(lines) > DETAIL_LINES:
                console.print(f"  … {len(lines) - DETAIL_LINES} lines before these")
            for line in lines[-DETAIL_LINES:]:
                console.print("  " + line, markup=False)
            if result.work.exists():
                console.print(f"  logs: {result.work}")

    def _show_reasons(self) -> None:
        """Say why tests were skipped: what a machine lacks should be seen."""
        count: Counter[str] = Counter()
        where: dict[str, set[str]] = {}
        for result in self.results:
            count.update(result.outcome.reasons)
            for reason in result.outcome.reasons:
                where.setdefault(reason, set()).add(result.server)
        for reason, times in count.most_common():
            console.print(
                f"skipped {times} ({', '.join(sorted(where[reason]))}): {reason}",
                markup=False,
                soft_wrap=True,
            )

    def summary(self) -> int:
        """Print the table and the last line; return the exit status."""
        table = Table(title="Summary", title_justify="left", box=None)
        table.add_column("server")
        table.add_column("suite")
        for column in ("passed", "failed", "skipped", "seconds"):
            table.add_column(column, justify="right")
        totals = [0, 0, 0]
        for result in self.results:
            outcome = result.outcome
            counts = [len(x) for x in (outcome.passed, outcome.failed, outcome.skipped)]
            totals = [total + count for total, count in zip(totals, counts)]
            style = "red" if outcome.failed else None
            cells = [str(count) for count in counts]
            table.add_row(result.server, result.suite, *cells, f"{result.seconds:.0f}", style=style)
        console.print(table)
        self._show_reasons()
        console.print(f"logs: {self.folder}")
        passed, failed, skipped = totals
        if not passed and not failed:
            console.print("No test was run.")
        console.print(f"{passed} passed, {failed} failed, {skipped} skipped")
        return 0 if passed and not failed else 1


def main(plan: Plan) -> int:
    """Run the plan; return the exit status."""
    if plan.valgrind:
        valgrind.require("--valgrind")
    build_servers(plan)
    chosen: list[Server] = []
    everything: list[Server] = []
    if set(plan.suites) - {"tool"}:
        everything = servers.available()
        chosen = [servers.by_name(name) for name in plan.servers] or by_default(everything, plan)
    if plan.valgrind:
        chosen = [server for server in chosen if valgrind.can_run(server)]
        if not chosen:
            raise LookaheadError(
                f"Valgrind needs a server built with assertions: {COMMAND} test --build-servers"
            )
    dropped = what_is_dropped() if {"python", "smoke", "tool"} & set(plan.suites) else None
    if dropped:
        console.print(dropped, style="yellow")
    run = Run(plan)
    lanes: list[Lane] = []
    for server in chosen:
        console.print(f"{server.name}: PostgreSQL {server.version}", style="bold")
        relatives = [s for s in everything if s.major == server.major and s != server]
        lanes.append(ServerLane(server, relatives, plan, run.folder))
        # Under Valgrind nothing is as fast as it should be.
        if "python" in plan.suites and not plan.valgrind:
            lanes.append(AloneLane(server, relatives, plan, run.folder))
        if "smoke" in plan.suites and server.name == "18-embedded":
            lanes.append(SmokeLane(server, relatives, plan, run.folder))
    absent = [str(m) for m in servers.MAJORS if m not in {s.major for s in chosen}]
    if chosen and absent and not plan.servers and not plan.valgrind:
        console.print(f"not here, so not tested: PostgreSQL {', '.join(absent)}")
    if "tool" in plan.suites and not plan.valgrind:
        lanes.append(ToolLane(plan, run.folder))
    with _nothing_paged_out():
        run.lanes(lanes)
    return run.summary()


@contextlib.contextmanager
def _nothing_paged_out() -> Iterator[None]:
    """Tests of what is in the page cache need it to stay there."""
    with contextlib.ExitStack() as stack:
        setting = page_out()
        if setting is not None:
            # A benchmark may have seen to that.
            with contextlib.suppress(LookaheadError):
                stack.enter_context(setting)
        yield


def by_default(everything: list[Server], plan: Plan) -> list[Server]:
    """Return the servers to test if none is named: all, but for some releases.

    Those that are built from source beside the same with assertions are for benchmarks.
    """
    names = {server.name for server in everything}
    return [
        server
        for server in everything
        if "release" in plan.build_kinds
        or server.name != f"{server.major}-release"
        or f"{server.major}-assert" not in names
    ]


def build_servers(plan: Plan) -> None:
    """Get what --build-servers asks for: all, or those that --server names.

    The distribution's own server is a release.
    """
    if not plan.build_kinds:
        return
    for kind in plan.build_kinds:
        for major in sorted(source_build.SUITES, reverse=True):
            is_wanted = kind == "assert" or not servers.debian(major)
            if f"{major}-{kind}" in plan.servers or (is_wanted and not plan.servers):
                with console.status(f"PostgreSQL {major}-{kind}"):
                    servers.build_source(major, kind, console.print)
    if not plan.servers:
        try:
            servers.wheel16(fetch=True)
        except LookaheadError as error:
            console.print(f"PostgreSQL 16 could not be had: {error}", style="yellow", markup=False)


def _turn(lane: Lane) -> int:
    """Say when a lane is to start: 0 for those that take longest.

    Assertions and the suites of PostgreSQL's take time.  A server leaves a part of its tests to
    one of the same major that asserts, if there is one.
    """
    if not isinstance(lane, ServerLane):
        return 3
    if lane.server.assertions:
        return 0
    return 2 if any(relative.assertions for relative in lane.relatives) else 1


def _make_own(folder: Path) -> Path:
    """Make a folder of this name, or a longer one if another run has it."""
    while True:
        try:
            folder.mkdir()
        except FileExistsError:
            folder = folder.with_name(folder.name + "x")
        else:
            return folder


def _claim(folder: Path) -> int | None:
    """Lock the folder of a run; return None if it is another's.

    The lock lasts until the descriptor that is returned is closed.
    """
    held = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        fcntl.flock(held, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(held)
        return None
    return held


def _remove_old(results: Path) -> None:
    """Keep the results of the last runs of tests; those of benchmarks have other names.

    Nor is a run disturbed that is still under way, however many have begun since.
    """
    runs = [place for place in results.iterdir() if RUN_NAME.fullmatch(place.name)]
    for folder in sorted(runs)[:-KEEP_RESULTS]:
        try:
            held = _claim(folder)
        except FileNotFoundError:
            # Another run removes it.
            continue
        if held is not None:
            shutil.rmtree(folder, ignore_errors=True)
            os.close(held)
