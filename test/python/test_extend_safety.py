"""Pages in advance where the server, the disk or a file ends.

A crash, a full disk, the end of a file, a backup in the middle of loads: what is
found then is a sound table, and the pages that nobody used come back.
"""

from __future__ import annotations

import os
import subprocess
import threading
import time
from functools import partial
from pathlib import Path

import psycopg
import pytest
from lookahead import privilege
from lookahead.cluster import Cluster
from lookahead.servers import Server

from conftest import NewCluster
from extend_support import (
    BLOCK,
    LOADS,
    PARTED,
    ROWS,
    SIXTEENTH,
    SOURCE,
    STEP,
    answer,
    cluster_with_source,
    counters,
    new_session,
    grows,
    odd_files,
    off,
    on,
    pages,
    sound,
    tidy,
)
from standby_support import base_backup, caught_up
from support import (
    Connection,
    LogWatch,
    at_work,
    connect,
    has_extension,
    prepare,
    rows,
    script,
    signal_backend,
    slow_tablespace,
    until,
    value,
)

SEGMENT = 1 << 30


CRASHES = (
    "INSERT INTO filled SELECT s.* FROM source s, generate_series(1, 50)",
    "COPY filled FROM '%s/source.copy'",
    "COPY parted FROM '%s/source.copy'",
    "DROP TABLE IF EXISTS made;"
    " CREATE TABLE made AS SELECT s.* FROM source s, generate_series(1, 50)",
)


@pytest.fixture
def crashing(own_cluster: NewCluster) -> Cluster:
    """A cluster that may crash, on a disk that counts."""
    cluster = cluster_with_source(
        own_cluster, settings={"fsync": "on", "restart_after_crash": "off"}
    )
    with connect(cluster) as connection:
        connection.execute("CREATE TABLE filled (a int, b text)")
        connection.execute("INSERT INTO filled SELECT * FROM source")
        script(connection, PARTED.replace("filled", "parted"))
        connection.execute("INSERT INTO parted SELECT * FROM source")
    return cluster


LOADING = (
    "SELECT pid FROM pg_stat_activity WHERE pid <> pg_backend_pid() AND state = 'active'"
    " AND query ~ '^(INSERT|COPY|DROP)' ORDER BY query"
)


def loading_pids(cluster: Cluster) -> list[int]:
    """Wait until all loads are under way at once; return who does them, in CRASHES' kinds."""
    end = time.monotonic() + 30
    with connect(cluster) as connection:
        while len(loading := rows(connection, LOADING)) < len(CRASHES):
            assert time.monotonic() < end, loading
    return [pid for (pid,) in loading]


@pytest.mark.parametrize("how", ["stop", "kill"])
def test_crash(crashing: Cluster, how: str) -> None:
    """A server that goes in the middle of loads comes back with a sound table."""
    cluster = crashing
    added = []
    for turn, delay in enumerate((0.05, 0.2, 0.4, 0.3)):

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
        loading_pids(cluster)
        time.sleep(delay)
        with connect(cluster) as connection:
            added.append(counters(connection, "server")["added"])
        if how == "kill":
            # Of each kind once; all others go down with it.
            loading = loading_pids(cluster)
            signal_backend(loading[turn], "KILL")
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
            assert value(connection, "SELECT count(*) FROM parted") % ROWS == 0
            for table in ("filled", "parted_0", "parted_1"):
                sound(connection, table)
                # With FREEZE it waits for a page that somebody is writing out.
                connection.execute(f"VACUUM (FREEZE) {table}")
                found = pages(connection, table)
                assert found.lost == 0, found
            found = pages(connection, "filled")
            connection.execute("INSERT INTO filled SELECT * FROM source")
            again = pages(connection, "filled")
            assert again.size <= max(found.size, again.used + again.size // SIXTEENTH + 2)
            assert value(connection, "SELECT count(*) FROM filled") == kept + ROWS
            sound(connection, "filled")
    # There was something to come back from.
    assert max(added) > 0, added


def test_same_transaction_without_wal(own_cluster: NewCluster) -> None:
    """wal_level minimal: a table that was made in this transaction is synced, not logged."""
    settings = {
        "fsync": "on", "wal_level": "minimal", "max_wal_senders": "0",
        "wal_skip_threshold": "64kB",
    }  # fmt: skip
    cluster = cluster_with_source(own_cluster, settings=settings)
    with connect(cluster) as connection:
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
        has_extension(cluster, "amcheck")
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
        has_extension(cluster, "amcheck")
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
        # What was done in vain has taken time, too.
        with connect(cluster) as connection:
            connection.execute("INSERT INTO filled SELECT * FROM source LIMIT 4000")
            found = counters(connection)
            assert (found["added"], found["errors"]) == (0, 1)
            spent = "SELECT extend_time FROM pg_lookahead_extend() WHERE scope = 'session'"
            assert value(connection, spent) > 0
            connection.execute("DROP TABLE filled")
            connection.execute("DROP TABLESPACE small")
    finally:
        cluster.stop()
        subprocess.run(["umount", str(small)], check=True)


@pytest.mark.parametrize("load", ["INSERT INTO filled SELECT * FROM source", "COPY"])
def test_hardly_a_buffer_for_each_process(
    own_cluster: NewCluster, server: Server, load: str
) -> None:
    """Where a process may pin so few that pages come one by one, the table is left alone."""
    if server.major < 16:
        pytest.skip("before 16 pages are made in shared buffers one by one anyway")
    cluster = cluster_with_source(
        own_cluster, settings={"shared_buffers": "4MB", "max_connections": "200"}
    )
    if load == "COPY":
        load = f"COPY filled FROM '{cluster.dir}/source.copy'"
    with new_session(cluster) as connection:
        connection.execute("CREATE TABLE filled AS SELECT * FROM source")
        connection.execute(load)
        found = counters(connection)
        assert (found["extensions"], found["added"], found["errors"]) == (0, 0, 0)
    cluster.stop()
    privilege.write(cluster.data / "postgresql.auto.conf", "shared_buffers = 64MB\n", append=True)
    cluster.start()
    with new_session(cluster) as connection:
        connection.execute("CREATE TABLE filled AS SELECT * FROM source")
        with grows(connection):
            connection.execute(load)
    cluster.close()


def test_part_of_the_space(own_cluster: NewCluster) -> None:
    """Where a quota ends in the middle of what is to be added, the first part of it is used."""
    cluster = own_cluster(LOADS, start=False)
    (short,) = odd_files(cluster, "LA_SHORT_SPACE")
    cluster.start()
    prepare(cluster)
    has_extension(cluster, "amcheck")
    with connect(cluster) as connection:
        script(connection, SOURCE)
        connection.execute("CREATE TABLE filled AS SELECT * FROM source")
        connection.execute("VACUUM filled")
    privilege.write(short, "")
    with connect(cluster) as connection:
        began = time.monotonic()
        connection.execute("INSERT INTO filled SELECT * FROM source LIMIT 1000")
        assert not short.exists()
        assert counters(connection)["errors"] == 1
        found = pages(connection, "filled")
        assert found.spare > 20
        tidy(found)
        # Nothing is added for ten seconds now; what there is comes first.
        connection.execute("INSERT INTO filled SELECT * FROM source LIMIT 1000")
        if time.monotonic() - began < 10:
            assert pages(connection, "filled").size == found.size
        sound(connection, "filled")


def test_files_that_cannot_be_allocated(own_cluster: NewCluster, server: Server) -> None:
    """Zeros are written then, for some milliseconds at a time: others wait for the lock."""
    if server.major > 15:
        pytest.skip("16 and later add pages by a function of the server's")
    cluster = own_cluster(LOADS, start=False)
    flags = odd_files(cluster, "LA_NO_ALLOCATION", "LA_SLOW_ZEROS")
    cluster.start()
    prepare(cluster)
    has_extension(cluster, "amcheck")
    for flag in flags:
        privilege.write(flag, "")
    with connect(cluster) as connection:
        script(connection, SOURCE)
        connection.execute("SET pg_lookahead.heap_extend_size = '64MB'")
        connection.execute("CREATE TABLE filled (LIKE source)")
        for _ in range(8):
            connection.execute("INSERT INTO filled SELECT * FROM source")
        found = counters(connection)
        assert found["errors"] == 0
        # Five milliseconds and more for each 32 pages, and ten are enough.
        assert 0 < found["added"] <= found["extensions"] * 2 * 32
        count = "SELECT count(*) FROM {}"
        assert value(connection, count.format("filled")) == 8 * value(
            connection, count.format("source")
        )
        assert pages(connection, "filled").lost == 0
        sound(connection, "filled")


def test_part_of_a_page_at_the_end(own_cluster: NewCluster) -> None:
    """What an extension that failed has left is overwritten before anything is added behind it."""
    cluster = cluster_with_source(own_cluster)
    with connect(cluster) as connection:
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
    cluster = cluster_with_source(own_cluster, settings={"max_wal_size": "2GB"})
    with connect(cluster) as connection:
        connection.execute("CREATE TABLE filled (a int, b text)")
        connection.execute("INSERT INTO filled VALUES (0, 'x')")
        file = cluster.data / value(connection, "SELECT pg_relation_filepath('filled')")
    cluster.stop()
    # A file of empty pages, which takes no space: 700 pages to the end.
    with file.open("r+b") as opened:
        opened.truncate(SEGMENT - 700 * BLOCK)
    cluster.start()
    with connect(cluster) as connection:
        connection.execute("INSERT INTO filled SELECT * FROM source")
        assert value(connection, "SELECT pg_relation_size('filled')") > SEGMENT
        for statement in (
            "INSERT INTO filled SELECT * FROM source",
            f"COPY filled FROM '{cluster.dir}/source.copy'",
        ):
            with grows(connection):
                connection.execute(statement)
        assert value(connection, "SELECT count(*) FROM filled") == 3 * ROWS + 1
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
    primary = cluster_with_source(
        own_cluster,
        settings={"max_wal_senders": "5", "wal_level": "replica", "statement_timeout": "0"},
    )
    with connect(primary) as connection:
        connection.execute("CREATE TABLE filled (a int, b text)")
        connection.execute("CHECKPOINT")
    stop = threading.Event()

    def fill(statement: str) -> None:
        with connect(primary) as other:
            while not stop.wait(0.2):
                other.execute(statement)

    loads = (
        "INSERT INTO filled SELECT * FROM source LIMIT 20000",
        f"COPY filled FROM '{primary.dir}/source.copy'",
    )
    standby = own_cluster({**LOADS, "statement_timeout": "0"}, start=False)
    subprocess.run(["rm", "-rf", str(standby.data)], check=True)
    with connect(primary) as connection, grows(connection, "server"):
        with at_work(*(partial(fill, text) for text in loads)):
            try:
                base_backup(primary, standby)
                time.sleep(0.3)
            finally:
                stop.set()
    with connect(primary) as connection:
        # After many loads one comes by itself, and may remove what the standby needs.
        connection.execute("CHECKPOINT")
    standby.start()
    caught_up(primary, standby)
    with connect(primary) as connection:
        expected = answer(connection, "filled")
        assert int(str(expected[0])) > ROWS
    with connect(standby) as connection:
        assert answer(connection, "filled") == expected
        sound(connection, "filled")
        connection.execute("SELECT pg_promote()")
        until(connection, "NOT pg_is_in_recovery()", 120)
        connection.execute("INSERT INTO filled SELECT * FROM source")
        assert value(connection, "SELECT count(*) FROM filled") == int(str(expected[0])) + ROWS
        connection.execute("VACUUM filled")
        assert pages(connection, "filled").lost == 0
        sound(connection, "filled")


# A session may have fewer files open than there are tables of this kind.
MANY_TABLES = 90


# Nine rows; COPY begins to load, and, one by one, goes on.
FEW_ROWS = {
    "insert": "INSERT INTO filled SELECT -1 FROM generate_series(1, 9) i",
    "copy": "COPY filled FROM '%s'",
    "copy, a row at a time": "COPY filled (a) FROM '%s'",
}


@pytest.mark.parametrize("how", FEW_ROWS)
def test_size_that_cannot_be_asked(own_cluster: NewCluster, how: str) -> None:
    """Rows whose page is in shared buffers need no file; that we ask for one is not their fault."""
    cluster = cluster_with_source(own_cluster, settings={"max_files_per_process": "64"})
    few = cluster.dir / "few.copy"
    few.write_text("-1\n" * 9 if "(a)" in FEW_ROWS[how] else "-1\tx\n" * 9)
    privilege.give(few)
    statement = FEW_ROWS[how].replace("%s", str(few))
    with connect(cluster) as connection:
        connection.execute("CREATE TABLE filled (a int, b text DEFAULT random()::text)")
        connection.execute("INSERT INTO filled SELECT * FROM source LIMIT 50000")
        for i in range(MANY_TABLES):
            connection.execute(f"CREATE TABLE other_{i} AS SELECT {i} AS a")
        path = cluster.data / value(connection, "SELECT pg_relation_filepath('filled')")
        connection.execute("CHECKPOINT")
    with LogWatch(cluster), connect(cluster) as connection:
        # The table has a target page in this session from here on.
        connection.execute(statement)
        # The server closes its files, in favour of others.
        for i in range(MANY_TABLES):
            assert value(connection, f"SELECT a FROM other_{i}") == i
        path.chmod(0)
        try:
            # Nor can the server ask.
            with pytest.raises(psycopg.errors.InsufficientPrivilege):
                connection.execute("SELECT pg_relation_size('filled'), * FROM filled LIMIT 1")
            before = counters(connection)
            connection.execute(statement)
            assert counters(connection) == {**before, "errors": before["errors"] + 1}
        finally:
            path.chmod(0o600)
        connection.execute(statement)
        assert value(connection, "SELECT count(*) FROM filled WHERE a = -1") == 27


def test_added_pages_that_cannot_be_read(own_cluster: NewCluster, server: Server) -> None:
    """On 15 some of what was added ahead must be read when it is used; a load needs no such page.

    Before that the pages are beyond shared buffers, which are few.
    """
    few = {"shared_buffers": "1MB"}
    if server.major >= 16:
        # With fewer for each process nothing is added.
        few = {"shared_buffers": "8MB", "max_connections": "5", "max_wal_senders": "0"}
    cluster = cluster_with_source(own_cluster, settings=few)
    failing = cluster.dir / "failing"
    with slow_tablespace(cluster, failing_reads=failing), LogWatch(cluster):
        with connect(cluster) as connection:
            failing.touch()
            with grows(connection):
                connection.execute("CREATE TABLE made TABLESPACE slow AS SELECT * FROM source")
            assert (counters(connection)["errors"] > 0) == (server.major == 15)
            failing.unlink()
            assert answer(connection, "made") == answer(connection, "source")
            sound(connection, "made")
            connection.execute("VACUUM made")
            tidy(pages(connection, "made"))
