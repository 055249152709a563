"""Runs the cases of `bench extend`.

Both arms are one server on one data directory, restarted with the library or
without before every run.  The table is made anew in the tablespace of the case's
storage; the write-ahead log and the file that COPY reads are on the machine's
disk in both.
"""

from __future__ import annotations

import contextlib
import re
import shutil
import subprocess
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psycopg
from psycopg import sql

from . import privilege
from .bench_extend import (
    CONF,
    COPY_PARTS,
    COPY_SESSIONS,
    ROW_BYTES,
    ROW_SESSIONS,
    SPARE_BYTES_GOAL,
    WIDE_ROW_BYTES,
    LoadCase,
    Scale,
)
from .bench_index_scan import BLOCK
from .bench_measure import answer_digest, load_sql
from .bench_pairs import PairRunner, Progress, RunFailed
from .bench_result import ARMS, LOOKAHEAD
from .bench_store import Store
from .cluster import PORT, SUPERUSER, Cluster
from .servers import Server

Connection = psycopg.Connection[Any]

# How much is loaded where every page is looked at afterwards.
LOOKED_AT_BYTES = 256 << 20

# What may make a file longer, as strace prints it: name(fd<path>, ..., numbers).
TRACED = "pwrite64,pwritev,fallocate,ftruncate"
CALL = re.compile(r"(?P<name>\w+)\(\d+(?:<(?P<path>[^>]*)>)?, (?P<rest>.*)\) += (?P<got>\d+)")


def growing_calls(trace: str, file: str) -> int:
    """Count the calls of a trace that made *file*, or one of its continuations, longer.

    A file is as long as the furthest end that was written or allocated so far.
    """
    wanted = re.compile(re.escape(file) + r"(\.\d+)?$")
    longest: dict[str, int] = {}
    calls = 0
    for line in trace.splitlines():
        found = CALL.search(line)
        path = (found["path"] or "") if found else ""
        if not found or not wanted.search(path):
            continue
        numbers = [int(text) for text in re.findall(r"\b\d+\b", found["rest"])]
        if found["name"] == "fallocate":
            end = numbers[-2] + numbers[-1]
        elif found["name"] == "ftruncate":
            end = numbers[-1]
        else:
            end = numbers[-1] + int(found["got"])
        if end > longest.get(path, 0):
            longest[path] = end
            calls += 1
    return calls


class LoadRunner(PairRunner[LoadCase]):
    """Makes the runs of `bench extend`."""

    def __init__(
        self,
        store: Store,
        scale: Scale,
        *,
        extension: bool,
        progress: Progress,
    ) -> None:
        super().__init__(store, extension=extension, progress=progress)
        self.scale = scale
        self.clusters: dict[str, Cluster] = {}
        self.places: dict[str, Path] = {}

    def add(self, server: Server, places: dict[str, Path]) -> None:
        """Make the data directory of a server, with a tablespace on each storage."""
        cluster = Cluster(server, conf=CONF, preload=False)
        self.clusters[server.name] = cluster
        cluster.start()
        with cluster.connect() as conn:
            for storage, place in places.items():
                folder = place / f"{server.name}-{storage}"
                folder.mkdir()
                privilege.give(folder)
                conn.execute(
                    sql.SQL("CREATE TABLESPACE {} LOCATION {}").format(
                        sql.Identifier(storage), str(folder)
                    )
                )
            conn.execute("CREATE EXTENSION IF NOT EXISTS pg_freespacemap")

    def close(self) -> None:
        for cluster in self.clusters.values():
            with contextlib.suppress(psycopg.Error):
                self._drop_all(cluster)
            cluster.close()

    @staticmethod
    def _drop_all(cluster: Cluster) -> None:
        """Let go of the storages: what is mounted there goes before the data directory."""
        if not cluster.started:
            return
        with cluster.connect() as conn:
            conn.execute("DROP TABLE IF EXISTS loaded, source")
            for (name,) in conn.execute(
                "SELECT spcname FROM pg_tablespace WHERE spcname !~ '^pg_'"
            ).fetchall():
                conn.execute(sql.SQL("DROP TABLESPACE {}").format(sql.Identifier(name)))

    def _pair_of(self, group: str) -> Callable[[list[LoadCase], int], None]:
        return {"calls": self._calls, "size": self._size}.get(group, self._timed_pair)

    # -- runs ---------------------------------------------------------------------

    @contextlib.contextmanager
    def _started(self, case: LoadCase, arm: str) -> Iterator[tuple[Cluster, Connection]]:
        cluster = self.clusters[case.server]
        cluster.configure(CONF, preload=self._is_ahead(arm))
        cluster.restart()
        with cluster.connect() as conn:
            yield cluster, conn

    def _rows(self, case: LoadCase) -> int:
        width = WIDE_ROW_BYTES if case.group == "rows" else ROW_BYTES
        return self.scale.bytes_on(case.storage) // width

    def _create(self, conn: Connection, case: LoadCase) -> None:
        if case.group != "copy-parts":
            conn.execute(load_sql("bench_extend_create", tablespace=case.storage))
            return
        conn.execute(load_sql("bench_extend_create_parts", tablespace=case.storage))
        for number in range(COPY_PARTS):
            part = f"loaded_{number}"
            conn.execute(
                load_sql("bench_extend_create_part", part=part, parts=COPY_PARTS, number=number)
            )

    def _source(self, conn: Connection, case: LoadCase) -> Path:
        """Return the file that COPY reads; make it the first time."""
        rows = self._rows(case) // (COPY_SESSIONS if case.group == "copy-4" else 1)
        file = self.clusters[case.server].dir / f"source-{rows}.copy"
        if not file.exists():
            conn.execute(load_sql("bench_extend_source", rows=rows, file=sql.Literal(str(file))))
        return file

    def _load(self, cluster: Cluster, conn: Connection, case: LoadCase) -> Callable[[], None]:
        """Prepare a load; return what is to be timed."""
        if case.group == "insert":
            statement = load_sql("bench_extend_insert", rows=self._rows(case))
            return lambda: _ignore(conn.execute(statement))
        if case.group in ("copy", "copy-4", "copy-parts"):
            file = self._source(conn, case)
            statement = load_sql("bench_extend_copy", file=sql.Literal(str(file)))
            sessions = COPY_SESSIONS if case.group == "copy-4" else 1
            return lambda: _at_once(cluster, statement, sessions)
        if case.group == "rows":
            return lambda: self._single_rows(cluster, case)
        self._freeze(conn, self._source(conn, case))
        statement = load_sql("bench_extend_index", tablespace=case.storage)
        return lambda: _ignore(conn.execute(statement))

    @staticmethod
    def _freeze(conn: Connection, file: Path) -> None:
        """Load a table that nobody has to write again: its rows need no hint bits."""
        with conn.transaction():
            conn.execute("TRUNCATE loaded")
            conn.execute(load_sql("bench_extend_freeze", file=sql.Literal(str(file))))

    def _single_rows(self, cluster: Cluster, case: LoadCase) -> None:
        script = cluster.dir / "rows.sql"
        privilege.write(script, load_sql("bench_extend_row").as_string(None))
        turns = max(1, self._rows(case) // ROW_SESSIONS)
        command: list[str | Path] = [
            cluster.server.bindir / "pgbench", "-n", "-M", "prepared", "-f", script,
            "-c", str(ROW_SESSIONS), "-j", "2", "-t", str(turns),
            "-h", str(cluster.socket_dir), "-p", str(PORT), "-U", SUPERUSER, "postgres",
        ]  # fmt: skip
        done = privilege.run(command, cwd=cluster.dir, capture_output=True)
        if done.returncode:
            raise RunFailed(f"pgbench failed: {done.stderr.strip()}")

    def _timed_pair(self, batch: list[LoadCase], pair: int) -> None:
        (case,) = batch
        for arm in self._order(pair):
            if self.store.has_run(case.id, pair, arm):
                continue
            with self._started(case, arm) as (cluster, conn):
                settings = self.store.settings(conn)
                self._create(conn, case)
                timed = self._load(cluster, conn, case)
                conn.execute("CHECKPOINT")
                start = time.monotonic()
                timed()
                elapsed = (time.monotonic() - start) * 1000
                rows = conn.execute(load_sql("bench_extend_answer")).fetchall()
                found = conn.execute(load_sql("bench_extend_pages")).fetchone()
                assert found is not None
                conn.execute("DROP TABLE loaded")
            self._record(
                case, pair, arm, "see metadata", settings,
                elapsed_ms=round(elapsed, 3), answer=answer_digest([rows]),
                pages=found[0], spare=found[1],
            )  # fmt: skip

    # -- checks ---------------------------------------------------------------------

    def _calls(self, batch: list[LoadCase], pair: int) -> None:
        """Count the system calls that make a table longer, in both arms."""
        (case,) = batch
        if self.store.has_check(case.id):
            return
        if not shutil.which("strace"):
            self.store.note(f"{case.id}: not counted, strace is not installed")
            return
        found: dict[str, Any] = {}
        for arm in ARMS:
            try:
                found[arm] = self._growing_calls(case, arm)
            except TracingRefused as error:
                self.store.note(f"{case.id}: not counted, {error}")
                return
        found["ratio"] = round(found[ARMS[0]] / max(1, found[LOOKAHEAD]), 1)
        self.store.add({"type": "check", "cell": case.id, "found": found})
        self.progress(f"{case.id}  {found}")

    def _growing_calls(self, case: LoadCase, arm: str) -> int:
        with (
            # Not in a folder of the servers' user, who could put a link there.
            tempfile.TemporaryDirectory() as folder,
            self._started(case, arm) as (_, conn),
        ):
            self._create(conn, case)
            row = conn.execute("SELECT pg_relation_filepath('loaded')").fetchone()
            assert row is not None
            trace = Path(folder) / "trace"
            with _traced(conn.info.backend_pid, trace):
                conn.execute(load_sql("bench_extend_insert", rows=self._rows(case)))
            found = growing_calls(trace.read_text(errors="replace"), "/" + Path(row[0]).name)
            conn.execute("DROP TABLE loaded")
        return found

    def _size(self, batch: list[LoadCase], pair: int) -> None:
        """Compare small tables, and look at what is spare a second after a load."""
        (case,) = batch
        if self.store.has_check(case.id):
            return
        found: dict[str, Any] = {}
        for arm in ARMS:
            with self._started(case, arm) as (_, conn):
                conn.execute(load_sql("bench_extend_small", rows=10))
                small = conn.execute("SELECT pg_relation_size('loaded')").fetchone()
                conn.execute("DROP TABLE loaded")
                self._create(conn, case)
                rows = min(self._rows(case), LOOKED_AT_BYTES // ROW_BYTES)
                conn.execute(load_sql("bench_extend_insert", rows=rows))
                time.sleep(1)
                row = conn.execute(load_sql("bench_extend_pages")).fetchone()
                used = conn.execute(load_sql("bench_extend_used")).fetchone()
                assert small is not None
                assert row is not None
                assert used is not None
                found[arm] = {
                    "small_pages": small[0] // BLOCK, "pages": row[0], "spare": row[1],
                    # The page that was begun last may be in the map as empty.
                    "lost": max(0, row[0] - used[0] - row[1]),
                }  # fmt: skip
                conn.execute("DROP TABLE loaded")
        self.store.add({"type": "check", "cell": case.id, "found": found})
        self.progress(f"{case.id}  {found}")


def size_faults(found: dict[str, Any]) -> list[str]:
    """List what is not as it should be."""
    stock, ahead = (found[arm] for arm in ARMS)
    faults = []
    if stock["small_pages"] != ahead["small_pages"]:
        faults.append("a table of 10 pages has another size")
    if ahead["spare"] * BLOCK > SPARE_BYTES_GOAL:
        faults.append("more than 4 MB are spare")
    if ahead["lost"]:
        faults.append("empty pages are not in the free space map")
    return faults


def _ignore(_: object) -> None:
    return None


def _at_once(cluster: Cluster, statement: sql.Composed, sessions: int) -> None:
    """Run a statement in several sessions at once."""
    failures: list[Exception] = []
    connections = [cluster.connect() for _ in range(sessions)]

    def run(conn: Connection) -> None:
        try:
            conn.execute(statement)
        except psycopg.Error as error:
            failures.append(error)

    threads = [threading.Thread(target=run, args=(conn,)) for conn in connections]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for conn in connections:
        conn.close()
    if failures:
        raise RunFailed(f"a load failed: {failures[0]}")


class TracingRefused(RunFailed):
    """This machine does not let us trace another process."""


@contextlib.contextmanager
def _traced(pid: int, output: Path) -> Iterator[None]:
    """Trace the calls of a process that may make files longer."""
    command = ["strace", "-qq", "-y", "-s", "0", "-e", f"trace={TRACED}", "-o", str(output),
               "-p", str(pid)]  # fmt: skip
    tracer = subprocess.Popen(command, stderr=subprocess.DEVNULL)
    status = Path(f"/proc/{pid}/status")
    for _ in range(200):
        if "TracerPid:\t0\n" not in status.read_text():
            break
        time.sleep(0.05)
    else:
        tracer.terminate()
        raise TracingRefused("strace does not get hold of the session")
    try:
        yield
    finally:
        tracer.terminate()
        tracer.wait()
