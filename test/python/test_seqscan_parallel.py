"""Parallel sequential scans on 15 to 17: same rows, read ahead, and places are given back."""

from __future__ import annotations

from collections.abc import Iterator

import psycopg
import pytest
from lookahead.cluster import Cluster
from lookahead.servers import Server

from conftest import NewCluster
from seqscan_support import (
    METHODS,
    MIN_BLOCKS,
    PARALLEL,
    add_hole,
    asked_of_workers,
    blocks_of,
    long_table,
    need_followed_scans,
    scanning,
    switch,
)
from support import (
    Connection,
    LogWatch,
    at_work,
    cold,
    connect,
    gained,
    plan_nodes,
    require_node,
    rows,
    script,
    settings,
    until,
    until_served,
    value,
)

# Workers that are not needed any more are told so in this way.
pytestmark = pytest.mark.log_may_have('terminating background worker "parallel worker"')


@pytest.fixture
def tables(cluster: Cluster, server: Server) -> Iterator[Cluster]:
    need_followed_scans(server)
    with long_table(cluster, server):
        yield cluster


PARALLEL_QUERIES = {
    "all": "SELECT id, a, filler FROM long",
    "few": "SELECT id, filler FROM long WHERE a = 77 OR a = 5000",
    "aggregate": "SELECT count(*), sum(a), sum(length(filler)) FROM long",
    "hash_join": "SELECT x.id, y.id FROM long x JOIN long y ON x.a = y.id",
    "union": "SELECT id FROM long WHERE a < 900 UNION ALL SELECT a FROM long WHERE id > 10",
}


def require_parallel(connection: Connection, query: str) -> None:
    nodes = plan_nodes(connection, query)
    assert any(node["Node Type"] == "Seq Scan" and node["Parallel Aware"] for node in nodes), nodes


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("leader", ["on", "off"])
@pytest.mark.parametrize("name", PARALLEL_QUERIES)
def test_parallel(tables: Cluster, name: str, leader: str, method: str) -> None:
    query = PARALLEL_QUERIES[name]
    with connect(tables) as connection:
        scanning(connection, method, enabled=False)
        settings(connection, **PARALLEL, parallel_leader_participation=leader)
        require_parallel(connection, query)
        without = sorted(rows(connection, query))
        switch(connection, on=True)
        for chunk in (0, 1, 7, 100, 8192):
            settings(connection, pg_lookahead__parallel_chunk_size=chunk)
            connection.execute("SELECT pg_stat_lookahead_reset()")
            cold(connection, "long")
            assert sorted(rows(connection, query)) == without, chunk
            scans, issued, balanced = rows(
                connection,
                "SELECT scans, blocks_issued, blocks_issued = blocks_used + blocks_wasted"
                " FROM pg_stat_lookahead WHERE relname = 'long'",
            )[0]
            assert scans >= 1
            assert balanced
            assert issued > 0, chunk
            if method == "worker":
                # None of the processes asks for what another has asked for.
                times = 2 if name in ("hash_join", "union") else 1
                assert issued <= times * blocks_of(connection, "long"), chunk


# What the server takes at a time from a table as long as this, and a followed scan may.
LONGEST = 300000
SERVERS_CHUNK = 256
HOLEY = """
CREATE TABLE holey (a int, f text) WITH (autovacuum_enabled = off);
ALTER TABLE holey ALTER f SET STORAGE plain;
ALTER TABLE holey SET (parallel_workers = 2);
INSERT INTO holey SELECT i, repeat('x', 5000) FROM generate_series(1, {}) i
"""
CHUNKS = {0: 128, 32: 32, 200: 200, 8192: LONGEST // 128}


@pytest.mark.parametrize("setting", CHUNKS)
def test_chunk_size(tables: Cluster, setting: int) -> None:
    """From its second chunk on a process of a followed scan takes as many blocks as is said."""
    # More than a chunk of the largest size behind the first, a row to a block.
    row_blocks = 2 * SERVERS_CHUNK + CHUNKS[8192]
    query = f"SELECT a FROM holey WHERE notes(a) LIMIT {row_blocks}"
    places: list[int] = []
    with connect(tables) as connection:
        script(connection, HOLEY.format(row_blocks))
        try:
            # Where the scan is, as its owner's slot says when it comes to a row.
            connection.execute(
                "CREATE OR REPLACE FUNCTION notes(a int) RETURNS boolean PARALLEL SAFE"
                " LANGUAGE plpgsql AS $$ BEGIN RAISE NOTICE '%', (SELECT \"position\""
                " FROM pg_stat_lookahead_owners WHERE pid = pg_backend_pid());"
                " RETURN true; END $$"
            )
            cold(connection, "holey")
            add_hole(tables, connection, "holey", LONGEST)
            scanning(connection, pg_lookahead__parallel_chunk_size=setting)
            # The leader alone, so that it takes all chunks.
            settings(connection, **PARALLEL, max_parallel_workers=0)
            require_parallel(connection, query)
            connection.add_notice_handler(
                lambda notice: places.append(int(notice.message_primary or 0))
            )
            assert len(rows(connection, query)) == row_blocks
        finally:
            connection.execute("DROP TABLE holey")
    seen = sorted(set(places) - {0})
    assert seen[0] == SERVERS_CHUNK
    assert len(seen) > 1
    assert {b - a for a, b in zip(seen, seen[1:])} == {CHUNKS[setting]}


@pytest.mark.parametrize("setting", [0, 32])
def test_chunk_size_without_an_owner(own_cluster: NewCluster, server: Server, setting: int) -> None:
    """A process that cannot look ahead takes what the server does, unless it is told otherwise."""
    need_followed_scans(server)
    row_blocks = 12 * SERVERS_CHUNK
    query = (
        "SELECT whose(), (ctid::text::point)[0]::int FROM holey"
        f" WHERE pg_sleep(0.0003)::text = '' LIMIT {row_blocks}"
    )
    cluster = own_cluster({"pg_lookahead.io_workers": "0"})
    with LogWatch(cluster), connect(cluster) as connection:
        script(connection, HOLEY.format(row_blocks))
        connection.execute(
            "CREATE FUNCTION whose() RETURNS int PARALLEL SAFE LANGUAGE internal"
            " AS 'pg_backend_pid'"
        )
        add_hole(cluster, connection, "holey", LONGEST)
        scanning(connection, "advice", pg_lookahead__parallel_chunk_size=setting)
        settings(connection, **PARALLEL, parallel_leader_participation="off")
        require_parallel(connection, query)
        # One of the two processes may come late, or get no processor for long.
        for _ in range(5):
            blocks = dict((block, pid) for pid, block in rows(connection, query))
            assert len(blocks) == row_blocks
            # Where another process goes on; both begin with a chunk of the server's.
            turns = [block for block in range(1, row_blocks) if blocks[block] != blocks[block - 1]]
            if len(turns) > 4:
                break
    assert len(turns) > 4
    assert all(turn % (setting or SERVERS_CHUNK) == 0 for turn in turns), turns
    assert (setting == 0) == all(turn % SERVERS_CHUNK == 0 for turn in turns), turns


@pytest.mark.parametrize("processes", [1, 3])
def test_who_reads(tables: Cluster, processes: int) -> None:
    """By default the service reads for one process; of several the kernel is advised."""
    query = "SELECT count(*), sum(a), sum(length(filler)) FROM long"
    with connect(tables) as connection:
        until_served(connection)
        scanning(connection, "auto", enabled=False)
        settings(connection, **{**PARALLEL, "max_parallel_workers_per_gather": processes - 1})
        assert ("Gather" in str(plan_nodes(connection, query))) == (processes > 1)
        without = rows(connection, query)
        switch(connection, on=True)
        cold(connection, "long")
        connection.execute("SELECT pg_stat_lookahead_reset()")
        before = asked_of_workers(connection)
        assert rows(connection, query) == without
        seen = "SELECT blocks_issued FROM pg_stat_lookahead WHERE relname = 'long'"
        assert value(connection, seen) > 0
        assert (asked_of_workers(connection) > before) == (processes == 1)


@pytest.mark.parametrize("leader", ["on", "off"])
def test_parallel_rescans(tables: Cluster, leader: str) -> None:
    """A Gather that is started again and again, and looks ahead each time."""
    query = (
        "SELECT k, s FROM keys LEFT JOIN"
        " (SELECT count(*) AS s FROM (SELECT id FROM long WHERE a % 3 = 1 OFFSET 0) l) m ON s > k"
    )
    with connect(tables) as connection:
        scanning(connection, enabled=False)
        settings(connection, **PARALLEL, enable_material="off", enable_memoize="off")
        settings(connection, enable_nestloop="on", parallel_leader_participation=leader)
        require_parallel(connection, query)
        nodes = plan_nodes(connection, query, ", ANALYZE")
        assert 6 in {node["Actual Loops"] for node in nodes if node["Node Type"] == "Gather"}
        without = rows(connection, query)
        switch(connection, on=True)
        cold(connection, "long")
        connection.execute("SELECT pg_stat_lookahead_reset()")
        assert rows(connection, query) == without
        issued = value(
            connection, "SELECT blocks_issued FROM pg_stat_lookahead WHERE relname = 'long'"
        )
        blocks = blocks_of(connection, "long")
        assert 3 * blocks < issued <= 6 * blocks


def test_parallel_error(tables: Cluster) -> None:
    query = "SELECT sum(1 / (id - 6001)) FROM long"
    with connect(tables) as connection:
        scanning(connection)
        settings(connection, **PARALLEL)
        require_parallel(connection, query)
        for leader in ("on", "off"):
            settings(connection, parallel_leader_participation=leader)
            cold(connection, "long")
            with pytest.raises(psycopg.errors.DivisionByZero):
                rows(connection, query)
            assert rows(connection, "TABLE pg_stat_lookahead_owners") == []
        assert rows(connection, "SELECT count(*) FROM long")


def small_and_long(connection: Connection) -> None:
    """A second table, smaller than the first, but large enough to be followed."""
    if value(connection, "SELECT to_regclass('shorter')") is None:
        script(
            connection,
            "CREATE TABLE shorter (id int, filler text)"
            " WITH (fillfactor = 10, autovacuum_enabled = off, parallel_workers = 2);"
            "INSERT INTO shorter SELECT i, repeat('x', 120) FROM generate_series(1, 5200) i;"
            "ANALYZE shorter",
        )
    assert 1024 <= blocks_of(connection, "shorter") < blocks_of(connection, "long") - 200


def test_serial_scan_in_a_parallel_worker(tables: Cluster) -> None:
    """It has no slot of its own, and takes nobody else's."""
    query = "SELECT count(*), sum(x.id + y.a) FROM keys x JOIN long y ON y.id % 900 = x.k"
    owners = 'SELECT "position", frontier FROM pg_stat_lookahead_owners WHERE pid = %s'
    with connect(tables) as connection, connect(tables) as other:
        small_and_long(connection)
        connection.execute("DROP TABLE IF EXISTS several")
        connection.execute(
            "CREATE TABLE several WITH (parallel_workers = 2) AS"
            " SELECT g AS id, g % 6 AS k FROM generate_series(1, 3000) g"
        )
        connection.execute("ANALYZE several")
        query = query.replace("keys", "several")
        scanning(connection)
        cold(connection, "shorter", "long")
        connection.execute("BEGIN")
        connection.execute("DECLARE c CURSOR FOR SELECT id FROM shorter")
        rows(connection, "FETCH 1000 FROM c")
        pid = connection.info.backend_pid
        before = other.execute(owners, (pid,)).fetchall()
        assert len(before) == 1

        scanning(other, enabled=False)
        settings(other, **PARALLEL, enable_parallel_hash="off")
        settings(other, parallel_leader_participation="off")
        nodes = plan_nodes(other, query)
        # Each worker scans the whole of it.
        assert any(
            node.get("Relation Name") == "long" and not node["Parallel Aware"] for node in nodes
        ), nodes
        expected = rows(other, query)
        switch(other, on=True)
        assert rows(other, query) == expected
        assert other.execute(owners, (pid,)).fetchall() == before
        connection.execute("COMMIT")


def test_parallel_query_within_a_parallel_query(tables: Cluster) -> None:
    """Two plans of one session at a time, with scan nodes of the same number."""
    inner = "SELECT id FROM long WHERE a = 77"
    outer = "SELECT looks(id) FROM shorter WHERE id % 900 = 1"
    with connect(tables) as connection:
        small_and_long(connection)
        connection.execute(
            "CREATE OR REPLACE FUNCTION looks(n int) RETURNS int LANGUAGE plpgsql"
            f" PARALLEL RESTRICTED AS 'BEGIN PERFORM {inner[7:]}; RETURN n; END'"
        )
        scanning(connection)
        settings(connection, **PARALLEL)
        numbers = []
        for query in (inner, outer):
            require_parallel(connection, query)
            nodes = plan_nodes(connection, query)
            numbers.append([node["Node Type"] for node in nodes].index("Seq Scan"))
        assert numbers[0] == numbers[1]
        for leader in ("on", "off"):
            settings(connection, parallel_leader_participation=leader)
            cold(connection, "shorter", "long")
            found = sorted(rows(connection, outer))
            assert found == [(i,) for i in range(1, 5201, 900)]
        assert rows(connection, "TABLE pg_stat_lookahead_owners") == []


def test_places_kept_for_parallel_scans_are_not_all(tables: Cluster) -> None:
    """Parallel plans that have not begun to scan, and may never do, lock nobody out."""
    branch = "SELECT id, filler FROM long"
    union = " UNION ALL ".join([branch] * 32)
    query = "SELECT CASE WHEN pg_advisory_xact_lock(7)::text = ''"
    query += f" THEN 0 ELSE (SELECT count(*) FROM ({union}) u) END"

    def wait() -> None:
        with connect(tables) as connection:
            scanning(connection)
            settings(connection, **PARALLEL)
            require_parallel(connection, query)
            assert rows(connection, query) == [(0,)]

    taken = "SELECT count(*) FROM pg_stat_lookahead_owners"
    unserved = "SELECT scans_unserved FROM pg_lookahead_status()"
    with connect(tables) as connection:
        small_and_long(connection)
        before = value(connection, unserved)
        connection.execute("SELECT pg_advisory_lock(7)")
        with at_work(*[wait] * 5):
            try:
                until(connection, "(SELECT count(*) = 5 FROM pg_locks WHERE NOT granted)")
                assert value(connection, taken) == 64
                scanning(connection)
                cold(connection, "shorter")
                with gained(connection) as change:
                    assert len(rows(connection, "SELECT id FROM shorter")) == 5200
                assert change.blocks_issued > 0
            finally:
                connection.execute("SELECT pg_advisory_unlock(7)")
        assert value(connection, unserved) == before
        assert value(connection, taken) == 0


def test_a_leader_gives_places_back(tables: Cluster) -> None:
    """One that scans many tables, one after the other, does not keep a place for each."""
    union = " UNION ALL ".join(["SELECT id FROM long"] * 40)
    query = f"SELECT count(*), pg_advisory_xact_lock_shared(8)::text FROM ({union}) u"
    with connect(tables) as connection, connect(tables) as holder:
        scanning(connection, enabled=False)
        settings(connection, **PARALLEL)
        require_parallel(connection, query)
        expected = rows(connection, query)
        switch(connection, on=True)
        cold(connection, "long")
        holder.execute("SELECT pg_advisory_lock(8)")

        def run() -> None:
            assert rows(connection, query) == expected

        with at_work(run):
            try:
                # All rows are counted then; the query is still there.
                until(holder, "(SELECT count(*) = 1 FROM pg_locks WHERE NOT granted)", 60)
                taken = value(holder, "SELECT count(*) FROM pg_stat_lookahead_owners")
                assert taken <= 32, taken
            finally:
                holder.execute("SELECT pg_advisory_unlock(8)")
        assert value(holder, "SELECT count(*) FROM pg_stat_lookahead_owners") == 0


@pytest.mark.parametrize("method", ["auto", *METHODS])
def test_parallel_plan_without_processes(tables: Cluster, method: str) -> None:
    """One whose rows are counted, as PL/pgSQL does for INTO, is run by the leader alone."""
    query = "SELECT count(*), sum(id) FROM long"
    with connect(tables) as connection:
        scanning(connection, method, max_parallel_workers_per_gather=2, parallel_setup_cost=0,
                 parallel_tuple_cost=0, min_parallel_table_scan_size=0)  # fmt: skip
        require_node(connection, query, "Gather")
        expected = rows(connection, query)
        connection.execute(
            "CREATE OR REPLACE FUNCTION counted(OUT n bigint, OUT s bigint) LANGUAGE plpgsql AS"
            f" 'BEGIN {query.replace(' FROM', ' INTO n, s FROM')}; END'"
        )
        assert rows(connection, "SELECT * FROM counted()") == expected
        for _ in range(2):
            cold(connection, "long")
            with gained(connection) as change:
                assert rows(connection, "SELECT * FROM counted()") == expected
            assert change.scans == 1
            assert change.blocks_issued > MIN_BLOCKS / 2
            assert change.blocks_wasted == 0
            assert not change.errors
        assert rows(connection, "TABLE pg_stat_lookahead_owners") == []


@pytest.mark.parametrize("method", METHODS)
def test_parallel_scan_that_ends_early(tables: Cluster, method: str) -> None:
    """What is not come to is counted once, however many processes have asked for some of it."""
    query = "SELECT id, length(filler) FROM long LIMIT 200"
    with connect(tables) as connection:
        scanning(connection, method)
        settings(connection, **PARALLEL)
        require_parallel(connection, query)
        for _ in range(5):
            connection.execute("SELECT pg_stat_lookahead_reset()")
            cold(connection, "long")
            assert len(rows(connection, query)) == 200
            issued, used, wasted, depth = rows(
                connection,
                "SELECT blocks_issued, blocks_used, blocks_wasted, depth_max"
                " FROM pg_stat_lookahead WHERE relname = 'long'",
            )[0]
            assert issued == used + wasted
            assert wasted <= depth, (issued, used, wasted, depth)
