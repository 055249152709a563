"""The kernel's read-ahead of a block device, set for a while and always put back.

How far the kernel reads ahead of a sequential reader is a property of the disk
(`queue/read_ahead_kb`), and distributions and clouds set it to anything between
128 kB and 8 MB.  Benchmarks of sequential reads are only comparable when it is
known, so they set it.

The value belongs to the machine.  It is put back when the block ends, also by an
error, Ctrl-C or SIGTERM; and what a killed run could not put back, the next one
does: the value that was found is noted in the cache folder for as long as ours is
in place.

    read-ahead of vda    8192 ---- 128 ......... 128 ---- 8192
    note in the cache     -   8192 .............. 8192     -
"""

from __future__ import annotations

import atexit
import contextlib
import fcntl
from pathlib import Path
from typing import IO, Any

from . import paths
from .errors import LookaheadError

# What Linux sets for a disk that nobody has tuned.
USUAL_KB = 128

SYSFS = Path("/sys")
FILE = "read_ahead_kb"


def queue_of(device: str, sysfs: Path = SYSFS) -> Path:
    """Return the folder of a block device's queue; a partition has its disk's."""
    place = sysfs / "class" / "block" / device
    own = place / "queue"
    return own if own.is_dir() else place.resolve().parent / "queue"


class ReadAhead:
    """Sets the read-ahead of a device for the duration of a `with` block.

    Where that is not allowed, or there is no such device, nothing is changed
    and `problem` says why: the benchmark runs all the same and says so.
    """

    def __init__(
        self,
        device: str | None,
        kb: int = USUAL_KB,
        *,
        sysfs: Path = SYSFS,
        notes: Path | None = None,
    ) -> None:
        self.device = device
        self.kb = kb
        self.was: int | None = None
        self.problem: str | None = None
        self._file = queue_of(device, sysfs) / FILE if device else None
        self._notes = notes
        self._note: IO[str] | None = None

    def __enter__(self) -> ReadAhead:
        if self._file is None:
            self.problem = "the data is not on a block device"
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

    def _set(self, file: Path) -> None:
        # In this order: before we have the note another run may be at it.
        note = self._take_note()
        now = int(file.read_text())
        left = note.read().strip()
        # A run that was killed has left its value, and the note of the one before.
        self.was = int(left) if left.isdigit() else now
        note.seek(0)
        note.truncate()
        note.write(str(self.was))
        note.flush()
        file.write_text(str(self.kb))
        found = int(file.read_text())
        if found != self.kb:
            self.problem = f"{file} says {found} kB after {self.kb} were written"

    def _take_note(self) -> IO[str]:
        """Open the note, and keep other runs from setting the same device."""
        folder = self._notes or paths.folder("lock")
        note = (folder / f"read-ahead-{self.device}").open("a+")
        try:
            fcntl.flock(note, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            note.close()
            raise LookaheadError(
                f"another benchmark has set the read-ahead of {self.device}"
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
                self._file.write_text(str(self.was))
            if self.current() == self.was:
                self._note.seek(0)
                self._note.truncate()
        self._note.close()
        self._note = None

    def current(self) -> int | None:
        """Return the read-ahead of now, in kB."""
        try:
            return int(self._file.read_text()) if self._file is not None else None
        except (OSError, ValueError):
            return None

    def as_dict(self) -> dict[str, Any]:
        """Return what was done, as it goes into the result."""
        return {
            "kb": self.current(),
            "was_kb": self.was,
            "problem": self.problem,
            "text": self.describe(),
        }

    def describe(self) -> str:
        """Say what was done, for the header of a result."""
        if self.problem is not None:
            now = self.current()
            stays = "" if now is None else f", it is {now} kB"
            return f"kernel read-ahead could not be set to {self.kb} kB: {self.problem}{stays}"
        return (
            f"kernel read-ahead of {self.device} set to {self.kb} kB for the runs,"
            f" and put back afterwards ({self.was} kB)"
        )
