"""WAL is flushed before somebody has to wait for it.

The WAL writer of these servers looks by itself every ten seconds only, and all
that is filled fits into shared buffers, so nobody else flushes WAL before the
transaction ends.
"""

from __future__ import annotations

import contextlib
import os
import signal
import threading
from collections.abc import Iterator
from pathlib import Path

import psycopg
import pytest
from lookahead.cluster import Cluster
from lookahead.servers import Server

from conftest import NewCluster
from maintenance_support import CONF as FOLLOWED
from maintenance_support import SLOW_VACUUM, rest
from maintenance_support import setup as make_maintained
from support import Connection, LogWatch, connect, rows, script, value, wait_for
from test_interrupts import wait_until_back

MB = 1 << 20

# A flush is for as much, where there are 16 MB of WAL buffers or more.
STEP = 4 * MB

CONF = {
    "shared_buffers": "256MB",
    "wal_buffers": "16MB",
    "wal_writer_delay": "10s",
    "max_wal_size": "4GB",
    "checkpoint_timeout": "1h",
    "bgwriter_lru_maxpages": "0",
    "autovacuum": "off",
}

# Some 40 MB, in a table and in the WAL.
ROWS = 300_000
ROW = 150
MADE = f"SELECT i AS a, repeat('x', 90) AS b FROM generate_series(1, {ROWS}) i"
FILLED = """
CREATE TABLE filled (a int, b text);
CREATE FUNCTION source_of(n int) RETURNS TABLE (a int, b text) LANGUAGE sql AS $$
    SELECT i, repeat('x', 90) FROM generate_series(1, n) i $$
"""
SETUP = f"""
{FILLED};
CREATE TABLE source AS {MADE};
CREATE MATERIALIZED VIEW seen AS SELECT * FROM source WITH NO DATA;
CREATE TABLE parts (a int, b text) PARTITION BY HASH (a);
CREATE TABLE part_0 PARTITION OF parts FOR VALUES WITH (MODULUS 2, REMAINDER 0);
CREATE TABLE part_1 PARTITION OF parts FOR VALUES WITH (MODULUS 2, REMAINDER 1);
CREATE UNLOGGED TABLE unlogged (a int, b text);
VACUUM (FREEZE, ANALYZE) source;
CHECKPOINT
"""

FILLING = {
    "insert": "INSERT INTO filled SELECT * FROM source",
    "merge": "INSERT INTO filled SELECT * FROM source ON CONFLICT DO NOTHING",
    "routed": "INSERT INTO parts SELECT * FROM source",
    "copy": "COPY filled FROM '{file}'",
    "into": "CREATE TABLE made AS SELECT * FROM source",
    "view": "REFRESH MATERIALIZED VIEW seen",
    "update": "UPDATE source SET b = b",
    "index": "CREATE INDEX made_a ON source (a, b)",
    "gin": "CREATE INDEX made_gin ON source USING gin ((ARRAY[a, a + 1000000]))",
}

# Here another process looks, which may come late.
BY_A_WORKER = ("index", "gin")

# These write pages out, and flush their WAL, when they have come round a ring of buffers.
IN_A_RING = ("copy", "into", "view")


@pytest.fixture(scope="module")
def server_of_loads(own_cluster: NewCluster) -> Cluster:
    cluster = own_cluster(CONF)
    with connect(cluster) as connection:
        script(connection, SETUP)
        connection.execute(f"COPY source TO '{source_file(cluster)}'")
    return cluster


@pytest.fixture
def connection(server_of_loads: Cluster) -> Iterator[Connection]:
    with connect(server_of_loads) as connection:
        # Of the server's own, and of the tests before, nothing is left to flush.
        script(connection, "CREATE TABLE flushed (); DROP TABLE flushed; CHECKPOINT")
        yield connection


def source_file(cluster: Cluster) -> Path:
    return cluster.dir / "source.copy"


def wakeups(connection: Connection, scope: str = "server") -> int:
    query = f"SELECT wal_wakeups FROM pg_lookahead_extend() WHERE scope = '{scope}'"
    return int(value(connection, query))


def inserted(connection: Connection) -> int:
    return int(value(connection, "SELECT pg_current_wal_insert_lsn() - '0/0'"))


def unflushed(connection: Connection) -> int:
    query = "SELECT pg_current_wal_insert_lsn() - pg_current_wal_flush_lsn()"
    return int(value(connection, query))


def flushed(connection: Connection, step: int) -> None:
    """Soon nothing is left but what came since it was woken last, and twice that much.

    It writes to the end of its buffers, or of a file, and the rest the next time.  If that was the
    last time, because it got no processor before, there must be another.
    """
    more = f"INSERT INTO filled SELECT * FROM source_of({step * 5 // 4 // ROW})"
    for _ in range(5):
        with contextlib.suppress(AssertionError):
            wait_for(lambda: unflushed(connection) < 2 * step + MB, 0.6)
            return
        connection.execute(more)
    raise AssertionError("the WAL writer was not woken")


@pytest.mark.parametrize("name", FILLING)
def test_flushed_in_the_middle(server_of_loads: Cluster, connection: Connection, name: str) -> None:
    """A transaction that goes on leaves little of its WAL for others to flush."""
    statement = FILLING[name].format(file=source_file(server_of_loads))
    for _ in range(5 if name in BY_A_WORKER else 1):
        before, start = wakeups(connection), inserted(connection)
        connection.execute(f"BEGIN; {statement}")
        made = inserted(connection) - start
        woken = wakeups(connection) - before
        if name not in BY_A_WORKER:
            flushed(connection, STEP)
        connection.execute("ROLLBACK")
        assert made > 4 * STEP
        # One more for what came before.
        assert woken <= made // STEP + 1
        if woken:
            break
    assert woken > 0


@pytest.mark.parametrize(
    "setting", ["pg_lookahead.heap_extend_size = 0", "pg_lookahead.enabled = off"]
)
@pytest.mark.parametrize("name", FILLING)
def test_left_to_the_server(
    server_of_loads: Cluster, connection: Connection, name: str, setting: str
) -> None:
    if name in BY_A_WORKER:
        setting = setting.replace("heap_extend_size", "index_extend_size")
    statement = FILLING[name].format(file=source_file(server_of_loads))
    before = wakeups(connection)
    connection.execute(f"SET {setting}")
    for _ in range(3):
        connection.execute(f"BEGIN; {statement}")
        left = unflushed(connection)
        connection.execute("ROLLBACK")
        # The WAL writer looks by itself now and then.  What went out otherwise was
        # written for lack of WAL buffers, of which there are 16 MB.
        if left > 3 * STEP:
            break
    assert wakeups(connection) == before
    if name not in IN_A_RING:
        assert left > 3 * STEP


@pytest.mark.thorough
def test_build_that_writes_nothing_for_a_while(connection: Connection) -> None:
    """A GIN index is gathered in memory, and written, into the WAL as well, when it is whole."""
    connection.execute(
        "CREATE OR REPLACE FUNCTION keys(a int) RETURNS int[] LANGUAGE plpgsql IMMUTABLE AS $$BEGIN"
        f" IF a = {ROWS} THEN PERFORM pg_sleep(6); END IF;"
        " RETURN (SELECT array_agg(a + i * 1000000) FROM generate_series(1, 5) i); END$$"
    )
    # Nothing before the end.
    connection.execute("SET maintenance_work_mem = '1GB'")
    before, start = wakeups(connection), inserted(connection)
    connection.execute("CREATE INDEX made_gin ON source USING gin (keys(a))")
    assert inserted(connection) - start > 8 * STEP
    assert wakeups(connection) > before
    script(connection, "DROP INDEX made_gin; DROP FUNCTION keys")


@pytest.mark.parametrize("table", ["unlogged", "mine"])
def test_without_wal(connection: Connection, table: str) -> None:
    connection.execute("CREATE TEMPORARY TABLE mine (a int, b text)")
    before = wakeups(connection)
    connection.execute(f"INSERT INTO {table} {MADE}; TRUNCATE {table}")
    assert wakeups(connection) == before


def test_build_without_wal(server_of_loads: Cluster, connection: Connection) -> None:
    """Others' WAL is none of its worker's business."""
    connection.execute(f"INSERT INTO unlogged {MADE}")
    before, start = wakeups(connection), inserted(connection)
    is_over = threading.Event()

    def fill() -> None:
        with connect(server_of_loads) as other:
            other.execute("SET pg_lookahead.heap_extend_size = 0")
            while not is_over.is_set():
                other.execute("BEGIN; INSERT INTO filled SELECT * FROM source; ROLLBACK")

    thread = threading.Thread(target=fill)
    thread.start()
    try:
        wait_for(lambda: inserted(connection) > start + STEP, 60)
        for _ in range(3):
            connection.execute("CREATE INDEX unlogged_a ON unlogged (a, b)")
            connection.execute("DROP INDEX unlogged_a")
    finally:
        is_over.set()
        thread.join()
    assert wakeups(connection) == before
    connection.execute("TRUNCATE filled, unlogged")


def test_short_statements(connection: Connection) -> None:
    """Who commits flushes by himself; nobody is woken for what is less than a step."""
    before = wakeups(connection)
    for _ in range(20):
        connection.execute("INSERT INTO filled SELECT * FROM source LIMIT 10000")
    assert wakeups(connection) == before
    connection.execute("TRUNCATE filled")


def test_several_sessions(server_of_loads: Cluster, connection: Connection) -> None:
    """All of them wake it as often as one would."""
    before, start = wakeups(connection), inserted(connection)
    statement = f"COPY filled FROM '{source_file(server_of_loads)}'"

    def load() -> None:
        with connect(server_of_loads) as session:
            session.execute(statement)

    threads = [threading.Thread(target=load) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    made = inserted(connection) - start
    assert value(connection, "SELECT count(*) FROM filled") == 4 * ROWS
    assert 4 < wakeups(connection) - before <= made // STEP
    connection.execute("TRUNCATE filled")


def test_few_wal_buffers(own_cluster: NewCluster) -> None:
    """A quarter of them is a step, but not less than the WAL writer flushes."""
    for buffers, flush_after, step in (
        ("8MB", "1MB", 2 * MB),
        ("8MB", "3MB", 3 * MB),
        ("8MB", "0", 2 * MB),
        ("64kB", "0", None),
        ("1MB", "1MB", None),
        ("8MB", "16MB", None),
    ):
        conf = {**CONF, "wal_buffers": buffers, "wal_writer_flush_after": flush_after}
        with own_cluster(conf) as cluster, connect(cluster) as connection:
            connection.execute(FILLED)
            start = inserted(connection)
            connection.execute(f"BEGIN; INSERT INTO filled {MADE}")
            made = inserted(connection) - start
            if step is None:
                assert wakeups(connection) == 0
                continue
            assert made // (2 * step) < wakeups(connection) <= made // step
            flushed(connection, step)


def test_loaded_by_a_session(own_cluster: NewCluster) -> None:
    """Without shared memory a session sees what others do by what is flushed."""
    with own_cluster(CONF, preload=False) as cluster, connect(cluster) as connection:
        connection.execute(f"{FILLED}; LOAD 'pg_lookahead'")
        connection.execute("CREATE EXTENSION IF NOT EXISTS pg_lookahead")
        start = inserted(connection)
        connection.execute(f"BEGIN; INSERT INTO filled {MADE}")
        made = inserted(connection) - start
        assert 0 < wakeups(connection, "session") <= made // STEP
        flushed(connection, STEP)
        assert rows(connection, "SELECT * FROM pg_lookahead_extend() WHERE scope = 'server'") == []


def test_vacuum(own_cluster: NewCluster, server: Server) -> None:
    """A VACUUM that is followed."""
    if server.major >= 18:
        pytest.skip("18 reads ahead itself")
    conf = {**FOLLOWED, "wal_writer_delay": "10s", "wal_buffers": "2MB"}
    conf |= {"wal_writer_flush_after": "64kB", "synchronous_commit": "off"}
    with own_cluster(conf) as cluster:
        with connect(cluster) as connection:
            make_maintained(connection)
            for _ in range(5):
                connection.execute("UPDATE maintained SET a = a WHERE a % 20 = 0")
                rest(connection)
                before = wakeups(connection)
                # Each page goes into the WAL as a whole then.
                script(connection, f"CHECKPOINT; {SLOW_VACUUM}; VACUUM maintained")
                rest(connection)
                if wakeups(connection) > before:
                    break
            assert wakeups(connection) > before


def test_crash(own_cluster: NewCluster) -> None:
    """What was flushed in the middle of a transaction is no more than WAL.

    The server starts again by itself, with other shared memory.
    """
    with own_cluster({**CONF, "restart_after_crash": "on"}) as cluster:
        with connect(cluster) as connection:
            connection.execute(f"{FILLED}; INSERT INTO filled {MADE}")
        log = LogWatch(cluster)
        loading = connect(cluster)
        loading.execute(f"BEGIN; INSERT INTO filled {MADE}")
        flushed(loading, STEP)
        os.kill(loading.info.backend_pid, signal.SIGKILL)
        with pytest.raises(psycopg.OperationalError):
            loading.execute("SELECT 1")
        loading.close()
        wait_until_back(cluster, log, 1)
        with connect(cluster) as connection:
            assert wakeups(connection) == 0
            assert value(connection, "SELECT count(*) FROM filled") == ROWS
            connection.execute(f"BEGIN; INSERT INTO filled {MADE}")
            assert wakeups(connection) > 0
            flushed(connection, STEP)
