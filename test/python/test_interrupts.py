"""Scans that do not come to their end: cancelled, failed, rolled back, killed.

After each the session (or the server, if the session is gone) goes on as if
nothing had been looked ahead: no pin is left, nothing is in flight, the next
query gives the right rows.
"""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Callable

import psycopg
import pytest
from lookahead.cluster import Cluster

from conftest import NewCluster
from support import (
    END_OF_WAL,
    INDEX_SCANS,
    Connection,
    LogWatch,
    Row,
    Variant,
    cold,
    conf_of,
    connect,
    gained,
    no_pins,
    no_timeout,
    require_node,
    rows,
    script,
    seed,
    session,
    settings,
    signal_backend,
    until,
    use,
    value,
    wait_for,
)

ROWS = 4000

SETUP = f"""
CREATE TABLE ends (a int, b int, filler text) WITH (fillfactor = 20);
INSERT INTO ends SELECT i, i % 40, repeat('x', 120) FROM generate_series(1, {ROWS}) i
 ORDER BY md5(i::text);
CREATE INDEX ends_a ON ends (a);
CREATE INDEX ends_b ON ends USING hash (b);
VACUUM ANALYZE ends;
CREATE FUNCTION fails_at(a int, n int) RETURNS int LANGUAGE plpgsql AS
'BEGIN IF a = n THEN RAISE EXCEPTION ''row %'', n USING errcode = ''LA002''; END IF; RETURN a; END'
"""

SCAN = "SELECT a, length(filler) FROM ends ORDER BY a"
# Always broken off: after a quick begin it lasts longer than a busy machine is late.
SLOW = """
SELECT a, length(filler), pg_sleep(CASE WHEN a <= 400 THEN 0.002 ELSE 0.01 END)
  FROM ends ORDER BY a
"""
ALL_ROWS = [(i, 120) for i in range(1, ROWS + 1)]


def create(cluster: Cluster) -> None:
    with connect(cluster) as connection:
        if value(connection, "SELECT to_regclass('ends')") is None:
            # The function's body has no semicolon that script() must not see.
            statements, function = SETUP.split("CREATE FUNCTION")
            script(connection, statements)
            connection.execute("CREATE FUNCTION" + function)


def start(cluster: Cluster, variant: Variant, **more: object) -> Connection:
    """Connect, ready to look ahead on a cold table."""
    connection = connect(cluster)
    use(connection, variant, **INDEX_SCANS)
    require_node(connection, SCAN, "Index Scan", "ends_a")
    cold(connection, "ends")
    settings(connection, **more)
    return connection


def check(cluster: Cluster, connection: Connection) -> None:
    """The session is as good as new."""
    assert session(connection).reads_in_flight == 0
    if connection.info.transaction_status == psycopg.pq.TransactionStatus.INERROR:
        connection.execute("ROLLBACK")
    settings(connection, statement_timeout="60s")
    no_pins(cluster)
    with gained(connection):
        assert rows(connection, SCAN) == ALL_ROWS
    cold(connection, "ends")
    with gained(connection) as change:
        assert rows(connection, SCAN) == ALL_ROWS
    assert change.scans >= 1


@pytest.fixture
def tables(cluster: Cluster) -> Cluster:
    create(cluster)
    return cluster


def test_error_in_the_query(tables: Cluster, variant: Variant) -> None:
    with start(tables, variant) as connection:
        for n in (1, 2, 9, 100, 1000, ROWS):
            cold(connection, "ends")
            with pytest.raises(psycopg.errors.DivisionByZero):
                rows(connection, f"SELECT 1 / (a - {n}), filler FROM ends ORDER BY a")
            assert session(connection).reads_in_flight == 0
        check(tables, connection)


def test_error_in_a_function(tables: Cluster, variant: Variant) -> None:
    with start(tables, variant) as connection:
        with pytest.raises(psycopg.Error, match="row 77"):
            rows(connection, "SELECT fails_at(a, 77), filler FROM ends ORDER BY a")
        check(tables, connection)


def test_statement_timeout(tables: Cluster, variant: Variant) -> None:
    """Cancelled wherever it happens to be: often, as that is mostly in the middle."""
    choice = random.Random(seed())
    cancelled = 0
    with start(tables, variant) as connection:
        for _ in range(40):
            cold(connection, "ends")
            settings(connection, statement_timeout=f"{choice.randint(1, 12)}ms")
            try:
                assert rows(connection, SCAN) == ALL_ROWS
            except psycopg.errors.QueryCanceled:
                cancelled += 1
            no_timeout(connection)
            assert session(connection).reads_in_flight == 0
        check(tables, connection)
    assert cancelled > 0


class Background:
    """A query that runs in a thread of its own."""

    def __init__(self, connection: Connection, query: str) -> None:
        self.error: psycopg.Error | None = None
        self.connection = connection
        self.thread = threading.Thread(target=self._run, args=(query,))
        self.thread.start()

    def _run(self, query: str) -> None:
        try:
            self.connection.execute(query).fetchall()
        except psycopg.Error as error:
            self.error = error

    def join(self) -> psycopg.Error | None:
        self.thread.join(90)
        assert not self.thread.is_alive()
        return self.error


def until_active(other: Connection, pid: int) -> None:
    """Wait until the query of a session has come to its backend."""
    until(
        other,
        f"EXISTS (SELECT FROM pg_stat_activity WHERE pid = {pid} AND state = 'active'"
        " AND query LIKE '%FROM ends%')",
    )


def test_cancel(tables: Cluster, variant: Variant) -> None:
    # No other cancel than the one that is sent.
    with start(tables, variant, statement_timeout=0) as connection, connect(tables) as other:
        query = Background(connection, SLOW)
        until_active(other, connection.info.backend_pid)
        time.sleep(0.3)
        assert value(other, "SELECT pg_cancel_backend(%s)", (connection.info.backend_pid,))
        assert isinstance(query.join(), psycopg.errors.QueryCanceled)
        check(tables, connection)


@pytest.mark.log_may_have("terminating connection due to administrator command")
def test_terminate(tables: Cluster, variant: Variant) -> None:
    with connect(tables) as other:
        for pause in (0.001, 0.01, 0.05, 0.2):
            connection = start(tables, variant)
            query = Background(connection, SLOW)
            time.sleep(pause)
            # The client hears of it before the pins are gone.
            terminate = "SELECT pg_terminate_backend(%s, 60000)"
            assert value(other, terminate, (connection.info.backend_pid,))
            assert query.join() is not None
            connection.close()
        no_pins(tables)
    with start(tables, variant) as connection:
        check(tables, connection)


@pytest.mark.log_may_have("terminating connection due to administrator command")
def test_terminate_idle_cursor(tables: Cluster, variant: Variant) -> None:
    connection = start(tables, variant)
    connection.execute(f"BEGIN; DECLARE c CURSOR FOR {SCAN}")
    assert rows(connection, "FETCH 10 FROM c") == ALL_ROWS[:10]
    with connect(tables) as other:
        terminate = "SELECT pg_terminate_backend(%s, 60000)"
        assert value(other, terminate, (connection.info.backend_pid,))
    connection.close()
    with start(tables, variant) as connection:
        check(tables, connection)


# ---------------------------------------------------------------------------
# Transactions and subtransactions


def test_rollback_with_open_cursors(tables: Cluster, variant: Variant) -> None:
    with start(tables, variant) as connection:
        connection.execute("BEGIN")
        for name in ("c", "d", "e"):
            connection.execute(f"DECLARE {name} CURSOR FOR {SCAN}")
            assert rows(connection, f"FETCH 10 FROM {name}") == ALL_ROWS[:10]
        connection.execute("ROLLBACK")
        check(tables, connection)


def test_subtransactions_under_a_cursor(tables: Cluster, variant: Variant) -> None:
    """Savepoints come and go while the cursor moves on."""
    choice = random.Random(seed())
    with start(tables, variant) as connection:
        connection.execute("BEGIN")
        if choice.random() < 0.5:
            connection.execute("SAVEPOINT outermost")
        connection.execute(f"DECLARE c CURSOR FOR {SCAN}")
        found: list[Row] = []
        while len(found) < ROWS:
            connection.execute("SAVEPOINT s")
            # Fetched rows stay fetched when the savepoint goes.
            found += rows(connection, f"FETCH {choice.choice((1, 20, 300))} FROM c")
            what = choice.choice(("release", "rollback", "error"))
            if what == "error":
                with pytest.raises(psycopg.errors.DivisionByZero):
                    connection.execute("SELECT 1 / 0")
            connection.execute("RELEASE s" if what == "release" else "ROLLBACK TO s")
        assert found == ALL_ROWS
        with gained(connection) as change:
            connection.execute("COMMIT")
        assert change.scans >= 1
        check(tables, connection)


def test_cursor_of_a_subtransaction(tables: Cluster, variant: Variant) -> None:
    with start(tables, variant) as connection:
        connection.execute("BEGIN")
        for _ in range(3):
            connection.execute("SAVEPOINT s")
            connection.execute(f"DECLARE c CURSOR FOR {SCAN}")
            assert rows(connection, "FETCH 15 FROM c") == ALL_ROWS[:15]
            connection.execute("ROLLBACK TO s")
            with pytest.raises(psycopg.errors.InvalidCursorName):
                connection.execute("SAVEPOINT t; FETCH c")
            connection.execute("ROLLBACK TO s")
        connection.execute("COMMIT")
        check(tables, connection)


def test_cursor_that_fails_in_a_subtransaction(tables: Cluster, variant: Variant) -> None:
    with start(tables, variant) as connection:
        connection.execute("BEGIN")
        connection.execute(
            "DECLARE c CURSOR FOR SELECT fails_at(a, 200), length(filler) FROM ends ORDER BY a"
        )
        assert rows(connection, "FETCH 150 FROM c") == ALL_ROWS[:150]
        connection.execute("SAVEPOINT s")
        with pytest.raises(psycopg.Error, match="row 200"):
            rows(connection, "FETCH 100 FROM c")
        connection.execute("ROLLBACK TO s")
        # What was in flight ends by itself; with io_uring when somebody looks.
        no_pins(tables)
        if variant.io_method != "io_uring":
            wait_for(lambda: session(connection).reads_in_flight == 0, 30, "reads are in flight")
        with connect(tables) as other:
            settings(other, statement_timeout="60s")
            other.execute("VACUUM (FREEZE, DISABLE_PAGE_SKIPPING) ends")
        assert rows(connection, SCAN) == ALL_ROWS
        with pytest.raises(psycopg.errors.ObjectNotInPrerequisiteState):
            rows(connection, "FETCH c")
        connection.execute("ROLLBACK")
        check(tables, connection)


def test_end_while_a_catalog_is_locked(tables: Cluster, variant: Variant) -> None:
    """The end of a query looks nothing up: it would wait for who has the catalog."""
    with start(tables, variant) as connection, connect(tables) as other:
        cold(connection, "ends")
        settings(connection, lock_timeout="3s")
        with gained(connection) as change:
            with connection.transaction():
                connection.execute(f"DECLARE c CURSOR FOR {SCAN}")
                assert rows(connection, f"FETCH {ROWS // 2} FROM c") == ALL_ROWS[: ROWS // 2]
                # What the session keeps of the table is stale, and it hears of that.
                other.execute("ALTER TABLE ends SET (autovacuum_enabled = off)")
                value(connection, "SELECT count(*) FROM pg_am")
                with other.transaction():
                    other.execute("LOCK TABLE pg_class IN ACCESS EXCLUSIVE MODE")
                    connection.execute("CLOSE c")
        assert change.scans > 0
        other.execute("ALTER TABLE ends RESET (autovacuum_enabled)")
        check(tables, connection)


def test_exceptions_in_a_function(tables: Cluster, variant: Variant) -> None:
    """A query that fails again and again within one statement."""
    with start(tables, variant) as connection:
        connection.execute(
            f"""
            DO $$
            DECLARE n int; failed int := 0;
            BEGIN
                FOR i IN 1..60 LOOP
                    BEGIN
                        SELECT count(fails_at(a, i * 31)) INTO n
                          FROM (SELECT a, filler FROM ends ORDER BY a OFFSET 0) t;
                    EXCEPTION WHEN SQLSTATE 'LA002' THEN
                        failed := failed + 1;
                    END;
                END LOOP;
                SELECT count(length) INTO n FROM ({SCAN} OFFSET 0) t;
                ASSERT failed = 60 AND n = {ROWS};
            END $$
            """
        )
        check(tables, connection)


# ---------------------------------------------------------------------------
# Crashes


@pytest.fixture(scope="module")
def crashing(own_cluster: NewCluster) -> Callable[[Variant], Cluster]:
    made: dict[str | None, Cluster] = {}

    def get(variant: Variant) -> Cluster:
        if variant.io_method not in made:
            conf = {"restart_after_crash": "on", **conf_of(variant.io_method)}
            made[variant.io_method] = own_cluster(conf)
            create(made[variant.io_method])
        return made[variant.io_method]

    return get


def has_crashed(log: LogWatch, crashes: int, seconds: float) -> bool:
    """Wait until the server has gone through so many crashes; whether it has."""
    end = time.monotonic() + seconds
    while log.text().count("reinitializing") < crashes:
        if time.monotonic() > end:
            return False
        time.sleep(0.1)
    return True


def wait_until_back(cluster: Cluster, log: LogWatch, crashes: int) -> None:
    """Wait until the server has gone through so many crashes, and lets sessions in again."""
    assert has_crashed(log, crashes, seconds=60), "the server did not notice"
    end = time.monotonic() + 120
    while time.monotonic() < end:
        try:
            connect(cluster).close()
        except psycopg.OperationalError:
            time.sleep(0.1)
        else:
            return
    raise AssertionError("the server did not come back")


def test_sigkill(crashing: Callable[[Variant], Cluster], variant: Variant) -> None:
    cluster = crashing(variant)
    expected = (
        r"terminated by signal 9|recovery|not yet accepting|because of crash of another"
        r"|terminating connection|shutting down|starting up"
    )
    with LogWatch(cluster, allowed=[expected, END_OF_WAL]) as log:
        for crashes, query in enumerate((SLOW, SCAN), 1):
            connection = start(cluster, variant)
            pid = connection.info.backend_pid
            background = Background(connection, query)
            time.sleep(0.1 if query is SLOW else 0.004)
            signal_backend(pid, "KILL")
            background.join()
            connection.close()
            wait_until_back(cluster, log, crashes)
        with start(cluster, variant) as connection:
            check(cluster, connection)


def test_immediate_shutdown(crashing: Callable[[Variant], Cluster], variant: Variant) -> None:
    cluster = crashing(variant)
    expected = "immediate shutdown|terminating|recovery|not yet|starting"
    with LogWatch(cluster, allowed=[expected, END_OF_WAL]):
        connection = start(cluster, variant)
        connection.execute(f"BEGIN; DECLARE c CURSOR FOR {SCAN}")
        rows(connection, "FETCH 10 FROM c")
        cluster.restart("immediate")
        connection.close()
        with start(cluster, variant) as connection:
            check(cluster, connection)


def test_fast_shutdown_mid_scan(crashing: Callable[[Variant], Cluster], variant: Variant) -> None:
    cluster = crashing(variant)
    with LogWatch(cluster, allowed=["terminating connection"]):
        connection = start(cluster, variant)
        background = Background(connection, SLOW)
        time.sleep(0.1)
        cluster.restart("fast")
        assert background.join() is not None
        connection.close()
        with start(cluster, variant) as connection:
            check(cluster, connection)
