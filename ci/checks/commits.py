"""Every commit that a page names exists: who wants to build what was measured can.

A commit that was squashed or rebased away is found.  Where the history is not all
there, as in a shallow clone or an archive, nothing can be said.
"""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

from .links import CODE, pages

# "commit 1234567", or a bare word that can be nothing but the beginning of a hash.
NAMED = re.compile(r"\bcommit ([0-9a-f]{7,40})\b")
BARE = re.compile(r"(?<![\w./#-])(?=[0-9a-f]*[a-f])(?=[0-9a-f]*[0-9])[0-9a-f]{7,40}(?![\w-])")

# Pages whose bare words are looked at.
MEASURED = ("README.md", "docs/benchmarks.md", "docs/benchmark-log.md")


def named(root: Path) -> dict[str, list[str]]:
    """Return the commits that pages name, and the pages of each."""
    found: dict[str, list[str]] = {}
    for page in pages(root):
        name = page.relative_to(root).as_posix()
        text = CODE.sub("", page.read_text())
        hashes = set(NAMED.findall(text))
        if name in MEASURED:
            hashes.update(BARE.findall(text))
        for commit in sorted(hashes):
            found.setdefault(commit, []).append(name)
    return found


def _git(root: Path, *arguments: str, text: str = "") -> str | None:
    """Return what git says; None where it fails, or is not there."""
    try:
        done = subprocess.run(
            ["git", "-C", str(root), *arguments],
            input=text, capture_output=True, text=True, check=False,
        )  # fmt: skip
    except OSError:
        return None
    return done.stdout if done.returncode == 0 else None


def check(root: Path) -> list[str]:
    if not (root / ".git").exists():
        return []
    if (_git(root, "rev-parse", "--is-shallow-repository") or "true").strip() == "true":
        return []
    commits = named(root)
    answers = _git(root, "cat-file", "--batch-check", text="".join(f"{c}\n" for c in commits))
    problems = []
    for commit, answer in zip(commits, (answers or "").splitlines()):
        if answer.split()[1:2] != ["commit"]:
            problems.append(f"{', '.join(commits[commit])}: there is no commit {commit}")
    return problems
