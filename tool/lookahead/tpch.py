"""TPC-H: its tables, and 22 questions about them.

The data is made by tpchgen-cli, a package of the Python registry, and goes
through a pipe into COPY.  It is that of the specification, row for row, so
answers can be compared with anybody's.  The queries ask the specification's
questions with its values, in words of our own (sql/tpch/q01.sql to q22.sql).  The
tables have their primary keys and no other index.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import psycopg
from psycopg import sql

from .bench_measure import SQL_FOLDER, load_sql
from .demo_data import statements
from .errors import LookaheadError

TABLES = (
    "region", "nation", "supplier", "customer", "part", "partsupp", "orders", "lineitem",
)  # fmt: skip
QUERIES = tuple(range(1, 23))
GENERATOR = "tpchgen-cli"
PIECE = 1 << 20

# What shapes the data; the queries do not.
LOADER_FILES = ("tpch/schema", "tpch/keys")


def generator() -> Path:
    """Return the program that makes the data, or say how to get it."""
    place = Path(sys.executable).parent / GENERATOR
    if not place.exists():
        raise LookaheadError(
            f"{GENERATOR} is not in the tool's Python environment: there is no package of it for"
            " this machine.\nLeave out the group with --only."
        )
    return place


def query(number: int) -> sql.Composed:
    """Return one of the 22 queries."""
    return load_sql(f"tpch/q{number:02}")


def question(number: int) -> str:
    """Return what a query asks, for a reader."""
    first, *_ = (SQL_FOLDER / f"tpch/q{number:02}.sql").read_text().splitlines()
    return first.removeprefix("-- ")


def load(conn: psycopg.Connection[Any], scale: float) -> None:
    """Make all tables, with keys, statistics and visibility map."""
    program = generator()
    for table in TABLES:
        conn.execute(sql.SQL("DROP TABLE IF EXISTS {}").format(sql.Identifier(table)))
    # In the transaction that made the tables no WAL has to be written.
    with conn.transaction():
        for text in statements("tpch/schema"):
            conn.execute(text.encode())
        for table in TABLES:
            _fill(conn, program, table, scale)
    for text in statements("tpch/keys"):
        conn.execute(text.encode())
    for table in TABLES:
        conn.execute(sql.SQL("VACUUM (ANALYZE) {}").format(sql.Identifier(table)))


def _fill(conn: psycopg.Connection[Any], program: Path, table: str, scale: float) -> None:
    # One thread: rows come in the order of their keys.
    command = [
        str(program), "csv", "--scale-factor", str(scale), "--tables", table,
        "--num-threads", "1", "--stdout", "--quiet",
    ]  # fmt: skip
    copy = sql.SQL("COPY {} FROM STDIN (FORMAT csv, HEADER)").format(sql.Identifier(table))
    with subprocess.Popen(command, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        try:
            with conn.cursor().copy(copy) as rows:
                while piece := process.stdout.read(PIECE):
                    rows.write(piece)
        except BaseException:
            process.kill()
            raise
    if process.returncode:
        raise LookaheadError(f"{GENERATOR} failed for {table} (exit status {process.returncode})")
