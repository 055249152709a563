"""VACUUM of a large table has a ring of buffers that is wide enough.

What is left of a table in shared buffers, after a VACUUM that has found none of
it there, is what its ring has held: 32 pages where the server chooses (15, 16),
256 (17 on), 2,048 with the library.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

import psycopg
import pytest
from lookahead.cluster import Cluster
from lookahead.servers import Server

from conftest import NewCluster, log_may_have
from support import (
    Connection,
    LogWatch,
    cold,
    comes_with,
    connect,
    has_extension,
    insist,
    no_pins,
    rows,
    script,
    settings,
    value,
)

# An eighth is the most that a ring may have: 2,048 pages.
CONF = {"shared_buffers": "128MB", "pg_lookahead.maintenance": "off"}

# Tables of this many pages, and more than a page has; one row of a page fits beside it.
PAGES = 3000
ROW = "repeat('x', 3000)"
OURS = 2048

# What others read of a table: its first page, the visibility map's neighbour, a sample.
FEW = 40


def make(connection: Connection, table: str, kind: str = "TABLE", pages: int = PAGES) -> None:
    """Make a table of which each page has a dead row, and one that lives."""
    script(
        connection,
        f"DROP TABLE IF EXISTS {table};"
        f"CREATE {kind} {table} (a integer, b text);"
        f"ALTER TABLE {table} ALTER b SET STORAGE PLAIN;"
        f"INSERT INTO {table} SELECT i, {ROW} FROM generate_series(1, {2 * pages}) i;"
        f"DELETE FROM {table} WHERE a % 2 = 0",
    )


def server_ring(connection: Connection) -> int:
    """Return how many pages the server's own ring has."""
    return 32 if connection.info.server_version < 170000 else 256


def held(connection: Connection, table: str) -> int:
    """Return how many pages of a table are in shared buffers."""
    if not comes_with(connection, "pg_buffercache"):
        pytest.skip("this server comes without pg_buffercache")
    return int(
        value(
            connection,
            "SELECT count(*) FROM pg_buffercache"
            " WHERE relfilenode = pg_relation_filenode(%s::regclass) AND relforknumber = 0"
            " AND reldatabase = (SELECT oid FROM pg_database WHERE datname = current_database())",
            (table,),
        )
    )


def left_by(connection: Connection, command: str, table: str = "d") -> int:
    """Run a command with the table not in shared buffers; return what is then."""
    cold(connection, table)
    connection.execute(command)
    return held(connection, table)


@pytest.fixture(scope="module")
def cluster(own_cluster: NewCluster) -> Cluster:
    cluster = own_cluster(CONF)
    has_extension(cluster, "pg_buffercache")
    return cluster


@pytest.fixture
def connection(request: pytest.FixtureRequest, cluster: Cluster) -> Iterator[Connection]:
    with LogWatch(cluster, allowed=log_may_have(request)), connect(cluster) as connection:
        yield connection
    no_pins(cluster)


def is_servers(connection: Connection, pages: int) -> bool:
    return pages <= server_ring(connection) + FEW


def is_ours(pages: int) -> bool:
    return OURS - FEW <= pages <= OURS + FEW


def test_large_table(connection: Connection) -> None:
    """The ring is wider with the library, and what VACUUM does is the same."""
    for on, is_right in ((False, lambda n: is_servers(connection, n)), (True, is_ours)):
        make(connection, "d")
        settings(connection, pg_lookahead__enabled=on)
        pages = left_by(connection, "VACUUM d")
        assert is_right(pages), (on, pages)
        found = rows(connection, "SELECT count(*), sum(a) FROM d")
        assert found == [(PAGES, PAGES * PAGES)]
        stats = "SELECT reltuples, relallvisible FROM pg_class WHERE relname = 'd'"
        assert rows(connection, stats) == [(PAGES, PAGES)]


def test_second_pass(connection: Connection) -> None:
    """With an index there are two passes, and pages of the index go through the ring, too."""
    make(connection, "d")
    connection.execute("CREATE INDEX ON d (a)")
    pages = left_by(connection, "VACUUM d")
    assert OURS // 2 < pages <= OURS + FEW
    assert value(connection, "SELECT count(*) FROM d WHERE a BETWEEN 1 AND 100") == 50


@pytest.mark.parametrize(
    "setting",
    [
        {"pg_lookahead__vacuum_buffer_usage_limit": 0},
        {"pg_lookahead__vacuum_buffer_usage_limit": "128kB"},
        {"pg_lookahead__enabled": "off"},
    ],
    ids=["zero", "small", "off"],
)
def test_switched_off(connection: Connection, setting: dict[str, object]) -> None:
    make(connection, "d")
    settings(connection, **setting)
    assert is_servers(connection, left_by(connection, "VACUUM d"))


def test_size(connection: Connection) -> None:
    """From 16 on a ring has any size; on 15 it has 16 MB or is the server's."""
    sized = connection.info.server_version >= 160000
    make(connection, "d")
    settings(connection, pg_lookahead__vacuum_buffer_usage_limit="8MB")
    pages = left_by(connection, "VACUUM d")
    assert 1024 - FEW <= pages <= 1024 + FEW if sized else is_servers(connection, pages)
    make(connection, "d")
    settings(connection, pg_lookahead__vacuum_buffer_usage_limit="20MB")
    assert is_ours(left_by(connection, "VACUUM d"))


def test_chosen_by_user(connection: Connection, server: Server) -> None:
    """Whoever has chosen a ring has it."""
    if server.major < 16:
        pytest.skip("15 has no choice of rings")
    for pages, command in ((512, "VACUUM (BUFFER_USAGE_LIMIT '4MB') d"), (64, "VACUUM d")):
        make(connection, "d")
        connection.execute("SET vacuum_buffer_usage_limit = '512kB'")
        found = left_by(connection, command)
        assert pages - FEW <= found <= pages + FEW
    make(connection, "d")
    connection.execute("RESET vacuum_buffer_usage_limit")
    found = left_by(connection, "VACUUM (BUFFER_USAGE_LIMIT '2MB') d")
    assert 256 - FEW <= found <= 256 + FEW
    make(connection, "d")
    assert left_by(connection, "VACUUM (BUFFER_USAGE_LIMIT 0) d") >= PAGES


def test_small_table(connection: Connection) -> None:
    """A table that the ring would hold whole keeps the server's."""
    make(connection, "d", pages=OURS - 200)
    assert is_servers(connection, left_by(connection, "VACUUM d"))


def test_large_limit(connection: Connection) -> None:
    """The table counts against the ring that it gets, not against what is wished for."""
    make(connection, "d")
    settings(connection, pg_lookahead__vacuum_buffer_usage_limit="1GB")
    assert is_ours(left_by(connection, "VACUUM d"))


def test_nothing_to_flush(connection: Connection) -> None:
    make(connection, "d", "UNLOGGED TABLE")
    assert is_servers(connection, left_by(connection, "VACUUM d"))


def test_temporary_table(connection: Connection) -> None:
    make(connection, "d_temporary", "TEMPORARY TABLE")
    connection.execute("VACUUM d_temporary")
    assert value(connection, "SELECT count(*) FROM d_temporary") == PAGES


def test_named_with_others(connection: Connection) -> None:
    """Each table of a list, and each partition, has its ring."""
    make(connection, "d")
    script(
        connection,
        "DROP TABLE IF EXISTS d_parts;"
        "CREATE TABLE d_parts (a integer, b text) PARTITION BY LIST (a);"
        "CREATE TABLE d_part PARTITION OF d_parts DEFAULT;"
        "ALTER TABLE d_part ALTER b SET STORAGE PLAIN;"
        f"INSERT INTO d_parts SELECT i, {ROW} FROM generate_series(1, {2 * PAGES}) i;"
        "DELETE FROM d_parts WHERE a % 2 = 0",
    )
    cold(connection, "d", "d_part")
    connection.execute("VACUUM d_parts, d")
    assert is_ours(held(connection, "d_part"))
    assert is_ours(held(connection, "d"))
    connection.execute("DROP TABLE d_parts")


def make_toasted(connection: Connection) -> str:
    """Make a small table with a large TOAST table; return the name of that."""
    script(
        connection,
        "DROP TABLE IF EXISTS d_toasted;"
        "CREATE TABLE d_toasted (a integer, b text);"
        "ALTER TABLE d_toasted ALTER b SET STORAGE EXTERNAL;"
        f"INSERT INTO d_toasted SELECT i, repeat('x', 7000) FROM generate_series(1, {PAGES}) i;"
        "DELETE FROM d_toasted WHERE a % 2 = 0",
    )
    return str(
        value(
            connection,
            "SELECT reltoastrelid::regclass::text FROM pg_class WHERE relname = 'd_toasted'",
        )
    )


def test_toast_table(connection: Connection) -> None:
    """It has the ring, named by its table or, if it was large before, not at all."""
    toast = make_toasted(connection)
    for command in ("VACUUM d_toasted", "VACUUM"):
        cold(connection, "d_toasted")
        connection.execute(command)
        # Its index has pages in the ring, too.
        assert OURS - 4 * FEW <= held(connection, toast) <= OURS + FEW, command
        connection.execute("DELETE FROM d_toasted WHERE a % 4 = 1")
    connection.execute("DROP TABLE d_toasted")


def test_whole_database(connection: Connection) -> None:
    """Without names, tables that were large when they were vacuumed last."""
    make(connection, "d")
    connection.execute("VACUUM d")
    connection.execute("UPDATE d SET b = b WHERE a % 4 = 1")
    assert is_ours(left_by(connection, "VACUUM"))


def is_noted(connection: Connection, run: Callable[[], object]) -> bool:
    """Whether a VACUUM used our ring, by what it says."""
    said: list[str] = []

    def note(diagnostic: psycopg.errors.Diagnostic) -> None:
        said.append(diagnostic.message_primary or "")

    connection.add_notice_handler(note)
    connection.execute("SET client_min_messages = debug1")
    try:
        run()
    finally:
        connection.execute("RESET client_min_messages")
        connection.remove_notice_handler(note)
    return any("through a ring of" in text for text in said)


def test_said(connection: Connection) -> None:
    """It can be seen at work without pg_buffercache, too."""
    make(connection, "d")
    for on in (True, False):
        settings(connection, pg_lookahead__enabled=on)
        assert is_noted(connection, lambda: connection.execute("VACUUM d")) == on


def test_rewriting(connection: Connection) -> None:
    """VACUUM FULL and ANALYZE do not go that way, and are left alone."""
    make(connection, "d")
    for command in ("ANALYZE d", "VACUUM (FULL) d", "VACUUM (FULL, ANALYZE) d"):
        assert not is_noted(connection, lambda command=command: connection.execute(command))
    assert value(connection, "SELECT count(*) FROM d") == PAGES


def test_with_options(connection: Connection) -> None:
    make(connection, "d")
    for options in ("ANALYZE", "FREEZE", "FULL false", "DISABLE_PAGE_SKIPPING, VERBOSE false"):
        assert is_noted(connection, lambda: connection.execute(f"VACUUM ({options}) d")), options
    connection.execute("VACUUM FREEZE d")


def test_catalog(connection: Connection) -> None:
    """The catalog that says which tables are large may be one of them."""
    if connection.info.server_version < 160000:
        pytest.skip("a catalog of 16 MB takes long to make")
    connection.execute("DROP TABLE IF EXISTS d, d_parts, d_toasted")
    # No other catalog is so large.
    ring = 512
    settings(connection, pg_lookahead__vacuum_buffer_usage_limit=f"{8 * ring}kB")
    for command in ("VACUUM", "VACUUM pg_class"):
        size = "SELECT pg_relation_size('pg_class') / 8192"
        # In one transaction, or what is dead would make room.
        with connection.transaction():
            while value(connection, size) < 2 * ring:
                connection.execute("UPDATE pg_class SET relhassubclass = relhassubclass")
        connection.execute("ANALYZE pg_class")
        noted = is_noted(connection, lambda command=command: connection.execute(command))
        assert noted == (command == "VACUUM pg_class")
        connection.execute("VACUUM FULL pg_class")
    assert value(connection, "SELECT count(*) FROM pg_class WHERE relname = 'pg_class'") == 1


def test_statistics_only(connection: Connection, server: Server) -> None:
    """What vacuumdb does in the end vacuums no table."""
    if server.major < 16:
        pytest.skip("16 can do so")
    connection.execute("VACUUM (ONLY_DATABASE_STATS)")
    for wrong in ("ONLY_DATABASE_STATS 7", "FULL 7", "NO_SUCH_OPTION"):
        with pytest.raises(psycopg.errors.SyntaxError):
            connection.execute(f"VACUUM ({wrong})")


@pytest.mark.log_may_have("lock not available")
def test_locked_table(cluster: Cluster, connection: Connection) -> None:
    """A table that is locked is not waited for twice, and nothing stays behind."""
    make(connection, "d")
    with connect(cluster) as other, other.transaction():
        other.execute("LOCK TABLE d IN ACCESS EXCLUSIVE MODE")
        connection.execute("VACUUM (SKIP_LOCKED) d")
    with connect(cluster) as other, other.transaction():
        # VACUUM is kept out, but not who only looks.
        other.execute("LOCK TABLE d IN SHARE UPDATE EXCLUSIVE MODE")
        connection.execute("VACUUM (SKIP_LOCKED) d")
    assert is_ours(left_by(connection, "VACUUM d"))


@pytest.mark.parametrize("what", ["scan", "index", "insert", "copy", "vacuum"])
def test_after_error(cluster: Cluster, connection: Connection, what: str) -> None:
    """A VACUUM that never came to its table leaves nothing that disturbs."""
    make(connection, "d")
    with connect(cluster) as other, other.transaction():
        other.execute("LOCK TABLE d IN SHARE UPDATE EXCLUSIVE MODE")
        connection.execute("SET statement_timeout = '100ms'")
        with pytest.raises(psycopg.errors.QueryCanceled):
            connection.execute("VACUUM d")
        insist(connection, "RESET statement_timeout")
    if what == "scan":
        assert value(connection, "SELECT count(*) FROM d") == PAGES
    elif what == "index":
        connection.execute("CREATE INDEX ON d (a)")
        assert value(connection, "SELECT count(*) FROM d WHERE a = 1") == 1
    elif what == "insert":
        connection.execute(f"INSERT INTO d SELECT i, {ROW} FROM generate_series(1, 2000) i")
        assert value(connection, "SELECT count(*) FROM d") == PAGES + 2000
    elif what == "copy":
        with connection.cursor().copy("COPY d (a) FROM STDIN") as copy:
            copy.write("".join(f"{i}\n" for i in range(5000)))
        assert value(connection, "SELECT count(*) FROM d") == PAGES + 5000
    else:
        assert is_ours(left_by(connection, "VACUUM d"))


@pytest.mark.parametrize("how", ["limit", "off", "small"])
def test_choice_after_error(cluster: Cluster, connection: Connection, how: str) -> None:
    """Nor does it change what is chosen for the next one."""
    sized = connection.info.server_version >= 160000
    if how == "limit" and not sized:
        pytest.skip("15 has no choice of rings")
    toast = make_toasted(connection)
    with connect(cluster) as other, other.transaction():
        # VACUUM comes to the table, but not to that of large values.
        other.execute(f"SELECT count(*) FROM {toast}")
        other.execute("LOCK TABLE d_toasted IN SHARE UPDATE EXCLUSIVE MODE")
        connection.execute("SET statement_timeout = '100ms'")
        with pytest.raises(psycopg.errors.QueryCanceled):
            connection.execute("VACUUM d_toasted")
        insist(connection, "RESET statement_timeout")
    command = "VACUUM d_toasted"
    if how == "limit":
        command = "VACUUM (BUFFER_USAGE_LIMIT '256kB') d_toasted"
    elif how == "off":
        settings(connection, pg_lookahead__enabled="off")
    else:
        settings(connection, pg_lookahead__vacuum_buffer_usage_limit="128kB")
    with_ring = is_noted(connection, lambda: connection.execute(command))
    connection.execute("DROP TABLE d_toasted")
    assert not with_ring


@pytest.mark.parametrize(
    "names, error",
    [
        ("no_such_table", psycopg.errors.UndefinedTable),
        ("no_such_schema.d", psycopg.errors.InvalidSchemaName),
        ("elsewhere.public.d", psycopg.errors.FeatureNotSupported),
        ("d (a)", psycopg.errors.FeatureNotSupported),
        ("d, no_such_table", psycopg.errors.UndefinedTable),
    ],
)
def test_errors_are_the_servers(connection: Connection, names: str, error: type[Exception]) -> None:
    """What is wrong with a statement is said as without the library, and once."""
    make(connection, "d")
    said = []
    for on in (False, True):
        settings(connection, pg_lookahead__enabled=on)
        with pytest.raises(error) as raised:
            connection.execute(f"VACUUM {names}")
        said.append((str(raised.value), raised.value.diag.sqlstate))
    assert said[0] == said[1]


@pytest.mark.parametrize(
    "setting, error",
    [
        ("statement_timeout", psycopg.errors.QueryCanceled),
        ("lock_timeout", psycopg.errors.LockNotAvailable),
    ],
)
@pytest.mark.parametrize("catalog, command", [("pg_class", "VACUUM"), ("pg_inherits", "VACUUM p")])
def test_cancelled_at_a_catalog(
    cluster: Cluster,
    connection: Connection,
    catalog: str,
    command: str,
    setting: str,
    error: type[Exception],
) -> None:
    """Where tables are looked up it may have to wait, and is ended like VACUUM."""
    script(
        connection,
        "DROP TABLE IF EXISTS p; CREATE TABLE p (a integer) PARTITION BY LIST (a);"
        f"CREATE TABLE p_1 PARTITION OF p DEFAULT; SET {setting} = '300ms'",
    )
    with connect(cluster) as other, other.transaction():
        other.execute(f"LOCK TABLE {catalog} IN ACCESS EXCLUSIVE MODE")
        with pytest.raises(error):
            connection.execute(command)
        assert connection.info.transaction_status == psycopg.pq.TransactionStatus.IDLE
    insist(connection, f"RESET {setting}")
    assert value(connection, "SELECT 1") == 1
    connection.execute(command)
    connection.execute("DROP TABLE p")


@pytest.mark.log_may_have("pg_attribute catalog is missing")
def test_damaged_catalog(cluster: Cluster, connection: Connection) -> None:
    """A table that cannot be opened fails its VACUUM as without us, and nothing else."""
    script(connection, "DROP DATABASE IF EXISTS damaged; CREATE DATABASE damaged")
    with connect(cluster, "damaged") as other:
        make(other, "d", pages=100)
        other.execute("DELETE FROM pg_attribute WHERE attrelid = 'd'::regclass AND attname = 'a'")
    for on in (False, True):
        with connect(cluster, "damaged") as other:
            settings(other, pg_lookahead__enabled=on)
            with pytest.raises(psycopg.errors.InternalError_, match="catalog is missing"):
                other.execute("VACUUM d")
            assert value(other, "SELECT 1") == 1
    connection.execute("DROP DATABASE damaged")


def test_where_it_may_not_run(connection: Connection) -> None:
    make(connection, "d")
    with pytest.raises(psycopg.errors.ActiveSqlTransaction), connection.transaction():
        connection.execute("VACUUM d")
    with pytest.raises(psycopg.errors.ActiveSqlTransaction):
        connection.execute("DO $$ BEGIN EXECUTE 'VACUUM d'; END $$")
    assert value(connection, "SELECT count(*) FROM d") == PAGES


@pytest.mark.log_may_have("can vacuum it|permission denied to vacuum")
def test_without_rights(cluster: Cluster, connection: Connection) -> None:
    """Who may not vacuum a table is told so, and it is left alone."""
    make(connection, "d")
    script(
        connection,
        "DROP ROLE IF EXISTS nobody_much; CREATE ROLE nobody_much LOGIN",
    )
    with connect(cluster, user="nobody_much") as other:
        said: list[str] = []
        other.add_notice_handler(lambda found: said.append(found.message_primary or ""))
        other.execute("VACUUM d")
        assert any("permission denied" in text or "only" in text for text in said), said
        connection.execute("GRANT SELECT ON d TO nobody_much")
        assert value(other, "SELECT count(*) FROM d") == PAGES
    script(connection, "REVOKE ALL ON d FROM nobody_much; DROP ROLE nobody_much")


def test_index_workers(connection: Connection) -> None:
    """Parallel workers clean the indexes with rings of their own."""
    make(connection, "d")
    script(
        connection,
        "CREATE INDEX d_a ON d (a); CREATE INDEX d_b ON d ((a + 1));"
        "SET min_parallel_index_scan_size = 0; SET maintenance_work_mem = '64MB'",
    )
    said: list[str] = []
    connection.add_notice_handler(lambda found: said.append(found.message_primary or ""))
    assert left_by(connection, "VACUUM (PARALLEL 2, VERBOSE) d") > OURS // 2
    assert any("launched 1 parallel vacuum worker" in text for text in said), said
    settings(connection, enable_seqscan="off")
    assert value(connection, "SELECT count(*) FROM d WHERE a < 1000") == 500
    assert value(connection, "SELECT count(*) FROM d WHERE a + 1 < 1000") == 499
