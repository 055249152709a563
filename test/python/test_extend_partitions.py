"""Space before it is needed, for COPY into a partitioned table.

COPY opens its partitions where nobody can look: they are found by the locks that
it has.  That is done on 15; later releases add many pages at a time by themselves.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import psycopg
import pytest
from lookahead.cluster import Cluster
from lookahead.servers import Server

from conftest import NewCluster
from extend_support import (
    ROWS,
    answer,
    cluster_with_source,
    counters,
    new_session,
    off,
    on,
    pages,
    sound,
    tidy,
)
from support import Connection, rows, script, value

# Partitions that rows of "source" go to, and one that none goes to.
PARTS = ("filled_0_0", "filled_0_1", "filled_1")
DEEPLY_PARTED = """
CREATE TABLE filled (a int, b text) PARTITION BY RANGE (a);
CREATE TABLE filled_0 PARTITION OF filled FOR VALUES FROM (MINVALUE) TO (50001)
  PARTITION BY LIST ((a % 2));
CREATE TABLE filled_0_0 PARTITION OF filled_0 DEFAULT;
CREATE TABLE filled_0_1 PARTITION OF filled_0 FOR VALUES IN (1);
CREATE TABLE filled_1 PARTITION OF filled FOR VALUES FROM (50001) TO (200000);
CREATE TABLE filled_2 PARTITION OF filled FOR VALUES FROM (200000) TO (MAXVALUE);
"""


@pytest.fixture(scope="module")
def loaded(own_cluster: NewCluster) -> Cluster:
    return cluster_with_source(own_cluster)


@pytest.fixture
def connection(loaded: Cluster) -> Iterator[Connection]:
    with new_session(loaded) as connection:
        yield connection


@contextmanager
def grows_on_15(connection: Connection, server: Server) -> Iterator[None]:
    """Pages are added ahead in here, but only where the server does not do so."""
    before = counters(connection)["added"]
    yield
    assert (counters(connection)["added"] > before) == (server.major == 15)


def test_copy_into_partitions(loaded: Cluster, connection: Connection, server: Server) -> None:
    """Each partition that rows go to grows by itself, and no other is locked."""
    script(connection, DEEPLY_PARTED)
    for times in (1, 2):
        with grows_on_15(connection, server), connection.transaction():
            connection.execute(
                f"COPY filled (a, b) FROM '{loaded.dir}/source.copy' WHERE a % 7 <> 3"
            )
            locked = rows(
                connection,
                "SELECT DISTINCT relation::regclass::text FROM pg_locks"
                " WHERE locktype = 'relation' AND relation::regclass::text LIKE 'filled%'"
                " ORDER BY 1",
            )
            assert [name for (name,) in locked] == ["filled", "filled_0", *PARTS]
        for part in PARTS:
            found = pages(connection, part)
            if server.major == 15:
                tidy(found)
            assert found.lost == 0
            assert found.size > times * 200
            sound(connection, part)
    expected = value(connection, "SELECT count(*) FROM source WHERE a % 7 <> 3")
    assert value(connection, "SELECT count(*) FROM filled") == 2 * expected
    assert value(connection, "SELECT count(*) FROM filled WHERE b = repeat('x', 100)") == (
        2 * expected
    )


COPIES_INTO_PARTITIONS = {
    # A row at a time, each changed on its way.
    "trigger": """
        CREATE FUNCTION pass() RETURNS trigger LANGUAGE plpgsql AS $$BEGIN
          NEW.b := NEW.b || 'y'@
          RETURN NEW@ END$$;
        CREATE TRIGGER pass BEFORE INSERT ON filled_1 FOR EACH ROW EXECUTE FUNCTION pass()
        """,
    # Another COPY into the same partitions in the middle of it, and an error that is caught.
    "copy in a trigger": """
        CREATE FUNCTION pass() RETURNS trigger LANGUAGE plpgsql AS $$BEGIN
          IF pg_trigger_depth() = 1 AND NEW.a % 20000 = 0 THEN
            COPY filled (a, b) FROM '{file}' WHERE a % 50 = 0@
            BEGIN
              COPY filled (a, b) FROM '{file}' WHERE 1 / (a - 30000) >= 0@
            EXCEPTION WHEN division_by_zero THEN NULL@ END@
            CREATE TABLE IF NOT EXISTS made AS SELECT * FROM filled LIMIT 30000@
          END IF@
          RETURN NEW@ END$$;
        CREATE TRIGGER pass BEFORE INSERT ON filled_1 FOR EACH ROW EXECUTE FUNCTION pass()
        """,
    # The table is asked before COPY has a slot for its rows, and while there are rows.
    "function": """
        CREATE FUNCTION early() RETURNS int IMMUTABLE LANGUAGE plpgsql AS $$BEGIN
          RETURN (SELECT count(*) FROM filled) * 0@ END$$;
        CREATE FUNCTION late(a int) RETURNS int LANGUAGE plpgsql AS $$BEGIN
          RETURN CASE WHEN a % 20000 = 0 THEN (SELECT count(*) FROM filled WHERE b IS NULL)
                      ELSE 0 END@ END$$;
        ALTER TABLE filled ADD c int;
        ALTER TABLE filled ALTER c SET DEFAULT early()
        """,
    # Partitions whose columns are in another order.
    "other columns": """
        DROP TABLE filled_0_0;
        CREATE TABLE filled_0_0 (b text, gone int, c int DEFAULT 5, a int);
        ALTER TABLE filled_0_0 DROP gone, DROP c;
        ALTER TABLE filled_0 ATTACH PARTITION filled_0_0 DEFAULT
        """,
    "unlogged": "ALTER TABLE filled_0_0 SET UNLOGGED; ALTER TABLE filled_1 SET UNLOGGED",
}


@pytest.mark.parametrize("name", COPIES_INTO_PARTITIONS)
def test_copies_into_partitions(
    loaded: Cluster, connection: Connection, server: Server, name: str
) -> None:
    """The same rows as without us, whatever else the COPY does."""
    found = {}
    where = "WHERE early() + late(a) = 0" if name == "function" else ""
    for enabled in ("off", "on"):
        script(connection, "DROP TABLE IF EXISTS filled, made; DROP FUNCTION IF EXISTS pass")
        script(connection, "DROP FUNCTION IF EXISTS early, late")
        script(connection, DEEPLY_PARTED)
        for part in COPIES_INTO_PARTITIONS[name].split(";"):
            part = part.replace("{file}", f"{loaded.dir}/source.copy")
            connection.execute(part.replace("@", ";"))
        connection.execute(f"SET pg_lookahead.enabled = {enabled}")
        before = counters(connection)["added"]
        for _ in range(2):
            connection.execute(f"COPY filled (a, b) FROM '{loaded.dir}/source.copy' {where}")
        is_ahead = enabled == "on" and (server.major == 15 or name == "copy in a trigger")
        assert (counters(connection)["added"] > before) == is_ahead
        found[enabled] = [answer(connection, part) for part in ("filled", *PARTS)]
        if name == "copy in a trigger":
            # What failed has left dead rows.
            connection.execute("VACUUM (FREEZE) filled")
        for part in PARTS:
            assert pages(connection, part).lost == 0
            sound(connection, part)
    assert found["on"] == found["off"]


def test_copy_into_partitions_fails(
    loaded: Cluster, connection: Connection, server: Server
) -> None:
    """An error in the middle: nothing stays open, and the next goes on."""
    script(connection, DEEPLY_PARTED)
    file = f"{loaded.dir}/source.copy"
    failing = f"COPY filled FROM '{file}' WHERE 1 / (a - 90000) >= 0"
    connection.execute(f"COPY filled FROM '{file}'")
    expected = answer(connection, "filled")
    for _ in range(3):
        with pytest.raises(psycopg.errors.DivisionByZero):
            connection.execute(failing)
        with connection.transaction():
            with pytest.raises(psycopg.errors.DivisionByZero), connection.transaction():
                connection.execute(failing)
            connection.execute(f"COPY filled FROM '{file}'")
            raise psycopg.Rollback
    assert answer(connection, "filled") == expected
    connection.execute("VACUUM (FREEZE) filled")
    for part in PARTS:
        assert pages(connection, part).lost == 0
        sound(connection, part)


def test_partitions_that_go(loaded: Cluster, connection: Connection, server: Server) -> None:
    """A partition that only a trigger fills may be emptied, or dropped, in the middle."""
    script(connection, DEEPLY_PARTED)
    connection.execute(
        """
        CREATE OR REPLACE FUNCTION pass() RETURNS trigger LANGUAGE plpgsql AS $$BEGIN
          CASE NEW.a
            WHEN 55000, 75000 THEN INSERT INTO filled_2 VALUES (200001, 'x');
            WHEN 65000 THEN TRUNCATE filled_2;
            WHEN 85000 THEN DROP TABLE filled_2;
            ELSE NULL;
          END CASE;
          RETURN NEW; END$$
        """
    )
    connection.execute(
        "CREATE TRIGGER pass BEFORE INSERT ON filled_1 FOR EACH ROW EXECUTE FUNCTION pass()"
    )
    with grows_on_15(connection, server), connection.transaction():
        connection.execute("INSERT INTO filled_2 VALUES (200002, 'x')")
        connection.execute(f"COPY filled FROM '{loaded.dir}/source.copy'")
    assert answer(connection, "filled") == answer(connection, "source")
    connection.execute("DROP TABLE filled; DROP FUNCTION pass")


@pytest.mark.parametrize("how", ["TRUNCATE", "DROP TABLE"])
def test_partition_that_a_cursor_has(
    loaded: Cluster, connection: Connection, server: Server, how: str
) -> None:
    """A partition that is open, but not by COPY, goes as soon as it is closed."""
    script(
        connection,
        f"""
        {DEEPLY_PARTED};
        ALTER TABLE filled_2 ALTER b SET STORAGE EXTERNAL
        """,
    )
    connection.execute(
        f"""
        CREATE OR REPLACE FUNCTION closes() RETURNS trigger LANGUAGE plpgsql
          SET pg_lookahead.heap_extend_size = 0 AS $$
        DECLARE
          c refcursor := 'reads';
        BEGIN
          CASE NEW.a
            WHEN 65000 THEN
              CLOSE c;
              {how} filled_2;
            WHEN 75000 THEN
              IF to_regclass('filled_2') IS NOT NULL THEN
                INSERT INTO filled_2 SELECT a + 200000, b FROM source;
              END IF;
            ELSE NULL;
          END CASE;
          RETURN NEW; END$$
        """
    )
    connection.execute(
        "CREATE TRIGGER closes BEFORE INSERT ON filled_1 FOR EACH ROW EXECUTE FUNCTION closes()"
    )
    with grows_on_15(connection, server), connection.transaction():
        off(connection)
        connection.execute("INSERT INTO filled_2 SELECT a + 200000, b FROM source")
        connection.execute("INSERT INTO filled_2 VALUES (200000, repeat('x', 3000))")
        on(connection)
        connection.execute("DECLARE reads CURSOR FOR SELECT * FROM filled")
        connection.execute("FETCH 1 FROM reads")
        connection.execute(f"COPY filled FROM '{loaded.dir}/source.copy'")
    assert answer(connection, "filled WHERE a < 200000") == answer(connection, "source")
    late = value(connection, "SELECT count(*) FROM filled WHERE a >= 200000")
    assert late == (ROWS if how == "TRUNCATE" else 0)
    sound(connection, *PARTS)
    connection.execute("DROP TABLE filled; DROP FUNCTION closes")


def test_large_values_into_partitions(
    loaded: Cluster, connection: Connection, server: Server
) -> None:
    """The tables for large values grow as well, once they are in use."""
    script(
        connection,
        f"""
        {DEEPLY_PARTED};
        ALTER TABLE filled ALTER b SET STORAGE EXTERNAL;
        ALTER TABLE filled_0_0 ALTER b SET STORAGE EXTERNAL;
        ALTER TABLE filled_1 ALTER b SET STORAGE EXTERNAL;
        COPY (SELECT a, repeat('x', 3000) FROM source LIMIT 4000) TO '{loaded.dir}/large.copy'
        """,
    )
    with grows_on_15(connection, server):
        connection.execute(f"COPY filled (a, b) FROM '{loaded.dir}/large.copy'")
    assert value(connection, "SELECT sum(length(b)) FROM filled") == 4000 * 3000
    assert max(pages(connection, part).size for part in PARTS) < 256
