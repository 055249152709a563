"""With the default settings a query that takes a few rows reads not one block more."""

from __future__ import annotations

import pytest
from lookahead.cluster import Cluster
from lookahead.servers import Server

from conftest import NewCluster
from leaf_support import leaves_of
from support import (
    INDEX_SCANS,
    Connection,
    LogWatch,
    cold_index,
    connect,
    evict_relations,
    evict_tablespaces,
    gained,
    ice_cold,
    need_extensions,
    plan_nodes,
    require_node,
    reset_statistics,
    rows,
    script,
    settings,
    slow_tablespace,
    value,
)
from test_scroll import evict

SETUP = """
CREATE TABLE few (a int, b int, filler text) WITH (fillfactor = 20);
INSERT INTO few SELECT i, i % 100, repeat('x', 120) FROM generate_series(1, 8000) i
 ORDER BY md5(i::text);
CREATE INDEX few_a ON few (a);
CREATE INDEX few_b ON few (b);
CREATE TABLE beside_few (a int PRIMARY KEY, b int);
INSERT INTO beside_few SELECT i, i FROM generate_series(0, 8000) i;
CREATE FUNCTION looked_up(key int) RETURNS int STABLE LANGUAGE sql
  AS 'SELECT b FROM beside_few WHERE a = key';
VACUUM ANALYZE few, beside_few;
UPDATE few SET filler = 'y' WHERE a % 10 = 0
"""

QUERIES = {
    "forward": "SELECT a, filler FROM few ORDER BY a LIMIT {n}",
    "backward": "SELECT a, filler FROM few ORDER BY a DESC LIMIT {n}",
    "equal": "SELECT b, filler FROM few WHERE b = 7 LIMIT {n}",
    "index_only": "SELECT a FROM few ORDER BY a LIMIT {n}",
    "no_limit_node": "SELECT * FROM (SELECT a, filler FROM few ORDER BY a OFFSET 0) t"
    " WHERE filler <> 'z' LIMIT {n}",
    # What else the plan finds in shared buffers is not the scan's.
    "join": "SELECT few.a, twin.b FROM (SELECT * FROM few ORDER BY a) few"
    " JOIN beside_few twin ON twin.a = few.a ORDER BY few.a LIMIT {n}",
    "function": "SELECT a, filler FROM few WHERE looked_up(a) > 0 ORDER BY a LIMIT {n}",
    "for_update": "SELECT a, filler FROM few WHERE filler <> 'z' ORDER BY a LIMIT {n} FOR UPDATE",
}


@pytest.fixture(scope="module")
def defaults(own_cluster: NewCluster, server: Server) -> Cluster:
    """A server on which nothing of ours is set."""
    cluster = own_cluster({"pg_lookahead.start_after": "8", "shared_buffers": "16MB"})
    with connect(cluster) as connection:
        script(connection, SETUP)
    return cluster


def blocks(cluster: Cluster, connection: Connection, query: str) -> tuple[int, int, list[object]]:
    """Return blocks read and hit by a query of an ice-cold table, by two accounts."""
    ice_cold(cluster, connection, "few")
    cold_index(connection, "few_a", "few_b")
    rows(connection, "SELECT sum(b), looked_up(1) FROM beside_few TABLESAMPLE SYSTEM (100)")
    # What is not the query's: the planner looks into the index.
    plan_nodes(connection, query)
    reset_statistics(connection)
    top = plan_nodes(connection, query, ", ANALYZE, BUFFERS, TIMING off")[0]
    connection.execute("SELECT pg_stat_force_next_flush()")
    statistics = rows(
        connection,
        "SELECT heap_blks_read, heap_blks_hit, idx_blks_read, idx_blks_hit"
        " FROM pg_statio_user_tables WHERE relname = 'few'",
    )
    return top["Shared Read Blocks"], top["Shared Hit Blocks"], list(statistics)


@pytest.mark.parametrize("n", [1, 2, 4, 8])
@pytest.mark.parametrize("name", QUERIES)
def test_not_one_block_more(defaults: Cluster, server: Server, name: str, n: int) -> None:
    query = QUERIES[name].format(n=n)
    methods = ["auto", "aio"] if server.major >= 18 else ["auto"]
    with connect(defaults) as connection:
        settings(connection, **INDEX_SCANS, enable_hashjoin="off", enable_mergejoin="off")
        settings(connection, enable_material="off", enable_memoize="off")
        assert value(connection, "SHOW pg_lookahead.start_after") == "8"
        kind = "Index Only Scan" if name == "index_only" else "Index Scan"
        require_node(connection, query, kind)
        settings(connection, pg_lookahead__enabled="off")
        without = blocks(defaults, connection, query)
        settings(connection, pg_lookahead__enabled="on")
        for method in methods:
            settings(connection, pg_lookahead__method=method)
            with gained(connection) as change:
                with_it = blocks(defaults, connection, query)
            assert with_it == without, method
            assert change.blocks_issued == change.scans == 0


@pytest.mark.parametrize("method", ["advice", "aio"])
def test_back_to_the_first_row(defaults: Cluster, server: Server, method: str) -> None:
    """A cursor that turns back reads no block before the first row of its OFFSET."""
    if server.major < 17:
        pytest.skip("pg_buffercache_evict() is of 17 and later")
    if method == "aio" and server.major < 18:
        pytest.skip("asynchronous I/O is of 18 and later")
    need_extensions(defaults, "pg_buffercache")
    query = "SELECT a, length(filler) FROM few ORDER BY a OFFSET 3000 LIMIT 400"
    with connect(defaults) as connection:
        settings(connection, **INDEX_SCANS, pg_lookahead__method=method)
        settings(connection, pg_lookahead__start_after=0)
        require_node(connection, query, "Index Scan", "few_a")
        with gained(connection) as change, connection.transaction():
            connection.execute(f"DECLARE c SCROLL CURSOR FOR {query}")
            assert len(rows(connection, "FETCH ALL FROM c")) == 400
            evict(connection, "few")
            back = rows(connection, "FETCH BACKWARD ALL FROM c")
        assert [row[0] for row in back] == list(range(3400, 3000, -1))
        assert change.blocks_issued > 100
        # A window is 16 blocks at least.
        assert change.blocks_wasted <= 4, change


def test_leaf_pages_of_many_rows_to_a_block(own_cluster: NewCluster) -> None:
    """In one go the scan that runs ahead comes over many leaf pages, none beyond the LIMIT's."""
    cluster = own_cluster({"pg_lookahead.start_after": "0"})
    query = "SELECT id, b FROM ordered ORDER BY id LIMIT 50000"
    with connect(cluster) as connection:
        script(
            connection,
            "CREATE TABLE ordered (id int, b int);"
            "INSERT INTO ordered SELECT i, i FROM generate_series(1, 200000) i;"
            "CREATE INDEX ordered_id ON ordered (id); VACUUM ANALYZE ordered",
        )
        settings(connection, **INDEX_SCANS, pg_lookahead__max_distance=64)
        require_node(connection, query, "Index Scan", "ordered_id")
        ice_cold(cluster, connection, "ordered")
        cold_index(connection, "ordered_id")
        evict_relations(cluster, connection, "ordered_id")
        with leaves_of(connection, "ordered_id") as leaves:
            assert len(rows(connection, query)) == 50000
        # 366 entries to a page, and how many the next have is not known.
        assert leaves.blocks_used > 30
        assert leaves.blocks_wasted <= 2
    cluster.close()


@pytest.mark.parametrize("skips", ["dead", "locked"])
def test_a_queue_with_many_in_front(own_cluster: NewCluster, skips: str) -> None:
    """One row is wanted, and thousands of entries come before it that have none."""
    cluster = own_cluster({"pg_lookahead.start_after": "8", "shared_buffers": "2MB"})
    query = "SELECT id FROM queue ORDER BY id LIMIT 1 FOR UPDATE"
    with LogWatch(cluster), connect(cluster) as connection, connect(cluster) as other:
        script(
            connection,
            "CREATE TABLE queue (id int, filler text) WITH (fillfactor = 10);"
            "INSERT INTO queue SELECT i, repeat('x', 700) FROM generate_series(1, 3200) i"
            " ORDER BY md5(i::text);"
            "CREATE INDEX queue_id ON queue (id); VACUUM ANALYZE queue",
        )
        other.execute("BEGIN ISOLATION LEVEL REPEATABLE READ")
        if skips == "dead":
            # Entries are marked once nobody can see the row any more.
            value(other, "SELECT count(*) FROM pg_class")
            connection.execute("DELETE FROM queue WHERE id <= 3000")
        else:
            query = query.replace("UPDATE", "UPDATE SKIP LOCKED")
            other.execute("SELECT id FROM queue WHERE id <= 3000 FOR UPDATE")
        settings(connection, **INDEX_SCANS, pg_lookahead__method="advice")
        require_node(connection, query, "Index Scan", "queue_id")
        # Of shared buffers there are few.
        evict_relations(cluster, connection, "queue")
        with gained(connection) as change:
            assert rows(connection, query) == [(3001,)]
        # A row to a block, which the scan waits for.
        assert change.blocks_used > 2500
        assert change.windows < change.blocks_issued / 4
        # What came too late at first, and the 200 behind the row that was wanted.
        assert change.blocks_wasted < 400
    cluster.close()


def test_rows_are_right(defaults: Cluster) -> None:
    """And where it does start, in the middle of a scan, the rows are right."""
    with connect(defaults) as connection:
        settings(connection, **INDEX_SCANS)
        for n in (9, 10, 17, 40, 100, 1000):
            ice_cold(defaults, connection, "few")
            query = f"SELECT a, length(filler) FROM few ORDER BY a LIMIT {n}"
            with gained(connection):
                found = rows(connection, query)
            assert found == [(i, 1 if i % 10 == 0 else 120) for i in range(1, n + 1)]


def test_where_every_read_waits(new_cluster: NewCluster) -> None:
    """Short ones are left alone because they are short, and not because nothing waits."""
    cluster = new_cluster({"pg_lookahead.start_after": "8"})
    with slow_tablespace(cluster, read_us=1000):
        with connect(cluster) as connection:
            script(connection, f"{SETUP}; ALTER TABLE few SET TABLESPACE slow")
        for n in (1, 2, 4, 8, 200):
            cluster.restart()
            evict_tablespaces(cluster)
            with connect(cluster) as connection:
                settings(connection, **INDEX_SCANS)
                query = QUERIES["forward"].format(n=n)
                require_node(connection, query, "Index Scan", "few_a")
                with gained(connection) as change:
                    assert len(rows(connection, query)) == n
                assert (change.scans > 0) == (n == 200), n
