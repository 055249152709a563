"""What the doctor's checks give.

"problem": look-ahead does nothing.  "warning": it does less than it could, or
cannot be watched.  "note": worth knowing; it may well be meant so.
"""

from __future__ import annotations

from dataclasses import dataclass

PROBLEM = "problem"
WARNING = "warning"
NOTE = "note"


@dataclass(frozen=True)
class Finding:
    """One thing to know, and what to do about it."""

    id: str
    severity: str
    title: str
    explanation: str
    commands: tuple[str, ...] = ()
