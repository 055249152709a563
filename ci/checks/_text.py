"""What several checks need to read C, SQL and Markdown.  No check itself."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

STRING = r'"(?:\\.|[^"\\])*"'
C_COMMENT = re.compile(rf"({STRING})|/\*.*?\*/|//[^\n]*", re.DOTALL)


def c_files(root: Path) -> list[Path]:
    """Return every C file of the extension and of its test modules."""
    return sorted(
        file
        for folder in ("src", "test/modules")
        for file in (root / folder).rglob("*.[ch]")
        if file.is_file()
    )


def without_comments(text: str) -> str:
    """Blank out the comments of C code; line numbers stay what they are."""

    def blank(match: re.Match[str]) -> str:
        return match[1] or re.sub(r"[^\n]", " ", match[0])

    return C_COMMENT.sub(blank, text)


def c_calls(text: str, name: str) -> Iterator[tuple[int, list[str]]]:
    """Yield the line and the arguments of every call of a C function.

    String literals that stand side by side are joined; the quotes stay.
    """
    code = without_comments(text)
    for match in re.finditer(rf"\b{name}\s*\(", code):
        yield code.count("\n", 0, match.start()) + 1, _arguments(code, match.end())


def _arguments(code: str, start: int) -> list[str]:
    found = [""]
    depth = 0
    place = start
    while depth >= 0:
        literal = re.compile(STRING).match(code, place)
        piece = literal[0] if literal else code[place]
        place += len(piece)
        if piece in "([{" and not literal:
            depth += 1
        elif piece in ")]}" and not literal:
            depth -= 1
        if depth < 0:
            break
        if piece == "," and depth == 0:
            found.append("")
        else:
            found[-1] += piece
    return [re.sub(r'"\s*"', "", argument.strip()) for argument in found]


def unquoted(literal: str) -> str:
    """Return what a C string literal says."""
    return re.sub(r"\\(.)", r"\1", literal.strip()[1:-1])


def sections(markdown: str) -> dict[str, str]:
    """Return the text below each heading of a page, up to the next heading
    of the same or a higher level."""
    headings = list(re.finditer(r"^(#+) (.*)$", markdown, re.MULTILINE))
    found = {}
    for i, heading in enumerate(headings):
        end = len(markdown)
        for later in headings[i + 1 :]:
            if len(later[1]) <= len(heading[1]):
                end = later.start()
                break
        found[heading[2].strip()] = markdown[heading.end() : end]
    return found


def table_rows(markdown: str) -> list[list[str]]:
    """Return the cells of every row of every table, the header rows included."""
    rows = []
    for line in markdown.splitlines():
        if line.startswith("|") and not re.fullmatch(r"[|:\- ]+", line):
            cells = re.split(r"(?<!\\)\|", line.strip().strip("|"))
            rows.append([cell.strip().replace("\\|", "|") for cell in cells])
    return rows


def coded(cell: str) -> str | None:
    """Return the text of a cell that is `code` and nothing else."""
    match = re.fullmatch(r"`([^`]+)`", cell)
    return match[1] if match else None
