"""Where the tool keeps what it downloads, builds and records.

All but results of benchmarks (bench/results), packages of the distribution and,
for root, a user that the servers run as, lives in one cache folder, so that
removing it removes every other trace:

    servers/    one folder per server, installed or copied here
    src/        source packages of PostgreSQL
    build/      build trees of the servers made from source (core tests need them)
    ext/        the extension's out-of-tree builds, one per server
    tmp/        data directories of running servers
    results/    logs of test runs
    log/        logs of builds
    bench-data/ data directories that benchmarks use again
    venv/       the tool's Python environments
    slowfs/     the file system that sleeps
    mypy/       what mypy remembers
    lock/       lock files, so that two runs do not build the same thing at once
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import shutil
import stat
import tempfile
from collections.abc import Iterator
from pathlib import Path

from .errors import LookaheadError

REPOSITORY = Path(__file__).resolve().parents[2]

# Servers run as another user, who must be able to read what we install.
FOLDER_MODE = 0o755


def cache() -> Path:
    """Return the cache folder; make it if it is not there."""
    given = os.environ.get("LOOKAHEAD_CACHE")
    if given:
        home = Path(given).absolute()
    elif os.geteuid() == 0:
        home = Path("/var/cache/pg_lookahead")
    else:
        home = _home_cache() / "pg_lookahead"
    if any(letter.isspace() for letter in str(home)):
        # make and PostgreSQL's own makefiles cannot bear them.
        raise LookaheadError(
            f'the cache folder "{home}" has blanks in its name\n'
            "Set LOOKAHEAD_CACHE to a folder without."
        )
    try:
        _make(home)
    except OSError as error:
        raise LookaheadError(
            f"could not create the cache folder {home}: {error.strerror}\n"
            "Set LOOKAHEAD_CACHE to a folder you may write to."
        ) from error
    return home


def _home_cache() -> Path:
    base = Path(os.environ.get("XDG_CACHE_HOME") or "")
    # The specification has relative ones ignored.
    if base.is_absolute():
        return base
    try:
        return Path.home() / ".cache"
    except RuntimeError as error:
        raise LookaheadError(
            f"could not find a folder for the cache: {error}\n"
            "Set LOOKAHEAD_CACHE to a folder you may write to."
        ) from error


def folder(*names: str) -> Path:
    """Return a folder inside the cache; make it if it is not there."""
    place = cache()
    for name in names:
        place = place / name
        _make(place)
    return place


def temp_root() -> Path:
    """Return where data directories go: on a disk, as /tmp may be memory."""
    given = os.environ.get("LOOKAHEAD_TMP")
    if not given:
        return folder("tmp")
    place = Path(given).absolute()
    _make(place)
    return place


def _make(place: Path) -> None:
    if place.is_dir():
        return
    # A umask of 077 must not lock the servers' user out.
    place.mkdir(parents=True, exist_ok=True)
    place.chmod(FOLDER_MODE)


def lock_folder() -> Path:
    """Return the folder of locks, which nobody else may enter.

    Who may read a file may lock it, and so have our runs wait.  A cache is one user's.
    """
    place = folder("lock")
    if stat.S_IMODE(place.stat().st_mode) != 0o700:
        try:
            place.chmod(0o700)
        except OSError as error:
            raise LookaheadError(
                f"{place} cannot be closed to others: {error.strerror}\n"
                "Set LOOKAHEAD_CACHE to a folder of your own, on a file system that has modes."
            ) from error
    return place


@contextlib.contextmanager
def locked(name: str) -> Iterator[None]:
    """Hold a lock of this name; other runs of the tool wait for it."""
    with (lock_folder() / f"{name}.lock").open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


@contextlib.contextmanager
def replacing(target: Path) -> Iterator[Path]:
    """Give an empty folder that becomes `target` if the block succeeds.

    A run that is interrupted leaves the old folder, or none, but never half
    of a new one.  What one that was killed has left is removed: who calls holds the
    lock of these folders.
    """
    target.parent.mkdir(parents=True, exist_ok=True)
    for left in target.parent.glob(f".{target.name}-????????"):
        shutil.rmtree(left, ignore_errors=True)
    fresh = Path(tempfile.mkdtemp(prefix=f".{target.name}-", dir=target.parent))
    fresh.chmod(FOLDER_MODE)
    try:
        yield fresh
        if target.exists():
            shutil.rmtree(target)
        fresh.rename(target)
    finally:
        shutil.rmtree(fresh, ignore_errors=True)
