"""`lookahead test`: every suite on every server that is at hand.

Per server: the extension is built with warnings as errors, then come its own
regression, isolation and Python tests, and on servers built with assertions
PostgreSQL's own suites; on the embedded one the demo and the benchmarks, as
small as they can be.  Logs stay in the cache's results folder.
"""

from __future__ import annotations

import re
import shutil
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import datetime, timezone
from pathlib import Path

from rich.console import Console
from rich.table import Table

from . import build, paths, servers, suites, valgrind
from .errors import LookaheadError
from .regress import Outcome
from .servers import Server

SOURCE_MAJORS = (18, 17)
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


@dataclass
class Result:
    """One line of the summary."""

    server: str
    suite: str
    outcome: Outcome
    seconds: float
    work: Path


class Run:
    """One run of the tests: its folder, its results."""

    def __init__(self, plan: Plan) -> None:
        self.plan = plan
        stamp = datetime.now(timezone.utc).strftime("%Y%m%dT%H%M%S")
        results = paths.folder("results")
        _remove_old(results)
        self.folder = _make_own(results / stamp)
        self.folder.chmod(paths.FOLDER_MODE)
        self.results: list[Result] = []

    def suite(
        self, server: str, name: str, function: Callable[[Path], Outcome], *, quiet: bool = False
    ) -> bool:
        """Run one suite, record and show its result; return if it is good."""
        work = self.folder / server / name
        work.parent.mkdir(exist_ok=True)
        started = time.monotonic()
        try:
            with console.status(f"{server}: {name}"):
                outcome = function(work)
        except LookaheadError as error:
            outcome = Outcome(failed=["(the run itself)"], details=str(error))
        seconds = time.monotonic() - started
        result = Result(server, name, outcome, seconds, work)
        if not (quiet and not outcome.failed):
            self.results.append(result)
            self._show(result)
        return not outcome.failed

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

    def server(self, server: Server, relatives: list[Server]) -> None:
        """Build the extension for a server and run its suites."""

        def make(_: Path) -> Outcome:
            build.build_extension(server, werror=True)
            return Outcome()

        # A build that works is not a test; one that fails is a failed one.
        if not self.suite(server.name, "build", make, quiet=True):
            return
        for name, function in self._suites_of(server):
            self._on_server(server, relatives, name, function)

    def _on_server(
        self, server: Server, relatives: list[Server], name: str, function: Suite
    ) -> None:
        def run(work: Path) -> Outcome:
            context = suites.Context(
                server=server, work=work, select=self.plan.select, relatives=relatives
            )
            if self.plan.valgrind:
                return suites.under_valgrind(context, function)
            return function(context)

        self.suite(server.name, name, run)

    def _suites_of(self, server: Server) -> Iterator[tuple[str, Suite]]:
        wanted = self.plan.suites
        if "regress" in wanted:
            yield "regress", suites.regress
        if "isolation" in wanted:
            yield "isolation", suites.isolation
        if "python" in wanted:
            yield "python", suites.python
        if "smoke" in wanted and server.name == "18-embedded":
            yield "smoke", suites.smoke
        # -k means tests of our own; PostgreSQL's build upon one another.
        has_core = server.assertions and server.build_tree is not None
        if "core" in wanted and has_core and not self.plan.select:
            yield "core-regress", suites.core_regress
            yield "core-isolation", suites.core_isolation

    def tool(self) -> None:
        def run(work: Path) -> Outcome:
            # The server is not looked at.
            context = suites.Context(server=servers.embedded(), work=work, select=self.plan.select)
            return suites.tool(context)

        self.suite("-", "tool", run)

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
        console.print(f"logs: {self.folder}")
        passed, failed, skipped = totals
        if not passed and not failed:
            console.print("No test was run.")
        console.print(f"{passed} passed, {failed} failed, {skipped} skipped")
        return 0 if passed and not failed else 1


def main(plan: Plan) -> int:
    """Run the plan; return the exit status."""
    if plan.valgrind:
        valgrind.require()
    build_servers(plan)
    chosen: list[Server] = []
    everything: list[Server] = []
    if set(plan.suites) - {"tool"}:
        everything = servers.available()
        chosen = [servers.by_name(name) for name in plan.servers] or everything
    if plan.valgrind:
        chosen = [server for server in chosen if valgrind.can_run(server)]
        if not chosen:
            raise LookaheadError(
                "Valgrind needs a server built with assertions: ./lookahead test --build-servers"
            )
    run = Run(plan)
    for server in chosen:
        console.print(f"{server.name}: PostgreSQL {server.version}", style="bold")
        relatives = [s for s in everything if s.major == server.major and s != server]
        run.server(server, relatives)
    absent = [str(m) for m in servers.MAJORS if m not in {s.major for s in chosen}]
    if chosen and absent and not plan.servers and not plan.valgrind:
        console.print(f"not here, so not tested: PostgreSQL {', '.join(absent)}")
    if "tool" in plan.suites and not plan.valgrind:
        run.tool()
    return run.summary()


def build_servers(plan: Plan) -> None:
    """Get what --build-servers asks for: all, or those that --server names."""
    if not plan.build_kinds:
        return
    for kind in plan.build_kinds:
        for major in SOURCE_MAJORS:
            if not plan.servers or f"{major}-{kind}" in plan.servers:
                with console.status(f"PostgreSQL {major}-{kind}"):
                    servers.build_source(major, kind, console.print)
    if not plan.servers:
        try:
            servers.wheel16(fetch=True)
        except LookaheadError as error:
            console.print(f"PostgreSQL 16 could not be had: {error}", style="yellow", markup=False)


def _make_own(folder: Path) -> Path:
    """Make a folder of this name, or a longer one if another run has it."""
    while True:
        try:
            folder.mkdir()
        except FileExistsError:
            folder = folder.with_name(folder.name + "x")
        else:
            return folder


def _remove_old(results: Path) -> None:
    """Keep the results of the last runs of tests; those of benchmarks have other names."""
    runs = [place for place in results.iterdir() if RUN_NAME.fullmatch(place.name)]
    for folder in sorted(runs)[:-KEEP_RESULTS]:
        shutil.rmtree(folder, ignore_errors=True)
