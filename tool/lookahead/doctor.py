"""`lookahead doctor`: what keeps look-ahead from helping on a running server.

It reads settings, catalogs and counters, and times 64 reads of table files
where it may; it changes nothing.  Exit status 0: nothing to mend; 1: something
is; 2: no connection; 3: the tool itself failed.
"""

from __future__ import annotations

import json
import sys
import textwrap
from dataclasses import asdict
from typing import Any

import psycopg
from rich.console import Console
from rich.markup import escape

from .doctor_checks import NOTE, PROBLEM, WARNING, Finding, examine
from .doctor_facts import CACHED_BELOW_US, Facts, collect
from .visit import clean, clean_lines, connect, how_to_connect

STYLES = {PROBLEM: "bold red", WARNING: "yellow", NOTE: "cyan"}

TEXT_WIDTH = 90

NOT_TO_BE_COPIED = "    (A name in it has characters that cannot be shown: do not copy it.)"

console = Console(highlight=False)


def main(dsn: str | None, *, as_json: bool) -> int:
    """Examine a server; return the exit status."""
    try:
        connection = connect(dsn, "lookahead doctor")
    except (psycopg.OperationalError, psycopg.ProgrammingError) as error:
        print(f"lookahead: could not connect: {clean_lines(error)}", file=sys.stderr)
        print(how_to_connect("doctor"), file=sys.stderr)
        return 2
    with connection:
        try:
            facts = collect(connection)
        except psycopg.Error as error:
            print(f"lookahead: could not examine: {clean_lines(error)}", file=sys.stderr)
            return 2
    findings = examine(facts)
    if as_json:
        print(json.dumps(as_data(facts, findings), indent=2))
    else:
        show(facts, findings)
    return 1 if any(finding.severity != NOTE for finding in findings) else 0


def as_data(facts: Facts, findings: list[Finding]) -> dict[str, Any]:
    return {"server": asdict(facts), "findings": [asdict(finding) for finding in findings]}


def show(facts: Facts, findings: list[Finding]) -> None:
    for name, value in summary(facts):
        console.print(f"{name:<12} {escape(clean(value))}", soft_wrap=True)
    for finding in findings:
        style = STYLES[finding.severity]
        console.print()
        title = f"[{style}]{finding.severity}[/]: {escape(clean(finding.title))}"
        console.print(title, soft_wrap=True)
        width = min(console.width, TEXT_WIDTH)
        text = textwrap.indent(
            textwrap.fill(clean(" ".join(finding.explanation.split())), width - 2), "  "
        )
        console.print(text, markup=False)
        for command in finding.commands:
            # As it is, on one line: it is there to be copied.
            shown = clean(command)
            console.print(f"    {shown}", style="bold", markup=False, soft_wrap=True)
            if shown != command:
                console.print(NOT_TO_BE_COPIED, style="red", markup=False, soft_wrap=True)
    console.print()
    counts = {s: sum(f.severity == s for f in findings) for s in (PROBLEM, WARNING)}
    if any(counts.values()):
        console.print(f"{counts[PROBLEM]} problem(s), {counts[WARNING]} warning(s)")
    else:
        console.print("Nothing to fix.", style="green")


def summary(facts: Facts) -> list[tuple[str, str]]:
    """Return what was found, a line for each thing."""
    lines = [
        ("server", f"PostgreSQL {facts.version}"),
        ("database", f"{facts.database}{_megabytes(facts.database_bytes)}"),
    ]
    if facts.library_version:
        how = "preloaded" if facts.preloaded else "loaded per session"
        if not facts.loaded:
            how = "not loaded into new sessions"
        lines.append(("library", f"pg_lookahead {facts.library_version}, {how}"))
    elif facts.loaded:
        lines.append(("library", "pg_lookahead, loaded"))
    if facts.method:
        lines.append(("method", f"{facts.method}: {facts.reason}"))
    lines.append(("storage", _latency(facts)))
    seen = facts.counters
    if seen:
        share = f", {seen.wasted / seen.issued:.1%} wasted" if seen.issued else ""
        lines.append(
            (
                "so far",
                f"{seen.scans:,} scans, {seen.issued:,} blocks issued, {seen.used:,} used,"
                f" {seen.wasted:,} wasted{share}, {seen.waits:,} waits, {seen.errors:,} errors",
            )
        )
    return lines


def _megabytes(size: int | None) -> str:
    return "" if size is None else f", {size / 1e6:,.0f} MB"


def _latency(facts: Facts) -> str:
    latency = facts.latency
    if latency is None:
        return (
            "not measured (needs tables, and a superuser, or pg_read_server_files and EXECUTE"
            " on pg_read_binary_file)"
        )
    place = "page cache" if latency.median_us < CACHED_BELOW_US else "storage"
    return (
        f"an 8 kB read takes {latency.median_us:.0f} us (median), {latency.p90_us:.0f} us (p90);"
        f" {latency.cached_share:.0%} of {latency.samples} from the page cache: mostly {place}"
    )
