"""Every setting is in src/settings.c, in order, and documented as it is there.

docs/reference.md and README.md each have a table with a row for each setting:

    | `pg_lookahead.name` | type | range | default | context | meaning |

docs/reference.md also has tables of other systems' parameters, in which a setting of
ours is described again, in cells of the row or behind its name:

    | `theirs` | meaning | `pg_lookahead.name` | unit | range | default | context |
    | `theirs` | meaning | `pg_lookahead.name`: unit, range, default, context; more |
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

from . import _text

DEFINED = "src/settings.c"
PREFIX = "pg_lookahead."
PAGES = ("docs/reference.md", "README.md")
CONTEXTS = {
    "PGC_USERSET": "user",
    "PGC_SUSET": "superuser",
    "PGC_SIGHUP": "sighup",
    "PGC_POSTMASTER": "postmaster",
    "LA_PGC_RESTART": "postmaster",
}

# Where the arguments stand: default, lowest, highest, context.
PLACES = {"Bool": (4, None, None, 5), "Enum": (4, None, None, 6), "Int": (4, 5, 6, 7)}
PLACES["Real"] = PLACES["Int"]
PLACES["String"] = PLACES["Bool"]


@dataclass(frozen=True)
class Setting:
    name: str
    range: str
    default: str
    context: str


def constants(root: Path) -> dict[str, str]:
    text = (root / "src" / "settings.h").read_text()
    found = re.findall(r'^#define (LA_\w+)\s+("[^"]*"|\S+)', text, re.MULTILINE)
    return {name: value.strip('"') for name, value in found}


def enum_options(code: str, variable: str) -> list[tuple[str, str]]:
    """Return (name, constant) for each entry of a config_enum_entry array."""
    match = re.search(rf"\b{variable}\[\] =\s*\{{(.*?)\n\}};", code, re.DOTALL)
    return re.findall(r'\{"(\w+)", (\w+),', match[1]) if match else []


def defined(root: Path) -> list[Setting]:
    """Return the settings in the order in which they are defined."""
    text = (root / DEFINED).read_text()
    known = constants(root)
    found = []
    for kind, (default, lowest, highest, context) in PLACES.items():
        for line, arguments in _text.c_calls(text, f"DefineCustom{kind}Variable"):
            value = known.get(arguments[default], arguments[default])
            bounds = ""
            if kind == "Bool":
                value = {"true": "on", "false": "off"}.get(value, value)
                bounds = "on, off"
            elif kind == "Enum":
                options = enum_options(text, arguments[5])
                value = {constant: name for name, constant in options}.get(value, value)
                bounds = ", ".join(name for name, _ in options)
            elif kind == "String":
                bounds = "–"
            elif lowest and highest:
                ends = [
                    known.get(arguments[place], arguments[place]) for place in (lowest, highest)
                ]
                bounds = "–".join(ends)
            place = CONTEXTS.get(arguments[context], arguments[context])
            found.append((line, Setting(_text.unquoted(arguments[0]), bounds, value, place)))
    return [setting for _, setting in sorted(found, key=lambda pair: pair[0])]


def documented(page: str) -> dict[str, list[str]]:
    """Return the row of each setting that a page's tables define."""
    found = {}
    for row in _text.table_rows(page):
        name = _text.coded(row[0])
        if name and name.startswith(PREFIX) and len(row) == 6:
            found[name] = row
    return found


# In the tables of other systems: where a row has cells of its own for it, and where it has not.
THEIR_NAME = re.compile(rf"`({re.escape(PREFIX)}\w+)`")
IN_ONE_CELL = re.compile(
    rf"`({re.escape(PREFIX)}\w+)`[^:;|]*: [^,;]+, (?P<range>[^,;]+), (?P<default>[^,;]+),"
    r" (?P<context>\w+)"
)


def retold(page: str) -> list[tuple[str, dict[str, str]]]:
    """Return what a page's tables of other systems' parameters say of our settings."""
    found = []
    for row in _text.table_rows(page):
        if (_text.coded(row[0]) or "").startswith(PREFIX) or len(row) < 3:
            continue
        name = THEIR_NAME.match(row[2])
        if name and len(row) == 7:
            found.append((name[1], dict(zip(("range", "default", "context"), row[4:7]))))
        elif told := IN_ONE_CELL.match(row[2]):
            found.append((told[1], told.groupdict()))
    return found


def _retold(page: str, text: str, settings: list[Setting]) -> list[str]:
    known = {setting.name: setting for setting in settings}
    problems = []
    for name, cells in retold(text):
        if name not in known:
            problems.append(f"{page}: there is no setting {name}")
            continue
        for what, cell in cells.items():
            wanted = getattr(known[name], what)
            # What holds for one release follows the value.
            if cell.split(":")[0].split(" (")[0] != wanted and cells["range"] != "–":
                problems.append(f"{page}: {name}, retold: {what} is {wanted}, not {cell}")
    return problems


def check(root: Path) -> list[str]:
    problems = []
    for file in _text.c_files(root):
        name = file.relative_to(root).as_posix()
        if name.startswith("src/") and name != DEFINED:
            code = _text.without_comments(file.read_text())
            if re.search(r"\bDefineCustom\w+Variable\b", code):
                problems.append(f"{name}: defines a setting; that is what {DEFINED} is for")

    settings = defined(root)
    names = [setting.name for setting in settings]
    if names != sorted(names):
        problems.append(f"{DEFINED}: not in order; it should be {', '.join(sorted(names))}")
    problems += [
        f'{DEFINED}: "{name}" does not begin with {PREFIX}'
        for name in names
        if not name.startswith(PREFIX)
    ]
    for page in PAGES:
        text = (root / page).read_text()
        problems += _page(page, text, settings)
        problems += _retold(page, text, settings)
    return problems


def _page(page: str, text: str, settings: list[Setting]) -> list[str]:
    rows = documented(text)
    problems = []
    for setting in settings:
        row = rows.pop(setting.name, None)
        if row is None:
            problems.append(f"{page}: has no row for {setting.name}")
            continue
        cells = {"range": row[2], "default": row[3], "context": row[4]}
        for what, cell in cells.items():
            wanted = getattr(setting, what)
            if cell.replace("`", "") != wanted:
                problems.append(f"{page}: {setting.name}: {what} is {wanted}, not {cell}")
        if not row[5]:
            problems.append(f"{page}: {setting.name}: says nothing of what it is for")
    problems += [f"{page}: there is no setting {name}" for name in rows]
    return problems
