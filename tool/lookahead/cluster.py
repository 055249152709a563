"""A private server for tests, benchmarks and the demonstration.

It listens on a Unix socket in a folder that only we can enter, writes nothing
outside of it, and is gone at the end: also after an error, Ctrl-C or SIGTERM.
What a killed run leaves behind, the next run removes.
"""

from __future__ import annotations

import atexit
import contextlib
import fcntl
import os
import shutil
import signal
import subprocess
import tempfile
import time
from collections import deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import IO, Any

import psycopg

from . import paths, privilege, slow_storage, valgrind
from .errors import LookaheadError
from .servers import Server

SUPERUSER = "postgres"
LIBRARY = "pg_lookahead"

# The socket's name is all a port stands for: every cluster has its own folder.
PORT = 5432

# sockaddr_un.sun_path has 108 bytes, the last one a zero.
LONGEST_SOCKET_PATH = 107

START_SECONDS = 120
LOG_TAIL_LINES = 25

# The kernel empties its caches when this is written to.
DROP_CACHES = Path("/proc/sys/vm/drop_caches")

DEFAULT_CONF = {
    "listen_addresses": "",
    "shared_buffers": "128MB",
    # The data is thrown away; only crash tests need it, and say so.
    "fsync": "off",
    "log_line_prefix": "%m [%p] %q%a ",
    "timezone": "UTC",
    "log_timezone": "UTC",
}

OWNER_LOCK = ".owner"
TEMP_PREFIX = "pg-"

_running: set[Cluster] = set()


class Cluster:
    """One private server; a context manager that starts and stops it.

    `conf` are settings for postgresql.conf.  `preload` puts pg_lookahead into
    shared_preload_libraries, before what `conf` has there.  With `data`, the
    data directory is that folder: made if need be, and kept at the end.
    `wrapper` is a command to run the server program under; it is Valgrind when
    `lookahead test --valgrind` says so through the environment.
    """

    def __init__(
        self,
        server: Server,
        *,
        conf: Mapping[str, str] | None = None,
        preload: bool = True,
        data: Path | None = None,
        server_env: Mapping[str, str] | None = None,
        initdb_options: Sequence[str] = (),
        wrapper: Sequence[str] = (),
        start_seconds: int = START_SECONDS,
    ) -> None:
        self.server = server
        self.conf = dict(conf or {})
        self.preload = preload
        self.server_env = dict(server_env or {})
        self.initdb_options = list(initdb_options)
        self.wrapper = list(wrapper)
        self.start_seconds = start_seconds
        logs = valgrind.log_folder()
        if logs and not self.wrapper:
            self.wrapper = valgrind.command(server, logs)
            self.start_seconds *= valgrind.SLOWDOWN
        self.dir, self._owner = _own_folder()
        self.log = self.dir / "server.log"
        self.data = data or self.dir / "data"
        self.socket_dir = self.dir
        if len(str(self.dir / f".s.PGSQL.{PORT}")) > LONGEST_SOCKET_PATH:
            self.socket_dir = Path(tempfile.mkdtemp(prefix=TEMP_PREFIX))
            privilege.give(self.socket_dir)
        self.started = False
        self._closed = False

    # ------------------------------------------------------------------
    # Life

    def __enter__(self) -> Cluster:
        try:
            self.start()
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        value: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def init(self) -> None:
        """Make the data directory, unless it is there."""
        if (self.data / "PG_VERSION").exists() and (self.data / "global/pg_control").exists():
            return
        if self.data.exists():
            shutil.rmtree(self.data)
        # Within a folder that is the server's user's initdb makes it, as that user.
        if self.data.parent != self.dir:
            self.data.mkdir(parents=True, mode=0o700)
            privilege.give(self.data)
        privilege.require_readable(self.server.bindir, "a server")
        command: list[str | Path] = [
            self.server.bindir / "initdb", "--pgdata", self.data, "--username", SUPERUSER,
            "--auth", "trust", "--encoding", "UTF8", "--locale", "C", "--no-sync",
            "--data-checksums", *self.initdb_options,
        ]  # fmt: skip
        self._run(command, "initdb")

    def configure(self, conf: Mapping[str, str], *, preload: bool | None = None) -> None:
        """Replace the settings; they take effect with the next start."""
        self.conf = dict(conf)
        if preload is not None:
            self.preload = preload

    def start(self) -> None:
        """Start the server; raise with the end of its log if it does not."""
        if self.started:
            return
        self.init()
        self._write_conf()
        _running.add(self)
        command: list[str | Path] = [
            self.server.bindir / "pg_ctl", "start", "--wait", f"--timeout={self.start_seconds}",
            "--pgdata", self.data, "--log", self.log, "--silent",
        ]  # fmt: skip
        if self.wrapper:
            command += ["-p", self._wrapper_script()]
        # True even before it runs: an interrupt from here on must stop it.
        self.started = True
        try:
            # A session of its own keeps the terminal's Ctrl-C from the server.
            self._run(command, "the server did not start", start_new_session=True)
        except LookaheadError as error:
            self._kill()
            raise LookaheadError(f"{error}\n{self.log_tail()}") from None

    def stop(self, mode: str = "fast") -> None:
        """Stop the server: "smart", "fast" or "immediate" (a crash)."""
        if not self.started:
            return
        command: list[str | Path] = [
            self.server.bindir / "pg_ctl", "stop", "--wait", f"--timeout={self.start_seconds}",
            "--pgdata", self.data, "--mode", mode, "--silent",
        ]  # fmt: skip
        try:
            # What a crash has left may name a process of somebody else by now.
            if _postmaster(self.data) is not None:
                self._run(command, "the server did not stop")
        finally:
            self._kill()

    def restart(self, mode: str = "fast") -> None:
        """Stop the server if it runs, and start it with the current settings."""
        self.stop(mode)
        self.start()

    def close(self) -> None:
        """Stop the server and remove what is not to be kept."""
        if self._closed:
            return
        self._closed = True
        try:
            if self.started:
                kept = self.data.parent != self.dir
                self.stop("fast" if kept else "immediate")
        finally:
            if self.socket_dir != self.dir:
                shutil.rmtree(self.socket_dir, ignore_errors=True)
            shutil.rmtree(self.dir, ignore_errors=True)
            self._owner.close()

    def cold(self, relations: Iterable[str] | None = None) -> str:
        """Restart with empty caches; say how: "drop_caches" or "fadvise".

        Where the kernel's caches may not be dropped, the files of the data
        directory, or of these relations only, are taken out of them.
        """
        places = [self.data]
        if relations is not None:
            places = self._relation_files(relations)
        self.stop()
        os.sync()
        how = "fadvise"
        try:
            DROP_CACHES.write_text("3\n")
            how = "drop_caches"
        except OSError:
            for place in places:
                evict(place)
        self.start()
        return how

    # ------------------------------------------------------------------
    # Use

    def dsn(self, dbname: str = "postgres") -> str:
        return psycopg.conninfo.make_conninfo(
            host=str(self.socket_dir), port=PORT, dbname=dbname, user=SUPERUSER
        )

    def connect(
        self, dbname: str = "postgres", autocommit: bool = True, **options: Any
    ) -> psycopg.Connection[tuple[Any, ...]]:
        """Connect as the superuser; `options` are libpq's and psycopg's."""
        return psycopg.connect(self.dsn(dbname), autocommit=autocommit, **options)

    def psql(self, sql: str, dbname: str = "postgres") -> str:
        """Run a script with psql and return its output, unaligned."""
        command = [
            str(self.server.bindir / "psql"), "--no-psqlrc", "--quiet", "--no-align",
            "--tuples-only", "--set", "ON_ERROR_STOP=1", "--dbname", self.dsn(dbname),
        ]  # fmt: skip
        done = subprocess.run(
            command,
            input=sql,
            capture_output=True,
            text=True,
            check=False,
            env=privilege.environment(),
            cwd="/",
        )
        if done.returncode:
            raise LookaheadError(f"psql failed:\n{done.stderr.strip()}")
        return done.stdout

    def log_tail(self, lines: int = LOG_TAIL_LINES) -> str:
        """Return the end of the server's log."""
        if not self.log.exists():
            return ""
        with self.log.open(errors="replace") as file:
            return "".join(deque(file, lines))

    # ------------------------------------------------------------------
    # Inside

    def _run(self, command: Sequence[str | Path], failure: str, **options: Any) -> None:
        # Output goes to a file: a server that inherits a pipe keeps it open.
        with tempfile.TemporaryFile("w+") as output:
            done = privilege.run(
                command,
                cwd=self.dir,
                env=self.server_env,
                stdout=output,
                stderr=subprocess.STDOUT,
                **options,
            )
            if done.returncode:
                output.seek(0)
                raise LookaheadError(f"{failure} ({self.server.name}):\n{output.read().strip()}")

    def _write_conf(self) -> None:
        settings = {**DEFAULT_CONF, "unix_socket_directories": str(self.socket_dir), **self.conf}
        settings["port"] = str(PORT)
        if self.preload:
            others = settings.get("shared_preload_libraries", "").split(",")
            libraries = [LIBRARY, *(name.strip() for name in others if name.strip())]
            settings["shared_preload_libraries"] = ", ".join(dict.fromkeys(libraries))
        lines = []
        for name, value in settings.items():
            quoted = str(value).replace("'", "''")
            lines.append(f"{name} = '{quoted}'\n")
        privilege.write(self.data / "lookahead.conf", "".join(lines))
        main = self.data / "postgresql.conf"
        include = "include 'lookahead.conf'\n"
        if include not in main.read_text():
            privilege.write(main, include, append=True)

    def _wrapper_script(self) -> Path:
        script = self.dir / "wrapper.sh"
        words = " ".join([*self.wrapper, str(self.server.bindir / "postgres")])
        privilege.write(script, f'#!/bin/sh\nexec {words} "$@"\n', mode=0o755)
        return script

    def _relation_files(self, relations: Iterable[str]) -> list[Path]:
        files = []
        with self.connect() as connection:
            for name in relations:
                row = connection.execute(
                    "SELECT pg_relation_filepath(%s::regclass)", (name,)
                ).fetchone()
                if row and row[0]:
                    first = self.data / row[0]
                    files += [first, *first.parent.glob(f"{first.name}[._]*")]
        return files

    def _kill(self) -> None:
        """See to it that nothing of this cluster runs; forget that it did."""
        _kill_postmaster(self.data)
        self.started = False
        _running.discard(self)


def evict(place: Path) -> None:
    """Take a file, or every file of a folder, out of the kernel's page cache."""
    files = [place] if place.is_file() else [file for file in place.rglob("*") if file.is_file()]
    for file in files:
        with contextlib.suppress(OSError):
            descriptor = os.open(file, os.O_RDONLY)
            try:
                # Only clean pages can be dropped.
                os.fsync(descriptor)
                os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
            finally:
                os.close(descriptor)


def what_is_dropped() -> str | None:
    """Return what to say before caches are dropped; None where the kernel lets nobody."""
    if not os.access(DROP_CACHES, os.W_OK):
        return None
    return (
        "As root this drops the page cache of the whole machine, again and again: others on it"
        " read from disk meanwhile."
    )


def clear_up() -> None:
    """Remove what runs that were killed have left behind."""
    with paths.locked("tmp"):
        _remove_abandoned(paths.temp_root())


def _own_folder() -> tuple[Path, IO[str]]:
    """Make a folder that belongs to this process for as long as it lives."""
    root = paths.temp_root()
    privilege.require_readable(root, "data directories")
    # A folder without the lock looks abandoned to others.
    with paths.locked("tmp"):
        _remove_abandoned(root)
        place = Path(tempfile.mkdtemp(prefix=TEMP_PREFIX, dir=root))
        owner = (place / OWNER_LOCK).open("w")
        fcntl.flock(owner, fcntl.LOCK_EX)
    privilege.give(place)
    return place, owner


@contextlib.contextmanager
def own_folder() -> Iterator[Path]:
    """A folder beside those of servers; if this process is killed, the next run clears it up."""
    place, owner = _own_folder()
    try:
        yield place
    finally:
        shutil.rmtree(place, ignore_errors=True)
        owner.close()


def _remove_abandoned(root: Path) -> None:
    """Clear up after runs of this tool that were killed.

    A run holds a lock in its folder, which the kernel gives back however the
    run ends: a lock that we can take has no owner.
    """
    for place in root.glob(f"{TEMP_PREFIX}*"):
        with contextlib.suppress(OSError), _owner_lock(place) as lock:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            _kill_postmaster(place / "data")
            # What is mounted there may be a folder that is to be kept.
            if slow_storage.let_go(place):
                shutil.rmtree(place, ignore_errors=True)


def _owner_lock(place: Path) -> IO[str]:
    """Open the lock of a folder that a run of ours has made; OSError if it is not one.

    Others may write to the folder that it is in, and put a link there.
    """
    account = privilege.unprivileged()
    ours = {os.geteuid()} | ({account.uid} if account else set())
    for part in (place, place / "data"):
        if part.is_symlink() or (part.exists() and part.lstat().st_uid not in ours):
            raise PermissionError(f"{part} is not ours")
    return os.fdopen(os.open(place / OWNER_LOCK, os.O_RDWR | os.O_NOFOLLOW), "r+")


def _postmaster(data: Path) -> int | None:
    """Return the postmaster that runs on a data directory, or None.

    The number in its file may be another process's by now, but not the folder; a
    process that has ended and is not reaped has none.
    """
    try:
        pid = int((data / "postmaster.pid").read_text().split()[0])
        runs = privilege.working_folder(pid) == data.resolve()
    except (OSError, ValueError, IndexError):
        return None
    return pid if runs else None


def _kill_postmaster(data: Path) -> None:
    """Kill the postmaster of a data directory, and only that."""
    for number in (signal.SIGQUIT, signal.SIGKILL):
        for _ in range(100):
            pid = _postmaster(data)
            if pid is None:
                return
            with contextlib.suppress(OSError):
                os.kill(pid, number)
            time.sleep(0.05)


@atexit.register
def stop_all() -> None:
    """Stop every server that is still running; another Ctrl-C does not keep one from it."""
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    for cluster in list(_running):
        with contextlib.suppress(Exception):
            cluster.close()
    signal.signal(signal.SIGINT, before or signal.SIG_DFL)
