"""How the tool was started, and whether it can do here what it is asked for.

The launcher looks at this first, with whatever Python there is: nothing may be
imported that some system lacks.
"""

from __future__ import annotations

import os
import sys

# A package's command has another name than the launcher of a clone.
IN_A_CLONE = "./lookahead"
IN_A_PACKAGE = "pg_lookahead"
VARIABLE = "LOOKAHEAD_COMMAND"

# Commands that start servers, for which they need what only Linux has.
ONLY_ON_LINUX = ("demo", "test", "bench")

# What the exit status says.
FAILED = 1
WRONG_USAGE = 2
# Of `doctor`, whose 1 is an answer.
DOCTOR_FAILED = 3


def name_of(program: str) -> str:
    """Return what a user types who has started this program."""
    return IN_A_PACKAGE if os.path.basename(program) == IN_A_PACKAGE else IN_A_CLONE  # noqa: PTH119


# What a user types, for messages that name a command.
COMMAND = os.environ.get(VARIABLE) or IN_A_CLONE


def why_not(arguments: list[str], platform: str = sys.platform) -> str | None:
    """Say why this command cannot run on this system; None if it can."""
    if platform.startswith("linux"):
        return None
    if platform == "win32":
        return "this tool is not for Windows"
    if arguments[:1] and arguments[0] in ONLY_ON_LINUX:
        return (
            f"{arguments[0]} runs on Linux only. doctor and top may run here, and look at a"
            " server on any system."
        )
    return None


def failed(arguments: list[str]) -> int:
    """Return the exit status that says that the command itself has failed."""
    return DOCTOR_FAILED if arguments[:1] == ["doctor"] else FAILED
