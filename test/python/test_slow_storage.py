"""With the default settings, on storage that takes a millisecond for a read, or that fails.

Elsewhere look-ahead is made to start with the first row.  Here nothing of it is
set: it has to see by itself that a scan waits, and that one does not.
"""

from __future__ import annotations

import contextlib
import mmap
import os
import random
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import psycopg
import pytest
from lookahead.cluster import Cluster
from lookahead.servers import Server

from conftest import NewCluster
from seqscan_support import need_followed_scans
from support import (
    INDEX_SCANS,
    SEQUENTIAL_SCANS,
    Connection,
    LogWatch,
    cached_pages,
    connect,
    evict_tablespaces,
    gained,
    look_ahead_of,
    need_extensions,
    once,
    plan_nodes,
    require_node,
    rows,
    script,
    session,
    settings,
    sleeps_of,
    slow_tablespace,
    until,
    until_served,
    value,
)
from test_scroll import evict

BLOCK = 8192
ROWS = 6000

# A row for each block, in no order of the index; a leaf page has 15 keys.
SETUP = f"""
CREATE TABLE far (a int, f text) WITH (autovacuum_enabled = off) TABLESPACE slow;
ALTER TABLE far ALTER f SET STORAGE plain;
INSERT INTO far SELECT i, repeat('x', 5000) FROM generate_series(1, {ROWS}) i ORDER BY md5(i::text);
CREATE INDEX far_a ON far (a) TABLESPACE slow;
CREATE TABLE near (LIKE far) WITH (autovacuum_enabled = off) TABLESPACE slow;
ALTER TABLE near ALTER f SET STORAGE plain;
INSERT INTO near SELECT i, repeat('x', 5000) FROM generate_series(1, 600) i
 ORDER BY i + i * 7919 % 71;
CREATE INDEX near_a ON near (a) TABLESPACE slow;
CREATE TABLE ordered (LIKE far) WITH (autovacuum_enabled = off) TABLESPACE slow;
ALTER TABLE ordered ALTER f SET STORAGE plain;
INSERT INTO ordered SELECT i, repeat('x', 5000) FROM generate_series(1, 600) i;
CREATE INDEX ordered_a ON ordered (a) TABLESPACE slow;
CREATE TABLE keys (k text COLLATE "C") WITH (autovacuum_enabled = off) TABLESPACE slow;
INSERT INTO keys SELECT lpad(i::text, 500, '0') FROM generate_series(1, {ROWS}) i;
CREATE INDEX keys_k ON keys (k) TABLESPACE slow;
VACUUM (FREEZE, ANALYZE) far;
VACUUM (FREEZE, ANALYZE) near;
VACUUM (FREEZE, ANALYZE) ordered;
VACUUM (FREEZE, ANALYZE) keys;
CREATE TABLE few (b int) TABLESPACE slow;
INSERT INTO few SELECT i FROM generate_series(1, 100) i;
VACUUM (FREEZE, ANALYZE) few
"""

# For one test, a row for each block, in the order of the index.
LINE = f"""
CREATE TABLE line (LIKE far) WITH (autovacuum_enabled = off) TABLESPACE slow;
ALTER TABLE line ALTER f SET STORAGE plain;
INSERT INTO line SELECT i, repeat('x', 5000) FROM generate_series(1, {ROWS}) i;
CREATE INDEX line_a ON line (a);
VACUUM (FREEZE, ANALYZE) line
"""

BITMAP_SCANS = {**INDEX_SCANS, "enable_bitmapscan": "on", "enable_indexscan": "off"}

# name: (settings, node, index, query, answer)
SCANS = {
    "index": (
        {**INDEX_SCANS, "enable_indexonlyscan": "off"}, "Index Scan", "far_a",
        "SELECT count(f) FROM (SELECT f FROM far ORDER BY a OFFSET 0) s", ROWS,
    ),
    "index_only_backward": (
        INDEX_SCANS, "Index Only Scan", "keys_k",
        "SELECT count(k) FROM (SELECT k FROM keys ORDER BY k DESC OFFSET 0) s", ROWS,
    ),
    "bitmap": (
        BITMAP_SCANS, "Bitmap Heap Scan", None,
        "SELECT count(f) FROM far WHERE a % 3 < 9 AND a < 3001", 3000,
    ),
    "sequential": (
        SEQUENTIAL_SCANS, "Seq Scan", None, "SELECT count(f) FROM far", ROWS,
    ),
}  # fmt: skip


@pytest.fixture(scope="module")
def slow(own_cluster: NewCluster, server: Server) -> Iterator[Cluster]:
    """A server on which nothing of ours is set, but how small a table may be."""
    cluster = own_cluster(
        {
            "pg_lookahead.start_after": "8",
            "pg_lookahead.min_table_size": "8MB",
            # All of `far`, also by sequential scans: these use a ring from a quarter on.
            "shared_buffers": "256MB",
        }
    )
    with slow_tablespace(cluster, read_us=1000, failing_reads=cluster.dir / "failing"):
        with connect(cluster) as connection:
            script(connection, SETUP)
        yield cluster


@pytest.fixture
def failing(slow: Cluster) -> Iterator[Path]:
    """Reads fail while this file is there."""
    path = slow.dir / "failing"
    yield path
    path.unlink(missing_ok=True)


def make_cold(cluster: Cluster) -> None:
    """Empty shared buffers, and the kernel's page cache of the slow storage."""
    cluster.restart()
    evict_tablespaces(cluster)


def scanning(connection: Connection, server: Server, name: str) -> tuple[str, int]:
    """Have a session make a scan; return its query and the answer."""
    planner, node, index, query, expected = SCANS[name]
    if server.major < 18:
        until_served(connection)
    settings(connection, **planner)
    # The catalogs, the service's files: what would wait the first time.
    assert rows(connection, "SELECT count(*) FROM few") == [(100,)]
    require_node(connection, query, node, index)
    return query, expected


def pages_cached(cluster: Cluster, connection: Connection) -> int:
    """Return how many pages of the tables and indexes on the slow storage the kernel has."""
    paths = rows(
        connection,
        "SELECT pg_relation_filepath(c.oid) FROM pg_class c JOIN pg_tablespace t"
        " ON t.oid = reltablespace AND spcname = 'slow' WHERE relkind IN ('r', 'i')",
    )
    files = [cluster.data / path for (path,) in paths]
    return sum(sum(cached_pages(file)) for file in files if file.stat().st_size > 0)


def need(server: Server, name: str) -> None:
    if name == "sequential":
        need_followed_scans(server)


@pytest.mark.parametrize("name", SCANS)
def test_starts_by_itself(slow: Cluster, server: Server, name: str) -> None:
    need(server, name)
    table = "keys_k" if name == "index_only_backward" else "far"
    # On a busy machine the scan may at first wait for a processor more than for its blocks.
    for _ in range(5):
        make_cold(slow)
        with LogWatch(slow), connect(slow) as connection:
            query, expected = scanning(connection, server, name)
            size = value(connection, "SELECT pg_relation_size(%s::regclass) / 8192", (table,))
            with gained(connection) as change:
                assert value(connection, query) == expected
            assert not change.errors

            # Now all is in shared buffers, where nothing waits.
            with gained(connection) as again:
                assert value(connection, query) == expected
            assert again.blocks_issued == 0
        if change.blocks_used > size / 3:
            break
    assert change.scans >= 1
    assert change.blocks_used > size / 3
    assert change.blocks_wasted <= size / 50


# What counts the waits of a scan, and what is set for it; 0 has a sequential scan begin at once.
COUNTED: dict[str, tuple[str, dict[str, object]]] = {
    "index": ("far", {"pg_lookahead__leafscan": "off"}),
    "index_only_backward": ("keys_k", {}),
    # As far ahead as it may otherwise be nothing is waited for after the first windows.
    "bitmap": ("far", {"pg_lookahead__leafscan": "off", "pg_lookahead__max_distance": 16}),
    # Every block is the scan's own to read, then; with workers some are and some are not.
    "sequential": ("far", {"pg_lookahead__method": "advice", "pg_lookahead__start_after": 0}),
}

# How far a scan looks ahead that has just begun, and a sequential one.
FIRST_DISTANCE = 16
FIRST_FRONTIER = 256


@pytest.mark.parametrize("name", SCANS)
def test_waits_are_counted(slow: Cluster, server: Server, name: str) -> None:
    """What is asked for at first comes too late: that is counted, and the depth grows by it.

    The same in EXPLAIN, in the view and of the session; and none where nothing is read.
    """
    need(server, name)
    relation, more = COUNTED[name]
    in_view = (
        "SELECT waits, depth_max, windows, pg_relation_size(relid) / 8192"
        " FROM pg_stat_lookahead WHERE relid = %s::regclass"
    )
    # On a busy machine the scan may be so late that what was asked for is there.
    for _ in range(3):
        make_cold(slow)
        with LogWatch(slow), connect(slow) as connection:
            query, _ = scanning(connection, server, name)
            settings(connection, **more)
            connection.execute("SELECT pg_stat_lookahead_reset()")
            with gained(connection) as change:
                look_ahead = look_ahead_of(connection, query)
            # Nor need it have waited at all.
            if change.scans == 0:
                continue
            [shown] = look_ahead
            [(waits, depth, windows, size)] = connection.execute(in_view, (relation,)).fetchall()
            assert waits == shown["Waits"] == change.waits
            assert depth == shown["Depth Reached"] == session(connection).depth_max
        # A row is on a block of its own.  Some scans look more rarely; with asynchronous I/O a
        # bitmap heap scan does so when it begins the rest of a window, too.
        most = {"sequential": size / 16}
        if server.major < 18:
            most["bitmap"] = windows + 1
        assert waits <= most.get(name, size)
        if waits > 0:
            break
    assert change.scans > 0
    assert waits > 0
    assert depth > (FIRST_FRONTIER if name == "sequential" else FIRST_DISTANCE)

    # On a busy machine something else may have to be waited for.
    for _ in range(3):
        with connect(slow) as connection:
            scanning(connection, server, name)
            settings(connection, **{**more, "pg_lookahead__start_after": 0})
            with gained(connection) as change:
                again = look_ahead_of(connection, query)
            assert again
            assert change.scans > 0
            if change.waits == 0:
                break
    assert change.waits == sum(scan["Waits"] for scan in again) == 0


def test_begins_again(slow: Cluster, server: Server) -> None:
    """Look-ahead rests where all is in shared buffers, and is back where the scan waits again."""
    first, last = 1001, 4000
    cached = (
        "SELECT count(f) FROM (SELECT f FROM far"
        f" WHERE a BETWEEN {first} AND {last} ORDER BY a OFFSET 0) s"
    )
    make_cold(slow)
    with LogWatch(slow), connect(slow) as connection:
        query, expected = scanning(connection, server, "index")
        assert value(connection, "SHOW pg_lookahead.start_after") == "8"
        settings(connection, pg_lookahead__leafscan="off")
        assert value(connection, cached) == last - first + 1
        evict_tablespaces(slow)
        with gained(connection) as change:
            assert value(connection, query) == expected
    assert change.scans == 1
    # It rested: only some of the blocks that were there were looked for.
    assert 0 < change.blocks_hit < (last - first) / 3
    # Of the others, nearly all were read ahead; after such a rest a call in 256 is looked at.
    assert change.blocks_used > (first - 1) + (ROWS - last) - 500


def test_mostly_cached(slow: Cluster, server: Server) -> None:
    """Look-ahead goes on where one block of fifty has to be read, and most windows have none."""
    cold = random.Random(1).sample(range(1, ROWS + 1), ROWS // 50)
    with connect(slow) as other:
        places = value(other, "SELECT array_agg(ctid::text) FROM far WHERE a <> ALL(%s)", (cold,))
    make_cold(slow)
    with LogWatch(slow), connect(slow) as connection, connect(slow) as other:
        query, expected = scanning(connection, server, "index")
        settings(connection, pg_lookahead__leafscan="off")
        read = "SELECT count(f) FROM far WHERE ctid = ANY(%s::tid[])"
        settings(other, enable_seqscan="off")
        assert value(other, read, (places,)) == ROWS - len(cold)
        # What the kernel has read ahead for that.
        evict_tablespaces(slow)
        with gained(connection) as change:
            assert value(connection, query) == expected
    # It begins after two waits that are not far from each other.
    assert change.blocks_used > len(cold) * 2 / 3, change
    assert change.blocks_issued <= len(cold), change


# Of `far`, the rows of a range.
RANGE = "SELECT count(f) FROM (SELECT f FROM far WHERE a BETWEEN {} AND {} ORDER BY a OFFSET 0) s"


def warm(file: Path, blocks: list[int]) -> None:
    """Have the kernel read some blocks of a file, and no others."""
    with file.open("rb", buffering=0) as opened:
        os.posix_fadvise(opened.fileno(), 0, 0, os.POSIX_FADV_RANDOM)
        for block in blocks:
            assert len(os.pread(opened.fileno(), BLOCK, block * BLOCK)) == BLOCK


@pytest.mark.parametrize("leafscan", ["off", "on"])
def test_begins_after_scans_that_did_not_wait(slow: Cluster, server: Server, leafscan: str) -> None:
    """After scans from the page cache one looks rarely early; not once one has waited."""
    # The kernel may take a page out of its cache at any time (DAMON), and the scan waits.
    assert any(begins_after_scans(slow, server, leafscan) for _ in range(5))


def begins_after_scans(slow: Cluster, server: Server, leafscan: str) -> bool:
    """Make the scans of the test; say if none has waited whose blocks are to be cached."""
    size = 100
    make_cold(slow)
    with LogWatch(slow), connect(slow) as connection:
        query, expected = scanning(connection, server, "index")
        assert value(connection, query) == expected
        cached = pages_cached(slow, connection)
        places = rows(connection, "SELECT (ctid::text::point)[0]::int FROM far ORDER BY a")
        blocks = [block for (block,) in places]
        file = slow.data / value(connection, "SELECT pg_relation_filepath('far')")
        index = slow.data / value(connection, "SELECT pg_relation_filepath('far_a')")
    # The kernel keeps what shared buffers lose.
    slow.restart()
    with LogWatch(slow), connect(slow) as connection, connect(slow) as other:
        scanning(connection, server, "index")
        settings(connection, pg_lookahead__leafscan=leafscan)
        if pages_cached(slow, other) < cached * 0.999:
            pytest.skip("the page cache keeps nothing")

        pid = connection.info.backend_pid
        slept = 0

        def used(first: int, last: int) -> int:
            nonlocal slept
            with gained(connection) as change:
                slept = sleeps_of(pid)
                assert value(connection, RANGE.format(first, last)) == last - first + 1
                slept = sleeps_of(pid) - slept
            return change.blocks_used

        def do_not_wait(first: int, last: int) -> bool:
            """Of a range all blocks are there."""
            for at in range(first, last, size):
                blocks_used = used(at, at + size - 1)
                # Once for the client; the first time the two files are opened, too.
                if slept > (3 if at == 1 else 1):
                    return False
                assert blocks_used == 0
            return True

        def used_after_nine(first: int, last: int) -> int:
            """Of a range the first nine blocks are there."""
            warm(file, blocks[first - 1 : first + 8])
            return used(first, last)

        if not do_not_wait(1, 2000):
            return False
        evict_tablespaces(slow)
        # After eight reads as many calls are not looked at.
        assert used_after_nine(2001, 2060) > 60 - 9 - 8 - 8
        # That scan has waited: all are looked at.
        assert used_after_nine(2101, 2140) > 40 - 9 - 8

        warm(file, blocks[3000:3500])
        # A wait for a page of the index, and one for something else, would be enough.
        warm(index, list(range(index.stat().st_size // BLOCK)))
        if not do_not_wait(3001, 3500):
            return False
        # All that waits is in those calls, but it is not forgotten.
        assert used_after_nine(2201, 2216) == 0
        assert used_after_nine(2301, 2340) > 40 - 9 - 8
    return True


# As four sessions have filled it that took turns: some sixty rows on each page.
TO_AND_FRO = """
CREATE TABLE fro (a int, f text) WITH (autovacuum_enabled = off) TABLESPACE slow;
INSERT INTO fro SELECT i, repeat('x', 80) FROM generate_series(1, 120000) i
 ORDER BY i / 240 * 4 + i % 4;
CREATE INDEX fro_a ON fro (a);
VACUUM (FREEZE, ANALYZE) fro
"""


def test_windows_of_a_scan_that_goes_to_and_fro(slow: Cluster, server: Server) -> None:
    """Its blocks fill the queue many times over, but a window has more than one of them."""
    query = "SELECT count(f) FROM (SELECT f FROM fro ORDER BY a DESC OFFSET 0) s"
    with connect(slow) as connection:
        once(connection, "fro", TO_AND_FRO)
    make_cold(slow)
    with LogWatch(slow), connect(slow) as connection:
        scanning(connection, server, "index")
        settings(connection, pg_lookahead__max_distance=64)
        require_node(connection, query, "Index Scan", "fro_a")
        with gained(connection) as change:
            assert value(connection, query) == 120000
        blocks = value(connection, "SELECT pg_relation_size('fro') / 8192")
    assert change.blocks_used > blocks * 0.9, change
    assert change.blocks_wasted == 0, change
    assert change.windows * 3 < change.blocks_issued, change


# A row on each page, and nothing is all-visible; some forty entries on a page of the index.  From
# key 120 on there are forty dead and twenty live ones by turns.
DYING = """
CREATE TABLE dying (a int, filler text) WITH (autovacuum_enabled = off) TABLESPACE slow;
ALTER TABLE dying ALTER filler SET STORAGE plain;
INSERT INTO dying SELECT i, repeat('x', 5000) FROM generate_series(1, 3100) i
 ORDER BY md5(i::text);
CREATE INDEX dying_a ON dying (a) WITH (fillfactor = 10);
ANALYZE dying;
DELETE FROM dying WHERE a > 100 AND a % 60 < 40
"""


def test_entries_that_die_in_front_of_the_scan(slow: Cluster, server: Server) -> None:
    """An index-only scan that comes to other blocks than those asked for is found again."""
    if server.major < 17:
        pytest.skip("pg_buffercache_evict() is of 17 and later")
    need_extensions(slow, "pg_buffercache")
    query = "SELECT a FROM dying WHERE a > 0 ORDER BY a"
    with connect(slow) as connection:
        script(connection, DYING)
    make_cold(slow)
    with LogWatch(slow), connect(slow) as connection, connect(slow) as other:
        scanning(connection, server, "index_only_backward")
        for client in (connection, other):
            settings(client, **INDEX_SCANS)
        settings(connection, pg_lookahead__leafscan="off", pg_lookahead__max_distance=64)
        require_node(connection, query, "Index Only Scan", "dying_a")
        with gained(connection) as change, connection.transaction():
            connection.execute(f"DECLARE c CURSOR FOR {query}")
            # Those that it has asked for are on pages of the index that it has not read.
            assert rows(connection, "FETCH 95 FROM c") == [(a,) for a in range(1, 96)]
            # Says of all dead entries of the index that they are.
            settings(other, pg_lookahead__enabled="off")
            assert value(other, "SELECT count(*) FROM dying WHERE a > 0") == 1100
            evict(other, "dying")
            evict_tablespaces(slow)
            found = rows(connection, "FETCH ALL FROM c")
        assert found[0] == (96,)
        assert len(found) == 1005
        connection.execute("DROP TABLE dying")
    assert change.blocks_used > 600, change


def test_turns(slow: Cluster, server: Server) -> None:
    """A cursor that turns has to wait again, and looks no further ahead than at first."""
    if server.major < 17:
        pytest.skip("pg_buffercache_evict() is of 17 and later")
    need_extensions(slow, "pg_buffercache")
    if mmap.PAGESIZE > BLOCK:
        pytest.skip("what is in the page cache tells of several blocks at once")
    back = 10
    make_cold(slow)
    with LogWatch(slow), connect(slow) as connection, connect(slow) as other:
        scanning(connection, server, "index")
        settings(connection, pg_lookahead__leafscan="off")
        query = "SELECT a, length(f) FROM far ORDER BY a"
        require_node(connection, query, "Index Scan", "far_a")
        with connection.transaction():
            connection.execute(f"DECLARE c SCROLL CURSOR FOR {query}")
            assert rows(connection, "FETCH 3000 FROM c")[-1] == (3000, 5000)
            # The blocks that it has read are not in shared buffers any more.
            evict(other, "far")
            evict_tablespaces(slow)
            before = pages_cached(slow, other)
            found = rows(connection, f"FETCH BACKWARD {back} FROM c")
            connection.execute("CLOSE c")
            read = (pages_cached(slow, other) - before) * mmap.PAGESIZE // BLOCK
        assert found == [(2999 - i, 5000) for i in range(back)]
        assert session(connection).depth_max > FIRST_DISTANCE
        # More than it came to, and not by far.
        assert back < read <= back + 2 * FIRST_DISTANCE


def test_turns_before_it_begins(slow: Cluster, server: Server) -> None:
    """What the scan has waited for before it turned does not count."""
    if server.major < 17:
        pytest.skip("pg_buffercache_evict() is of 17 and later")
    need_extensions(slow, "pg_buffercache")
    make_cold(slow)
    with LogWatch(slow), connect(slow) as connection, connect(slow) as other:
        scanning(connection, server, "index")
        query = "SELECT a, length(f) FROM far ORDER BY a"
        require_node(connection, query, "Index Scan", "far_a")
        assert value(connection, "SHOW pg_lookahead.start_after") == "8"
        with connection.transaction():
            connection.execute(f"DECLARE c SCROLL CURSOR FOR {query}")
            found = rows(connection, "FETCH 8 FROM c")
            evict(other, "far")
            evict_tablespaces(slow)
            found += rows(connection, "FETCH BACKWARD 2 FROM c")
            connection.execute("CLOSE c")
        assert found == [(a, 5000) for a in (1, 2, 3, 4, 5, 6, 7, 8, 7, 6)]
        assert session(connection).scans == 0


# Of an index of a column; and of one whose comparisons look up those of the elements.
LOCKED = {
    "column": ("far_a", "SELECT a, length(f) FROM far ORDER BY a"),
    "array": ("far_array", "SELECT a, length(f) FROM far WHERE ARRAY[a] > ARRAY[-1]"),
}


@pytest.mark.parametrize("name", LOCKED)
def test_locked_catalogs(slow: Cluster, server: Server, name: str) -> None:
    """A scan begins to look ahead while nobody else can use the catalogs of its functions."""
    index, query = LOCKED[name]
    with connect(slow) as other:
        other.execute("CREATE INDEX IF NOT EXISTS far_array ON far ((ARRAY[a]))")
    make_cold(slow)
    with LogWatch(slow), connect(slow) as connection, connect(slow) as other:
        scanning(connection, server, "index")
        settings(connection, lock_timeout="30s")
        require_node(connection, query, "Index Scan", index)
        # Look-ahead is to begin in the second FETCH, and for the first time in this session.
        connection.execute("BEGIN")
        connection.execute(f"DECLARE c CURSOR FOR {query}")
        found = rows(connection, "FETCH 2 FROM c")
        other.execute("BEGIN")
        other.execute(
            "LOCK TABLE pg_proc, pg_type, pg_opclass, pg_amop, pg_amproc, pg_operator"
            " IN ACCESS EXCLUSIVE MODE"
        )
        try:
            found += rows(connection, "FETCH ALL FROM c")
        finally:
            other.execute("ROLLBACK")
        connection.execute("COMMIT")
        assert session(connection).blocks_issued > ROWS / 3
        assert found == [(i, 5000) for i in range(1, ROWS + 1)]
    with connect(slow) as other:
        other.execute("DROP INDEX far_array")


# Of each sixteenth block, so that the kernel reads none ahead, there is a row that the index has.
# Most of these are dead, and nobody has said so in the visibility map.
GAP = """
CREATE TABLE gap (a int, k int, f text) WITH (autovacuum_enabled = off) TABLESPACE slow;
ALTER TABLE gap ALTER f SET STORAGE plain;
INSERT INTO gap SELECT i, (i % 16 = 15)::int, repeat('x', 5000) FROM generate_series(0, 15999) i;
CREATE INDEX gap_k ON gap (k);
VACUUM ANALYZE gap;
DELETE FROM gap WHERE k = 1 AND a BETWEEN 4800 AND 15800
"""


@pytest.mark.parametrize("method", ["advice", "worker"])
def test_bitmap_scan_without_rows(slow: Cluster, server: Server, method: str) -> None:
    """Where no row is seen for long, the server's own prefetching goes on."""
    if server.major >= 18:
        pytest.skip("18 has a stream, which we do not stop")
    query = "SELECT count(f) FROM gap WHERE k = 1"
    slept = {}
    with connect(slow) as connection:
        once(connection, "gap", GAP)
        # Marks what is dead; a scan of the index would take it out of that, too.
        connection.execute("SELECT count(f) FROM gap")
    # 687 blocks have no row; of the others some are waited for, too.  The server alone is a
    # hundred ahead, which is more than a quarter of what we are at this distance.
    most = {False: 200, True: 450}
    for on in (False, True):
        # On a busy machine the storage may be late for a while.
        for _ in range(5):
            make_cold(slow)
            with connect(slow) as connection:
                if on:
                    until_served(connection)
                settings(
                    connection,
                    **BITMAP_SCANS,
                    effective_io_concurrency=100,
                    pg_lookahead__bitmapscan=on,
                    pg_lookahead__method=method,
                    pg_lookahead__max_distance=16,
                    # The server is soon so far ahead that the scan hardly waits.
                    pg_lookahead__start_after=0,
                )
                require_node(connection, query, "Bitmap Heap Scan")
                rows(connection, "SELECT count(*) FROM few")
                before = sleeps_of(connection.info.backend_pid)
                assert value(connection, query) == 313
                slept[on] = sleeps_of(connection.info.backend_pid) - before
                if on:
                    assert session(connection).blocks_issued > 100
            if slept[on] < most[on]:
                break
        assert slept[on] < most[on], slept


# A function may come for the rows of a cursor one by one, or, in a loop, some at a time.
ONE_BY_ONE = """
CREATE FUNCTION one_by_one(query text) RETURNS int LANGUAGE plpgsql AS $$
DECLARE c refcursor; r record; n int := 0;
BEGIN
    OPEN c FOR EXECUTE query;
    LOOP
        FETCH c INTO r;
        EXIT WHEN NOT FOUND;
        n := n + 1;
    END LOOP;
    RETURN n;
END $$;
CREATE FUNCTION in_a_loop(query text) RETURNS int LANGUAGE plpgsql AS $$
DECLARE r record; n int := 0;
BEGIN
    FOR r IN EXECUTE query LOOP
        n := n + 1;
    END LOOP;
    RETURN n;
END $$
"""


def fetched(connection: Connection, query: str, how: str) -> int:
    """Return how many rows come, in one of the ways above."""
    if how != "client":
        function = "one_by_one" if how == "function" else "in_a_loop"
        return int(value(connection, f"SELECT {function}(%s)", (query,)))
    found = 0
    with connection.transaction():
        connection.execute(f"DECLARE c CURSOR FOR {query}")
        while some := rows(connection, "FETCH 20 FROM c"):
            found += len(some)
    return found


@pytest.mark.parametrize("how", ["client", "function", "loop"])
@pytest.mark.parametrize("name", ["sequential", "in_order", "bitmap"])
def test_cursors(slow: Cluster, server: Server, name: str, how: str) -> None:
    """What is measured by the clock before look-ahead begins goes on from one FETCH to the next."""
    need(server, name)
    if name == "bitmap" and (server.major < 18 or how == "client"):
        pytest.skip("nothing is measured, or the server keeps ahead of such a client")
    with connect(slow) as connection:
        if value(connection, "SELECT to_regproc('one_by_one')") is None:
            connection.execute(ONE_BY_ONE)
        once(connection, "line", LINE)
    planner, node, table, query = {
        "sequential": (SEQUENTIAL_SCANS, "Seq Scan", "far", "SELECT a, f FROM far"),
        "in_order": (INDEX_SCANS, "Index Scan", "line", "SELECT a, f FROM line ORDER BY a"),
        "bitmap": (BITMAP_SCANS, "Bitmap Heap Scan", "far", "SELECT a, f FROM far WHERE a > 0"),
    }[name]
    # In the order of the table look-ahead is tried, and may lose against the kernel's.
    least = 0 if name == "in_order" else ROWS / 4
    counted = "SELECT coalesce(sum(blocks_issued), 0) FROM pg_stat_lookahead WHERE relname = %s"
    # On a busy machine the scan may wait for a processor more than for its blocks.
    for _ in range(8):
        make_cold(slow)
        with LogWatch(slow), connect(slow) as connection:
            if server.major < 18:
                until_served(connection)
            settings(connection, **planner, cursor_tuple_fraction=1)
            assert rows(connection, "SELECT count(*) FROM few") == [(100,)]
            require_node(connection, query, node)
            with gained(connection) as change:
                assert fetched(connection, query, how) == ROWS
            asked = value(connection, counted, (table,))
            assert not change.errors
        if asked > least:
            break
    assert asked > least


@pytest.mark.parametrize("cached, step", [(0, 2), (200, 30)])
def test_bitmap_in_small_steps(slow: Cluster, server: Server, cached: int, step: int) -> None:
    """A client that comes more often than the scan moves: that it waits is seen all the same."""
    if server.major >= 18:
        pytest.skip("the server keeps ahead of such a client")
    size = 1000
    query = f"SELECT a FROM far, generate_series(1, 3) WHERE a % 16 < 16 AND a > {ROWS - size}"
    with connect(slow) as connection:
        file = slow.data / value(connection, "SELECT pg_relation_filepath('far')")
        places = rows(
            connection,
            f"SELECT (ctid::text::point)[0]::int FROM far WHERE a > {ROWS - size} ORDER BY 1",
        )
    # A client may be so late, on a busy machine, that the next block is there.
    for _ in range(8):
        make_cold(slow)
        # The kernel has the blocks of the first steps, which do not wait.
        warm(file, [block for (block,) in places[:cached]])
        with LogWatch(slow), connect(slow) as connection:
            until_served(connection)
            settings(connection, **BITMAP_SCANS, cursor_tuple_fraction=1)
            assert rows(connection, "SELECT count(*) FROM few") == [(100,)]
            require_node(connection, query, "Bitmap Heap Scan")
            found = 0
            with gained(connection) as change, connection.transaction():
                connection.execute(f"DECLARE c CURSOR FOR {query}")
                while some := rows(connection, f"FETCH {step} FROM c"):
                    found += len(some)
                    # The block that the server has asked for itself is there when it goes on.
                    time.sleep(0.002 if cached else 0)
            assert found == 3 * size
        if change.blocks_used > (size - cached) / 2:
            break
    assert change.blocks_used > (size - cached) / 2, change


# Rounds of a bitmap heap scan, each of so many blocks.
ROUND = 25
ROUNDS = f"""
SELECT count(f) FROM generate_series(0, {ROWS // ROUND - 1}) g,
    LATERAL (SELECT f FROM far WHERE a BETWEEN g * {ROUND} + 1 AND (g + 1) * {ROUND} OFFSET 0) s
"""


@pytest.mark.parametrize("cached", [0, ROWS // 10])
def test_bitmap_rounds(slow: Cluster, server: Server, cached: int) -> None:
    """Of a few blocks each, where the server reads ahead itself: waits are seen all the same."""
    with connect(slow) as connection:
        path = slow.data / value(connection, "SELECT pg_relation_filepath('far')")
        first = rows(connection, f"SELECT (ctid::text::point)[0]::int FROM far WHERE a <= {cached}")
    for _ in range(8):
        make_cold(slow)
        # The kernel has the blocks of the first rounds.
        with path.open("rb", buffering=0) as file:
            os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_RANDOM)
            for (block,) in first:
                os.pread(file.fileno(), 8192, block * 8192)
        with LogWatch(slow), connect(slow) as connection:
            if server.major < 18:
                until_served(connection)
            settings(connection, **BITMAP_SCANS)
            assert rows(connection, "SELECT count(*) FROM few") == [(100,)]
            require_node(connection, ROUNDS, "Bitmap Heap Scan")
            with gained(connection) as change:
                assert value(connection, ROUNDS) == ROWS
            assert not change.errors
        if change.windows >= ROWS / ROUND / 10:
            break
    # Of so few blocks the stream of 18 is in front of all when look-ahead begins.
    assert change.windows >= ROWS / ROUND / 10


def test_bitmap_scan_of_cached_blocks_but_few(slow: Cluster, server: Server) -> None:
    """Who waits for a block now and then has no use for look-ahead."""
    need_extensions(slow, "pg_prewarm")
    make_cold(slow)
    with LogWatch(slow), connect(slow) as connection:
        query, expected = scanning(connection, server, "bitmap")
        connection.execute(
            "SELECT pg_prewarm('far', 'buffer', 'main', b + 1, least(b + 399, size - 1))"
            " FROM (SELECT pg_relation_size('far') / 8192) s (size),"
            " generate_series(0, size - 2, 400) b"
        )
        evict_tablespaces(slow)
        with gained(connection) as change:
            assert value(connection, query) == expected
        assert change.windows == 0


def test_bitmap_scan_that_begins_cached(slow: Cluster, server: Server) -> None:
    """The kernel has the first blocks, and no others: what comes then is seen waiting."""
    for _ in range(8):
        make_cold(slow)
        with LogWatch(slow), connect(slow) as connection:
            query, expected = scanning(connection, server, "bitmap")
            path = slow.data / value(connection, "SELECT pg_relation_filepath('far')")
            with path.open("rb") as file:
                file.read(ROWS // 8 * 8192)
            with gained(connection) as change:
                assert value(connection, query) == expected
            assert not change.errors
        if change.blocks_used >= expected / 2:
            break
    assert change.blocks_used >= expected / 2


@pytest.mark.parametrize("direction", ["ASC", "DESC"])
def test_short_scan_to_and_fro(slow: Cluster, direction: str) -> None:
    """Near the table's order the kernel may read ahead; it does not, and that is seen early."""
    query = (
        "SELECT count(f), max(a) FROM"
        f" (SELECT a, f FROM near WHERE a BETWEEN 101 AND 400 ORDER BY a {direction} OFFSET 0) s"
    )
    make_cold(slow)
    with LogWatch(slow), connect(slow) as connection:
        settings(connection, **INDEX_SCANS)
        assert rows(connection, "SELECT count(*) FROM few") == [(100,)]
        require_node(connection, query, "Index Scan", "near_a")
        with gained(connection) as change:
            assert rows(connection, query) == [(300, 400)]
        assert change.blocks_used > 200
        assert change.blocks_wasted == 0
        assert not change.errors


def test_all_that_is_advised_is_read(slow: Cluster, server: Server) -> None:
    """The kernel takes no more of one piece of advice than what a device reads at a time."""
    need_followed_scans(server)
    make_cold(slow)
    with LogWatch(slow), connect(slow) as connection, connection.transaction():
        settings(connection, **SEQUENTIAL_SCANS, pg_lookahead__start_after="0",
                 pg_lookahead__method="advice")  # fmt: skip
        place = slow.data / value(connection, "SELECT pg_relation_filepath('far')")
        connection.execute("DECLARE c CURSOR FOR SELECT f FROM far")
        for fetched in range(200, 2200, 100):
            rows(connection, "FETCH 100 FROM c" if fetched > 200 else "FETCH 200 FROM c")
            time.sleep(0.2)
            # Beyond what the kernel reads ahead by itself, up to where look-ahead has come.
            ahead = cached_pages(place)[2 * (fetched + 64) :]
            last = max((number for number, cached in enumerate(ahead) if cached), default=0)
            if last >= 2 * 128 and sum(ahead) > 0.95 * last:
                return
    pytest.fail(f"{sum(ahead)} pages of {last} were read")


@pytest.mark.parametrize("joined", [False, True])
def test_the_kernel_reads_ahead(slow: Cluster, joined: bool) -> None:
    """A short scan in the order of the table is left to it, whatever else the plan waits for."""
    query = (
        "SELECT count(o.f) FROM"
        " (SELECT a, f FROM ordered WHERE a BETWEEN 101 AND 400 ORDER BY a OFFSET 0) o"
    )
    if joined:
        query += " JOIN far ON far.a = o.a WHERE far.f > ''"
    make_cold(slow)
    with LogWatch(slow), connect(slow) as connection:
        settings(connection, **INDEX_SCANS, enable_hashjoin="off", enable_mergejoin="off")
        assert rows(connection, "SELECT count(*) FROM few") == [(100,)]
        require_node(connection, query, "Index Scan", "ordered_a")
        if joined:
            require_node(connection, query, "Nested Loop")
            require_node(connection, query, "Index Scan", "far_a")
        with gained(connection) as change:
            assert rows(connection, query) == [(300,)]
        assert change.blocks_issued == 0


# Rows in the order of the index, many to a page, and after them in the index rows in no order, each
# on a page of its own.  In the file those come first: the kernel is not to read them, too.
LATE_ORDERED = 110_000
LATE_SCATTERED = 1000
LATE = f"""
SET pg_lookahead.heap_extend_size = 0;
CREATE TABLE late (LIKE far) WITH (autovacuum_enabled = off) TABLESPACE slow;
ALTER TABLE late ALTER f SET STORAGE plain;
INSERT INTO late SELECT i, repeat('x', 8100)
  FROM generate_series({LATE_ORDERED} + 1, {LATE_ORDERED} + {LATE_SCATTERED}) i
 ORDER BY md5(i::text);
INSERT INTO late SELECT i, 'x' FROM generate_series(1, {LATE_ORDERED}) i;
CREATE INDEX late_a ON late (a) TABLESPACE slow;
VACUUM late
"""


@pytest.mark.parametrize("cached", [False, True])
def test_order_that_ends(slow: Cluster, cached: bool) -> None:
    """The kernel reads ahead, or all is in shared buffers, until a scout has a long way."""
    query = "SELECT count(f) FROM (SELECT f FROM late ORDER BY a OFFSET 0) s"
    with connect(slow) as connection:
        once(connection, "late", LATE)
    make_cold(slow)
    with LogWatch(slow), connect(slow) as connection:
        settings(connection, **INDEX_SCANS)
        assert rows(connection, "SELECT count(*) FROM few") == [(100,)]
        require_node(connection, query, "Index Scan", "late_a")
        if cached:
            first = f"SELECT count(f) FROM (SELECT f FROM late ORDER BY a LIMIT {LATE_ORDERED}) s"
            settings(connection, pg_lookahead__enabled="off")
            assert rows(connection, first) == [(LATE_ORDERED,)]
            [top, *_] = plan_nodes(connection, first, ", ANALYZE, BUFFERS")
            assert top["Shared Read Blocks"] == 0
            settings(connection, pg_lookahead__enabled="on")
        with gained(connection) as change:
            assert rows(connection, query) == [(LATE_ORDERED + LATE_SCATTERED,)]
        assert change.blocks_issued + change.blocks_dropped >= 0.7 * LATE_SCATTERED, change


def test_the_kernel_reads_leaf_pages_ahead(slow: Cluster) -> None:
    """Forward through an index in the order of its file that is left to it; backward it is not."""
    asked = {}
    for direction in ("ASC", "DESC"):
        query = f"SELECT count(k) FROM (SELECT k FROM keys ORDER BY k {direction} OFFSET 0) s"
        make_cold(slow)
        with LogWatch(slow), connect(slow) as connection:
            settings(connection, **INDEX_SCANS)
            assert rows(connection, "SELECT count(*) FROM few") == [(100,)]
            require_node(connection, query, "Index Only Scan", "keys_k")
            pages = value(connection, "SELECT relpages FROM pg_class WHERE relname = 'keys_k'")
            with gained(connection) as change:
                assert rows(connection, query) == [(ROWS,)]
            asked[direction] = change.blocks_issued + change.blocks_dropped
    assert asked["ASC"] < pages / 4, asked
    assert asked["DESC"] > pages * 2 / 3, asked


@pytest.mark.parametrize("name", SCANS)
def test_stays_away_where_nothing_waits(slow: Cluster, server: Server, name: str) -> None:
    """Of what is in the kernel's page cache almost nothing is asked for."""
    need(server, name)
    if name == "bitmap" and server.major >= 18:
        pytest.skip("the server's own I/O workers do the reading, and are waited for")
    judged = []
    for _ in range(8):
        with LogWatch(slow), connect(slow) as connection:
            query, expected = scanning(connection, server, name)
            value(connection, query)
            cached = pages_cached(slow, connection)
        slow.restart()
        with LogWatch(slow), connect(slow) as connection:
            query, expected = scanning(connection, server, name)
            if name == "sequential":
                # Workers would copy, if the scan computes much.
                settings(connection, pg_lookahead__method="advice")
            # A kernel may page out by itself.
            is_kept = pages_cached(slow, connection) > cached * 0.999
            with gained(connection) as change:
                assert value(connection, query) == expected
        if change.blocks_issued < ROWS / 25:
            return
        if is_kept:
            judged.append(change)
        # On a busy machine somebody may have to be waited for all the same.
        if len(judged) == 3:
            raise AssertionError(judged)
    pytest.skip("the page cache keeps nothing")


@pytest.mark.parametrize("name", SCANS)
def test_reads_fail(slow: Cluster, server: Server, failing: Path, name: str) -> None:
    """The query meets the error itself, says so, and is right as soon as reads are good again."""
    need(server, name)
    make_cold(slow)
    allowed = "could not read block|could not prefetch|Input/output error"
    with LogWatch(slow, allowed=[allowed]), connect(slow) as connection:
        query, expected = scanning(connection, server, name)
        settings(connection, pg_lookahead__start_after=0)
        failing.touch()
        with pytest.raises(psycopg.errors.IoError, match="could not read block"):
            connection.execute(query)
        failing.unlink()
        assert value(connection, query) == expected


METHODS_THAT_READ = ("worker", "aio")


@pytest.mark.parametrize("method", METHODS_THAT_READ)
def test_reads_ahead_fail(slow: Cluster, server: Server, failing: Path, method: str) -> None:
    """A row that is in shared buffers is returned, though what lies ahead cannot be read."""
    if method == "aio" and server.major < 18:
        pytest.skip("asynchronous I/O is of 18 and later")
    if method == "worker" and server.major >= 18:
        pytest.skip("18 has no I/O service unless it is asked for")
    make_cold(slow)
    first = "SELECT a FROM (SELECT a, f FROM far ORDER BY a OFFSET 0) s WHERE f <> '' LIMIT 1"
    allowed = "could not read block|Input/output error"
    with LogWatch(slow, allowed=[allowed]), connect(slow) as connection:
        scanning(connection, server, "index")
        settings(connection, pg_lookahead__enabled="off")
        assert rows(connection, first) == [(1,)]
        settings(connection, pg_lookahead__enabled="on", pg_lookahead__method=method,
                 pg_lookahead__start_after=0)  # fmt: skip
        failing.touch()
        with gained(connection) as change:
            for _ in range(5):
                assert rows(connection, first) == [(1,)]
        assert change.blocks_issued > 0
        failing.unlink()
        query, expected = SCANS["index"][3:]
        assert value(connection, query) == expected


# What waits here is work for one worker for half a minute and more.
SLOWEST_US = 500_000
SESSIONS = 8
LEAST_WAITING = 60
AT_ONCE_SECONDS = LEAST_WAITING * SLOWEST_US / 1e6 * 2 / 3
WAITING = "SELECT sum(requests - merged - dropped - done) FROM pg_stat_lookahead_io"


def test_stops_at_once(own_cluster: NewCluster) -> None:
    """A worker that has much to read, slowly, leaves it after the read it is in; so does all."""
    cluster = own_cluster({"pg_lookahead.io_workers": "1", "shared_buffers": "256MB"})
    part = ROWS // SESSIONS

    def scan(number: int) -> None:
        first = number * part + 1
        query = (
            "SELECT count(f) FROM (SELECT f FROM far"
            f" WHERE a BETWEEN {first} AND {first + part - 1} ORDER BY a OFFSET 0) s"
        )
        with contextlib.suppress(psycopg.OperationalError), connect(cluster) as connection:
            settings(connection, **INDEX_SCANS, pg_lookahead__method="worker",
                     pg_lookahead__start_after=0, pg_lookahead__leafscan="off")  # fmt: skip
            connection.execute(query)

    allowed = "terminating background worker|exited with exit code 1"
    with slow_tablespace(cluster, read_us=SLOWEST_US), LogWatch(cluster, allowed=[allowed]):
        with connect(cluster) as connection:
            script(connection, SETUP)
        make_cold(cluster)
        threads = [threading.Thread(target=scan, args=(n,)) for n in range(SESSIONS)]
        with connect(cluster) as connection:
            until_served(connection)
            for thread in threads:
                thread.start()
            until(connection, f"({WAITING}) >= {LEAST_WAITING}")
            # Alone, while what it was asked for is still wanted.
            pid = value(connection, "SELECT pid FROM pg_stat_lookahead_io")
            began = time.monotonic()
            assert value(connection, "SELECT pg_terminate_backend(%s, 60000)", (pid,))
            assert time.monotonic() - began < AT_ONCE_SECONDS
            until_served(connection)
        began = time.monotonic()
        cluster.stop("fast")
        assert time.monotonic() - began < AT_ONCE_SECONDS
        for thread in threads:
            thread.join(60)


POINTS = """
CREATE TABLE points (p point, k int) WITH (autovacuum_enabled = off);
INSERT INTO points SELECT point(i * 7919 % 3001, i * 104729 % 2003), i
  FROM generate_series(1, 2000) i;
CREATE INDEX points_p ON points USING gist (p);
VACUUM (FREEZE, ANALYZE) points
"""


def test_others_wait(slow: Cluster) -> None:
    """A search for neighbours is not made twice because the rest of the plan waits."""
    near = "SELECT p, k FROM points ORDER BY p <-> point '(0,0)' OFFSET 0"
    query = (
        "SELECT count(f) FROM (SELECT far.f FROM points JOIN far ON far.a = points.k"
        " ORDER BY points.p <-> point '(0,0)' LIMIT 300) s"
    )
    with connect(slow) as connection:
        once(connection, "points", POINTS)
    make_cold(slow)
    with LogWatch(slow), connect(slow) as connection:
        settings(connection, **INDEX_SCANS, enable_hashjoin="off", enable_mergejoin="off",
                 enable_material="off", enable_memoize="off", enable_sort="off")  # fmt: skip
        require_node(connection, query, "Index Scan", "points_p")
        require_node(connection, query, "Index Scan", "far_a")
        settings(connection, pg_lookahead__enabled="off")
        assert value(connection, f"SELECT count(*) FROM ({near}) s") == 2000
        settings(connection, pg_lookahead__enabled="on")
        assert value(connection, query) == 300
        scans = "SELECT coalesce(sum(scans), 0) FROM pg_stat_lookahead WHERE relname = 'points'"
        assert value(connection, scans) == 0
