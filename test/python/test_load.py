"""Every way of loading the library, and settings by role and by database."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from pathlib import Path

import psycopg
import pytest
from lookahead import privilege, regress, suites
from lookahead.cluster import LIBRARY, Cluster

from conftest import NewCluster
from support import (
    INDEX_SCANS,
    Connection,
    LogWatch,
    cold,
    connect,
    gained,
    plan_nodes,
    require_node,
    rows,
    script,
    settings,
    until,
    value,
)

SCAN = "SELECT a, length(filler) FROM loaded ORDER BY a"
ALL_ROWS = [(i, 100) for i in range(1, 2001)]
FORCED = {"pg_lookahead__start_after": 0, **INDEX_SCANS}

SETUP = """
CREATE TABLE loaded (a int, filler text) WITH (fillfactor = 20);
INSERT INTO loaded SELECT i, repeat('x', 100) FROM generate_series(1, 2000) i ORDER BY md5(i::text);
CREATE INDEX loaded_a ON loaded (a);
VACUUM ANALYZE loaded;
CREATE ROLE eager LOGIN SUPERUSER;
CREATE ROLE plain LOGIN SUPERUSER;
CREATE DATABASE elsewhere_db;
"""


@pytest.fixture(scope="module")
def bare(own_cluster: NewCluster) -> Iterator[Cluster]:
    """A server that does not preload the library."""
    cluster = own_cluster(preload=False)
    with connect(cluster) as connection:
        script(connection, SETUP)
    with LogWatch(cluster, allowed=["could not access file", "in pg_tblspc"]):
        yield cluster


def is_loaded(connection: Connection) -> bool:
    """Its settings are placeholders, which pg_settings does not show, until then."""
    count = "SELECT count(*) FROM pg_settings WHERE name = 'pg_lookahead.enabled'"
    return bool(value(connection, count))


def looks_ahead(connection: Connection) -> bool:
    """Scan a cold table; does look-ahead read?  The rows must be right anyway."""
    settings(connection, **INDEX_SCANS)
    require_node(connection, SCAN, "Index Scan", "loaded_a")
    cold(connection, "loaded")
    loaded = is_loaded(connection)
    if not loaded:
        # pg_lookahead_session() would load the library.
        assert rows(connection, SCAN) == ALL_ROWS
        return False
    with gained(connection) as change:
        assert rows(connection, SCAN) == ALL_ROWS
    return change.blocks_issued > 0


def test_load(bare: Cluster) -> None:
    with connect(bare) as connection:
        assert not is_loaded(connection)
        assert not looks_ahead(connection)
        connection.execute("LOAD 'pg_lookahead'")
        assert is_loaded(connection)
        connection.execute("SET pg_lookahead.start_after = 0")
        assert looks_ahead(connection)
        assert value(connection, "SELECT preloaded FROM pg_lookahead_status()") is False
        # Again, and in a transaction that is rolled back: nothing happens twice.
        connection.execute("BEGIN")
        connection.execute("LOAD 'pg_lookahead'")
        connection.execute("ROLLBACK")
        assert looks_ahead(connection)


def test_load_under_an_open_cursor(bare: Cluster) -> None:
    with connect(bare) as connection:
        settings(connection, **INDEX_SCANS)
        cold(connection, "loaded")
        connection.execute("BEGIN")
        connection.execute(f"DECLARE c SCROLL CURSOR FOR {SCAN}")
        assert rows(connection, "FETCH 100 FROM c") == ALL_ROWS[:100]
        connection.execute("LOAD 'pg_lookahead'")
        connection.execute("SET LOCAL pg_lookahead.start_after = 0")
        # The same index is now also scanned by a query that is followed.
        with gained(connection) as change:
            assert rows(connection, SCAN) == ALL_ROWS
        assert change.scans >= 1
        assert rows(connection, "FETCH 100 FROM c") == ALL_ROWS[100:200]
        assert rows(connection, "FETCH BACKWARD 50 FROM c") == ALL_ROWS[149:199][::-1]
        connection.execute("COMMIT")


def test_functions_load_the_library(bare: Cluster) -> None:
    with connect(bare) as connection:
        assert not is_loaded(connection)
        assert value(connection, "SELECT pg_lookahead_version()")
        assert is_loaded(connection)


@pytest.mark.parametrize("query", ["TABLE pg_stat_lookahead", "SELECT pg_stat_lookahead_reset()"])
def test_view_says_what_is_missing(bare: Cluster, query: str) -> None:
    with connect(bare) as connection:
        with pytest.raises(psycopg.errors.ObjectNotInPrerequisiteState) as failure:
            connection.execute(query)
        hint = failure.value.diag.message_hint
        assert hint
        assert "shared_preload_libraries" in hint


def test_session_preload_for_a_role(bare: Cluster) -> None:
    with connect(bare) as connection:
        connection.execute("ALTER ROLE eager SET session_preload_libraries = 'pg_lookahead'")
        connection.execute("ALTER ROLE eager SET pg_lookahead.start_after = 0")
    with connect(bare, user="eager") as connection:
        assert is_loaded(connection)
        assert looks_ahead(connection)
    with connect(bare, user="plain") as connection:
        assert not is_loaded(connection)


def test_session_preload_for_a_database(bare: Cluster) -> None:
    with connect(bare) as connection:
        connection.execute(
            "ALTER DATABASE elsewhere_db SET session_preload_libraries = 'pg_lookahead'"
        )
        connection.execute("ALTER DATABASE elsewhere_db SET pg_lookahead.max_distance = 64")
    with connect(bare, "elsewhere_db") as connection:
        # Without the extension's objects, too.
        assert is_loaded(connection)
        assert value(connection, "SHOW pg_lookahead.max_distance") == "512kB"
        connection.execute("CREATE TABLE IF NOT EXISTS t AS SELECT 1 AS a")
        assert rows(connection, "SELECT a FROM t") == [(1,)]
    with connect(bare) as connection:
        assert not is_loaded(connection)


def test_local_preload(bare: Cluster) -> None:
    """From $libdir/plugins any user may load it; the file is not there by default."""
    with connect(bare) as connection:
        with pytest.raises(psycopg.errors.UndefinedFile):
            connection.execute("LOAD '$libdir/plugins/pg_lookahead'")


def test_parallel_workers_load_it_too(bare: Cluster) -> None:
    with connect(bare) as connection:
        connection.execute("LOAD 'pg_lookahead'")
        settings(
            connection,
            **{**FORCED, "max_parallel_workers_per_gather": "2"},
            parallel_setup_cost=0,
            parallel_tuple_cost=0,
            min_parallel_index_scan_size=0,
            min_parallel_table_scan_size=0,
        )
        query = "SELECT count(*), sum(length(filler)) FROM loaded WHERE a > 0"
        require_node(connection, query, "Gather")
        cold(connection, "loaded")
        with gained(connection):
            assert rows(connection, query) == [(2000, 200000)]
        # Every process of a plan, if the leader takes no part.
        connection.execute(
            "CREATE OR REPLACE FUNCTION knows_ours() RETURNS int LANGUAGE plpgsql PARALLEL SAFE AS"
            " $$BEGIN RETURN count(*) FROM pg_settings"
            " WHERE name = 'pg_lookahead.enabled'; END$$"
        )
        settings(connection, parallel_leader_participation="off")
        asking = query.replace("count(*)", "min(CASE WHEN a % 100 = 0 THEN knows_ours() END)")
        nodes = plan_nodes(connection, asking, ", ANALYZE")
        assert any(node.get("Workers Launched", 0) > 0 for node in nodes), nodes
        assert value(connection, asking) == 1


@pytest.mark.parametrize("name", ["cursors", "explain", "stayout"])
def test_regression_tests_with_load_only(bare: Cluster, name: str) -> None:
    """These end with the same output as where the library is preloaded."""
    if bare.server.pg_regress is None:
        pytest.skip("this server has no pg_regress")
    # The server's user must be able to enter.
    work = Path(tempfile.mkdtemp(dir=bare.dir))
    privilege.give(work)
    given = regress.copy_input(suites.TESTS, work, ("sql", "expected", "data"))
    outcome = regress.run_tests(
        bare.server.pg_regress,
        bare,
        work,
        [f"--inputdir={given}", f"--load-extension={LIBRARY}"],
        [name],
        seconds=120,
    )
    assert outcome.passed == [name], outcome.details


def test_shared_preload(cluster: Cluster) -> None:
    """Settings from the configuration file, a role, a database and the session."""
    with connect(cluster) as connection:
        assert is_loaded(connection)
        assert value(connection, "SELECT preloaded FROM pg_lookahead_status()") is True
        assert value(connection, "SHOW pg_lookahead.start_after") == "0"
        connection.execute("TABLE pg_stat_lookahead")
        connection.execute("DROP ROLE IF EXISTS careful")
        connection.execute("CREATE ROLE careful LOGIN SUPERUSER")
        connection.execute("ALTER ROLE careful SET pg_lookahead.enabled = off")
        connection.execute("ALTER DATABASE postgres SET pg_lookahead.max_distance = 8")
    try:
        with connect(cluster, user="careful") as connection:
            assert value(connection, "SHOW pg_lookahead.enabled") == "off"
            assert value(connection, "SHOW pg_lookahead.max_distance") == "64kB"
            method, reason = rows(connection, "SELECT method, reason FROM pg_lookahead_status()")[0]
            assert method == "none"
            assert "enabled" in reason
            connection.execute("SET pg_lookahead.enabled = on")
            assert value(connection, "SELECT method FROM pg_lookahead_status()") == "advice"
    finally:
        with connect(cluster) as connection:
            connection.execute("ALTER DATABASE postgres RESET pg_lookahead.max_distance")
            connection.execute("DROP ROLE careful")


def test_reload_of_the_configuration(own_cluster: NewCluster) -> None:
    cluster = own_cluster()
    with connect(cluster) as connection:
        connection.execute("ALTER SYSTEM SET pg_lookahead.max_distance = 16")
        connection.execute("ALTER SYSTEM SET pg_lookahead.method = 'none'")
        connection.execute("SELECT pg_reload_conf()")
        until(connection, "current_setting('pg_lookahead.method') = 'none'", 30)
        assert value(connection, "SHOW pg_lookahead.max_distance") == "128kB"
    cluster.close()


def test_without_the_extensions_objects(cluster: Cluster) -> None:
    """The library does its work in databases that have no CREATE EXTENSION."""
    with connect(cluster) as connection:
        connection.execute("DROP DATABASE IF EXISTS without_objects")
        connection.execute("CREATE DATABASE without_objects")
    with connect(cluster, "without_objects") as connection:
        script(connection, SETUP.split("CREATE ROLE")[0])
        settings(connection, **FORCED)
        assert rows(connection, SCAN) == ALL_ROWS
        require_node(connection, SCAN, "Index Scan", "loaded_a")
        connection.execute("CREATE EXTENSION pg_lookahead")
        cold(connection, "loaded")
        with gained(connection) as change:
            assert rows(connection, SCAN) == ALL_ROWS
        assert change.blocks_issued > 0
        assert value(connection, "SELECT count(*) FROM pg_stat_lookahead") >= 1
        connection.execute("ALTER TABLE loaded SET TABLESPACE pg_default")
    with connect(cluster) as connection:
        # The counters of another database are not shown here.
        count = "SELECT count(*) FROM pg_stat_lookahead WHERE relname = 'loaded'"
        assert value(connection, count) == 0
        # The server waits only five seconds for the session that was just closed.
        sessions = "SELECT FROM pg_stat_activity WHERE datname = 'without_objects'"
        until(connection, f"NOT EXISTS ({sessions})", 60)
        connection.execute("DROP DATABASE without_objects")
