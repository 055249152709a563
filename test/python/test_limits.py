"""The limits that settings put on a scan are kept, and reached."""

from __future__ import annotations

import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack

import pytest
from lookahead.cluster import Cluster
from lookahead.servers import Server

from conftest import NewCluster
from seqscan_support import PARALLEL, need_followed_scans, scanning
from support import (
    INDEX_SCANS,
    Connection,
    Variant,
    cold,
    gained,
    connect,
    ice_cold,
    plan_nodes,
    require_node,
    rows,
    script,
    session,
    settings,
    settle,
    until,
    use,
    value,
)

ROWS = 20000

# Some 2000 pages, visited in random order.
SETUP = f"""
CREATE TABLE limited (a int, filler text) WITH (fillfactor = 20, autovacuum_enabled = off);
INSERT INTO limited SELECT i, repeat('x', 100) FROM generate_series(1, {ROWS}) i
 ORDER BY md5(i::text);
CREATE INDEX limited_a ON limited (a);
VACUUM ANALYZE limited
"""
SCAN = "SELECT a, length(filler) FROM limited WHERE a > 0 ORDER BY a"
ALL_ROWS = [(i, 100) for i in range(1, ROWS + 1)]

# How far a scan looks ahead that has just begun.
FIRST_DISTANCE = 16


@pytest.fixture
def limited(cluster: Cluster) -> Iterator[Cluster]:
    with connect(cluster) as connection:
        script(connection, SETUP)
    yield cluster
    with connect(cluster) as connection:
        connection.execute("DROP TABLE limited")


@pytest.mark.parametrize("distance", [8, 24, 256])
def test_max_distance(limited: Cluster, variant: Variant, distance: int) -> None:
    with connect(limited) as connection:
        use(connection, variant, pg_lookahead__max_distance=distance, **INDEX_SCANS)
        settings(connection, pg_lookahead__leafscan="off")
        require_node(connection, SCAN, "Index Scan", "limited_a")
        ice_cold(limited, connection, "limited")
        assert rows(connection, SCAN) == ALL_ROWS
        found = session(connection)
        assert found.depth_max <= distance
        if variant.reads:
            # How much more depends on how long it waits.
            assert found.depth_max >= min(distance, FIRST_DISTANCE)


# Counted at each row, while the scan is at work.
IN_FLIGHT = """
SELECT count(*), max(reads), sum(length)
  FROM (SELECT (SELECT reads_in_flight FROM pg_lookahead_session() WHERE s.a > 0) AS reads, length
          FROM (SELECT a, length(filler) FROM limited WHERE a > 0 ORDER BY a OFFSET 0) s
        OFFSET 0) t
"""


@pytest.mark.parametrize("concurrency", [1, 3, 16])
def test_io_concurrency(limited: Cluster, variant: Variant, concurrency: int) -> None:
    if variant.method != "aio":
        pytest.skip("it is for asynchronous I/O only")
    with connect(limited) as connection:
        use(connection, variant, pg_lookahead__io_concurrency=concurrency, **INDEX_SCANS)
        settings(connection, pg_lookahead__leafscan="off")
        require_node(connection, IN_FLIGHT, "Index Scan", "limited_a")
        ice_cold(limited, connection, "limited")
        count, most, length = rows(connection, IN_FLIGHT)[0]
        assert (count, length) == (ROWS, 100 * ROWS)
        assert most <= concurrency
        # An I/O worker may have read all before the next row asks.
        assert most > 0 or variant.io_method == "worker"
        found = session(connection)
        assert found.blocks_issued > 0
        # At most two blocks for each read.
        assert found.depth_max <= 2 * concurrency


# Rings of 4 MB: 512 blocks, of which half may be ahead of all sequential scans.
RING = "4MB"
SHARE = 256

# Scans that the service serves at a time.
SLOTS = 128
SLOTS_OF_A_SESSION = 32


def depth_of_a_scan(connection: Connection) -> int:
    """Let this session read the table "scanned" from its start."""
    scanning(connection)
    cold(connection, "scanned")
    connection.execute("SELECT pg_stat_lookahead_reset('scanned'::regclass)")
    assert value(connection, "SELECT count(*) FROM scanned WHERE slow(a) > 0") == ROWS
    settle(connection)
    depth, issued = rows(
        connection,
        "SELECT depth_max, blocks_issued FROM pg_stat_lookahead WHERE relname = 'scanned'",
    )[0]
    assert issued > 0
    return int(depth)


@pytest.mark.parametrize("protect", ["1h", "1ms"])
def test_protect_time(own_cluster: NewCluster, server: Server, protect: str) -> None:
    """A cursor whose client is away has its share of the rings for so long.

    What it loses after that is read for it once more.
    """
    need_followed_scans(server)
    cluster = own_cluster(
        {"pg_lookahead.ring_size": RING, "pg_lookahead.protect_time": protect,
         "pg_lookahead.io_workers": "2", "pg_lookahead.start_after": "0"}
    )  # fmt: skip
    with connect(cluster) as connection, connect(cluster) as idle:
        for table in ("scanned", "waiting"):
            connection.execute(
                f"CREATE TABLE {table} WITH (fillfactor = 20, autovacuum_enabled = off) AS"
                f" SELECT i AS a, repeat('x', 100) AS b FROM generate_series(1, {ROWS}) i"
            )
        connection.execute(
            "CREATE FUNCTION slow(i int) RETURNS int LANGUAGE plpgsql AS"
            " $$BEGIN PERFORM md5(repeat('x', 2000)); RETURN i; END$$"
        )
        until(connection, "(SELECT count(pid) = 2 FROM pg_stat_lookahead_io)")
        alone = depth_of_a_scan(connection)
        assert SHARE / 2 < alone <= SHARE
        scanning(idle)
        cold(idle, "waiting")
        blocks = value(idle, "SELECT pg_relation_size('waiting') / 8192")
        with gained(idle) as change:
            idle.execute("BEGIN; DECLARE c CURSOR FOR SELECT a FROM waiting")
            assert len(rows(idle, "FETCH 5000 FROM c")) == 5000
            owners = rows(
                connection, "SELECT pid, relid::regclass::text FROM pg_stat_lookahead_owners"
            )
            assert owners == [(idle.info.backend_pid, "waiting")]
            beside = depth_of_a_scan(connection)
            if protect == "1h":
                assert beside <= SHARE / 2
            else:
                assert beside > SHARE / 2
            assert len(rows(idle, "FETCH ALL FROM c")) == ROWS - 5000
            idle.execute("COMMIT")
        assert 0 <= change.blocks_used <= blocks
        if protect == "1h":
            assert change.blocks_issued <= blocks
        else:
            assert change.blocks_issued > blocks + SHARE / 4
            assert change.blocks_wasted == change.blocks_issued - change.blocks_used


def requests(connection: Connection) -> int:
    """How often was the I/O service asked for blocks?"""
    settle(connection)
    return int(value(connection, "SELECT sum(requests) FROM pg_stat_lookahead_io"))


def hold_slots(holders: list[Connection], table: str, count: int) -> None:
    """Leave so many sequential scans of a table open, by turns in each of the transactions."""
    for i in range(count):
        holder = holders[i % len(holders)]
        holder.execute(f"DECLARE c{i} CURSOR FOR SELECT a FROM {table}")
        rows(holder, f"FETCH 600 FROM c{i}")


def test_slots(own_cluster: NewCluster, server: Server) -> None:
    """More sequential scans than the service has slots.

    The others are counted, and the kernel is advised for them, until there is one.
    """
    need_followed_scans(server)
    cluster = own_cluster({"pg_lookahead.io_workers": "2", "pg_lookahead.start_after": "0"})
    unserved = "SELECT scans_unserved FROM pg_lookahead_status()"
    owners = "SELECT count(*) FROM pg_stat_lookahead_owners"
    with connect(cluster) as connection, ExitStack() as stack:
        script(connection, SETUP)
        connection.execute("CREATE TABLE unserved WITH (fillfactor = 20) AS SELECT * FROM limited")
        scanning(connection)
        require_node(connection, "SELECT a FROM limited", "Seq Scan")
        without = rows(connection, "SELECT a FROM limited")
        cold(connection, "limited")
        sessions = [
            stack.enter_context(connect(cluster)) for _ in range(SLOTS // SLOTS_OF_A_SESSION + 1)
        ]
        for holder in sessions:
            scanning(holder)
            holder.execute("BEGIN")
        for i in range(SLOTS + 2):
            holder = sessions[i // SLOTS_OF_A_SESSION]
            holder.execute(f"DECLARE c{i} CURSOR FOR SELECT a FROM limited")
            assert rows(holder, f"FETCH 1000 FROM c{i}") == without[:1000]
            if i < SLOTS:
                assert value(connection, unserved) == 0
        assert value(connection, owners) == SLOTS
        assert value(connection, unserved) > 0

        scan = "SELECT a, filler FROM unserved"
        blocks = value(connection, "SELECT pg_relation_size('unserved') / 8192")
        cold(connection, "unserved")
        with gained(connection) as change:
            assert len(rows(connection, scan)) == ROWS
        assert blocks / 2 < change.blocks_issued <= blocks
        assert (change.blocks_used, change.blocks_dropped) == (change.blocks_issued, 0)

        cold(connection, "unserved")
        before = requests(connection)
        with gained(connection) as change:
            connection.execute(f"BEGIN; DECLARE c CURSOR FOR {scan}")
            first = rows(connection, f"FETCH {ROWS // 4} FROM c")
            assert requests(connection) == before
            for i in (0, SLOTS, SLOTS + 1):
                holder = sessions[i // SLOTS_OF_A_SESSION]
                assert rows(holder, f"FETCH ALL FROM c{i}") == without[1000:]
            for holder in sessions:
                holder.execute("COMMIT")
            assert value(connection, owners) == 0
            # It asks again now.
            time.sleep(1.1)
            connection.execute("SAVEPOINT s")
            second = rows(connection, "FETCH 300 FROM c")
            assert value(connection, owners) == 1
            assert requests(connection) > before
            # What workers were asked for is lost now, and not what the kernel was told.
            connection.execute("ROLLBACK TO s")
            assert value(connection, owners) == 0
            assert len(first + second + rows(connection, "FETCH ALL FROM c")) == ROWS
            connection.execute("COMMIT")
        # What the kernel was told is not asked for again.
        assert blocks / 2 < change.blocks_issued <= blocks
        assert change.blocks_used == change.blocks_issued


def test_parallel_scan_that_gets_a_slot_late(own_cluster: NewCluster, server: Server) -> None:
    """Its leader advises for all until then, and what it has asked for is not asked for again."""
    need_followed_scans(server)
    cluster = own_cluster({"pg_lookahead.io_workers": "2", "pg_lookahead.start_after": "0"})
    owners = "SELECT count(*) FROM pg_stat_lookahead_owners"
    issued = "SELECT blocks_issued, blocks_used FROM pg_stat_lookahead WHERE relname = 'limited'"
    query = "SELECT count(*) FROM limited WHERE slow(a) IS NOT NULL"
    with connect(cluster) as connection, ExitStack() as stack, ThreadPoolExecutor() as pool:
        script(connection, SETUP)
        connection.execute("CREATE TABLE held WITH (fillfactor = 20) AS SELECT * FROM limited")
        connection.execute(
            "CREATE FUNCTION slow(i int) RETURNS int LANGUAGE plpgsql PARALLEL SAFE AS $$"
            " BEGIN IF i % 50 = 0 THEN PERFORM pg_sleep(0.03); END IF; RETURN i; END $$"
        )
        reader = stack.enter_context(connect(cluster))
        scanning(reader, "auto", **PARALLEL)
        assert any(n["Parallel Aware"] for n in plan_nodes(reader, query))
        cold(connection, "limited")
        holders = [stack.enter_context(connect(cluster)) for _ in range(4)]
        for holder in holders:
            scanning(holder)
            holder.execute("BEGIN")
        hold_slots(holders, "held", SLOTS)
        assert value(connection, owners) == SLOTS
        connection.execute("SELECT pg_stat_lookahead_reset()")
        reading = pool.submit(value, reader, query)
        time.sleep(1)
        for holder in holders:
            holder.execute("COMMIT")
        until(connection, f"(({owners}) = 1)")
        assert reading.result() == ROWS
        blocks = value(connection, "SELECT pg_relation_size('limited') / 8192")
        [(asked, used)] = rows(connection, issued)
        assert blocks / 2 < used == asked <= blocks


def test_a_share_that_is_too_small(own_cluster: NewCluster, server: Server) -> None:
    """The kernel is advised for a scan that workers could not be well ahead of."""
    need_followed_scans(server)
    cluster = own_cluster({"pg_lookahead.ring_size": "1MB", "pg_lookahead.io_workers": "2"})
    with connect(cluster) as connection:
        script(connection, SETUP)
        scanning(connection)
        blocks = value(connection, "SELECT pg_relation_size('limited') / 8192")
        before = requests(connection)
        cold(connection, "limited")
        with gained(connection) as change:
            assert len(rows(connection, "SELECT a, filler FROM limited")) == ROWS
        assert blocks / 2 < change.blocks_used == change.blocks_issued <= blocks
        assert requests(connection) == before


def test_slots_of_a_session(own_cluster: NewCluster, server: Server) -> None:
    """A session that leaves many scans open leaves slots to others; what is open is all right."""
    need_followed_scans(server)
    cluster = own_cluster({"pg_lookahead.io_workers": "2", "pg_lookahead.start_after": "0"})
    owners = "SELECT pid, count(*)::int FROM pg_stat_lookahead_owners GROUP BY pid"
    with connect(cluster) as connection, connect(cluster) as other:
        script(connection, SETUP)
        for holder in (connection, other):
            scanning(holder)
        without = rows(connection, "SELECT a FROM limited")
        cold(connection, "limited")
        for holder in (connection, other):
            holder.execute("BEGIN")
        for i in range(SLOTS // 2 + 3):
            connection.execute(f"DECLARE c{i} CURSOR FOR SELECT a FROM limited")
            assert rows(connection, f"FETCH 1000 FROM c{i}") == without[:1000]
        pids = [holder.info.backend_pid for holder in (connection, other)]
        assert dict(rows(connection, owners)) == {pids[0]: SLOTS // 2}
        assert value(connection, "SELECT scans_unserved FROM pg_lookahead_status()") == 3
        other.execute("DECLARE c CURSOR FOR SELECT a FROM limited")
        assert rows(other, "FETCH 1000 FROM c") == without[:1000]
        assert dict(rows(connection, owners)) == {pids[0]: SLOTS // 2, pids[1]: 1}
        for i in (0, SLOTS // 2):
            assert rows(connection, f"FETCH ALL FROM c{i}") == without[1000:]


def test_slots_of_windows(own_cluster: NewCluster, server: Server) -> None:
    """Scans that may have all slots leave those that index scans may have to these."""
    need_followed_scans(server)
    cluster = own_cluster({"pg_lookahead.io_workers": "2", "pg_lookahead.start_after": "0"})
    with connect(cluster) as connection, ExitStack() as stack:
        script(connection, SETUP)
        cold(connection, "limited")
        sessions = [stack.enter_context(connect(cluster)) for _ in range(4)]
        for i, holder in enumerate(sessions):
            scanning(holder)
            if i >= 2:
                settings(holder, **INDEX_SCANS)
            holder.execute("BEGIN")
        hold_slots(sessions[:2], "limited", 2 * SLOTS_OF_A_SESSION)
        owners = "SELECT count(*) FROM pg_stat_lookahead_owners WHERE pid = %s"
        sequential, windows = (
            [value(connection, owners, (holder.info.backend_pid,)) for holder in some]
            for some in (sessions[:2], sessions[2:])
        )
        assert (sequential, windows) == ([SLOTS_OF_A_SESSION] * 2, [0, 0])
        for i in range(2 * SLOTS_OF_A_SESSION + 10):
            holder = sessions[2 + i % 2]
            query = f"SELECT a, filler FROM limited WHERE a > {i * 200} ORDER BY a"
            if i == 0:
                require_node(holder, query, "Index Scan", "limited_a")
            holder.execute(f"DECLARE c{i} CURSOR FOR {query}")
            assert rows(holder, f"FETCH 30 FROM c{i}")[0][0] == i * 200 + 1
            settle(connection)
        for holder in sessions[2:]:
            assert value(connection, owners, (holder.info.backend_pid,)) == SLOTS_OF_A_SESSION
        for holder in sessions:
            holder.execute("COMMIT")


# Scans of a session that look ahead at once.
WINDOWS = 256


def test_windows(own_cluster: NewCluster) -> None:
    """Of a merge of many partitions some look ahead, and the others are counted and read on."""
    cluster = own_cluster({"pg_lookahead.start_after": "0", "max_locks_per_transaction": "256"})
    number = WINDOWS + 20
    query = "SELECT k FROM merged ORDER BY k"
    windows = "SELECT count(*) FROM pg_backend_memory_contexts WHERE name = 'pg_lookahead window'"
    with connect(cluster) as connection:
        connection.execute("CREATE TABLE merged (k int, h int) PARTITION BY LIST (h)")
        connection.execute(
            f"DO $$ BEGIN FOR i IN 1..{number} LOOP EXECUTE format("
            "'CREATE TABLE merged_%1$s PARTITION OF merged FOR VALUES IN (%1$s)', i);"
            " END LOOP; END $$"
        )
        connection.execute(
            f"INSERT INTO merged SELECT i, 1 + i % {number} FROM generate_series(1, 4000) i"
        )
        connection.execute("CREATE INDEX ON merged (k)")
        connection.execute("ANALYZE merged")
        settings(connection, **INDEX_SCANS, enable_sort="off", pg_lookahead__method="advice")
        settings(connection, pg_lookahead__leafscan="off")
        require_node(connection, query, "Merge Append")
        expected = [(i,) for i in range(1, 4001)]
        with gained(connection) as change, connection.transaction():
            connection.execute(f"DECLARE c CURSOR FOR {query}")
            assert rows(connection, f"FETCH {2 * number} FROM c") == expected[: 2 * number]
            assert value(connection, windows) == WINDOWS
            assert rows(connection, "FETCH ALL FROM c") == expected[2 * number :]
        assert change.scans == WINDOWS
        assert change.blocks_dropped >= number - WINDOWS
        assert value(connection, windows) == 0
        # What is over has given its window back.
        with gained(connection) as change:
            assert rows(connection, query.replace(" ORDER BY k", "") + " WHERE k > 0")
        assert change.blocks_dropped == 0
