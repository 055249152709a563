"""INSERT knows where its page is: the buffer of the target page is remembered.

Without that each row looks its page up in the shared table of buffers, which
shows as one hit of the table per row.  What must not change is everything else:
rows, their place, how long a page stays in shared buffers, and that nothing is
kept pinned while somebody else is at work.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from functools import partial
from itertools import cycle

import psycopg
import pytest
from lookahead.cluster import Cluster

from conftest import NewCluster
from extend_support import (
    LOADS_OF_ONE_TABLE,
    ROWS,
    answer,
    cluster_with_source,
    load,
    new_session,
    off,
    on,
    sound,
)
from support import (
    Connection,
    at_work,
    comes_with,
    connect,
    has_extension,
    need_extensions,
    pins,
    rows,
    script,
    settings,
    until,
    value,
)

# So often a use of a page counts.
MAX_USAGE = 5


@pytest.fixture(scope="module")
def filling(own_cluster: NewCluster) -> Cluster:
    cluster = cluster_with_source(own_cluster)
    for name in ("pg_buffercache", "pg_visibility"):
        has_extension(cluster, name)
    return cluster


@pytest.fixture
def connection(filling: Cluster) -> Iterator[Connection]:
    with new_session(filling) as connection:
        yield connection


def hits(connection: Connection, table: str) -> int:
    """How often a page of a table was looked up, and found, by this session."""
    connection.execute("SELECT pg_stat_force_next_flush()")
    connection.execute("SELECT pg_stat_clear_snapshot()")
    return int(value(connection, f"SELECT pg_stat_get_blocks_hit('{table}'::regclass)"))


def leaves(connection: Connection, *tables: str) -> list[str]:
    query = "SELECT relid::regclass::text FROM pg_partition_tree('{}') WHERE isleaf"
    return [
        str(leaf)
        for table in tables
        for (leaf,) in rows(connection, query.format(table)) or [(table,)]
    ]


def size(connection: Connection, table: str) -> int:
    parts = leaves(connection, table)
    return sum(int(value(connection, f"SELECT pg_relation_size('{p}') / 8192")) for p in parts)


def rows_in_place(connection: Connection, table: str) -> list[tuple[object, ...]]:
    return rows(connection, f"SELECT ctid::text, * FROM {table} ORDER BY ctid")


def compare(connection: Connection, *tables: str) -> None:
    """Rows and pages as they are without; the visibility map tells no lies."""
    found = [answer(connection, table) for table in tables]
    assert found[0] == found[1]
    parts = leaves(connection, *tables)
    sound(connection, *parts)
    if comes_with(connection, "pg_visibility"):
        for part in parts:
            assert rows(connection, f"SELECT * FROM pg_check_visible('{part}')") == []
            assert rows(connection, f"SELECT * FROM pg_check_frozen('{part}')") == []


STATEMENTS = {
    "select": ("INSERT INTO {} SELECT * FROM source", True),
    "values": (f"INSERT INTO {{}} VALUES {', '.join(['(1, NULL)'] * 2000)}", True),
    "returning": (
        "WITH new AS (INSERT INTO {} SELECT * FROM source RETURNING *) SELECT count(*) FROM new",
        True,
    ),
    "merge": (
        "MERGE INTO {} USING source ON {}.a = source.a"
        " WHEN NOT MATCHED THEN INSERT VALUES (source.a, source.b)",
        # Its join scans the table.
        False,
    ),
    "merge with an index": (
        "SET enable_seqscan = off; SET enable_hashjoin = off; SET enable_mergejoin = off;"
        "CREATE INDEX ON {} (a);"
        "MERGE INTO {} USING source ON {}.a = source.a"
        " WHEN NOT MATCHED THEN INSERT VALUES (source.a, source.b); RESET ALL",
        True,
    ),
    "part of a load": (
        "CREATE TABLE other_{} AS WITH new AS (INSERT INTO {} SELECT * FROM source RETURNING *)"
        " SELECT * FROM new; DROP TABLE other_{}",
        True,
    ),
    "itself": ("INSERT INTO {} SELECT * FROM source; INSERT INTO {} SELECT * FROM {}", None),
}


@pytest.mark.parametrize("name", STATEMENTS)
def test_rows_look_nothing_up(connection: Connection, name: str) -> None:
    """A page is looked up a few times, not for each of its rows."""
    statement, gains = STATEMENTS[name]
    looked = {}
    for table, setup in (("plain", off), ("filled", on)):
        setup(connection)
        connection.execute(f"CREATE TABLE {table} (a int, b text)")
        script(connection, statement.replace("{}", table))
        looked[table] = hits(connection, table)
    inserted = value(connection, "SELECT count(*) FROM filled")
    assert looked["plain"] >= inserted * 0.9
    if gains:
        assert looked["filled"] < inserted / 4, looked
    compare(connection, "filled", "plain")
    assert rows_in_place(connection, "filled") == rows_in_place(connection, "plain")


def test_pages_stay_as_long(filling: Cluster, connection: Connection) -> None:
    """Pages that were filled are as dear to the buffer manager as without."""
    need_extensions(filling, "pg_buffercache")
    usage = {}
    for table, setup in (("plain", off), ("filled", on)):
        setup(connection)
        connection.execute(f"CREATE TABLE {table} (a int, b text)")
        connection.execute(f"INSERT INTO {table} SELECT * FROM source")
        usage[table] = dict(
            rows(
                connection,
                "SELECT usagecount, count(*) FROM pg_buffercache"
                f" WHERE relfilenode = pg_relation_filenode('{table}') AND relforknumber = 0"
                f" AND reldatabase = (SELECT oid FROM pg_database"
                "  WHERE datname = current_database()) GROUP BY 1",
            )
        )
    # The sweep may have passed some.
    full = {table: counts.get(MAX_USAGE, 0) for table, counts in usage.items()}
    assert full["filled"] >= full["plain"] * 0.95 > 0, usage


MORE = {
    "rows of all lengths": """
        CREATE TABLE {} (a int, b text);
        ALTER TABLE {} ALTER b SET STORAGE PLAIN;
        INSERT INTO {} SELECT a, repeat('x', a % 2000) FROM source LIMIT 20000
        """,
    "large values": """
        CREATE TABLE {} (a int, b text);
        ALTER TABLE {} ALTER b SET STORAGE EXTERNAL;
        INSERT INTO {} SELECT a, repeat('x', CASE a % 5 WHEN 0 THEN 9000 ELSE 10 END)
          FROM source LIMIT 20000
        """,
    "room left on pages": """
        CREATE TABLE {} (a int, b text) WITH (fillfactor = 30);
        INSERT INTO {} SELECT * FROM source
        """,
    "pages all visible": """
        CREATE TABLE {} (a int, b text);
        INSERT INTO {} SELECT * FROM source;
        DELETE FROM {} WHERE a % 3 = 0;
        VACUUM (FREEZE) {};
        INSERT INTO {} SELECT * FROM source LIMIT 70000
        """,
    "two tables in turn": """
        CREATE TABLE {} (a int, b text);
        CREATE TABLE other (a int, b text);
        CREATE FUNCTION pass() RETURNS trigger LANGUAGE plpgsql AS $$BEGIN
          INSERT INTO other SELECT NEW.a + i, NEW.b FROM generate_series(1, 2) i@
          RETURN NEW@ END$$;
        CREATE TRIGGER pass BEFORE INSERT ON {} FOR EACH ROW EXECUTE FUNCTION pass();
        INSERT INTO {} SELECT * FROM source LIMIT 20000;
        INSERT INTO {} SELECT a, b FROM other
        """,
    "the same table from a trigger": """
        CREATE TABLE {} (a int, b text);
        CREATE FUNCTION pass() RETURNS trigger LANGUAGE plpgsql AS $$BEGIN
          IF pg_trigger_depth() = 1 THEN
            BEGIN
              INSERT INTO {} SELECT NEW.a + i, NEW.b FROM generate_series(1, 3) i
                WHERE 1 / (NEW.a % 3) >= 0@
            EXCEPTION WHEN division_by_zero THEN
              INSERT INTO {} VALUES (-NEW.a, NULL), (-NEW.a, 'x')@
            END@
          END IF@
          RETURN NEW@ END$$;
        CREATE TRIGGER pass BEFORE INSERT ON {} FOR EACH ROW EXECUTE FUNCTION pass();
        INSERT INTO {} SELECT * FROM source LIMIT 10000
        """,
    "a load in an insert in a load": """
        CREATE TABLE {} (a int, b text);
        CREATE FUNCTION pass() RETURNS trigger LANGUAGE plpgsql AS $$BEGIN
          IF pg_trigger_depth() = 1 AND NEW.a % 20000 = 0 THEN
            INSERT INTO {} SELECT -a, b FROM source LIMIT 100@
          ELSIF pg_trigger_depth() = 2 AND NEW.a % 50 = 0 THEN
            COPY {} FROM '%s/source.copy' WHERE a % 1000 = 0@
          END IF@
          RETURN NEW@ END$$;
        CREATE TRIGGER pass BEFORE INSERT ON {} FOR EACH ROW EXECUTE FUNCTION pass();
        COPY {} FROM '%s/source.copy'
        """,
    "partitions": """
        CREATE TABLE {} (a int, b text) PARTITION BY HASH (a);
        CREATE TABLE {}_0 PARTITION OF {} FOR VALUES WITH (MODULUS 2, REMAINDER 0);
        CREATE TABLE {}_1 PARTITION OF {} FOR VALUES WITH (MODULUS 2, REMAINDER 1);
        INSERT INTO {} SELECT * FROM source;
        MERGE INTO {} f USING (SELECT a + 50000 AS a, b FROM source) s ON f.a = s.a
          WHEN MATCHED THEN UPDATE SET b = 'x' WHEN NOT MATCHED THEN INSERT VALUES (s.a, s.b)
        """,
    "two parts that insert": """
        CREATE TABLE {} (a int, b text);
        CREATE TABLE other (a int, b text);
        WITH x AS (INSERT INTO other SELECT * FROM source RETURNING *),
             y AS (INSERT INTO {} SELECT * FROM x RETURNING *)
          INSERT INTO {} SELECT * FROM y
        """,
    "undone": """
        CREATE TABLE {} (a int, b text);
        BEGIN;
        INSERT INTO {} SELECT * FROM source;
        SAVEPOINT s;
        INSERT INTO {} SELECT * FROM source LIMIT 5000;
        ROLLBACK TO s;
        INSERT INTO {} SELECT * FROM source LIMIT 500;
        TRUNCATE {};
        INSERT INTO {} SELECT * FROM source LIMIT 50000;
        COMMIT
        """,
}


@pytest.mark.parametrize("name", MORE)
def test_same_rows(filling: Cluster, connection: Connection, name: str) -> None:
    """The same rows on about as many pages, however they come."""
    for table, setup in (("plain", off), ("filled", on)):
        setup(connection)
        script(connection, "DROP TABLE IF EXISTS other; DROP FUNCTION IF EXISTS pass CASCADE")
        load(connection, filling, MORE[name], table)
    compare(connection, "filled", "plain")
    assert size(connection, "filled") <= size(connection, "plain") * 9 / 8


@pytest.mark.parametrize("name", ("insert", "unlogged"))
def test_beside_vacuum(filling: Cluster, connection: Connection, name: str) -> None:
    """Pages that others clean up, and pages that leave shared buffers."""
    stop = threading.Event()

    def repeat(*statements: str) -> None:
        with connect(filling) as other:
            settings(other, statement_timeout="300s")
            for statement in cycle(statements):
                if stop.is_set():
                    break
                other.execute(statement)

    settings(connection, statement_timeout="300s")
    connection.execute("CREATE TABLE other (a int, b text)")
    load(connection, filling, LOADS_OF_ONE_TABLE[name], "filled")
    beside = (
        ["VACUUM (FREEZE, DISABLE_PAGE_SKIPPING) filled"],
        ["DELETE FROM filled WHERE a % 7 = 0 AND b IS NOT NULL"],
        ["SELECT count(*) FROM source"],
        # Most of shared buffers, and no more however slow the machine is.
        ["INSERT INTO other SELECT * FROM source LIMIT 10000"] * 40 + ["TRUNCATE other"],
    )
    with at_work(*(partial(repeat, *statements) for statements in beside), seconds=300):
        try:
            for i in range(5):
                connection.execute(
                    f"INSERT INTO filled SELECT a + {(i + 1) * ROWS}, NULL FROM source"
                )
        finally:
            stop.set()
    assert value(connection, "SELECT count(*) FROM filled WHERE b IS NULL") == 5 * ROWS
    sound(connection, "filled", "other")


def test_nothing_is_pinned_between_rows(filling: Cluster, connection: Connection) -> None:
    """VACUUM, who must clean up the page, waits for no statement that waits."""
    connection.execute("CREATE TABLE filled (a int, b text)")
    connection.execute(
        "CREATE OR REPLACE FUNCTION held(i int) RETURNS int LANGUAGE plpgsql AS $$BEGIN"
        " IF i = 30 THEN PERFORM pg_advisory_xact_lock(7); END IF; RETURN i; END$$"
    )
    with connect(filling) as holder, connect(filling) as cleaner:
        holder.execute("SELECT pg_advisory_lock(7)")

        def fill() -> None:
            with connect(filling) as other:
                # Longer than VACUUM, which is to be the one that fails.
                settings(other, statement_timeout="150s")
                other.execute(
                    "INSERT INTO filled SELECT held(i), 'x' FROM generate_series(1, 60) i"
                )

        with at_work(fill):
            try:
                until(
                    connection,
                    "count(*) = 1 FROM pg_stat_activity WHERE wait_event = 'advisory'",
                )
                assert size(connection, "filled") == 1
                if comes_with(connection, "pg_buffercache"):
                    assert pins(connection, "filled") == []
                cleaner.execute("SET statement_timeout = '60s'")
                cleaner.execute("VACUUM (FREEZE, DISABLE_PAGE_SKIPPING) filled")
            finally:
                holder.execute("SELECT pg_advisory_unlock(7)")
    assert value(connection, "SELECT count(*) FROM filled") == 60
    sound(connection, "filled")


FAILING = {
    "error": "INSERT INTO filled SELECT a, 1 / (a - 3000) FROM source",
    "cancel": "INSERT INTO filled SELECT s.* FROM source s, generate_series(1, 100)",
    "part of a load": "CREATE TABLE other AS WITH new AS ("
    "INSERT INTO filled SELECT a, 1 / (a - 3000) FROM source RETURNING *) SELECT * FROM new",
}


@pytest.mark.parametrize("name", FAILING)
def test_after_an_error(connection: Connection, name: str) -> None:
    """A statement that fails leaves an ordinary table, to the one around it as well.

    Single rows look their page up: if they do not, the statement has left its way behind.
    """
    connection.execute("CREATE TABLE filled (a int, b text)")
    connection.execute("INSERT INTO filled SELECT * FROM source LIMIT 5000")
    error = "query_canceled" if name == "cancel" else "division_by_zero"

    def fail(milliseconds: int) -> None:
        with connection.transaction():
            if name == "cancel":
                connection.execute(f"SET LOCAL statement_timeout = {milliseconds}")
            connection.execute(
                f"""DO $$BEGIN
                  BEGIN {FAILING[name]}; EXCEPTION WHEN {error} THEN NULL; END;
                END$$"""
            )

    try:
        fail(300)
    except psycopg.errors.QueryCanceled:
        # A busy machine had not come to the inner statement by then.
        fail(3000)
    before = hits(connection, "filled")
    with connection.transaction():
        for _ in range(200):
            connection.execute("INSERT INTO filled VALUES (1, 'x')")
    # The first may take a page that is not there yet, or that has to be read.
    assert hits(connection, "filled") - before >= 200 - 10, "each looks it up"
    before = hits(connection, "filled")
    connection.execute("INSERT INTO filled SELECT * FROM source")
    # 22 to 26 hits for 100 rows: where the free space map sends them depends on what was undone.
    assert hits(connection, "filled") - before < ROWS / 2, "it is known again"
    assert value(connection, "SELECT count(*) FROM filled") == 5000 + 200 + ROWS
    sound(connection, "filled")
