"""Every source file is built, and says at its top what it is."""

from __future__ import annotations

import re
from pathlib import Path

HEADER = re.compile(
    r"/\*-{60,}\n \*\n \* (?P<name>\S+)\n \*\t  \S[^\n]*\n \*\n(?P<text>.*?)\*-{60,}\n \*/",
    re.DOTALL,
)
COPYRIGHT = re.compile(r"^ \* Copyright \(c\) \d{4}.*, the pg_lookahead authors$", re.MULTILINE)


def check(root: Path) -> list[str]:
    problems = []
    makefile = (root / "Makefile").read_text()
    objects = set(re.findall(r"\bsrc/\S+\.o\b", makefile))
    for file in sorted((root / "src").rglob("*.c")):
        name = file.relative_to(root).with_suffix(".o").as_posix()
        if name not in objects:
            problems.append(f"Makefile: OBJS has no {name}")
        objects.discard(name)
    problems += [f"Makefile: there is no source of {name}" for name in sorted(objects)]

    for file in sorted((root / "src").rglob("*.[ch]")):
        name = file.relative_to(root).as_posix()
        header = HEADER.match(file.read_text())
        if not header:
            problems.append(f"{name}: has no header (file name, role, text, copyright)")
        elif header["name"] != file.name:
            problems.append(f"{name}: its header says {header['name']}")
        elif not COPYRIGHT.search(header["text"]):
            problems.append(f"{name}: its header has no copyright line")
    return problems
