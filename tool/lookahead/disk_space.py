"""Whether there is room for what is going to be made: better said now than after an hour."""

from __future__ import annotations

import contextlib
import os
import shutil
from collections.abc import Iterable
from pathlib import Path

from .errors import LookaheadError


def require(folder: Path, mb: int, what: str, hint: str) -> None:
    """Raise LookaheadError unless so much is free in a folder."""
    free = shutil.disk_usage(folder).free >> 20
    if free < mb:
        raise LookaheadError(f"{what} needs {mb} MB in {folder}, {free} MB are free; {hint}")


def used_mb(folders: Iterable[Path]) -> int:
    """Return what is in folders on their own disk, as far as it can be seen.

    Files may vanish meanwhile, and what is mounted there may have died.
    """
    return sum(_used(folder) for folder in folders) >> 20


def _used(folder: Path) -> int:
    total = 0
    device = None
    # Folders that cannot be read are passed over.
    for place, below, files in os.walk(folder):
        for name in (*below, *files):
            status = None
            with contextlib.suppress(OSError):
                status = (Path(place) / name).lstat()
            if status and device in (None, status.st_dev):
                device = status.st_dev
                total += status.st_blocks * 512
            elif name in below:
                below.remove(name)
    return total
