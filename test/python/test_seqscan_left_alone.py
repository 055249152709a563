"""Sequential scans on 15 to 17 that were not worth it for long: what comes later may be."""

from __future__ import annotations

import os
import random
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from lookahead import privilege
from lookahead.cluster import Cluster
from lookahead.errors import LookaheadError
from lookahead.servers import Server

from conftest import NewCluster
from extend_support import odd_files
from seqscan_support import (
    METHODS,
    add_hole,
    blocks_of,
    long_table,
    need_followed_scans,
    scanning,
    switch,
)
from support import (
    SEQUENTIAL_SCANS,
    Connection,
    LogWatch,
    connect,
    evict_file,
    evict_tablespaces,
    gained,
    require_node,
    rows,
    script,
    seed,
    settings,
    slow_tablespace,
    value,
)
from test_scroll import Oracle, random_move

# A scan is timed for so many blocks.
MEASURE = 2048

# A row for each block.
BLOCKS = 12000
SLOW_SETUP = f"""
CREATE TABLE far (a int, f text) WITH (autovacuum_enabled = off) TABLESPACE slow;
ALTER TABLE far ALTER f SET STORAGE plain;
INSERT INTO far SELECT i, repeat('x', 5000) FROM generate_series(1, {BLOCKS}) i;
VACUUM (FREEZE, ANALYZE) far
"""


@pytest.fixture(autouse=True)
def before_18(server: Server) -> None:
    need_followed_scans(server)


@pytest.fixture(scope="module")
def slow(own_cluster: NewCluster, server: Server) -> Iterator[Cluster]:
    """A server with the default settings and a table on storage that is slow."""
    need_followed_scans(server)
    cluster = own_cluster(
        {
            "pg_lookahead.start_after": "8",
            "pg_lookahead.min_table_size": "8MB",
            # Workers copy for a scan that computes, whether it waits or not.
            "pg_lookahead.method": "advice",
            "shared_buffers": "256MB",
        }
    )
    with slow_tablespace(cluster, read_us=1000):
        with connect(cluster) as connection:
            script(connection, SLOW_SETUP)
        yield cluster


def read_first(cluster: Cluster, connection: Connection, blocks: int) -> None:
    """Have the kernel cache the beginning of the table, and nothing else of it."""
    path = value(connection, "SELECT pg_relation_filepath('far')")
    evict_tablespaces(cluster)
    with (cluster.data / path).open("rb") as file:
        file.read(blocks * 8192)


def asked_for(cluster: Cluster, prepare: Callable[[Connection], None]) -> int:
    """Scan the table after a restart; return how many blocks were asked for ahead of the scan."""
    query = "SELECT count(f) FROM far"
    cluster.restart()
    with LogWatch(cluster), connect(cluster) as connection:
        settings(connection, **SEQUENTIAL_SCANS)
        require_node(connection, query, "Seq Scan")
        prepare(connection)
        with gained(connection) as change:
            assert value(connection, query) == BLOCKS
    assert not change.errors
    assert change.blocks_wasted == 0
    return change.blocks_issued


# Three eighths of the table; that is not worth it twice in a row, a quarter is the limit.
BEGINNING = BLOCKS * 3 // 8


def test_a_beginning_in_the_page_cache(slow: Cluster) -> None:
    """A scan that did not wait for long is timed again, and looks ahead where it waits."""
    # Left alone for a quarter after the first two, and timed once more.
    left = BLOCKS - (2 * MEASURE + BLOCKS // 4 + MEASURE)
    seen = []
    for _ in range(8):
        seen.append(asked_for(slow, lambda session: read_first(slow, session, BEGINNING)))
        if left * 0.8 < seen[-1] < left * 1.1:
            return
    # A busy machine may have it wait for something else.
    pytest.fail(f"{seen} blocks were asked for")


def test_a_beginning_in_shared_buffers(slow: Cluster) -> None:
    """What was there does not speak against a scan: it is timed as soon as it reads."""

    def fetch_first(session: Connection) -> None:
        there = f"SELECT count(f) FROM far WHERE ctid < '({BEGINNING},0)'"
        require_node(session, there, "Tid Range Scan")
        assert value(session, there) == BEGINNING
        evict_tablespaces(slow)

    seen = []
    for _ in range(8):
        seen.append(asked_for(slow, fetch_first))
        if seen[-1] > (BLOCKS - BEGINNING - MEASURE) * 0.9:
            return
    # A busy machine may have it wait for something else.
    pytest.fail(f"{seen} blocks were asked for")


def test_a_middle_in_shared_buffers(slow: Cluster) -> None:
    """A scan that was looked ahead of, and left alone where all was there, needs no new trial."""
    first, last = BLOCKS // 4, BLOCKS * 2 // 3

    def fetch_middle(session: Connection) -> None:
        there = f"SELECT count(f) FROM far WHERE ctid >= '({first},0)' AND ctid < '({last},0)'"
        require_node(session, there, "Tid Range Scan")
        assert value(session, there) == last - first
        evict_tablespaces(slow)

    before = first - MEASURE
    behind = BLOCKS - last
    seen = []
    for _ in range(8):
        seen.append(asked_for(slow, fetch_middle))
        # What comes behind is looked ahead of from its first waits on, and not timed before.
        if seen[-1] - before > behind * 0.9:
            return
    # A busy machine may have it wait for something else, or not at all.
    pytest.fail(f"{seen} blocks were asked for")


# ---------------------------------------------------------------------------
# Scans that were worth it for long

SLOW_READS = "LA_SLOW_READS"


@pytest.fixture(scope="module")
def counted(own_cluster: NewCluster, server: Server) -> Cluster:
    """A server whose storage counts what is read, and is slow if that is asked for."""
    need_followed_scans(server)
    conf = {
        "pg_lookahead.start_after": "8",
        "pg_lookahead.min_table_size": "8MB",
        "pg_lookahead.io_workers": "2",
        # A scan that only computes needs more of the rings.
        "pg_lookahead.ring_size": "3MB",
        "shared_buffers": "32MB",
    }
    if server.major >= 17:
        # Where odd_files.c looks.
        conf["io_combine_limit"] = "1"
    cluster = own_cluster(conf, start=False)
    odd_files(cluster, SLOW_READS)
    cluster.start()
    with connect(cluster) as connection:
        connection.execute("CREATE EXTENSION IF NOT EXISTS pg_lookahead")
        script(connection, SLOW_SETUP.replace("TABLESPACE slow", ""))
    if read_from_storage(cluster, BLOCKS) < BLOCKS * 8192 // 2:
        pytest.skip("the kernel does not count what is read from this file system")
    return cluster


def read_from_storage(cluster: Cluster, cold: int) -> int:
    """Have the kernel cache all but the beginning of the table, of so many blocks.

    Return how many bytes storage was asked for meanwhile, and for the whole beginning if that is
    the whole table.
    """
    with connect(cluster) as connection:
        connection.execute("CHECKPOINT")
        file = cluster.data / value(connection, "SELECT pg_relation_filepath('far')")
    evict_file(file)
    io = Path("/proc/self/io")
    before = int(io.read_text().split("read_bytes: ")[1].split()[0])
    with file.open("rb") as opened:
        os.posix_fadvise(opened.fileno(), 0, 0, os.POSIX_FADV_RANDOM)
        opened.seek(0 if cold == BLOCKS else cold * 8192)
        opened.read()
    read = int(io.read_text().split("read_bytes: ")[1].split()[0]) - before
    if cold == BLOCKS:
        evict_file(file)
    return read


def asked_for_once_begun(cluster: Cluster, method: str, cold: int) -> int:
    """Scan the table; its first blocks come from storage, and as many as are timed wait for it.

    Return how many blocks were asked for ahead of the scan.
    """
    cluster.restart()
    read_from_storage(cluster, cold)
    slow_reads = cluster.dir / SLOW_READS.lower()
    with LogWatch(cluster), connect(cluster) as connection:
        scanning(connection, method, pg_lookahead__start_after=8)
        with gained(connection) as change:
            connection.execute("BEGIN")
            connection.execute("DECLARE c CURSOR FOR SELECT a, length(f) FROM far")
            privilege.write(slow_reads, "")
            try:
                found = len(rows(connection, f"FETCH {MEASURE + 200} FROM c"))
            finally:
                slow_reads.unlink()
            found += len(rows(connection, "FETCH ALL FROM c"))
            connection.execute("COMMIT")
    assert found == BLOCKS
    assert not change.errors
    assert change.scans <= 1
    return change.blocks_issued


@pytest.mark.parametrize("method", METHODS)
def test_the_rest_in_the_page_cache(counted: Cluster, method: str) -> None:
    """A scan that began because it waited is timed again where nothing comes from storage."""
    seen = []
    for _ in range(8):
        seen.append(asked_for_once_begun(counted, method, BLOCKS // 4))
        # It is judged after a quarter, and is 16 MB ahead then.
        if BLOCKS // 5 < seen[-1] < BLOCKS // 2:
            return
    # A busy machine may have it wait for something else.
    pytest.fail(f"{seen} blocks were asked for")


@pytest.mark.parametrize("method", METHODS)
def test_the_rest_from_storage(counted: Cluster, method: str) -> None:
    """Where it does, a scan goes on without being left to itself, whether it waits or not."""
    seen = []
    for _ in range(4):
        seen.append(asked_for_once_begun(counted, method, BLOCKS))
        if seen[-1] > (BLOCKS - MEASURE) * 0.95:
            return
    pytest.fail(f"{seen} blocks were asked for")


def test_direct_io(own_cluster: NewCluster, server: Server) -> None:
    """With direct I/O a scan may always begin, however long it did not."""
    if server.major not in (16, 17):
        pytest.skip("direct I/O and scans that nobody else reads ahead are of 16 and 17")
    before, behind = 40000, 2000
    try:
        cluster = own_cluster(
            {"debug_io_direct": "data", "pg_lookahead.io_workers": "2",
             "pg_lookahead.start_after": "8"}
        )  # fmt: skip
    except LookaheadError as error:
        pytest.skip(f"cannot be used here: {error}")
    query = "SELECT count(f) FROM far"
    with LogWatch(cluster):
        with connect(cluster) as connection:
            script(
                connection,
                "CREATE TABLE far (a int, f text) WITH (autovacuum_enabled = off);"
                "ALTER TABLE far ALTER f SET STORAGE plain;"
                "INSERT INTO far VALUES (0, 'x')",
            )
            # No rows, and so nothing to see, for more than 256 MB.
            add_hole(cluster, connection, "far", before)
            connection.execute(
                f"INSERT INTO far SELECT i, repeat('x', 5000) FROM generate_series(1, {behind}) i"
            )
            assert blocks_of(connection, "far") >= before + behind - 1
        cluster.restart()
        with connect(cluster) as connection:
            scanning(connection, pg_lookahead__start_after=8)
            require_node(connection, query, "Seq Scan")
            with gained(connection) as change:
                assert value(connection, query) == behind + 1
        assert change.blocks_issued > behind * 0.8
        assert not change.errors
    cluster.close()


# ---------------------------------------------------------------------------
# Rows of a scan that is looked at now and then


@pytest.fixture
def longer(cluster: Cluster, server: Server) -> Iterator[Cluster]:
    """There is a table whose scans are left alone for a part of it."""
    with long_table(cluster, server), connect(cluster) as connection:
        connection.execute(
            "CREATE TABLE longer WITH (fillfactor = 10, autovacuum_enabled = off) AS"
            " SELECT l.id + n * 10000 AS id, a, filler"
            " FROM generate_series(0, 6) n, long l"
        )
        connection.execute("ANALYZE longer")
        assert blocks_of(connection, "longer") > 3 * MEASURE
        yield cluster
        connection.execute("DROP TABLE longer")


QUERIES = {
    "all": "SELECT id, filler FROM longer",
    "few": "SELECT id FROM longer WHERE a = 77 OR a = 5000",
    "no_rows": "SELECT id FROM longer WHERE a < 0",
    "limit": "SELECT id FROM longer LIMIT 30000",
    "union": "SELECT id FROM longer UNION ALL SELECT -id FROM longer WHERE a % 7 = 1",
    "rescans": "SELECT k, (SELECT sum(id) FROM longer WHERE a % 6 = k) FROM keys",
    "unfinished_rescans": "SELECT k, l.id FROM keys,"
    " LATERAL (SELECT id FROM longer WHERE a % 6 = k LIMIT 5000) l",
    "by_turns": "SELECT x.id, (SELECT min(y.id) FROM longer y WHERE y.a = x.a)"
    " FROM longer x WHERE x.a < 5 AND x.id > 50000",
}


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("name", QUERIES)
def test_same_rows(longer: Cluster, name: str, method: str) -> None:
    query = QUERIES[name]
    with connect(longer) as connection:
        scanning(connection, method, enabled=False)
        settings(connection, pg_lookahead__start_after=8)
        require_node(connection, query, "Seq Scan")
        without = rows(connection, query)
        switch(connection, on=True)
        for _ in range(2):
            assert rows(connection, query) == without


@pytest.mark.parametrize("method", METHODS)
def test_scroll_cursor(longer: Cluster, method: str) -> None:
    query = "SELECT id, length(filler) FROM longer"
    choice = random.Random(f"{seed()} {method}")
    with connect(longer) as connection:
        scanning(connection, method, enabled=False)
        settings(connection, pg_lookahead__start_after=8)
        oracle = Oracle(rows(connection, query))
        switch(connection, on=True)
        for _ in range(3):
            oracle.position = 0
            connection.execute("BEGIN")
            connection.execute(f"DECLARE c SCROLL CURSOR FOR {query}")
            moves = ["FORWARD 30000"] + [random_move(choice, len(oracle.rows)) for _ in range(30)]
            for move in moves:
                assert rows(connection, f"FETCH {move} FROM c") == oracle.fetch(move), move
            connection.execute("COMMIT")
        assert rows(connection, "TABLE pg_stat_lookahead_owners") == []
