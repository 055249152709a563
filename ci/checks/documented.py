"""What a user can see is in docs/reference.md, and what is there exists.

  - every function and view, in a section of its own, and every column
  - every label that EXPLAIN shows
  - every error message, detail and hint
  - every reason that pg_lookahead_status() gives

README.md names every function and view, and every one has COMMENT ON.
"""

from __future__ import annotations

import re
from pathlib import Path

from . import _text
from .versions import find

REFERENCE = "docs/reference.md"
README = "README.md"
EXPLAIN = "src/report/explain_scans.c"
METHOD = "src/method/method.c"
MESSAGES = ("errmsg", "errdetail", "errhint", "GUC_check_errdetail", "GUC_check_errhint")


def sql_objects(script: str) -> dict[str, list[str]]:
    """Return the columns of each function and view of an install script."""
    text = re.sub(r"--[^\n]*", "", script)
    found = {}
    for match in re.finditer(r"CREATE FUNCTION (\w+)\s*\(", text):
        parameters = _split(_parenthesised(text, match.end()))
        outs = [words[1].strip('"') for words in map(str.split, parameters) if words[:1] == ["OUT"]]
        found[match[1]] = outs
    for match in re.finditer(r"CREATE VIEW (\w+) AS\s+SELECT (.*?)\bFROM\b", text, re.DOTALL):
        found[match[1]] = [re.findall(r"\w+", column)[-1] for column in _split(match[2])]
    return found


def _parenthesised(text: str, start: int) -> str:
    depth = 1
    for place in range(start, len(text)):
        depth += {"(": 1, ")": -1}.get(text[place], 0)
        if depth == 0:
            return text[start:place]
    return text[start:]


def _split(text: str) -> list[str]:
    """Split at the commas that are not inside parentheses."""
    parts = [""]
    depth = 0
    for character in text:
        depth += {"(": 1, ")": -1}.get(character, 0)
        if character == "," and depth == 0:
            parts.append("")
        else:
            parts[-1] += character
    return [part.strip() for part in parts if part.strip()]


def check(root: Path) -> list[str]:
    version = find(root, "pg_lookahead.control", r"^default_version = '(.*)'$")
    name = f"sql/pg_lookahead--{version}.sql"
    script = (root / name).read_text()
    reference = (root / REFERENCE).read_text()
    readme = (root / README).read_text()
    # A text that is broken over lines, or stands in a table, is the same text.
    plain = re.sub(r"\s+", " ", reference.replace("\\|", "|"))
    problems = []

    objects = sql_objects(script)
    for thing in objects:
        if not re.search(rf"^COMMENT ON \w+ {thing}\b", script, re.MULTILINE):
            problems.append(f"{name}: {thing} has no COMMENT ON")
        if f"`{thing}" not in readme:
            problems.append(f"{README}: does not name {thing}")
    problems += _sections(objects, _text.sections(reference))

    code = (root / EXPLAIN).read_text()
    for function in ("ExplainPropertyText", "ExplainPropertyInteger"):
        for line, arguments in _text.c_calls(code, function):
            label = _text.unquoted(arguments[0])
            if f"`{label}`" not in plain:
                problems.append(f'{EXPLAIN}:{line}: {REFERENCE} does not have "{label}"')

    for file in sorted((root / "src").rglob("*.c")):
        where = file.relative_to(root).as_posix()
        for function in MESSAGES:
            for line, arguments in _text.c_calls(file.read_text(), function):
                text = _text.unquoted(arguments[0])
                if text not in plain:
                    problems.append(f'{where}:{line}: {REFERENCE} does not have "{text}"')

    code = _text.without_comments((root / METHOD).read_text())
    for literal in re.findall(rf"\*reason = ({_text.STRING});", code):
        text = _text.unquoted(literal)
        if text not in plain:
            problems.append(f'{METHOD}: {REFERENCE} does not have the reason "{text}"')
    return problems


def _sections(objects: dict[str, list[str]], sections: dict[str, str]) -> list[str]:
    problems = []
    # A heading is `name(arguments)` for a function, `name` for a view.
    by_name = {}
    for heading, text in sections.items():
        match = re.match(r"`(\w+)(\(.*\))?`", heading)
        if match:
            by_name[match[1]] = text
    for thing, columns in objects.items():
        if thing not in by_name:
            problems.append(f"{REFERENCE}: has no section `{thing}`")
            continue
        text = by_name.pop(thing)
        cells = [_text.coded(row[0]) for row in _text.table_rows(text)]
        rows = [cell for cell in cells if cell]
        # A function that a view shows may say "the columns of" it.
        if not rows and "the columns of" in text:
            continue
        problems += [f"{REFERENCE}: {thing}: has no {c}" for c in columns if c not in rows]
        problems += [f"{REFERENCE}: {thing}: there is no {c}" for c in rows if c not in columns]
    problems += [f"{REFERENCE}: there is no {thing}" for thing in by_name]
    return problems
