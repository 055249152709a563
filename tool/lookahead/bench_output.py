"""Where the results of a benchmark go: its folder, its files, what is printed.

Every benchmark writes `result.json`, and the tables are made from that.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from rich.console import Console

from . import (
    bench_extend_result,
    bench_instructions,
    bench_leaf_report,
    report,
    report_io,
    stats,
)
from .bench_result import FAILED
from .bench_store import now
from .errors import UsageError
from .paths import REPOSITORY
from .start import COMMAND

RESULT_FILE = "result.json"
TABLE_FILE = "table.txt"
RESULTS = REPOSITORY / "bench" / "results"

# The tables of each benchmark.
TABLES = {
    "index-scan": report.tables,
    "io-service": report_io.tables,
    "leaf": bench_leaf_report.tables,
    "extend": bench_extend_result.tables,
    "instructions": bench_instructions.tables,
}
# And the lines above them, where they are not the common ones.
HEADERS = {"leaf": bench_leaf_report.header_text}

console = Console(stderr=True)


def progress(text: str) -> None:
    """Print one line per run: a log file shows how far a long run has come."""
    console.print(f"{now()}  {text}", markup=False, highlight=False, soft_wrap=True)


def chosen_groups(only: Sequence[str] | None, groups: Sequence[str]) -> list[str]:
    """Return the groups that --only names, or all."""
    names = [name for given in only or groups for name in given.split(",")]
    unknown = [group for group in names if group not in groups]
    if unknown:
        raise UsageError(f"no such group: {', '.join(unknown)}; there are {', '.join(groups)}")
    return names


def result_folder(benchmark: str, server: str, given: Path | None, *, resume: bool) -> Path:
    """Return the folder of a run: --output, or a new one."""
    if resume and given is None:
        raise UsageError("--resume needs the --output folder to continue")
    stamp = now().replace("-", "").replace(":", "")[:15]
    return given or RESULTS / f"{benchmark}-{server}-{stamp}"


def load_result(path: Path) -> dict[str, Any]:
    """Read a result file, or the one in a folder."""
    file = path / RESULT_FILE if path.is_dir() else path
    try:
        result = json.loads(file.read_text())
    except (OSError, ValueError) as error:
        raise UsageError(f"cannot read {file}: {error}") from error
    if not isinstance(result, dict) or result.get("benchmark") not in TABLES:
        raise UsageError(f"{file} is not a result of {COMMAND} bench")
    return result


def tables(result: dict[str, Any]) -> list[report.Table]:
    """Return all tables of a result."""
    return TABLES[result["benchmark"]](result)


def header_text(result: dict[str, Any]) -> str:
    """Return the lines that say what was measured, where and how."""
    return HEADERS.get(result["benchmark"], report.header_text)(result)


def write_result(folder: Path, result: dict[str, Any]) -> None:
    """Write the JSON and, from it, the text table."""
    (folder / RESULT_FILE).write_text(json.dumps(result, indent=1) + "\n")
    with (folder / TABLE_FILE).open("w") as file:
        wide = Console(file=file, width=220, no_color=True)
        wide.print(header_text(result), markup=False, highlight=False)
        wide.print()
        report.show(tables(result), markdown=False, console=wide)


def finish(folder: Path, result: dict[str, Any], *, markdown: bool, judged: bool) -> bool:
    """Write and print a result; say whether the benchmark succeeded."""
    write_result(folder, result)
    report.show(tables(result), markdown=markdown)
    console.print(f"results: {folder}", soft_wrap=True)
    bad = [FAILED, stats.MISSED] if judged else [FAILED]
    return not any(result["verdicts"].get(verdict) for verdict in bad)
