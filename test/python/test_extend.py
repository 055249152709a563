"""Space before it is needed.

What is loaded with it must be what is loaded without: the same rows on as many
pages.  Pages that were added and not used must be few, in the free space map,
and the next ones to be used; also after an error or a cancel, and for whoever
looks at the table in the middle of a load.
"""

from __future__ import annotations

import statistics
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import psycopg
import pytest
from lookahead import privilege
from lookahead.cluster import Cluster
from lookahead.servers import Server

from conftest import CONF, NewCluster
from extend_support import (
    AT_LEAST_BUFFERED,
    BLOCK,
    LOADS_OF_ONE_TABLE,
    PARTED,
    ROWS,
    ROWS_ON_A_PAGE,
    SIXTEENTH,
    STEP,
    answer,
    cluster_with_source,
    counters,
    grows,
    load,
    new_session,
    off,
    on,
    pages,
    sound,
    tidy,
)
from support import (
    Connection,
    at_work,
    connect,
    need_extensions,
    no_timeout,
    plan_nodes,
    rows,
    script,
    settings,
    until,
    value,
)

# What 15 fills page by page, past the free space map and many rows at a time.
ONE_BY_ONE = ("copy frozen",)


@pytest.fixture(scope="module")
def loaded(own_cluster: NewCluster) -> Cluster:
    return cluster_with_source(own_cluster)


@pytest.fixture
def connection(loaded: Cluster) -> Iterator[Connection]:
    with new_session(loaded) as connection:
        yield connection


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


def test_many_plans_of_a_table_that_grows(connection: Connection) -> None:
    """What the planner has found out of empty pages it need not find out again at once."""
    connection.execute("CREATE TABLE filled AS SELECT * FROM source")
    connection.execute("ANALYZE filled")
    connection.execute("INSERT INTO filled SELECT * FROM source LIMIT 50000")
    assert value(connection, "SELECT pg_lookahead_unused_pages('filled')") > 10
    connection.execute(
        """
        CREATE OR REPLACE FUNCTION plan(OUT looked int, OUT estimate int) LANGUAGE plpgsql AS $$
        DECLARE plan json;
        BEGIN
            EXECUTE 'EXPLAIN (BUFFERS, SUMMARY, FORMAT json) SELECT * FROM filled' INTO plan;
            looked := plan -> 0 -> 'Planning' -> 'Shared Hit Blocks';
            estimate := plan -> 0 -> 'Plan' -> 'Plan Rows';
        END $$
        """
    )
    # On a busy machine a plan takes as long as what was found out holds.
    for _ in range(10):
        plans = rows(connection, "SELECT (plan()).* FROM generate_series(1, 200)")
        assert len({estimate for _, estimate in plans}) == 1
        looked = [blocks for blocks, _ in plans]
        assert min(looked) < max(looked) - 5, plans
        if statistics.median(looked) <= 2:
            break
    assert statistics.median(looked) <= 2


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


def test_spare_pages_are_not_read(loaded: Cluster, connection: Connection) -> None:
    """They are in shared buffers as they were made: clean, and without a read."""
    need_extensions(loaded, "pg_buffercache")
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


def test_what_a_copy_has_left_is_returned(
    loaded: Cluster, connection: Connection, server: Server
) -> None:
    """The pages that it had for itself are in the free space map when it ends, and counted.

    On 15 they are there all the time.
    """
    connection.execute("CREATE TABLE filled (a int, b text)")
    before = counters(connection)
    connection.execute(f"COPY filled FROM '{loaded.dir}/source.copy'")
    after = counters(connection)
    returned = after["returned"] - before["returned"]
    assert returned <= after["added"] - before["added"]
    assert (returned > 0) == (server.major > 15)
    found = pages(connection, "filled")
    tidy(found)
    assert found.spare >= returned


def test_pages_are_not_read_back(connection: Connection) -> None:
    """Where others have to be written out for them they are in shared buffers, too."""
    connection.execute("CREATE TABLE filled (a int, b text)")
    before = pages_read(connection)
    with grows(connection):
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


@pytest.mark.parametrize("statement", ["insert", "single rows", "copy"])
def test_values_beside_the_table(loaded: Cluster, connection: Connection, statement: str) -> None:
    """The table for large values grows ahead as well."""
    large = "SELECT i, repeat('x', 5000) FROM generate_series(1, 1500) i"
    connection.execute("CREATE TABLE filled (a int, b text)")
    connection.execute("ALTER TABLE filled ALTER b SET STORAGE EXTERNAL")
    before = counters(connection)["added"]
    if statement == "copy":
        connection.execute(f"COPY ({large}) TO '{loaded.dir}/large.copy'")
        connection.execute(f"COPY filled FROM '{loaded.dir}/large.copy'")
    elif statement == "single rows":
        connection.execute(
            "DO $$BEGIN FOR i IN 1..1500 LOOP"
            " INSERT INTO filled VALUES (i, repeat('x', 5000)); COMMIT; END LOOP; END$$"
        )
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
    script(connection, PARTED)
    with grows(connection):
        connection.execute("INSERT INTO filled SELECT * FROM source")
    with grows(connection):
        connection.execute("INSERT INTO filled SELECT * FROM source")
    for part in ("filled_0", "filled_1"):
        found = pages(connection, part)
        tidy(found)
        assert found.size > 1500
        sound(connection, part)
    assert answer(connection, "filled")[0] == 2 * ROWS


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
    need_extensions(loaded, "pgstattuple")
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
    need_extensions(loaded, "pgstattuple")
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
    need_extensions(loaded, "pgstattuple")
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
    no_timeout(connection)
    assert value(connection, "SELECT tuple_count FROM pgstattuple('filled')") == ROWS
    # Passes by no page that a checkpoint has pinned.
    connection.execute("VACUUM (FREEZE) filled")
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

    def fill() -> None:
        with connect(loaded) as other:
            settings(other, statement_timeout="300s")
            other.execute(statements[how])

    with grows(connection, "server"), at_work(*[fill] * 4, seconds=400):
        pass
    expected = 4 * (20000 if how == "rows" else ROWS)
    assert value(connection, "SELECT count(*) FROM filled") == expected
    found = pages(connection, "filled")
    # Pages that COPY had for itself are returned by each; the server adds 64 to them at most.
    assert found.spare <= min(STEP, found.size // SIXTEENTH) + 4 * 64
    assert found.lost == 0
    sound(connection, "filled")


def test_many_loads_share(own_cluster: NewCluster) -> None:
    """What is added for several COPYs together is about what is added for one."""
    cluster = cluster_with_source(
        own_cluster, settings={"max_connections": "80", "statement_timeout": "0"}
    )
    # Of different lengths: each stops elsewhere in what was added for it.
    lines = [(40 + 2 * (i % 10)) * ROWS_ON_A_PAGE for i in range(50)]
    with ExitStack() as stack:
        connection = stack.enter_context(connect(cluster))
        connection.execute("CREATE TABLE filled (a int, b text)")
        connection.execute("INSERT INTO filled SELECT * FROM source LIMIT 20000")
        with ExitStack() as copies:
            for length in lines:
                other = copies.enter_context(connect(cluster))
                copy = copies.enter_context(other.cursor().copy("COPY filled FROM STDIN"))
                for i in range(length):
                    copy.write_row((i, "x" * 100))
                # Each waits for more before the next begins, so none meets another.
                waits = f"FROM pg_stat_activity WHERE pid = {other.info.backend_pid}"
                until(connection, f"(SELECT wait_event = 'ClientRead' {waits})")
            size = value(connection, "SELECT pg_relation_size('filled')") // BLOCK
            read = value(connection, "SELECT sum(tuples_processed) FROM pg_stat_progress_copy")
        assert value(connection, "SELECT count(*) FROM filled") == 20000 + sum(lines)
    # On 15 some of what has been read is not in the table yet.
    assert size - (20000 + read) / ROWS_ON_A_PAGE <= size // SIXTEENTH


def test_settings_of_the_cluster() -> None:
    """The tests above count on the default."""
    assert "pg_lookahead.heap_extend_size" not in CONF
