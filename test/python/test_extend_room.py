"""Room that is elsewhere in a table: it is used before the table grows, and grows less for it.

Pages in advance must not keep a load from what VACUUM has freed, or a table that
lives on such room grows for ever; nor may VACUUM want them back.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import nullcontext

import psycopg
import pytest
from lookahead.cluster import Cluster

from conftest import NewCluster
from extend_support import (
    AT_LEAST_BUFFERED,
    ROWS,
    ROWS_ON_A_PAGE,
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
    write_copy_that_fails,
)
from support import Connection, at_work, connect, until, value

# Pages of a table that one page of its free space map is for.
MAP_PAGE = 4069


@pytest.fixture(scope="module")
def loaded(own_cluster: NewCluster) -> Cluster:
    return cluster_with_source(own_cluster)


@pytest.fixture
def connection(loaded: Cluster) -> Iterator[Connection]:
    with new_session(loaded) as connection:
        yield connection


def fill_first(connection: Connection, table: str, statement: str) -> None:
    """Fill a table for the first time; "filled" grows ahead of its rows."""
    with grows(connection) if table == "filled" else nullcontext():
        connection.execute(statement)


def test_room_elsewhere_is_used_first(connection: Connection) -> None:
    """Where VACUUM has made room, that is used before the table grows."""
    connection.execute("CREATE TABLE filled AS SELECT * FROM source LIMIT 0")
    connection.execute("INSERT INTO filled SELECT * FROM source")
    connection.execute("INSERT INTO filled SELECT * FROM source")
    connection.execute(
        "DELETE FROM filled WHERE (ctid::text::point)[0] BETWEEN 100 AND 100 + "
        " (SELECT pg_relation_size('filled') / 8192 / 10)"
    )
    connection.execute("VACUUM filled")
    before = pages(connection, "filled")
    room = before.size - before.used - min(STEP, before.size // SIXTEENTH)
    assert room > before.size // 20, before
    connection.execute(f"INSERT INTO filled SELECT * FROM source LIMIT {room * ROWS_ON_A_PAGE}")
    after = pages(connection, "filled")
    assert after.size == before.size, (before, after)
    assert after.used >= before.used + room - 1, (before, after)


@pytest.mark.parametrize("statement", ["insert", "copy"])
def test_rows_that_come_and_go(loaded: Cluster, connection: Connection, statement: str) -> None:
    """A table that lives on the room that VACUUM makes does not grow for ever."""
    connection.execute(f"COPY (SELECT * FROM source LIMIT 30000) TO '{loaded.dir}/some.copy'")
    for table, setup in (("filled", on), ("plain", off)):
        setup(connection)
        connection.execute(f"CREATE TABLE {table} (n serial, a int, b text)")
        fill_first(connection, table, f"INSERT INTO {table} (a, b) SELECT * FROM source")
        for turn in range(12):
            # Half of the rows of all pages, or all rows of some.
            which = "n % 2 = 0" if turn % 2 else f"n <= (SELECT min(n) + 15000 FROM {table})"
            connection.execute(
                f"DELETE FROM {table} WHERE n IN"
                f" (SELECT n FROM {table} WHERE {which} ORDER BY n LIMIT 30000)"
            )
            connection.execute(f"VACUUM {table}")
            if statement == "copy":
                connection.execute(f"COPY {table} (a, b) FROM '{loaded.dir}/some.copy'")
            else:
                connection.execute(f"INSERT INTO {table} (a, b) SELECT * FROM source LIMIT 30000")
    filled, plain = pages(connection, "filled"), pages(connection, "plain")
    assert answer(connection, "filled")[0] == answer(connection, "plain")[0]
    assert filled.size <= plain.size * 9 // 8, (filled, plain)


@pytest.mark.thorough
@pytest.mark.parametrize("statement", ["insert", "copy"])
def test_rows_that_come_and_go_on_pages_kept_empty(
    loaded: Cluster, connection: Connection, statement: str
) -> None:
    """Where fillfactor leaves little to be filled an empty page is room all the same."""
    connection.execute(f"COPY (SELECT * FROM source LIMIT 6000) TO '{loaded.dir}/some.copy'")
    for table, setup in (("filled", on), ("plain", off)):
        setup(connection)
        connection.execute(f"CREATE TABLE {table} (n serial, a int, b text) WITH (fillfactor = 20)")
        some = f"INSERT INTO {table} (a, b) SELECT * FROM source LIMIT 24000"
        fill_first(connection, table, some)
        for _ in range(20):
            connection.execute(f"DELETE FROM {table} WHERE n < (SELECT min(n) + 6000 FROM {table})")
            connection.execute(f"VACUUM {table}")
            if statement == "copy":
                connection.execute(f"COPY {table} (a, b) FROM '{loaded.dir}/some.copy'")
            else:
                connection.execute(f"INSERT INTO {table} (a, b) SELECT * FROM source LIMIT 6000")
    filled, plain = pages(connection, "filled"), pages(connection, "plain")
    assert answer(connection, "filled") == answer(connection, "plain")
    assert filled.size <= plain.size * 9 // 8, (filled, plain)


def test_copy_uses_room_elsewhere(loaded: Cluster, connection: Connection) -> None:
    """A row that fits nowhere is no reason to leave room for others alone."""
    wide = 7500
    connection.execute(
        f"COPY (SELECT a, CASE WHEN a IN (1000, 2000) THEN repeat('x', {wide}) ELSE b END"
        f" FROM source LIMIT {ROWS // 3}) TO '{loaded.dir}/some.copy'"
    )
    for table, setup in (("filled", on), ("plain", off)):
        off(connection)
        connection.execute(f"CREATE TABLE {table} (a int, b text)")
        connection.execute(f"ALTER TABLE {table} ALTER b SET STORAGE PLAIN")
        connection.execute(f"INSERT INTO {table} SELECT * FROM source")
        connection.execute(f"DELETE FROM {table} WHERE a % 2 = 0")
        connection.execute(f"VACUUM {table}")
        setup(connection)
        connection.execute(f"COPY {table} FROM '{loaded.dir}/some.copy'")
    filled, plain = pages(connection, "filled"), pages(connection, "plain")
    assert answer(connection, "filled") == answer(connection, "plain")
    # Without a look it would be all that comes after: some 570 pages.
    assert filled.used <= plain.used + plain.size // SIXTEENTH + 16, (filled, plain)


@pytest.mark.parametrize("statement", ["insert", "copy"])
def test_rows_of_more_than_half_a_page(
    loaded: Cluster, connection: Connection, statement: str
) -> None:
    """What such rows leave free is no room for others like them."""
    few = "SELECT a, repeat('x', 5000) FROM source LIMIT 2000"
    connection.execute(f"COPY ({few}) TO '{loaded.dir}/some.copy'")
    connection.execute(
        "CREATE TABLE filled (a int, b text); ALTER TABLE filled ALTER b SET STORAGE PLAIN"
    )
    connection.execute(f"INSERT INTO filled {few}")
    connection.execute("VACUUM filled")
    before = counters(connection)
    if statement == "copy":
        connection.execute(f"COPY filled FROM '{loaded.dir}/some.copy'")
    else:
        connection.execute(f"INSERT INTO filled {few}")
    assert pages(connection, "filled").used == 4000
    assert counters(connection)["added"] - before["added"] > 1800


def load_around_vacuum(loaded: Cluster, connection: Connection, statement: str) -> int:
    """Load "filled" in another session, and VACUUM it while that waits in gate().

    Returns the bytes that were free on its pages then.
    """
    connection.execute(
        "CREATE OR REPLACE FUNCTION gate() RETURNS bool LANGUAGE plpgsql"
        " AS $$BEGIN PERFORM pg_advisory_lock(77); RETURN true; END$$"
    )
    connection.execute("SELECT pg_advisory_lock(77)")

    def fill() -> None:
        with connect(loaded) as other, grows(other):
            other.execute(statement)

    waiting = "SELECT FROM pg_locks WHERE locktype = 'advisory' AND NOT granted"
    with at_work(fill):
        try:
            until(connection, f"EXISTS ({waiting})", 30)
            connection.execute("VACUUM filled")
            free = int(value(connection, "SELECT sum(avail) FROM free_space('filled')"))
        finally:
            connection.execute("SELECT pg_advisory_unlock(77)")
    return free


def test_room_that_comes_ends_the_pages_of_a_copy(loaded: Cluster, connection: Connection) -> None:
    """What a COPY has for itself keeps it from room that VACUUM makes only for a while."""
    connection.execute(f"COPY source TO '{loaded.dir}/source.copy'")
    connection.execute("CREATE TABLE filled (a int, b text)")
    for _ in range(5):
        connection.execute("INSERT INTO filled SELECT * FROM source")
    before = pages(connection, "filled")
    connection.execute("DELETE FROM filled WHERE (ctid::text::point)[0] < 4000")
    count = value(connection, "SELECT count(*) FROM filled")
    load_around_vacuum(
        loaded,
        connection,
        f"COPY filled FROM '{loaded.dir}/source.copy' WHERE a <> {ROWS // 4} OR gate()",
    )
    after = pages(connection, "filled")
    assert value(connection, "SELECT count(*) FROM filled") == count + ROWS
    added = after.size - before.size
    # A quarter before, and as much as it adds between two looks.
    assert added <= ROWS // 4 // ROWS_ON_A_PAGE + 2 * STEP, (before, after)


@pytest.mark.parametrize("filled", [10, 100, 1000])
def test_copies_that_fail(loaded: Cluster, connection: Connection, filled: int) -> None:
    """A load that fails has had no more empty pages than pages that it had filled."""
    file = write_copy_that_fails(loaded, connection, filled)
    connection.execute("CREATE TABLE filled (a int, b text)")
    for _ in range(3):
        connection.execute("INSERT INTO filled SELECT * FROM source")
    before = pages(connection, "filled")
    added = counters(connection)["added"]
    with pytest.raises(psycopg.errors.InvalidTextRepresentation):
        connection.execute(f"COPY filled FROM '{file}'")
    after = pages(connection, "filled")
    # There may be spare pages for the first ones.
    assert counters(connection)["added"] > added or filled < 1000
    assert after.size <= before.size + 2 * filled + 2 * AT_LEAST_BUFFERED, (before, after)


def test_wide_rows_that_may_be_there(connection: Connection) -> None:
    """ON CONFLICT does not pass where rows are seen: the table is looked at by itself."""
    connection.execute(
        "CREATE TABLE filled (a int PRIMARY KEY, b text);"
        "ALTER TABLE filled ALTER b SET STORAGE PLAIN"
    )
    before = counters(connection)
    connection.execute(
        "INSERT INTO filled SELECT a, repeat('x', 5000) FROM source LIMIT 2000"
        " ON CONFLICT (a) DO NOTHING"
    )
    added = counters(connection)["added"] - before["added"]
    # Of 2000 pages, after the first 256.
    assert added > 1500, added


def test_room_far_away_ends_it(loaded: Cluster, connection: Connection) -> None:
    """What is kept ahead keeps nobody from room that VACUUM makes in the middle of a load.

    The free space map has several pages here.  A statement that does not notice
    that VACUUM has run stays with that of its last block while it has an empty page.
    """
    connection.execute("CREATE TABLE filled AS SELECT * FROM source LIMIT 0")
    for _ in range(5):
        connection.execute("INSERT INTO filled SELECT * FROM source")
    before = pages(connection, "filled")
    assert 2 * MAP_PAGE < before.size < 2 * MAP_PAGE + 1000, before
    connection.execute("DELETE FROM filled WHERE (ctid::text::point)[0] < 8000")
    free = load_around_vacuum(
        loaded,
        connection,
        "INSERT INTO filled SELECT s.* FROM source s, generate_series(1, 3)"
        " WHERE a <> 5000 OR gate()",
    )
    assert free > 7000 * 8000
    after = pages(connection, "filled")
    assert after.used > before.used - 8000 + 2 * ROWS // ROWS_ON_A_PAGE, (before, after)
    assert after.size <= before.size + 2 * STEP, (before, after)


@pytest.mark.parametrize("some", [15_000, 18_000, 22_000, 26_000, 30_000])
def test_vacuum_leaves_small_tables(connection: Connection, some: int) -> None:
    """What is kept ahead of a table of a few megabytes is too little for VACUUM, too."""
    connection.execute("CREATE TABLE filled AS SELECT * FROM source LIMIT 0")
    connection.execute("INSERT INTO filled SELECT * FROM source LIMIT 15000")
    for _ in range(15_000, some, 200):
        connection.execute("INSERT INTO filled SELECT * FROM source LIMIT 200")
    before = pages(connection, "filled")
    assert before.spare > 0 or some == 15_000, before
    connection.execute("VACUUM filled")
    assert pages(connection, "filled").size == before.size, before


def test_vacuum_does_not_truncate_it(connection: Connection) -> None:
    """What is spare is too little for VACUUM to want it back."""
    connection.execute("CREATE TABLE filled AS SELECT * FROM source LIMIT 0")
    connection.execute("INSERT INTO filled SELECT * FROM source")
    before = pages(connection, "filled")
    connection.execute("VACUUM filled")
    assert before.spare > 0
    assert pages(connection, "filled").size == before.size
