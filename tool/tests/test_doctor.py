"""The doctor against a real server; its findings are tested with made-up facts."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator

import psycopg
import pytest
from decoys import decoys

from lookahead import build, doctor, doctor_facts
from lookahead.cluster import Cluster
from lookahead.doctor_checks import examine
from lookahead.doctor_facts import Facts
from lookahead.servers import Server
from lookahead.visit import clean_lines, connect, take_care


def facts_of(dsn: str) -> Facts:
    with connect(dsn, "a test") as connection:
        return doctor_facts.collect(connection)


def facts_with_latency(dsn: str) -> Facts:
    """Ask once more if there was no time to measure: the machine may have stood still."""
    facts = facts_of(dsn)
    return facts if facts.latency else facts_of(dsn)


def wait_for(condition: Callable[[], bool]) -> None:
    """Wait for what takes a moment; a busy machine takes longer."""
    end = time.monotonic() + 30
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.1)


@pytest.fixture(scope="module")
def ours(embedded: Server) -> Iterator[Cluster]:
    """A server with the extension preloaded and created, and one table."""
    build.build_extension(embedded)
    with Cluster(embedded) as cluster:
        cluster.psql("CREATE EXTENSION pg_lookahead")
        cluster.psql("CREATE TABLE t AS SELECT i, repeat('x', 500) FROM generate_series(1, 9999) i")
        cluster.psql("ANALYZE t; CHECKPOINT;")
        yield cluster


def identifiers(dsn: str) -> list[str]:
    return [finding.id for finding in examine(facts_of(dsn))]


def test_a_server_in_order(ours: Cluster, capsys: pytest.CaptureFixture[str]) -> None:
    assert doctor.main(ours.dsn(), as_json=False) == 0
    shown = capsys.readouterr().out
    assert "Nothing to fix." in shown
    assert "preloaded" in shown


def test_facts(ours: Cluster) -> None:
    facts = facts_with_latency(ours.dsn())
    assert facts.major == 18
    assert facts.loaded
    assert facts.preloaded
    assert facts.library_version == facts.extension_version == facts.available_version
    assert facts.method == "advice"
    assert facts.counters is not None
    assert facts.latency is not None
    assert facts.latency.samples > 32
    assert facts.bindir == str(ours.server.bindir)


def test_json(ours: Cluster, capsys: pytest.CaptureFixture[str]) -> None:
    ours.psql("ALTER DATABASE postgres SET pg_lookahead.enabled = off")
    try:
        assert doctor.main(ours.dsn(), as_json=True) == 1
    finally:
        ours.psql("ALTER DATABASE postgres RESET pg_lookahead.enabled")
    data = json.loads(capsys.readouterr().out)
    assert data["server"]["database"] == "postgres"
    found = next(f for f in data["findings"] if f["id"] == "switched-off")
    assert found["commands"] == ['ALTER DATABASE "postgres" RESET pg_lookahead.enabled;']


def test_commands_mend_what_they_are_for(ours: Cluster) -> None:
    """The SQL that is given is SQL, and afterwards the finding is gone."""
    ours.psql("ALTER SYSTEM SET pg_lookahead.method = 'none'")
    ours.psql("ALTER SYSTEM SET effective_io_concurrency = 0")
    ours.psql("CREATE ROLE bob SUPERUSER; ALTER ROLE bob SET pg_lookahead.enabled = off")
    ours.psql("DROP EXTENSION pg_lookahead; SELECT pg_reload_conf();")
    wait_for(lambda: ours.psql("SHOW effective_io_concurrency") == "0\n")
    found = examine(facts_of(ours.dsn()))
    names = {finding.id for finding in found}
    assert {"method-none", "no-io-concurrency", "switched-off", "extension-not-created"} <= names
    for finding in found:
        for command in finding.commands:
            ours.psql(command)
    ours.psql("DROP ROLE bob")
    may_stay = {"fits-shared-buffers", "in-page-cache"}
    # Until the server has read its settings again.
    wait_for(lambda: not names & set(identifiers(ours.dsn())) - may_stay)


def test_a_user_without_rights(ours: Cluster) -> None:
    ours.psql("CREATE ROLE bob LOGIN")
    try:
        facts = facts_of(ours.dsn() + " user=bob")
    finally:
        ours.psql("DROP ROLE bob")
    assert facts.superuser is False
    assert facts.latency is None
    assert facts.counters is None
    assert facts.method == "advice"
    assert [f for f in examine(facts) if f.severity == "problem"] == []


def test_functions_of_a_user_are_not_called(ours: Cluster) -> None:
    with decoys(ours):
        facts = facts_with_latency(ours.dsn())
    assert facts.latency is not None
    assert facts.database_bytes is not None
    assert facts.counters is not None


def test_the_session_is_left_as_it_was(ours: Cluster) -> None:
    """It may be one of a pool, which the next user gets."""
    with ours.connect() as connection, connection.transaction():
        take_care(connection, doctor_facts.PATIENCE_SECONDS)
        shown = "SELECT current_setting('search_path'), current_setting('lock_timeout')"
        assert connection.execute(shown).fetchone() == ("pg_catalog, pg_temp", "1s")
    with ours.connect() as connection:
        with connection.transaction():
            take_care(connection, doctor_facts.PATIENCE_SECONDS)
        assert connection.execute(shown).fetchone() == ('"$user", public', "0")


def test_extension_in_another_schema(ours: Cluster) -> None:
    ours.psql('CREATE DATABASE "odd name"')
    ours.psql('CREATE SCHEMA "Odd"; CREATE EXTENSION pg_lookahead SCHEMA "Odd"', "odd name")
    facts = facts_of(ours.dsn("odd name"))
    assert facts.library_version
    assert facts.counters is not None


def test_not_loaded(embedded: Server, plain: Cluster, capsys: pytest.CaptureFixture[str]) -> None:
    build.build_extension(embedded)
    assert doctor.main(plain.dsn(), as_json=False) == 1
    shown = capsys.readouterr().out
    assert "ALTER SYSTEM SET shared_preload_libraries = 'pg_lookahead';" in shown
    assert f"restart -D {plain.data}" in shown


@pytest.mark.parametrize("dsn", ["host=/nonexistent", "no_such_option=1"])
def test_no_connection(dsn: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert doctor.main(dsn, as_json=False) == 2
    said = capsys.readouterr().err
    assert "could not connect" in said
    assert "~/.pgpass" in said


def test_what_a_server_says_does_not_control_the_terminal() -> None:
    error = psycopg.OperationalError("FATAL:  no\x1b[2J\n\tIs it there?\r\x07\n")
    assert clean_lines(error) == "FATAL:  no?[2J\n        Is it there?\n?"


def test_database_without_an_encoding(ours: Cluster, capsys: pytest.CaptureFixture[str]) -> None:
    """Its text comes as it is; a query in another encoding is no reason to fail."""
    ours.psql(
        "CREATE DATABASE plain ENCODING SQL_ASCII LC_COLLATE 'C' LC_CTYPE 'C' TEMPLATE template0"
    )
    ours.psql("CREATE EXTENSION pg_lookahead", dbname="plain")
    with connect(ours.dsn("plain"), "a test") as connection:
        odd = "SELECT convert_from(decode('e9', 'hex'), 'SQL_ASCII') AS text"
        assert connection.execute(odd).fetchone() == {"text": "\ufffd"}
    facts = facts_of(ours.dsn("plain"))
    assert facts.library_version
    assert facts.settings["shared_preload_libraries"].value
    assert doctor.main(ours.dsn("plain"), as_json=True) in (0, 1)
    assert json.loads(capsys.readouterr().out)["server"]["database"] == "plain"


def test_given_options_win(ours: Cluster) -> None:
    with connect(ours.dsn() + " application_name=mine connect_timeout=7", "a test") as connection:
        assert connection.info.get_parameters()["connect_timeout"] == "7"
        row = connection.execute("SHOW application_name").fetchone()
        assert row == {"application_name": "mine"}
