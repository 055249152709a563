"""Probes: what one run cost, seen from the client, the server and the kernel.

A run is bracketed by two `Snapshot`s.  Each collects cumulative counters from
several places, because no single one tells the truth about look-ahead:

  server      blocks and waits (pg_statio_*, pg_stat_database); a block that
              advice brought into the page cache still counts as read here
  extension   pg_lookahead_session(), in the look-ahead arm; pg_stat_lookahead_io,
              all workers together, where the I/O service runs
  /proc       CPU of the backend, and of all server processes together, since
              io workers do work for a scan that its backend does not show
  device      sectors and requests that really reached the disk; other
              processes of the machine are in there too

Everything except the server's own counters may be missing (another system, no
privilege) and is then None in the result, never an error.
"""

from __future__ import annotations

import contextlib
import gc
import hashlib
import os
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import psycopg
from psycopg import sql
from psycopg.rows import dict_row

# Where /proc/PID/stat has a process's own times, and those of its children that have
# ended; counted from behind its name.
OWN_TIMES, ENDED_TIMES = 11, 13

SECTOR = 512
READ_SIZE = 1 << 20
SQL_FOLDER = Path(__file__).parent / "sql"

# Nodes that may stand above the scan without changing what it does.
HARMLESS_NODES = {"Limit", "Aggregate", "Subquery Scan", "Result"}

SESSION_COLUMNS = (
    "scans", "windows", "blocks_issued", "blocks_used", "blocks_wasted",
    "blocks_hit", "blocks_dropped", "waits", "errors", "depth_max", "reads_in_flight",
)  # fmt: skip


# Those of them that are a level and not a count: the later value is the answer.
LEVELS = ("depth_max", "reads_in_flight")


class PlanRejected(Exception):
    """The planner chose another plan than the one this case measures."""


@cache
def _sql_text(name: str) -> str:
    return (SQL_FOLDER / f"{name}.sql").read_text()


def load_sql(name: str, **parts: Any) -> sql.Composed:
    """Return sql/<name>.sql with its {placeholders} filled in.

    A str becomes an identifier, an int a literal, and Composables stay.
    """
    filled: dict[str, sql.Composable] = {}
    for key, part in parts.items():
        if isinstance(part, sql.Composable):
            filled[key] = part
        elif isinstance(part, str):
            filled[key] = sql.Identifier(part)
        else:
            filled[key] = sql.Literal(part)
    return sql.SQL(_sql_text(name)).format(**filled)


def scan_query(name: str, table: str, first: int, last: int, direction: str) -> sql.Composed:
    """Return the timed (`bench_scan`) or the checking (`bench_answer`) query."""
    order = sql.SQL("DESC" if direction == "backward" else "ASC")
    return load_sql(name, table=table, first=first, last=last, direction=order)


def check_plan(
    conn: psycopg.Connection[Any], query: sql.Composed, table: str, direction: str
) -> None:
    """Raise PlanRejected unless *query* is one plain index scan of *table*.

    A benchmark of index scans that quietly measures a sort over a sequential
    scan would pass every goal, so a case with another plan is refused.
    """
    node = _top_node(conn, query)
    found = (node["Node Type"], node.get("Relation Name"), node.get("Scan Direction"))
    if found != ("Index Scan", table, direction.capitalize()):
        wanted = f"Index Scan on {table}, {direction}"
        raise PlanRejected(f"wanted {wanted}; the plan is {found[0]} on {found[1]}, {found[2]}")


def check_join(conn: psycopg.Connection[Any], query: sql.Composed, table: str, join: str) -> None:
    """Raise PlanRejected unless *query* joins *table* with itself, by two index scans."""
    node = _top_node(conn, query)
    sides = [(side["Node Type"], side.get("Relation Name")) for side in node.get("Plans", [])]
    if node["Node Type"].lower() != join or sides != [("Index Scan", table)] * 2:
        raise PlanRejected(f"wanted {join} of {table}; the plan is {node['Node Type']} of {sides}")


def _top_node(conn: psycopg.Connection[Any], query: sql.Composed) -> dict[str, Any]:
    """Return the node of a plan below which it has more than one, or that does the work."""
    row = conn.execute(sql.SQL("EXPLAIN (FORMAT JSON) ") + query).fetchone()
    assert row is not None
    node: dict[str, Any] = row[0][0]["Plan"]
    while node["Node Type"] in HARMLESS_NODES and len(node.get("Plans", [])) == 1:
        node = node["Plans"][0]
    return node


def fill_page_cache(folder: Path, size: int) -> None:
    """Read *size* bytes of the largest files below *folder*, whatever is in them.

    A virtual machine gives memory that was free for a second or two back to
    its host, and whoever uses it again waits for the host longer than for a
    fast disk.  Of two runs the first would bear that alone.  So before every
    cold run the kernel fills as much memory as the run will; it drops its
    caches then, and the run gets the same memory.
    """
    files = {}
    for file in (folder / "base").rglob("*"):
        with contextlib.suppress(OSError):
            files[file] = file.stat().st_size
    for file in sorted((f for f in files if f.is_file()), key=files.__getitem__, reverse=True):
        with file.open("rb", buffering=0) as stream:
            while size > 0 and (piece := stream.read(min(size, READ_SIZE))):
                size -= len(piece)
        if size <= 0:
            return


def server_settings(conn: psycopg.Connection[Any]) -> dict[str, str]:
    """Return the settings that must agree between runs that are compared."""
    return dict(conn.execute(load_sql("bench_settings")).fetchall())


def settings_digest(settings: dict[str, str]) -> str:
    text = "\n".join(f"{name}={value}" for name, value in sorted(settings.items()))
    return hashlib.sha256(text.encode()).hexdigest()[:12]


def device_of(folder: Path) -> str | None:
    """Return the name of the block device that holds *folder*, if it is one."""
    number = folder.stat().st_dev
    place = Path(f"/sys/dev/block/{os.major(number)}:{os.minor(number)}")
    return place.resolve().name if place.exists() else None


def _device_reads(device: str | None) -> tuple[int, int] | None:
    """Return read requests and bytes of a block device since boot."""
    try:
        for line in Path("/proc/diskstats").read_text().splitlines():
            fields = line.split()
            if fields[2] == device:
                return int(fields[3]), int(fields[5]) * SECTOR
    except OSError:
        pass
    return None


def _cpu_ms(pid: int) -> float | None:
    """Return the CPU time of a process; schedstat is exact, stat counts ticks."""
    try:
        return int(Path(f"/proc/{pid}/schedstat").read_text().split()[0]) / 1e6
    except (OSError, ValueError):
        pass
    return _stat_ms(pid, OWN_TIMES)


def _stat_ms(pid: int, first: int) -> float | None:
    """Return the sum of a user and a system time; in ticks, of 10 ms mostly."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        return (int(fields[first]) + int(fields[first + 1])) * 1000 / os.sysconf("SC_CLK_TCK")
    except (OSError, ValueError):
        return None


def scheduled_ms(pid: int) -> float | None:
    """Return the time a process was running or ready to run, so not waiting."""
    try:
        running, ready = Path(f"/proc/{pid}/schedstat").read_text().split()[:2]
        return (int(running) + int(ready)) / 1e6
    except (OSError, ValueError):
        return None


def _children(parent: int) -> list[int]:
    try:
        return [
            int(pid)
            for task in Path(f"/proc/{parent}/task").iterdir()
            for pid in (task / "children").read_text().split()
        ]
    except OSError:
        return []


def _read_bytes(pid: int) -> int | None:
    """Return the bytes a process made the disk read."""
    try:
        for line in Path(f"/proc/{pid}/io").read_text().splitlines():
            if line.startswith("read_bytes:"):
                return int(line.split()[1])
    except (OSError, ValueError):
        pass
    return None


def hold_to(number: int, pid: int) -> None:
    """Keep a process on one of our processors, where the system allows it."""
    with contextlib.suppress(OSError, AttributeError):
        processors = sorted(os.sched_getaffinity(0))
        os.sched_setaffinity(pid, {processors[number % len(processors)]})


@contextlib.contextmanager
def one_processor(number: int, *pids: int) -> Iterator[None]:
    """Keep ourselves and other processes on one processor, where the system allows it.

    A client and a server that take turns on two processors wake each other out of
    idleness each time, which in a virtual machine takes longer, and varies by more,
    than a small query.  What the processes start meanwhile inherits the processor.
    """
    before: dict[int, set[int]] = {}
    try:
        # We come last: our processors are those to choose from.
        for pid in (*pids, 0):
            with contextlib.suppress(OSError, AttributeError):
                before[pid] = os.sched_getaffinity(pid)
            hold_to(number, pid)
        yield
    finally:
        for pid, allowed in before.items():
            with contextlib.suppress(OSError):
                os.sched_setaffinity(pid, allowed)


def postmaster_of(folder: Path) -> int:
    """Return the process id of the server that runs on a data directory."""
    return int((folder / "postmaster.pid").read_text().split()[0])


@dataclass(frozen=True)
class Usage:
    """What was spent up to one moment, as the kernel counts it."""

    backend_cpu_ms: float | None
    server_cpu_ms: float | None
    backend_read_bytes: int | None
    device: tuple[int, int] | None


@dataclass(frozen=True)
class Snapshot:
    """Cumulative counters at one moment; the difference of two is a run."""

    server: dict[str, float]
    lookahead: dict[str, int] | None
    service: dict[str, int] | None
    usage: Usage


class Probe:
    """Takes snapshots of one backend and times queries in it.

    Without a table the server's counters are of all tables together.
    """

    def __init__(
        self,
        conn: psycopg.Connection[Any],
        data: Path,
        table: str | None,
        lookahead: bool,
        *,
        service: bool = False,
    ) -> None:
        self.conn = conn
        self.table = table
        self.lookahead = lookahead
        self.service = service
        self.pid = conn.info.backend_pid
        self.postmaster = postmaster_of(data)
        self.device = device_of(data)

    def pin(self, number: int) -> None:
        """Keep the backend on one processor, where the system allows it.

        Both arms of a cached case share one: two processors are never equally
        busy, and what is in their caches is worth more than what we look for.
        """
        hold_to(number, self.pid)

    def snapshot(self) -> Snapshot:
        """Collect all counters before a run; the queries needed for it come first."""
        counters = self._counters()
        return Snapshot(*counters, usage=self._usage())

    def since(self, before: Snapshot) -> dict[str, Any]:
        """Return what happened since a snapshot, as it goes into the result.

        What the backend spends on the queries for the counters, of which there are
        more with look-ahead, is not the run's.
        """
        usage = self._usage()
        return difference(before, Snapshot(*self._counters(), usage=usage))

    def _usage(self) -> Usage:
        return Usage(
            backend_cpu_ms=_cpu_ms(self.pid),
            server_cpu_ms=self._all_cpu(),
            backend_read_bytes=_read_bytes(self.pid),
            device=_device_reads(self.device),
        )

    def _counters(self) -> tuple[dict[str, float], dict[str, int] | None, dict[str, int] | None]:
        """Return the counters of the server, of look-ahead and of the service.

        The forced flush belongs to its own statement: the server hands its
        counters over between statements, not within one.
        """
        self.conn.execute("SELECT pg_stat_force_next_flush()")
        with self.conn.cursor(row_factory=dict_row) as cur:
            if self.table is None:
                cur.execute(load_sql("bench_counters_all"))
            else:
                cur.execute(load_sql("bench_counters"), (self.table,))
            server = cur.fetchone() or {}
        return (
            {key: float(value) for key, value in server.items()},
            self._session_counters(),
            self._service_counters(),
        )

    def _session_counters(self) -> dict[str, int] | None:
        if not self.lookahead:
            return None
        with self.conn.cursor(row_factory=dict_row) as cur:
            row = cur.execute("SELECT * FROM pg_lookahead_session()").fetchone() or {}
        return {name: int(row[name]) for name in SESSION_COLUMNS if row.get(name) is not None}

    def _service_counters(self) -> dict[str, int] | None:
        if not self.service:
            return None
        with self.conn.cursor(row_factory=dict_row) as cur:
            row = cur.execute(load_sql("bench_service_counters")).fetchone() or {}
        return {name: int(value) for name, value in row.items() if value is not None}

    def _all_cpu(self) -> float | None:
        """Return what all processes of the server have spent, those that have ended included."""
        spent = [_cpu_ms(pid) for pid in [self.postmaster, *_children(self.postmaster)]]
        spent.append(_stat_ms(self.postmaster, ENDED_TIMES))
        return sum(ms for ms in spent if ms is not None)

    def timed(
        self, queries: Sequence[sql.Composed], *, rows_come: bool = True
    ) -> tuple[list[float], list[Any]]:
        """Run the queries; return each one's elapsed ms and its rows.

        The queries are rendered beforehand and Python's collector is held off,
        so that what is measured is the round trip.
        """
        texts = [query.as_bytes(self.conn) for query in queries]
        elapsed: list[float] = []
        answers: list[Any] = []
        cur = self.conn.cursor()
        gc.disable()
        try:
            for text in texts:
                start = time.perf_counter_ns()
                cur.execute(text)
                rows = cur.fetchall() if rows_come else []
                elapsed.append((time.perf_counter_ns() - start) / 1e6)
                answers.append(rows)
        finally:
            gc.enable()
        return elapsed, answers

    def waited(
        self, query: sql.Composed, *, rows_come: bool = True
    ) -> tuple[float, list[Any], float | None]:
        """Run one statement; return its elapsed ms, its rows and the ms it waited.

        The backend waits while it neither runs nor is ready to.  That includes
        what the server's own I/O times do not: waiting for a read that another
        process has begun.
        """
        before = scheduled_ms(self.pid)
        (elapsed,), (rows,) = self.timed([query], rows_come=rows_come)
        after = scheduled_ms(self.pid)
        if before is None or after is None:
            return elapsed, rows, None
        return elapsed, rows, max(0.0, elapsed - (after - before))


def difference(before: Snapshot, after: Snapshot) -> dict[str, Any]:
    """Return what happened between two snapshots, as it goes into the result."""

    def less(late: float | None, early: float | None) -> float | None:
        return None if late is None or early is None else round(late - early, 3)

    result: dict[str, Any] = {
        name: less(value, before.server.get(name)) for name, value in after.server.items()
    }
    spent, used = after.usage, before.usage
    result["backend_cpu_ms"] = less(spent.backend_cpu_ms, used.backend_cpu_ms)
    result["server_cpu_ms"] = less(spent.server_cpu_ms, used.server_cpu_ms)
    result["backend_read_bytes"] = less(spent.backend_read_bytes, used.backend_read_bytes)
    if used.device and spent.device:
        result["device_reads"] = spent.device[0] - used.device[0]
        result["device_read_bytes"] = spent.device[1] - used.device[1]
    for name, late, early in (
        ("lookahead", after.lookahead, before.lookahead),
        ("service", after.service, before.service),
    ):
        if late is not None and early is not None:
            result[name] = {
                counter: value if counter in LEVELS else value - early.get(counter, 0)
                for counter, value in late.items()
            }
    return result


def answer_digest(answers: Sequence[Any]) -> str:
    """Return one hash for the rows of all queries of a run."""
    return hashlib.sha256(repr(list(answers)).encode()).hexdigest()[:16]
