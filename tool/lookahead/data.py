"""The benchmark's tables: made once per server, kept in the cache folder.

Making seven tables of 1.1 GB takes minutes, so a data directory is kept per
server and definition (`bench-data/<server>/<hash>`), and a table is added to
it when a case first asks for it.  Settings change by restart only.

The definition: `t(a bigint, b text)`, fillfactor 20, rows in
the order of `i + fuzz * (random() - 0.5)`, an index on a, then VACUUM ANALYZE,
so that hint bits and the visibility map are set and no run writes to a page.
random() starts from a fixed seed: two loads give the same heap order.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import os
import shutil
import subprocess
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import IO, Any

import psycopg
from psycopg import sql

from . import paths, privilege, slow_storage
from .bench_measure import SQL_FOLDER, load_sql
from .cluster import Cluster
from .errors import LookaheadError
from .servers import Server

# The table every session scans before it is timed, so that what is read from
# disk in a timed query is data and not program code.
WARM_TABLE = "warm"
WARM_ROWS = 2000

SEED = 0.42
READ_SIZE = 1 << 20

# The same in both arms and all cases.  Nothing may write or check in the
# background while a run is timed; the rest is as the server comes.
COMMON_CONF = {
    "fsync": "on",
    "autovacuum": "off",
    "jit": "off",
    "track_io_timing": "on",
    "max_parallel_workers_per_gather": "0",
    "shared_buffers": "128MB",
    "checkpoint_timeout": "1h",
    "max_wal_size": "4GB",
    "wal_level": "minimal",
    "max_wal_senders": "0",
}

# Only while tables are made.
LOAD_CONF = {"fsync": "off", "maintenance_work_mem": "512MB", "work_mem": "512MB"}

# A server that only loads may keep its tables in memory and write them once.
LOAD_SHARED_BUFFERS = "1GB"

# With a scale behind it, the name of pgbench's tables.
PGBENCH = "pgbench "

# The one of them that is read.
ACCOUNTS = "pgbench_accounts"

LOADER_FILES = ("bench_create_table", "bench_fill_table")

Progress = Callable[[str], None]


def definition_hash(rows: int) -> str:
    """Return the name of a data set: it changes with anything that shapes it."""
    digest = hashlib.sha256(f"{rows} {SEED} {WARM_ROWS}".encode())
    for name in LOADER_FILES:
        digest.update((SQL_FOLDER / f"{name}.sql").read_bytes())
    return f"{rows}-{digest.hexdigest()[:10]}"


def pgbench_name(scale: int) -> str:
    """Name pgbench's tables of this scale, as ensure() knows them."""
    return f"{PGBENCH}{scale}"


def row_order(fuzz: str) -> sql.Composable:
    """Return the ORDER BY expression that gives a table its disorder."""
    if fuzz == "random":
        return sql.SQL("random()")
    return sql.SQL("i + {} * (random() - 0.5)").format(sql.Literal(int(fuzz)))


class BenchData:
    """One server's benchmark tables, and the server that runs on them."""

    def __init__(self, server: Server, rows: int, *, progress: Progress, copy: str = "") -> None:
        self.server = server
        self.rows = rows
        self.progress = progress
        self.bytes: dict[str, int] = {}
        self._others: dict[str, BenchData] = {}
        # How much longer a read takes than the disk's.
        self.read_us = 0
        self.home = paths.folder("bench-data", server.name) / (self.name() + copy)
        self._lock = self._take(self.home)
        self._slow = self.home.with_name(f"{self.home.name}-slow")
        self._slow_wal = self.home.with_name(f"{self.home.name}-slow-wal")
        # A server may run there on our files, left by a run that was killed.
        self._let_go(self._slow)
        self.cluster = Cluster(server, conf=COMMON_CONF, preload=False, data=self.home)
        if (self.home / "postmaster.pid").exists():
            # Ours, as we hold the lock: left by a run that was killed.
            self.cluster.started = True
            self.cluster.stop()
            # Its number may be another process's by now, and nothing would start.
            (self.home / "postmaster.pid").unlink(missing_ok=True)
        self._let_go(self._slow_wal)

    @staticmethod
    def _let_go(folder: Path) -> None:
        """Unmount and remove what a run that was killed has left of slow storage."""
        if not slow_storage.let_go(folder):
            raise LookaheadError(f"{folder} is mounted, and cannot be unmounted")
        shutil.rmtree(folder, ignore_errors=True)

    def name(self) -> str:
        """Return the name of the data directory."""
        return definition_hash(self.rows)

    def another(self, copy: str) -> BenchData:
        """Return the same kind of data on a server of its own, made when first asked for."""
        if copy not in self._others:
            self._others[copy] = self._make_another(copy)
        return self._others[copy]

    def _make_another(self, copy: str) -> BenchData:
        return BenchData(self.server, self.rows, progress=self.progress, copy=copy)

    def twin(self) -> BenchData:
        """Return a second server of the same kind, to run beside this one."""
        return self.another("-twin")

    @staticmethod
    def _take(home: Path) -> IO[str]:
        """Keep other runs out of a data directory for as long as we live."""
        # Who may read it may lock it.
        name = home.parent / f"{home.name}.lock"
        lock = os.fdopen(os.open(name, os.O_WRONLY | os.O_CREAT, 0o600), "w")
        os.fchmod(lock.fileno(), 0o600)
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            lock.close()
            raise LookaheadError(f"another benchmark is using {home}") from None
        return lock

    @property
    def folder(self) -> Path:
        return self.cluster.data

    def start(self, conf: dict[str, str], *, preload: bool, cold: bool) -> str:
        """(Re)start with these settings; return the state of the caches."""
        self.cluster.configure({**COMMON_CONF, **conf}, preload=preload)
        if cold:
            return self.cluster.cold()
        self.cluster.restart()
        return "page cache"

    @contextlib.contextmanager
    def on_slow_storage(self, read_us: int) -> Iterator[None]:
        """Run the server as if each read of its disk took so much longer."""
        self.stop()
        with slow_storage.mounted(
            self._slow,
            read_us=read_us,
            write_us=0,
            allocate_us=0,
            behind=self.home,
            log=self.progress,
        ) as place:
            self.cluster.data = place
            self.read_us = read_us
            try:
                yield
            finally:
                self.stop()
                self.cluster.data = self.home
                self.read_us = 0

    @contextlib.contextmanager
    def wal_on_slow_storage(self, flush_us: int) -> Iterator[None]:
        """Run the server as if each flush of its WAL took so much longer.

        The data directory has no WAL afterwards: it must be one that is put back.
        """
        self.stop()
        with slow_storage.mounted(
            self._slow_wal,
            read_us=0,
            write_us=0,
            allocate_us=0,
            flush_us=flush_us,
            log=self.progress,
        ) as place:
            wal = self.home / "pg_wal"
            privilege.copy_tree(wal, place / "pg_wal")
            shutil.rmtree(wal)
            wal.symlink_to(place / "pg_wal")
            try:
                yield
            finally:
                self.stop()

    def stop(self) -> None:
        self.cluster.stop()

    def close(self) -> None:
        """Stop the server for good; the data directory stays."""
        for other in self._others.values():
            other.close()
        self.cluster.close()
        self._lock.close()

    def connect(self, *, library: bool = False) -> psycopg.Connection[Any]:
        """Open a session; library loads the extension into this session only."""
        options = "-c session_preload_libraries=pg_lookahead" if library else ""
        conn = self.cluster.connect(options=options)
        # A prepared statement would be planned differently on its sixth run.
        conn.prepare_threshold = None
        return conn

    def dsn(self) -> str:
        return self.cluster.dsn("postgres")

    def ensure(self, names: Iterable[str], *, extension: bool) -> None:
        """Make whatever is missing, then leave the server stopped.

        A table counts as there once its row is in bench_loaded, which is
        written after its VACUUM: a load that was interrupted is made again.
        """
        conf = {**LOAD_CONF, "shared_buffers": LOAD_SHARED_BUFFERS}
        self.start(conf, preload=extension, cold=False)
        with self.connect() as conn:
            conn.execute("CREATE TABLE IF NOT EXISTS bench_loaded (name text PRIMARY KEY)")
            conn.execute("CREATE EXTENSION IF NOT EXISTS pg_prewarm")
            if extension:
                # The scripts may have changed since the data was made.
                conn.execute("DROP EXTENSION IF EXISTS pg_lookahead CASCADE")
                conn.execute("CREATE EXTENSION pg_lookahead")
            there = {name for (name,) in conn.execute("SELECT name FROM bench_loaded")}
            for name in [WARM_TABLE, *names]:
                if name not in there:
                    self._load(conn, name)
                    self._loaded(conn, name)
            self.bytes = {
                name: heap + index
                for name, heap, index in conn.execute(load_sql("bench_relations"))
            }
        self.stop()
        subprocess.run(["sync"], check=True)

    def _load(self, conn: psycopg.Connection[Any], name: str) -> None:
        """Make what this name stands for."""
        if name.startswith(PGBENCH):
            self._load_pgbench(conn, int(name.removeprefix(PGBENCH)))
        elif name == WARM_TABLE:
            self._load_table(conn, name, "0", WARM_ROWS)
        else:
            self._load_table(conn, name, name.removeprefix("t_"), self.rows)

    def _load_table(self, conn: psycopg.Connection[Any], name: str, fuzz: str, rows: int) -> None:
        self._say_loading(f"{name}, {rows:,} rows")
        table = sql.Identifier(name)
        conn.execute(sql.SQL("DROP TABLE IF EXISTS {}").format(table))
        # In the transaction that made the table no WAL has to be written.
        with conn.transaction():
            conn.execute("SELECT setseed(%s)", (SEED,))
            conn.execute(load_sql("bench_create_table", table=name))
            conn.execute(load_sql("bench_fill_table", table=name, rows=rows, order=row_order(fuzz)))
        conn.execute(sql.SQL("CREATE INDEX ON {} (a)").format(table))
        conn.execute(sql.SQL("VACUUM (ANALYZE) {}").format(table))

    def _load_pgbench(self, conn: psycopg.Connection[Any], scale: int) -> None:
        self._say_loading(f"pgbench, scale {scale}")
        command = [
            str(self.server.bindir / "pgbench"), "--initialize", "--quiet",
            "--scale", str(scale), self.dsn(),
        ]  # fmt: skip
        subprocess.run(command, check=True, capture_output=True)
        conn.execute("DELETE FROM bench_loaded WHERE starts_with(name, %s)", (PGBENCH,))

    def _say_loading(self, what: str) -> None:
        self.progress(f"{self.server.name}: loading {what}")

    @staticmethod
    def _loaded(conn: psycopg.Connection[Any], name: str) -> None:
        conn.execute("CHECKPOINT")
        conn.execute("INSERT INTO bench_loaded VALUES (%s)", (name,))

    def describe(self) -> dict[str, Any]:
        """Return server version and the sizes of the tables; starts the server."""
        self.start({}, preload=False, cold=False)
        with self.connect() as conn:
            row = conn.execute("SELECT version()").fetchone()
            sizes = {
                name: {"heap_bytes": heap, "index_bytes": index}
                for name, heap, index in conn.execute(load_sql("bench_relations"))
            }
        self.stop()
        return {"version": row[0] if row else None, "relations": sizes}

    @staticmethod
    def prewarm(conn: psycopg.Connection[Any], table: str) -> None:
        """Bring a table and its indexes into shared buffers."""
        conn.execute(load_sql("bench_prewarm"), (table, table))

    @staticmethod
    def evict_buffers(conn: psycopg.Connection[Any], table: str) -> None:
        """Take a table and its indexes out of shared buffers; needs pg_buffercache of 18."""
        skipped = conn.execute(load_sql("bench_evict"), (table, table)).fetchall()
        if any(count for (count,) in skipped):
            raise LookaheadError(f"{table} is in use, and stays in shared buffers")

    def files(self, table: str) -> list[list[Path]]:
        """Return the files of a table, and of each of its indexes behind it."""
        with self.connect() as conn:
            found = conn.execute(load_sql("bench_files"), (table, table)).fetchall()
        places = [self.folder / name for (name,) in found]
        return [[place, *place.parent.glob(f"{place.name}[._]*")] for place in places]

    def read_into_page_cache(self, table: str, *, heap: bool = True) -> None:
        """Read a table's files and its indexes', so that the kernel has them."""
        for files in self.files(table)[0 if heap else 1 :]:
            for file in files:
                with file.open("rb", buffering=0) as stream:
                    while stream.read(READ_SIZE):
                        pass
