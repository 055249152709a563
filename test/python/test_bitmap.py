"""Bitmap heap scans: parallel ones, short ones, and many rounds of them."""

from __future__ import annotations

import time

import pytest
from lookahead.cluster import Cluster
from lookahead.servers import Server

from conftest import NewCluster
from support import (
    SEQUENTIAL_SCANS,
    Connection,
    Variant,
    cached_pages,
    cold,
    cold_index,
    connect,
    evict_tablespaces,
    gained,
    ice_cold,
    look_ahead_of,
    once,
    plan_nodes,
    require_node,
    rows,
    rows_without,
    script,
    settings,
    slow_tablespace,
    use,
    value,
)

# Workers that are not needed any more are told so in this way.
pytestmark = pytest.mark.log_may_have('terminating background worker "parallel worker"')

BITMAP_SCANS = {
    "enable_seqscan": "off",
    "enable_bitmapscan": "on",
    "enable_indexscan": "off",
    "enable_indexonlyscan": "off",
    "max_parallel_workers_per_gather": "0",
}

PARALLEL = {
    **BITMAP_SCANS,
    "max_parallel_workers_per_gather": "2",
    "parallel_setup_cost": "0",
    "parallel_tuple_cost": "0",
    "min_parallel_index_scan_size": "0",
    "min_parallel_table_scan_size": "0",
    "seq_page_cost": "0",
    "random_page_cost": "0",
    "cpu_tuple_cost": "10",
}

SETUP = """
CREATE TABLE bitmap (id int, a int, b int, filler text)
  WITH (fillfactor = 20, autovacuum_enabled = off);
INSERT INTO bitmap SELECT i, (i * 7919) % 8009, i % 100, repeat('x', 100)
  FROM generate_series(1, 8000) i;
ALTER TABLE bitmap SET (parallel_workers = 2);
CREATE INDEX bitmap_a ON bitmap (a);
CREATE INDEX bitmap_b ON bitmap (b);
CREATE INDEX bitmap_brin ON bitmap USING brin (id) WITH (pages_per_range = 8);
VACUUM ANALYZE bitmap;
UPDATE bitmap SET filler = 'y' WHERE id % 2 = 0;
DELETE FROM bitmap WHERE id % 7 = 0;
CREATE TABLE bitmap_keys AS SELECT g AS k FROM generate_series(1, 100) g;
ANALYZE bitmap_keys
"""

QUERIES = {
    "exact": "SELECT count(*), sum(id), sum(length(filler)) FROM bitmap WHERE a < 4000",
    "filter": "SELECT count(*), sum(id) FROM bitmap WHERE a < 6000 AND length(filler) > 50",
    "hidden": "SELECT count(*), sum(id) FROM bitmap WHERE a < 6000 AND length(filler) > 500",
    "lossy": "SELECT count(*), sum(a) FROM bitmap WHERE id BETWEEN 100 AND 7000 AND id % 50 = 1",
    "rows": "SELECT id, filler FROM bitmap WHERE a < 4000",
    "limit": "SELECT count(*) FROM (SELECT id FROM bitmap WHERE a < 4000 LIMIT 500) t",
}

NEVER = 0
STARTED = 16

# Blocks of a table, more than the first copy takes out of a shared bitmap.
LONG_BITMAP = 9000


def create(cluster: Cluster) -> None:
    with connect(cluster) as connection:
        once(connection, "bitmap", SETUP)


@pytest.mark.parametrize("name", QUERIES)
def test_all_was_foreseen(cluster: Cluster, variant: Variant, name: str) -> None:
    """Nothing is wasted by a scan that runs to its end, whatever a filter hides."""
    create(cluster)
    query = QUERIES[name]
    with connect(cluster) as connection:
        settings(connection, **BITMAP_SCANS, pg_lookahead__enabled="off")
        require_node(connection, query, "Bitmap Heap Scan")
        without = rows(connection, query)
        cold(connection, "bitmap")
        top = plan_nodes(connection, query, ", ANALYZE, BUFFERS, TIMING off")
        scan = next(node for node in top if node["Node Type"] == "Bitmap Heap Scan")
        blocks = scan["Exact Heap Blocks"] + scan["Lossy Heap Blocks"]
        settings(connection, pg_lookahead__enabled="on")
        use(connection, variant)
        # I/O workers that get no processor in time have blocks dropped.
        for _ in range(3):
            cold(connection, "bitmap")
            with gained(connection) as change:
                assert rows(connection, query) == without
            if not variant.reads or change.blocks_dropped == 0:
                break
        if variant.reads:
            assert change.blocks_issued + change.blocks_hit > 0.9 * blocks
            if name != "limit":
                assert change.blocks_wasted <= 0.02 * blocks
        else:
            assert change.blocks_issued == 0
        settings(connection, **SEQUENTIAL_SCANS)
        if name != "rows":
            assert rows(connection, query) == without


# A row on each block, of which the last half is dead.
DEAD = """
CREATE TABLE dead (a int, f text) WITH (autovacuum_enabled = off);
ALTER TABLE dead ALTER f SET STORAGE PLAIN;
INSERT INTO dead SELECT i, repeat('x', 5000) FROM generate_series(1, 1000) i;
CREATE INDEX dead_a ON dead (a);
VACUUM ANALYZE dead;
DELETE FROM dead WHERE a > 500
"""


def test_blocks_without_a_row(cluster: Cluster, variant: Variant) -> None:
    """The scan has been there, though nobody has seen a row of theirs."""
    every = "SELECT count(f) FROM dead WHERE a > 0"
    # One round of dead rows, and one that ends early.
    rounds = (
        "SELECT sum((SELECT count(f) FROM (SELECT f FROM dead WHERE a BETWEEN k AND k + 499"
        " LIMIT 30) s)) FROM (VALUES (501), (1)) v (k)"
    )
    with connect(cluster) as connection:
        once(connection, "dead", DEAD)
        settings(connection, **BITMAP_SCANS)
        use(connection, variant)
        for query in (every, rounds):
            require_node(connection, query, "Bitmap Heap Scan")
        cold(connection, "dead")
        with gained(connection) as change:
            assert value(connection, every) == 500
        if not variant.reads:
            return
        # On 18 the server's own stream is ahead as well.
        assert change.blocks_issued + change.blocks_hit > 450
        assert change.blocks_wasted == 0
        cold(connection, "dead")
        with gained(connection) as change:
            assert value(connection, rounds) == 30
        # On 18 blocks that the stream has come to count, too.
        assert change.blocks_used < 30 + 64, change


@pytest.mark.parametrize("leader", ["on", "off"])
@pytest.mark.parametrize("name", QUERIES)
def test_parallel(cluster: Cluster, variant: Variant, name: str, leader: str) -> None:
    create(cluster)
    query = QUERIES[name]
    with connect(cluster) as connection:
        settings(connection, **PARALLEL, parallel_leader_participation=leader)
        nodes = plan_nodes(connection, query)
        assert any(n["Node Type"] == "Bitmap Heap Scan" and n["Parallel Aware"] for n in nodes)
        without = sorted(rows_without(connection, query))
        use(connection, variant)
        connection.execute("SELECT pg_stat_lookahead_reset()")
        # On a busy machine the process that looks ahead may find nothing left.
        for _ in range(10):
            cold(connection, "bitmap")
            assert sorted(rows(connection, query)) == without
            if not variant.reads:
                return
            issued, balanced = rows(
                connection,
                "SELECT coalesce(sum(blocks_issued), 0),"
                " coalesce(bool_and(blocks_issued = blocks_used + blocks_wasted), true)"
                " FROM pg_stat_lookahead WHERE relname = 'bitmap'",
            )[0]
            assert balanced
            if issued > 0:
                break
        assert issued > 0


def test_parallel_rounds(cluster: Cluster, variant: Variant) -> None:
    """Each round another process may build the bitmap."""
    create(cluster)
    query = (
        "SELECT k, (SELECT sum(length(filler)) FROM bitmap WHERE a < 3000 AND id % 10 = k % 10)"
        " FROM (SELECT k FROM bitmap_keys WHERE k <= 10 OFFSET 0) s"
    )
    with connect(cluster) as connection:
        settings(connection, **PARALLEL, pg_lookahead__enabled="off")
        without = rows(connection, query)
        settings(connection, pg_lookahead__enabled="on")
        use(connection, variant)
        for leader in ("on", "off"):
            settings(connection, parallel_leader_participation=leader)
            cold(connection, "bitmap")
            with gained(connection):
                assert rows(connection, query) == without


def test_a_long_shared_bitmap(cluster: Cluster, server: Server) -> None:
    """Blocks are copied out of it in several pieces, each larger than the one before."""
    query = "SELECT count(*), sum(id) FROM long_bitmap WHERE id > 0"
    with connect(cluster) as connection:
        script(
            connection,
            f"""
            CREATE TABLE long_bitmap (id int, filler text)
              WITH (fillfactor = 100, autovacuum_enabled = off, parallel_workers = 1);
            ALTER TABLE long_bitmap ALTER filler SET STORAGE PLAIN;
            INSERT INTO long_bitmap SELECT i, repeat('x', 4100)
              FROM generate_series(1, {LONG_BITMAP}) i;
            CREATE INDEX long_bitmap_id ON long_bitmap (id);
            VACUUM ANALYZE long_bitmap
            """,
        )
        settings(connection, **PARALLEL, max_parallel_workers=0)
        nodes = plan_nodes(connection, query)
        assert any(n["Node Type"] == "Bitmap Heap Scan" and n["Parallel Aware"] for n in nodes)
        without = rows_without(connection, query)
        settings(connection, pg_lookahead__method="advice")
        cold(connection, "long_bitmap")
        # Nobody helps the leader, so it builds the bitmap and looks ahead to its end.
        with gained(connection) as change:
            assert (
                rows(connection, query)
                == without
                == [(LONG_BITMAP, LONG_BITMAP * (LONG_BITMAP + 1) // 2)]
            )
        connection.execute("DROP TABLE long_bitmap")
    assert change.errors == 0
    assert change.blocks_wasted == 0
    # On 18 the server's own stream is ahead as well.
    if server.major < 18:
        assert change.blocks_issued > 0.9 * LONG_BITMAP


def test_error_above_the_scan(cluster: Cluster, variant: Variant) -> None:
    create(cluster)
    query = "SELECT sum(1 / (a - 3001)), sum(length(filler)) FROM bitmap WHERE a < 5000"
    with connect(cluster) as connection:
        use(connection, variant)
        for plan in (BITMAP_SCANS, PARALLEL):
            settings(connection, **plan)
            require_node(connection, query, "Bitmap Heap Scan")
            cold(connection, "bitmap")
            with pytest.raises(Exception, match="division by zero"):
                rows(connection, query)
            with gained(connection):
                rows(connection, QUERIES["exact"])


def test_cursor_goes_on(cluster: Cluster, variant: Variant) -> None:
    """Also after a subtransaction has failed in between."""
    create(cluster)
    query = "SELECT id FROM bitmap WHERE a < 5000"
    with connect(cluster) as connection:
        settings(connection, **BITMAP_SCANS)
        require_node(connection, query, "Bitmap Heap Scan")
        expected = rows(connection, query)
        use(connection, variant)
        cold(connection, "bitmap")
        with gained(connection):
            connection.execute("BEGIN")
            connection.execute(f"DECLARE c CURSOR FOR {query}")
            found = rows(connection, "FETCH 5 FROM c")
            connection.execute("SAVEPOINT s")
            found += rows(connection, "FETCH 700 FROM c")
            with pytest.raises(Exception, match="division by zero"):
                connection.execute("SELECT 1 / 0")
            connection.execute("ROLLBACK TO s")
            found += rows(connection, "FETCH ALL FROM c")
            connection.execute("COMMIT")
        assert found == expected


def test_rounds_take_no_memory(cluster: Cluster, variant: Variant) -> None:
    """A window serves every round of a nested loop's inner side."""
    create(cluster)
    query = (
        "SELECT k, o.id FROM generate_series(1, 600) k CROSS JOIN LATERAL"
        " (SELECT id FROM bitmap WHERE b = k % 100 OFFSET 0) o"
    )
    used = "SELECT sum(used_bytes) FROM pg_backend_memory_contexts"
    with connect(cluster) as connection:
        settings(connection, **BITMAP_SCANS, enable_material="off")
        require_node(connection, query, "Bitmap Heap Scan")
        use(connection, variant)
        connection.execute("BEGIN")
        connection.execute(f"DECLARE c NO SCROLL CURSOR FOR {query}")
        connection.execute("MOVE 2000 FROM c")
        before = value(connection, used)
        connection.execute("MOVE 30000 FROM c")
        assert value(connection, used) < before + 64 * 1024
        connection.execute("COMMIT")


def test_explain(cluster: Cluster, server: Server, variant: Variant) -> None:
    create(cluster)
    with connect(cluster) as connection:
        settings(connection, **BITMAP_SCANS)
        use(connection, variant)
        cold(connection, "bitmap")
        shown = look_ahead_of(connection, QUERIES["exact"])
        assert shown[0]["Method"] == variant.method
        assert (shown[0]["Blocks Issued"] > 0) == variant.reads
        if server.major < 18:
            assert shown[0]["Node Type"] == "Bitmap Heap Scan"
            assert shown[0]["Relation Name"] == "bitmap"


@pytest.fixture(scope="module")
def defaults(own_cluster: NewCluster) -> Cluster:
    """A server on which nothing of ours is set."""
    cluster = own_cluster({"pg_lookahead.start_after": "8"})
    create(cluster)
    return cluster


def blocks_of(cluster: Cluster, connection: Connection, query: str) -> tuple[int, int]:
    """Return blocks read and hit by a query of an ice-cold table."""
    ice_cold(cluster, connection, "bitmap")
    cold_index(connection, "bitmap_a")
    plan_nodes(connection, query)  # the planner looks into the index
    top = plan_nodes(connection, query, ", ANALYZE, BUFFERS, TIMING off")[0]
    return top["Shared Read Blocks"], top["Shared Hit Blocks"]


@pytest.mark.parametrize("n", [1, 4, 6])
def test_short_scans_read_no_more(defaults: Cluster, n: int) -> None:
    """One row of a block: the eighth is not left."""
    query = f"SELECT id FROM bitmap WHERE id % 10 = 1 AND a < 8000 LIMIT {n}"
    with connect(defaults) as connection:
        settings(connection, **BITMAP_SCANS)
        require_node(connection, query, "Bitmap Heap Scan")
        settings(connection, pg_lookahead__enabled="off")
        without = blocks_of(defaults, connection, query)
        settings(connection, pg_lookahead__enabled="on")
        with gained(connection) as change:
            with_it = blocks_of(defaults, connection, query)
        assert with_it == without
        assert change.blocks_issued == change.scans == NEVER


def test_a_limit_wastes_little(defaults: Cluster) -> None:
    with connect(defaults) as connection:
        settings(connection, **BITMAP_SCANS)
        for n in (20, 60, 200, 1000):
            ice_cold(defaults, connection, "bitmap")
            before = value(connection, "SELECT depth_max FROM pg_lookahead_session()")
            with gained(connection) as change:
                rows(connection, f"SELECT id, filler FROM bitmap WHERE a < 8000 LIMIT {n}")
            after = value(connection, "SELECT depth_max FROM pg_lookahead_session()")
            assert change.blocks_wasted <= max(before, after, STARTED)


# One row of a block; those with k = 1 are far enough from each other for the kernel.
SPREAD = """
CREATE TABLE spread (a int, k int, f text) WITH (autovacuum_enabled = off);
ALTER TABLE spread ALTER f SET STORAGE PLAIN;
INSERT INTO spread SELECT i, (i % 8 = 7)::int, repeat('x', 5000)
  FROM generate_series(0, 799) i;
CREATE INDEX spread_k ON spread (k);
VACUUM ANALYZE spread
"""


@pytest.mark.parametrize("method", ["none", "off"])
def test_the_servers_own_prefetching(cluster: Cluster, server: Server, method: str) -> None:
    """Where we read nothing ahead the server does as it does without us."""
    if server.major >= 18:
        pytest.skip("18 has a stream, which we do not stop")
    query = "SELECT a FROM spread WHERE k = 1"
    fetched = 40

    def ahead(prefetch: int, expected: int) -> int:
        """How many of the next 20 blocks does the kernel read?  Waits for what is expected."""
        settings(connection, effective_io_concurrency=prefetch)
        ice_cold(cluster, connection, "spread")
        file = cluster.data / value(connection, "SELECT pg_relation_filepath('spread')")
        connection.execute(f"BEGIN; DECLARE c CURSOR FOR {query}")
        seen = rows(connection, f"FETCH {fetched} FROM c")
        assert seen == [(8 * i + 7,) for i in range(fetched)]
        end = time.monotonic() + 5
        found = 0
        while True:
            # What is being read does not count yet.
            pages = cached_pages(file)
            per_block = len(pages) // 800
            found = sum(pages[(8 * i + 7) * per_block] for i in range(fetched, fetched + 20))
            if found >= expected or time.monotonic() > end:
                break
            time.sleep(0.02)
        connection.execute("COMMIT")
        return found

    with connect(cluster) as connection:
        once(connection, "spread", SPREAD)
        settings(connection, **BITMAP_SCANS)
        if method == "off":
            settings(connection, pg_lookahead__bitmapscan="off")
        else:
            settings(connection, pg_lookahead__method=method)
        require_node(connection, query, "Bitmap Heap Scan")
        # A few pages may not have left the cache.
        assert ahead(0, 0) < 5
        assert ahead(32, 20) == 20


def test_reads_in_flight_are_shown(new_cluster: NewCluster, server: Server) -> None:
    """In the middle of a scan, and only there."""
    if server.major < 18:
        pytest.skip("before 18 a backend has no reads in flight")
    cluster = new_cluster()
    with slow_tablespace(cluster, read_us=2000):
        with connect(cluster) as connection:
            script(
                connection,
                """
                CREATE TABLE awaited (a int, filler text) WITH (fillfactor = 10) TABLESPACE slow;
                INSERT INTO awaited SELECT (i * 149) % 400, repeat('x', 700)
                  FROM generate_series(0, 399) i;
                CREATE INDEX awaited_a ON awaited (a);
                VACUUM ANALYZE awaited;
                """,
            )
        cluster.restart()
        evict_tablespaces(cluster)
        with connect(cluster) as connection:
            settings(connection, **BITMAP_SCANS, pg_lookahead__start_after=0)
            settings(connection, pg_lookahead__method="aio")
            query = (
                "SELECT max((SELECT reads_in_flight FROM pg_lookahead_session() WHERE a >= 0))"
                " FROM awaited WHERE a % 10 <> 5 AND a < 390"
            )
            require_node(connection, query, "Bitmap Heap Scan")
            assert value(connection, query) > 0
            assert value(connection, "SELECT reads_in_flight FROM pg_lookahead_session()") == 0
