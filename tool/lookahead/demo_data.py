"""The demo's data: a small shop, made on the server, with a progress bar.

Made and not downloaded, so that the demo works anywhere, but shaped like real
tables: a time column that follows the heap (with late arrivals), customers and
products of which a few account for much of the trade, text of real width, and
an update after VACUUM that leaves pages which are not all-visible.  Where
pgvector is at hand there are articles with embeddings, too.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import psycopg
from psycopg import sql
from rich.progress import Progress, TaskID

from .bench_measure import SQL_FOLDER, load_sql

# Rows per INSERT: a step of the progress bar, half a second at most.
CHUNK = 200_000

# Repeatable data: every chunk starts its random numbers from its own number.
SEEDS = 1_000_000


@dataclass(frozen=True)
class Size:
    """How much is loaded, and the disk space it takes with its indexes."""

    orders: int
    customers: int
    products: int
    articles: int
    disk_mb: int

    @property
    def rows(self) -> int:
        return self.orders + self.customers + self.products + self.articles


FULL = Size(orders=6_000_000, customers=200_000, products=100_000, articles=120_000, disk_mb=3500)
QUICK = Size(orders=650_000, customers=60_000, products=30_000, articles=25_000, disk_mb=700)


def has_pgvector(conn: psycopg.Connection[Any]) -> bool:
    query = "SELECT FROM pg_available_extensions WHERE name = 'vector'"
    return conn.execute(query).fetchone() is not None


def statements(name: str) -> list[str]:
    """Return the statements of sql/<name>.sql, comments stripped."""
    lines = (SQL_FOLDER / f"{name}.sql").read_text().splitlines()
    text = "\n".join(line for line in lines if not line.startswith("--"))
    return [part.strip() for part in text.split(";") if part.strip()]


def _chunks(rows: int) -> Iterator[tuple[int, int]]:
    for first in range(1, rows + 1, CHUNK):
        yield first, min(first + CHUNK - 1, rows)


class Loader:
    """Makes the tables of one demo and moves its progress bar."""

    def __init__(self, conn: psycopg.Connection[Any], size: Size, progress: Progress) -> None:
        self.conn = conn
        self.size = size
        self.progress = progress
        self.vectors = has_pgvector(conn)
        # Indexes and VACUUM take about as long as the rows; count them as such.
        self.finish = [(text, size.orders // 8) for text in statements("demo_indexes")]
        if self.vectors:
            more = statements("demo_articles_indexes")
            self.finish += [(text, size.articles * 2) for text in more]
        work = size.rows + sum(weight for _, weight in self.finish)
        self.task: TaskID = progress.add_task("loading", total=work)

    def load(self) -> None:
        """Create, fill and index everything; the connection is in autocommit."""
        self.conn.execute("SET maintenance_work_mem = '512MB'")
        # Without WAL: the tables are filled in the transaction that makes them.
        with self.conn.transaction():
            for text in statements("demo_schema"):
                self._execute(text)
            size = self.size
            self._fill("customers", size.customers)
            self._fill("products", size.products)
            self._fill(
                "orders", size.orders,
                orders=size.orders, customers=size.customers, products=size.products,
            )  # fmt: skip
        if self.vectors:
            self.conn.execute("CREATE EXTENSION IF NOT EXISTS vector")
            with self.conn.transaction():
                for text in statements("demo_articles_schema"):
                    self._execute(text)
                self._fill("articles", self.size.articles)
        for text, weight in self.finish:
            self.progress.update(self.task, description=_short(text))
            self._execute(text)
            self.progress.advance(self.task, weight)
        self.progress.update(self.task, description="loaded")

    def _execute(self, text: str) -> None:
        self.conn.execute(text.encode())

    def _fill(self, table: str, rows: int, **parts: int) -> None:
        self.progress.update(self.task, description=f"filling {table}")
        for first, last in _chunks(rows):
            self.conn.execute("SELECT setseed(%s)", (first % SEEDS / SEEDS,))
            self.conn.execute(load_sql(f"demo_{table}", first=first, last=last, **parts))
            self.progress.advance(self.task, last - first + 1)

    def bytes(self) -> int:
        """Return the size of all tables and indexes."""
        query = sql.SQL("SELECT sum(pg_total_relation_size(oid)) FROM pg_class WHERE {}").format(
            sql.SQL("relkind = 'r' AND relnamespace = 'public'::regnamespace")
        )
        row = self.conn.execute(query).fetchone()
        return int(row[0]) if row else 0


def _short(text: str) -> str:
    """Name a statement by its first words, for the progress bar."""
    words = text.lower().split()
    return " ".join(words[:3]) if words[0] == "create" else " ".join(words[:2] + words[2:3])
