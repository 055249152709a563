"""Several loads of one table in one transaction that has made or emptied it.

COPY does not ask the free space map of such a table.  Pages that one has left
must be the next one's, or the table would be of empty pages for the most part.
"""

from __future__ import annotations

from collections.abc import Iterator
import psycopg
import pytest
from lookahead import privilege
from lookahead.cluster import Cluster
from lookahead.servers import Server

from conftest import NewCluster
from extend_support import (
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
    tidy,
    write_copy_that_fails,
)
from support import Connection, script, value

# As long as those of "source".
FEW = 40
SOME = 3000


@pytest.fixture(scope="module")
def loaded(own_cluster: NewCluster) -> Cluster:
    cluster = cluster_with_source(own_cluster)
    for count in (FEW, SOME):
        file = cluster.dir / f"{count}.copy"
        file.write_text("".join(f"{i}\t{'x' * 100}\n" for i in range(count)))
        privilege.give(file)
    return cluster


@pytest.fixture
def connection(loaded: Cluster) -> Iterator[Connection]:
    with new_session(loaded) as connection:
        yield connection


# With a column that the rows do not have, and is another for each, they come one by one.
KINDS = {
    "many": "CREATE TABLE {} (a int, b text)",
    "rows": "CREATE TABLE {} (a int, b text, c float DEFAULT random())",
}

COPY = "COPY {} (a, b) FROM '%s/source.copy'"
COPY_FEW = f"COPY {{}} (a, b) FROM '%s/{FEW}.copy'"
COPY_SOME = f"COPY {{}} (a, b) FROM '%s/{SOME}.copy'"
INSERT = "INSERT INTO {} SELECT * FROM source LIMIT 30"

# What comes after BEGIN, TRUNCATE and the first COPY, again and again.
AGAIN = {
    "few": (100, [COPY_FEW]),
    "some": (40, [COPY_SOME]),
    "both": (20, [COPY_FEW, COPY_SOME]),
    "insert between": (20, [COPY_SOME, INSERT, COPY_FEW, INSERT]),
    "savepoint": (40, ["SAVEPOINT s", COPY_SOME, "RELEASE s"]),
    # The server no longer knows which page it has filled.
    "index between": (20, [COPY_SOME, "CREATE INDEX {}_i ON {} (a)", "DROP INDEX {}_i"]),
    "emptied between": (4, [COPY, COPY_SOME, "TRUNCATE {}", COPY, COPY_FEW]),
    "frozen": (20, [COPY_SOME + " WITH (FREEZE)"]),
    "with large inserts": (3, ["INSERT INTO {} SELECT * FROM source", COPY_SOME, COPY]),
}


def run(connection: Connection, cluster: Cluster, table: str, *statements: str) -> None:
    for statement in statements:
        connection.execute(statement.replace("{}", table).replace("%s", str(cluster.dir)))


def load_again(
    connection: Connection, cluster: Cluster, table: str, kind: str, times: int, again: list[str]
) -> None:
    run(connection, cluster, table, KINDS[kind], INSERT, "BEGIN", "TRUNCATE {}", COPY)
    for _ in range(times):
        run(connection, cluster, table, *again)
    run(connection, cluster, table, "COMMIT")


@pytest.mark.thorough
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("name", AGAIN)
def test_loads_of_one_transaction(
    loaded: Cluster, connection: Connection, server: Server, name: str, kind: str
) -> None:
    times, again = AGAIN[name]
    off(connection)
    load_again(connection, loaded, "plain", kind, times, again)
    on(connection)
    before = counters(connection)
    load_again(connection, loaded, "filled", kind, times, again)
    after = counters(connection)
    # 15 has nothing for those that bring many rows at a time.
    if server.major > 15 or kind == "rows" or name == "with large inserts":
        assert after["added"] > before["added"]
    assert after["errors"] == before["errors"]
    # What is put back is not returned a second time.
    assert after["returned"] - before["returned"] <= after["added"] - before["added"]
    assert answer(connection, "filled") == answer(connection, "plain")
    filled, plain = pages(connection, "filled"), pages(connection, "plain")
    assert filled.size - plain.size <= min(STEP, plain.size // SIXTEENTH) + 1, (filled, plain)
    if name in ("few", "some", "both", "savepoint", "emptied between", "frozen"):
        assert filled.used == plain.used
    tidy(filled)
    sound(connection, "filled")
    # Nor does anybody else get a page twice.
    run(connection, loaded, "filled", "INSERT INTO {} SELECT * FROM source", COPY, COPY_FEW)
    run(connection, loaded, "plain", "INSERT INTO {} SELECT * FROM source", COPY, COPY_FEW)
    assert answer(connection, "filled") == answer(connection, "plain")
    sound(connection, "filled")


@pytest.mark.parametrize("kind", KINDS)
def test_loads_that_are_undone(loaded: Cluster, connection: Connection, kind: str) -> None:
    """Pages that a load has filled in vain are lost without us, too; no others are."""
    undone = ["SAVEPOINT s", COPY_SOME, "ROLLBACK TO s", COPY_FEW]
    for table in ("plain", "filled"):
        (off if table == "plain" else on)(connection)
        load_again(connection, loaded, table, kind, 20, undone)
    assert answer(connection, "filled") == answer(connection, "plain")
    size = {table: pages(connection, table).size for table in ("plain", "filled")}
    assert size["filled"] - size["plain"] <= size["plain"] // SIXTEENTH + 1, size
    sound(connection, "filled")


@pytest.mark.parametrize("filled", [2, 18, 50])
def test_load_that_fails_on_empty_pages(
    loaded: Cluster, connection: Connection, filled: int
) -> None:
    """It has had no more of them than it had filled, or 31: the map does not know those."""
    file = write_copy_that_fails(loaded, connection, filled)
    run(connection, loaded, "filled", KINDS["rows"], "BEGIN", "TRUNCATE {}")
    for _ in range(2):
        connection.execute("INSERT INTO filled SELECT * FROM source")
    for _ in range(100):
        connection.execute("INSERT INTO filled SELECT * FROM source LIMIT 3000")
        before = pages(connection, "filled")
        if before.spare > 220:
            break
    assert before.spare > 220, before
    connection.execute("SAVEPOINT s")
    with pytest.raises(psycopg.errors.InvalidTextRepresentation):
        connection.execute(f"COPY filled (a, b) FROM '{file}'")
    script(connection, "ROLLBACK TO s; COMMIT")
    after = pages(connection, "filled")
    assert after.size == before.size
    assert after.lost > before.lost or filled == 2
    assert after.lost - before.lost <= filled + max(filled, 31) + 2, (before, after)
    sound(connection, "filled")


@pytest.mark.parametrize("kind", KINDS)
def test_load_in_a_load(loaded: Cluster, connection: Connection, kind: str) -> None:
    """A trigger loads the same table: what the outer load has for itself stays with that."""
    for table in ("plain", "filled"):
        (off if table == "plain" else on)(connection)
        run(
            connection,
            loaded,
            table,
            KINDS[kind],
            f"CREATE OR REPLACE FUNCTION {table}_more() RETURNS trigger LANGUAGE plpgsql AS $$BEGIN"
            f" IF NEW.a % 2000 = 0 AND pg_trigger_depth() = 1 THEN {COPY_SOME}; END IF;"
            " RETURN NEW; END$$",
            f"CREATE TRIGGER more BEFORE INSERT ON {{}} FOR EACH ROW"
            f" EXECUTE FUNCTION {table}_more()",
            "BEGIN",
            "TRUNCATE {}",
            COPY,
            COPY_FEW,
            COPY,
            "COMMIT",
        )
    assert answer(connection, "filled") == answer(connection, "plain")
    filled, plain = pages(connection, "filled"), pages(connection, "plain")
    assert filled.size - plain.size <= min(STEP, plain.size // SIXTEENTH) + 1, (filled, plain)
    tidy(filled)
    sound(connection, "filled")
    connection.execute("DROP TABLE plain, filled CASCADE")
    connection.execute("DROP FUNCTION plain_more, filled_more")


def test_pages_are_the_next_loads(loaded: Cluster, connection: Connection, server: Server) -> None:
    """The table does not grow while one load after the other has room in what is left."""
    kind = "rows" if server.major == 15 else "many"
    with grows(connection):
        run(connection, loaded, "filled", KINDS[kind], "BEGIN", "TRUNCATE {}", COPY)
    size = pages(connection, "filled").size
    spare = pages(connection, "filled").spare
    assert spare > 3
    added = counters(connection)["added"]
    for _ in range(spare - 2):
        run(connection, loaded, "filled", COPY_FEW)
    found = pages(connection, "filled")
    assert found.size == size
    assert counters(connection)["added"] == added
    assert found.used > size - spare
    run(connection, loaded, "filled", "COMMIT")
    assert value(connection, "SELECT count(*) FROM filled") == ROWS + (spare - 2) * FEW
    tidy(found)
