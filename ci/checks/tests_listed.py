"""Every test has an expected output, every expected output has a test."""

from __future__ import annotations

import re
from pathlib import Path

KINDS = {"sql": ".sql", "specs": ".spec"}


def check(root: Path) -> list[str]:
    tests = root / "test"
    expected = {file.stem for file in (tests / "expected").glob("*.out")}
    problems = []
    names: dict[str, str] = {}
    for folder, suffix in KINDS.items():
        for file in sorted((tests / folder).glob(f"*{suffix}")):
            if file.stem in names:
                problems.append(
                    f"test/{folder}/{file.name}: {names[file.stem]} has the same name, so they"
                    " would share test/expected"
                )
            names[file.stem] = f"test/{folder}/{file.name}"
            if file.stem not in expected:
                problems.append(
                    f"test/{folder}/{file.name}: there is no test/expected/{file.stem}.out"
                )
    for stem in sorted(expected):
        # name_1.out is another output that is right, too.
        if stem not in names and re.sub(r"_\d$", "", stem) not in names:
            problems.append(f"test/expected/{stem}.out: there is no such test")
    return problems
