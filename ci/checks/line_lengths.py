"""C code is at most 80 columns wide, a tab being four.

pgindent breaks comments but not code, and a message is better found by grep in
one piece: a line that only a string literal makes long is left alone.  Lines
that were longer when the check was made are counted per file in
ci/long_lines.txt; there may be fewer, but not more.
"""

from __future__ import annotations

import re
from pathlib import Path

from . import _text

LIMIT = 80
TAB = 4
KNOWN = "ci/long_lines.txt"


def known(root: Path) -> dict[str, int]:
    file = root / KNOWN
    lines = file.read_text().splitlines() if file.exists() else []
    words = [line.split() for line in lines if line.strip() and not line.startswith("#")]
    return {name: int(count) for name, count in words}


def too_long(line: str) -> bool:
    """Is this line too long, for another reason than a string in it?"""
    wide = line.expandtabs(TAB)
    if len(wide) <= LIMIT:
        return False
    string = re.search(_text.STRING, wide)
    return not (string and string.end() > LIMIT - len(");"))


def check(root: Path) -> list[str]:
    problems = []
    allowed = known(root)
    for file in _text.c_files(root):
        name = file.relative_to(root).as_posix()
        numbers = [n for n, line in enumerate(file.read_text().splitlines(), 1) if too_long(line)]
        expected = allowed.pop(name, 0)
        if len(numbers) > expected:
            where = ", ".join(map(str, numbers))
            and_known = f", {expected} of them known" if expected else ""
            problems.append(
                f"{name}: {len(numbers)} lines of more than {LIMIT} columns{and_known}: {where}"
            )
    problems += [f"{KNOWN}: there is no {name}" for name in allowed]
    return problems
