"""The cases of `bench index-scan`: what is measured and what it should show.

Nothing here runs anything.  A `Cell` is one line of the result: a query shape,
the server and settings it runs under, and its goal.  `cells()` lists them for
the servers at hand, `Scale` says how large they are (full or --quick).

The groups:

  random     100,000 rows of a randomly ordered table, per I/O method
  matrix     disorder x share of the rows x direction x I/O method
  limit      the first 1 to 100 rows from random places
  cached     everything in shared buffers: look-ahead has nothing to win
  pgbench    the same with pgbench -S
  pagecache  in the kernel's page cache but not in shared buffers
"""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from .huge_pages import OF_TWO_SERVERS
from .servers import Server

GROUPS = ("random", "matrix", "limit", "cached", "pgbench", "pagecache")

# Those that read the disk, in one data directory: they can run on a slow one.
READING_GROUPS = ("random", "matrix", "limit")

# Of a table with itself by its index: two scans take turns.
JOINS = ("merge join", "nested loop")
JOIN_FRACTION = 0.01

FUZZ = ("0", "1", "8", "64", "1000", "65536", "random")
DIRECTIONS = ("forward", "backward")

# Measured on the definition below: 1,638 bytes of each page are filled.
ROWS_PER_BLOCK = 22
BLOCK = 8192

# A cold run reads at least about this many blocks, if need be by several
# queries on ranges far apart: 136 blocks in order are read in 3 ms, and the
# rest of such a run would be the noise of a server that has just started.
BLOCKS_PER_RUN = 3000
MOST_QUERIES = 20

# The first major version that can take a table out of shared buffers.
EVICTS_SINCE = 18

# Goals of the group `random` by I/O method; the key None is servers before 18.
RANDOM_GOALS: dict[tuple[str | None, bool], float] = {
    ("worker", False): 4.0,
    ("sync", False): 4.5,
    ("io_uring", False): 3.2,
    ("io_uring", True): 3.8,
    (None, False): 4.0,
}
MATRIX_GOAL = 0.97
MATRIX_MEAN_GOAL = 1.7
LIMIT_GOAL = 0.98
LIMIT_100_GOAL = 1.5
CACHED_GOAL = 0.98
PAGECACHE_GOAL = 0.97
WASTED_GOAL = 0.02


@dataclass(frozen=True)
class Scale:
    """How large a run is."""

    rows: int
    random_rows: int
    fuzz: tuple[str, ...]
    fractions: tuple[float, ...]
    matrix_methods: tuple[str, ...]
    limits: tuple[int, ...]
    limit_queries: int
    limit_100_queries: int
    cached_fuzz: tuple[str, ...]
    cached_fractions: tuple[float, ...]
    cached_joins: tuple[str, ...]
    cached_seconds: float
    pgbench_scale: int
    pgbench_turns: int
    pgbench_clients: tuple[int, ...]
    pagecache_fuzz: tuple[str, ...]
    pagecache_fractions: tuple[float, ...]


def full(rows: int) -> Scale:
    """Return the whole table of the goals."""
    return Scale(
        rows=rows,
        random_rows=rows // 30,
        fuzz=FUZZ,
        fractions=(0.001, 0.01, 0.1, 0.33),
        matrix_methods=("worker", "sync", "io_uring"),
        limits=(1, 2, 4, 8, 100),
        limit_queries=1000,
        limit_100_queries=60,
        cached_fuzz=FUZZ,
        cached_fractions=(0.001, 0.01, 0.1, 0.33),
        cached_joins=JOINS,
        cached_seconds=1.2,
        pgbench_scale=20,
        pgbench_turns=8,
        pgbench_clients=(1, 2),
        pagecache_fuzz=FUZZ,
        pagecache_fractions=(0.001, 0.01, 0.1, 0.33),
    )


def quick() -> Scale:
    """Return a smoke test: every road is walked once, nothing is measured."""
    return Scale(
        rows=60_000,
        random_rows=2_000,
        fuzz=("0", "1000", "random"),
        fractions=(0.1,),
        matrix_methods=("worker",),
        limits=(1, 100),
        limit_queries=20,
        limit_100_queries=5,
        cached_fuzz=("random",),
        cached_fractions=(0.33,),
        cached_joins=JOINS,
        cached_seconds=0.05,
        pgbench_scale=1,
        pgbench_turns=1,
        pgbench_clients=(1,),
        pagecache_fuzz=("random",),
        pagecache_fractions=(0.1,),
    )


@dataclass(frozen=True)
class Cell:
    """One case: a query shape, its settings, its goal.

    fuzz names the table (`t_<fuzz>`); fraction or limit gives the rows of one
    query, and queries says how many of them, on different ranges, make up one
    run.  With join the range is joined with itself.  pair_factor asks for more
    pairs where single runs are short.
    """

    group: str
    server: str
    io_method: str | None
    direct_io: bool
    fuzz: str
    rows: int
    fraction: float | None
    limit: int | None
    clients: int | None
    direction: str
    queries: int
    goal: float
    same_blocks: bool = False
    pair_factor: int = 1
    join: str | None = None

    @property
    def table(self) -> str:
        return f"t_{self.fuzz}"

    @property
    def id(self) -> str:
        """Name the cell within a run: stable, so that a run can be resumed."""
        return f"{self.group}/{self.server}/{self.label}"

    @property
    def label(self) -> str:
        parts = []
        if self.io_method:
            parts.append(self.io_method + ("+direct" if self.direct_io else ""))
        if self.clients is not None:
            parts.append(f"{self.clients} client{'s' if self.clients > 1 else ''}")
            return " ".join(parts)
        if self.group not in ("random", "limit"):
            parts.append(f"fuzz {self.fuzz}")
        if self.join is not None:
            parts.append(self.join)
        if self.limit is not None:
            parts.append(f"LIMIT {self.limit}")
        elif self.group == "random":
            parts.append(f"{self.rows:,} rows")
        elif self.fraction is not None:
            parts.append(f"{self.fraction:.1%}".replace(".0%", "%"))
        if self.group not in ("random", "limit"):
            parts.append(self.direction)
        return " ".join(parts)

    @property
    def conf(self) -> dict[str, str]:
        """Settings this cell needs beside the common ones; the same in both arms."""
        conf = {}
        if self.io_method:
            conf["io_method"] = self.io_method
        if self.direct_io:
            conf["debug_io_direct"] = "data"
        if self.group == "cached":
            conf["shared_buffers"] = "2GB"
        if self.group == "pgbench":
            conf["shared_buffers"] = OF_TWO_SERVERS
        return conf

    def as_dict(self) -> dict[str, Any]:
        return {"id": self.id, "label": self.label, "conf": self.conf, **asdict(self)}

    def most_bytes(self, total: int) -> int:
        """Estimate the bytes of table and index that one run reads."""
        blocks = expected_blocks(self.fuzz, self.rows, total) * self.queries
        return BLOCK * (min(blocks, total // ROWS_PER_BLOCK) + self.rows * self.queries // 300)

    def ranges(self, total: int) -> list[tuple[int, int]]:
        """Return the key ranges (first, last) of one run's queries.

        They are the same in every run of the cell.  Several ranges are spread
        over the whole table and shuffled, so that the read-ahead of the one
        does not warm the next.
        """
        rng = random.Random(f"{self.fuzz} {self.rows} {self.limit}")
        if self.limit is not None:
            last = max(2, total - 50 * self.limit)
            keys = rng.sample(range(1, last), min(self.queries, last - 1))
            return [(key, total) for key in keys]
        step = (total - self.rows) // self.queries
        starts = [1 + step // 2 + i * step for i in range(self.queries)]
        rng.shuffle(starts)
        return [(start, start + self.rows - 1) for start in starts]


def expected_blocks(fuzz: str, rows: int, total: int) -> int:
    """Estimate the distinct heap blocks that *rows* neighbouring keys touch."""
    blocks = max(1, total // ROWS_PER_BLOCK)
    near = blocks if fuzz == "random" else (rows + int(fuzz)) / ROWS_PER_BLOCK
    near = max(1.0, min(near, blocks))
    return max(1, round(near * (1 - (1 - 1 / near) ** rows))) if near > 1 else 1


def queries_per_run(fuzz: str, rows: int, total: int) -> int:
    """Say how many ranges a cold run reads to be worth timing."""
    wanted = -(-BLOCKS_PER_RUN // expected_blocks(fuzz, rows, total))
    return max(1, min(wanted, MOST_QUERIES, (total // 2) // rows))


def pair_factor(fuzz: str, fraction: float) -> int:
    """Ask for more pairs where a run takes under 100 ms: the machine is noisy."""
    return 2 if fraction < 0.05 and fuzz != "random" else 1


def io_methods(server: Server) -> list[str | None]:
    """List the I/O methods of a server; [None] before 18 has only its own."""
    if server.major < 18:
        return [None]
    return ["worker", "sync", "io_uring"] if server.io_uring else ["worker", "sync"]


def _scan(group: str, server: Server, method: str | None, scale: Scale, **parts: Any) -> Cell:
    """Make a cell that scans a range, filling in what follows from the rest."""
    fraction = parts.get("fraction")
    rows = parts.pop("rows", None) or max(1, int(scale.rows * (fraction or 0)))
    given: dict[str, Any] = {
        "direct_io": False,
        "fraction": None,
        "limit": None,
        "clients": None,
        "direction": "forward",
        "queries": 1,
        **parts,
    }
    return Cell(group=group, server=server.name, io_method=method, rows=rows, **given)


def random_cells(server: Server, scale: Scale) -> Iterator[Cell]:
    for method in io_methods(server):
        for direct in (False, True) if method == "io_uring" else (False,):
            yield _scan(
                "random", server, method, scale,
                direct_io=direct, fuzz="random", rows=scale.random_rows,
                goal=RANDOM_GOALS[method, direct],
            )  # fmt: skip


def matrix_cells(server: Server, scale: Scale) -> Iterator[Cell]:
    for method in io_methods(server):
        if method is not None and method not in scale.matrix_methods:
            continue
        for fuzz in scale.fuzz:
            for fraction in scale.fractions:
                for direction in DIRECTIONS:
                    rows = max(1, int(scale.rows * fraction))
                    yield _scan(
                        "matrix", server, method, scale,
                        fuzz=fuzz, fraction=fraction, direction=direction,
                        queries=queries_per_run(fuzz, rows, scale.rows),
                        goal=MATRIX_GOAL, pair_factor=pair_factor(fuzz, fraction),
                    )  # fmt: skip


def limit_cells(server: Server, scale: Scale) -> Iterator[Cell]:
    for limit in scale.limits:
        small = limit < 100
        yield _scan(
            "limit", server, io_methods(server)[0], scale,
            fuzz="random", rows=limit, limit=limit,
            queries=scale.limit_queries if small else scale.limit_100_queries,
            goal=LIMIT_GOAL if small else LIMIT_100_GOAL,
            same_blocks=small, pair_factor=4 if small else 2,
        )  # fmt: skip


def cached_cells(server: Server, scale: Scale) -> Iterator[Cell]:
    for fuzz in scale.cached_fuzz:
        for fraction in scale.cached_fractions:
            for direction in DIRECTIONS:
                yield _scan(
                    "cached", server, io_methods(server)[0], scale,
                    fuzz=fuzz, fraction=fraction, direction=direction,
                    goal=CACHED_GOAL,
                )  # fmt: skip
    for join in scale.cached_joins:
        yield _scan(
            "cached", server, io_methods(server)[0], scale,
            fuzz=scale.cached_fuzz[0], fraction=JOIN_FRACTION, join=join,
            goal=CACHED_GOAL,
        )  # fmt: skip


def pgbench_cells(server: Server, scale: Scale) -> Iterator[Cell]:
    for clients in scale.pgbench_clients:
        yield _scan(
            "pgbench", server, io_methods(server)[0], scale,
            fuzz="pgbench", rows=1, clients=clients,
            goal=CACHED_GOAL, pair_factor=6,
        )  # fmt: skip


def pagecache_cells(server: Server, scale: Scale) -> Iterator[Cell]:
    for fuzz in scale.pagecache_fuzz:
        for fraction in scale.pagecache_fractions:
            for direction in DIRECTIONS:
                rows = max(1, int(scale.rows * fraction))
                # Before 18 each run starts a server; see bench_run.py.
                alone = server.major < EVICTS_SINCE
                yield _scan(
                    "pagecache", server, io_methods(server)[0], scale,
                    fuzz=fuzz, fraction=fraction, direction=direction,
                    queries=queries_per_run(fuzz, rows, scale.rows) if alone else 1,
                    goal=PAGECACHE_GOAL,
                    pair_factor=pair_factor(fuzz, fraction) if alone else 1,
                )  # fmt: skip


_MAKERS = {
    "random": random_cells,
    "matrix": matrix_cells,
    "limit": limit_cells,
    "cached": cached_cells,
    "pgbench": pgbench_cells,
    "pagecache": pagecache_cells,
}


def cells(
    servers: Sequence[Server], scale: Scale, groups: Sequence[str]
) -> tuple[list[Cell], list[str]]:
    """List the cells to run and the notes on what cannot be run here.

    The first server runs every group; further ones only `random`, which is the
    line of the table that asks for a second major version.
    """
    found: list[Cell] = []
    notes: list[str] = []
    for place, server in enumerate(servers):
        for group in groups if place == 0 else [g for g in groups if g == "random"]:
            found += _MAKERS[group](server, scale)
        if server.major >= 18 and not server.io_uring:
            notes.append(f"{server.name} is built without io_uring: its cells are left out")
        if server.assertions:
            notes.append(f"{server.name} has assertions enabled: its times mean nothing")
    return found, notes
