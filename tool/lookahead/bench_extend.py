"""The cases of `bench extend`: what is loaded, where, and what it should show.

Nothing here runs anything.  Each case fills one table, or builds one index, in a
tablespace on the machine's own disk or on slow storage (bench/slowfs), where
writes and allocations sleep for a millisecond.

  insert        INSERT ... SELECT of narrow rows, one session
  copy          COPY FROM a file, one session
  copy-4        the same, four sessions into one table, a quarter each
  copy-parts    COPY FROM, one session, into a table of eight partitions
  rows          INSERTs of single rows, 16 sessions
  create-index  CREATE INDEX
  calls         a check: system calls that make a file longer, INSERT ... SELECT
  size          a check: small tables, and what is spare after a load
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

from .servers import Server

GROUPS = ("insert", "copy", "copy-4", "copy-parts", "rows", "create-index", "calls", "size")
CHECKS = ("calls", "size")

DISK = "disk"
SLOW = "slow"
STORAGES = (DISK, SLOW)

# Least ratio stock / look-ahead, by group and storage.
GOALS = {
    ("insert", DISK): 1.1,
    ("insert", SLOW): 2.0,
    ("copy", DISK): 1.0,
    ("copy", SLOW): 1.3,
    ("copy-4", DISK): 1.15,
    ("copy-4", SLOW): 2.0,
    ("copy-parts", DISK): 1.0,
    ("copy-parts", SLOW): 1.0,
    ("rows", DISK): 1.0,
    ("rows", SLOW): 1.3,
    ("create-index", DISK): 1.0,
    ("create-index", SLOW): 1.3,
}
CALLS_GOAL = 50
SPARE_BYTES_GOAL = 4 << 20

COPY_SESSIONS = 4
COPY_PARTS = 8
ROW_SESSIONS = 16
SETTING = "pg_lookahead.heap_extend_size"

# Rows of about 92 bytes on the page, and of about 1 kB for single rows.
ROW_BYTES = 92
WIDE_ROW_BYTES = 1060

CONF = {
    "shared_buffers": "512MB",
    "max_wal_size": "4GB",
    "checkpoint_timeout": "1h",
    "autovacuum": "off",
    "fsync": "on",
    "synchronous_commit": "off",
    "max_connections": "50",
    "maintenance_work_mem": "256MB",
    "max_parallel_maintenance_workers": "0",
}

DESCRIPTION: dict[str, Any] = {
    "cold": "one server, restarted for every run; CHECKPOINT before what is timed",
    "warm_up": "connection, CREATE TABLE, CHECKPOINT",
    "arms": {
        "stock": "library not loaded",
        "lookahead": f"shared_preload_libraries; default settings ({SETTING} = 4MB)",
    },
}


@dataclass(frozen=True)
class Scale:
    """How large a run is."""

    disk_mb: int
    slow_mb: int
    delay_us: int

    def bytes_on(self, storage: str) -> int:
        return (self.disk_mb if storage == DISK else self.slow_mb) << 20


def space_mb(scale: Scale, storages: Sequence[str]) -> int:
    """Return what one server needs: a table, the file that COPY reads, an index, and WAL."""
    return 4 * max(scale.bytes_on(storage) >> 20 for storage in storages)


@dataclass(frozen=True)
class LoadCase:
    """One case: what is filled, and on which storage."""

    server: str
    group: str
    storage: str

    pair_factor = 1
    same_blocks = False

    @property
    def id(self) -> str:
        return f"{self.server} {self.group} {self.storage}"

    @property
    def goal(self) -> float:
        return GOALS.get((self.group, self.storage), 1.0)

    @property
    def aim(self) -> str:
        if self.group == "calls":
            return f">= {CALLS_GOAL}x fewer"
        if self.group == "size":
            return f"<= {SPARE_BYTES_GOAL >> 20} MB spare"
        return f">= {self.goal:g}"

    def as_dict(self) -> dict[str, Any]:
        return {**asdict(self), "id": self.id, "goal": self.goal, "aim": self.aim}


def cases(
    chosen: Sequence[Server], groups: Sequence[str], storages: Sequence[str]
) -> list[LoadCase]:
    """Return the cases of these groups, on these servers and storages."""
    return [
        LoadCase(server.name, group, storage)
        for server in chosen
        for storage in storages
        for group in groups
        if storage == DISK or group not in CHECKS
    ]
