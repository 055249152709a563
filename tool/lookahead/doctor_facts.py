"""What `lookahead doctor` finds out about a running server.

Facts are collected without judging them, and whatever the user may not see
is None: the checks say what follows, and tests can make facts up.
"""

from __future__ import annotations

import random
import statistics
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

import psycopg
from psycopg import sql

from .visit import Connection, take_care

SQL_FOLDER = Path(__file__).parent / "sql"

BLOCK = 8192
BLOCKS_PER_FILE = (1 << 30) // BLOCK
LATENCY_SAMPLES = 64
STORAGE_SAMPLES = 16

SETTINGS = (
    "allow_alter_system",
    "cluster_name",
    "config_file",
    "data_directory",
    "debug_io_direct",
    "effective_io_concurrency",
    "huge_pages",
    "huge_pages_status",
    "io_max_concurrency",
    "io_method",
    "io_workers",
    "max_worker_processes",
    "pg_lookahead.enabled",
    "pg_lookahead.io_concurrency",
    "pg_lookahead.io_workers",
    "pg_lookahead.max_distance",
    "pg_lookahead.method",
    "port",
    "session_preload_libraries",
    "shared_buffers",
    "shared_memory_size_in_huge_pages",
    "shared_preload_libraries",
)

T = TypeVar("T")


def words(value: str) -> list[str]:
    """Return the entries of a setting that is a list."""
    return [word for word in (w.strip().strip('"') for w in value.split(",")) if word]


@dataclass(frozen=True)
class Setting:
    """One line of pg_settings."""

    value: str
    source: str = "default"
    pending_restart: bool = False
    max_value: str | None = None


@dataclass(frozen=True)
class RoleSetting:
    """A setting that ALTER DATABASE or ALTER ROLE has left."""

    database: str | None
    role: str | None
    name: str
    value: str


@dataclass(frozen=True)
class Latency:
    """What single 8 kB reads of the largest tables took."""

    samples: int
    median_us: float
    p90_us: float
    cached_share: float
    # The median of those that came from storage, if they are enough to go by.
    storage_us: float | None = None


@dataclass(frozen=True)
class Counters:
    """The sums over pg_stat_lookahead in this database."""

    scans: int = 0
    issued: int = 0
    used: int = 0
    wasted: int = 0
    waits: int = 0
    errors: int = 0
    most_wasted: str | None = None


@dataclass(frozen=True)
class Facts:
    """Everything the checks look at."""

    version_num: int
    version: str
    build: str = "PostgreSQL on x86_64-pc-linux-gnu"
    database: str = "postgres"
    username: str = "postgres"
    superuser: bool = True
    in_recovery: bool = False
    database_bytes: int | None = None
    block_size: int = BLOCK
    # From the files beside the server, and from the catalog of this database.
    available_version: str | None = None
    extension_version: str | None = None
    # Whether the library came with this session, and what it says of itself.
    loaded: bool = False
    library_version: str | None = None
    library_error: str | None = None
    library_error_code: str | None = None
    schema: str | None = None
    preloaded: bool | None = None
    method: str | None = None
    reason: str | None = None
    bindir: str | None = None
    settings: dict[str, Setting] = field(default_factory=dict)
    role_settings: tuple[RoleSetting, ...] = ()
    counters: Counters | None = None
    latency: Latency | None = None

    @property
    def major(self) -> int:
        return self.version_num // 10000

    def value(self, name: str) -> str | None:
        """Return a setting, or None if the server has none or hides it."""
        setting = self.settings.get(name)
        return setting.value if setting else None

    def number(self, name: str) -> int | None:
        value = self.value(name)
        return int(value) if value is not None else None

    def words(self, name: str) -> list[str]:
        """Return the entries of a setting that is a list."""
        return words(self.value(name) or "")


# No question may take longer than this many seconds.
PATIENCE_SECONDS = 10

# A read from the page cache takes about 5 us with what it costs to open a
# file and to make a value of it; no device answers as fast.
CACHED_BELOW_US = 20.0


def load(name: str) -> str:
    return (SQL_FOLDER / f"doctor_{name}.sql").read_text()


def collect(connection: Connection) -> Facts:
    """Look at the server of a connection; may raise psycopg.Error."""
    with connection.transaction():
        take_care(connection, PATIENCE_SECONDS)
        return _collect(connection)


def _collect(connection: Connection) -> Facts:
    server = connection.execute(load("server")).fetchone() or {}
    schema = server.pop("extension_schema")
    settings = {
        row["name"]: Setting(row["setting"], row["source"], row["pending_restart"], row["max_val"])
        for row in connection.execute(load("settings"), (list(SETTINGS),))
    }
    # Before any of its functions is called, which would load it.
    loaded = "pg_lookahead.enabled" in settings
    found: dict[str, Any] = {}
    if schema is not None:
        found = _ask_library(connection, schema)
    return Facts(
        **server,
        **found,
        schema=schema,
        loaded=loaded,
        settings=settings,
        role_settings=tuple(
            RoleSetting(row["database"], row["role"], row["name"], row["setting"])
            for row in connection.execute(load("role_settings"))
        ),
        database_bytes=_allowed(connection, lambda: _database_bytes(connection)),
        bindir=_allowed(connection, lambda: _bindir(connection)),
        latency=_allowed(connection, lambda: measure(connection)),
    )


def _allowed(connection: Connection, question: Callable[[], T]) -> T | None:
    """Return the answer, or None where the server refuses it."""
    try:
        with connection.transaction():
            return question()
    except psycopg.DatabaseError:
        if connection.closed:
            raise
        return None


def _database_bytes(connection: Connection) -> int | None:
    query = "SELECT pg_database_size(current_database()) AS bytes"
    row = connection.execute(query).fetchone()
    return row["bytes"] if row else None


def _ask_library(connection: Connection, schema: str) -> dict[str, Any]:
    # The server has quoted it.
    place = sql.SQL(schema)
    try:
        with connection.transaction():
            version = connection.execute(
                sql.SQL("SELECT {}.pg_lookahead_version() AS version").format(place)
            ).fetchone()
            status = connection.execute(
                sql.SQL("SELECT * FROM {}.pg_lookahead_status()").format(place)
            ).fetchone()
    except psycopg.DatabaseError as error:
        return {
            "library_error": str(error).splitlines()[0],
            "library_error_code": error.sqlstate,
        }
    assert version
    assert status
    counters = _allowed(
        connection,
        lambda: connection.execute(sql.SQL(load("counters")).format(schema=place)).fetchone(),
    )
    return {
        "library_version": version["version"],
        "preloaded": status["preloaded"],
        "method": status["method"],
        "reason": status["reason"],
        "counters": Counters(**counters) if counters else None,
    }


def _bindir(connection: Connection) -> str | None:
    row = connection.execute("SELECT setting FROM pg_config WHERE name = 'BINDIR'").fetchone()
    return row["setting"] if row else None


def measure(connection: Connection) -> Latency | None:
    """Time reads at random places of the largest tables' files."""
    files = [(row["path"], row["blocks"]) for row in connection.execute(load("files"))]
    files = [(path, blocks) for path, blocks in files if path and blocks]
    if not files:
        return None
    chosen = random.choices(files, weights=[blocks for _, blocks in files], k=LATENCY_SAMPLES)
    paths, positions = [], []
    for path, blocks in chosen:
        part, block = divmod(random.randrange(blocks), BLOCKS_PER_FILE)
        paths.append(f"{path}.{part}" if part else path)
        positions.append(block * BLOCK)
    rows = connection.execute(load("latency"), (paths, positions)).fetchall()
    return summarize([float(row["microseconds"]) for row in rows])


def summarize(times: list[float]) -> Latency | None:
    """Return the figures for these times, if they are enough to go by."""
    if len(times) < 2:
        return None
    stored = [time for time in times if time >= CACHED_BELOW_US]
    enough = len(stored) >= STORAGE_SAMPLES
    return Latency(
        samples=len(times),
        median_us=round(statistics.median(times), 1),
        p90_us=round(statistics.quantiles(times, n=10)[-1], 1),
        cached_share=round(1 - len(stored) / len(times), 3),
        storage_us=round(statistics.median(stored), 1) if enough else None,
    )
