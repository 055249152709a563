"""The cases of `bench leaf`: what is measured and what it should show.

Nothing here runs anything.  A `Case` is one line of the result: a query shape,
the server and settings it runs under, and its goals.  `cases()` lists them for
the servers at hand, `Scale` says how large they are (full or --quick).

Two tables, each with a B-tree on an integer `a`:

  built   numbers in order; the index was built by CREATE INDEX, so its leaf
          pages lie in the order of their keys
  grown   random numbers, half as many, inserted into an index that was there:
          leaf pages and table are in random order

The groups:

  index-only    a large share of the index, forward and backward; on 18 forward
                with direct I/O, too
  bitmap        a bitmap index scan of 30 % of `grown`, without its heap scan
  index-scan    100,000 rows of `grown`, table blocks included
  parallel      most of an index, counted by this process and two workers
  limit         index-only, LIMIT 1 to 100, from random places
  point         single keys
  accounts      a group for each of pgbench's accounts
  pgbench       pgbench -S in shared buffers
  pgbench-cold  pgbench -S with nothing cached
  cached        everything in shared buffers: look-ahead has nothing to win
"""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from .bench_result import LOOKAHEAD, STOCK
from .data import ACCOUNTS as ACCOUNTS
from .huge_pages import OF_TWO_SERVERS
from .servers import Server

GROUPS = (
    "index-only", "bitmap", "index-scan", "parallel", "limit", "point", "accounts",
    "pgbench", "pgbench-cold", "cached",
)  # fmt: skip

# Those that read the disk, in one data directory: they can run on a slow one.
READING_GROUPS = (
    "index-only", "bitmap", "index-scan", "parallel", "limit", "point", "accounts",
)  # fmt: skip

DEFAULT_ROWS = 10_000_000

# Tables.
BUILT = "built"
GROWN = "grown"

# Random keys of `grown` are from 0 to this.
LAST_KEY = 1_000_000_000

# Accounts of pgbench for each step of its scale.
ACCOUNTS_PER_SCALE = 100_000

# Beside the process that leads.
WORKERS = 2

# Kinds of nodes, as EXPLAIN calls them.
INDEX_ONLY = "Index Only Scan"
INDEX = "Index Scan"
BITMAP = "Bitmap Index Scan"

FORWARD, BACKWARD = "forward", "backward"
DIRECTIONS = (FORWARD, BACKWARD)

# What a case is judged by, as the numbers of a run are called.
ELAPSED = "elapsed_ms"
WAITED = "waited_ms"
INDEX_PART = "index_ms"

DIRECT = {"debug_io_direct": "data"}
CACHED = {"shared_buffers": "2GB"}
LEAFSCAN_OFF = {"pg_lookahead.leafscan": "off"}

# What a reader of the result has to know; it replaces what index scans say.
DESCRIPTION: dict[str, Any] = {
    "warm_up": "connection, a scan of the same kind of the table `warm`, EXPLAIN of the query",
    "waited": "time in which the backend neither ran nor was ready to run",
}


@dataclass(frozen=True)
class Goal:
    """The least that stock / look-ahead of one number may be.

    aim is the same in the words of a reader.
    """

    metric: str
    ratio: float
    aim: str


def at_least(ratio: float) -> Goal:
    """Return a goal for the time."""
    return Goal(ELAPSED, ratio, f"≥ {ratio:g}")


def waits_of(share: float) -> Goal:
    """Return a goal for the time waited: at most this share of stock's."""
    return Goal(WAITED, round(1 / share, 3), f"≤ {share:.0%} waits")


NEVER_SLOWER = at_least(0.98)
BACKWARD_GOALS = (at_least(4.0), waits_of(0.08))
FORWARD_GOALS = (at_least(1.0),)
DIRECT_GOALS = (at_least(2.5),)
GROWN_GOALS = (at_least(2.8), waits_of(0.12))
BITMAP_GOALS = (Goal(INDEX_PART, 2.0, "index part ≥ 2"),)
ACCOUNTS_GOALS = {FORWARD: (NEVER_SLOWER,), BACKWARD: (at_least(2.0),)}
BESIDE_HEAP_GOALS = (at_least(1.1),)


@dataclass(frozen=True)
class Scale:
    """How large a run is."""

    rows: int
    grown_rows: int
    # Of the rows of `built` and of the accounts; of the keys of `grown`.
    share: float
    bitmap_share: float
    scan_rows: int
    limits: tuple[int, ...]
    queries: int
    accounts_scale: int
    pgbench_scale: int
    pgbench_clients: tuple[int, ...]
    pgbench_turns: int
    transactions: int
    cached_rows: tuple[int, ...]
    cached_seconds: float

    def rows_of(self, table: str) -> int:
        """Return how many rows a table has."""
        if table == ACCOUNTS:
            return self.accounts_scale * ACCOUNTS_PER_SCALE
        return self.grown_rows if table == GROWN else self.rows

    def last_key_of(self, table: str) -> int:
        """Return the largest key there is."""
        return LAST_KEY if table == GROWN else self.rows_of(table)


def full(rows: int) -> Scale:
    """Return the whole table of the goals."""
    return Scale(
        rows=rows,
        grown_rows=rows // 2,
        share=0.9,
        bitmap_share=0.3,
        scan_rows=rows // 100,
        limits=(1, 10, 100),
        queries=2000,
        accounts_scale=max(1, rows // ACCOUNTS_PER_SCALE),
        pgbench_scale=20,
        pgbench_clients=(1, 2),
        pgbench_turns=8,
        transactions=20_000,
        cached_rows=(2_000, rows // 10),
        cached_seconds=0.4,
    )


def quick() -> Scale:
    """Return a smoke test: every road is walked once, nothing is measured."""
    return Scale(
        rows=200_000,
        grown_rows=100_000,
        share=0.9,
        bitmap_share=0.3,
        scan_rows=2_000,
        limits=(1, 100),
        queries=20,
        accounts_scale=1,
        pgbench_scale=1,
        pgbench_clients=(1,),
        pgbench_turns=1,
        transactions=100,
        cached_rows=(20_000,),
        cached_seconds=0.05,
    )


@dataclass(frozen=True)
class Case:
    """One case: a query shape, its settings, its goals.

    A run is one query over a share of the keys, or `queries` small ones at
    random keys (limit rows each, or one key where limit is None).  workers are
    those beside the process that leads.  conf are settings of both arms, arms
    those of one of them; loaded are the arms in which the library is.
    pair_factor asks for more pairs where runs are short.
    """

    group: str
    server: str
    label: str
    table: str
    goals: tuple[Goal, ...]
    kind: str = INDEX_ONLY
    direction: str = FORWARD
    share: float = 0.0
    limit: int | None = None
    queries: int = 1
    aggregate: str = ""
    clients: int = 0
    workers: int = 0
    conf: dict[str, str] = field(default_factory=dict)
    arms: dict[str, dict[str, str]] = field(default_factory=dict)
    loaded: tuple[str, ...] = (LOOKAHEAD,)
    also: tuple[str, ...] = ()
    same_blocks: bool = False
    pair_factor: int = 1

    @property
    def id(self) -> str:
        """Name the case within a run: stable, so that a run can be resumed."""
        return f"{self.group}/{self.server}/{self.label}"

    @property
    def goal(self) -> float:
        return self.goals[0].ratio

    @property
    def metric(self) -> str:
        return self.goals[0].metric

    def conf_of(self, arm: str, *, extension: bool = True) -> dict[str, str]:
        """Return the settings of one arm, beside the benchmark's common ones."""
        own = self.arms.get(arm, {}) if extension else {}
        return {**self.conf, **own}

    def as_dict(self) -> dict[str, Any]:
        aims = [goal.aim for goal in self.goals]
        if self.same_blocks:
            aims.append("no block more")
        return {"id": self.id, "goal": self.goal, "aim": ", ".join(aims), **asdict(self)}

    def range(self, scale: Scale) -> tuple[int, int]:
        """Return the first and last key of a run's query: the middle of them all."""
        last = scale.last_key_of(self.table)
        first = 1 + round(last * (1 - self.share) / 2)
        return first, first + round(last * self.share) - 1

    def keys(self, scale: Scale) -> list[int]:
        """Return the keys of a run's small queries, the same in every run.

        All of them are far enough from the end for any limit.
        """
        last = scale.last_key_of(self.table)
        rng = random.Random(f"{self.label} {last}")
        return [rng.randrange(1, last * 99 // 100) for _ in range(self.queries)]


def io_methods(server: Server) -> list[str]:
    """List the I/O methods of an 18 that direct I/O is measured with."""
    return ["worker", "io_uring"] if server.io_uring else ["worker"]


def index_only_cases(server: Server, scale: Scale) -> Iterator[Case]:
    for table, share, goals in (
        (BUILT, scale.share, {FORWARD: FORWARD_GOALS, BACKWARD: BACKWARD_GOALS}),
        (GROWN, 1.0, {FORWARD: GROWN_GOALS, BACKWARD: GROWN_GOALS}),
    ):
        for direction in DIRECTIONS:
            yield Case(
                "index-only", server.name, f"{table} {direction}", table, goals[direction],
                direction=direction, share=share, also=(WAITED,),
            )  # fmt: skip
    if server.major < 18:
        return
    for method in io_methods(server):
        yield Case(
            "index-only", server.name, f"{BUILT} {FORWARD}, direct I/O, {method}", BUILT,
            DIRECT_GOALS, share=scale.share, also=(WAITED,),
            conf={**DIRECT, "io_method": method},
        )  # fmt: skip


def bitmap_cases(server: Server, scale: Scale) -> Iterator[Case]:
    yield Case(
        "bitmap", server.name, f"{scale.bitmap_share:.0%} of {GROWN}", GROWN, BITMAP_GOALS,
        kind=BITMAP, share=scale.bitmap_share, also=(WAITED, ELAPSED),
    )  # fmt: skip


def index_scan_cases(server: Server, scale: Scale) -> Iterator[Case]:
    share = scale.scan_rows / scale.grown_rows
    rows = f"{scale.scan_rows:,} rows of {GROWN}"
    yield Case(
        "index-scan", server.name, f"{rows}, against heap look-ahead alone", GROWN,
        BESIDE_HEAP_GOALS, kind=INDEX, share=share, also=(WAITED,),
        arms={STOCK: LEAFSCAN_OFF}, loaded=(STOCK, LOOKAHEAD),
    )  # fmt: skip
    yield Case(
        "index-scan", server.name, f"{rows}, against stock", GROWN,
        FORWARD_GOALS, kind=INDEX, share=share, also=(WAITED,),
    )  # fmt: skip


def parallel_cases(server: Server, scale: Scale) -> Iterator[Case]:
    for table, share in ((BUILT, scale.share), (GROWN, 1.0)):
        yield Case(
            "parallel", server.name, f"{table}, {WORKERS} workers", table, FORWARD_GOALS,
            share=share, workers=WORKERS,
        )  # fmt: skip


def limit_cases(server: Server, scale: Scale) -> Iterator[Case]:
    for limit in scale.limits:
        yield Case(
            "limit", server.name, f"LIMIT {limit} of {GROWN}", GROWN, (NEVER_SLOWER,),
            limit=limit, queries=scale.queries, also=(WAITED,),
            same_blocks=limit == 1, pair_factor=2,
        )  # fmt: skip


def point_cases(server: Server, scale: Scale) -> Iterator[Case]:
    for kind in (INDEX_ONLY, INDEX):
        yield Case(
            "point", server.name, f"{kind.lower()} of {BUILT}", BUILT, (NEVER_SLOWER,),
            kind=kind, queries=scale.queries, also=(WAITED,),
            same_blocks=True, pair_factor=2,
        )  # fmt: skip


def accounts_cases(server: Server, scale: Scale) -> Iterator[Case]:
    for aggregate, kind in (("count(*)", INDEX_ONLY), ("sum(abalance)", INDEX)):
        for direction in DIRECTIONS:
            yield Case(
                "accounts", server.name, f"{aggregate} {direction}", ACCOUNTS,
                ACCOUNTS_GOALS[direction], kind=kind, direction=direction,
                share=scale.share, aggregate=aggregate, also=(WAITED,),
            )  # fmt: skip


def pgbench_cases(server: Server, scale: Scale) -> Iterator[Case]:
    for clients in scale.pgbench_clients:
        yield Case(
            "pgbench", server.name, f"{clients} client{'s' if clients > 1 else ''}", ACCOUNTS,
            (NEVER_SLOWER,), kind=INDEX, clients=clients,
            conf={"shared_buffers": OF_TWO_SERVERS}, pair_factor=6,
        )  # fmt: skip


def pgbench_cold_cases(server: Server, scale: Scale) -> Iterator[Case]:
    yield Case(
        "pgbench-cold", server.name, f"{scale.transactions:,} transactions", ACCOUNTS,
        (NEVER_SLOWER,), kind=INDEX, clients=1, same_blocks=True, pair_factor=2,
    )  # fmt: skip


def cached_cases(server: Server, scale: Scale) -> Iterator[Case]:
    for table in (BUILT, GROWN):
        for rows in scale.cached_rows:
            for direction in DIRECTIONS:
                yield Case(
                    "cached", server.name, f"{INDEX_ONLY.lower()}, {rows:,} rows of {table} "
                    f"{direction}", table, (NEVER_SLOWER,), direction=direction,
                    share=rows / scale.rows_of(table), conf=CACHED,
                )  # fmt: skip
    for kind, share in ((INDEX, scale.scan_rows / scale.grown_rows), (BITMAP, scale.bitmap_share)):
        yield Case(
            "cached", server.name, f"{kind.lower()}, {share:.0%} of {GROWN}", GROWN,
            (NEVER_SLOWER,), kind=kind, share=share, conf=CACHED,
        )  # fmt: skip


_MAKERS = {
    "index-only": index_only_cases,
    "bitmap": bitmap_cases,
    "index-scan": index_scan_cases,
    "parallel": parallel_cases,
    "limit": limit_cases,
    "point": point_cases,
    "accounts": accounts_cases,
    "pgbench": pgbench_cases,
    "pgbench-cold": pgbench_cold_cases,
    "cached": cached_cases,
}


def cases(
    servers: Sequence[Server], scale: Scale, groups: Sequence[str]
) -> tuple[list[Case], list[str]]:
    """List the cases to run and the notes on what a reader must know of them."""
    found = [
        case
        for server in servers
        for group in GROUPS
        if group in groups
        for case in _MAKERS[group](server, scale)
    ]
    notes = []
    for server in servers:
        if server.major >= 18 and not server.io_uring and "index-only" in groups:
            notes.append(f"{server.name} is built without io_uring: its case is left out")
        if server.assertions:
            notes.append(f"{server.name} has assertions enabled: its times mean nothing")
    return found, notes
