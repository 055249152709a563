"""`lookahead test` itself: that it finds failures, and that it finds nothing."""

from __future__ import annotations

import dataclasses
import os
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from lookahead import build, suites, testing, valgrind
from lookahead.cluster import Cluster
from lookahead.crew import Crew
from lookahead.errors import LookaheadError
from lookahead.regress import NO_TEST, Outcome
from lookahead.servers import Server

SPEC = """\
setup { CREATE TABLE t (i int); }
teardown { DROP TABLE t; }
session s1
step one { INSERT INTO t VALUES (1); }
session s2
step two { SELECT i FROM t; }
permutation one two
"""

SPEC_OUT = """\
Parsed test spec with 2 sessions

starting permutation: one two
step one: INSERT INTO t VALUES (1);
step two: SELECT i FROM t;
i
-
1
(1 row)

"""


@pytest.fixture
def tests(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder of tests, of which one fails, instead of the extension's."""
    for name in ("sql", "expected", "specs", "python"):
        (tmp_path / name).mkdir()
    (tmp_path / "sql" / "good.sql").write_text("SELECT 1 AS x;\n")
    (tmp_path / "expected" / "good.out").write_text("SELECT 1 AS x;\n x \n---\n 1\n(1 row)\n\n")
    (tmp_path / "sql" / "wrong.sql").write_text("SELECT 2 AS x;\n")
    (tmp_path / "expected" / "wrong.out").write_text("SELECT 2 AS x;\n x \n---\n 1\n(1 row)\n\n")
    (tmp_path / "specs" / "both.spec").write_text(SPEC)
    (tmp_path / "expected" / "both.out").write_text(SPEC_OUT)
    (tmp_path / "python" / "test_some.py").write_text(
        "import os, pytest\n"
        "def test_good(): assert os.environ['LOOKAHEAD_SERVER'] == '18-embedded'\n"
        "def test_wrong(): assert False, 'this is why'\n"
        "@pytest.mark.skip('it is too early')\ndef test_later(): pass\n"
        "@pytest.mark.alone\ndef test_sole(): pass\n"
    )
    monkeypatch.setattr(suites, "TESTS", tmp_path)
    # The real extension need not build for this.
    monkeypatch.setattr(suites, "LIBRARY", "plpgsql")
    monkeypatch.setattr(
        suites.Context,
        "cluster",
        lambda context, conf: Cluster(context.server, conf=conf, preload=False),
    )
    monkeypatch.setattr(build, "build_extension", lambda server, werror: None)
    return tmp_path


def plan(*names: str, select: str | None = None) -> testing.Plan:
    return testing.Plan(servers=["18-embedded"], suites=names, select=select)


def last_line(capsys: pytest.CaptureFixture[str]) -> str:
    return capsys.readouterr().out.splitlines()[-1]


def test_failures_are_found(tests: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert testing.main(plan("regress", "isolation", "python")) == 1
    lines = capsys.readouterr().out.splitlines()
    assert lines[-1] == "4 passed, 2 failed, 1 skipped"
    said = {words[1]: " ".join(words[2:8]) for words in map(str.split, lines) if len(words) > 8}
    assert said["python"] == "FAILED 1 passed, 1 failed, 1"
    assert said["python-alone"] == "ok 1 passed, 0 failed, 0"
    shown = "\n".join(lines)
    assert "failed: wrong" in shown
    assert "+ 2" in shown, "regression.diffs is not shown"
    assert "this is why" in shown


def test_success(tests: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert testing.main(plan("regress", "isolation", "python", select="good or both")) == 0
    assert last_line(capsys) == "3 passed, 0 failed, 0 skipped"


def test_nothing_run_is_a_failure(tests: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert testing.main(plan("regress", "python", select="no_such_test")) == 1
    assert last_line(capsys) == "0 passed, 0 failed, 0 skipped"


def test_a_failing_build_is_a_failure(
    tests: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(server: Server, werror: bool) -> None:
        raise LookaheadError("the compiler says no")

    monkeypatch.setattr(build, "build_extension", broken)
    assert testing.main(plan("regress")) == 1
    shown = capsys.readouterr().out
    assert "the compiler says no" in shown
    assert shown.splitlines()[-1] == "0 passed, 1 failed, 0 skipped"


class Other(testing.Lane):
    """A lane that ends in its own way."""

    def __init__(self, how: str, folder: Path) -> None:
        super().__init__(how, plan(), folder)

    def suites(self) -> None:
        self.suite("first", lambda _: Outcome(passed=["a", "b"]))
        self.tell("second")
        if self.name == "dies":
            os.kill(os.getpid(), 9)
        self.suite("second", lambda _: Outcome(failed=["c"], details="because"))


class Sole(testing.Lane):
    """A lane of one suite."""

    def __init__(self, name: str, folder: Path, function: Callable[[Path], Outcome]) -> None:
        super().__init__(name, plan(), folder / "lanes")
        self.function = function
        self.folder.mkdir(exist_ok=True)

    def suites(self) -> None:
        self.suite("suite", self.function)


def test_why_tests_were_skipped(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """What a machine lacks is said at the end, with the servers that lacked it."""
    report = tmp_path / "report.xml"
    report.write_text(
        "<testsuite><testcase name='a'/>"
        "<testcase name='b'><skipped message='no /dev/fuse'/></testcase>"
        "<testcase name='c'><skipped message='no /dev/fuse'/></testcase>"
        "<testcase name='d'><skipped/></testcase></testsuite>"
    )
    outcome = suites.read_report(report, 0, "")
    assert outcome.skipped == ["None::b", "None::c", "None::d"]
    assert outcome.reasons == {"no /dev/fuse": 2, "no reason": 1}
    run = testing.Run(testing.Plan(servers=[], suites=()))
    run.results += [
        testing.Result(name, "python", outcome, 0.0, tmp_path) for name in ("18-b", "17-a")
    ]
    assert run.summary() == 0
    said = capsys.readouterr().out
    assert "skipped 4 (17-a, 18-b): no /dev/fuse" in said
    assert "6 skipped" in said


@pytest.mark.parametrize("jobs", [1, 3])
def test_side_by_side(capsys: pytest.CaptureFixture[str], jobs: int) -> None:
    """The summary is in the order of the servers; one that dies is a failure, and no end."""
    run = testing.Run(testing.Plan(servers=[], suites=(), jobs=jobs))
    run.lanes([Other(name, run.folder) for name in ("dies", "lives", "too")])
    assert run.summary() == 1
    outcomes = [(r.server, r.suite, r.outcome.passed, r.outcome.failed) for r in run.results]
    assert outcomes == [
        ("dies", "first", ["a", "b"], []),
        ("dies", "second", [], [NO_TEST]),
        ("lives", "first", ["a", "b"], []),
        ("lives", "second", [], ["c"]),
        ("too", "first", ["a", "b"], []),
        ("too", "second", [], ["c"]),
    ]
    shown = capsys.readouterr().out
    assert "ended with status -9" in shown
    assert shown.splitlines()[-1] == "6 passed, 3 failed, 0 skipped"


def test_the_longest_start_first(
    tmp_path: Path, embedded: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    """So that one processor has not much left to do when the other is done."""
    begun: list[str] = []
    monkeypatch.setattr(testing.Lane, "run", lambda lane, tell: begun.append(lane.name))
    monkeypatch.setattr(Crew, "start", lambda crew, name, task: task(lambda _: None))
    monkeypatch.setattr(Crew, "wait", lambda crew: [])
    here = [
        dataclasses.replace(embedded, name=name, major=int(name[:2]), assertions="assert" in name)
        for name in ("18-embedded", "16-wheel", "18-assert", "15-assert", "15-debian")
    ]
    lanes: list[testing.Lane] = [testing.ToolLane(plan(), tmp_path)]
    for server in here:
        relatives = [other for other in here if other.major == server.major and other != server]
        lanes.append(testing.AloneLane(server, relatives, plan(), tmp_path))
        lanes.append(testing.ServerLane(server, relatives, plan(), tmp_path))
    testing.Run(testing.Plan(servers=[], suites=())).lanes(lanes)
    names = ["18-assert", "15-assert", "16-wheel", "18-embedded", "15-debian"]
    assert begun == [*names, "-", *names]


def test_some_run_alone() -> None:
    run = testing.Run(testing.Plan(servers=[], suites=(), jobs=3))
    lanes = []
    pair = ("two", "four")
    for name in ("one", "two", "three", "four"):
        place = run.folder / name

        def enter(work: Path, place: Path = place) -> Outcome:
            place.touch()
            deadline = time.monotonic() + (60 if place.name in pair else 0.3)
            while time.monotonic() < deadline and not all(
                (run.folder / name).is_file() for name in pair
            ):
                time.sleep(0.01)
            beside = [n for n in ("one", "two", "three", "four") if (run.folder / n).is_file()]
            # For the other one of the pair, which is to see it, too.
            time.sleep(5 if place.name in pair else 1)
            place.unlink()
            return Outcome(passed=beside)

        lane = Sole(name, run.folder, enter)
        lane.alone = name not in pair
        lanes.append(lane)
    run.lanes(lanes)
    beside = {result.server: result.outcome.passed for result in run.results}
    assert beside["one"] == ["one"]
    assert beside["three"] == ["three"]
    assert beside["two"] == beside["four"] == ["two", "four"]


def test_missing_programs_are_skipped(
    tests: Path, embedded: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Server, "pg_isolation_regress", None)
    outcome = suites.isolation(suites.Context(server=embedded, work=tests / "work"))
    assert outcome.skipped == ["both"]


def test_valgrind_errors_are_read(tmp_path: Path) -> None:
    (tmp_path / "1.log").write_text(
        f"{valgrind.BEGIN}\nInvalid read\n{valgrind.END}\nother\n"
        f"{valgrind.BEGIN}\nInvalid write\n{valgrind.END}\n"
    )
    (tmp_path / "2.log").write_text("nothing here\n")
    found = valgrind.errors(tmp_path)
    assert len(found) == 2
    assert "Invalid write" in found[1]


def test_settings_of_a_file(tmp_path: Path) -> None:
    file = tmp_path / "regress.conf"
    assert suites.read_conf(file) == {}
    file.write_text("# comment\nwork_mem = '8MB'  # why\n\njit=off\n")
    assert suites.read_conf(file) == {"work_mem": "8MB", "jit": "off"}


def test_report_of_pytest_that_broke_off(tmp_path: Path) -> None:
    outcome = suites.read_report(tmp_path / "absent.xml", 3, "internal error")
    assert isinstance(outcome, Outcome)
    assert outcome.failed
    assert outcome.details == "internal error"


@pytest.mark.parametrize(
    ("arguments", "status", "text"),
    [
        (["test", "--only", "nonsense"], 2, 'no suite "nonsense"'),
        (["test", "--server", "18-nonsense"], 2, 'no server "18-nonsense"'),
        (["test", "--pg-config", "/bin/true"], 2, "not a pg_config"),
        (["test", "--build-servers=nonsense"], 2, "assert or release"),
        (["demo", "--json", "/nonexistent/demo.json"], 2, "no folder /nonexistent"),
        (["nonsense"], 2, "No such command"),
        (["doctor", "host=/nonexistent"], 2, "could not connect"),
        (["--help"], 0, "doctor"),
        (["bench", "--help"], 0, "index-scan"),
        (["demo", "--help"], 0, "--quick"),
    ],
)
def test_command_line(arguments: list[str], status: int, text: str) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "lookahead", *arguments],
        capture_output=True,
        text=True,
        check=False,
        cwd=Path(testing.__file__).parents[1],
    )
    assert done.returncode == status, done.stderr
    assert text in done.stdout + done.stderr


def test_old_results_go(tmp_path: Path) -> None:
    """Those of tests, and no others."""
    runs = [f"20260101T0000{i:02}" for i in range(testing.KEEP_RESULTS + 2)]
    others = ["my-bench", "zzz", "20260101"]
    for name in [*runs, *others]:
        (tmp_path / name).mkdir()
    testing._remove_old(tmp_path)
    assert {place.name for place in tmp_path.iterdir()} == {*runs[2:], *others}


def test_results_of_a_run_under_way_stay(tmp_path: Path) -> None:
    runs = [f"20260101T0000{i:02}" for i in range(testing.KEEP_RESULTS + 2)]
    for name in runs:
        (tmp_path / name).mkdir()
    held = testing._claim(tmp_path / runs[0])
    assert held is not None
    testing._remove_old(tmp_path)
    assert {place.name for place in tmp_path.iterdir()} == {runs[0], *runs[2:]}
    os.close(held)
    testing._remove_old(tmp_path)
    assert {place.name for place in tmp_path.iterdir()} == set(runs[2:])


def test_runs_that_begin_at_once_have_folders_of_their_own(tmp_path: Path) -> None:
    made = [testing._make_own(tmp_path / "20260101T000000") for _ in range(3)]
    assert len(set(made)) == 3
    assert all(place.is_dir() for place in made)


def test_releases_beside_assertions_are_for_benchmarks() -> None:
    def server(name: str) -> Server:
        major, kind = name.split("-")
        return Server(name, int(major), major, Path(name), Path(name), kind == "assert", False)

    here = [server(name) for name in ("18-release", "18-assert", "17-release", "15-debian")]

    def chosen(*kinds: str) -> list[str]:
        plan = testing.Plan(servers=[], suites=("regress",), build_kinds=kinds)
        return [found.name for found in testing.by_default(here, plan)]

    assert chosen() == chosen("assert") == ["18-assert", "17-release", "15-debian"]
    assert chosen("assert", "release") == [found.name for found in here]
