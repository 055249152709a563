"""The test suites: each takes a server and a folder, and gives an Outcome."""

from __future__ import annotations

import contextlib
import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO
from xml.etree import ElementTree

from . import paths, privilege, servers, slow_storage, valgrind
from .bench_result import LOOKAHEAD, STOCK
from .bench_store import RUNS_FILE, read_lines
from .cluster import LIBRARY, Cluster
from .demo_queries import SHOWN
from .regress import NO_TEST, Outcome, copy_input, run_tests
from .servers import Server

TESTS = paths.REPOSITORY / "test"
TOOL = paths.REPOSITORY / "tool"

# Nothing may hang a run for good.
OWN_SUITE_SECONDS = 1200
CORE_SUITE_SECONDS = 2400
PYTEST_SUITE_SECONDS = 5000
ONE_PYTEST_SECONDS = 1200
SMOKE_SECONDS = 1800

# Benchmarks of scans: without a block that was read ahead they measure nothing.  Of those that
# 18 reads ahead itself look-ahead may rightly do without, unless the storage is slow.
LOOK_AHEAD = ("bench-index-scan", "bench-leaf", "bench-slow", "bench-slow-bitmap")
CLEARING_UP_SECONDS = 60

SERVER_VARIABLE = "LOOKAHEAD_SERVER"

# The mark of Python tests that are to run with nothing beside them.
ALONE = "alone"

BENCHMARKS = ("index-scan", "leaf", "io-service", "extend", "instructions")
RUN_TOOL = "from lookahead.cli import main; main()"

# As pg_regress sets up the servers that it starts itself, and what the
# isolation tests of two-phase commit need.
CORE_CONF = {
    "max_prepared_transactions": "10",
    "log_autovacuum_min_duration": "0",
    "log_checkpoints": "on",
    "log_lock_waits": "on",
    "log_temp_files": "128kB",
    # Look-ahead from the first row on, or most of these scans would end before.
    f"{LIBRARY}.start_after": "0",
}

# Settings for the extension's own regression and isolation tests.
OWN_CONF_FILE = TESTS / "regress.conf"


@dataclass
class Context:
    """What a suite is to run on, and how."""

    server: Server
    work: Path
    select: str | None = None
    valgrind: bool = False
    # Another server of the same major, for programs that this one lacks.
    relatives: Sequence[Server] = field(default_factory=tuple)

    @property
    def slowdown(self) -> int:
        return valgrind.SLOWDOWN if self.valgrind else 1

    @property
    def valgrind_logs(self) -> Path:
        return self.work / "valgrind"

    def cluster(self, conf: Mapping[str, str]) -> Cluster:
        return Cluster(self.server, conf=conf)

    def program(self, name: Callable[[Server], Path | None]) -> Path | None:
        """Return a test program of this server or of one of its relatives."""
        for server in (self.server, *self.relatives):
            found = name(server)
            if found:
                return found
        return None

    def selected(self, names: Sequence[str]) -> list[str]:
        """Return those of the tests that -k asks for."""
        if not self.select:
            return list(names)
        words = [word.strip() for word in re.split(r"\bor\b", self.select)]
        return [name for name in names if any(word in name for word in words)]


def read_conf(file: Path) -> dict[str, str]:
    """Return the settings of a simple configuration file."""
    if not file.exists():
        return {}
    lines = (line.split("#")[0].partition("=") for line in file.read_text().splitlines())
    return {name.strip(): value.strip().strip("'") for name, found, value in lines if found}


def regress(context: Context) -> Outcome:
    """Run the extension's regression tests, test/sql against test/expected."""
    return _own(context, "sql", ".sql", context.program(lambda server: server.pg_regress))


def isolation(context: Context) -> Outcome:
    """Run the extension's isolation tests, test/specs against test/expected."""
    program = context.program(lambda server: server.pg_isolation_regress)
    return _own(context, "specs", ".spec", program)


def _own(context: Context, folder: str, suffix: str, program: Path | None) -> Outcome:
    tests = context.selected(sorted(f.stem for f in (TESTS / folder).glob(f"*{suffix}")))
    if not tests:
        return Outcome(note="no such tests")
    if program is None:
        return Outcome(skipped=tests, note="no program to run them on this major")
    given = copy_input(TESTS, context.work, (folder, "expected", "data"))
    with context.cluster(read_conf(OWN_CONF_FILE)) as cluster:
        return run_tests(
            program,
            cluster,
            context.work,
            [
                f"--inputdir={given}",
                f"--dlpath={context.server.pkglibdir}",
                f"--load-extension={LIBRARY}",
                "--dbname=contrib_regression",
            ],
            tests,
            seconds=OWN_SUITE_SECONDS * context.slowdown,
        )


def core_regress(context: Context) -> Outcome:
    """Run PostgreSQL's own regression tests with look-ahead forced."""
    tree = context.server.build_tree
    assert tree is not None
    folder = tree / "src" / "test" / "regress"
    with context.cluster(CORE_CONF) as cluster:
        outcome = run_tests(
            folder / "pg_regress",
            cluster,
            context.work,
            [
                f"--inputdir={folder}",
                f"--dlpath={folder}",
                "--max-concurrent-tests=20",
                f"--schedule={folder}/parallel_schedule",
            ],
            [],
            seconds=CORE_SUITE_SECONDS * context.slowdown,
        )
        if outcome.passed:
            _require_look_ahead(cluster, outcome, "regression")
    return outcome


def _require_look_ahead(
    cluster: Cluster, outcome: Outcome, database: str, least_blocks: int = 1
) -> None:
    """Fail unless scans of the tests were looked ahead of."""
    with cluster.connect(dbname=database) as conn:
        conn.execute(f"CREATE EXTENSION {LIBRARY}")
        row = conn.execute(
            "SELECT count(*) FILTER (WHERE scans > 0), coalesce(sum(blocks_issued), 0)"
            " FROM pg_stat_lookahead"
        ).fetchone()
    relations, blocks = row or (0, 0)
    outcome.note = f"looked ahead of scans of {relations} relations, issued {blocks} blocks"
    if not relations or blocks < least_blocks:
        outcome.failed.append("(look-ahead)")


def core_isolation(context: Context) -> Outcome:
    """Run PostgreSQL's own isolation tests with look-ahead forced."""
    tree = context.server.build_tree
    assert tree is not None
    folder = tree / "src" / "test" / "isolation"
    with context.cluster(CORE_CONF) as cluster:
        outcome = run_tests(
            folder / "pg_isolation_regress",
            cluster,
            context.work,
            [f"--inputdir={folder}", f"--schedule={folder}/isolation_schedule"],
            [],
            seconds=CORE_SUITE_SECONDS * context.slowdown,
        )
        if outcome.passed:
            # All that these look at is in shared buffers.
            _require_look_ahead(cluster, outcome, "isolation_regression", least_blocks=0)
    return outcome


def python(context: Context) -> Outcome:
    """Run test/python, but for what is to run alone."""
    return _python(context, f"not {ALONE}")


def python_alone(context: Context) -> Outcome:
    """Run those of test/python that others would decide, if anything ran beside them."""
    return _python(context, ALONE)


def _python(context: Context, marks: str) -> Outcome:
    """Run some of test/python, which gets the server's name through the environment."""
    name = context.server.name
    if "-custom-" in name:
        name = str(context.server.pg_config)
    return _pytest(context, TESTS / "python", {SERVER_VARIABLE: name}, marks)


def smoke(context: Context) -> Outcome:
    """Run the demo and each benchmark at its smallest: they end well and leave nothing running."""
    name = context.server.name
    demos = {"demo": ["--server", name], **_older()}
    commands = {
        demo: ["demo", "--quick", *choice, "--json", str(context.work / f"{demo}.json")]
        for demo, choice in demos.items()
    }
    for bench in BENCHMARKS:
        if bench == "instructions" and not valgrind.is_installed():
            continue
        commands[f"bench-{bench}"] = [
            "bench", bench, "--quick", "--server", name, "--output", str(context.work / bench),
        ]  # fmt: skip
    if slow_storage.why_not() is None:
        commands["bench-slow"] = [
            "bench", "index-scan", "--quick", "--only", "random", "--read-delay", "500",
            "--server", name, "--output", str(context.work / "slow"),
        ]  # fmt: skip
        commands["bench-slow-bitmap"] = [
            "bench", "io-service", "--quick", "--only", "bitmap", "--read-delay", "1000",
            "--server", name, "--output", str(context.work / "slow-bitmap"),
        ]  # fmt: skip
    context.work.mkdir(parents=True)
    outcome = Outcome()
    # In places of their own, so that what is left there is theirs.
    temporary = context.work / "tmp"
    temporary.mkdir(mode=paths.FOLDER_MODE)
    temporary.chmod(paths.FOLDER_MODE)
    places = [temporary, paths.folder("bench-data", name)]
    # The latter belongs to the machine: somebody else may measure there.
    others = left_in(places)
    env = {
        **os.environ,
        "LOOKAHEAD_TMP": str(temporary),
        "PYTHONPATH": str(TOOL),
        "PYTHONDONTWRITEBYTECODE": "1",
    }
    for what in context.selected(list(commands)):
        log = context.work / f"{what}.log"
        with log.open("w") as file:
            process = subprocess.Popen(
                [sys.executable, "-c", RUN_TOOL, *commands[what]],
                env=env,
                stdin=subprocess.DEVNULL,
                stdout=file,
                stderr=subprocess.STDOUT,
            )
            status = _wait(process, SMOKE_SECONDS, file)
        left = [found for found in left_in(places) if found not in others]
        written = Path(commands[what][-1])
        idle = status == 0 and what in LOOK_AHEAD and not _looked_ahead(written)
        mute = status == 0 and what in demos and not _demo_shows(written)
        if status == 0 and not left and not idle and not mute:
            outcome.passed.append(what)
            continue
        outcome.failed.append(what)
        outcome.details += f"\n{what}: status {status}, left behind: {left}\n"
        if idle:
            outcome.details += "no block was read ahead in any of its runs\n"
        if mute:
            outcome.details += "a query looked ahead of nothing, or EXPLAIN does not show it\n"
        outcome.details += log.read_text(errors="replace")
    return outcome


def _older() -> dict[str, list[str]]:
    """Return how to run the demo on the oldest release at hand, by the suite's name for that.

    Before 18 EXPLAIN shows look-ahead in another place.
    """
    older = [s for s in servers.available() if s.major < 18 and not s.assertions]
    return {f"demo-{s.major}": ["--pg-config", str(s.pg_config)] for s in older[-1:]}


def _demo_shows(file: Path) -> bool:
    """Return if the demo's first query was looked ahead of, and its EXPLAIN says so."""
    content = json.loads(file.read_text())
    (seen,) = [q for q in content["queries"] if q["query"]["name"] == SHOWN]
    ahead = [run["lookahead"]["blocks_issued"] for run in seen["runs"][LOOKAHEAD]]
    lines = {arm: "\n".join(plan) for arm, plan in content["explain"].items()}
    return min(ahead) > 0 and "Look-Ahead" in lines[LOOKAHEAD] and "Look-Ahead" not in lines[STOCK]


def _looked_ahead(results: Path) -> bool:
    """Return if there are runs of a benchmark in which blocks were read ahead."""
    seen = [run.get("lookahead") or {} for run in read_lines(results / RUNS_FILE)]
    return any(counters.get("blocks_issued") for counters in seen)


def left_in(places: Sequence[Path]) -> list[str]:
    """Return the servers that run below these folders, and what is mounted there."""
    found = []
    for place in places:
        found += [str(mount) for mount in slow_storage.mounts_below(place)]
        found += [f"process {pid} in {place}" for pid in slow_storage.servers_in(place)]
    return found


def tool(context: Context) -> Outcome:
    """Run the tests of the tool itself, and the checks of the repository."""
    outcome = _pytest(context, TOOL / "tests", {})
    checks = _checks()
    for name in context.selected(list(checks)):
        done = subprocess.run(
            [sys.executable, *checks[name]],
            cwd=TOOL,
            capture_output=True,
            text=True,
            check=False,
            stdin=subprocess.DEVNULL,
        )
        (outcome.failed if done.returncode else outcome.passed).append(name)
        if done.returncode:
            outcome.details += f"\n{name}:\n{done.stdout}{done.stderr}"
    return outcome


def _checks() -> dict[str, list[str]]:
    """Return commands that end with 0 if all is well, by their names."""
    check = str(paths.REPOSITORY / "ci" / "check")
    commands = {
        "ruff-check": ["-m", "ruff", "check", "--no-cache", "."],
        "ruff-format": ["-m", "ruff", "format", "--no-cache", "--check", "."],
        "mypy": ["-m", "mypy", "--cache-dir", str(paths.folder("mypy"))],
        "ci-test_checks": [str(paths.REPOSITORY / "ci" / "test_checks.py")],
    }
    # A package has not all that is checked.
    if not (paths.REPOSITORY / "debian").is_dir():
        return commands
    listed = subprocess.run(
        [sys.executable, check, "--list"], capture_output=True, text=True, check=True
    )
    for name in listed.stdout.split():
        commands[f"ci-{name}"] = [check, name]
    return commands


def _pytest(
    context: Context, folder: Path, variables: Mapping[str, str], marks: str = ""
) -> Outcome:
    if not list(folder.glob("test_*.py")):
        return Outcome(note="no such tests")
    context.work.mkdir(parents=True)
    report = context.work / "report.xml"
    log = context.work / "output.log"
    command = [
        sys.executable, "-m", "pytest", str(folder), "-p", "no:cacheprovider",
        f"--junitxml={report}", "-o", "junit_family=xunit1", "-ra",
        f"--timeout={ONE_PYTEST_SECONDS * context.slowdown}",
    ]  # fmt: skip
    if marks:
        command += ["-m", marks]
    if context.select:
        command += ["-k", context.select]
    env = {**os.environ, **variables, "PYTHONPATH": str(TOOL), "PYTHONDONTWRITEBYTECODE": "1"}
    with log.open("w") as file:
        process = subprocess.Popen(
            command,
            cwd=folder,
            env=env,
            stdin=subprocess.DEVNULL,
            stdout=file,
            stderr=subprocess.STDOUT,
        )
        status = _wait(process, PYTEST_SUITE_SECONDS * context.slowdown, file)
    return read_report(report, status, log.read_text(errors="replace"))


def _wait(process: subprocess.Popen[bytes], seconds: int, log: IO[str]) -> int:
    """Wait for a program of ours; however it ends, it clears up."""
    try:
        return process.wait(seconds)
    except subprocess.TimeoutExpired:
        status = _interrupt(process)
        log.write("\ntook too long: interrupted\n")
        return status or -1
    except KeyboardInterrupt:
        # The terminal has told it too; a second time would cut short its
        # clearing up.
        process.wait()
        raise
    except BaseException:
        # We are being ended: so must it, or its servers would stay.
        _interrupt(process)
        raise


def _interrupt(process: subprocess.Popen[bytes]) -> int:
    """End pytest as Ctrl-C does, so that its fixtures stop their servers."""
    for number in (signal.SIGINT, signal.SIGTERM):
        process.send_signal(number)
        with contextlib.suppress(subprocess.TimeoutExpired):
            return process.wait(CLEARING_UP_SECONDS)
    process.kill()
    return process.wait()


def read_report(report: Path, status: int, output: str) -> Outcome:
    """Return the outcome of pytest from its XML report."""
    # 5: -k or -m left nothing to run.
    if status == 5:
        return Outcome(note="no such tests")
    outcome = Outcome()
    if report.exists():
        for case in ElementTree.parse(report).iter("testcase"):
            name = f"{case.get('file') or case.get('classname')}::{case.get('name')}"
            if case.find("failure") is not None or case.find("error") is not None:
                outcome.failed.append(name)
            elif (skipped := case.find("skipped")) is not None:
                outcome.skipped.append(name)
                outcome.reasons[skipped.get("message") or "no reason"] += 1
            else:
                outcome.passed.append(name)
    if status and not outcome.failed:
        outcome.failed.append(NO_TEST)
        outcome.note = f"pytest ended with status {status}"
    if outcome.failed:
        outcome.details = output
    return outcome


def under_valgrind(context: Context, run: Callable[[Context], Outcome]) -> Outcome:
    """Run a suite with its servers under Valgrind; an error fails the suite."""
    logs = context.valgrind_logs
    logs.mkdir(parents=True)
    privilege.give(logs)
    inner = Context(
        server=context.server,
        work=context.work / "suite",
        select=context.select,
        valgrind=True,
        relatives=context.relatives,
    )
    os.environ[valgrind.VARIABLE] = str(logs)
    try:
        outcome = run(inner)
    finally:
        del os.environ[valgrind.VARIABLE]
    found = valgrind.errors(logs)
    if not outcome.passed and not outcome.failed:
        return outcome
    if found:
        outcome.failed.append("(valgrind)")
        outcome.note = f"{len(found)} errors under Valgrind"
        outcome.details = "\n\n".join(found) + "\n" + outcome.details
    else:
        outcome.passed.append("(valgrind)")
    return outcome
