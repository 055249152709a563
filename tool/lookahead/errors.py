"""The errors this tool reports as one line instead of a traceback."""

from __future__ import annotations

from collections.abc import Sequence


class LookaheadError(Exception):
    """Something outside the tool is missing or went wrong; exit status 1."""


class UsageError(LookaheadError):
    """The command line asks for something that cannot be; exit status 2."""


class MissingPackages(LookaheadError):
    """Something is missing that the distribution has a package for."""

    def __init__(self, what: str, packages: Sequence[str]) -> None:
        self.packages = list(packages)
        names = " ".join(packages)
        super().__init__(f"{what}\nOn Debian and Ubuntu: apt-get install {names}")
