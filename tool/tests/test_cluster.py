"""Private servers: their life, their settings, and that they always end."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import psycopg
import pytest

from lookahead import cluster as cluster_module
from lookahead import paths, privilege
from lookahead.cluster import OWNER_LOCK, TEMP_PREFIX, Cluster
from lookahead.errors import LookaheadError
from lookahead.servers import Server


def postmaster(cluster: Cluster) -> int:
    return int((cluster.data / "postmaster.pid").read_text().split()[0])


def alive(pid: int) -> bool:
    """Return if a process runs; one that nobody has reaped yet does not."""
    status = Path(f"/proc/{pid}/stat")
    return status.exists() and status.read_text().rpartition(")")[2].split()[0] != "Z"


def test_life(embedded: Server) -> None:
    with Cluster(embedded, preload=False, conf={"work_mem": "7MB"}) as cluster:
        with cluster.connect() as connection:
            assert connection.execute("SHOW work_mem").fetchone() == ("7MB",)
            assert connection.execute("SHOW listen_addresses").fetchone() == ("",)
            assert connection.execute("SHOW data_checksums").fetchone() == ("on",)
            connection.execute("CREATE TABLE kept AS SELECT 1 AS i")
        pid = postmaster(cluster)
        if os.geteuid() == 0:
            assert Path(f"/proc/{pid}").stat().st_uid != 0
        cluster.configure({"work_mem": "9MB"})
        cluster.restart()
        assert not alive(pid)
        assert cluster.psql("SHOW work_mem; SELECT i FROM kept;") == "9MB\n1\n"
        pid = postmaster(cluster)
    assert not alive(pid)
    assert not cluster.dir.exists()


def test_crash_and_recovery(embedded: Server) -> None:
    with Cluster(embedded, preload=False, conf={"fsync": "on"}) as cluster:
        cluster.psql("CREATE TABLE kept AS SELECT 1 AS i")
        cluster.stop("immediate")
        cluster.start()
        assert cluster.psql("SELECT i FROM kept") == "1\n"
        assert "was not properly shut down" in cluster.log.read_text()


def test_settings_are_quoted(embedded: Server) -> None:
    conf = {"application_name": "it's"}
    with Cluster(embedded, preload=False, conf=conf) as cluster:
        assert cluster.psql("SELECT reset_val FROM pg_settings WHERE name = 'log_destination'")
        assert "it''s" in (cluster.data / "lookahead.conf").read_text()


def test_preload_keeps_other_libraries(embedded: Server) -> None:
    cluster = Cluster(embedded, conf={"shared_preload_libraries": "auto_explain"})
    cluster.init()
    cluster._write_conf()
    conf = (cluster.data / "lookahead.conf").read_text()
    cluster.close()
    assert "shared_preload_libraries = 'pg_lookahead, auto_explain'" in conf


def test_failure_shows_the_log(embedded: Server) -> None:
    cluster = Cluster(embedded, preload=False, conf={"shared_buffers": "nonsense"})
    with pytest.raises(LookaheadError, match="nonsense"), cluster:
        pass
    assert not cluster.dir.exists()


def test_psql_reports_errors(plain: Cluster) -> None:
    with pytest.raises(LookaheadError, match="division by zero"):
        plain.psql("SELECT 1/0")


def test_data_directory_of_ones_own(embedded: Server, readable: Path) -> None:
    home = readable / "data"
    for value in (1, 2):
        with Cluster(embedded, preload=False, data=home) as cluster:
            if value == 1:
                cluster.psql("CREATE TABLE kept AS SELECT 1 AS i")
            assert cluster.psql("SELECT i FROM kept") == "1\n"
    assert (home / "PG_VERSION").exists()
    assert not (home / "postmaster.pid").exists()


@pytest.mark.parametrize("relations", [None, ["big"]])
@pytest.mark.parametrize("how", ["drop_caches", "fadvise"])
def test_cold(
    embedded: Server,
    relations: list[str] | None,
    how: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    # Not the machine's: others run tests beside this one.
    switch = tmp_path / ("missing/switch" if how == "fadvise" else "switch")
    monkeypatch.setattr(cluster_module, "DROP_CACHES", switch)
    with Cluster(embedded, preload=False) as cluster:
        cluster.psql("CREATE TABLE big AS SELECT generate_series(1, 10000) AS i")
        assert cluster.cold(relations) == how
        assert switch.exists() == (how == "drop_caches")
        with cluster.connect() as connection:
            connection.execute("SET track_io_timing = on")
            plan = connection.execute(
                "EXPLAIN (ANALYZE, BUFFERS, COSTS OFF) SELECT count(*) FROM big"
            ).fetchall()
        assert any("read=" in line for (line,) in plan)


def test_server_environment(embedded: Server) -> None:
    with Cluster(embedded, preload=False, server_env={"LA_TEST": "seen"}) as cluster:
        environ = Path(f"/proc/{postmaster(cluster)}/environ").read_bytes()
    assert b"LA_TEST=seen" in environ.split(b"\0")


def test_wrapper(embedded: Server, readable: Path) -> None:
    witness = readable / "witness"
    wrapper = readable / "wrapper"
    wrapper.write_text(f'#!/bin/sh\necho wrapped > {witness}\nexec "$@"\n')
    wrapper.chmod(0o755)
    privilege.give(readable)
    with Cluster(embedded, preload=False, wrapper=[str(wrapper)]) as cluster:
        assert cluster.psql("SELECT 1") == "1\n"
    assert witness.read_text() == "wrapped\n"


def test_long_paths_get_another_socket_folder(
    embedded: Server, readable: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    deep = readable / ("x" * 90)
    deep.mkdir()
    monkeypatch.setenv("LOOKAHEAD_TMP", str(deep))
    with Cluster(embedded, preload=False) as cluster:
        assert cluster.psql("SELECT 1") == "1\n"
        assert not cluster.socket_dir.is_relative_to(deep)
    assert not cluster.socket_dir.exists()


SLEEPER = """
import signal, time
from lookahead import servers
from lookahead.cluster import Cluster
from lookahead.signals import exit_on
exit_on(signal.SIGTERM)
with Cluster(servers.embedded(), preload=False) as cluster:
    print((cluster.data / "postmaster.pid").read_text().split()[0], cluster.dir, flush=True)
    time.sleep(60)
"""


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGKILL])
def test_nothing_is_left_running(number: signal.Signals, embedded: Server) -> None:
    process = subprocess.Popen([sys.executable, "-c", SLEEPER], stdout=subprocess.PIPE, text=True)
    assert process.stdout
    pid, folder = process.stdout.readline().split()
    if number == signal.SIGKILL:
        # Nobody can clear up then; the next cluster does, of whatever process.
        with paths.locked("tmp"):
            process.kill()
            process.wait(60)
            assert alive(int(pid))
        Cluster(embedded, preload=False).close()
        deadline = time.monotonic() + 30
        while (alive(int(pid)) or Path(folder).exists()) and time.monotonic() < deadline:
            time.sleep(0.1)
    else:
        process.send_signal(number)
        process.wait(60)
    process.stdout.close()
    assert not alive(int(pid))
    assert not Path(folder).exists()


def test_another_interrupt_leaves_none_running(monkeypatch: pytest.MonkeyPatch) -> None:
    """It comes while the first of two is being stopped."""
    closed = []

    class Impatient:
        def close(self) -> None:
            os.kill(os.getpid(), signal.SIGINT)
            closed.append(self)

    before = signal.getsignal(signal.SIGINT)
    monkeypatch.setattr(cluster_module, "_running", {Impatient(), Impatient()})
    cluster_module.stop_all()
    assert len(closed) == 2
    assert signal.getsignal(signal.SIGINT) is before


def test_who_may_drop_caches_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "drop_caches"
    monkeypatch.setattr(cluster_module, "DROP_CACHES", file)
    assert cluster_module.what_is_dropped() is None
    file.touch()
    assert "page cache of the whole machine" in (cluster_module.what_is_dropped() or "")


def test_others_folders_are_left_alone(embedded: Server, plain: Cluster) -> None:
    (paths.temp_root() / "somebody-elses").mkdir(exist_ok=True)
    Cluster(embedded, preload=False).close()
    assert plain.psql("SELECT 1") == "1\n"
    (paths.temp_root() / "somebody-elses").rmdir()


def test_a_link_to_a_server_of_somebody_else(embedded: Server, plain: Cluster) -> None:
    """Who may write beside our folders may put one there that looks abandoned."""
    place = paths.temp_root() / f"{TEMP_PREFIX}link"
    place.mkdir()
    (place / OWNER_LOCK).touch()
    (place / "data").symlink_to(plain.data)
    try:
        Cluster(embedded, preload=False).close()
        assert plain.psql("SELECT 1") == "1\n"
        assert place.exists()
    finally:
        shutil.rmtree(place)


def test_where_root_may_not_look(
    plain: Cluster, monkeypatch: pytest.MonkeyPatch, readable: Path
) -> None:
    """In a container root may lack the privilege to see where others' processes work."""

    def refused(self: Path) -> Path:
        raise PermissionError(f"{self}")

    monkeypatch.setattr(Path, "readlink", refused)
    pid = int((plain.data / "postmaster.pid").read_text().split()[0])
    assert privilege.working_folder(pid) == plain.data
    privilege.give(readable)
    with Cluster(plain.server, preload=False, data=readable / "data") as cluster:
        cluster.restart()
        assert cluster.psql("SELECT 1") == "1\n"
    assert not (readable / "data" / "postmaster.pid").exists()


def test_a_link_in_place_of_the_data_directory(readable: Path, tmp_path: Path) -> None:
    """Root writes nothing where such a link leads, and gives nothing away there."""
    (tmp_path / "kept").write_text("root's")
    owner = (tmp_path / "kept").stat().st_uid
    privilege.give(readable)
    (readable / "data").symlink_to(tmp_path)
    tmp_path.chmod(0o755)
    privilege.give(readable / "data")
    assert (tmp_path / "kept").stat().st_uid == owner
    if privilege.unprivileged() is not None:
        with pytest.raises(LookaheadError, match="cannot be written"):
            privilege.write(readable / "data" / "new", "text")
    privilege.write(readable / "file", "text\n", mode=0o640)
    privilege.write(readable / "file", "more\n", append=True)
    assert (readable / "file").read_text() == "text\nmore\n"


def test_a_number_that_is_another_process_s_by_now(embedded: Server, readable: Path) -> None:
    """After a crash postmaster.pid may name anybody: it is not to be stopped."""
    privilege.give(readable)
    cluster = Cluster(embedded, preload=False, data=readable / "data")
    cluster.start()
    cluster.close()
    other = subprocess.Popen(["sleep", "60"], **privilege.as_user())
    try:
        lines = f"{other.pid}\n{cluster.data}\n"
        privilege.write(cluster.data / "postmaster.pid", lines)
        again = Cluster(embedded, preload=False, data=readable / "data")
        again.started = True
        again.stop()
        assert other.poll() is None
        again.close()
    finally:
        other.kill()
        other.wait()


def test_connections_do_not_follow_the_environment(
    plain: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PGHOST", "/nonexistent")
    monkeypatch.setenv("PGPORT", "1")
    assert plain.psql("SELECT 1") == "1\n"
    with plain.connect(connect_timeout=5) as connection:
        assert isinstance(connection, psycopg.Connection)
