"""A number in a file of the kernel's, set for a while and always put back.

Some properties of the machine decide what a benchmark measures, so it sets them.
They belong to the machine: what was found is put back when the block ends, also by
an error, Ctrl-C or SIGTERM; and what a killed run could not put back, the next one
does: the value that was found is noted in the cache folder for as long as ours is
in place, with the boot it is of: a machine that has started again has its own.

    the kernel's file     8192 ---- 128 ......... 128 ---- 8192
    note in the cache     -   8192 .............. 8192     -
"""

from __future__ import annotations

import atexit
import contextlib
import fcntl
from pathlib import Path
from typing import IO, Any, TypeVar

from . import paths
from .errors import LookaheadError

Self = TypeVar("Self", bound="KernelSetting")

BOOT = Path("/proc/sys/kernel/random/boot_id")


def boot_id() -> str:
    """Name the time since the machine started."""
    try:
        return BOOT.read_text().strip()
    except OSError:
        return "unknown"


class KernelSetting:
    """Sets a number for the duration of a `with` block.

    Where that is not allowed, or there is no such file, nothing is changed and
    `problem` says why: the benchmark runs all the same and says so.

    *name* says what it is, *key* is the name of the note; *unit* follows a number.
    """

    def __init__(
        self,
        file: Path | None,
        wanted: int,
        *,
        name: str,
        key: str,
        unit: str,
        missing: str,
        notes: Path | None = None,
    ) -> None:
        self.name = name
        self.unit = unit
        self.wanted = wanted
        self.was: int | None = None
        self.problem: str | None = None
        self._file = file
        self._key = key
        self._missing = missing
        self._notes = notes
        self._note: IO[str] | None = None

    def __enter__(self: Self) -> Self:
        if self._file is None:
            self.problem = self._missing
            return self
        atexit.register(self.restore)
        try:
            self._set(self._file)
        except OSError as error:
            self.restore()
            self.problem = f"{error.strerror} ({self._file})"
        except BaseException:
            self.restore()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self.restore()
        atexit.unregister(self.restore)

    def parse(self, text: str) -> int:
        """Return the number that the kernel's text stands for; ValueError if for none."""
        return int(text)

    def format(self, number: int) -> str:
        """Return what to write for a number."""
        return str(number)

    def target(self, was: int) -> int:
        """Return the number to set where *was* was found."""
        return self.wanted

    def _set(self, file: Path) -> None:
        # In this order: before we have the note another run may be at it.
        note = self._take_note()
        now = self.parse(file.read_text())
        left, _, boot = note.read().strip().partition(" ")
        # A run that was killed has left its value, and the note of the one before.
        self.was = int(left) if left.isdigit() and boot == boot_id() else now
        self.wanted = self.target(self.was)
        note.seek(0)
        note.truncate()
        note.write(f"{self.was} {boot_id()}")
        note.flush()
        # Some refuse to be told what they do already.
        if now != self.wanted:
            file.write_text(self.format(self.wanted))
        found = self.parse(file.read_text())
        if found != self.wanted:
            self.problem = f"{file} says {found} {self.unit} after {self.wanted} were written"

    def _take_note(self) -> IO[str]:
        """Open the note, and keep other runs from setting the same."""
        folder = self._notes or paths.lock_folder()
        note = (folder / self._key).open("a+")
        try:
            fcntl.flock(note, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            note.close()
            raise LookaheadError(
                f"another benchmark, or a run of the tests, has set the {self.name}"
            ) from None
        self._note = note
        note.seek(0)
        return note

    def restore(self) -> None:
        """Put back what was found; may be called at any time and often."""
        if self._file is None or self._note is None:
            return
        if self.was is not None:
            with contextlib.suppress(OSError):
                if self.current() != self.was:
                    self._file.write_text(self.format(self.was))
            if self.current() == self.was:
                self._note.seek(0)
                self._note.truncate()
        self._note.close()
        self._note = None

    def current(self) -> int | None:
        """Return the number of now."""
        try:
            return self.parse(self._file.read_text()) if self._file is not None else None
        except (OSError, ValueError):
            return None

    def as_dict(self) -> dict[str, Any]:
        """Return what was done, as it goes into the result."""
        return {
            "current": self.current(),
            "was": self.was,
            "problem": self.problem,
            "text": self.describe(),
        }

    def describe(self) -> str:
        """Say what was done, for the header of a result."""
        if self.problem is not None:
            now = self.current()
            stays = "" if now is None else f", it is {now} {self.unit}"
            return (
                f"{self.name} could not be set to {self.wanted} {self.unit}: {self.problem}{stays}"
            )
        return (
            f"{self.name} set to {self.wanted} {self.unit} for the runs,"
            f" and put back afterwards ({self.was} {self.unit})"
        )
