"""The cases of `bench io-service`: what is measured and what it should show.

Nothing here runs anything.  A `Case` is one line of the result: what is run, the
server and settings it runs under, and its goal.  `cases()` lists them for the
servers at hand, `Scale` says how large they are (full or --quick).

The groups, and the servers that run them:

  seqscan         CPU-heavy aggregate over a cold table, serial and       15 to 18
                  parallel; on 18 the library is loaded and has nothing
                  to do
  seqscan-direct  the same with direct I/O                                16, 17
  tpch            the 22 questions of TPC-H                               15 to 17
  vacuum          VACUUM of a table with dead rows on every page          15 to 17
  vacuum-wal      VACUUM where flushing WAL takes a millisecond           15 to 18
  vacuum-index    VACUUM of an index, of a table with few dead rows       15 to 17
  create-index    CREATE INDEX on a cold table                            15 to 17
  validate-index  what CREATE INDEX CONCURRENTLY reads to validate the    15 to 17
                  index it has built
  bitmap          a bitmap heap scan against a prefetch window of 1       15 to 18
  pgbench         tpcb-like beside a cold scan in a loop                  15 to 17
  index-scan      100,000 rows in random order with direct I/O            16, 17
  kill            workers killed in the middle of queries: a check        15 to 17
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any

from .bench_result import LOOKAHEAD, STOCK
from .servers import Server

GROUPS = (
    "seqscan", "seqscan-direct", "tpch", "vacuum", "vacuum-wal", "vacuum-index", "create-index",
    "validate-index", "bitmap", "pgbench", "index-scan", "kill",
)  # fmt: skip

# Those that read the disk: they can run on a slow one.
READING_GROUPS = (
    "seqscan", "seqscan-direct", "tpch", "vacuum", "vacuum-index", "create-index",
    "validate-index", "bitmap", "index-scan",
)  # fmt: skip

# Those that need the storage of bench/slowfs.
SLOW_GROUPS = ("vacuum-wal",)

# Tables.
ORDERED_TABLE = "t_0"
RANDOM_TABLE = "t_random"
DEAD_TABLE = "t_dead"
FEW_DEAD_TABLE = "t_few_dead"
BITMAP_TABLE = "t_bitmap"
TPCH = "tpch"

# What a case is judged by, as the numbers of a run are called.
ELAPSED = "elapsed_ms"
OPERATOR = "operator_ms"
WAITED = "waited_ms"
INDEX_PART = "index_ms"

# With direct I/O the kernel reads nothing ahead, and one process that reads is
# no faster than the scan itself: several have to.
DIRECT = {"debug_io_direct": "data"}
DIRECT_WORKERS = 4

# Random reads of one block each: as many are in flight as there are workers.
RANDOM_WORKERS = 16

# What a disk in a network takes to flush.
SLOW_FLUSH_US = 1000

# The least that `pg_lookahead.min_table_size` takes.
LEAST_TABLE_SIZE = "8MB"

# What the server has by default, where the benchmark's common settings differ.
SERVER_DEFAULTS = {"jit": "on", "max_parallel_workers_per_gather": "2"}

WINDOW = "effective_io_concurrency"


# What a reader of the result has to know; it replaces what index scans say.
DESCRIPTION: dict[str, Any] = {
    "cold": "server stopped, caches dropped, server started before every run; "
    "an operator's time is that of a second cold run with EXPLAIN (ANALYZE)",
    "warm_up": "connection, the like of the timed statement on the table `warm`, EXPLAIN",
    "arms": {
        "stock": "library not loaded",
        "lookahead": "shared_preload_libraries; pg_lookahead.method = worker "
        "(tpch, and 18: default), other settings with each case",
    },
}


def less_time(share: float) -> float:
    """Return the ratio stock / look-ahead of a time that went down by *share*."""
    return round(1 / (1 - share), 3)


SEQSCAN_GOALS = {0: 0.30, 2: 0.20}
DIRECT_GOAL = 0.50
LOADED_GOAL = 0.98
TPCH_SCAN_GOAL = 0.20
TPCH_GOAL = 0.10
TPCH_QUERY_GOAL = 1.03
VACUUM_GOAL = 1.5
VACUUM_DIRECT_GOAL = 2.0
VACUUM_INDEX_GOAL = 0.98
CREATE_INDEX_GOAL = 1.15
VALIDATE_GOAL = 0.98
BITMAP_GOAL = 0.02
PGBENCH_GOAL = 0.98
INDEX_SCAN_GOAL = 3.0


@dataclass(frozen=True)
class Scale:
    """How large a run is."""

    rows: int
    random_rows: int
    bitmap_rows: int
    tpch_scale: float
    tpch_queries: tuple[int, ...]
    pgbench_scale: int
    pgbench_clients: int
    pgbench_turns: int
    pgbench_seconds: int
    kills: int
    # Tables are too small for the defaults of the planner and of the extension.
    small: bool


def full(rows: int) -> Scale:
    """Return the whole table of the goals."""
    return Scale(
        rows=rows,
        random_rows=rows // 30,
        bitmap_rows=rows * 4 // 3,
        tpch_scale=1,
        tpch_queries=tuple(range(1, 23)),
        pgbench_scale=20,
        pgbench_clients=2,
        pgbench_turns=3,
        pgbench_seconds=8,
        kills=10,
        small=False,
    )


def quick() -> Scale:
    """Return a smoke test: every road is walked once, nothing is measured."""
    return Scale(
        rows=60_000,
        random_rows=2_000,
        bitmap_rows=30_000,
        tpch_scale=0.01,
        tpch_queries=(1, 4, 13),
        pgbench_scale=1,
        pgbench_clients=1,
        pgbench_turns=1,
        pgbench_seconds=1,
        kills=2,
        small=True,
    )


@dataclass(frozen=True)
class Case:
    """One case: what is run, its settings, its goal.

    goal is the least that stock / look-ahead may be, aim the same in the words
    of a reader.  metric is the number it is judged by, also are those that are
    shown beside it.  conf are settings of both arms, arms those of one of them.
    """

    group: str
    server: str
    label: str
    table: str
    goal: float
    aim: str
    metric: str = ELAPSED
    also: tuple[str, ...] = ()
    conf: dict[str, str] = field(default_factory=dict)
    arms: dict[str, dict[str, str]] = field(default_factory=dict)
    query: int = 0
    parallel: int = 0
    service: bool = True
    # How much longer a flush of WAL takes than the disk's.
    flush_us: int = 0
    same_blocks: bool = False
    pair_factor: int = 1

    @property
    def id(self) -> str:
        """Name the case within a run: stable, so that a run can be resumed."""
        return f"{self.group}/{self.server}/{self.label}"

    @property
    def apart(self) -> set[str]:
        """Settings of the server that the arms are meant to differ in."""
        names = {name for conf in self.arms.values() for name in conf}
        return {name for name in names if not name.startswith("pg_lookahead.")}

    def conf_of(self, arm: str, *, extension: bool = True) -> dict[str, str]:
        """Return the settings of one arm, beside the benchmark's common ones."""
        own = self.arms.get(arm, {})
        if not extension:
            own = {name: value for name, value in own.items() if name in self.apart}
        return {**self.conf, **own}

    def as_dict(self) -> dict[str, Any]:
        return {"id": self.id, **asdict(self)}


def ahead(scale: Scale, *, workers: int | None = None) -> dict[str, dict[str, str]]:
    """Return the look-ahead arm's own settings: the service is its method."""
    conf = {"pg_lookahead.method": "worker"}
    if workers is not None:
        conf["pg_lookahead.io_workers"] = str(workers)
    if scale.small:
        conf["pg_lookahead.min_table_size"] = LEAST_TABLE_SIZE
    return {LOOKAHEAD: conf}


def parallel_conf(scale: Scale, workers: int) -> dict[str, str]:
    conf = {"max_parallel_workers_per_gather": str(workers)}
    if scale.small and workers:
        conf.update(parallel_setup_cost="0", min_parallel_table_scan_size="1MB")
    return conf


def parallel_label(workers: int) -> str:
    return f"{workers} parallel workers" if workers else "serial"


def percent(share: float) -> str:
    return f"{share:.0%} less time"


def at_least(goal: float) -> str:
    return f"≥ {goal}"


def seqscan_cases(server: Server, scale: Scale) -> Iterator[Case]:
    for workers, share in SEQSCAN_GOALS.items():
        streams = server.major >= 18
        yield Case(
            "seqscan", server.name, parallel_label(workers), ORDERED_TABLE,
            goal=LOADED_GOAL if streams else less_time(share),
            aim=at_least(LOADED_GOAL) if streams else percent(share),
            metric=OPERATOR, also=(ELAPSED,),
            conf=parallel_conf(scale, workers), parallel=workers,
            # 18 reads sequential scans ahead itself: there the library is just loaded.
            arms={} if streams else ahead(scale), service=not streams,
        )  # fmt: skip


def seqscan_direct_cases(server: Server, scale: Scale) -> Iterator[Case]:
    for workers in SEQSCAN_GOALS:
        yield Case(
            "seqscan-direct", server.name, parallel_label(workers), ORDERED_TABLE,
            goal=less_time(DIRECT_GOAL), aim=percent(DIRECT_GOAL),
            metric=OPERATOR, also=(ELAPSED,),
            conf={**parallel_conf(scale, workers), **DIRECT}, parallel=workers,
            arms=ahead(scale, workers=DIRECT_WORKERS),
        )  # fmt: skip


def tpch_cases(server: Server, scale: Scale) -> Iterator[Case]:
    for query in scale.tpch_queries:
        yield Case(
            "tpch", server.name, f"q{query:02}", TPCH, query=query,
            goal=round(1 / TPCH_QUERY_GOAL, 3), aim=f"≤ {TPCH_QUERY_GOAL} of the time",
            also=(OPERATOR,), conf=SERVER_DEFAULTS,
            # Everything else is default.  At scale 1 no table is as large as the
            # default of this one, and there would be nothing to measure.
            arms={LOOKAHEAD: {"pg_lookahead.min_table_size": LEAST_TABLE_SIZE}},
        )  # fmt: skip


def vacuum_cases(server: Server, scale: Scale) -> Iterator[Case]:
    yield from _vacuum_cases("vacuum", server, scale, DEAD_TABLE, VACUUM_GOAL)


def vacuum_wal_cases(server: Server, scale: Scale) -> Iterator[Case]:
    # 18 has no service, and needs none for this.
    yield Case(
        "vacuum-wal", server.name, "buffered", DEAD_TABLE,
        goal=VACUUM_GOAL, aim=at_least(VACUUM_GOAL), flush_us=SLOW_FLUSH_US,
        arms=ahead(scale) if server.major < 18 else {}, service=server.major < 18,
    )  # fmt: skip


def vacuum_index_cases(server: Server, scale: Scale) -> Iterator[Case]:
    # No index of the benchmark is as large as the default.
    small = replace(scale, small=True)
    yield from _vacuum_cases("vacuum-index", server, small, FEW_DEAD_TABLE, VACUUM_INDEX_GOAL)


def _vacuum_cases(
    group: str, server: Server, scale: Scale, table: str, goal: float
) -> Iterator[Case]:
    yield Case(
        group, server.name, "buffered", table,
        goal=goal, aim=at_least(goal), arms=ahead(scale),
    )  # fmt: skip
    if server.major >= 16:
        yield Case(
            group, server.name, "direct I/O", table,
            goal=VACUUM_DIRECT_GOAL, aim=at_least(VACUUM_DIRECT_GOAL),
            conf=DIRECT, arms=ahead(scale, workers=DIRECT_WORKERS),
        )  # fmt: skip


def create_index_cases(server: Server, scale: Scale) -> Iterator[Case]:
    for workers in (0, 2):
        conf = {**parallel_conf(scale, 0), "max_parallel_maintenance_workers": str(workers)}
        if scale.small:
            conf["min_parallel_table_scan_size"] = "1MB"
        yield Case(
            "create-index", server.name, parallel_label(workers), ORDERED_TABLE,
            goal=CREATE_INDEX_GOAL, aim=at_least(CREATE_INDEX_GOAL),
            conf=conf, parallel=workers, arms=ahead(scale),
        )  # fmt: skip


def validate_index_cases(server: Server, scale: Scale) -> Iterator[Case]:
    # Nor is the index that is built here.
    small = replace(scale, small=True)
    buffered = Case(
        "validate-index", server.name, "buffered", ORDERED_TABLE,
        goal=VALIDATE_GOAL, aim=at_least(VALIDATE_GOAL), metric=INDEX_PART, also=(ELAPSED,),
        arms=ahead(small),
    )  # fmt: skip
    yield buffered
    if server.major >= 16:
        yield replace(
            buffered, label="direct I/O", conf=DIRECT, arms=ahead(small, workers=DIRECT_WORKERS)
        )


def bitmap_cases(server: Server, scale: Scale) -> Iterator[Case]:
    # From 18 the method is the default one: the service is off there, and the
    # stream reads into shared buffers itself.
    streams = server.major >= 18
    default = "16" if streams else "1"
    own = {} if streams else ahead(scale)[LOOKAHEAD]
    ways: dict[str, dict[str, str]] = {"": {}}
    if streams and server.io_uring:
        # As the patch that made them stream was measured; there is no page cache
        # then, so the index has to be in shared buffers.
        ways["direct I/O and io_uring, "] = {
            **DIRECT, "io_method": "io_uring", "shared_buffers": "512MB",
        }  # fmt: skip
    for way, conf in ways.items():
        yield Case(
            "bitmap", server.name, f"{way}against a prefetch window of 1", BITMAP_TABLE,
            goal=round(1 / BITMAP_GOAL, 3), aim=f"≤ {BITMAP_GOAL:.0%} of the waits",
            metric=WAITED, also=(ELAPSED,), service=not streams,
            conf={"enable_seqscan": "off", "enable_indexscan": "off", **conf},
            arms={STOCK: {WINDOW: "1"}, LOOKAHEAD: {WINDOW: default, **own}},
        )  # fmt: skip


def pgbench_cases(server: Server, scale: Scale) -> Iterator[Case]:
    yield Case(
        "pgbench", server.name, "beside a cold scan in a loop", ORDERED_TABLE,
        goal=PGBENCH_GOAL, aim=f"{at_least(PGBENCH_GOAL)} of the tps",
        # Everything that pgbench touches fits, and the scan has a ring of its own.
        conf={"shared_buffers": "1GB"}, arms=ahead(scale),
    )  # fmt: skip


def index_scan_cases(server: Server, scale: Scale) -> Iterator[Case]:
    yield Case(
        "index-scan", server.name, f"{scale.random_rows:,} rows, direct I/O", RANDOM_TABLE,
        goal=INDEX_SCAN_GOAL, aim=at_least(INDEX_SCAN_GOAL),
        conf={**DIRECT, "max_worker_processes": str(RANDOM_WORKERS + 8)},
        arms=ahead(scale, workers=RANDOM_WORKERS),
    )  # fmt: skip


def kill_cases(server: Server, scale: Scale) -> Iterator[Case]:
    yield Case(
        "kill", server.name, f"{scale.kills} queries", ORDERED_TABLE,
        goal=1.0, aim="every answer right, service back",
        # Parallel scans begin as soon as they wait, on any device.
        conf=parallel_conf(scale, 2), arms=ahead(scale),
    )  # fmt: skip


_MAKERS = {
    "seqscan": seqscan_cases,
    "seqscan-direct": seqscan_direct_cases,
    "tpch": tpch_cases,
    "vacuum": vacuum_cases,
    "vacuum-wal": vacuum_wal_cases,
    "vacuum-index": vacuum_index_cases,
    "create-index": create_index_cases,
    "validate-index": validate_index_cases,
    "bitmap": bitmap_cases,
    "pgbench": pgbench_cases,
    "index-scan": index_scan_cases,
    "kill": kill_cases,
}

_NEEDS_DIRECT = ("seqscan-direct", "index-scan")
_ON_18 = ("seqscan", "vacuum-wal", "bitmap")


def runs_group(server: Server, group: str) -> bool:
    """Say whether a server has something to show in a group."""
    if server.major >= 18:
        return group in _ON_18
    return server.major >= 16 or group not in _NEEDS_DIRECT


def cases(
    servers: Sequence[Server], scale: Scale, groups: Sequence[str]
) -> tuple[list[Case], list[str]]:
    """List the cases to run and the notes on what a reader must know of them."""
    found = [
        case
        for server in servers
        for group in GROUPS
        if group in groups and runs_group(server, group)
        for case in _MAKERS[group](server, scale)
    ]
    notes = [
        f"{server.name} has assertions enabled: its times mean nothing"
        for server in servers
        if server.assertions
    ]
    majors = {server.major for server in servers}
    if "tpch" in groups and majors & {15, 16, 17}:
        notes.append(
            "tpch: default settings but pg_lookahead.min_table_size = "
            f"{LEAST_TABLE_SIZE}; no table of scale 1 reaches the default of 1 GB"
        )
    notes += [
        f"{group}: pg_lookahead.min_table_size = {LEAST_TABLE_SIZE}; the index is"
        " smaller than the default of 1 GB"
        for group in ("vacuum-index", "validate-index")
        if majors & {15, 16, 17} and group in groups
    ]
    if majors & {16, 17} and any(case.conf.get("debug_io_direct") for case in found):
        notes.append(
            f"direct I/O: pg_lookahead.io_workers = {DIRECT_WORKERS}, "
            f"of random reads {RANDOM_WORKERS}"
        )
    return found, notes
