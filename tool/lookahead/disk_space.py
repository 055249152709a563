"""Whether there is room for what is going to be made: better said now than after an hour."""

from __future__ import annotations

import shutil
from pathlib import Path

from .errors import LookaheadError


def require(folder: Path, mb: int, what: str, hint: str) -> None:
    """Raise LookaheadError unless so much is free in a folder."""
    free = shutil.disk_usage(folder).free >> 20
    if free < mb:
        raise LookaheadError(f"{what} needs {mb} MB in {folder}, {free} MB are free; {hint}")


def used_mb(folder: Path) -> int:
    """Return what the files of a folder take, of which others may vanish meanwhile."""
    total = 0
    for file in folder.rglob("*"):
        try:
            total += file.lstat().st_blocks * 512
        except OSError:
            continue
    return total >> 20
