"""The distribution's packages: what is missing, and getting it where we may."""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterable
from typing import TypeVar

from .errors import LookaheadError, MissingPackages

LOCK_WAIT_SECONDS = 300

TAIL_CHARACTERS = 4000

# A mirror or a proxy may fail for a moment.
ATTEMPTS = 3
PAUSE_SECONDS = 3
RETRIES = ("-o", "Acquire::Retries=5")

T = TypeVar("T")

APT_GET = (
    "apt-get", "-y", "-q", "--no-install-recommends",
    "-o", "Dpkg::Options::=--force-confold",
    "-o", f"DPkg::Lock::Timeout={LOCK_WAIT_SECONDS}", *RETRIES,
)  # fmt: skip


def persist(attempt: Callable[[], T], is_final: Callable[[T], bool]) -> T:
    """Try what the network may thwart, three times at most; return what came of it last."""
    for _ in range(ATTEMPTS - 1):
        result = attempt()
        if is_final(result):
            return result
        time.sleep(PAUSE_SECONDS)
    return attempt()


def are_known() -> bool:
    """Return if this system has the packages that we know the names of."""
    return shutil.which("dpkg-query") is not None


def missing(names: Iterable[str]) -> list[str]:
    """Return those of the packages that are not installed, on a system that has dpkg."""
    wanted = list(names)
    done = subprocess.run(
        ["dpkg-query", "-W", "-f", "${db:Status-Status} ${Package}\n", *wanted],
        capture_output=True,
        text=True,
        check=False,
    )
    lines = (line.split() for line in done.stdout.splitlines())
    there = {fields[1] for fields in lines if fields[0] == "installed"}
    return [name for name in wanted if name not in there]


def ensure(names: Iterable[str], what: str, log: Callable[[str], None]) -> None:
    """Install the packages that are missing as root; name them as anyone else."""
    if not are_known():
        raise LookaheadError(
            f"{what} needs packages, and there is no dpkg here to install them with.\n"
            f"Debian and Ubuntu call them {' '.join(names)}"
        )
    absent = missing(names)
    if not absent:
        return
    if os.geteuid() != 0:
        raise MissingPackages(f"{what} needs packages that are not installed.", absent)
    log(f"installing {' '.join(absent)}")
    environment = {**os.environ, "DEBIAN_FRONTEND": "noninteractive"}

    def install() -> tuple[int, str]:
        # A failed update is a warning: the lists that are there may do.
        _run_to_its_end([*APT_GET, "update"], environment)
        return _run_to_its_end([*APT_GET, "install", *absent], environment)

    status, output = persist(install, lambda result: result[0] == 0)
    if status:
        raise LookaheadError(f"could not install {' '.join(absent)} with apt-get:\n{output}")


def _run_to_its_end(command: list[str], environment: dict[str, str]) -> tuple[int, str]:
    """Run apt-get; an interrupt waits for it, or dpkg would be left half done."""
    with tempfile.TemporaryFile("w+", errors="replace") as output:
        process = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            env=environment,
            start_new_session=True,
        )
        try:
            status = process.wait()
        except BaseException:
            process.wait()
            raise
        output.seek(0)
        return status, output.read()[-TAIL_CHARACTERS:].strip()
