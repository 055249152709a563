"""`lookahead doctor` on a real server of each version, with things set wrong.

What it finds must be there, the commands that it gives are carried out as they
are printed, and then it must be gone.  The tool's own tests make facts up.
"""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest
from lookahead import doctor, doctor_facts, visit
from lookahead.cluster import Cluster
from lookahead.doctor_checks import Finding, examine
from lookahead.doctor_facts import Facts
from lookahead.errors import LookaheadError
from lookahead.servers import Server

from conftest import NewCluster
from support import connect, script, until_served, value

# What a small server on such a machine has, whatever is set.
OF_THE_MACHINE = {"huge-pages", "fits-shared-buffers"}

RELOAD = "SELECT pg_reload_conf();"

# Rounds of mending: what is behind a fault is seen when that is gone.
MOST_ROUNDS = 4

WRONG = {"pg_lookahead.start_after": "1000000", "pg_lookahead.leafscan": "off"}

ALTERED = """
CREATE ROLE "o""dd role" LOGIN;
ALTER ROLE "o""dd role" SET pg_lookahead.method = none;
ALTER DATABASE postgres SET pg_lookahead.max_distance = '64kB';
"""


def facts_of(cluster: Cluster) -> Facts:
    """Look at the server; what a read takes here and now is no part of the tests."""
    with visit.connect(cluster.dsn(), "a test") as connection:
        return replace(doctor_facts.collect(connection), latency=None)


def findings(cluster: Cluster) -> list[Finding]:
    return [found for found in examine(facts_of(cluster)) if found.id not in OF_THE_MACHINE]


def names(found: Sequence[Finding]) -> list[str]:
    return sorted(finding.id for finding in found)


def wait_for_the_service(cluster: Cluster) -> None:
    """Wait until the I/O service runs, if there is to be one: a server starts before it."""
    with connect(cluster) as connection:
        if value(connection, "SELECT to_regclass('pg_stat_lookahead_io') IS NULL"):
            return  # the extension is what is missing; without it nobody tells
        setting = "SELECT setting::int FROM pg_settings WHERE name = 'pg_lookahead.io_workers'"
        workers = value(connection, setting)
        # -1 stands for two, and for none on 18.
        if workers > 0 or (workers < 0 and cluster.server.major < 18):
            until_served(connection)


def restart(cluster: Cluster, command: str) -> None:
    """Restart as the command says, but through the cluster, which stops it at the end."""
    program, *arguments = shlex.split(command)
    assert Path(program).resolve() == (cluster.server.bindir / "pg_ctl").resolve()
    assert arguments == ["restart", "-D", str(cluster.data)]
    cluster.restart()
    wait_for_the_service(cluster)


def reload(cluster: Cluster) -> None:
    """Reload, and wait until a new session has what the files say."""

    def loaded() -> object:
        with connect(cluster) as connection:
            return value(connection, "SELECT pg_conf_load_time()")

    before = loaded()
    cluster.psql(RELOAD)
    for _ in range(1000):
        if loaded() != before:
            return
    raise AssertionError("the server does not load its configuration again")


def carry_out(cluster: Cluster, commands: Sequence[str]) -> None:
    """Do what a finding says, one after the other."""
    for command in commands:
        if command == RELOAD:
            reload(cluster)
        elif ";" in command:
            cluster.psql(command)
        else:
            restart(cluster, command)


def mend(cluster: Cluster) -> None:
    """Carry out all that is found, until nothing is."""
    for _ in range(MOST_ROUNDS):
        found = findings(cluster)
        if not found:
            return
        for finding in found:
            assert finding.commands, finding
            carry_out(cluster, finding.commands)
    assert findings(cluster) == []


def test_library_that_is_not_loaded(own_cluster: NewCluster) -> None:
    cluster = own_cluster({"pg_lookahead.start_after": "8"}, preload=False)
    (finding,) = findings(cluster)
    assert finding.id == "library-not-loaded"
    carry_out(cluster, finding.commands)
    with connect(cluster) as connection:
        assert value(connection, "SELECT preloaded FROM pg_lookahead_status()") is True
    mend(cluster)
    cluster.close()


def test_direct_io_without_the_library(own_cluster: NewCluster, server: Server) -> None:
    """One restart is enough: what the service needs can be set before the library is there."""
    if server.major not in (16, 17):
        pytest.skip("direct I/O is of 16 and later, and 18 needs no service for it")
    conf = {"debug_io_direct": "data", "pg_lookahead.start_after": "8"}
    try:
        cluster = own_cluster(conf, preload=False)
    except LookaheadError as error:
        pytest.skip(f"this file system has no direct I/O: {error}")
    found = findings(cluster)
    assert names(found) == ["direct-io", "library-not-loaded"]
    (finding,) = (finding for finding in found if finding.id == "direct-io")
    carry_out(cluster, finding.commands)
    assert findings(cluster) == []
    cluster.close()


def test_things_set_wrong(
    own_cluster: NewCluster, server: Server, capsys: pytest.CaptureFixture[str]
) -> None:
    conf = dict(WRONG)
    expected = ["method-none", "part-off", "unusual-setting", "unusual-setting"]
    if server.major >= 16:
        # Nobody can read ahead: no kernel, no workers.
        conf |= {"debug_io_direct": "data", "pg_lookahead.io_workers": "0"}
        expected += ["direct-io"]
    if server.major >= 18:
        conf["io_method"] = "sync"
        expected[-1] = "direct-io-sync"
    try:
        cluster = own_cluster(conf)
    except LookaheadError as error:
        if server.major < 16:
            raise
        pytest.skip(f"this file system has no direct I/O: {error}")
    with connect(cluster) as connection:
        script(connection, ALTERED)
    wait_for_the_service(cluster)

    found = findings(cluster)
    assert names(found) == sorted(expected)
    doctor.show(facts_of(cluster), found)
    printed = capsys.readouterr().out.splitlines()
    for finding in found:
        for command in finding.commands:
            assert f"    {command}" in printed

    mend(cluster)
    with connect(cluster) as connection:
        method = value(connection, "SELECT method FROM pg_lookahead_status()")
        assert method == {15: "advice", 16: "worker", 17: "worker", 18: "aio"}[server.major]
        assert value(connection, "SHOW pg_lookahead.start_after") == "8"
        assert value(connection, "SHOW pg_lookahead.max_distance") == "2MB"
        assert value(connection, "SHOW pg_lookahead.leafscan") == "on"
    cluster.close()


def test_extension_and_restart_that_are_missing(own_cluster: NewCluster) -> None:
    """The library is asked for, but nobody has restarted; the extension was dropped."""
    cluster = own_cluster({"pg_lookahead.start_after": "8"}, preload=False)
    mine = "ALTER SYSTEM SET shared_preload_libraries = 'pg_lookahead'"
    with connect(cluster) as connection:
        connection.execute(mine)
        connection.execute("DROP EXTENSION pg_lookahead")
    reload(cluster)
    assert names(findings(cluster)) == ["extension-not-created", "restart-pending"]
    mend(cluster)
    with connect(cluster) as connection:
        assert value(connection, "SELECT preloaded FROM pg_lookahead_status()") is True
    cluster.close()
