"""Links between the pages of this repository lead somewhere."""

from __future__ import annotations

import re
from pathlib import Path

LINK = re.compile(r"(?<!!)\[[^\]]*\]\(([^)\s]+)\)")
CODE = re.compile(r"^```.*?^```|`[^`\n]*`", re.DOTALL | re.MULTILINE)
FOLDERS = ("docs", "src", "bench", "ci", "test", "tool", "debian")


def pages(root: Path) -> list[Path]:
    found = list(root.glob("*.md"))
    for folder in FOLDERS:
        found += (root / folder).rglob("*.md")
    return sorted(page for page in found if not any(p.startswith(".") for p in page.parts))


def anchors(page: Path) -> set[str]:
    """Return the names that a page's headings have as targets of links."""
    found = set()
    for title in re.findall(r"^#+ (.*)$", CODE.sub(_keep_inline, page.read_text()), re.MULTILINE):
        plain = re.sub(r"[^\w\- ]", "", title.strip().lower())
        found.add(plain.replace(" ", "-"))
    return found


def _keep_inline(match: re.Match[str]) -> str:
    return "" if match[0].startswith("```") else match[0]


def check(root: Path) -> list[str]:
    problems = []
    for page in pages(root):
        name = page.relative_to(root).as_posix()
        for target in LINK.findall(CODE.sub("", page.read_text())):
            if re.match(r"[a-z]+:", target):
                continue
            path, _, anchor = target.partition("#")
            there = (page.parent / path).resolve() if path else page
            if not there.exists():
                problems.append(f"{name}: there is no {target}")
            elif anchor and there.suffix == ".md" and anchor not in anchors(there):
                problems.append(f"{name}: {target}: there is no such heading")
    return problems
