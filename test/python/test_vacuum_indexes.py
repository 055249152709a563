"""VACUUM is followed through the indexes of a table.

It says nothing of where it is there; the watcher finds the page that it has
pinned.  The indexes are on storage that takes ten milliseconds for a read, and
have pages that are nearly empty, so that they have many of them.
"""

from __future__ import annotations

import random
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import psycopg
import pytest
from lookahead.cluster import Cluster
from lookahead.servers import Server

from conftest import NewCluster
from extend_support import comes_with
from maintenance_support import (
    BLOCKS,
    CONF,
    cluster_with_direct_io,
    SLOW_VACUUM,
    errors,
    followed,
    owners,
    rest,
    scans,
    setup,
)
from support import (
    INDEX_SCANS,
    Connection,
    LogWatch,
    connect,
    evict_tablespaces,
    plan_nodes,
    rows,
    settings,
    slow_tablespace,
    value,
    wait_for,
)

ROWS = BLOCKS * 20

KEYS = {
    "btree": "btree (a)",
    "gist": "gist (point(a, a), point(a, -a), point(-a, a))",
    "spgist": "spgist (point(a, a % 1000)) INCLUDE (filler)",
    "hash": "hash (a)",
    "gin": "gin ((ARRAY[filler || a]))",
}


# They go through the file from its beginning to its end.
IN_ORDER = ("btree", "gist", "spgist")


@pytest.fixture(scope="module")
def slow_cluster(own_cluster: NewCluster, server: Server) -> Iterator[Cluster]:
    if server.major >= 18:
        pytest.skip("18 reads these ahead itself")
    cluster = own_cluster(CONF)
    with slow_tablespace(cluster, read_us=10000):
        with connect(cluster) as connection:
            setup(connection)
            if comes_with(connection, "amcheck"):
                connection.execute("CREATE EXTENSION amcheck")
        yield cluster


@pytest.fixture
def connection(slow_cluster: Cluster) -> Iterator[Connection]:
    with LogWatch(slow_cluster), connect(slow_cluster) as connection:
        try:
            yield connection
        finally:
            connection.execute("DROP INDEX IF EXISTS made, made_2, made_3")


def create(connection: Connection, name: str, method: str = "btree") -> int:
    """Make an index; return its blocks."""
    sparse = "" if method == "gin" else " WITH (fillfactor = 10)"
    connection.execute(
        f"CREATE INDEX {name} ON maintained USING {KEYS[method]}{sparse} TABLESPACE slow"
    )
    size = int(value(connection, f"SELECT pg_relation_size('{name}') / 8192"))
    assert size >= 1024, f"too small to be followed: {size}"
    return size


def make_dead(connection: Connection, turn: int) -> None:
    """Put in what an earlier turn has taken out; then take a row out of each block."""
    connection.execute(
        "INSERT INTO maintained SELECT i, repeat('x', 360) FROM"
        f" generate_series(1, {ROWS}) i WHERE NOT EXISTS (SELECT FROM maintained WHERE a = i)"
    )
    connection.execute(f"DELETE FROM maintained WHERE a % 20 = {turn}")
    connection.execute("CHECKPOINT")


def check(connection: Connection, turn: int) -> None:
    """The index finds what is there, and nothing else."""
    settings(connection, **INDEX_SCANS)
    query = f"SELECT count(*), bool_or(a % 20 = {turn}) FROM maintained WHERE a > 0"
    assert rows(connection, query) == [(ROWS - ROWS // 20, False)]
    if value(connection, "SELECT count(*) FROM pg_extension WHERE extname = 'amcheck'"):
        btrees = (
            "SELECT c.oid FROM pg_index i JOIN pg_class c ON c.oid = indexrelid JOIN pg_am m"
            " ON m.oid = relam WHERE indrelid = 'maintained'::regclass AND amname = 'btree'"
        )
        for (index,) in rows(connection, btrees):
            connection.execute(f"SELECT bt_index_check({index}, true)")


def vacuumed(connection: Connection, cluster: Cluster, wanted: dict[str, int]) -> int:
    """VACUUM until as much of these indexes was asked for in one; return which turn that was.

    A watcher that gets no processor in time misses much of a pass as short as these.
    """
    for turn in range(3, 9):
        make_dead(connection, turn)
        evict_tablespaces(cluster)
        rest(connection)
        before = {name: scans(connection, name) for name in wanted}
        failed = errors(connection)
        connection.execute("VACUUM maintained")
        rest(connection)
        assert errors(connection) == failed
        asked = {name: sum(scans(connection, name)[1:]) - sum(before[name][1:]) for name in wanted}
        if all(asked[name] > wanted[name] for name in wanted):
            return turn
    raise AssertionError(f"asked for {asked}, wanted {wanted}")


@pytest.mark.parametrize("method", IN_ORDER)
def test_vacuum_of_an_index(connection: Connection, slow_cluster: Cluster, method: str) -> None:
    """What it will come to is asked for."""
    size = create(connection, "made", method)
    check(connection, vacuumed(connection, slow_cluster, {"made": size // 3}))


@pytest.mark.parametrize("parallel", [0, 2])
def test_several_indexes(connection: Connection, slow_cluster: Cluster, parallel: int) -> None:
    """One after the other, and at the same time by parallel workers."""
    sizes = {name: create(connection, name) for name in ("made", "made_2", "made_3")}
    settings(
        connection, min_parallel_index_scan_size="0", max_parallel_maintenance_workers=str(parallel)
    )
    wanted = {name: size // 4 for name, size in sizes.items()}
    check(connection, vacuumed(connection, slow_cluster, wanted))


def test_beside_other_indexes_and_sessions(connection: Connection, slow_cluster: Cluster) -> None:
    """Others are read in another order; sessions have pages pinned here and there."""
    create(connection, "made_2", "hash")
    create(connection, "made_3", "gin")
    size = create(connection, "made")
    query = "SELECT a FROM maintained WHERE a = {}"
    with connect(slow_cluster) as other, ThreadPoolExecutor() as pool:
        settings(other, **INDEX_SCANS, pg_lookahead__enabled="off")
        assert "Index Cond" in str(plan_nodes(other, query.format(1)))
        vacuum = pool.submit(vacuumed, connection, slow_cluster, {"made": size // 4})
        while not vacuum.done():
            rows(other, query.format(random.randint(1, ROWS)))
            time.sleep(0.001)
    check(connection, vacuum.result())


# Of a VACUUM whose reads are from the page cache: 1 %.
QUIET_SHARE = 0.025
# It is judged by so little that less than a tenth of a second in one go is waiting.
QUIET_SECONDS = 0.05


def read_seconds(connection: Connection) -> float:
    """Return how long this database's reads have taken, those of this session among them."""
    value(connection, "SELECT pg_stat_force_next_flush()")
    query = "SELECT blk_read_time FROM pg_stat_database WHERE datname = current_database()"
    return float(value(connection, query)) / 1000


@pytest.fixture
def by_their_waits(connection: Connection) -> Iterator[None]:
    """Commands are followed if they wait, and not in any case."""
    connection.execute("ALTER SYSTEM SET pg_lookahead.start_after = 8")
    value(connection, "SELECT pg_reload_conf()")
    try:
        yield
    finally:
        connection.execute("ALTER SYSTEM RESET pg_lookahead.start_after")
        value(connection, "SELECT pg_reload_conf()")


def test_those_that_wait_are_followed(
    connection: Connection, slow_cluster: Cluster, by_their_waits: None
) -> None:
    """And not those that sleep, or read from the page cache."""
    connection.execute("ALTER TABLE maintained SET TABLESPACE slow")
    try:
        create(connection, "made", "spgist")
        settings(connection, track_io_timing="on")
        quiet = []
        for turn in range(13, 19):
            make_dead(connection, turn)
            value(connection, "SELECT sum(length(filler)) FROM maintained")
            before, began = read_seconds(connection), time.monotonic()
            asked = followed(connection, f"{SLOW_VACUUM}; VACUUM maintained")
            waited = read_seconds(connection) - before
            took = time.monotonic() - began
            # What is in the page cache need not stay there.
            if waited < min(took * QUIET_SHARE, QUIET_SECONDS):
                quiet.append(asked)
            # A single wait may have been seen twice.
            if -1 in quiet:
                break
        assert not quiet or -1 in quiet
        settings(connection, vacuum_cost_delay="0")
        vacuumed(connection, slow_cluster, {"made": 500, "maintained": 500})
        for _ in range(5):
            connection.execute("DROP INDEX IF EXISTS made_2")
            evict_tablespaces(slow_cluster)
            build = "CREATE INDEX made_2 ON maintained ((filler || a))"
            asked = followed(connection, build, "maintained")
            if asked > BLOCKS / 4:
                break
        assert asked > BLOCKS / 4
        if not quiet:
            pytest.skip(f"reads took {waited:.2f} of {took:.2f} s: the page cache keeps nothing")
    finally:
        connection.execute("ALTER TABLE maintained SET TABLESPACE pg_default")


def is_cancelled_when_shown(connection: Connection, other: Connection) -> bool:
    """Cancel a VACUUM of the other session that is followed through the index.

    Returns False if it was over before that.
    """
    shown = "SELECT count(*) > 0 FROM pg_stat_lookahead_owners WHERE relid = 'made'::regclass"
    with ThreadPoolExecutor() as pool:
        vacuum = pool.submit(other.execute, "VACUUM maintained")
        try:
            wait_for(lambda: vacuum.done() or value(connection, shown), 60)
        finally:
            connection.execute("SELECT pg_cancel_backend(%s)", (other.info.backend_pid,))
        try:
            vacuum.result()
        except psycopg.errors.QueryCanceled:
            return True
    return False


def test_cancelled(connection: Connection, slow_cluster: Cluster) -> None:
    """Nothing stays behind, and the index can be dropped at once."""
    create(connection, "made")
    with connect(slow_cluster) as other:
        # On a busy machine a pass may be over before anybody has seen it.
        for turn in range(3, 9):
            make_dead(connection, turn)
            evict_tablespaces(slow_cluster)
            rest(connection)
            if is_cancelled_when_shown(connection, other):
                break
        else:
            pytest.fail("VACUUM was always over before the cancel")
    connection.execute("DROP INDEX made")
    wait_for(lambda: owners(connection) == 0)
    assert errors(connection) == 0


def test_with_direct_io(own_cluster: NewCluster, server: Server) -> None:
    """The workers read into shared buffers then, at a distance from VACUUM."""
    cluster = cluster_with_direct_io(own_cluster, server)
    read = "SELECT sum(blocks_read) FROM pg_stat_lookahead_io"
    with slow_tablespace(cluster, read_us=1000):
        with connect(cluster) as connection:
            setup(connection)
            size = create(connection, "made")
        for turn in range(3, 9):
            with connect(cluster) as connection:
                make_dead(connection, turn)
            cluster.restart()
            with LogWatch(cluster), connect(cluster) as connection:
                before = value(connection, read)
                asked = followed(connection, "VACUUM maintained", "made")
                check(connection, turn)
                if asked > size / 4 and value(connection, read) > before:
                    return
    pytest.fail(f"asked for {asked} of {size} blocks")
