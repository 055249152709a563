"""The tables of `bench leaf`: BenchData's and those that only it needs.

The accounts of pgbench are there twice: those that are read cold are as many as
`built` has rows, and pgbench -S in shared buffers runs on two servers of its
own with few:

    leaf-<definition>            built, grown, pgbench's tables (large)
    leaf-<definition>-pgbench    pgbench's tables (small)
    leaf-<definition>-twin       the same, to run beside it
"""

from __future__ import annotations

import hashlib
from typing import Any

import psycopg
from psycopg import sql

from .bench_leaf import ACCOUNTS, BUILT, GROWN, LAST_KEY, Scale
from .bench_measure import SQL_FOLDER, load_sql
from .data import SEED, BenchData, Progress, definition_hash
from .servers import Server

PGBENCH_COPY = "-pgbench"

LOADER_FILES = ("bench_leaf_create", "bench_leaf_fill_built", "bench_leaf_fill_grown")


def data_name(scale: Scale) -> str:
    """Return the name of the data directory."""
    digest = hashlib.sha256(f"{scale.grown_rows} {LAST_KEY}".encode())
    digest.update(f"{scale.accounts_scale} {scale.pgbench_scale}".encode())
    for name in LOADER_FILES:
        digest.update((SQL_FOLDER / f"{name}.sql").read_bytes())
    return f"leaf-{definition_hash(scale.rows)}-{digest.hexdigest()[:10]}"


class LeafData(BenchData):
    """One server's tables for the benchmark of leaf pages."""

    def __init__(self, server: Server, scale: Scale, *, progress: Progress, copy: str = "") -> None:
        self.scale = scale
        super().__init__(server, scale.rows, progress=progress, copy=copy)

    def name(self) -> str:
        return data_name(self.scale)

    def _make_another(self, copy: str) -> BenchData:
        return LeafData(self.server, self.scale, progress=self.progress, copy=copy)

    def for_pgbench(self) -> BenchData:
        """Return the server that pgbench in shared buffers is measured on."""
        return self.another(PGBENCH_COPY)

    def _load(self, conn: psycopg.Connection[Any], name: str) -> None:
        if name == BUILT:
            self._load_leaves(conn, name, "bench_leaf_fill_built", {"rows": self.rows})
        elif name == GROWN:
            parts = {"rows": self.scale.grown_rows, "last": LAST_KEY}
            self._load_leaves(conn, name, "bench_leaf_fill_grown", parts)
        else:
            super()._load(conn, name)

    def _load_leaves(
        self, conn: psycopg.Connection[Any], name: str, fill: str, parts: dict[str, int]
    ) -> None:
        """Make one of the two tables; `grown` has its index before its rows."""
        self._say_loading(f"{name}, {parts['rows']:,} rows")
        table = sql.Identifier(name)
        index = sql.SQL("CREATE INDEX {} ON {} (a)").format(sql.Identifier(f"{name}_a"), table)
        steps = [load_sql(fill, table=name, **parts), index]
        conn.execute(sql.SQL("DROP TABLE IF EXISTS {}").format(table))
        # In the transaction that made the table no WAL has to be written.
        with conn.transaction():
            conn.execute("SELECT setseed(%s)", (SEED,))
            conn.execute(load_sql("bench_leaf_create", table=name))
            for step in reversed(steps) if name == GROWN else steps:
                conn.execute(step)
        conn.execute(sql.SQL("VACUUM (ANALYZE) {}").format(table))

    def bytes_of(self, table: str) -> int:
        """Return the size of a table with its indexes."""
        return self.bytes.get(table, 0)

    def describe(self) -> dict[str, Any]:
        """Leave out what pgbench made beside its accounts."""
        found = super().describe()
        kept = {
            name: size
            for name, size in found["relations"].items()
            if name == ACCOUNTS or not name.startswith("pgbench_")
        }
        return {**found, "relations": kept}
