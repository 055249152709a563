"""Building PostgreSQL 15, 17 and 18 from the distribution's source packages.

Two kinds: `assert` for tests (assertions, injection points, Valgrind's client
requests) and `release` for measurements (as a distribution would build it).
18 gets io_uring in both.  The build tree is kept, because PostgreSQL's own
test suites run from it.
"""

from __future__ import annotations

import os
import shutil
import subprocess
from collections import deque
from collections.abc import Callable, Mapping
from pathlib import Path

from . import apt_source, disk_space, packages, paths, privilege
from .errors import LookaheadError, UsageError

COMPLETE = ".complete"
SUITES = apt_source.SUITES

BUILD_PACKAGES = (
    "gcc", "make", "perl", "bison", "flex", "bzip2", "pkg-config", "libreadline-dev",
    "zlib1g-dev", "libicu-dev", "libc6-dev",
)  # fmt: skip
ASSERT_PACKAGES = ("valgrind", "libipc-run-perl")
URING_PACKAGES = ("liburing-dev",)

# The build tree, which is kept, and what is installed.
DISK_MB = 600

TAIL_LINES = 30


def needed_packages(major: int, kind: str) -> list[str]:
    """Return the packages without which the build would fail."""
    names = list(BUILD_PACKAGES)
    if kind == "assert":
        names += ASSERT_PACKAGES
    if major >= 18:
        names += URING_PACKAGES
    return names


def configure_options(major: int, kind: str, prefix: Path) -> list[str]:
    options = [f"--prefix={prefix}", "--with-icu", "--with-readline", "--enable-debug"]
    options.append("--without-llvm")
    if major >= 18:
        options.append("--with-liburing")
    if kind == "assert":
        options += ["--enable-cassert", "--enable-tap-tests"]
    if kind == "assert" and major >= 17:
        options.append("--enable-injection-points")
    return options


def build_environment(kind: str) -> dict[str, str]:
    unwanted = ("CFLAGS", "CPPFLAGS", "LDFLAGS", "MAKEFLAGS", "MAKELEVEL", "DESTDIR")
    env = {name: value for name, value in os.environ.items() if name not in unwanted}
    env["LC_ALL"] = "C"
    if kind == "assert":
        # -O1 keeps backtraces readable and Valgrind's reports exact.
        env["CFLAGS"] = "-O1 -g -fno-omit-frame-pointer"
        env["CPPFLAGS"] = "-DUSE_VALGRIND"
    return env


def build(major: int, kind: str, log: Callable[[str], None]) -> None:
    """Build and install one server; two to five minutes on two cores.

    It is installed into a folder beside its place and moved there when it is
    whole.  The build tree stays where it was configured, for its makefiles
    carry absolute paths; it counts only when the server is complete.
    """
    if major not in SUITES or kind not in ("assert", "release"):
        known = ", ".join(map(str, SUITES))
        raise UsageError(f"cannot build {major}-{kind}: that can be {known}, assert or release")
    name = f"{major}-{kind}"
    if not packages.are_known():
        raise LookaheadError(
            "servers are built from the source packages of Debian or Ubuntu, whose dpkg is not"
            " here;\nuse a server of your own instead: --pg-config PATH"
        )
    packages.ensure(needed_packages(major, kind), f"building PostgreSQL {major}", log)
    tarball = apt_source.fetch(major, log)
    prefix = paths.folder("servers") / name
    with paths.locked(name):
        if (prefix / COMPLETE).exists():
            return
        hint = "set LOOKAHEAD_CACHE to a folder on a larger disk"
        disk_space.require(prefix.parent, DISK_MB, f"building {name}", hint)
        tree = paths.folder("build") / name
        shutil.rmtree(tree, ignore_errors=True)
        tree.mkdir()
        tree.chmod(paths.FOLDER_MODE)
        steps = _Steps(tree, build_environment(kind), paths.folder("log") / f"build-{name}.log")
        jobs = f"-j{len(os.sched_getaffinity(0))}"
        log(f"building {name} from {tarball.name} (log: {steps.log})")
        steps.run("tar", "xf", str(tarball), "--strip-components=1", "--no-same-owner")
        steps.run("./configure", *configure_options(major, kind, prefix))
        steps.run("make", "-s", jobs, "world-bin")
        steps.run("make", "-s", "-C", "src/test/regress")
        steps.run("make", "-s", "-C", "src/test/isolation")
        with paths.replacing(prefix) as fresh:
            destination = f"DESTDIR={fresh}/root"
            steps.run("make", "-s", "install-world-bin", destination)
            steps.run("make", "-s", "-C", "src/test/regress", "install", destination)
            steps.run("make", "-s", "-C", "src/test/isolation", "install", destination)
            installed = fresh / "root" / prefix.relative_to("/")
            for entry in installed.iterdir():
                entry.rename(fresh / entry.name)
            shutil.rmtree(fresh / "root")
            (fresh / COMPLETE).write_text(tarball.name + "\n")
        privilege.require_readable(prefix / "bin", "a server")


class _Steps:
    """Runs the commands of a build in one folder, into one log."""

    def __init__(self, folder: Path, env: Mapping[str, str], log: Path) -> None:
        self.folder = folder
        self.env = env
        self.log = log
        log.write_text("")

    def run(self, *command: str) -> None:
        with self.log.open("a") as log:
            log.write(f"\n$ {' '.join(command)}\n")
            log.flush()
            done = subprocess.run(
                command,
                cwd=self.folder,
                env=dict(self.env),
                check=False,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
            )
        if done.returncode:
            with self.log.open(errors="replace") as log:
                tail = "".join(deque(log, TAIL_LINES))
            raise LookaheadError(f"{tail}\n`{' '.join(command)}` failed; full log: {self.log}")
