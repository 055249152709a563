"""Tables that grow ahead of their rows, where somebody has a part in it or ends it."""

from __future__ import annotations

from collections.abc import Iterator

import psycopg
import pytest
from lookahead.cluster import Cluster

from conftest import NewCluster
from extend_support import (
    PARTED,
    ROWS,
    SIXTEENTH,
    STEP,
    answer,
    cluster_with_source,
    counters,
    grows,
    new_session,
    off,
    on,
    pages,
    sound,
)
from support import Connection, connect, rows, script, settings, value

SETUP = """
CREATE TABLE lookup (low int);
INSERT INTO lookup VALUES (50000);
CREATE TABLE written (a int)
"""

# The condition of COPY is simplified, and so calls the function, before COPY has
# its table.  The block makes a subtransaction; what was opened in it goes with it.
LOWEST = """
CREATE OR REPLACE FUNCTION lowest(name text) RETURNS int IMMUTABLE LANGUAGE plpgsql AS $$
DECLARE
    found int;
BEGIN
    BEGIN
        SELECT low INTO found FROM lookup;
    EXCEPTION WHEN division_by_zero THEN
        found := 0;
    END;
    RETURN found;
END $$
"""

# The same with functions that read nothing, write, or write to the table itself.
OTHER_CONDITIONS = """
CREATE OR REPLACE FUNCTION lowest_of_none(name text) RETURNS int IMMUTABLE LANGUAGE sql AS
    'SELECT 50000';
CREATE OR REPLACE FUNCTION lowest_of_made(name text) RETURNS int IMMUTABLE LANGUAGE sql AS
    'SELECT 50000 + count(*)::int - 3 FROM generate_series(1, 3)';
"""
WRITES = """
CREATE OR REPLACE FUNCTION writes(into_table text) RETURNS int VOLATILE LANGUAGE plpgsql AS $$
BEGIN
    BEGIN
        EXECUTE format('INSERT INTO %I VALUES (0)', into_table);
    EXCEPTION WHEN division_by_zero THEN
        RETURN 0;
    END;
    RETURN 50000;
END $$
"""
LOWEST_AFTER_WRITING = """
CREATE OR REPLACE FUNCTION lowest_after_writing(into_table text) RETURNS int IMMUTABLE
LANGUAGE plpgsql AS $$
BEGIN
    RETURN writes(into_table);
END $$
"""

# The same with another COPY, by a function with a setting of its own.
COPIES = """
CREATE OR REPLACE FUNCTION copies(file text, is_undone bool) RETURNS int VOLATILE
LANGUAGE plpgsql SET {} AS $$
BEGIN
    BEGIN
        EXECUTE format('COPY other FROM %L WHERE a <= 1000', file);
        IF is_undone THEN
            RAISE division_by_zero;
        END IF;
    EXCEPTION WHEN division_by_zero THEN
        NULL;
    END;
    RETURN 50000;
END $$
"""
LOWEST_AFTER_COPY = """
CREATE OR REPLACE FUNCTION lowest_after_copy(file text, is_undone bool) RETURNS int IMMUTABLE
LANGUAGE plpgsql AS $$
BEGIN
    RETURN copies(file, is_undone);
END $$
"""

# A row somewhere in the middle makes a scan of the table that is being loaded.
LOOKS_ONCE = """
CREATE OR REPLACE FUNCTION looks_once() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    IF new.a = 70000 THEN
        PERFORM count(*) FROM filled;
    END IF;
    RETURN new;
END $$
"""

# Pages that have rows and are in the free space map as empty.
TAKEN_FOR_EMPTY = """
WITH used AS (SELECT DISTINCT (ctid::text::point)[0]::bigint AS block FROM filled)
SELECT count(*) FROM free_space('filled') f JOIN used ON block = blkno WHERE avail > 8000
"""

# Fails, or is cancelled, at the 90,000th row, or goes through.
STOPS = """
CREATE OR REPLACE FUNCTION stops(a int) RETURNS int LANGUAGE plpgsql AS $$
BEGIN
    IF a = 90000 AND current_setting('test.how') = 'error' THEN
        RAISE division_by_zero;
    ELSIF a = 90000 AND current_setting('test.how') = 'cancel' THEN
        PERFORM pg_cancel_backend(pg_backend_pid());
        PERFORM pg_sleep(10);
    END IF;
    RETURN a;
END$$
"""
STOPPING = {
    "error": psycopg.errors.DivisionByZero,
    "cancel": psycopg.errors.QueryCanceled,
}

# What is there before, the statement, and what it adds to.
STOPPED = {
    "merge": (
        "CREATE TABLE filled (a int, b text)",
        "MERGE INTO filled USING (SELECT stops(a) AS a, b FROM source) s ON false"
        " WHEN NOT MATCHED THEN INSERT VALUES (s.a, s.b)",
        ("filled",),
    ),
    "refresh": (
        "CREATE MATERIALIZED VIEW seen AS SELECT stops(a) AS a, b FROM source",
        "REFRESH MATERIALIZED VIEW seen",
        ("seen",),
    ),
    "routed": (
        PARTED,
        "INSERT INTO filled SELECT stops(a), b FROM source",
        ("filled_0", "filled_1"),
    ),
    "on conflict": (
        "CREATE TABLE filled (a int PRIMARY KEY, b text)",
        "INSERT INTO filled SELECT stops(a), b FROM source"
        " ON CONFLICT (a) DO UPDATE SET b = excluded.b",
        ("filled",),
    ),
    "update": (
        "CREATE TABLE filled (a int, b text); INSERT INTO filled SELECT * FROM source",
        "UPDATE filled SET a = stops(a)",
        ("filled",),
    ),
}


@pytest.fixture(scope="module")
def corners(own_cluster: NewCluster) -> Cluster:
    # Sessions that have ended may take a moment to go.
    cluster = cluster_with_source(own_cluster, settings={"max_connections": "100"})
    with connect(cluster) as connection:
        script(connection, SETUP)
        for statement in (LOWEST, OTHER_CONDITIONS, WRITES, LOWEST_AFTER_WRITING, STOPS):
            connection.execute(statement)
        connection.execute(LOOKS_ONCE)
    return cluster


@pytest.fixture
def connection(corners: Cluster) -> Iterator[Connection]:
    with new_session(corners) as connection:
        yield connection


def test_sessions_that_come_for_one_row(corners: Cluster, connection: Connection) -> None:
    """Each takes an empty page, of which the free space map does not hear.

    The pages that were added are not used up by that, so more are added once at most.
    """
    connection.execute("CREATE TABLE filled AS SELECT * FROM source LIMIT 0")
    connection.execute("INSERT INTO filled SELECT * FROM source")
    before = pages(connection, "filled")
    step = min(STEP, before.size // SIXTEENTH)
    assert before.spare > step // 4, before
    sessions = 4 * step
    for i in range(sessions):
        with connect(corners) as other:
            other.execute("INSERT INTO filled VALUES (%s, 'x')", [-i])
    after = pages(connection, "filled")
    assert value(connection, "SELECT count(*) FROM filled") == ROWS + sessions
    assert after.size <= before.size + step, (before, after)
    sound(connection, "filled")


@pytest.mark.parametrize(
    ("condition", "written"),
    [
        ("lowest('a')", 0),
        ("lowest_of_none('a')", 0),
        ("lowest_of_made('a')", 0),
        ("lowest_after_writing('written')", 0),
        ("lowest_after_writing('{}')", 1),
    ],
)
def test_copy_whose_condition_runs_a_plan(
    corners: Cluster, connection: Connection, condition: str, written: int
) -> None:
    """The table that COPY fills grows ahead, not one that its condition reads or fills."""
    copy = f"COPY {{}} FROM '{corners.dir}/source.copy' WHERE a > {condition}"
    for table, setup in (("plain", off), ("filled", on)):
        setup(connection)
        connection.execute(f"CREATE TABLE {table} (a int, b text)")
        before = counters(connection)
        for _ in range(2):
            connection.execute(copy.replace("{}", table))
        after = counters(connection)
    assert after["added"] > before["added"]
    assert answer(connection, "filled") == answer(connection, "plain")
    count = value(connection, "SELECT count(*) FROM filled")
    assert count == 2 * (ROWS - 50000) + 2 * written
    sound(connection, "filled", "lookup", "written")
    # Nobody has the other tables open any more.
    settings(connection, lock_timeout="5s")
    for table in ("lookup", "written", "filled"):
        script(connection, f"ALTER TABLE {table} ADD extra int; ALTER TABLE {table} DROP extra")


@pytest.mark.parametrize(
    "setting",
    # The last is nothing to us: both are loads of ours.
    ["pg_lookahead.heap_extend_size = 0", "pg_lookahead.enabled = off", "work_mem = '4MB'"],
)
@pytest.mark.parametrize("is_undone", [True, False], ids=["undone", "kept"])
def test_copy_whose_condition_copies(
    corners: Cluster, connection: Connection, is_undone: bool, setting: str
) -> None:
    """The permission that a COPY within asks for is not taken for that of the outer one."""
    file = f"{corners.dir}/source.copy"
    script(connection, "CREATE TABLE other (a int, b text); CREATE TABLE filled (a int, b text)")
    connection.execute(COPIES.replace("{}", setting))
    connection.execute(LOWEST_AFTER_COPY)
    for _ in range(2):
        with grows(connection):
            connection.execute(
                f"COPY filled FROM '{file}' WHERE a > lowest_after_copy('{file}', {is_undone})"
            )
    assert value(connection, "SELECT count(*) FROM filled") == 2 * (ROWS - 50000)
    assert value(connection, "SELECT count(*) FROM other") == (0 if is_undone else 2000)
    sound(connection, "filled", "other")
    # Nobody has the tables open any more.
    settings(connection, lock_timeout="5s")
    for table in ("other", "filled"):
        script(connection, f"ALTER TABLE {table} ADD extra int; ALTER TABLE {table} DROP extra")


def test_scan_in_the_middle_of_a_copy(corners: Cluster, connection: Connection) -> None:
    """Pages that were filled afterwards do not come into the free space map as empty."""
    connection.execute("CREATE TABLE filled (a int, b text)")
    connection.execute(
        "CREATE TRIGGER looks BEFORE INSERT ON filled FOR EACH ROW EXECUTE FUNCTION looks_once()"
    )
    connection.execute(f"COPY filled FROM '{corners.dir}/source.copy'")
    assert counters(connection)["added"] > 0
    assert answer(connection, "filled") == answer(connection, "source")
    assert value(connection, TAKEN_FOR_EMPTY) <= 1
    sound(connection, "filled")
    # What the server has added for itself after the scan, VACUUM finds.
    connection.execute("VACUUM filled")
    assert pages(connection, "filled").lost == 0
    assert rows(connection, "SELECT count(*) FROM filled WHERE a <= 0") == [(0,)]


def test_scan_at_the_end_of_a_copy(corners: Cluster, connection: Connection) -> None:
    """What the load still had then, and has not used, goes into the free space map."""
    last = value(connection, "SELECT max(a) FROM source")
    connection.execute("CREATE TABLE filled (a int, b text)")
    connection.execute(LOOKS_ONCE.replace("70000", str(last - 5)))
    try:
        connection.execute(
            "CREATE TRIGGER looks BEFORE INSERT ON filled"
            " FOR EACH ROW EXECUTE FUNCTION looks_once()"
        )
        connection.execute(f"COPY filled FROM '{corners.dir}/source.copy' WHERE a < 70000")
        before = pages(connection, "filled")
        connection.execute(f"COPY filled FROM '{corners.dir}/source.copy' WHERE a >= 70000")
    finally:
        connection.execute(LOOKS_ONCE)
    assert before.lost == 0
    assert pages(connection, "filled").lost == 0
    assert value(connection, TAKEN_FOR_EMPTY) <= 1
    assert answer(connection, "filled") == answer(connection, "source")


@pytest.mark.parametrize("how", STOPPING)
@pytest.mark.parametrize("name", STOPPED)
def test_stopped_on_the_way(connection: Connection, name: str, how: str) -> None:
    """Statements that fail or are cancelled, by themselves or in a subtransaction."""
    before, statement, tables = STOPPED[name]
    connection.execute("SET test.how = 'none'")
    script(connection, before)
    connection.execute(f"SET test.how = '{how}'")
    with grows(connection), pytest.raises(STOPPING[how]):
        connection.execute(statement)
    connection.execute("BEGIN")
    connection.execute("SAVEPOINT before")
    with pytest.raises(STOPPING[how]):
        connection.execute(statement)
    connection.execute("ROLLBACK TO before")
    connection.execute("SET test.how = 'none'")
    connection.execute(statement)
    connection.execute("COMMIT")
    assert counters(connection)["errors"] == 0
    assert sum(answer(connection, table)[0] for table in tables) == ROWS
    for table in tables:
        # Passes by no page that a checkpoint has pinned.
        connection.execute(f"VACUUM (FREEZE) {table}")
        assert pages(connection, table).lost == 0
        sound(connection, table)
    connection.execute("DROP MATERIALIZED VIEW IF EXISTS seen")


# The row "go" has a trigger fill the table by another COPY, which goes through a parent
# table or not, and fails.
GOES = """
CREATE OR REPLACE FUNCTION goes() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    IF NEW.b = 'go' THEN
        BEGIN
            EXECUTE format('COPY %I FROM %L', TG_ARGV[0], TG_ARGV[1]);
            RAISE EXCEPTION 'enough';
        EXCEPTION WHEN raise_exception THEN
            NULL;
        END;
    END IF;
    RETURN NEW;
END $$
"""


@pytest.mark.parametrize("place", ["first", "later"])
@pytest.mark.parametrize("inner", ["filled", "filled_0"])
def test_copy_in_a_trigger(
    corners: Cluster, connection: Connection, inner: str, place: str
) -> None:
    """What another COPY does to the table on the way is none of a load's business."""
    go = "SELECT 0 AS a, 'go' AS b"
    some = "SELECT * FROM (SELECT * FROM source LIMIT 30000) s"
    both = (go, some) if place == "first" else (some, go, some)
    connection.execute(f"COPY ({' UNION ALL '.join(both)}) TO '{corners.dir}/go.copy'")
    connection.execute(GOES)
    script(
        connection,
        f"""
        CREATE TABLE filled (a int, b text) PARTITION BY RANGE (a);
        CREATE TABLE filled_0 PARTITION OF filled DEFAULT;
        CREATE TRIGGER goes BEFORE INSERT ON filled_0 FOR EACH ROW
            EXECUTE FUNCTION goes('{inner}', '{corners.dir}/source.copy')
        """,
    )
    if inner == "filled_0":
        # The inner one is no load of its own.
        connection.execute("ALTER FUNCTION goes() SET pg_lookahead.heap_extend_size = 0")
    before = counters(connection)["added"]
    connection.execute(f"COPY filled_0 FROM '{corners.dir}/go.copy'")
    # The state that brings the first row is taken for the load's.
    assert counters(connection)["added"] > before or (inner, place) == ("filled_0", "first")
    assert value(connection, "SELECT count(*) FROM filled_0") == both.count(some) * 30000 + 1
    sound(connection, "filled_0")
    connection.execute("VACUUM (FREEZE) filled_0")
    assert pages(connection, "filled_0").lost == 0
    connection.execute("DROP TABLE filled; DROP FUNCTION goes")
