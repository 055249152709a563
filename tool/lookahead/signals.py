"""Signals that end a command of this tool in order."""

from __future__ import annotations

import signal
import sys
from types import FrameType
from typing import NoReturn


def exit_on(number: signal.Signals) -> None:
    """Raise SystemExit at this signal: as an exception it runs the handlers that stop servers."""
    signal.signal(number, _terminated)


def _terminated(number: int, frame: FrameType | None) -> NoReturn:
    sys.exit(128 + number)
