"""Tables that grow ahead of their rows, where somebody else has a part in it."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from lookahead.cluster import Cluster

from conftest import NewCluster
from support import Connection, LogWatch, connect, need_extensions, rows, script, settings, value
from test_extend import (
    LOADS,
    ROWS,
    SIXTEENTH,
    SOURCE,
    STEP,
    answer,
    counters,
    off,
    on,
    pages,
    sound,
)

SETUP = """
CREATE TABLE lookup (low int);
INSERT INTO lookup VALUES (50000)
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
SELECT count(*) FROM pg_freespace('filled') f JOIN used ON block = blkno WHERE avail > 8000
"""


@pytest.fixture(scope="module")
def corners(own_cluster: NewCluster) -> Cluster:
    cluster = own_cluster(LOADS)
    need_extensions(cluster, "pg_freespacemap", "amcheck")
    with connect(cluster) as connection:
        script(connection, SOURCE)
        script(connection, SETUP)
        connection.execute(LOWEST)
        connection.execute(LOOKS_ONCE)
        connection.execute(f"COPY source TO '{cluster.dir}/source.copy'")
    return cluster


@pytest.fixture
def connection(corners: Cluster) -> Iterator[Connection]:
    with LogWatch(corners), connect(corners) as connection:
        connection.execute("DROP TABLE IF EXISTS filled, plain CASCADE")
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


def test_copy_whose_condition_reads_a_table(corners: Cluster, connection: Connection) -> None:
    """The table that COPY fills grows ahead, not the one that its condition reads."""
    copy = "COPY {} FROM '" + str(corners.dir) + "/source.copy' WHERE a > lowest('a')"
    for table, setup in (("plain", off), ("filled", on)):
        setup(connection)
        connection.execute(f"CREATE TABLE {table} (a int, b text)")
        before = counters(connection)
        for _ in range(2):
            connection.execute(copy.format(table))
        after = counters(connection)
    assert after["added"] > before["added"]
    assert answer(connection, "filled") == answer(connection, "plain")
    assert value(connection, "SELECT count(*) FROM filled") == 2 * (ROWS - 50000)
    sound(connection, "filled", "lookup")
    # Nobody has the other table open any more.
    settings(connection, lock_timeout="5s")
    script(connection, "ALTER TABLE lookup ADD extra int; ALTER TABLE lookup DROP extra")


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
    # What was not given back is found by VACUUM.
    connection.execute("VACUUM filled")
    assert pages(connection, "filled").lost == 0
    assert rows(connection, "SELECT count(*) FROM filled WHERE a <= 0") == [(0,)]
