"""Space before it is needed.

What is loaded with it must be what is loaded without: the same rows on as many
pages.  Pages that were added and not used must be few, in the free space map,
and the next ones to be used; also after a crash, a full disk, an error or a
cancel, and for whoever looks at the table in the middle of a load.
"""

from __future__ import annotations

import os
import subprocess
import threading
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import NamedTuple

import psycopg
import pytest
from lookahead import privilege
from lookahead.cluster import PORT, Cluster
from lookahead.servers import Server

from conftest import CONF, NewCluster
from support import (
    ELSEWHERE,
    Connection,
    LogWatch,
    connect,
    need_extensions,
    plan_nodes,
    rows,
    script,
    signal_backend,
    until,
    value,
)

LOADS = {"shared_buffers": "64MB", "max_wal_size": "1GB"}

BLOCK = 8192

# 1725 pages, of which 256 are filled before anything is added.
ROWS = 100_000
ROWS_ON_A_PAGE = 58
SOURCE = f"""
CREATE TABLE source AS SELECT i AS a, repeat('x', 100) AS b FROM generate_series(1, {ROWS}) i
"""

# A table grows by a sixteenth at most, and by 4 MB.
SIXTEENTH = 16
STEP = 512

# Pages of an extension that are made in shared buffers, within a millisecond on 15.
AT_LEAST_BUFFERED = 16

SEGMENT = 1 << 30

# Pages of a table that one page of its free space map is for.
MAP_PAGE = 4069


class Pages(NamedTuple):
    size: int
    used: int
    spare: int  # empty, and in the free space map

    @property
    def lost(self) -> int:
        # The page that was begun last may still be in the map as empty.
        return max(0, self.size - self.used - self.spare)


def pages(connection: Connection, table: str) -> Pages:
    row = rows(
        connection,
        f"""
        WITH rel AS (SELECT pg_relation_size('{table}') / {BLOCK} AS size),
             used AS (SELECT DISTINCT (ctid::text::point)[0]::bigint AS block FROM {table})
        SELECT (SELECT size FROM rel), (SELECT count(*) FROM used),
               (SELECT count(*) FROM pg_freespace('{table}') f, rel
                 WHERE avail > 8000 AND blkno < rel.size
                   AND NOT EXISTS (SELECT FROM used WHERE block = blkno))
        """,
    )[0]
    return Pages(*map(int, row))


def counters(connection: Connection, scope: str = "session") -> dict[str, int]:
    row = rows(
        connection,
        "SELECT extensions, pages_added, pages_returned, busy, errors"
        f" FROM pg_lookahead_extend() WHERE scope = '{scope}'",
    )[0]
    return dict(zip(("extensions", "added", "returned", "busy", "errors"), row, strict=True))


def answer(connection: Connection, table: str) -> tuple[object, ...]:
    return rows(connection, f"SELECT count(*), sum(hashint8(a)), sum(length(b)) FROM {table}")[0]


def sound(connection: Connection, *tables: str) -> None:
    for table in tables:
        assert rows(connection, f"SELECT * FROM verify_heapam('{table}')") == []


def tidy(found: Pages) -> None:
    """Nothing is lost, and no more is spare than may have been added last."""
    assert found.lost == 0, found
    assert found.spare <= min(STEP, found.size // SIXTEENTH) + 1, found


def cluster_with_source(
    own_cluster: NewCluster, *extensions: str, settings: Mapping[str, str] | None = None
) -> Cluster:
    """A cluster with a table to load from, and a file that COPY wrote of it."""
    cluster = own_cluster({**LOADS, **(settings or {})})
    need_extensions(cluster, *extensions)
    with connect(cluster) as connection:
        script(connection, SOURCE)
        connection.execute(f"COPY source TO '{cluster.dir}/source.copy'")
    return cluster


@pytest.fixture(scope="module")
def loaded(own_cluster: NewCluster) -> Cluster:
    return cluster_with_source(own_cluster, "pg_freespacemap", "pgstattuple", "amcheck")


@pytest.fixture
def connection(loaded: Cluster) -> Iterator[Connection]:
    with LogWatch(loaded), connect(loaded) as connection:
        connection.execute("DROP TABLE IF EXISTS filled, plain CASCADE")
        yield connection


def off(connection: Connection) -> None:
    connection.execute("SET pg_lookahead.heap_extend_size = 0")


def on(connection: Connection) -> None:
    connection.execute("RESET pg_lookahead.heap_extend_size")


CREATE = "CREATE TABLE {} (a int, b text)"

LOADS_OF_ONE_TABLE = {
    "insert": f"{CREATE}; INSERT INTO {{}} SELECT * FROM source",
    "values": f"{CREATE}; INSERT INTO {{}} SELECT * FROM source LIMIT 50000;"
    " INSERT INTO {} VALUES (1, 'x'), (2, 'y'), (3, NULL)",
    "cte": f"{CREATE}; WITH new AS (INSERT INTO {{}} SELECT * FROM source RETURNING a)"
    " SELECT sum(a) FROM new",
    "on conflict": "CREATE TABLE {} (a int PRIMARY KEY, b text);"
    " INSERT INTO {} SELECT * FROM source ON CONFLICT DO NOTHING",
    "single rows": f"{CREATE}; DO $$BEGIN FOR i IN 1..30000 LOOP"
    " INSERT INTO {} VALUES (i, repeat('x', 200))@ END LOOP@ END$$",
    "copy": f"{CREATE}; COPY {{}} FROM '%s/source.copy'",
    "copy, a row at a time": "CREATE TABLE {} (a int, b text DEFAULT random()::text);"
    " COPY {} FROM '%s/source.copy'",
    "copy frozen": f"BEGIN; {CREATE}; COPY {{}} FROM '%s/source.copy' WITH (FREEZE); COMMIT",
    "ctas": "CREATE TABLE {} AS SELECT * FROM source",
    "select into": "SELECT * INTO {} FROM source",
    "unlogged": "CREATE UNLOGGED TABLE {} (a int, b text); INSERT INTO {} SELECT * FROM source",
    "tablespace": f"CREATE TABLE {{}} (a int, b text) TABLESPACE {ELSEWHERE};"
    " INSERT INTO {} SELECT * FROM source",
    "truncated": f"{CREATE}; INSERT INTO {{}} VALUES (1, 'x'); BEGIN; TRUNCATE {{}};"
    " INSERT INTO {} SELECT * FROM source; COMMIT",
    "update": f"{CREATE}; INSERT INTO {{}} SELECT * FROM source; UPDATE {{}} SET a = a + 1;"
    " VACUUM {}; INSERT INTO {} SELECT * FROM source",
}

# What 15 fills page by page, past the free space map and many rows at a time.
ONE_BY_ONE = ("copy frozen",)


def load(connection: Connection, cluster: Cluster, statements: str, table: str) -> None:
    text = statements.replace("{}", table).replace("%s", str(cluster.dir))
    for statement in text.split(";"):
        connection.execute(statement.replace("@", ";"))


@pytest.mark.parametrize("name", LOADS_OF_ONE_TABLE)
def test_same_as_without(
    loaded: Cluster, connection: Connection, server: Server, name: str
) -> None:
    """The same rows on as many pages; what is spare is known."""
    statements = LOADS_OF_ONE_TABLE[name]
    before = counters(connection)
    load(connection, loaded, statements, "filled")
    after = counters(connection)
    off(connection)
    load(connection, loaded, statements, "plain")
    assert counters(connection) == after, "it is off"

    assert answer(connection, "filled") == answer(connection, "plain")
    filled, plain = pages(connection, "filled"), pages(connection, "plain")
    if name == "update":
        # Which of the freed pages are used first may differ.
        assert abs(filled.used - plain.used) <= 2
    else:
        assert filled.used == plain.used
    tidy(filled)
    assert after["errors"] == before["errors"]
    if server.major == 15 and name in ONE_BY_ONE:
        assert filled.size == plain.size
    else:
        assert after["extensions"] > before["extensions"]
        assert after["added"] - before["added"] >= filled.spare
    sound(connection, "filled")


@pytest.mark.parametrize("name", LOADS_OF_ONE_TABLE)
def test_same_estimates(loaded: Cluster, connection: Connection, name: str) -> None:
    """Empty pages are no rows to the planner, of this session or of others."""
    estimates = []
    for table, setup in (("plain", off), ("filled", on)):
        setup(connection)
        load(connection, loaded, LOADS_OF_ONE_TABLE[name], table)
        for session in (connection, connect(loaded)):
            estimates.append(plan_nodes(session, f"SELECT * FROM {table}")[0]["Plan Rows"])
        session.close()
    unused = value(connection, "SELECT pg_lookahead_unused_pages('filled')")
    found = pages(connection, "filled")
    assert found.spare - 1 <= unused <= found.spare
    # The server's own spare pages, after COPY, count.  A page that is filled in part may.
    stock = pages(connection, "plain")
    most = estimates[0] * 1.002
    least = estimates[0] * 0.998 * stock.used / stock.size
    assert all(least <= estimate <= most for estimate in estimates), (estimates, stock, found)


def test_same_estimates_of_a_materialized_view(loaded: Cluster, connection: Connection) -> None:
    """A view is filled as another table, whose file it gets then."""
    most_unused = 0
    for lines in range(60000, 66000, 1000):
        estimates = {}
        for view, setup in (("plain_view", off), ("filled_view", on)):
            setup(connection)
            connection.execute(
                f"CREATE MATERIALIZED VIEW {view} AS SELECT i, repeat('x', 200) FROM"
                f" generate_series(1, {lines}) i"
            )
            connection.execute(f"REFRESH MATERIALIZED VIEW {view}")
            for session in (connection, connect(loaded)):
                plan = plan_nodes(session, f"SELECT * FROM {view}")[0]
                estimates.setdefault(view, []).append(plan["Plan Rows"])
            session.close()
        unused = value(connection, "SELECT pg_lookahead_unused_pages('filled_view')")
        most_unused = max(most_unused, unused)
        for view in estimates:
            connection.execute(f"DROP MATERIALIZED VIEW {view}")
        most = max(estimates["plain_view"]) * 1.002
        assert max(estimates["filled_view"]) <= most, (lines, estimates, unused)
    assert most_unused > 10, "there was nothing to be seen"


def test_small_tables_are_the_same(connection: Connection) -> None:
    """Under 256 pages a table has the size that it has without."""
    for wanted in (1, 10, 255):
        for table in ("filled", "plain"):
            connection.execute(f"DROP TABLE IF EXISTS {table}")
            (on if table == "filled" else off)(connection)
            connection.execute(f"CREATE TABLE {table} (a int, b text)")
            connection.execute(f"ALTER TABLE {table} ALTER b SET STORAGE PLAIN")
            connection.execute(
                f"INSERT INTO {table} SELECT i, repeat('x', 5000)"
                f" FROM generate_series(1, {wanted}) i"
            )
        sizes = {pages(connection, table).size for table in ("filled", "plain")}
        assert sizes == {wanted}


def test_growth_is_proportional(connection: Connection) -> None:
    """A table grows by a sixteenth at most, and by what the setting says."""
    connection.execute("SET pg_lookahead.heap_extend_size = '256kB'")
    connection.execute("CREATE TABLE filled (a int, b text)")
    for _ in range(4):
        before = counters(connection)["added"]
        connection.execute("INSERT INTO filled SELECT * FROM source LIMIT 20000")
        found = pages(connection, "filled")
        assert found.spare <= 33
        assert found.lost == 0
        assert found.size < 300 or counters(connection)["added"] > before


def test_spare_pages_are_next(connection: Connection) -> None:
    """Whoever comes next uses what is spare before the table grows again."""
    connection.execute("CREATE TABLE filled AS SELECT * FROM source LIMIT 0")
    connection.execute("INSERT INTO filled SELECT * FROM source")
    first = pages(connection, "filled")
    assert first.spare > 10
    # Not so many that more pages are added, see below.
    few = first.spare - min(STEP, first.size // SIXTEENTH) // 2 - 2
    assert few > 0, first
    connection.execute(f"INSERT INTO filled SELECT * FROM source LIMIT {few * ROWS_ON_A_PAGE}")
    second = pages(connection, "filled")
    assert second.size == first.size
    assert second.used > first.used


def test_spare_pages_are_not_read(connection: Connection) -> None:
    """They are in shared buffers as they were made: clean, and without a read."""
    connection.execute("CREATE EXTENSION IF NOT EXISTS pg_buffercache")
    connection.execute("CREATE TABLE filled AS SELECT * FROM source LIMIT 0")
    connection.execute("INSERT INTO filled SELECT * FROM source")
    found = pages(connection, "filled")
    assert found.spare >= AT_LEAST_BUFFERED, found
    row = rows(
        connection,
        "SELECT count(*), count(*) FILTER (WHERE isdirty) FROM pg_buffercache"
        " WHERE relfilenode = pg_relation_filenode('filled') AND relforknumber = 0"
        f" AND relblocknumber > {found.size - found.spare}",
    )[0]
    assert row[0] >= AT_LEAST_BUFFERED - 1, (found, row)
    assert row[1] == 0, (found, row)


def pages_read(connection: Connection) -> int:
    """What the session has read from files so far, in pages."""
    found = Path(f"/proc/{connection.info.backend_pid}/io").read_text()
    return int(found.split("rchar:")[1].split()[0]) // BLOCK


def test_pages_are_not_read_back(connection: Connection) -> None:
    """Where others have to be written out for them they are in shared buffers, too."""
    connection.execute("CREATE TABLE filled (a int, b text)")
    before = pages_read(connection)
    connection.execute(
        "INSERT INTO filled SELECT i, repeat('x', 100)"
        " FROM generate_series(1, 1000) i, generate_series(1, 1000) j"
    )
    read = pages_read(connection) - before
    found = value(connection, f"SELECT pg_relation_size('filled') / {BLOCK}")
    # Twice what fits.
    assert found > 16384
    assert read < found / 10


def test_space_is_kept_ahead(connection: Connection) -> None:
    """More pages are added before those that are spare are used up."""
    connection.execute("CREATE TABLE filled AS SELECT * FROM source LIMIT 0")
    connection.execute("INSERT INTO filled SELECT * FROM source")
    batch = 10
    some = batch * ROWS_ON_A_PAGE
    for _ in range(40):
        connection.execute(f"INSERT INTO filled SELECT * FROM source LIMIT {some}")
        found = pages(connection, "filled")
        tidy(found)
        assert found.spare >= min(STEP, found.size // SIXTEENTH) // 2 - 2 * batch, found


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
def test_values_beside_the_table(loaded: Cluster, connection: Connection, statement: str) -> None:
    """The table for large values grows ahead as well."""
    large = "SELECT i, repeat('x', 5000) FROM generate_series(1, 1500) i"
    connection.execute("CREATE TABLE filled (a int, b text)")
    connection.execute("ALTER TABLE filled ALTER b SET STORAGE EXTERNAL")
    before = counters(connection)["added"]
    if statement == "copy":
        connection.execute(f"COPY ({large}) TO '{loaded.dir}/large.copy'")
        connection.execute(f"COPY filled FROM '{loaded.dir}/large.copy'")
    else:
        connection.execute(f"INSERT INTO filled {large}")
    assert counters(connection)["added"] > before
    toast = value(
        connection,
        "SELECT reltoastrelid::regclass::text FROM pg_class WHERE relname = 'filled'",
    )
    found = pages(connection, toast)
    tidy(found)
    assert found.size > 1000
    sound(connection, "filled", toast)


def test_very_large_values(connection: Connection) -> None:
    """A row is many pages there: they are looked at with each row, and seldom added singly."""
    connection.execute("CREATE TABLE filled (a int, b text)")
    connection.execute("ALTER TABLE filled ALTER b SET STORAGE EXTERNAL")
    before = counters(connection)["added"]
    connection.execute(
        "INSERT INTO filled SELECT i, repeat('x', 200000) FROM generate_series(1, 400) i"
    )
    added = counters(connection)["added"] - before
    toast = value(
        connection,
        "SELECT reltoastrelid::regclass::text FROM pg_class WHERE relname = 'filled'",
    )
    found = pages(connection, toast)
    tidy(found)
    assert found.size > 10000
    assert added > found.size * 0.6


@pytest.mark.parametrize("statement", ["insert", "copy", "update"])
def test_the_table_for_values_is_not_locked(
    loaded: Cluster, connection: Connection, statement: str
) -> None:
    """A statement that stores no large value does not lock where they would go."""
    connection.execute("CREATE TABLE filled (a int, b text)")
    connection.execute("INSERT INTO filled SELECT * FROM source LIMIT 5000")
    locks = (
        "SELECT count(*) FROM pg_locks l JOIN pg_class c ON c.reltoastrelid = l.relation"
        " WHERE c.relname = 'filled' AND l.pid = pg_backend_pid()"
    )
    with connection.transaction():
        if statement == "copy":
            connection.execute(f"COPY filled FROM '{loaded.dir}/source.copy'")
        elif statement == "update":
            connection.execute("UPDATE filled SET a = a + 1")
        else:
            connection.execute("INSERT INTO filled SELECT * FROM source")
        assert value(connection, locks) == 0


def test_partitions(connection: Connection) -> None:
    """Rows that are routed: each partition grows by itself."""
    script(
        connection,
        """
        CREATE TABLE filled (a int, b text) PARTITION BY HASH (a);
        CREATE TABLE filled_0 PARTITION OF filled FOR VALUES WITH (MODULUS 2, REMAINDER 0);
        CREATE TABLE filled_1 PARTITION OF filled FOR VALUES WITH (MODULUS 2, REMAINDER 1);
        INSERT INTO filled SELECT * FROM source;
        INSERT INTO filled SELECT * FROM source;
        """,
    )
    for part in ("filled_0", "filled_1"):
        found = pages(connection, part)
        tidy(found)
        assert found.size > 1500
        sound(connection, part)
    assert answer(connection, "filled")[0] == 2 * ROWS


def test_copy_into_partitions(loaded: Cluster, connection: Connection) -> None:
    """COPY finds its partitions by itself, where nobody sees them: they grow as without us."""
    sizes = {}
    for enabled in ("off", "on"):
        script(
            connection,
            f"""
            SET pg_lookahead.enabled = {enabled};
            CREATE TABLE filled (a int, b text) PARTITION BY HASH (a);
            CREATE TABLE filled_0 PARTITION OF filled FOR VALUES WITH (MODULUS 2, REMAINDER 0);
            CREATE TABLE filled_1 PARTITION OF filled FOR VALUES WITH (MODULUS 2, REMAINDER 1);
            COPY filled FROM '{loaded.dir}/source.copy';
            COPY filled FROM '{loaded.dir}/source.copy'
            """,
        )
        assert answer(connection, "filled")[0] == 2 * ROWS
        sound(connection, "filled_0", "filled_1")
        sizes[enabled] = [pages(connection, part) for part in ("filled_0", "filled_1")]
        if enabled == "off":
            connection.execute("DROP TABLE filled")
    assert [found.size for found in sizes["on"]] == [found.size for found in sizes["off"]]


def test_materialized_view(connection: Connection) -> None:
    before = counters(connection)["extensions"]
    connection.execute("CREATE MATERIALIZED VIEW seen AS SELECT * FROM source")
    between = counters(connection)["extensions"]
    connection.execute("REFRESH MATERIALIZED VIEW seen")
    after = counters(connection)["extensions"]
    tidy(pages(connection, "seen"))
    assert answer(connection, "seen") == answer(connection, "source")
    sound(connection, "seen")
    assert before < between < after
    connection.execute("DROP MATERIALIZED VIEW seen")


def test_temporary_tables_are_left_alone(connection: Connection) -> None:
    before = counters(connection)
    connection.execute("CREATE TEMPORARY TABLE mine AS SELECT * FROM source")
    connection.execute("INSERT INTO mine SELECT * FROM source")
    assert counters(connection) == before
    assert value(connection, "SELECT count(*) FROM mine") == 2 * ROWS


def test_switched_off(connection: Connection) -> None:
    connection.execute("SET pg_lookahead.enabled = off")
    before = counters(connection)
    connection.execute("CREATE TABLE filled AS SELECT * FROM source")
    connection.execute("INSERT INTO filled SELECT * FROM source")
    assert counters(connection) == before
    assert pages(connection, "filled").spare == 0


LOOKERS = """
CREATE FUNCTION looks() RETURNS trigger LANGUAGE plpgsql AS $$
DECLARE n bigint@
BEGIN
  IF NEW.a % 20000 = 0 THEN
    n := (pgstattuple('filled')).table_len@
    SELECT count(*) INTO n FROM filled@
    INSERT INTO looked VALUES (NEW.a, n)@
  END IF@
  RETURN NEW@
END $$;
CREATE FUNCTION looks(i int) RETURNS int LANGUAGE plpgsql AS $$
BEGIN
  IF i % 20000 = 0 THEN PERFORM pgstattuple('filled'), count(*) FROM filled@ END IF@
  RETURN i@
END $$
"""


@pytest.mark.parametrize("statement", ["copy", "insert"])
def test_triggers_look_at_the_table(
    loaded: Cluster, connection: Connection, statement: str
) -> None:
    """pgstattuple insists on heap's own routine, in the middle of a load, too."""
    connection.execute("CREATE TABLE filled (a int, b text)")
    connection.execute("CREATE TABLE looked (a int, n bigint)")
    for part in LOOKERS.split(";"):
        connection.execute(part.replace("@", ";"))
    connection.execute(
        "CREATE TRIGGER looks BEFORE INSERT ON filled FOR EACH ROW EXECUTE FUNCTION looks()"
    )
    if statement == "copy":
        connection.execute(f"COPY filled FROM '{loaded.dir}/source.copy'")
    else:
        connection.execute("INSERT INTO filled SELECT * FROM source")
    seen = rows(connection, "SELECT a, n FROM looked ORDER BY a")
    assert seen == [(n, n - 1) for n in range(20000, ROWS + 1, 20000)]
    assert answer(connection, "filled") == answer(connection, "source")
    sound(connection, "filled")
    script(connection, "DROP TABLE filled, looked; DROP FUNCTION looks(); DROP FUNCTION looks(int)")


def test_functions_look_at_the_table(loaded: Cluster, connection: Connection) -> None:
    """A default, a check and a select list that look at the table that is loaded."""
    for part in LOOKERS.split(";"):
        connection.execute(part.replace("@", ";"))
    connection.execute("CREATE TABLE filled AS SELECT looks(a) AS a, b FROM source")
    assert answer(connection, "filled") == answer(connection, "source")
    connection.execute(
        "CREATE TABLE plain (a int CHECK (looks(a) = a), b text,"
        " c bigint DEFAULT (pgstattuple('filled')).table_len / 8192)"
    )
    connection.execute(f"COPY (SELECT * FROM source LIMIT 300) TO '{loaded.dir}/few.copy'")
    connection.execute(f"COPY plain (a, b) FROM '{loaded.dir}/few.copy'")
    assert value(connection, "SELECT count(*) FROM plain") == 300
    # The function itself, in the statement that fills the table.
    connection.execute(
        "INSERT INTO plain (a, b) SELECT (pgstattuple('plain')).dead_tuple_count::int + a, b"
        " FROM source WHERE a % 1000 = 0"
    )
    connection.execute("DROP TABLE filled, plain")
    # By name, when it has just been made.
    connection.execute(
        "CREATE TABLE filled AS"
        " SELECT a, b, (pgstattuple('filled'::text)).tuple_count * 0 AS c FROM source LIMIT 300"
    )
    assert value(connection, "SELECT count(*) FROM filled") == 300
    script(connection, "DROP FUNCTION looks() CASCADE; DROP FUNCTION looks(int) CASCADE")


def test_errors_leave_nothing_behind(loaded: Cluster, connection: Connection) -> None:
    """After a load that failed the session sees an ordinary table."""
    Path(loaded.dir, "bad.copy").write_text("")
    privilege.give(Path(loaded.dir, "bad.copy"))
    connection.execute(
        f"COPY (SELECT a::text, b FROM source UNION ALL SELECT 'none', 'x') TO"
        f" '{loaded.dir}/bad.copy'"
    )
    connection.execute("CREATE TABLE filled (a int, b text)")
    load_it = f"COPY filled FROM '{loaded.dir}/bad.copy'"
    with pytest.raises(psycopg.errors.InvalidTextRepresentation):
        connection.execute(load_it)
    assert value(connection, "SELECT tuple_count FROM pgstattuple('filled')") == 0

    # In a subtransaction: the session goes on with the same relation cache.
    connection.execute(
        f"""DO $$BEGIN
          BEGIN EXECUTE $q${load_it}$q$; EXCEPTION WHEN data_exception THEN NULL; END;
          PERFORM pgstattuple('filled');
          BEGIN CREATE TABLE made AS SELECT 1 / (a - 90000) AS a, b FROM source;
          EXCEPTION WHEN division_by_zero THEN NULL; END;
          INSERT INTO filled SELECT * FROM source;
          PERFORM pgstattuple('filled');
        END$$"""
    )
    assert answer(connection, "filled") == answer(connection, "source")

    # And one that is stopped.
    connection.execute("SET statement_timeout = '100ms'")
    for statement in (
        "INSERT INTO filled SELECT s.* FROM source s, generate_series(1, 100)",
        "CREATE TABLE made AS SELECT s.* FROM source s, generate_series(1, 100)",
    ):
        with pytest.raises(psycopg.errors.QueryCanceled):
            connection.execute(statement)
    connection.execute("RESET statement_timeout")
    assert value(connection, "SELECT tuple_count FROM pgstattuple('filled')") == ROWS
    connection.execute("VACUUM filled")
    assert pages(connection, "filled").lost == 0
    sound(connection, "filled")


@pytest.mark.parametrize("how", ["insert", "copy", "rows"])
def test_many_sessions(loaded: Cluster, connection: Connection, how: str) -> None:
    """Several sessions fill one table; none waits for ever, no row is lost."""
    connection.execute("CREATE TABLE filled (a int, b text)")
    statements = {
        "insert": "INSERT INTO filled SELECT * FROM source",
        "copy": f"COPY filled FROM '{loaded.dir}/source.copy'",
        "rows": "DO $$BEGIN FOR i IN 1..20000 LOOP"
        " INSERT INTO filled VALUES (i, repeat('x', 300)); COMMIT; END LOOP; END$$",
    }
    failures: list[Exception] = []

    def fill() -> None:
        try:
            with connect(loaded) as other:
                other.execute(statements[how])
        except Exception as error:
            failures.append(error)

    threads = [threading.Thread(target=fill) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert failures == []
    expected = 4 * (20000 if how == "rows" else ROWS)
    assert value(connection, "SELECT count(*) FROM filled") == expected
    found = pages(connection, "filled")
    # Pages that COPY had for itself are returned by each.
    assert found.spare <= 5 * min(STEP, found.size // SIXTEENTH)
    connection.execute("VACUUM filled")
    assert pages(connection, "filled").lost == 0
    sound(connection, "filled")


CRASHES = (
    "INSERT INTO filled SELECT s.* FROM source s, generate_series(1, 50)",
    "COPY filled FROM '%s/source.copy'",
    "DROP TABLE IF EXISTS made;"
    " CREATE TABLE made AS SELECT s.* FROM source s, generate_series(1, 50)",
)


@pytest.fixture
def crashing(own_cluster: NewCluster) -> Cluster:
    """A cluster that may crash, on a disk that counts."""
    cluster = cluster_with_source(
        own_cluster,
        "pg_freespacemap",
        "pgstattuple",
        "amcheck",
        settings={"fsync": "on", "restart_after_crash": "off"},
    )
    with connect(cluster) as connection:
        connection.execute("CREATE TABLE filled (a int, b text)")
        connection.execute("INSERT INTO filled SELECT * FROM source")
    return cluster


LOADING = (
    "SELECT pid FROM pg_stat_activity WHERE pid <> pg_backend_pid() AND state = 'active'"
    " AND query ~ '^(INSERT|COPY|DROP)' ORDER BY query"
)


@pytest.mark.parametrize("how", ["stop", "kill"])
def test_crash(crashing: Cluster, how: str) -> None:
    """A server that goes in the middle of loads comes back with a sound table."""
    cluster = crashing
    for turn, delay in enumerate((0.05, 0.2, 0.4)):

        def fill(statement: str) -> None:
            try:
                with connect(cluster) as other:
                    while True:
                        other.execute(statement)
            except psycopg.Error:
                pass

        threads = [
            threading.Thread(target=fill, args=(text.replace("%s", str(cluster.dir)),))
            for text in CRASHES
        ]
        for thread in threads:
            thread.start()
        time.sleep(delay)
        if how == "kill":
            # Of each kind once; all others go down with it.
            with connect(cluster) as connection:
                end = time.monotonic() + 30
                while len(loading := rows(connection, LOADING)) < len(CRASHES):
                    assert time.monotonic() < end, loading
            signal_backend(loading[turn][0], "KILL")
            for _ in range(300):
                if not (cluster.data / "postmaster.pid").exists():
                    break
                time.sleep(0.1)
        cluster.stop("immediate")
        for thread in threads:
            thread.join()
        cluster.start()
        with connect(cluster) as connection:
            connection.execute("DROP TABLE IF EXISTS made")
            kept = value(connection, "SELECT count(*) FROM filled")
            assert kept % ROWS == 0
            sound(connection, "filled")
            connection.execute("VACUUM filled")
            found = pages(connection, "filled")
            assert found.lost == 0, found
            connection.execute("INSERT INTO filled SELECT * FROM source")
            again = pages(connection, "filled")
            assert again.size <= max(found.size, again.used + again.size // SIXTEENTH + 2)
            assert value(connection, "SELECT count(*) FROM filled") == kept + ROWS
            sound(connection, "filled")


def test_same_transaction_without_wal(own_cluster: NewCluster) -> None:
    """wal_level minimal: a table that was made in this transaction is synced, not logged."""
    cluster = own_cluster(
        {**LOADS, "fsync": "on", "wal_level": "minimal", "max_wal_senders": "0",
         "wal_skip_threshold": "64kB"}
    )  # fmt: skip
    need_extensions(cluster, "pg_freespacemap", "amcheck")
    with connect(cluster) as connection:
        script(connection, SOURCE)
        connection.execute(f"COPY source TO '{cluster.dir}/source.copy'")
        connection.execute("CREATE TABLE other (a int, b text)")
        for statements in (
            "BEGIN; CREATE TABLE made_1 (a int, b text); INSERT INTO made_1 SELECT * FROM source;"
            " COMMIT",
            "BEGIN; CREATE TABLE made_2 (a int, b text);"
            f" COPY made_2 FROM '{cluster.dir}/source.copy'; COMMIT",
            "CREATE TABLE made_3 AS SELECT * FROM source",
            "BEGIN; TRUNCATE other; INSERT INTO other SELECT * FROM source; COMMIT",
            "CREATE UNLOGGED TABLE gone AS SELECT * FROM source",
        ):
            script(connection, statements)
    cluster.restart("immediate")
    with connect(cluster) as connection:
        for table in ("made_1", "made_2", "made_3", "other"):
            assert answer(connection, table) == answer(connection, "source"), table
            sound(connection, table)
            connection.execute(f"VACUUM {table}")
            assert pages(connection, table).lost == 0
            connection.execute(f"INSERT INTO {table} SELECT * FROM source")
            assert value(connection, f"SELECT count(*) FROM {table}") == 2 * ROWS
        assert value(connection, "SELECT count(*) FROM gone") == 0
        connection.execute("INSERT INTO gone SELECT * FROM source")
        assert answer(connection, "gone") == answer(connection, "source")


LIMIT = 20 << 20


def fill_up(connection: Connection, table: str) -> None:
    for _ in range(100):
        connection.execute(
            f"INSERT INTO {table} SELECT i, repeat('x', 300) FROM generate_series(1, 1000) i"
        )


def test_no_space(own_cluster: NewCluster) -> None:
    """At the end of space single pages are added to the last, and the error is PostgreSQL's."""
    cluster = own_cluster(LOADS, start=False)
    cluster.wrapper = ["prlimit", f"--fsize={LIMIT}"]
    cluster.start()
    with connect(cluster) as connection:
        connection.execute("CREATE EXTENSION pg_lookahead")
        need_extensions(cluster, "amcheck")
        for table, setup in (("plain", off), ("filled", on)):
            setup(connection)
            connection.execute(f"CREATE TABLE {table} (a int, b text)")
            connection.execute(
                f"INSERT INTO {table} SELECT i, repeat('x', 300) FROM generate_series(1, 40000) i"
            )
            with pytest.raises(psycopg.Error, match="could not extend file"):
                fill_up(connection, table)
            assert value(connection, f"SELECT pg_relation_size('{table}')") == LIMIT
            sound(connection, table)
            connection.execute(f"VACUUM {table}")
        assert counters(connection)["errors"] > 0
        counts = [value(connection, f"SELECT count(*) FROM {t}") for t in ("plain", "filled")]
        assert counts[0] == counts[1]


def test_space_comes_back(own_cluster: NewCluster) -> None:
    """What was begun when there was no space is used as usual when there is."""
    cluster = own_cluster(LOADS, start=False)
    cluster.wrapper = ["prlimit", f"--fsize={LIMIT}:"]
    cluster.start()
    with connect(cluster) as connection:
        connection.execute("CREATE EXTENSION pg_lookahead")
        need_extensions(cluster, "amcheck")
        script(connection, SOURCE)
        connection.execute("CREATE TABLE filled (a int, b text)")
        connection.execute("BEGIN")
        with pytest.raises(psycopg.Error, match="could not extend file"):
            for _ in range(4):
                connection.execute("INSERT INTO filled SELECT * FROM source")
        connection.execute("ROLLBACK")
        assert counters(connection)["errors"] > 0
        assert value(connection, "SELECT pg_relation_size('filled')") == LIMIT
        # Nothing is free before VACUUM: what comes next makes the file longer.
        for (pid,) in rows(connection, "SELECT pid FROM pg_stat_activity"):
            unlimited = ["prlimit", f"--pid={pid}", "--fsize=unlimited:"]
            assert privilege.run(unlimited, cwd=cluster.dir).returncode == 0
        for _ in range(2):
            connection.execute("INSERT INTO filled SELECT * FROM source")
        size = value(connection, "SELECT pg_relation_size('filled')")
        assert size > LIMIT
        twice = value(connection, "SELECT 2 * count(*) FROM source")
        assert value(connection, "SELECT count(*) FROM filled") == twice
        sound(connection, "filled")
        cluster.wrapper = []
        cluster.restart()
    with connect(cluster) as connection:
        assert value(connection, "SELECT count(*) FROM filled") == twice
        assert value(connection, "SELECT pg_relation_size('filled')") == size
        sound(connection, "filled")


def test_the_last_space_is_left(own_cluster: NewCluster) -> None:
    """Nothing is added in advance to a disk that is nearly full."""
    if os.geteuid() != 0:
        pytest.skip("only root can mount a small file system")
    cluster = own_cluster(LOADS)
    small = cluster.dir / "small"
    small.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=40m", "tmpfs", str(small)], check=True)
    privilege.give(small)
    try:
        with connect(cluster) as connection:
            script(connection, SOURCE)
            connection.execute(f"CREATE TABLESPACE small LOCATION '{small}'")
            connection.execute("CREATE TABLE filled (a int, b text) TABLESPACE small")
        with connect(cluster) as connection:
            connection.execute("INSERT INTO filled SELECT * FROM source")
            assert counters(connection)["errors"] > 0
        # With steps that are small enough there is room for some.
        with connect(cluster) as connection:
            connection.execute("SET pg_lookahead.heap_extend_size = '128kB'")
            connection.execute("INSERT INTO filled SELECT * FROM source")
            assert counters(connection)["added"] > 0
            assert counters(connection)["errors"] == 0
            assert value(connection, "SELECT count(*) FROM filled") == 2 * ROWS
            connection.execute("DROP TABLE filled")
            connection.execute("DROP TABLESPACE small")
    finally:
        cluster.stop()
        subprocess.run(["umount", str(small)], check=True)


def test_part_of_a_page_at_the_end(own_cluster: NewCluster) -> None:
    """What an extension that failed has left is overwritten before anything is added behind it."""
    cluster = own_cluster(LOADS)
    need_extensions(cluster, "pg_freespacemap", "amcheck")
    with connect(cluster) as connection:
        script(connection, SOURCE)
        connection.execute("CREATE TABLE filled AS SELECT * FROM source LIMIT 50000")
        connection.execute("VACUUM filled")
        file = cluster.data / value(connection, "SELECT pg_relation_filepath('filled')")
    cluster.stop()
    with file.open("ab") as opened:
        opened.write(b"\xff" * 1000)
    cluster.start()
    with connect(cluster) as connection:
        connection.execute("SET pg_lookahead.heap_extend_size = '1MB'")
        connection.execute("INSERT INTO filled SELECT * FROM source")
    with connect(cluster) as connection:
        connection.execute("INSERT INTO filled SELECT * FROM source")
        assert counters(connection)["added"] > 0
        assert value(connection, "SELECT count(*) FROM filled") == 2 * ROWS + 50000
        tidy(pages(connection, "filled"))
        sound(connection, "filled")
    cluster.restart("immediate")
    with connect(cluster) as connection:
        assert value(connection, "SELECT count(*) FROM filled") == 2 * ROWS + 50000
        sound(connection, "filled")


def test_end_of_a_file(own_cluster: NewCluster) -> None:
    """A table of 1 GB is a row of files; growth goes on in the next."""
    cluster = own_cluster({**LOADS, "max_wal_size": "2GB"})
    need_extensions(cluster, "pg_freespacemap", "amcheck")
    with connect(cluster) as connection:
        script(connection, SOURCE)
        connection.execute(f"COPY source TO '{cluster.dir}/source.copy'")
        connection.execute("CREATE TABLE filled (a int, b text)")
        connection.execute("INSERT INTO filled VALUES (0, 'x')")
        file = cluster.data / value(connection, "SELECT pg_relation_filepath('filled')")
    cluster.stop()
    # A file of empty pages, which takes no space: 700 pages to the end.
    with file.open("r+b") as opened:
        opened.truncate(SEGMENT - 700 * BLOCK)
    cluster.start()
    with connect(cluster) as connection:
        before = counters(connection)["added"]
        connection.execute("INSERT INTO filled SELECT * FROM source")
        connection.execute(f"COPY filled FROM '{cluster.dir}/source.copy'")
        assert counters(connection)["added"] > before
        assert value(connection, "SELECT count(*) FROM filled") == 2 * ROWS + 1
        size = value(connection, "SELECT pg_relation_size('filled')")
        assert file.stat().st_size == SEGMENT
        assert Path(f"{file}.1").stat().st_size == size - SEGMENT
        used = value(
            connection,
            "SELECT count(DISTINCT (ctid::text::point)[0]) FROM filled",
        )
        # All empty pages but those at the end were there before.
        assert size // BLOCK - (SEGMENT // BLOCK - 700) <= used + STEP
        sound(connection, "filled")


def test_standby_and_backup(own_cluster: NewCluster, server: Server) -> None:
    """A base backup in the middle of loads, and a standby that follows them."""
    primary = own_cluster({**LOADS, "max_wal_senders": "5", "wal_level": "replica"})
    need_extensions(primary, "pg_freespacemap", "pgstattuple", "amcheck")
    with connect(primary) as connection:
        script(connection, SOURCE)
        connection.execute(f"COPY source TO '{primary.dir}/source.copy'")
        connection.execute("CREATE TABLE filled (a int, b text)")
        connection.execute("CHECKPOINT")
    stop = threading.Event()

    def fill(statement: str) -> None:
        with connect(primary) as other:
            while not stop.is_set():
                other.execute(statement)

    threads = [
        threading.Thread(target=fill, args=(text,))
        for text in (
            "INSERT INTO filled SELECT * FROM source LIMIT 20000",
            f"COPY filled FROM '{primary.dir}/source.copy'",
        )
    ]
    for thread in threads:
        thread.start()
    standby = own_cluster(LOADS, start=False)
    try:
        subprocess.run(["rm", "-rf", str(standby.data)], check=True)
        done = privilege.run(
            [server.bindir / "pg_basebackup", "-D", standby.data, "-h", primary.socket_dir,
             "-p", str(PORT), "-U", "postgres", "-X", "stream", "-R", "-c", "fast"],
            cwd=primary.dir, capture_output=True,
        )  # fmt: skip
        assert done.returncode == 0, done.stderr
    finally:
        time.sleep(0.3)
        stop.set()
        for thread in threads:
            thread.join()
    standby.start()
    with connect(primary) as connection:
        target = value(connection, "SELECT pg_current_wal_flush_lsn()")
        expected = answer(connection, "filled")
    with connect(standby) as connection:
        for _ in range(300):
            if value(connection, "SELECT pg_last_wal_replay_lsn() >= %s::pg_lsn", (target,)):
                break
            time.sleep(0.1)
        assert answer(connection, "filled") == expected
        sound(connection, "filled")
        connection.execute("SELECT pg_promote()")
        for _ in range(100):
            if not value(connection, "SELECT pg_is_in_recovery()"):
                break
            time.sleep(0.1)
        connection.execute("INSERT INTO filled SELECT * FROM source")
        assert value(connection, "SELECT count(*) FROM filled") == int(str(expected[0])) + ROWS
        connection.execute("VACUUM filled")
        assert pages(connection, "filled").lost == 0
        sound(connection, "filled")


@pytest.mark.parametrize("statement", ["insert", "copy"])
def test_rows_that_come_and_go(loaded: Cluster, connection: Connection, statement: str) -> None:
    """A table that lives on the room that VACUUM makes does not grow for ever."""
    connection.execute(f"COPY (SELECT * FROM source LIMIT 30000) TO '{loaded.dir}/some.copy'")
    for table, setup in (("filled", on), ("plain", off)):
        setup(connection)
        connection.execute(f"CREATE TABLE {table} (n serial, a int, b text)")
        connection.execute(f"INSERT INTO {table} (a, b) SELECT * FROM source")
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


@pytest.mark.parametrize("statement", ["insert", "copy"])
def test_rows_that_come_and_go_on_pages_kept_empty(
    loaded: Cluster, connection: Connection, statement: str
) -> None:
    """Where fillfactor leaves little to be filled an empty page is room all the same."""
    connection.execute(f"COPY (SELECT * FROM source LIMIT 6000) TO '{loaded.dir}/some.copy'")
    for table, setup in (("filled", on), ("plain", off)):
        setup(connection)
        connection.execute(f"CREATE TABLE {table} (n serial, a int, b text) WITH (fillfactor = 20)")
        connection.execute(f"INSERT INTO {table} (a, b) SELECT * FROM source LIMIT 24000")
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
        f"COPY (SELECT a, CASE WHEN a IN (1000, 2000) THEN repeat('x', {wide}) ELSE b END FROM source"
        f" LIMIT {ROWS // 3}) TO '{loaded.dir}/some.copy'"
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
        with connect(loaded) as other:
            other.execute(statement)

    thread = threading.Thread(target=fill)
    thread.start()
    waiting = "SELECT FROM pg_locks WHERE locktype = 'advisory' AND NOT granted"
    until(connection, f"EXISTS ({waiting})", 30)
    connection.execute("VACUUM filled")
    free = int(value(connection, "SELECT sum(avail) FROM pg_freespace('filled')"))
    connection.execute("SELECT pg_advisory_unlock(77)")
    thread.join()
    return free


def test_room_that_comes_ends_the_pages_of_a_copy(loaded: Cluster, connection: Connection) -> None:
    """What a COPY has for itself keeps it from room that VACUUM makes only for a while."""
    connection.execute(f"COPY source TO '{loaded.dir}/source.copy'")
    connection.execute("CREATE TABLE filled (a int, b text)")
    for _ in range(5):
        connection.execute("INSERT INTO filled SELECT * FROM source")
    before = pages(connection, "filled")
    connection.execute("DELETE FROM filled WHERE (ctid::text::point)[0] < 4000")
    load_around_vacuum(
        loaded,
        connection,
        f"COPY filled FROM '{loaded.dir}/source.copy' WHERE a <> {ROWS // 4} OR gate()",
    )
    after = pages(connection, "filled")
    added = after.size - before.size
    # A quarter before, and as much as it adds between two looks.
    assert added <= ROWS // 4 // ROWS_ON_A_PAGE + 2 * STEP, (before, after)


@pytest.mark.parametrize("filled", [10, 100, 1000])
def test_copies_that_fail(loaded: Cluster, connection: Connection, filled: int) -> None:
    """A load that fails has had no more empty pages than pages that it had filled."""
    rows_before = filled * ROWS_ON_A_PAGE
    connection.execute(
        f"COPY (SELECT a::text, b FROM source LIMIT {rows_before}) TO '{loaded.dir}/some.copy'"
    )
    with Path(loaded.dir, "some.copy").open("a") as file:
        file.write("none\tx\n")
    connection.execute("CREATE TABLE filled (a int, b text)")
    for _ in range(3):
        connection.execute("INSERT INTO filled SELECT * FROM source")
    before = pages(connection, "filled")
    with pytest.raises(psycopg.errors.InvalidTextRepresentation):
        connection.execute(f"COPY filled FROM '{loaded.dir}/some.copy'")
    after = pages(connection, "filled")
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


def test_settings_of_the_cluster() -> None:
    """The tests above count on the default."""
    assert "pg_lookahead.heap_extend_size" not in CONF
