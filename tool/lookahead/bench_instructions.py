"""`bench instructions`: what the library costs where it has nothing to do.

On a machine that others share, times vary by more than that.  Instructions do not: the server runs
under Valgrind (callgrind), which counts those of each process.  All data is in shared buffers, or,
where those are few, in the kernel's page cache; nothing waits for storage.  Each case is a
statement that a session executes n times and another 2n times; what the second has executed more,
divided by n, is the statement's price, without connecting, planning for the first time or filling
caches.  Repeated, it comes out the same to a few parts in ten thousand.

Instructions are not time.  A server that waits, or that has its memory elsewhere, is none of this.
"""

from __future__ import annotations

import re
import shutil
import statistics
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from . import privilege, stats, valgrind
from .bench_measure import load_sql
from .bench_result import ARMS, FAILED, LOOKAHEAD, STOCK, assemble, paired
from .bench_store import Store
from .cluster import Cluster, own_folder
from .errors import LookaheadError
from .report import Table
from .servers import Server

# Where the data is, and the least ratio of stock's instructions to look-ahead's.
BUFFERS = "shared buffers"
KERNEL = "page cache"
GOALS = {BUFFERS: 0.98, KERNEL: 0.97}

# Rows of each table, with a filler that makes them large enough for look-ahead.
ROWS = 20_000
PARTITIONS = 64

START_SECONDS = 600
OUTPUT_SECONDS = 60

SHARED_BUFFERS = {BUFFERS: "256MB", KERNEL: "1MB"}
CONF = {
    "autovacuum": "off",
    "jit": "off",
    "checkpoint_timeout": "1h",
    "max_wal_size": "4GB",
    "max_parallel_workers_per_gather": "0",
}

INDEX = {"enable_seqscan": "off", "enable_bitmapscan": "off"}
PLAIN = {**INDEX, "enable_indexonlyscan": "off"}
BITMAP = {"enable_seqscan": "off", "enable_indexscan": "off", "enable_indexonlyscan": "off"}
NESTED = {**PLAIN, "enable_hashjoin": "off", "enable_mergejoin": "off"}
SEQUENTIAL = {"enable_indexscan": "off", "enable_bitmapscan": "off", "enable_indexonlyscan": "off"}
# Otherwise a table of this size is none that is followed.
FOLLOWED = {**SEQUENTIAL, "pg_lookahead.min_table_size": "8MB"}

DESCRIPTION: dict[str, Any] = {
    "cold": "nothing is: all data is in shared buffers, or in the kernel's page cache",
    "warm_up": "each session reads all tables first",
    "arms": {STOCK: "library not loaded", LOOKAHEAD: "shared_preload_libraries; defaults"},
}


@dataclass(frozen=True)
class Statement:
    """What is executed, how often, and under which settings of the planner."""

    title: str
    times: int
    settings: Mapping[str, str] = field(default_factory=dict)


STATEMENTS = {
    "point": Statement("look-up by the primary key", 200),
    "prepared": Statement("the same, prepared", 400),
    "key": Statement("look-up by a key that is not unique", 200, PLAIN),
    "key_only": Statement("the same, index-only", 200, INDEX),
    "limit": Statement("first 10 rows in the order of an index", 200, PLAIN),
    "index": Statement("index scan, 2,000 rows", 20, PLAIN),
    "index_backward": Statement("index scan backward, 2,000 rows", 20, PLAIN),
    "index_only": Statement("index-only scan, 2,000 entries", 20, INDEX),
    "bitmap": Statement("bitmap heap scan, 2,000 rows", 20, BITMAP),
    "nested": Statement("nested loop, 500 inner look-ups", 20, NESTED),
    "nested_gist": Statement("nested loop, 100 inner look-ups of 5 rows by GiST", 20, NESTED),
    "loop": Statement(f"loop in PL/pgSQL over bitmap scans of {PARTITIONS} partitions", 10, BITMAP),
    "partitions": Statement(f"index scans of {PARTITIONS} partitions", 20, PLAIN),
    "sequential": Statement("sequential scan, too small to be followed", 10, SEQUENTIAL),
    "followed": Statement("sequential scan that is followed (15 to 17)", 10, FOLLOWED),
    "insert": Statement("INSERT of a row", 200),
    "insert_select": Statement("INSERT ... SELECT of 1,000 rows", 20),
    "update": Statement("UPDATE by the primary key", 100),
}
# Those that read enough to be measured where the kernel has the data.
READING = ("index", "index_backward", "index_only", "bitmap", "nested", "sequential", "followed")
QUICK = ("point", "index")


@dataclass(frozen=True)
class Scale:
    rows: int = ROWS


@dataclass(frozen=True)
class Case:
    server: str
    place: str
    name: str

    @property
    def id(self) -> str:
        return f"{self.server} {self.place} {self.name}"

    @property
    def goal(self) -> float:
        return GOALS[self.place]

    @property
    def statement(self) -> Statement:
        return STATEMENTS[self.name]

    def as_dict(self) -> dict[str, Any]:
        return {
            **asdict(self), "id": self.id, "group": "instructions", "goal": self.goal,
            "title": self.statement.title,
        }  # fmt: skip


def cases(servers: Sequence[Server], names: Sequence[str]) -> list[Case]:
    return [
        Case(server.name, place, name)
        for server in servers
        for place in GOALS
        for name in names
        if place == BUFFERS or name in READING
    ]


# ---------------------------------------------------------------------------
# Runs


def make_tables(server: Server, folder: Path) -> None:
    """Fill a data directory that each run gets a copy of."""
    with Cluster(server, conf=CONF, preload=False, data=folder) as cluster:
        create = load_sql("bench_instructions_create", rows=ROWS, partitions=PARTITIONS)
        cluster.psql(create.as_string(None))


class Counted:
    """A server whose processes are counted."""

    def __init__(self, cluster: Cluster) -> None:
        self.cluster = cluster

    def of_session(self, case: Case, times: int) -> int:
        """Return the instructions of a session that executes a statement so often."""
        with self.cluster.connect(prepare_threshold=None) as connection:
            pid = connection.info.backend_pid
            connection.execute(load_sql("bench_instructions_begin"))
            for name, value in case.statement.settings.items():
                connection.execute("SELECT set_config(%s, %s, false)", (name, value))
            statement = load_sql(f"bench_instructions_{case.name}")
            for _ in range(times):
                connection.execute(statement)
        return self._total(pid)

    def per_execution(self, case: Case) -> float:
        """Return the instructions of one execution, when all caches are filled."""
        times = case.statement.times
        # The first session writes the caches' files, and sets hint bits.
        self.of_session(case, 1)
        once, twice = (self.of_session(case, n * times) for n in (1, 2))
        return (twice - once) / times

    def _total(self, pid: int) -> int:
        """Return what was written when a process ended."""
        file = self.cluster.dir / f"{valgrind.COUNTS}.{pid}"
        end = time.monotonic() + OUTPUT_SECONDS
        while time.monotonic() < end:
            found = re.search(r"^totals: (\d+)", _text(file), re.MULTILINE)
            if found:
                return int(found.group(1))
            time.sleep(0.02)
        raise LookaheadError(f"Valgrind has counted nothing of process {pid}")


def _text(file: Path) -> str:
    return file.read_text() if file.exists() else ""


@contextmanager
def counted_server(server: Server, data: Path, place: str, *, preload: bool) -> Iterator[Counted]:
    """Start a server under Valgrind, on a copy of the data."""
    conf = {**CONF, "shared_buffers": SHARED_BUFFERS[place]}
    cluster = Cluster(server, conf=conf, preload=preload, start_seconds=START_SECONDS)
    cluster.wrapper = valgrind.counting_command(cluster.dir)
    privilege.copy_tree(data, cluster.data)
    with cluster:
        yield Counted(cluster)


def run(
    store: Store,
    servers: Sequence[Server],
    some: Sequence[Case],
    pairs: int,
    progress: Callable[[str], None],
) -> None:
    """Count all cases, pair by pair."""
    with own_folder() as folder:
        for server in servers:
            mine = [case for case in some if case.server == server.name]
            if not mine:
                continue
            data = folder / server.name
            make_tables(server, data)
            for pair in range(pairs):
                for arm in ARMS if pair % 2 == 0 else ARMS[::-1]:
                    left = [case for case in mine if not store.has_run(case.id, pair, arm)]
                    for case, found in _counted(server, data, left, arm):
                        run = {"cell": case.id, "pair": pair, "arm": arm, "instructions": found}
                        store.add({"type": "run", **run})
                        progress(f"{case.id}  pair {pair + 1}  {arm}  {found:,.0f} instructions")
            shutil.rmtree(data)


def _counted(
    server: Server, data: Path, some: Sequence[Case], arm: str
) -> Iterator[tuple[Case, float]]:
    """Count cases in one arm, on one server."""
    for place in GOALS:
        mine = [case for case in some if case.place == place]
        if not mine:
            continue
        with counted_server(server, data, place, preload=arm == LOOKAHEAD) as counted:
            for case in mine:
                yield case, counted.per_execution(case)


# ---------------------------------------------------------------------------
# The result


def case_result(case: Case, store: Store) -> dict[str, Any]:
    """Compare the arms of one case."""
    result = case.as_dict()
    pairs = paired(run for run in store.of("run") if run["cell"] == case.id)
    result["pairs"] = len(pairs)
    result["faults"] = [] if pairs else ["no complete pair of runs"]
    if not pairs:
        result["verdict"] = FAILED
        return result
    ratios = [stock["instructions"] / ahead["instructions"] for stock, ahead in pairs]
    for arm, side in zip(ARMS, zip(*pairs)):
        result[arm] = {"instructions": statistics.median(run["instructions"] for run in side)}
    result["ratios"] = ratios
    result["verdict"] = stats.MET if statistics.median(ratios) >= case.goal else stats.MISSED
    return result


def build_result(some: Sequence[Case], store: Store) -> dict[str, Any]:
    return assemble("instructions", store, [case_result(case, store) for case in some], [])


def tables(result: dict[str, Any]) -> list[Table]:
    """Return a table for each server and place."""
    found: dict[tuple[str, str], Table] = {}
    for case in result["cells"]:
        table = found.setdefault(
            (case["server"], case["place"]),
            Table(
                title=f"{case['server']}: instructions of one execution, all in {case['place']}",
                columns=["case", "stock", "look-ahead", "more", "ratio", "goal", "verdict"],
            ),
        )
        if "ratios" not in case:
            table.rows.append([case["title"], *"----", f"≥ {case['goal']}", case["verdict"]])
            continue
        stock, ahead = (case[arm]["instructions"] for arm in ARMS)
        low, high = min(case["ratios"]), max(case["ratios"])
        ratio = f"{statistics.median(case['ratios']):.4f} [{low:.4f}, {high:.4f}]"
        table.rows.append(
            [case["title"], f"{stock:,.0f}", f"{ahead:,.0f}", f"{ahead - stock:+,.0f}", ratio,
             f"≥ {case['goal']}", case["verdict"]]
        )  # fmt: skip
    return list(found.values())
