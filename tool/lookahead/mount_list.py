"""What is mounted where, as the kernel lists it."""

from __future__ import annotations

import re
from pathlib import Path


def mounts() -> list[tuple[str, str]]:
    """Return (place, type of file system) of each mount; none where the kernel does not tell."""
    try:
        lines = Path("/proc/self/mountinfo").read_text().splitlines()
    except OSError:
        return []
    found = []
    for line in lines:
        before, _, after = line.partition(" - ")
        # Blanks and the like are written as octal numbers.
        place = re.sub(r"\\([0-7]{3})", lambda octal: chr(int(octal[1], 8)), before.split(" ")[4])
        found.append((place, after.split(" ")[0]))
    return found
