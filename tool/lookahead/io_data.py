"""The tables of `bench io-service`: BenchData's and those that only it needs.

VACUUM is measured on a server of its own.  What it cleans cannot be made dirty
again in the same way, so the data directory is kept twice, and before each run
the one that is used is replaced by a copy of the one that is not:

    <definition>-vacuum          the server runs here
    <definition>-vacuum-saved    as it was made, with dead rows everywhere

and the same for the table whose index matters (`-vacuum-index`).
"""

from __future__ import annotations

import contextlib
import hashlib
import shutil
import subprocess
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import psycopg
from psycopg import sql

from . import tpch
from .bench_io_service import BITMAP_TABLE, DEAD_TABLE, FEW_DEAD_TABLE, TPCH, Scale
from .bench_measure import SQL_FOLDER, load_sql
from .cluster import evict
from .data import BenchData, Progress, definition_hash
from .servers import Server

VACUUM_COPIES = {DEAD_TABLE: "-vacuum", FEW_DEAD_TABLE: "-vacuum-index"}

LOADER_FILES = (
    "bench_bitmap_create", "bench_bitmap_fill", "bench_delete", "bench_delete_few",
    *tpch.LOADER_FILES,
)  # fmt: skip


def data_name(scale: Scale) -> str:
    """Return the name of the data directory."""
    digest = hashlib.sha256(f"{scale.bitmap_rows} {scale.tpch_scale}".encode())
    for name in LOADER_FILES:
        digest.update((SQL_FOLDER / f"{name}.sql").read_bytes())
    return f"io-service-{definition_hash(scale.rows)}-{digest.hexdigest()[:10]}"


class ServiceData(BenchData):
    """One server's tables for the benchmark of the I/O service."""

    def __init__(self, server: Server, scale: Scale, *, progress: Progress, copy: str = "") -> None:
        self.scale = scale
        super().__init__(server, scale.rows, progress=progress, copy=copy)
        # What is mounted from one run to the next.
        self._storage = contextlib.ExitStack()

    def name(self) -> str:
        return data_name(self.scale)

    def _make_another(self, copy: str) -> BenchData:
        return ServiceData(self.server, self.scale, progress=self.progress, copy=copy)

    def _load(self, conn: psycopg.Connection[Any], name: str) -> None:
        if name == TPCH:
            self._say_loading(f"TPC-H, scale {self.scale.tpch_scale:g}")
            tpch.load(conn, self.scale.tpch_scale)
        elif name == BITMAP_TABLE:
            self._load_bitmap(conn, name)
        elif name == DEAD_TABLE:
            self._load_table(conn, name, "0", self.rows)
            conn.execute(load_sql("bench_delete", table=name))
        elif name == FEW_DEAD_TABLE:
            self._load_bitmap(conn, name)
            conn.execute(load_sql("bench_delete_few", table=name))
        else:
            super()._load(conn, name)

    def _load_bitmap(self, conn: psycopg.Connection[Any], name: str) -> None:
        self._say_loading(f"{name}, {5 * self.scale.bitmap_rows:,} rows")
        table = sql.Identifier(name)
        conn.execute(sql.SQL("DROP TABLE IF EXISTS {}").format(table))
        with conn.transaction():
            conn.execute(load_sql("bench_bitmap_create", table=name))
            conn.execute(load_sql("bench_bitmap_fill", table=name, rows=self.scale.bitmap_rows))
        conn.execute(sql.SQL("CREATE INDEX ON {} (a)").format(table))
        conn.execute(sql.SQL("VACUUM (ANALYZE) {}").format(table))

    def bytes_of(self, table: str) -> int:
        """Return the size of a table with its indexes, or of all of TPC-H's."""
        tables = tpch.TABLES if table == TPCH else (table,)
        return sum(self.bytes.get(name, 0) for name in tables)

    def describe(self) -> dict[str, Any]:
        """Leave out the tables that runs themselves make larger."""
        found = super().describe()
        kept = {n: size for n, size in found["relations"].items() if not n.startswith("pgbench_")}
        return {**found, "relations": kept}

    def evict(self, table: str, *, indexes: bool = False) -> None:
        """Take a table, and its indexes if wanted, out of the kernel's page cache."""
        for files in self.files(table)[: None if indexes else 1]:
            for file in files:
                evict(file)

    # -- a data directory that can be had again as it was ---------------------

    def for_vacuum(self, table: str) -> ServiceData:
        """Return the server that VACUUM of a table is measured on."""
        other = self.another(VACUUM_COPIES[table])
        assert isinstance(other, ServiceData)
        return other

    @property
    def _saved(self) -> Path:
        return self.home.with_name(f"{self.home.name}-saved")

    def ensure_saved(self, names: Iterable[str], *, extension: bool) -> None:
        """Make what is missing, and keep the data directory as it is then."""
        if self._saved.exists():
            self.restore()
        self.ensure(names, extension=extension)
        _copy(self.home, self._saved)

    def restore(self, read_us: int = 0, flush_us: int = 0) -> None:
        """Stop the server and put the data directory back as it was saved.

        It is on slow storage then, or its WAL is, if a read or a flush is to take so
        much longer.
        """
        self.stop()
        self._storage.close()
        _copy(self._saved, self.home)
        if read_us:
            self._storage.enter_context(self.on_slow_storage(read_us))
        if flush_us:
            self._storage.enter_context(self.wal_on_slow_storage(flush_us))

    def close(self) -> None:
        self._storage.close()
        super().close()


def _copy(source: Path, target: Path) -> None:
    """Replace a folder by a copy of another; half a copy never has its name."""
    part = target.with_name(f"{target.name}.part")
    for old in (part, target):
        if old.exists():
            shutil.rmtree(old)
    # Owners and modes stay; where the file system can share blocks it does.
    command = ["cp", "--archive", "--reflink=auto", str(source), str(part)]
    subprocess.run(command, check=True)
    part.rename(target)
