"""Pages that the kernel takes out of memory because nobody seems to use them.

A machine may have its kernel watch which memory is used (DAMON), and page out what is
not: what a host may then give to others.  It looks at a page of each region now and then,
so what was read a moment ago, into a region that was idle before, goes as well.  A
benchmark of what is in the page cache would measure storage, and a test would find that
a scan waits which should not.

So benchmarks and tests have it stand still while they run; see kernel_setting.py.
"""

from __future__ import annotations

import contextlib
from pathlib import Path

from .kernel_setting import KernelSetting

SYSFS = Path("/sys")

# The action of schemes that take pages out of memory.
ACTION = "pageout"

STATES = ("off", "on")


def watcher(sysfs: Path = SYSFS) -> Path | None:
    """Return the folder of the kernel's thread that pages out, of those at work if one is."""
    found = []
    for folder in sorted((sysfs / "kernel/mm/damon/admin/kdamonds").glob("[0-9]*")):
        for action in folder.glob("contexts/*/schemes/*/action"):
            with contextlib.suppress(OSError):
                if action.read_text().strip() == ACTION:
                    found.append(folder)
    at_work = [folder for folder in found if (folder / "state").read_text().strip() == "on"]
    return next(iter([*at_work, *found]), None)


class PageOut(KernelSetting):
    """Has the kernel page out nothing by itself for the duration of a `with` block."""

    def __init__(self, folder: Path, *, notes: Path | None = None) -> None:
        super().__init__(
            folder / "state",
            STATES.index("off"),
            name="kernel threads that page out what is not in use",
            key="page-out",
            unit="at work",
            missing="there is none",
            notes=notes,
        )

    def parse(self, text: str) -> int:
        return STATES.index(text.strip())

    def format(self, number: int) -> str:
        return STATES[number]


def page_out(sysfs: Path = SYSFS, notes: Path | None = None) -> PageOut | None:
    """Return what makes it stand still; None where there is nothing that does so."""
    folder = watcher(sysfs)
    return None if folder is None else PageOut(folder, notes=notes)
