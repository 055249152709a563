"""Servers under Valgrind: how they are started and what they report.

The servers built with assertions also have Valgrind's client requests, which
tell it about palloc's chunks and about buffers that are pinned: an access to
a page without a pin is an error like any other.
"""

from __future__ import annotations

import os
import re
import shutil
from pathlib import Path

from .errors import MissingPackages
from .servers import Server

# Clusters started while this names a folder run under Valgrind and log there.
# Tests in a process of their own are told in this way.
VARIABLE = "LOOKAHEAD_VALGRIND"

# Everything takes about this many times as long.
SLOWDOWN = 25

# The files that instructions are written to; each has the process's number as well.
COUNTS = "counted"

BEGIN = "VALGRINDERROR-BEGIN"
END = "VALGRINDERROR-END"


def is_installed() -> bool:
    return shutil.which("valgrind") is not None


def require(what: str) -> None:
    """Raise MissingPackages where it is not installed."""
    if not is_installed():
        raise MissingPackages(f"{what} needs Valgrind.", ["valgrind"])


def can_run(server: Server) -> bool:
    """Only a server made for it gives reports that can be trusted."""
    return server.assertions and server.build_tree is not None


def log_folder() -> Path | None:
    """Return where reports go, if clusters are to run under Valgrind."""
    given = os.environ.get(VARIABLE)
    return Path(given) if given else None


def command(server: Server, logs: Path) -> list[str]:
    """Return what stands before the server program."""
    words = [
        "valgrind", "--quiet", "--leak-check=no", "--track-origins=yes", "--time-stamp=yes",
        f"--error-markers={BEGIN},{END}", "--trace-children=yes",
        f"--log-file={logs}/%p.log",
    ]  # fmt: skip
    if server.build_tree:
        words.append(f"--suppressions={server.build_tree}/src/tools/valgrind.supp")
    return words


def counting_command(folder: Path) -> list[str]:
    """Return what stands before a server program whose instructions are to be counted.

    A process writes its own, and what was counted before it was forked, when it ends.
    """
    return [
        "valgrind", "--tool=callgrind", "--quiet", "--trace-children=yes",
        f"--callgrind-out-file={folder}/{COUNTS}.%p",
    ]  # fmt: skip


def errors(logs: Path) -> list[str]:
    """Return the text of every error that was reported."""
    found = []
    for file in sorted(logs.glob("*.log")):
        text = file.read_text(errors="replace")
        found += re.findall(f"{BEGIN}.*?{END}", text, re.DOTALL)
    return found
