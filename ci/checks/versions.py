"""The version is the same wherever it is written; pg_lookahead.control is right.

So are the oldest and the newest PostgreSQL, for which src/compat.h is.  Every release can be
reached from the one before it with ALTER EXTENSION.
"""

from __future__ import annotations

import json
import re
from pathlib import Path

NAME = "pg_lookahead"
TAG = re.compile(r"[^\x00-\x1f\x7f/\\]{1,256}")
HEADING = re.compile(r"^## (.*)$", re.MULTILINE)
RELEASE = re.compile(r"(\d+\.\d+\.\d+) \((unreleased|\d{4}-\d{2}-\d{2})\)")

# File, what of it says the version, and the pattern that finds it.
PLACES = (
    ("src/report/views.c", "LA_VERSION", r'^#define LA_VERSION "(.*)"$'),
    ("debian/changelog", "the newest entry", r"\A\S+ \((.*)-\d\S*\) "),
    ("docs/reference.md", "first paragraph", rf"^Everything of {NAME} (\S+) that"),
    ("tool/lookahead/__init__.py", "__version__", r'^__version__ = "(.*)"$'),
)


def find(root: Path, name: str, pattern: str) -> str | None:
    """Return what a pattern finds in a file, or None."""
    file = root / name
    match = re.search(pattern, file.read_text(), re.MULTILINE) if file.exists() else None
    return match[1] if match else None


def check(root: Path) -> list[str]:
    version = find(root, f"{NAME}.control", r"^default_version = '(.*)'$")
    if version is None:
        return [f"{NAME}.control: has no default_version"]
    problems = []

    def same(what: str, found: str | None, wanted: str) -> None:
        if found != wanted:
            says = f"says {found}" if found else "is not there"
            problems.append(f"{what} {says}; it should be {wanted}")

    meta = json.loads((root / "META.json").read_text())
    provided = meta["provides"][NAME]
    script = f"sql/{NAME}--{version}.sql"
    same("META.json: version", meta["version"], version)
    same(f"META.json: provides.{NAME}.version", provided["version"], version)
    same(f"META.json: provides.{NAME}.file", provided["file"], script)
    if not (root / script).exists():
        problems.append(f"{script}: is not there")
    for name, what, pattern in PLACES:
        same(f"{name}: {what}", find(root, name, pattern), version)
    problems += [
        f'META.json: PGXN takes no tag "{tag}"' for tag in meta["tags"] if not TAG.fullmatch(tag)
    ]
    problems += _changelog(root, version)

    oldest = find(root, "src/compat.h", r"PG_VERSION_NUM < (\d+)0000\b") or "0"
    beyond = find(root, "src/compat.h", r"PG_VERSION_NUM >= (\d+)0000$") or "0"
    needs = meta["prereqs"]["runtime"]["requires"]["PostgreSQL"]
    same("META.json: PostgreSQL", needs, f">= {oldest}.0.0, < {beyond}.0.0")
    pgversions = " ".join((root / "debian" / "pgversions").read_text().split())
    same("debian/pgversions", pgversions, " ".join(map(str, range(int(oldest), int(beyond)))))
    return problems


def _changelog(root: Path, version: str) -> list[str]:
    problems = []
    headings = HEADING.findall((root / "CHANGELOG.md").read_text())
    releases: list[str] = []
    for heading in headings:
        match = RELEASE.fullmatch(heading)
        if not match:
            problems.append(f'CHANGELOG.md: "{heading}" is not "X.Y.Z (YYYY-MM-DD)"')
            continue
        if match[2] == "unreleased" and releases:
            problems.append(f"CHANGELOG.md: {match[1]} is not the newest, but unreleased")
        releases.append(match[1])
    if releases[:1] != [version]:
        newest = releases[0] if releases else "nothing"
        problems.append(f"CHANGELOG.md: the newest is {newest}; it should be {version}")
    for newer, older in zip(releases, releases[1:]):
        script = f"sql/{NAME}--{older}--{newer}.sql"
        if not (root / script).exists():
            problems.append(f"{script}: is not there, so {older} cannot be updated")
    return problems
