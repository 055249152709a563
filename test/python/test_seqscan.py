"""Sequential scans on 15 to 17: same rows, and blocks are read ahead of the scan."""

from __future__ import annotations

import contextlib
import random
import threading
import time
from collections.abc import Iterator

import psycopg
import pytest
from lookahead.cluster import Cluster
from lookahead.errors import LookaheadError
from lookahead.servers import Server

from conftest import NewCluster
from seqscan_support import (
    METHODS,
    MIN_BLOCKS,
    PARALLEL,
    QUERIES,
    SCAN,
    SETUP,
    asked_of_workers,
    blocks_of,
    long_table,
    need_followed_scans,
    read_by_workers,
    scanning,
    switch,
)
from service_support import rows_by_workers, stopped, worker_pids
from support import (
    Connection,
    LogWatch,
    Row,
    cold,
    connect,
    evict_tablespaces,
    gained,
    need_extensions,
    no_pins,
    require_node,
    reset_statistics,
    rows,
    script,
    seed,
    settings,
    settle,
    slow_tablespace,
    until,
    until_served,
    value,
)
from test_scroll import Oracle, random_move

# Workers that are not needed any more are told so in this way.
pytestmark = pytest.mark.log_may_have('terminating background worker "parallel worker"')

# How far a scan looks ahead at the least, and what is still asked for in one go.
FIRST_DISTANCE = 256


@pytest.fixture(autouse=True)
def before_18(request: pytest.FixtureRequest, server: Server) -> None:
    if "of_18" not in request.fixturenames:
        need_followed_scans(server)


@pytest.fixture
def of_18(server: Server) -> None:
    if server.major < 18:
        pytest.skip("of 18 and later")


@pytest.fixture
def tables(cluster: Cluster, server: Server) -> Iterator[Cluster]:
    with long_table(cluster, server):
        yield cluster


# ---------------------------------------------------------------------------
# Serial scans


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("name", QUERIES)
def test_same_rows(tables: Cluster, name: str, method: str) -> None:
    query, is_complete = QUERIES[name]
    with connect(tables) as connection:
        scanning(connection, method, enabled=False)
        settings(connection, enable_material="off", enable_hashjoin="on")
        require_node(connection, query, "Seq Scan")
        without = rows(connection, query)
        switch(connection, on=True)
        cold(connection, "long")
        blocks = blocks_of(connection, "long")
        with gained(connection) as change:
            with_it = rows(connection, query)
        assert with_it == without
        assert not change.errors
        if is_complete:
            assert change.blocks_issued > blocks * 0.8
            assert change.blocks_wasted == 0
        elif name == "first_row":
            assert change.blocks_issued == 0
        else:
            assert change.blocks_issued > 0


@pytest.mark.parametrize("method", METHODS)
def test_what_was_there_is_not_wasted(own_cluster: NewCluster, method: str) -> None:
    """A scan that ends among blocks that it found has asked for none of them."""
    # Shared buffers have room for all: nothing is pushed out meanwhile.  With rings of
    # 512 blocks a scan is never so far ahead that it rests before it ends.
    cluster = own_cluster({"shared_buffers": "64MB", "pg_lookahead.ring_size": "4MB"})
    with LogWatch(cluster), connect(cluster) as connection:
        script(connection, SETUP)
        scanning(connection, method)
        there = "SELECT count(*) FROM long WHERE ctid >= '(300,0)'"
        require_node(connection, there, "Tid Range Scan")
        before = value(connection, "SELECT count(*) FROM long WHERE ctid < '(600,0)'")
        # That the LIMIT stops the scan is not foreseen.
        query = (
            "SELECT count(*) FROM (SELECT id FROM (TABLE long OFFSET 0) t"
            f" WHERE id > -1 LIMIT {before}) t"
        )
        cold(connection, "long")
        rows(connection, there)
        with gained(connection) as change:
            assert value(connection, query) == before
        assert change.blocks_issued > 100
        assert change.blocks_hit > 0
        assert change.blocks_wasted == 0
    cluster.close()


def own_reads_of_a_slow_scan(
    connection: Connection, other: Connection, synchronized: str, expected: list[Row]
) -> int:
    """Scan a cold table, and give the workers the time they need; return the scan's own reads."""
    switch(connection, on=False)
    cold(connection, "long")
    blocks = blocks_of(connection, "long")
    if synchronized == "on":
        # Somebody is in the middle of the table: this is where we join in.
        connection.execute("BEGIN")
        connection.execute(f"DECLARE first CURSOR FOR {SCAN}")
        rows(connection, "FETCH 3500 FROM first")
        connection.execute("COMMIT")
        cold_middle = value(connection, "SELECT ctid FROM long LIMIT 1")
        assert cold_middle != "(0,1)", "no synchronized scan: the test tests nothing"
    switch(connection, on=True)
    before = read_by_workers(other)
    reset_statistics(connection, sessions=3)
    found: list[Row] = []
    with gained(connection) as change:
        connection.execute("BEGIN")
        connection.execute(f"DECLARE c CURSOR FOR {SCAN}")
        while True:
            # About ten blocks, fewer than the workers are asked for at first.
            some = rows(connection, "FETCH 40 FROM c")
            found += some
            settle(other)
            if len(some) < 40:
                break
        connection.execute("COMMIT")
    connection.execute("SELECT pg_stat_force_next_flush()")
    assert sorted(found) == sorted(expected)
    assert change.blocks_issued > blocks * 0.9
    assert change.blocks_issued <= blocks
    assert change.blocks_wasted == 0
    assert read_by_workers(other) - before == change.blocks_issued
    own = "SELECT heap_blks_read FROM pg_statio_user_tables WHERE relname = 'long'"
    return int(value(connection, own))


@pytest.mark.parametrize("synchronized", ["off", "on"])
def test_the_service_reads_what_a_slow_scan_needs(tables: Cluster, synchronized: str) -> None:
    """Where the workers have the time, the scan finds all but the first blocks."""
    with connect(tables) as connection, connect(tables) as other:
        scanning(connection, enabled=False, synchronize_seqscans=synchronized)
        expected = rows(connection, SCAN)
        # Up to 16 come with the first one on 17.
        most = blocks_of(connection, "long") * 0.2
        # Each time all buffers of the table become free, and those of workers' rings others'.
        for _ in range(4):
            assert own_reads_of_a_slow_scan(connection, other, synchronized, expected) <= most


LIMITED = {
    "limit": "SELECT id, filler FROM long LIMIT 2000",
    "offset": "SELECT id FROM long OFFSET 1700 LIMIT 300",
    "below": "SELECT count(*) FROM (SELECT id FROM long LIMIT 2000) l",
    "for_update": "SELECT id FROM long LIMIT 2000 FOR UPDATE",
    "rescans": "SELECT k, l.id FROM keys, LATERAL (SELECT id + k AS id FROM long LIMIT 2000) l",
}


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("name", LIMITED)
def test_limit_is_foreseen(tables: Cluster, name: str, method: str) -> None:
    """What lies behind the last row that a LIMIT lets through is not asked for."""
    query = LIMITED[name]
    with connect(tables) as connection:
        scanning(connection, method, enabled=False)
        require_node(connection, query, "Seq Scan")
        last = value(connection, "SELECT max(ctid) FROM (SELECT ctid FROM long LIMIT 2000) l")
        blocks = int(last[1:].split(",")[0])
        assert FIRST_DISTANCE < blocks < blocks_of(connection, "long") - FIRST_DISTANCE
        without = rows(connection, query)
        switch(connection, on=True)
        cold(connection, "long")
        with gained(connection) as change:
            assert rows(connection, query) == without
        times = value(connection, "SELECT count(*) FROM keys") if name == "rescans" else 1
        assert change.blocks_used > blocks * 0.8
        # Not all blocks have the same number of rows.
        assert change.blocks_wasted <= 16 * times, change


def test_owner_of_a_scan(tables: Cluster) -> None:
    """pg_stat_lookahead_owners shows where the scan is, and forgets it in time."""
    owners = 'SELECT pid, relid, "position", frontier FROM pg_stat_lookahead_owners'
    with connect(tables) as connection, connect(tables) as other:
        scanning(connection)
        cold(connection, "long")
        table = value(connection, "SELECT 'long'::regclass::oid")
        connection.execute("BEGIN")
        connection.execute("DECLARE c CURSOR FOR SELECT ctid::text FROM long")
        last = -1
        for _ in range(5):
            found = rows(connection, "FETCH 500 FROM c")
            [(pid, relid, position, frontier)] = rows(other, owners)
            assert (pid, relid) == (connection.info.backend_pid, table)
            assert last < position < frontier <= blocks_of(other, "long")
            last = position
            # It is looked once in sixteen pages.
            block = int(found[-1][0][1:].split(",")[0])
            assert block - 16 <= position <= block
        connection.execute("CLOSE c")
        assert rows(other, owners) == []
        connection.execute("COMMIT")


def test_a_table_in_shared_buffers(own_cluster: NewCluster) -> None:
    """Blocks that are there are not asked for."""
    cluster = own_cluster({"shared_buffers": "64MB"})
    with LogWatch(cluster), connect(cluster) as connection:
        script(connection, SETUP)
        scanning(connection)
        rows(connection, SCAN)
        with gained(connection) as change:
            found = rows(connection, SCAN)
        assert len(found) == value(connection, "SELECT count(*) FROM long")
        assert change.blocks_issued <= 64
        assert change.blocks_hit > 0
        # Where half of it is missing, look-ahead begins again.
        cold(connection, "long")
        rows(connection, f"{SCAN} LIMIT 3400")
        with gained(connection) as change:
            assert rows(connection, SCAN) == found
        assert change.blocks_issued > 0
    cluster.close()


def test_dead_rows_in_front(tables: Cluster) -> None:
    """A scan that sees its first row in the middle does not go round again."""
    with connect(tables) as connection:
        connection.execute(
            "CREATE TABLE half_dead WITH (fillfactor = 10, autovacuum_enabled = off)"
            " AS SELECT * FROM long ORDER BY id"
        )
        connection.execute("ANALYZE half_dead; DELETE FROM half_dead WHERE id < 4000")
        scanning(connection)
        cold(connection, "half_dead")
        with gained(connection) as change:
            found = rows(connection, "SELECT id FROM half_dead")
        connection.execute("DROP TABLE half_dead")
        assert min(found)[0] >= 4000
        assert change.blocks_issued > 0
        # Pages at the end, for rows to come, are read, but nobody knows.
        assert change.blocks_wasted <= 16, change


# ---------------------------------------------------------------------------
# Synchronized scans


def test_synchronized_sessions(tables: Cluster) -> None:
    """Three sessions at once, each beginning where another is."""
    failures: list[BaseException] = []
    with connect(tables) as connection:
        scanning(connection, enabled=False)
        expected = sorted(rows(connection, SCAN))
        cold(connection, "long")

    def scan(number: int) -> None:
        try:
            with connect(tables) as connection:
                scanning(connection, METHODS[number % 2], synchronize_seqscans="on")
                for i in range(12):
                    with gained(connection) as change:
                        if (i + number) % 4 == 0:
                            # Leaves the place somewhere.
                            rows(connection, f"{SCAN} LIMIT {1000 * (number + 1)}")
                        else:
                            assert sorted(rows(connection, SCAN)) == expected
                    assert change.scans == 1
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=scan, args=(i,)) for i in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failures
    with connect(tables) as connection:
        assert rows(connection, "TABLE pg_stat_lookahead_owners") == []


# ---------------------------------------------------------------------------
# Cursors, transactions, errors


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("condition", ["", " WHERE a % 3 = 0", " WHERE a % 500 = 0"])
def test_scroll_cursor(tables: Cluster, condition: str, method: str) -> None:
    query = SCAN + condition
    choice = random.Random(f"{seed()} {condition} {method}")
    with connect(tables) as connection:
        scanning(connection, method)
        oracle = Oracle(rows(connection, query))
        for _ in range(3):
            cold(connection, "long")
            oracle.position = 0
            with gained(connection) as change:
                connection.execute("BEGIN")
                connection.execute(f"DECLARE c SCROLL CURSOR FOR {query}")
                # It begins forward, so that look-ahead does.
                moves = ["FORWARD 30"] + [random_move(choice, len(oracle.rows)) for _ in range(60)]
                for move in moves:
                    assert rows(connection, f"FETCH {move} FROM c") == oracle.fetch(move), move
                connection.execute("COMMIT")
            # Anew when the cursor goes back to its start.
            assert change.scans >= 1
            assert not change.errors
        assert rows(connection, "TABLE pg_stat_lookahead_owners") == []


def test_a_scan_at_its_end_takes_no_share(tables: Cluster) -> None:
    """What follows it in the plan is read ahead as if it were alone."""
    owners = "SELECT count(*) FROM pg_stat_lookahead_owners"
    with connect(tables) as connection:
        scanning(connection)
        count = value(connection, "SELECT count(*) FROM long")
        cold(connection, "long")
        connection.execute("BEGIN")
        connection.execute(f"DECLARE c CURSOR FOR {SCAN} UNION ALL {SCAN} UNION ALL {SCAN}")
        # Into the next one each time.
        for _ in range(2):
            assert len(rows(connection, f"FETCH {count + 100} FROM c")) == count + 100
            assert value(connection, owners) <= 1
        assert len(rows(connection, "FETCH ALL FROM c")) == count - 200
        assert value(connection, owners) == 0
        connection.execute("COMMIT")


def test_small_fetches(own_cluster: NewCluster, server: Server) -> None:
    """Waits count although each FETCH ends before anybody looks for them."""
    if server.major not in (16, 17):
        pytest.skip("direct I/O and scans that nobody else reads ahead are of 16 and 17")
    conf = {"debug_io_direct": "data", "pg_lookahead.io_workers": "2"}
    try:
        cluster = own_cluster({**conf, "pg_lookahead.start_after": "8"})
    except LookaheadError as error:
        # The file system may not have it.
        pytest.skip(f"cannot be used here: {error}")
    with LogWatch(cluster), connect(cluster) as connection:
        script(connection, SETUP)
        scanning(connection, pg_lookahead__start_after=8)
        cold(connection, "long")
        found = 0
        with gained(connection) as change:
            connection.execute("BEGIN")
            connection.execute(f"DECLARE c CURSOR FOR {SCAN}")
            # Four blocks.
            while some := rows(connection, "FETCH 25 FROM c"):
                found += len(some)
            connection.execute("COMMIT")
        assert found == value(connection, "SELECT count(*) FROM long")
        assert change.scans == 1
        assert change.blocks_issued > MIN_BLOCKS / 2
        assert not change.errors
    cluster.close()


def test_fetches_by_turns(own_cluster: NewCluster) -> None:
    """Clients in whose absence others' blocks take the place of theirs have fewer read ahead."""
    conf = {
        "pg_lookahead.protect_time": "40ms",
        "pg_lookahead.io_workers": "4",
        # What one scan may have ahead has room there twice, and there are three.
        "pg_lookahead.ring_size": "8MB",
        "shared_buffers": "16MB",
    }
    away = 0.05
    blocks, first, step, rounds = 4000, 200, 20, 50
    make = """
        CREATE TABLE far{0} (a int, f text) WITH (autovacuum_enabled = off) TABLESPACE slow;
        ALTER TABLE far{0} ALTER f SET STORAGE plain;
        INSERT INTO far{0} SELECT i, repeat('x', 5000) FROM generate_series(1, {1}) i;
        VACUUM (FREEZE) far{0}
        """
    cluster = own_cluster(conf)
    left = blocks - first - rounds * step

    def by_turns() -> tuple[int, int]:
        """Return how many blocks were used and wasted."""
        cluster.restart()
        evict_tablespaces(cluster)
        changes = []
        with contextlib.ExitStack() as stack:
            clients = [stack.enter_context(connect(cluster)) for _ in range(3)]
            for number, client in enumerate(clients):
                scanning(client)
                changes.append(stack.enter_context(gained(client)))
                stack.enter_context(client.transaction())
                client.execute(f"DECLARE c CURSOR FOR SELECT a, length(f) FROM far{number}")
                # It reads for itself, waits, and has as much asked for as may be.
                with stopped(worker_pids(client)):
                    assert len(rows(client, f"FETCH {first} FROM c")) == first
            for _ in range(rounds):
                for client in clients:
                    settle(client)
                    time.sleep(away)
                    assert len(rows(client, f"FETCH {step} FROM c")) == step
            for client in clients:
                assert len(rows(client, "FETCH ALL FROM c")) == left
        return (
            sum(change.blocks_used for change in changes),
            sum(change.blocks_wasted for change in changes),
        )

    with slow_tablespace(cluster, read_us=1000), LogWatch(cluster):
        with connect(cluster) as connection:
            for number in range(3):
                script(connection, make.format(number, blocks))
        # Workers that get no processor have a scan look further ahead again.
        for _ in range(3):
            used, wasted = by_turns()
            if used > 3 * left / 2 and wasted < used * 0.75:
                break
        assert used > 3 * left / 2
        assert wasted < used * 0.75


def buffers_of(connection: Connection, table: str) -> set[int]:
    """Return the shared buffers that have pages of a table."""
    found = (
        "SELECT bufferid FROM pg_buffercache WHERE relforknumber = 0"
        " AND relfilenode = pg_relation_filenode(%s)"
    )
    return {buffer for (buffer,) in connection.execute(found, (table,))}


def make_small(connection: Connection, table: str, count: int) -> None:
    """Make a table with about a row to a page, which a scan puts into shared buffers whole."""
    connection.execute(
        f"CREATE TABLE {table} WITH (fillfactor = 10) AS"
        f" SELECT i, repeat('h', 700) AS f FROM generate_series(1, {count}) i"
    )


@pytest.mark.parametrize("reloads", [False, True])
def test_other_pages_stay(own_cluster: NewCluster, server: Server, reloads: bool) -> None:
    """A table larger than shared buffers, read by the service, pushes nobody's pages out.

    Nor do workers that read the configuration again, whose rings are what they were.
    """
    cluster = own_cluster({"shared_buffers": "8MB", "pg_lookahead.io_workers": "2"})
    need_extensions(cluster, "pg_buffercache", "pg_prewarm")
    with LogWatch(cluster), connect(cluster) as connection:
        script(connection, SETUP)
        make_small(connection, "hot", 400)
        # Pages that a scan makes dirty leave its ring.
        script(connection, "VACUUM (FREEZE) long; CHECKPOINT")
        scanning(connection)
        until_served(connection)
        cold(connection, "long")
        # A scan in its ring, and one that is not: the clock's hand has to pass
        # twice, and the catalogs' pages alone do not have it do so.
        value(connection, "SELECT count(f) FROM hot")
        connection.execute("CREATE INDEX hot_i ON hot (i)")
        settings(connection, enable_seqscan="off")
        require_node(connection, "SELECT count(f) FROM hot WHERE i > 0", "Bitmap Heap Scan")
        value(connection, "SELECT count(f) FROM hot WHERE i > 0")
        settings(connection, enable_seqscan="on")
        before = len(buffers_of(connection, "hot"))
        assert before > 200
        # A new ring takes as many pages as are read before the next.
        for _ in range(2 if reloads else 1):
            with gained(connection) as change, connection.transaction():
                connection.execute(f"DECLARE c CURSOR FOR {SCAN}")
                while rows(connection, f"FETCH {700 if reloads else 'ALL'} FROM c"):
                    if reloads:
                        value(connection, "SELECT pg_reload_conf()")
                        time.sleep(0.02)
                        settle(connection)
            assert change.blocks_issued > MIN_BLOCKS / 2
        assert len(buffers_of(connection, "hot")) > before * 0.95
    cluster.close()


@pytest.fixture
def heirs(own_cluster: NewCluster) -> Iterator[Connection]:
    """A session that scans, and a table that may get the buffers of what is scanned."""
    cluster = own_cluster({"shared_buffers": "16MB", "pg_lookahead.io_workers": "2"})
    need_extensions(cluster, "pg_buffercache")
    with LogWatch(cluster), connect(cluster) as connection:
        script(connection, SETUP)
        # All of it comes into shared buffers: it is less than a quarter of them.
        make_small(connection, "heir", 480)
        script(connection, "VACUUM (FREEZE) long; VACUUM (FREEZE) heir; CHECKPOINT")
        scanning(connection)
        until(connection, "(SELECT count(pid) = 2 FROM pg_stat_lookahead_io)")
        yield connection
    cluster.close()


def test_buffers_of_a_table_that_went(heirs: Connection) -> None:
    """What a ring had is somebody else's after the table has gone, and stays so."""
    connection = heirs
    blocks = blocks_of(connection, "heir")
    ring = value(connection, "SELECT sum(ring_blocks) FROM pg_stat_lookahead_io")
    for is_used in (False, True):
        had = buffers_of(connection, "long")
        assert not is_used or len(had) > ring * 0.9
        # Buffers that are free are taken before any other, the last ones first.
        cold(connection, "heir", "long")
        assert value(connection, "SELECT count(f) FROM heir") == 480
        assert not is_used or len(had & buffers_of(connection, "heir")) > ring / 2
        assert len(buffers_of(connection, "heir")) == blocks
        expected = read_by_workers(connection) + ring
        assert len(rows_by_workers(connection, SCAN, 40)) > 0
        assert read_by_workers(connection) > expected
        assert len(buffers_of(connection, "heir")) == blocks


def test_buffers_that_are_taken_in_front_of_a_ring(heirs: Connection) -> None:
    """Free buffers of a ring become another table's between two of its turns."""
    connection = heirs
    read = "SELECT sum(blocks_read) FROM pg_stat_lookahead_io"
    some = "SELECT count(f) FROM heir WHERE ctid = ANY (%s::tid[])"
    for _ in range(3):
        cold(connection, "heir", "long")
        before = value(connection, read)
        taken = 0
        with connection.transaction():
            connection.execute(f"DECLARE c CURSOR FOR {SCAN}")
            while rows(connection, "FETCH 40 FROM c"):
                settle(connection)
                places = [f"({block},1)" for block in range(taken, min(taken + 10, 480))]
                taken += value(connection, some, (places,))
        settle(connection)
        assert value(connection, read) > before + 1000
        assert taken == 480
        assert len(buffers_of(connection, "heir")) == taken


def test_cursor_with_hold(tables: Cluster) -> None:
    with connect(tables) as connection:
        scanning(connection)
        expected = rows(connection, SCAN)
        cold(connection, "long")
        with gained(connection) as change:
            connection.execute("BEGIN")
            connection.execute(f"DECLARE c CURSOR WITH HOLD FOR {SCAN}")
            found = rows(connection, "FETCH 700 FROM c")
            connection.execute("COMMIT")
            # It was run to its end by the commit.
            assert rows(connection, "TABLE pg_stat_lookahead_owners") == []
        found += rows(connection, "FETCH ALL FROM c")
        connection.execute("CLOSE c")
        assert found == expected
        assert change.blocks_issued > 700


@pytest.mark.parametrize("method", METHODS)
def test_subtransactions_under_a_cursor(tables: Cluster, method: str) -> None:
    choice = random.Random(seed())
    with connect(tables) as connection:
        scanning(connection, method)
        expected = rows(connection, SCAN)
        cold(connection, "long")
        connection.execute("BEGIN")
        connection.execute(f"DECLARE c CURSOR FOR {SCAN}")
        found: list[Row] = []
        with gained(connection) as change:
            while len(found) < len(expected):
                connection.execute("SAVEPOINT s")
                some = rows(connection, f"FETCH {choice.choice((1, 20, 300, 600))} FROM c")
                found += some
                what = choice.choice(("release", "rollback", "error"))
                if what == "error":
                    with pytest.raises(psycopg.errors.DivisionByZero):
                        connection.execute("SELECT 1 / 0")
                connection.execute("RELEASE s" if what == "release" else "ROLLBACK TO s")
                if what != "release" and method == "worker":
                    # Locks may have gone, so nothing may be read for us now.
                    assert rows(connection, "TABLE pg_stat_lookahead_owners") == []
            connection.execute("COMMIT")
        assert found == expected
        assert change.scans == 1
        assert change.blocks_issued > MIN_BLOCKS / 2
        # What is asked for twice, as it may have been given up, is used once.
        blocks = blocks_of(connection, "long")
        assert 0.9 * blocks < change.blocks_used <= blocks
        assert not change.errors


def test_table_of_a_subtransaction(tables: Cluster) -> None:
    """One that this transaction has made is locked by it, so workers are not asked to read it."""
    with connect(tables) as connection:
        scanning(connection)
        connection.execute("BEGIN")
        for _ in range(5):
            connection.execute("SAVEPOINT s")
            connection.execute(
                "CREATE TABLE brief WITH (fillfactor = 10) AS SELECT * FROM long LIMIT 6000"
            )
            connection.execute("DECLARE c CURSOR FOR SELECT * FROM brief")
            assert len(rows(connection, "FETCH 300 FROM c")) == 300
            assert rows(connection, "TABLE pg_stat_lookahead_owners") == []
            connection.execute("ROLLBACK TO s")
        connection.execute("COMMIT")


def test_cursor_of_a_subtransaction(tables: Cluster) -> None:
    """The slot of a scan goes with the subtransaction that the scan is of."""
    owners = "TABLE pg_stat_lookahead_owners"
    with connect(tables) as connection:
        scanning(connection)
        cold(connection, "long")
        connection.execute("BEGIN")
        for _ in range(5):
            connection.execute("SAVEPOINT s")
            connection.execute(f"DECLARE c CURSOR FOR {SCAN}")
            assert len(rows(connection, "FETCH 300 FROM c")) == 300
            assert len(rows(connection, owners)) == 1
            connection.execute("ROLLBACK TO s")
            assert rows(connection, owners) == []
        connection.execute("COMMIT")


@pytest.mark.parametrize("method", METHODS)
def test_errors_in_the_middle(tables: Cluster, method: str) -> None:
    with connect(tables) as connection:
        scanning(connection, method)
        expected = rows(connection, SCAN)
        for n in (1, 2, 77, 1000, 6999):
            cold(connection, "long")
            with pytest.raises(psycopg.errors.DivisionByZero):
                rows(connection, f"SELECT 1 / (id - {n}), filler FROM long")
            assert rows(connection, "TABLE pg_stat_lookahead_owners") == []
        with gained(connection):
            assert rows(connection, SCAN) == expected
        no_pins(tables)


@pytest.mark.parametrize("method", METHODS)
def test_cancelled_in_the_middle(tables: Cluster, method: str) -> None:
    choice = random.Random(seed())
    cancelled = 0
    with connect(tables) as connection:
        scanning(connection, method)
        expected = rows(connection, SCAN)
        for _ in range(20):
            cold(connection, "long")
            connection.execute("BEGIN")
            settings(connection, statement_timeout=f"{choice.randint(2, 15)}ms")
            try:
                rows(connection, f"{SCAN} WHERE pg_sleep(0.0001) IS NOT NULL")
            except psycopg.errors.QueryCanceled:
                cancelled += 1
            connection.execute("ROLLBACK")
            settings(connection, statement_timeout="60s")
            assert rows(connection, "TABLE pg_stat_lookahead_owners") == []
        assert cancelled > 10
        with gained(connection):
            assert rows(connection, SCAN) == expected


def test_memory(tables: Cluster) -> None:
    """Neither queries nor rescans leave anything behind."""
    used = "SELECT sum(used_bytes) FROM pg_backend_memory_contexts"
    query = QUERIES["unfinished_rescans"][0]
    with connect(tables) as connection:
        scanning(connection)

        def repeat(times: int) -> None:
            for i in range(times):
                if i % 2:
                    rows(connection, query)
                else:
                    with pytest.raises(psycopg.errors.DivisionByZero):
                        rows(connection, "SELECT 1 / (id - 40) FROM long")

        repeat(6)
        before = value(connection, used)
        repeat(60)
        assert value(connection, used) - before < 64 * 1024


# ---------------------------------------------------------------------------
# Statements that change what they scan

CHANGES = {
    "update": "UPDATE long SET a = a + 10000",
    "update_some": "UPDATE long SET filler = repeat('z', 500) WHERE a % 3 = 0",
    "delete": "DELETE FROM long WHERE a % 2 = 0",
    "insert": "INSERT INTO long SELECT id + 100000, a, filler FROM long WHERE a > 3000",
    "merge": "MERGE INTO long USING keys ON a = k WHEN MATCHED THEN DELETE",
    "lock": "WITH l AS (SELECT id FROM long FOR UPDATE) UPDATE keys SET k = (SELECT sum(id) FROM l)"
    " WHERE k = 1",
}


@pytest.mark.parametrize("name", CHANGES)
def test_changes(tables: Cluster, name: str) -> None:
    states = []
    with connect(tables) as connection:
        for enabled in (False, True):
            scanning(connection, enabled=enabled)
            require_node(connection, CHANGES[name], "Seq Scan")
            cold(connection, "long")
            connection.execute("BEGIN")
            with gained(connection) as change:
                connection.execute(CHANGES[name])
            switch(connection, on=False)
            states.append(
                (
                    sorted(rows(connection, "SELECT id, a, filler FROM long")),
                    sorted(rows(connection, "SELECT k FROM keys")),
                )
            )
            connection.execute("ROLLBACK")
        assert states[0] == states[1]
        assert change.blocks_issued > 0


class Committer(threading.Thread):
    """Ends a transaction when another session waits for it."""

    def __init__(self, cluster: Cluster, connection: Connection, waiting: int) -> None:
        super().__init__()
        self.cluster = cluster
        self.connection = connection
        self.waiting = waiting
        self.failure: BaseException | None = None
        self.start()

    def run(self) -> None:
        blocked = f"pg_blocking_pids({self.waiting}) <> '{{}}'"
        try:
            with connect(self.cluster) as third:
                until(third, blocked, 30)
        except BaseException as failure:
            self.failure = failure
        finally:
            # Nobody waits for ever, whatever happened.
            self.connection.execute("COMMIT")

    def join(self, timeout: float | None = None) -> None:
        super().join(timeout)
        if self.failure is not None:
            raise self.failure


def test_rows_that_others_have_changed(tables: Cluster) -> None:
    """The condition is evaluated anew for a row that was waited for."""
    found = []
    for enabled in (False, True):
        with connect(tables) as connection, connect(tables) as other:
            scanning(connection, enabled=enabled)
            other.execute("BEGIN")
            other.execute("UPDATE long SET a = -1 WHERE id = 5000")
            commit = Committer(tables, other, connection.info.backend_pid)
            connection.execute("BEGIN")
            cursor = connection.execute("UPDATE long SET filler = 'w' WHERE a >= 0 RETURNING id")
            changed = {row[0] for row in cursor}
            commit.join()
            connection.execute("ROLLBACK")
            assert 5000 not in changed
            found.append(changed)
            connection.execute("UPDATE long SET a = (id * 7919) % 7001 WHERE id = 5000")
    assert found[0] == found[1]


# ---------------------------------------------------------------------------
# Kinds of tables, and what is left alone


@pytest.mark.parametrize("method", METHODS)
def test_kinds_of_tables(tables: Cluster, method: str) -> None:
    kinds = {
        "unlogged": "CREATE UNLOGGED TABLE kind WITH (fillfactor = 10) AS SELECT * FROM long",
        "view": "CREATE MATERIALIZED VIEW kind WITH (fillfactor = 10) AS SELECT * FROM long",
        "inherited": "CREATE TABLE parent (LIKE long); CREATE TABLE kind () INHERITS (parent)"
        " WITH (fillfactor = 10); INSERT INTO kind SELECT * FROM long",
        "partitioned": "CREATE TABLE parent (LIKE long) PARTITION BY RANGE (id);"
        "CREATE TABLE kind PARTITION OF parent FOR VALUES FROM (0) TO (9999)"
        " WITH (fillfactor = 10);"
        "CREATE TABLE empty PARTITION OF parent FOR VALUES FROM (9999) TO (99999);"
        " INSERT INTO parent SELECT * FROM long",
        "toasted": "CREATE TABLE kind WITH (fillfactor = 10) AS SELECT *,"
        " (SELECT string_agg(md5(g::text), '') FROM generate_series(1, id % 2 * 100) g) AS wide"
        " FROM long",
    }
    with connect(tables) as connection:
        for name, statements in kinds.items():
            connection.execute("BEGIN")
            script(connection, statements)
            connection.execute("COMMIT")
            top = "parent" if name in ("inherited", "partitioned") else "kind"
            query = f"SELECT * FROM {top}"
            scanning(connection, method, enabled=False)
            expected = rows(connection, query)
            switch(connection, on=True)
            move = {"view": "MATERIALIZED VIEW"}.get(name, "TABLE")
            connection.execute(f"ALTER {move} kind SET TABLESPACE elsewhere")
            with gained(connection) as change:
                assert rows(connection, query) == expected, name
            assert change.blocks_issued > MIN_BLOCKS / 2, name
            connection.execute(f"DROP {move} IF EXISTS {top} CASCADE")


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("method", METHODS)
def test_another_access_method(tables: Cluster, method: str, workers: int) -> None:
    """Any whose rows have block numbers: here a copy of heap's, which is not heap."""
    query = "SELECT id, a, filler FROM other_long"
    with connect(tables) as connection:
        script(
            connection,
            """
            CREATE OR REPLACE FUNCTION la_other_am_handler(internal) RETURNS table_am_handler
                AS 'la_other_am' LANGUAGE C;
            CREATE ACCESS METHOD other_heap TYPE TABLE HANDLER la_other_am_handler;
            CREATE TABLE other_long (LIKE long) USING other_heap
                WITH (fillfactor = 10, autovacuum_enabled = off, parallel_workers = 2);
            INSERT INTO other_long SELECT * FROM long ORDER BY id;
            ANALYZE other_long
            """,
        )
        try:
            scanning(connection, method, enabled=False)
            if workers:
                settings(connection, **PARALLEL)
            settings(connection, max_parallel_workers_per_gather=workers)
            require_node(connection, query, "Gather" if workers else "Seq Scan")
            without = rows(connection, query)
            assert sorted(without) == sorted(rows(connection, "SELECT * FROM long"))
            switch(connection, on=True)
            cold(connection, "other_long")
            blocks = blocks_of(connection, "other_long")
            connection.execute("SELECT pg_stat_lookahead_reset()")
            found = rows(connection, query)
            assert sorted(found) == sorted(without)
            seen = (
                "SELECT blocks_issued, blocks_wasted, errors FROM pg_stat_lookahead"
                " WHERE relname = 'other_long'"
            )
            [(issued, wasted, errors)] = rows(connection, seen)
            # The processes of a parallel scan begin when they do.
            assert issued > (0 if workers else blocks * 0.7)
            assert wasted <= blocks * 0.02
            assert errors == 0
        finally:
            script(connection, "DROP ACCESS METHOD other_heap CASCADE")


@pytest.mark.parametrize("processes", [1, 3])
def test_table_that_nobody_else_may_read(tables: Cluster, processes: int) -> None:
    """The service cannot lock what a transaction has for itself: the kernel is advised."""
    query = "SELECT count(*), sum(a), sum(length(filler)) FROM long"
    locked = "SELECT sum(locked)::bigint FROM pg_stat_lookahead_io"
    with connect(tables) as connection:
        scanning(connection, enabled=False)
        settings(connection, **{**PARALLEL, "max_parallel_workers_per_gather": processes - 1})
        without = rows(connection, query)
        switch(connection, on=True)
        settle(connection)
        before = read_by_workers(connection), value(connection, locked)
        connection.execute("BEGIN")
        cold(connection, "long")  # rewrites it
        with gained(connection) as change:
            assert rows(connection, query) == without
        assert change.blocks_issued > MIN_BLOCKS / 2
        connection.execute("COMMIT")
        assert (read_by_workers(connection), value(connection, locked)) == before


def test_temporary_table(tables: Cluster) -> None:
    """Its buffers are nobody else's."""
    with connect(tables) as connection:
        scanning(connection, temp_buffers=100)
        connection.execute(
            "CREATE TEMP TABLE own WITH (fillfactor = 10) AS SELECT id, a, filler FROM long"
        )
        expected = rows(connection, "SELECT id, a, filler FROM long")
        with gained(connection) as change:
            assert rows(connection, "SELECT id, a, filler FROM own") == expected
        assert change.scans == change.blocks_issued == 0


LEFT_ALONE = {
    "sample": (SCAN + " TABLESAMPLE SYSTEM (50)", {}),
    "bernoulli": (SCAN + " TABLESAMPLE BERNOULLI (50)", {}),
    "switched_off": (SCAN, {"pg_lookahead__seqscan": "off"}),
    "disabled": (SCAN, {"pg_lookahead__enabled": "off"}),
    "method_none": (SCAN, {"pg_lookahead__method": "none"}),
    "small": (SCAN, {"pg_lookahead__min_table_size": "1GB"}),
    "serializable": (SCAN, {"default_transaction_isolation": "serializable"}),
    "catalog": ("SELECT loid FROM pg_largeobject", {}),
}


@pytest.mark.parametrize("name", LEFT_ALONE)
def test_left_alone(tables: Cluster, name: str) -> None:
    query, more = LEFT_ALONE[name]
    with connect(tables) as connection:
        scanning(connection)
        settings(connection, **more)
        cold(connection, "long")
        if name == "catalog":
            rows(
                connection,
                "SELECT lo_from_bytea(0, (SELECT decode(string_agg(md5(g::text || n), ''), 'hex')"
                " FROM generate_series(1, 9000) g)) FROM generate_series(1, 80) n",
            )
            assert blocks_of(connection, "pg_largeobject") > MIN_BLOCKS
        with gained(connection) as change:
            assert rows(connection, query)
        assert change.blocks_issued == change.scans == 0


def test_backward(tables: Cluster) -> None:
    """On the way back nothing is asked for, though most has to be read again."""
    with connect(tables) as connection, connect(tables) as other:
        scanning(connection)
        expected = rows(connection, SCAN)
        cold(connection, "long")
        connection.execute("BEGIN")
        connection.execute(f"DECLARE c SCROLL CURSOR FOR {SCAN}")
        before = asked_of_workers(other)
        connection.execute("MOVE FORWARD ALL FROM c")
        between = asked_of_workers(other)
        assert between > before
        assert rows(connection, "FETCH BACKWARD ALL FROM c") == expected[::-1]
        assert asked_of_workers(other) == between
        connection.execute("COMMIT")


def test_a_scan_that_does_not_wait(tables: Cluster) -> None:
    """With the default of start_after a scan of the page cache hardly waits."""
    with connect(tables) as connection:
        scanning(connection, pg_lookahead__start_after=8)
        rows(connection, SCAN)
        with gained(connection) as change:
            rows(connection, f"{SCAN} LIMIT 60")
        assert change.scans == 0


@pytest.mark.usefixtures("of_18")
def test_18_is_left_alone(tables: Cluster) -> None:
    with connect(tables) as connection:
        scanning(connection, "auto")
        cold(connection, "long")
        with gained(connection) as change:
            assert rows(connection, SCAN)
        assert change.scans == change.blocks_issued == 0
