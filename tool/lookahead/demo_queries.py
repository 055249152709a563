"""The demo's queries: seven that may gain, and two that must not lose.

Each is an ordinary query of a shop.  The planner is held to index scans in
both arms (no sequential or bitmap scans), because on a table of this size it
would now and then read the whole table, and that is another story.
"""

from __future__ import annotations

import random
import statistics
from dataclasses import dataclass

from psycopg import sql

from .bench_measure import load_sql
from .demo_data import Size

LIMIT_QUERIES = 40
CACHED_REPEATS = 12

# A ratio this far from 1 is more than a busy machine does.
CLEARLY = 1.1


@dataclass(frozen=True)
class Query:
    """One line of the demo's table.

    expect says what an honest reader should look for: "gain" or "no loss".
    vectors: needs pgvector.  cached: everything is read before it is timed.
    """

    name: str
    title: str
    expect: str = "gain"
    vectors: bool = False
    cached: bool = False

    def statements(self, size: Size) -> list[sql.Composed]:
        """Return what one run executes, the same in every run."""
        if self.name == "limit":
            rng = random.Random(10)
            customers = rng.sample(range(500, size.customers // 2), LIMIT_QUERIES)
            return [load_sql("demo_query_limit", customer=c) for c in customers]
        if self.name == "cached":
            return [load_sql("demo_query_period")]
        return [load_sql(f"demo_query_{self.name}")]


QUERIES = (
    Query("history", "order history of 20 customers (random heap order)"),
    Query("in_list", "15 customers by IN list (random heap order)"),
    Query("newest", "2,000 newest orders of a product (backward)"),
    Query("join", "join driven by a range of products"),
    Query("index_only", "index-only scan, pages not all-visible"),
    Query("neighbours", "600 nearest articles (pgvector)", vectors=True),
    Query("period", "six weeks by time (in heap order)"),
    Query("limit", f"last 10 orders, {LIMIT_QUERIES} customers", expect="no loss"),
    Query("cached", "six weeks again, all in shared buffers", expect="no loss", cached=True),
)

# The query whose EXPLAIN is shown before and after.
SHOWN = "history"


def _beats(one: list[float], other: list[float]) -> bool:
    """Say if one arm was the faster one, beyond chance."""
    if len(one) <= 3:
        return max(one) < min(other)
    return sum(a < b for a, b in zip(one, other)) >= len(one) - len(one) // 8


def judge(stock: list[float], lookahead: list[float]) -> str:
    """Say what so few pairs of runs can say.

    Of two or three the only safe statement is that every run of one arm beat
    every run of the other, and by more than a busy machine explains; of more,
    that all pairs say the same, or of eight all but one.  Where the medians are as far
    apart but the runs are not, they cannot tell.
    """
    ratio = statistics.median(stock) / statistics.median(lookahead)
    if ratio > CLEARLY and _beats(lookahead, stock):
        return "faster"
    if ratio < 1 / CLEARLY and _beats(stock, lookahead):
        return "slower"
    return "no difference" if 1 / CLEARLY <= ratio <= CLEARLY else "cannot tell"
