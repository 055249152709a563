"""Only src/compat.h asks which PostgreSQL it is compiled for."""

from __future__ import annotations

import re
from pathlib import Path

from . import _text

ALLOWED = "src/compat.h"
GUARD = re.compile(r"\b(PG_VERSION_NUM|PG_MAJORVERSION(_NUM)?|CATALOG_VERSION_NO)\b")


def check(root: Path) -> list[str]:
    problems = []
    for file in _text.c_files(root):
        name = file.relative_to(root).as_posix()
        if name == ALLOWED:
            continue
        code = _text.without_comments(file.read_text())
        for number, line in enumerate(code.splitlines(), 1):
            match = GUARD.search(line)
            if match:
                problems.append(
                    f"{name}:{number}: {match[0]}; say what is different in {ALLOWED}, under a"
                    " name of its own, and use that here"
                )
    return problems
