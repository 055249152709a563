"""Running pg_regress and pg_isolation_regress, and reading what they print.

Both run as the unprivileged user against a private cluster, in a copy of the
tests: they write beside their input, and the checkout may not be readable for
that user.
"""

from __future__ import annotations

import re
import shutil
import subprocess
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from . import privilege
from .cluster import PORT, SUPERUSER, Cluster

# PostgreSQL 15: `test name ... ok  12 ms`, in a group `     name ... FAILED`.
OLD_LINE = re.compile(r"^(?:test| {3,})\s*(\S+)\s+\.\.\. (ok|FAILED|failed)\b")

# From 16 on TAP: `ok 1   - name  12 ms`, in a group `not ok 2  + name  9 ms`.
TAP_LINE = re.compile(r"^(ok|not ok) \d+\s+[-+] (\S+)\s+\d+ ms(?:\s*# (SKIP|TODO))?")

# In the place of a test's name, when it is none that failed.
NO_TEST = "(the run itself)"


@dataclass
class Outcome:
    """What one run of tests came to."""

    passed: list[str] = field(default_factory=list)
    failed: list[str] = field(default_factory=list)
    skipped: list[str] = field(default_factory=list)
    reasons: Counter[str] = field(default_factory=Counter)  # why, where that was said
    note: str = ""
    details: str = ""


def read_output(text: str, status: int) -> Outcome:
    """Return the outcome of a run from its output and exit status."""
    outcome = Outcome()
    for line in text.splitlines():
        old, tap = OLD_LINE.match(line), TAP_LINE.match(line)
        if old:
            (outcome.passed if old[2] == "ok" else outcome.failed).append(old[1])
        elif tap and tap[3] == "SKIP":
            outcome.skipped.append(tap[2])
        elif tap:
            (outcome.passed if tap[1] == "ok" else outcome.failed).append(tap[2])
    if status and not outcome.failed:
        # It broke off: no database, a crashed server, a missing file.
        outcome.failed.append(NO_TEST)
        outcome.note = f"ended with status {status}"
        outcome.details = text
    elif not status and not outcome.passed:
        outcome.failed.append("(no test ran)")
        outcome.details = text
    return outcome


def run_tests(
    program: Path,
    cluster: Cluster,
    work: Path,
    options: Sequence[str | Path],
    tests: Sequence[str],
    *,
    seconds: int,
) -> Outcome:
    """Run one of the two programs; its output goes to work/output.log."""
    out = work / "out"
    out.mkdir(parents=True)
    privilege.give(out)
    log = work / "output.log"
    command: list[str | Path] = [
        program, f"--outputdir={out}", f"--bindir={cluster.server.bindir}",
        f"--host={cluster.socket_dir}", f"--port={PORT}", f"--user={SUPERUSER}",
        *options, *tests,
    ]  # fmt: skip
    with log.open("w") as file:
        file.write(f"$ {' '.join(map(str, command))}\n")
        file.flush()
        try:
            status = privilege.run(
                command, cwd=out, stdout=file, stderr=subprocess.STDOUT, timeout=seconds
            ).returncode
        except subprocess.TimeoutExpired:
            file.write(f"\nstill running after {seconds} seconds: killed\n")
            status = 124
    outcome = read_output(log.read_text(errors="replace"), status)
    differences = out / "regression.diffs"
    if outcome.failed and differences.exists():
        outcome.details = differences.read_text(errors="replace") + outcome.details
    if outcome.failed and cluster.log.exists():
        shutil.copy(cluster.log, work / "server.log")
    return outcome


def copy_input(source: Path, work: Path, names: Sequence[str]) -> Path:
    """Copy folders of tests to where the unprivileged user can read them."""
    target = work / "input"
    target.mkdir(parents=True)
    for name in names:
        if (source / name).is_dir():
            shutil.copytree(source / name, target / name)
    privilege.give(target)
    return target
