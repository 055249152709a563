"""The demo's measurements: every query cold, alternating, with and without.

A demo that shows only its best case convinces nobody, so the answers and the
plans of both arms are compared, and queries that cannot gain are in the list.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

import psycopg
from psycopg import sql
from psycopg.rows import dict_row

from .bench_measure import SESSION_COLUMNS, answer_digest, load_sql
from .bench_result import ARMS, LOOKAHEAD, STOCK
from .cluster import Cluster
from .demo_data import Size
from .demo_queries import CACHED_REPEATS, Query, judge

# The same in both arms, and shown to the reader.
DEMO_CONF = {
    "autovacuum": "off",
    "jit": "off",
    "track_io_timing": "on",
    "max_parallel_workers_per_gather": "0",
    "enable_seqscan": "off",
    "enable_bitmapscan": "off",
    "shared_buffers": "128MB",
    "checkpoint_timeout": "1h",
}

# While the data is made.  The files live for minutes: losing them is no loss.
LOAD_CONF = {
    "autovacuum": "off",
    "fsync": "off",
    "full_page_writes": "off",
    "wal_level": "minimal",
    "max_wal_senders": "0",
    "max_wal_size": "8GB",
    "checkpoint_timeout": "1h",
    "shared_buffers": "512MB",
}


@dataclass
class Run:
    """One execution of one query in one arm."""

    ms: float
    waits_ms: float
    blocks_read: int
    answer: str
    plan: list[str]
    cache: str
    lookahead: dict[str, int] | None = None


@dataclass
class Outcome:
    """All runs of one query."""

    query: Query
    runs: dict[str, list[Run]] = field(default_factory=lambda: {arm: [] for arm in ARMS})
    seconds: float = 0.0  # that its last pair took

    def median(self, arm: str, name: str) -> float:
        return float(statistics.median(getattr(run, name) for run in self.runs[arm]))

    @property
    def ratio(self) -> float:
        return self.median(STOCK, "ms") / self.median(LOOKAHEAD, "ms")

    @property
    def verdict(self) -> str:
        """Return judge()'s verdict, but give look-ahead no credit where it read nothing."""
        verdict = self._judged()
        return "cannot tell" if verdict == "faster" and self.read_nothing else verdict

    @property
    def pairs(self) -> int:
        return len(self.runs[STOCK])

    @property
    def is_doubtful(self) -> bool:
        """Return if more runs are wanted: few may well be slower, or overlap, by chance.

        So they may be faster where look-ahead read nothing.
        """
        judged = self._judged()
        return judged in ("cannot tell", "slower") or (self.read_nothing and judged == "faster")

    def _judged(self) -> str:
        return judge(*([run.ms for run in self.runs[arm]] for arm in ARMS))

    @property
    def read_nothing(self) -> bool:
        """Return if the counters of all runs are there, and say so."""
        seen = [run.lookahead for run in self.runs[LOOKAHEAD] if run.lookahead is not None]
        return bool(seen) and not any(run["blocks_issued"] for run in seen)

    @property
    def answers_agree(self) -> bool:
        return len({run.answer for runs in self.runs.values() for run in runs}) == 1

    @property
    def plans_agree(self) -> bool:
        return len({tuple(run.plan) for runs in self.runs.values() for run in runs}) == 1

    @property
    def counters(self) -> dict[str, int]:
        """Return the extension's counters of the last look-ahead run."""
        return self.runs[LOOKAHEAD][-1].lookahead or {}

    def as_dict(self) -> dict[str, Any]:
        return {
            "query": asdict(self.query),
            "ratio": self.ratio,
            "verdict": self.verdict,
            "answers_agree": self.answers_agree,
            "plans_agree": self.plans_agree,
            "runs": {arm: [asdict(run) for run in runs] for arm, runs in self.runs.items()},
        }


def without_planning(lines: Sequence[str]) -> list[str]:
    """Return EXPLAIN's lines without those about planning, and what is indented below them.

    On 15 to 17 what look-ahead did comes after them.
    """
    kept = []
    is_planning = False
    for line in lines:
        is_planning = line.startswith("Planning") or (is_planning and line.startswith(" "))
        if not is_planning:
            kept.append(line)
    return kept


class DemoRunner:
    """Restarts the private server between runs and measures one at a time."""

    def __init__(self, cluster: Cluster, size: Size, *, extension: bool) -> None:
        self.cluster = cluster
        self.size = size
        self.extension = extension

    def start(self, arm: str) -> str:
        """Start cold with or without the library; return how caches were dropped."""
        preload = self.extension and arm == LOOKAHEAD
        self.cluster.configure(DEMO_CONF, preload=preload)
        return self.cluster.cold()

    def connect(self) -> psycopg.Connection[Any]:
        conn = self.cluster.connect()
        conn.prepare_threshold = None
        return conn

    def settle(self, queries: Sequence[Query]) -> None:
        """Run every query once, so that no timed run is the first to do so.

        The first visit to a page after an UPDATE prunes it and marks dead index
        entries; whichever arm came first would pay for that and the other not.
        """
        self.cluster.configure(DEMO_CONF, preload=False)
        self.cluster.restart()
        with self.connect() as conn:
            for query in queries:
                self._execute(conn, query.statements(self.size))
            conn.execute("CHECKPOINT")

    def run(self, query: Query, arm: str) -> Run:
        """Run one query once, cold."""
        cache = self.start(arm)
        with self.connect() as conn:
            statements = query.statements(self.size)
            # Both read the catalog and the executor's code from disk before
            # anything is timed; neither reads a table of ours.
            plan = self.explain(conn, statements[0], "COSTS OFF")
            conn.execute(load_sql("demo_warm_up")).fetchall()
            repeats = 1
            if query.cached:
                self._execute(conn, statements)
                repeats = CACHED_REPEATS
            before = self._counters(conn, arm)
            spent = [self._execute(conn, statements) for _ in range(repeats)]
            after = self._counters(conn, arm)
        ahead = None
        if self.extension and arm == LOOKAHEAD:
            ahead = {name: int(after[name] - before[name]) for name in SESSION_COLUMNS}
            ahead["depth_max"] = int(after["depth_max"])
        return Run(
            # Cached, only other work of the machine makes a repetition slower.
            ms=min(ms for ms, _ in spent),
            waits_ms=(after["waits_ms"] - before["waits_ms"]) / repeats,
            blocks_read=int(after["blocks_read"] - before["blocks_read"]) // repeats,
            answer=answer_digest([rows for _, rows in spent]),
            plan=plan,
            cache=cache,
            lookahead=ahead,
        )

    @staticmethod
    def _execute(
        conn: psycopg.Connection[Any], statements: Sequence[sql.Composed]
    ) -> tuple[float, list[Any]]:
        start = time.perf_counter()
        rows = [conn.execute(statement).fetchall() for statement in statements]
        return (time.perf_counter() - start) * 1000, rows

    def _counters(self, conn: psycopg.Connection[Any], arm: str) -> dict[str, float]:
        conn.execute("SELECT pg_stat_force_next_flush()")
        with conn.cursor(row_factory=dict_row) as cur:
            found = dict(cur.execute(load_sql("demo_counters")).fetchone() or {})
            if self.extension and arm == LOOKAHEAD:
                found |= cur.execute("SELECT * FROM pg_lookahead_session()").fetchone() or {}
        return {name: float(value) for name, value in found.items()}

    @staticmethod
    def explain(conn: psycopg.Connection[Any], statement: sql.Composed, options: str) -> list[str]:
        """Return EXPLAIN's lines, without what no reader of a demo needs."""
        head = sql.SQL("EXPLAIN ({}) ").format(sql.SQL(options))
        return without_planning([line for (line,) in conn.execute(head + statement)])

    def explained(self, query: Query, arm: str) -> list[str]:
        """Return EXPLAIN (ANALYZE, BUFFERS) of a cold execution."""
        self.start(arm)
        with self.connect() as conn:
            (statement,) = query.statements(self.size)
            self.explain(conn, statement, "COSTS OFF")
            return self.explain(conn, statement, "ANALYZE, BUFFERS, COSTS OFF, TIMING OFF")

    def measure(
        self,
        queries: Sequence[Query],
        pairs: int,
        *,
        most: int,
        deadline: float,
        advance: Callable[[str], None],
    ) -> tuple[list[Outcome], int]:
        """Run all queries pair by pair; return outcomes and the pairs made.

        Two pairs are made in any case.  A further one is only begun when the
        last one shows that it ends before the deadline (time.monotonic()).
        More, so many if there is time, are made of what is doubtful then: all of them, as
        to stop where they please would choose what they say.
        """
        outcomes = [Outcome(query) for query in queries]
        made = 0
        for _ in range(pairs):
            for outcome in outcomes:
                self._pair(outcome, advance)
            made += 1
            took = sum(outcome.seconds for outcome in outcomes)
            if made >= 2 and time.monotonic() + took > deadline:
                break
        doubtful = [outcome for outcome in outcomes if outcome.is_doubtful]
        for _ in range(made, most):
            for outcome in doubtful:
                if time.monotonic() + outcome.seconds < deadline:
                    self._pair(outcome, advance)
        return outcomes, made

    def _pair(self, outcome: Outcome, advance: Callable[[str], None]) -> None:
        begun = time.monotonic()
        for arm in ARMS if outcome.pairs % 2 == 0 else ARMS[::-1]:
            advance(f"{outcome.query.name}, {arm}")
            outcome.runs[arm].append(self.run(outcome.query, arm))
        outcome.seconds = time.monotonic() - begun
