"""A folder on storage that is slow to answer: bench/slowfs, built and mounted.

What is written there lands in a folder of ours; reads, writes and allocations
sleep before they are done.  It needs libfuse3 and /dev/fuse; `why_not()` says
what is missing.
"""

from __future__ import annotations

import contextlib
import os
import shlex
import shutil
import signal
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path

from . import packages, paths, privilege
from .errors import LookaheadError
from .mount_list import mounts

PACKAGES = ("libfuse3-dev", "pkg-config")
# Others than root cannot mount by themselves.
USER_PACKAGES = (*PACKAGES, "fuse3")

COMPILER = "cc"
COMPILER_PACKAGES = ("gcc", "libc6-dev")

SOURCE = paths.REPOSITORY / "bench" / "slowfs" / "slowfs.c"
PATIENCE_SECONDS = 60


def why_not() -> str | None:
    """Say why there can be no such storage here; None if there can."""
    if not os.access("/dev/fuse", os.R_OK | os.W_OK):
        return "/dev/fuse cannot be used here"
    return None


def lacking(log: Callable[[str], None]) -> str | None:
    """Say why there can be none; build what it needs now, and not after hours of a run."""
    reason = why_not()
    if reason is None:
        try:
            program(log)
        except LookaheadError as error:
            reason = str(error)
    return reason


def program(log: Callable[[str], None]) -> Path:
    """Build the file system if need be; return the program."""
    place = paths.folder("slowfs") / "slowfs"
    is_built = place.exists() and place.stat().st_mtime > SOURCE.stat().st_mtime
    wanted: list[str] = []
    if not (is_built or _flags()) or not _can_mount():
        wanted += PACKAGES if os.geteuid() == 0 else USER_PACKAGES
    if not (is_built or shutil.which(COMPILER)):
        wanted += COMPILER_PACKAGES
    if wanted:
        packages.ensure(wanted, "the slow storage", log)
    if is_built:
        return place
    flags = _flags()
    if flags is None:
        raise LookaheadError("pkg-config does not know fuse3")
    # Others may be building or starting it at this moment.
    fresh = place.with_name(f"{place.name}.{os.getpid()}")
    command = [COMPILER, "-O2", "-Wall", str(SOURCE), "-o", str(fresh), *flags]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise LookaheadError(f"could not build {SOURCE.name}:\n{done.stderr.strip()}")
    fresh.replace(place)
    return place


def _flags() -> list[str] | None:
    """Return what the compiler is to be told of libfuse3; None where it is not here."""
    if not shutil.which("pkg-config"):
        return None
    asked = subprocess.run(
        ["pkg-config", "--cflags", "--libs", "fuse3"], capture_output=True, text=True, check=False
    )
    return None if asked.returncode else shlex.split(asked.stdout)


def _can_mount() -> bool:
    """Return if this user can, for which others than root need a program."""
    return os.geteuid() == 0 or shutil.which("fusermount3") is not None


@contextlib.contextmanager
def mounted(
    folder: Path,
    *,
    read_us: int,
    write_us: int,
    allocate_us: int,
    flush_us: int | None = None,
    behind: Path | None = None,
    failing: Path | None = None,
    failing_reads: Path | None = None,
    log: Callable[[str], None],
) -> Iterator[Path]:
    """Mount slow storage below *folder*; yield the place, which the server may write to.

    A flush (fsync) takes as long as a write, unless *flush_us* says otherwise.  The
    place shows the folder *behind*, or a new one that is gone at the end.
    While the file *failing* exists, writes fail; while *failing_reads* does, reads.
    """
    built = program(log)
    place = folder / "slow"
    place.mkdir(parents=True)
    privilege.give(place)
    if behind is None:
        behind = folder / "behind"
        behind.mkdir()
        privilege.give(behind)
    command = [
        str(built), "-r", str(read_us), "-w", str(write_us), "-a", str(allocate_us),
        *([] if flush_us is None else ["-f", str(flush_us)]),
        *(["-e", str(failing)] if failing else []),
        *(["-E", str(failing_reads)] if failing_reads else []),
        str(behind), str(place),
    ]  # fmt: skip
    # The folder above may be the servers' user's, who could have put anything there.
    said = folder / "slowfs.log"
    said.unlink(missing_ok=True)
    flags = os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW
    output = os.fdopen(os.open(said, flags, 0o644), "r+")
    process = subprocess.Popen(command, stdout=output, stderr=output, start_new_session=True)
    try:
        end = time.monotonic() + PATIENCE_SECONDS
        while not os.path.ismount(place):
            if process.poll() is not None or time.monotonic() > end:
                output.seek(0)
                text = output.read().strip()
                raise LookaheadError(f"could not mount slow storage: {text}")
            time.sleep(0.05)
        yield place
    finally:
        for mount in mounts_below(folder):
            _unmount(mount)
        try:
            process.wait(timeout=PATIENCE_SECONDS)
        except subprocess.TimeoutExpired:
            process.terminate()
            process.wait()
        output.close()
        if not mounts_below(folder):
            shutil.rmtree(folder, ignore_errors=True)


def mounts_below(folder: Path) -> list[Path]:
    """Return what is mounted by FUSE below a folder.

    The kernel's list has it: a mount whose program is gone answers no question.
    """
    above = f"{folder.resolve()}/"
    return [
        Path(place)
        for place, kind in mounts()
        if kind.startswith("fuse") and place.startswith(above)
    ]


def let_go(folder: Path) -> bool:
    """Unmount what a run that was killed has left below *folder*; return if nothing is left.

    Servers that run there are ended first.
    """
    for mount in mounts_below(folder):
        for number in (signal.SIGQUIT, signal.SIGKILL):
            end = time.monotonic() + PATIENCE_SECONDS / 4
            while (running := servers_in(mount)) and time.monotonic() < end:
                for pid in running:
                    with contextlib.suppress(OSError):
                        os.kill(pid, number)
                time.sleep(0.1)
        _unmount(mount)
    return not mounts_below(folder)


def servers_in(place: Path) -> list[int]:
    """Return the server processes whose data directory is this place, or below it."""
    found = []
    for process in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            if (process / "comm").read_text().strip() != "postgres":
                continue
            where = str(privilege.working_folder(int(process.name)))
            if where == str(place) or where.startswith(f"{place}/"):
                found.append(int(process.name))
    return found


def _unmount(place: Path) -> None:
    unmount = ["umount"] if os.geteuid() == 0 else ["fusermount3", "-u"]
    done = subprocess.run([*unmount, str(place)], check=False, capture_output=True)
    if done.returncode:
        # Somebody has a file open there, or its program is gone.
        lazy = [unmount[0], "-l"] if os.geteuid() == 0 else [*unmount, "-z"]
        subprocess.run([*lazy, str(place)], check=False)
