"""What the tests share: cold tables, counters, plans, the server's log."""

from __future__ import annotations

import ctypes
import mmap
import os
import re
import subprocess
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import psycopg
import pytest
from lookahead import privilege, slow_storage
from lookahead.cluster import Cluster, evict
from lookahead.servers import Server

Connection = psycopg.Connection[tuple[Any, ...]]
Row = tuple[Any, ...]

# Another tablespace to move tables to, see cold().
ELSEWHERE = "elsewhere"

# What no test may leave in the log.
SUSPICIOUS = re.compile(
    r"TRAP:|PANIC:|FATAL:|ERROR:  XX|WARNING:|terminated by signal|terminated by exception"
    r"|leaked|not closed|refcount|unexpected"
)

# How recovery says where the WAL ends, in a file that was used before.
END_OF_WAL = "in (WAL|log) segment"

# What a session whose client has just gone may be told while the server stops, and only then.
TOLD_TO_GO = re.compile(r"FATAL:  terminating connection due to administrator command")
STOPS = re.compile(r"LOG:  received fast shutdown request")
STARTS = re.compile(r"LOG:  starting PostgreSQL")


@dataclass(frozen=True)
class Variant:
    """One way of reading ahead: the server's io_method and our method."""

    io_method: str | None
    method: str

    def __str__(self) -> str:
        return f"{self.io_method}-{self.method}" if self.io_method else self.method

    @property
    def reads(self) -> bool:
        """Method "none" does everything but read."""
        return self.method != "none"


def variants_of(server: Server) -> list[Variant]:
    """Return the variants to test on a server, those of one cluster in a row."""
    if server.major < 18:
        return [Variant(None, "advice"), Variant(None, "worker"), Variant(None, "none")]
    found = [Variant("worker", "advice"), Variant("worker", "aio"), Variant("worker", "none")]
    found += [Variant("sync", "worker")]
    if server.io_uring:
        found += [Variant("io_uring", "aio")]
    return found


def conf_of(io_method: str | None) -> dict[str, str]:
    """Return the settings of the cluster for variants with this io_method.

    Before 18 the I/O service is always there.  On 18 it is not, unless asked
    for: so we do where the server has no asynchronous reads of its own.
    """
    if io_method is None:
        return {}
    if io_method == "sync":
        return {"io_method": io_method, "pg_lookahead.io_workers": "2"}
    return {"io_method": io_method}


def connect(cluster: Cluster, dbname: str = "postgres", **options: Any) -> Connection:
    """Connect; never with prepared statements, whose plans outlive settings."""
    return cluster.connect(dbname, prepare_threshold=None, **options)


def prepare(cluster: Cluster) -> None:
    """Make what every test needs in a new cluster."""
    with connect(cluster) as connection:
        connection.execute("CREATE EXTENSION pg_lookahead")
        connection.execute(f"CREATE TABLESPACE {ELSEWHERE} LOCATION ''")


def comes_with(connection: Connection, name: str) -> bool:
    """Whether an extension of the server's can be had."""
    available = "SELECT count(*) FROM pg_available_extensions WHERE name = %s"
    return bool(value(connection, available, (name,)))


def has_extension(cluster: Cluster, name: str) -> bool:
    """Create an extension of the server's if it can be had."""
    with connect(cluster) as connection:
        if not comes_with(connection, name):
            return False
        connection.execute("SET client_min_messages = error")
        connection.execute(f"CREATE EXTENSION IF NOT EXISTS {name}")
        return True


def need_extensions(cluster: Cluster, *names: str) -> None:
    """Create extensions of the server's; skip the test where one cannot be had."""
    for name in names:
        if not has_extension(cluster, name):
            pytest.skip(f"this server comes without {name}")


def settings(connection: Connection, **values: object) -> None:
    """SET settings; `__` in a name stands for the dot."""
    for name, value in values.items():
        connection.execute(
            "SELECT set_config(%s, %s, false)", (name.replace("__", "."), str(value))
        )


def use(connection: Connection, variant: Variant, **values: object) -> None:
    """Look ahead in this session in the way of the variant."""
    settings(connection, pg_lookahead__method=variant.method, **values)
    if variant.method == "worker":
        until_served(connection)


def until(connection: Connection, condition: str, seconds: float = 30) -> None:
    """Wait for an SQL condition."""
    wait_for(lambda: bool(value(connection, f"SELECT {condition}")), seconds, condition)


def wait_for(
    condition: Callable[[], bool], seconds: float = 10, what: str = "it did not happen"
) -> None:
    """Wait for a condition; say what has not come true."""
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, what
        time.sleep(0.02)


def insist(connection: Connection, statement: str) -> None:
    """Execute what is to end a short timeout, which may well hit it."""
    for _ in range(100):
        with suppress(psycopg.errors.QueryCanceled):
            connection.execute(statement)
            return
    raise AssertionError(f"{statement} is always cancelled")


def no_timeout(connection: Connection) -> None:
    """Take a short timeout back."""
    insist(connection, "SET statement_timeout = '60s'")


def until_served(connection: Connection) -> None:
    """Wait for the I/O service, which starts, or starts again, with the server."""
    until(connection, "(SELECT count(pid) > 0 FROM pg_stat_lookahead_io)")


INDEX_SCANS = {
    "enable_seqscan": "off",
    "enable_bitmapscan": "off",
    "enable_indexscan": "on",
    "enable_indexonlyscan": "on",
    "max_parallel_workers_per_gather": "0",
}

SEQUENTIAL_SCANS = {
    "enable_seqscan": "on",
    "enable_bitmapscan": "off",
    "enable_indexscan": "off",
    "enable_indexonlyscan": "off",
    "max_parallel_workers_per_gather": "0",
}


def value(connection: Connection, query: str, parameters: Sequence[object] | None = None) -> Any:
    """Return the only column of the only row."""
    row = connection.execute(query, parameters).fetchone()
    assert row is not None
    return row[0]


def blocks_read(connection: Connection, relation: str) -> int:
    """Return how many blocks of a relation this session has read and not reported yet."""
    read = "pg_stat_get_xact_blocks_fetched({0}) - pg_stat_get_xact_blocks_hit({0})"
    return int(value(connection, "SELECT " + read.format(f"'{relation}'::regclass")))


def script(connection: Connection, statements: str) -> None:
    """Run statements one by one: VACUUM and others refuse to be in a row."""
    for statement in statements.split(";"):
        if statement.strip():
            connection.execute(statement)


def once(connection: Connection, table: str, statements: str) -> bool:
    """Run statements unless the table that they make is there; say whether they were run."""
    if value(connection, f"SELECT to_regclass('{table}')") is not None:
        return False
    script(connection, statements)
    return True


def rows(connection: Connection, query: str) -> list[Row]:
    return connection.execute(query).fetchall()


def rows_without(connection: Connection, query: str) -> list[Row]:
    """Return what a query says without look-ahead, which is on afterwards."""
    settings(connection, pg_lookahead__enabled="off")
    found = rows(connection, query)
    settings(connection, pg_lookahead__enabled="on")
    return found


# ---------------------------------------------------------------------------
# Cold tables


def cold(connection: Connection, *tables: str) -> None:
    """Take tables out of shared buffers.

    A table that moves to another tablespace is copied past shared buffers, and
    its old buffers are dropped.  Works on every server and needs no restart.
    """
    for table in tables:
        place = value(
            connection,
            "SELECT CASE reltablespace WHEN 0 THEN %s ELSE 'pg_default' END"
            " FROM pg_class WHERE oid = %s::regclass",
            (ELSEWHERE, table),
        )
        connection.execute(f"ALTER TABLE {table} SET TABLESPACE {place}")


def cold_index(connection: Connection, *indexes: str) -> None:
    for index in indexes:
        place = value(
            connection,
            "SELECT CASE reltablespace WHEN 0 THEN %s ELSE 'pg_default' END"
            " FROM pg_class WHERE oid = %s::regclass",
            (ELSEWHERE, index),
        )
        connection.execute(f"ALTER INDEX {index} SET TABLESPACE {place}")


def ice_cold(cluster: Cluster, connection: Connection, *tables: str) -> None:
    """Take tables also out of the kernel's page cache: reads of them wait."""
    cold(connection, *tables)
    evict_relations(cluster, connection, *tables)


def evict_relations(cluster: Cluster, connection: Connection, *relations: str) -> None:
    """Take tables and indexes out of the kernel's page cache, not out of shared buffers."""
    connection.execute("CHECKPOINT")
    for relation in relations:
        path = value(connection, "SELECT pg_relation_filepath(%s::regclass)", (relation,))
        evict_file(cluster.data / path)


def evict_file(file: Path) -> None:
    """Take a file out of the kernel's page cache, with what is being written at first."""
    end = time.monotonic() + 10
    evict(file)
    while file.stat().st_size > 0 and time.monotonic() < end:
        pages = cached_pages(file)
        if sum(pages) <= len(pages) // 50:
            break
        time.sleep(0.02)
        evict(file)


def evict_tablespaces(cluster: Cluster) -> None:
    """Take what is in tablespaces out of the kernel's page cache."""
    for place in (cluster.data / "pg_tblspc").iterdir():
        evict(place.resolve())


def cached_pages(file: Path) -> list[bool]:
    """Say of each page of a file, of 4 kB mostly, whether it is in the kernel's page cache."""
    libc = ctypes.CDLL(None, use_errno=True)
    libc.mmap.restype = ctypes.c_void_p
    libc.mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t] + [ctypes.c_int] * 3 + [ctypes.c_long]
    libc.munmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t]
    libc.mincore.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_char_p]
    size = file.stat().st_size
    pages = ctypes.create_string_buffer(-(-size // mmap.PAGESIZE))
    with file.open("rb") as opened:
        place = libc.mmap(None, size, mmap.PROT_READ, mmap.MAP_SHARED, opened.fileno(), 0)
    assert place != ctypes.c_void_p(-1).value, os.strerror(ctypes.get_errno())
    try:
        assert libc.mincore(place, size, pages) == 0, os.strerror(ctypes.get_errno())
    finally:
        libc.munmap(place, size)
    return [bool(page & 1) for page in pages.raw]


# ---------------------------------------------------------------------------
# Counters


class Counters(NamedTuple):
    """A row of pg_lookahead_session()."""

    scans: int
    windows: int
    blocks_issued: int
    blocks_used: int
    blocks_wasted: int
    blocks_hit: int
    blocks_dropped: int
    waits: int
    errors: int
    depth_max: int
    reads_in_flight: int


def session(connection: Connection) -> Counters:
    row = connection.execute("SELECT * FROM pg_lookahead_session()").fetchone()
    assert row is not None
    return Counters(*row)


class Change:
    """What the session's counters gained in a block of code; see gained()."""

    def __init__(self) -> None:
        self.scans = self.windows = self.blocks_issued = self.blocks_used = 0
        self.blocks_wasted = self.blocks_hit = self.blocks_dropped = 0
        self.waits = self.errors = 0

    def __repr__(self) -> str:
        return f"Change({self.__dict__})"


@contextmanager
def gained(connection: Connection) -> Iterator[Change]:
    """Measure what a session looked ahead; check what always holds."""
    change = Change()
    before = session(connection)
    yield change
    after = session(connection)
    for name in change.__dict__:
        setattr(change, name, getattr(after, name) - getattr(before, name))
    assert after.reads_in_flight == 0
    assert change.blocks_issued == change.blocks_used + change.blocks_wasted, change


# ---------------------------------------------------------------------------
# Plans


def plan_nodes(connection: Connection, query: str, options: str = "") -> list[dict[str, Any]]:
    """Return every node of a query's plan, parents first."""
    document = value(connection, f"EXPLAIN (FORMAT json{options}) {query}")

    def walk(node: dict[str, Any]) -> Iterator[dict[str, Any]]:
        yield node
        for child in node.get("Plans", []):
            yield from walk(child)

    return list(walk(document[0]["Plan"]))


def require_node(connection: Connection, query: str, kind: str, index: str | None = None) -> None:
    """Fail unless the plan has this node: otherwise the test tests nothing."""
    nodes = plan_nodes(connection, query)
    for node in nodes:
        if node["Node Type"] == kind and index in (None, node.get("Index Name")):
            return
    found = [(node["Node Type"], node.get("Index Name")) for node in nodes]
    raise AssertionError(f"the plan has no {kind} of {index}: {found}")


def look_ahead_of(connection: Connection, query: str) -> list[dict[str, Any]]:
    """Run a query; return what EXPLAIN shows of look-ahead, as it is in 18 or before.

    Table blocks and leaf pages of one scan are two.
    """
    options = "ANALYZE, BUFFERS, SUMMARY, FORMAT json"
    document = value(connection, f"EXPLAIN ({options}) {query}")
    found = list(document[0].get("Look-Ahead", []))

    def walk(node: dict[str, Any]) -> None:
        found.extend(node[name] for name in ("Look-Ahead", "Leaf Look-Ahead") if name in node)
        for child in node.get("Plans", []):
            walk(child)

    walk(document[0]["Plan"])
    return found


# ---------------------------------------------------------------------------
# Pins and the log


def pins(connection: Connection, *relations: str) -> list[Row]:
    """Return (relation, block, backends) of every pinned buffer of relations.

    Of all relations of the database if none is named; with the I/O service at
    rest.  Needs pg_buffercache.

    The background writer and the checkpointer, too, pin a page, for as long as
    they write it.  So a pin counts when two more looks a moment later see it.
    """

    found = _pinned_now(connection, relations)
    for pause in (0.02, 0.1):
        if found:
            time.sleep(pause)
            again = _pinned_now(connection, relations)
            found = [pin for pin in found if pin in again]
    return found


def _pinned_now(connection: Connection, relations: Sequence[str]) -> list[Row]:
    settle(connection)
    return connection.execute(
        "SELECT c.oid::regclass::text, b.relblocknumber, b.pinning_backends"
        " FROM pg_buffercache b"
        " JOIN pg_class c ON b.relfilenode = pg_relation_filenode(c.oid)"
        " WHERE b.reldatabase ="
        " (SELECT oid FROM pg_database WHERE datname = current_database())"
        " AND c.oid >= 16384 AND b.pinning_backends > 0"
        " AND (%(all)s OR c.oid = ANY (%(names)s::regclass[])) ORDER BY 1, 2",
        {"all": not relations, "names": list(relations)},
    ).fetchall()


def pinned_alone(connection: Connection, expected: list[Row], *relations: str) -> None:
    """Fail unless just these pins are there, by one look or by those of pins()."""
    if _pinned_now(connection, relations) != expected:
        assert pins(connection, *relations) == expected


def nothing_pinned(connection: Connection, *relations: str) -> None:
    """Fail if a page is pinned, and stays so: a pin that was forgotten does."""
    end = time.monotonic() + 60
    while found := pins(connection, *relations):
        assert time.monotonic() < end, found


def no_pins(cluster: Cluster) -> None:
    """Fail if a page of the database is pinned, and stays so.

    Proves nothing on a server without pg_buffercache.
    """
    if has_extension(cluster, "pg_buffercache"):
        with connect(cluster) as connection:
            nothing_pinned(connection)


def reset_statistics(connection: Connection, sessions: int = 1) -> None:
    """Begin to count anew, when so many sessions are left that may count something.

    One that has ended reports what it has not yet before it is not listed any more.
    """
    until(
        connection,
        "(SELECT count(*) FROM pg_stat_activity WHERE backend_type IN"
        f" ('client backend', 'parallel worker')) <= {sessions}",
        30,
    )
    connection.execute("SELECT pg_stat_force_next_flush()")
    connection.execute("SELECT pg_stat_reset()")


def settle(connection: Connection) -> None:
    """Wait until the I/O service, if there is one, has nothing left to do.

    Its workers pin what they read while they read it, also when the query that
    asked for it has ended.
    """
    idle = (
        "SELECT coalesce(bool_and("
        "  coalesce(wait_event, '') IN ('Extension', 'LookaheadWorkerMain')), true)"
        " FROM pg_stat_activity WHERE backend_type = 'pg_lookahead io worker'"
    )
    workers = "SELECT count(*) FROM pg_stat_activity WHERE backend_type = 'pg_lookahead io worker'"
    queued = "SELECT sum(queue_depth) FROM pg_stat_lookahead_io"
    end = time.monotonic() + 30
    while time.monotonic() < end:
        if not value(connection, workers):
            return
        # Idle before and after: what is not in a queue a worker may just have taken.
        if value(connection, idle) and not value(connection, queued) and value(connection, idle):
            return
        time.sleep(0.02)
    raise AssertionError("the I/O service does not come to rest")


def reads_in_flight(connection: Connection, backend: Connection) -> int:
    """Count another session's asynchronous reads, as the server sees them (18).

    pg_buffercache does not show the buffers that they pin, which are not valid.
    """
    if connection.info.server_version < 180000:
        return 0
    return int(
        value(
            connection,
            "SELECT count(*) FROM pg_aios WHERE pid = %s AND state <> 'HANDED_OUT'",
            (backend.info.backend_pid,),
        )
    )


class LogWatch:
    """Fails a block of code when the server logs something that it must not."""

    def __init__(self, cluster: Cluster, allowed: Iterable[str] = ()) -> None:
        self.cluster = cluster
        self.allowed = [re.compile(pattern) for pattern in allowed]
        self.start = 0

    def __enter__(self) -> LogWatch:
        log = self.cluster.log
        self.start = log.stat().st_size if log.exists() else 0
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        found = "\n".join(self.suspicious())
        if kind is None:
            assert not found, f"the server logged:\n{found}"
        elif found:
            # Beside what failed; pytest shows it.
            print(f"the server logged:\n{found}")

    def text(self) -> str:
        with self.cluster.log.open(errors="replace") as file:
            file.seek(self.start)
            return file.read()

    def suspicious(self) -> list[str]:
        found, is_stopping = [], False
        for line in self.text().splitlines():
            if STOPS.search(line):
                is_stopping = True
            elif STARTS.search(line):
                is_stopping = False
            if not SUSPICIOUS.search(line) or any(p.search(line) for p in self.allowed):
                continue
            if not (is_stopping and TOLD_TO_GO.search(line)):
                found.append(line)
        return found


@contextmanager
def at_work(*tasks: Callable[[], object], seconds: float = 120) -> Iterator[None]:
    """Have tasks done beside a block of code; at its end, wait for them, and fail as they did."""
    with ThreadPoolExecutor(len(tasks)) as pool:
        futures = [pool.submit(task) for task in tasks]
        try:
            yield
        finally:
            for future in futures:
                future.result(seconds)


def sleeps_of(pid: int) -> int:
    """Return how often a process has slept."""
    status = Path(f"/proc/{pid}/status").read_text()
    return int(status.split("\nvoluntary_ctxt_switches:")[1].split()[0])


def signal_backend(pid: int, name: str) -> None:
    """Send a signal to one backend of ours."""
    subprocess.run(["kill", f"-{name}", str(pid)], check=True)


def seed() -> int:
    """The seed of random tests; LOOKAHEAD_SEED repeats or varies a run."""
    return int(os.environ.get("LOOKAHEAD_SEED", "1"))


# ---------------------------------------------------------------------------
# Slow storage


@contextmanager
def slow_tablespace(
    cluster: Cluster,
    under: Path | None = None,
    *,
    read_us: int = 0,
    allocate_us: int = 0,
    failing: Path | None = None,
    failing_reads: Path | None = None,
) -> Iterator[None]:
    """Give a cluster a tablespace, "slow", where reading or allocating costs time.

    While the file *failing* exists, writes there fail; while *failing_reads* does, reads.

    The cluster is stopped at the end, so that the storage can be taken away.
    """
    missing = slow_storage.why_not()
    if missing:
        pytest.skip(missing)
    with slow_storage.mounted(
        (under or cluster.dir) / "storage",
        read_us=read_us,
        write_us=0,
        allocate_us=allocate_us,
        failing=failing,
        failing_reads=failing_reads,
        log=print,
    ) as place:
        folder = place / "tablespace"
        folder.mkdir()
        privilege.give(folder)
        with connect(cluster) as connection:
            connection.execute(f"CREATE TABLESPACE slow LOCATION '{folder}'")
        try:
            yield
        finally:
            cluster.stop()
