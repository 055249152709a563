"""What a load has filled is written out many pages at a time (17 and later).

The table must be what it is without, in shared buffers and in its file: after a
crash, after an error of a write, and with others who read it, write it out and
vacuum it at the same time.
"""

from __future__ import annotations

import contextlib
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import psycopg
import pytest
from lookahead import privilege
from lookahead.cluster import Cluster
from lookahead.servers import Server

from conftest import NewCluster
from extend_support import LOADS, ROWS, cluster_with_source, new_session, odd_files, sound
from support import (
    Connection,
    LogWatch,
    connect,
    has_extension,
    no_timeout,
    reset_statistics,
    rows,
    until,
    value,
)

# A ring of buffers is an eighth of shared buffers, at most 16 MB.
RING = 1024

CALL = 4  # pages that are written together where that takes no time

FROM = 17

LINE = b"1\t" + b"y" * 100 + b"\n"

# What recovery says when it has read all WAL, in files that were used before.
END_OF_WAL = "unexpected pageaddr|invalid record length|invalid magic number|record with incorrect"


def counters(connection: Connection, scope: str = "session") -> tuple[int, int, int]:
    row = rows(
        connection,
        f"SELECT writes, pages_written, errors FROM pg_lookahead_extend() WHERE scope = '{scope}'",
    )[0]
    return int(row[0]), int(row[1]), int(row[2])


def answer(connection: Connection, table: str) -> tuple[object, ...]:
    query = f"SELECT count(*), sum(hashint8(a)), sum(hashtext(b)) FROM {table}"
    return rows(connection, query)[0]


def crash(cluster: Cluster) -> None:
    """What is in files only from now on: pages that were written, and the WAL."""
    cluster.stop("immediate")
    cluster.start()


def has_checksums_right(cluster: Cluster) -> None:
    """Every page of a server that was stopped is in its file as it should be."""
    program = cluster.server.bindir / "pg_checksums"
    check = privilege.run([str(program), "--check", "-D", str(cluster.data)], cwd=cluster.dir)
    assert check.returncode == 0, check


@pytest.fixture(scope="module")
def loads(own_cluster: NewCluster) -> Cluster:
    return cluster_with_source(own_cluster, "pg_buffercache")


@pytest.fixture
def connection(loads: Cluster, server: Server) -> Iterator[Connection]:
    if server.major < FROM:
        pytest.skip("the storage manager writes single pages")
    with new_session(loads, allowed=[END_OF_WAL]) as connection:
        yield connection


def test_only_where_it_can_be(loads: Cluster, server: Server) -> None:
    """Before 17 the setting is there, and does nothing."""
    with connect(loads) as connection:
        connection.execute("CREATE TABLE anywhere AS SELECT * FROM source")
        assert (counters(connection)[0] > 0) == (server.major >= FROM)
        connection.execute("DROP TABLE anywhere")


CREATE = "CREATE {kind} TABLE {table} (a int, b text)"
COPY = "COPY {table} FROM '{dir}/source.copy'"

STATEMENTS = {
    "copy": (CREATE, COPY),
    "copy, a row at a time": (
        "CREATE TABLE {table} (a int, b text, c float DEFAULT random())",
        "COPY {table} (a, b) FROM '{dir}/source.copy'",
    ),
    "copy frozen": ("BEGIN", CREATE, COPY + " WITH (FREEZE)", "COMMIT"),
    "copy, with an index": (CREATE, "CREATE INDEX ON {table} (a)", COPY),
    "copy, rolled back before": (CREATE, "BEGIN", COPY, "ROLLBACK", "VACUUM {table}", COPY),
    "copy twice": (CREATE, COPY, "DELETE FROM {table} WHERE a % 50 < 25", "VACUUM {table}", COPY),
    "insert": (CREATE, "INSERT INTO {table} SELECT s.* FROM source s, generate_series(1, 8)"),
    "update": (
        "CREATE TABLE {table} (a int, b text) WITH (fillfactor = 50)",
        "INSERT INTO {table} SELECT s.* FROM source s, generate_series(1, 4)",
        "UPDATE {table} SET a = a + 1",
        "UPDATE {table} SET b = b || 'y' WHERE a % 2 = 0",
    ),
    "ctas": ("CREATE {kind} TABLE {table} AS SELECT * FROM source",),
    "select into": ("SELECT * INTO {kind} {table} FROM source",),
    "refresh": (
        "CREATE MATERIALIZED VIEW {table}_v AS SELECT * FROM source WITH NO DATA",
        "REFRESH MATERIALIZED VIEW {table}_v",
        "CREATE TABLE {table} AS SELECT * FROM {table}_v",
        "DROP MATERIALIZED VIEW {table}_v",
    ),
}


def fill(connection: Connection, cluster: Cluster, name: str, table: str, kind: str = "") -> None:
    for statement in STATEMENTS[name]:
        connection.execute(statement.format(table=table, kind=kind, dir=cluster.dir))


@pytest.mark.parametrize("name", STATEMENTS)
def test_same_as_without(loads: Cluster, connection: Connection, name: str) -> None:
    connection.execute("SET pg_lookahead.write_combine_size = 0")
    fill(connection, loads, name, "plain")
    assert counters(connection) == (0, 0, 0)
    connection.execute("RESET pg_lookahead.write_combine_size")
    fill(connection, loads, name, "filled")
    writes, pages, errors = counters(connection)
    assert errors == 0
    # All of each load but what stays in its ring, or in all buffers, with few calls.
    size = value(connection, "SELECT pg_relation_size('source') / 8192")
    if name in ("insert", "update"):
        assert pages >= 4 * (size - RING)
    else:
        assert pages >= (2 if name == "refresh" else 1) * (size - RING)
    # What the clock sweep comes to next need not follow one another.
    assert pages >= writes * (1 if name in ("insert", "update") else CALL / 2)
    expected = answer(connection, "plain")
    assert answer(connection, "filled") == expected
    sound(connection, "filled")
    connection.close()
    crash(loads)
    with connect(loads) as again:
        assert answer(again, "filled") == expected
        sound(again, "filled")


@pytest.mark.parametrize("name", ["copy", "ctas"])
def test_unlogged(loads: Cluster, connection: Connection, name: str) -> None:
    fill(connection, loads, name, "filled", kind="UNLOGGED")
    assert counters(connection)[0] > 0
    assert answer(connection, "filled") == answer(connection, "source")
    connection.close()
    # A regular end writes it, and what was written before is not written again.
    loads.restart()
    with connect(loads) as again:
        assert answer(again, "filled") == answer(again, "source")
        sound(again, "filled")


def test_what_is_left_alone(loads: Cluster, connection: Connection) -> None:
    """A temporary table, a load that its ring holds, and a setting of zero."""
    fill(connection, loads, "copy", "filled", kind="TEMPORARY")
    connection.execute("DROP TABLE filled")
    connection.execute("CREATE TABLE filled AS SELECT * FROM source LIMIT 40000")
    assert counters(connection)[:2] == (0, 0)
    with pytest.raises(psycopg.errors.InvalidParameterValue, match="outside the valid range"):
        connection.execute("SET pg_lookahead.write_combine_size = '1MB'")
    # The page that it goes on with was there before.
    connection.execute(f"COPY filled FROM '{loads.dir}/source.copy' WHERE a <= 40000")
    assert counters(connection)[:2] == (0, 0)
    # Room that was there is in shared buffers already, and not in the ring.
    connection.execute("INSERT INTO filled SELECT * FROM source")
    connection.execute("DELETE FROM filled")
    connection.execute("VACUUM (TRUNCATE OFF) filled")
    connection.execute(f"COPY filled FROM '{loads.dir}/source.copy'")
    assert counters(connection)[:2] == (0, 0)
    connection.execute("SET pg_lookahead.enabled = off")
    fill(connection, loads, "ctas", "plain")
    assert counters(connection)[:2] == (0, 0)


def test_statistics(connection: Connection, server: Server) -> None:
    """What is written is counted as PostgreSQL counts its own writes."""
    written = []
    for size in ("0", "256kB"):
        connection.execute("DROP TABLE IF EXISTS filled")
        connection.execute("CHECKPOINT")
        reset_statistics(connection)
        connection.execute("SELECT pg_stat_reset_shared('io')")
        connection.execute(f"SET pg_lookahead.write_combine_size = '{size}'")
        connection.execute("CREATE TABLE filled AS SELECT * FROM source")
        connection.execute("SELECT pg_stat_force_next_flush()")
        io = rows(
            connection,
            "SELECT sum(writes)::int FROM pg_stat_io WHERE context = 'bulkwrite'"
            " AND backend_type = 'client backend'",
        )[0][0]
        written.append(io)
    stock, ours = written
    # 18 counts calls, 17 blocks.
    if server.major >= 18:
        assert ours < stock * 2 / 3
    else:
        assert stock <= ours <= stock + RING * 3 // 4


def test_pages_in_use_are_left(loads: Cluster, connection: Connection) -> None:
    """A page that somebody looks at is written later, by whoever needs its buffer."""
    connection.execute("CREATE TABLE filled (a int, b text)")
    # 18 pages, of which the last two are beside the first two that COPY adds.
    connection.execute("INSERT INTO filled SELECT * FROM source LIMIT 1000")
    first = value(connection, "SELECT pg_relation_size('filled') / 8192")
    assert first % CALL == 2
    dirty = (
        "SELECT relblocknumber FROM pg_buffercache WHERE isdirty AND relforknumber = 0"
        " AND relfilenode = pg_relation_filenode('filled')"
        f" AND relblocknumber BETWEEN {first - 2} AND {first + 1}"
    )
    with connect(loads) as reader, reader.transaction():
        # A cursor keeps the page that it has come to pinned.
        reader.execute("DECLARE c CURSOR FOR SELECT ctid FROM filled")
        ctid = reader.execute("FETCH 950 FROM c").fetchall()[-1][0]
        pinned = int(ctid.strip("()").split(",")[0])
        assert pinned == first - 2
        connection.execute(f"COPY filled FROM '{loads.dir}/source.copy'")
        found = [block for (block,) in rows(connection, dirty)]
        assert pinned in found
        assert not {first, first + 1}.intersection(found)
    assert value(connection, "SELECT count(*) FROM filled") == ROWS + 1000
    sound(connection, "filled")


def newest_change(file: Path) -> int:
    """The highest LSN of the pages of a file."""
    data = file.read_bytes()
    return max(
        (int.from_bytes(data[at : at + 4], sys.byteorder) << 32)
        + int.from_bytes(data[at + 4 : at + 8], sys.byteorder)
        for at in range(0, len(data), 8192)
    )


@pytest.mark.parametrize("how", ["copy", "insert"])
def test_wal_comes_first(own_cluster: NewCluster, server: Server, how: str) -> None:
    """No page is in its file before the WAL of what it holds, if the server is killed then."""
    if server.major < FROM:
        pytest.skip("the storage manager writes single pages")
    # WAL is written by those who need it to be, and by nobody else.
    lazy = {"wal_buffers": "128MB", "wal_writer_delay": "10s", "synchronous_commit": "off",
            "statement_timeout": "0"}  # fmt: skip
    cluster = own_cluster({**LOADS, **lazy})
    with connect(cluster) as connection:
        connection.execute("CREATE TABLE filled (a int, b text)")
        file = cluster.data / value(connection, "SELECT pg_relation_filepath('filled')")
        with connect(cluster) as writer:

            def load() -> None:
                with contextlib.suppress(psycopg.Error):
                    if how == "insert":
                        writer.execute(
                            "INSERT INTO filled"
                            " SELECT i, repeat('x', 100) FROM generate_series(1, 100000000) i"
                        )
                    with writer.cursor() as cursor, cursor.copy("COPY filled FROM STDIN") as copy:
                        while True:
                            copy.write(LINE * 1000)

            thread = threading.Thread(target=load)
            thread.start()
            try:
                until(
                    connection,
                    "(SELECT writes FROM pg_lookahead_extend() WHERE scope = 'server') > 100",
                    seconds=300,
                )
            finally:
                cluster.stop("immediate")
                thread.join()
    last = newest_change(file)
    cluster.start()
    with connect(cluster) as connection:
        # The checkpoint at the end of recovery begins where the WAL has ended.
        end = value(connection, "SELECT redo_lsn - '0/0' FROM pg_control_checkpoint()")
    assert 0 < last <= end


@pytest.fixture
def odd(own_cluster: NewCluster, server: Server) -> tuple[Cluster, Path, Path]:
    """A server that, while a file exists, cannot write several pages with one call, or is slow."""
    if server.major < FROM:
        pytest.skip("the storage manager writes single pages")
    cluster = own_cluster(LOADS, start=False)
    fail, slow = odd_files(cluster, "LA_FAILING_WRITES", "LA_SLOW_WRITES")
    cluster.start()
    with connect(cluster) as connection:
        connection.execute("CREATE EXTENSION IF NOT EXISTS pg_lookahead")
    has_extension(cluster, "amcheck")
    return cluster, fail, slow


def test_more_where_it_takes_time(odd: tuple[Cluster, Path, Path]) -> None:
    """Where a call takes long it is for as many pages as the setting says."""
    cluster, _, slow = odd
    slow.touch()
    for size, fewest, most in ((32, 16, 32), (8, 4, 8)):
        with connect(cluster) as connection:
            connection.execute(f"SET pg_lookahead.write_combine_size = {size}")
            connection.execute(
                "CREATE TABLE made AS SELECT i AS a, repeat('x', 100) AS b"
                " FROM generate_series(1, 200000) i"
            )
            writes, pages, _ = counters(connection)
            assert fewest * writes <= pages <= most * writes
            connection.execute("DROP TABLE made")
    slow.unlink()


def test_error_of_a_write(odd: tuple[Cluster, Path, Path]) -> None:
    """If pages cannot be written together the server writes them, and the load goes on."""
    cluster, flag, _ = odd
    sent = 0
    with connect(cluster) as connection, connect(cluster) as writer:
        connection.execute("CREATE TABLE filled (a int, b text)")
        for turn in (1, 2):
            with writer.cursor() as cursor, cursor.copy("COPY filled FROM STDIN") as copy:
                writes = counters(connection, "server")[0]
                while counters(connection, "server")[0] < writes + 10:
                    copy.write(LINE * 1000)
                    sent += 1000
                    assert sent < 10 * ROWS
                flag.touch()
                while counters(connection, "server")[2] < turn:
                    copy.write(LINE * 1000)
                    sent += 1000
                    assert sent < 10 * ROWS
                writes = counters(connection, "server")[0]
                copy.write(LINE * ROWS)
                sent += ROWS
            flag.unlink()
            # It was not tried again in this load.
            assert counters(connection, "server")[0] == writes
            assert counters(connection, "server")[2] == turn
            assert value(connection, "SELECT count(*) FROM filled") == sent
            sound(connection, "filled")
        # Past the ring, likewise.
        flag.touch()
        writer.execute(
            "INSERT INTO filled SELECT 1, repeat('y', 100) FROM generate_series(1, 1000000)"
        )
        flag.unlink()
        sent += 1000000
        assert counters(connection, "server")[2] > 2
        assert value(connection, "SELECT count(*) FROM filled") == sent
        sound(connection, "filled")
    assert "could not write blocks" not in cluster.log.read_text(errors="replace")
    crash(cluster)
    with connect(cluster) as connection:
        assert value(connection, "SELECT count(*) FROM filled") == sent
        sound(connection, "filled")
    cluster.stop()
    has_checksums_right(cluster)


# Beyond what a WAL file has, whose writes must not fail.
LIMIT = 24 << 20


def test_error_is_not_the_servers(odd: tuple[Cluster, Path, Path]) -> None:
    """When the server fails to write a page that we could not write, that is its first failure."""
    cluster, flag, _ = odd
    with connect(cluster) as connection, connect(cluster) as writer:
        connection.execute("CHECKPOINT")
        pid = value(
            connection,
            "SELECT pid FROM pg_stat_activity WHERE backend_type = 'checkpointer'",
        )
        writer.execute("CREATE TABLE filled (a int, b text)")
        file = cluster.data / value(connection, "SELECT pg_relation_filepath('filled')")
        connection.execute("CHECKPOINT")
        with writer.cursor() as cursor, cursor.copy("COPY filled FROM STDIN") as copy:
            # Of what is dirty the ring has the last, beyond the limit.
            while file.stat().st_size < LIMIT + 3 * RING * 8192:
                copy.write(LINE * 1000)
            flag.touch()
            while counters(connection, "server")[2] == 0:
                copy.write(LINE * 1000)
            limited = ["prlimit", f"--pid={pid}", f"--fsize={LIMIT}:"]
            assert privilege.run(limited, cwd=cluster.dir).returncode == 0
            with pytest.raises(psycopg.Error, match="checkpoint request failed"):
                connection.execute("CHECKPOINT")
            limited[-1] = "--fsize=unlimited:"
            assert privilege.run(limited, cwd=cluster.dir).returncode == 0
            flag.unlink()
            connection.execute("CHECKPOINT")
        log = cluster.log.read_text(errors="replace")
        assert "could not write blocks" in log
        assert "Multiple failures" not in log
        sound(connection, "filled")
        count = value(connection, "SELECT count(*) FROM filled")
    crash(cluster)
    with connect(cluster) as connection:
        assert value(connection, "SELECT count(*) FROM filled") == count


def test_cancelled(loads: Cluster, connection: Connection) -> None:
    connection.execute("CREATE TABLE filled (a int, b text)")
    for delay in (50, 100, 150, 200, 300):
        connection.execute(f"SET statement_timeout = {delay}")
        with pytest.raises(psycopg.errors.QueryCanceled):
            connection.execute(
                "CREATE TABLE never AS SELECT s.* FROM source s, generate_series(1, 50)"
            )
        no_timeout(connection)
        connection.execute("BEGIN")
        connection.execute("SAVEPOINT s")
        with pytest.raises(psycopg.errors.DivisionByZero):
            connection.execute("CREATE TABLE never AS SELECT a, 1 / (90000 - a), b FROM source")
        connection.execute("ROLLBACK TO s")
        connection.execute(f"COPY filled FROM '{loads.dir}/source.copy'")
        connection.execute("COMMIT")
    assert counters(connection)[0] > 0
    assert value(connection, "SELECT count(*) FROM filled") == 5 * ROWS
    sound(connection, "filled")
    assert value(connection, "SELECT sum(pinning_backends) FROM pg_buffercache") <= 1


def test_beside_others(own_cluster: NewCluster, server: Server) -> None:
    """Several loads of a table, readers, VACUUM and checkpoints at once."""
    if server.major < FROM:
        pytest.skip("the storage manager writes single pages")
    cluster = cluster_with_source(
        own_cluster,
        settings={"bgwriter_lru_maxpages": "1000", "bgwriter_delay": "10ms"},
    )
    failures: list[Exception] = []
    stop = threading.Event()

    def repeat(*statements: str, times: int | None = None) -> threading.Thread:
        def run() -> None:
            try:
                with connect(cluster) as other:
                    turn = 0
                    while not stop.is_set() and turn != times:
                        for statement in statements:
                            other.execute(statement)
                        turn += 1
            except Exception as error:
                failures.append(error)

        thread = threading.Thread(target=run)
        thread.start()
        return thread

    with LogWatch(cluster), connect(cluster) as connection:
        connection.execute("CREATE TABLE filled (a int, b text)")
        beside = [
            repeat("CHECKPOINT"),
            repeat("VACUUM filled"),
            repeat("SELECT count(*) FROM filled"),
            repeat("UPDATE filled SET a = a WHERE a % 5000 = 0"),
            repeat(
                "CREATE TABLE other AS SELECT * FROM source LIMIT 80000",
                "TRUNCATE other",
                "DROP TABLE other",
            ),
        ]
        loads = [repeat(f"COPY filled FROM '{cluster.dir}/source.copy'", times=3) for _ in range(4)]
        for thread in loads:
            thread.join()
        stop.set()
        for thread in beside:
            thread.join()
        assert failures == []
        assert counters(connection, "server")[0] > 0
        assert counters(connection, "server")[2] == 0
        assert value(connection, "SELECT count(*) FROM filled") == 12 * ROWS
        sound(connection, "filled")
        assert rows(connection, "SELECT a FROM filled GROUP BY a HAVING count(*) <> 12") == []
    crash(cluster)
    with connect(cluster) as connection:
        assert value(connection, "SELECT count(*) FROM filled") == 12 * ROWS
        sound(connection, "filled")
    cluster.stop()
    has_checksums_right(cluster)
