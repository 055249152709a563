"""`lookahead top` against real servers; what it makes of samples is tested apart."""

from __future__ import annotations

import json
import os
import pty
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from decoys import decoys

from lookahead import build, top
from lookahead.cluster import Cluster
from lookahead.errors import LookaheadError
from lookahead.servers import Server
from lookahead.top_rates import rates
from lookahead.top_sample import Row, Sample
from lookahead.top_source import Source, Unusable

TOOL = Path(__file__).parents[1]


@pytest.fixture(scope="module")
def served(embedded: Server) -> Iterator[Cluster]:
    """A server with the I/O service and a table."""
    build.build_extension(embedded)
    with Cluster(embedded, conf={"pg_lookahead.io_workers": "2"}) as cluster:
        cluster.psql("CREATE EXTENSION pg_lookahead")
        cluster.psql(
            "CREATE TABLE t WITH (fillfactor = 20) AS"
            " SELECT i, md5(i::text) AS s FROM generate_series(1, 30000) i ORDER BY md5(i::text)"
        )
        cluster.psql("CREATE INDEX ON t (i); VACUUM ANALYZE t; CHECKPOINT;")
        until_served(cluster)
        yield cluster


def wait_for(condition: Callable[[], bool]) -> None:
    """Wait for what takes a moment; a busy machine takes longer."""
    end = time.monotonic() + 30
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.1)


def until_served(cluster: Cluster) -> None:
    """Wait for the workers, which begin after the server says that it is ready."""
    there = "SELECT bool_and(pid IS NOT NULL) FROM pg_stat_lookahead_io"
    wait_for(lambda: cluster.psql(there) == "t\n")


def at_rest(source: Source) -> Sample:
    """Return a sample when the scans that have ended are done with, and counted."""
    seen: list[tuple[list[Row], list[Row]]] = []

    def same_again() -> bool:
        sample = source.look()
        assert sample.workers
        assert sample.relations
        seen.append((sample.workers.rows, sample.relations.rows))
        idle = not any(worker["queue_depth"] for worker in sample.workers.rows)
        return bool(idle and sample.relations.rows and seen[-2:-1] == seen[-1:])

    wait_for(same_again)
    return source.look()


@pytest.fixture(scope="module", params=["0", "-1"])
def unserved(request: pytest.FixtureRequest, embedded: Server) -> Iterator[Cluster]:
    """A server with the library and without the service, which is usual from 18 on."""
    build.build_extension(embedded)
    with Cluster(embedded, conf={"pg_lookahead.io_workers": request.param}) as cluster:
        cluster.psql("CREATE EXTENSION pg_lookahead")
        yield cluster


def scan(cluster: Cluster) -> None:
    """Scan the table in the order of its index, read by the service if there is one."""
    cluster.psql(
        "SET pg_lookahead.method = worker; SET pg_lookahead.start_after = 0;"
        " SET enable_seqscan = off; SET enable_bitmapscan = off;"
        " SELECT sum(length(s)) FROM t WHERE i > 0"
    )


def collect(dsn: str, capsys: pytest.CaptureFixture[str], count: int = 2) -> list[dict[str, Any]]:
    assert top.main(dsn, interval=0.2, count=count, as_json=True) == 0
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == count
    return [json.loads(line) for line in lines]


def command(dsn: str, *options: str) -> list[str]:
    return [sys.executable, "-m", "lookahead", "top", *options, dsn]


def environment() -> dict[str, str]:
    return {**os.environ, "PYTHONPATH": str(TOOL), "TERM": "xterm", "COLUMNS": "120"}


# ----------------------------------------------------------------------
# A server with everything


def test_json(served: Cluster, capsys: pytest.CaptureFixture[str]) -> None:
    for data in collect(served.dsn(), capsys):
        assert data["away"] is None
        assert data["missing"] == []
        assert data["seconds"] > 0
        assert data["server"]["io_workers"] == 2
        assert data["service"]["status"]["ios_worker_num"] == 2
        assert data["service"]["rates"]["reads_per_second"] >= 0
        assert [worker["worker"] for worker in data["workers"]] == [0, 1]
        assert all(worker["pid"] for worker in data["workers"])
        assert data["owners"] == []


def test_work_is_seen(served: Cluster) -> None:
    served.restart()
    until_served(served)
    source = Source(served.dsn())
    source.open()
    try:
        before = source.look()
        scan(served)
        # Workers may still be at it when the scan has ended.
        now = at_rest(source)
    finally:
        source.close()
    found = rates(before, now)
    assert found.relations is not None
    # The table, and perhaps the leaf pages of its index.
    names = [relation["relation"] for relation in found.relations]
    assert names in (["t"], ["t", "t_i_idx"], ["t_i_idx", "t"])
    assert found.service is not None
    assert (found.service["blocks_read_per_second"] or 0) > 0
    assert (found.service["bytes_per_second"] or 0) > 0
    assert (found.service["request_latency_us"] or 0) > 0
    assert now.status is not None
    assert now.status["io_requests"] == found.service["requests_total"]


def test_what_is_looked_ahead(served: Cluster) -> None:
    """A scan that has begun and not ended, and a relation of another database."""
    served.restart()
    until_served(served)
    source = Source(served.dsn())
    served.psql("CREATE DATABASE other; ")
    served.psql("CREATE EXTENSION pg_lookahead", "other")
    try:
        with served.connect(autocommit=False) as connection:
            for text in (
                "SET pg_lookahead.method = worker", "SET pg_lookahead.start_after = 0",
                "SET pg_lookahead.leafscan = off",
                "SET enable_seqscan = off", "SET enable_bitmapscan = off",
                "DECLARE c CURSOR FOR SELECT s FROM t WHERE i > 0", "FETCH 100 FROM c",
            ):  # fmt: skip
                connection.execute(text)
            owners = source.look().owners
            elsewhere = Source(served.dsn("other"))
            foreign = elsewhere.look().owners
            elsewhere.close()
    finally:
        source.close()
        served.psql("DROP DATABASE other")
    assert owners is not None
    assert [(row["database"], row["relation"]) for row in owners.rows] == [("postgres", "t")]
    assert owners.rows[0]["query"] == "FETCH 100 FROM c"
    assert owners.rows[0]["blocks"] > 1000
    assert foreign is not None
    assert [(row["database"], row["relation"]) for row in foreign.rows] == [("postgres", None)]


def test_text(served: Cluster, capsys: pytest.CaptureFixture[str]) -> None:
    """Without a terminal: one picture below the other."""
    assert top.main(served.dsn(), interval=0.2, count=2, as_json=False) == 0
    shown = capsys.readouterr().out
    assert "\x1b" not in shown
    for word in ("2 of 2 workers", "I/O service", "looked ahead now", "busiest"):
        assert shown.count(word) == 2


def test_on_a_terminal(served: Cluster) -> None:
    master, slave = pty.openpty()
    process = subprocess.Popen(
        command(served.dsn(), "--interval", "0.2", "--count", "2"),
        stdout=slave, stderr=slave, stdin=slave, env=environment(),
    )  # fmt: skip
    os.close(slave)
    shown = read_all(master)
    assert process.wait(30) == 0
    # To the alternate screen and back; the last picture comes after that.
    assert "\x1b[?1049h" in shown
    assert "I/O service" in shown.split("\x1b[?1049l")[1]


def test_an_output_without_these_letters(served: Cluster) -> None:
    served.psql('CREATE DATABASE "größe"')
    served.psql("CREATE EXTENSION pg_lookahead", "größe")
    try:
        done = subprocess.run(
            command(served.dsn("größe"), "--count=1", "--interval=0.1"),
            capture_output=True, check=False, env={**environment(), "PYTHONIOENCODING": "ascii"},
        )  # fmt: skip
    finally:
        served.psql('DROP DATABASE "größe"')
    assert done.returncode == 0, done.stderr
    assert b"database gr??e" in done.stdout


def read_all(master: int) -> str:
    parts: list[bytes] = []
    while True:
        try:
            part = os.read(master, 65536)
        except OSError:
            # How Linux says that nobody has the other end any more.
            part = b""
        if not part:
            os.close(master)
            return b"".join(parts).decode()
        parts.append(part)


@pytest.mark.parametrize("options", [("--json",), ()])
def test_ctrl_c(served: Cluster, options: tuple[str, ...]) -> None:
    process = subprocess.Popen(
        command(served.dsn(), "--interval", "0.2", *options),
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment(),
    )  # fmt: skip
    assert process.stdout
    assert process.stdout.readline()
    process.send_signal(signal.SIGINT)
    _, errors = process.communicate(timeout=30)
    assert process.returncode == 0
    assert errors == ""


@pytest.mark.parametrize("options", [("--json",), ()])
def test_the_reader_has_seen_enough(served: Cluster, options: tuple[str, ...]) -> None:
    process = subprocess.Popen(
        command(served.dsn(), "--interval", "0.1", *options),
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment(),
    )  # fmt: skip
    assert process.stdout
    assert process.stderr
    process.stdout.readline()
    process.stdout.close()
    assert process.wait(30) == 0
    assert process.stderr.read() == ""
    process.stderr.close()


def test_libpqs_environment_is_used(served: Cluster) -> None:
    variables = {"PGHOST": str(served.socket_dir), "PGUSER": "postgres", "PGDATABASE": "postgres"}
    done = subprocess.run(
        [sys.executable, "-m", "lookahead", "top", "--json", "--count=1", "--interval=0.1"],
        capture_output=True, text=True, check=False, env={**environment(), **variables},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["server"]["database"] == "postgres"


# ----------------------------------------------------------------------
# A server that goes away


@pytest.mark.parametrize("mode", ["fast", "immediate"])
def test_restart(served: Cluster, mode: str) -> None:
    source = Source(served.dsn())
    source.open()
    try:
        first = source.look()
        served.stop(mode)
        away = source.look()
        still_away = source.look()
        served.start()
        back = source.look()
    finally:
        served.start()
        source.close()
    assert first.server
    assert away.away
    assert still_away.away
    assert back.server
    assert back.away is None
    assert back.server.started >= first.server.started
    assert rates(first, back).seconds is None


def test_restart_between_two_looks(served: Cluster) -> None:
    source = Source(served.dsn())
    source.open()
    try:
        first = source.look()
        served.restart()
        second = source.look()
    finally:
        source.close()
    assert second.away is None
    assert second.connection > first.connection


def test_a_database_that_is_dropped(served: Cluster) -> None:
    served.psql("CREATE DATABASE gone")
    served.psql("CREATE EXTENSION pg_lookahead", "gone")
    source = Source(served.dsn("gone"))
    source.open()
    try:
        assert source.look().away is None
        served.psql("DROP DATABASE gone WITH (FORCE)")
        assert "does not exist" in (source.look().away or "")
    finally:
        source.close()


# ----------------------------------------------------------------------
# Servers that lack something


def test_without_the_service(unserved: Cluster, capsys: pytest.CaptureFixture[str]) -> None:
    data = collect(unserved.dsn(), capsys)[-1]
    assert [missing["parts"] for missing in data["missing"]] == [["service", "owners"]]
    assert "io_workers" in data["missing"][0]["reason"]
    assert (data["service"], data["workers"], data["owners"]) == (None, None, None)
    assert data["relations"] == []
    assert data["seconds"] > 0
    assert top.main(unserved.dsn(), interval=0.1, count=1, as_json=False) == 0
    assert "ALTER SYSTEM SET pg_lookahead.io_workers = 2;" in capsys.readouterr().out


def test_the_log_is_not_filled(unserved: Cluster) -> None:
    """What is missing is not asked for."""
    unserved.psql("CREATE ROLE bob LOGIN")
    try:
        for user in ("bob", "postgres"):
            assert (
                top.main(unserved.dsn() + f" user={user}", interval=0.1, count=3, as_json=True) == 0
            )
    finally:
        unserved.psql("DROP ROLE bob")
    assert "ERROR" not in unserved.log.read_text()


def test_not_preloaded(
    embedded: Server, plain: Cluster, capsys: pytest.CaptureFixture[str]
) -> None:
    build.build_extension(embedded)
    plain.psql("CREATE DATABASE half")
    plain.psql("CREATE EXTENSION pg_lookahead", "half")
    try:
        data = collect(plain.dsn("half"), capsys)[-1]
        assert [m["parts"] for m in data["missing"]] == [["service", "owners", "relations"]]
        assert data["missing"][0]["commands"] == [
            "ALTER SYSTEM SET shared_preload_libraries = 'pg_lookahead';"
        ]
        assert top.main(plain.dsn("half"), interval=0.1, count=1, as_json=False) == 0
    finally:
        plain.psql("DROP DATABASE half")
    assert "not preloaded" in capsys.readouterr().out


def test_no_extension(embedded: Server, plain: Cluster) -> None:
    build.build_extension(embedded)
    with pytest.raises(Unusable, match='not created in database "postgres"') as raised:
        top.main(plain.dsn(), interval=1, count=1, as_json=True)
    assert isinstance(raised.value, LookaheadError)
    assert "Hint: CREATE EXTENSION pg_lookahead" in str(raised.value)


def test_the_extension_comes_and_goes(served: Cluster, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("lookahead.top_source.PROBE_SECONDS", 0)
    served.psql('CREATE DATABASE "odd name"')
    served.psql('CREATE SCHEMA "o\'dd"; CREATE EXTENSION pg_lookahead SCHEMA "o\'dd"', "odd name")
    source = Source(served.dsn("odd name"))
    try:
        assert source.look().workers is not None
        served.psql("DROP EXTENSION pg_lookahead", "odd name")
        assert "not created" in (source.look().away or "")
        served.psql("CREATE EXTENSION pg_lookahead", "odd name")
        assert source.look().workers is not None
    finally:
        source.close()
        served.psql('DROP DATABASE "odd name"')


def test_a_user_without_rights(served: Cluster, monkeypatch: pytest.MonkeyPatch) -> None:
    """What he may not see is missing, until he may."""
    monkeypatch.setattr("lookahead.top_source.PROBE_SECONDS", 0)
    served.psql("CREATE ROLE bob LOGIN")
    source = Source(served.dsn() + " user=bob")
    try:
        sample = source.look()
        assert sample.missing[0].commands == ('GRANT pg_monitor TO "bob";',)
        assert (sample.workers, sample.owners, sample.relations) == (None, None, None)
        served.psql(sample.missing[0].commands[0])
        sample = source.look()
    finally:
        source.close()
        served.psql("DROP ROLE bob")
    assert sample.missing == ()
    assert None not in (sample.workers, sample.owners, sample.relations)


def test_functions_of_a_user_are_not_called(served: Cluster) -> None:
    with decoys(served):
        source = Source(served.dsn())
        try:
            sample = source.look()
        finally:
            source.close()
    assert (sample.away, sample.missing) == (None, ())
    assert None not in (sample.workers, sample.owners, sample.relations)


def test_an_object_that_is_gone(served: Cluster) -> None:
    """An error of the server's hides one part, and the others stay."""
    served.psql("CREATE DATABASE half")
    served.psql("CREATE EXTENSION pg_lookahead", "half")
    source = Source(served.dsn("half"))
    try:
        assert source.look().missing == ()
        served.psql(
            "ALTER EXTENSION pg_lookahead DROP VIEW pg_stat_lookahead_owners;"
            " DROP VIEW pg_stat_lookahead_owners",
            "half",
        )
        samples = [source.look(), source.look()]
    finally:
        source.close()
        served.psql("DROP DATABASE half")
    for sample in samples:
        assert [missing.parts for missing in sample.missing] == [("owners",)]
        assert "does not exist" in sample.missing[0].reason
        assert sample.workers is not None


@pytest.mark.parametrize("dsn", ["host=/nonexistent", "no_such_option=1"])
def test_no_connection(dsn: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert top.main(dsn, interval=1, count=1, as_json=False) == 2
    said = capsys.readouterr().err
    assert "could not connect" in said
    assert "~/.pgpass" in said
    assert "./lookahead top" in said


def test_usage() -> None:
    for options in (["--interval", "0"], ["--count", "0"], ["a", "b"]):
        done = subprocess.run(
            [sys.executable, "-m", "lookahead", "top", *options],
            capture_output=True, text=True, check=False, env=environment(),
        )  # fmt: skip
        assert done.returncode == 2, options
