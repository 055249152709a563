"""Statistics and EXPLAIN count what the query did, not what look-ahead did."""

from __future__ import annotations

from typing import Any

import pytest
from lookahead.cluster import Cluster
from lookahead.errors import LookaheadError

from conftest import NewCluster
from support import (
    INDEX_SCANS,
    Connection,
    LogWatch,
    Row,
    Variant,
    cold,
    cold_index,
    connect,
    gained,
    need_extensions,
    once,
    plan_nodes,
    reset_statistics,
    rows,
    settings,
    use,
    value,
)

SETUP = """
CREATE TABLE measured (id int, a int, b int, p point, filler text) WITH (fillfactor = 20);
INSERT INTO measured SELECT i, (i * 7919) % 3001, i % 60, point((i * 7919) % 3001, i % 100),
       repeat('x', 100) FROM generate_series(1, 3000) i;
CREATE INDEX measured_a ON measured (a);
CREATE INDEX measured_ba ON measured (b, a);
CREATE INDEX measured_hash ON measured USING hash (b);
CREATE INDEX measured_gist ON measured USING gist (p);
CREATE INDEX measured_spgist ON measured USING spgist (p);
VACUUM (FREEZE, ANALYZE) measured;
UPDATE measured SET filler = 'y' WHERE id % 4 = 0;
DELETE FROM measured WHERE id % 9 = 0;
"""

QUERIES = {
    "range": "SELECT a, filler FROM measured WHERE a > 200 ORDER BY a",
    "backward": "SELECT a, filler FROM measured ORDER BY a DESC",
    "list": "SELECT id, filler FROM measured WHERE b IN (3, 5, 7, 30, 40, 50) AND a > 5"
    " ORDER BY b, a",
    "skip": "SELECT id, filler FROM measured WHERE a BETWEEN 100 AND 300 ORDER BY b, a",
    "limit": "SELECT a, filler FROM measured ORDER BY a LIMIT 200",
    "stopped": "SELECT * FROM (SELECT a, filler FROM measured ORDER BY a OFFSET 0) t"
    " WHERE filler <> 'z' LIMIT 50",
    "index_only": "SELECT a FROM measured WHERE a > 200 ORDER BY a",
    "hash": "SELECT id, filler FROM measured WHERE b = 7",
    "gist": "SELECT id, filler FROM measured WHERE p <@ box '((0,0),(2000,60))'",
    "nearest": "SELECT id, filler FROM measured ORDER BY p <-> point '(9,9)' LIMIT 300",
    "rescans": "SELECT g, l.* FROM generate_series(1, 40) g,"
    " LATERAL (SELECT id, filler FROM measured WHERE a > g * 50 ORDER BY a LIMIT 30) l",
    "merge": "SELECT x.id, y.id FROM measured x JOIN measured y ON x.a = y.b WHERE y.filler <> ''",
}

STATISTICS = """
SELECT relname, NULL, coalesce(idx_scan, 0), NULL, idx_tup_fetch, seq_scan, seq_tup_read
  FROM pg_stat_user_tables WHERE relname = 'measured'
UNION ALL
SELECT relname, indexrelname, idx_scan, idx_tup_read, idx_tup_fetch, 0, 0
  FROM pg_stat_user_indexes WHERE relname = 'measured'
 ORDER BY 1, 2
"""

BLOCKS = """
SELECT heap_blks_read + heap_blks_hit, idx_blks_read + idx_blks_hit
  FROM pg_statio_user_tables WHERE relname = 'measured'
"""


def create(cluster: Cluster) -> None:
    with connect(cluster) as connection:
        if once(connection, "measured", SETUP):
            # Entries of dead rows are marked by the first scans that meet them.
            settings(connection, **INDEX_SCANS, enable_sort="off")
            for query in QUERIES.values():
                rows(connection, query)


def session_for(cluster: Cluster, variant: Variant, *, enabled: bool) -> Connection:
    connection = connect(cluster)
    use(connection, variant, **INDEX_SCANS, enable_sort="off", enable_hashjoin="off")
    settings(connection, enable_nestloop="on", enable_material="off")
    settings(connection, pg_lookahead__enabled="on" if enabled else "off")
    return connection


def statistics_of(cluster: Cluster, variant: Variant, query: str, enabled: bool) -> list[Row]:
    """Return the statistics after the query, which begin before it at zero."""
    with session_for(cluster, variant, enabled=enabled) as connection:
        cold(connection, "measured")
        nodes = {node["Node Type"] for node in plan_nodes(connection, query)}
        assert nodes & {"Index Scan", "Index Only Scan"}, nodes
        reset_statistics(connection)
        with gained(connection) as change:
            rows(connection, query)
        assert (change.scans > 0) == enabled
        connection.execute("SELECT pg_stat_force_next_flush()")
        return rows(connection, STATISTICS)


@pytest.mark.parametrize("name", QUERIES)
def test_statistics_views(cluster: Cluster, variant: Variant, name: str) -> None:
    create(cluster)
    without = statistics_of(cluster, variant, QUERIES[name], False)
    assert statistics_of(cluster, variant, QUERIES[name], True) == without
    assert any(row[2] for row in without), "the query does not use an index"


def explained(connection: Connection, query: str) -> list[dict[str, Any]]:
    options = ", ANALYZE, BUFFERS, TIMING off"
    keys = ("Node Type", "Index Searches", "Actual Rows", "Actual Loops", "Heap Fetches",
            "Shared Hit Blocks", "Shared Read Blocks")  # fmt: skip
    nodes = plan_nodes(connection, query, options)
    return [{key: node[key] for key in keys if key in node} for node in nodes]


@pytest.mark.parametrize("name", QUERIES)
def test_explain_of_cached_data(cluster: Cluster, variant: Variant, name: str) -> None:
    """Hits are the query's own; 18 also shows how often the index was searched."""
    create(cluster)
    with session_for(cluster, variant, enabled=False) as connection:
        # Other tests have filled shared buffers: pages may have to go at any time.
        for _ in range(5):
            settings(connection, pg_lookahead__enabled="off")
            rows(connection, QUERIES[name])
            without = explained(connection, QUERIES[name])
            settings(connection, pg_lookahead__enabled="on")
            with gained(connection) as change:
                with_it = explained(connection, QUERIES[name])
            assert change.scans > 0
            if with_it == without:
                break
        assert with_it == without
        assert not any(node["Shared Read Blocks"] for node in with_it)


@pytest.mark.parametrize("name", QUERIES)
def test_explain_of_cold_data(cluster: Cluster, variant: Variant, name: str) -> None:
    """Blocks that were read are read once, whoever asked for them first."""
    create(cluster)
    query = QUERIES[name]
    indexes = ("measured_a", "measured_ba", "measured_hash", "measured_gist", "measured_spgist")
    found = []
    for enabled in (False, True):
        with session_for(cluster, variant, enabled=enabled) as connection:
            cold(connection, "measured")
            cold_index(connection, *indexes)
            with gained(connection) as change:
                top = explained(connection, query)[0]
            assert (change.scans > 0) == enabled
        found.append((top["Shared Read Blocks"], top["Shared Hit Blocks"]))
    (read_without, hit_without), (read_with, hit_with) = found
    # What was looked ahead in vain was read as well: blocks of the table by aio,
    # and the pages of the index that name them.
    wasted = change.blocks_wasted if variant.method == "aio" else 0
    index_pages = 4 if name in ("limit", "stopped", "rescans", "nearest", "merge") else 0
    # What a worker of the I/O service has read, the query finds.
    least = 0 if variant.method == "worker" else read_without
    assert least <= read_with <= read_without + wasted + index_pages
    if variant.method != "aio":
        assert hit_with + read_with >= hit_without + read_without


def test_block_statistics(cluster: Cluster, variant: Variant) -> None:
    """pg_statio counts what the query asked for; look-ahead's reads by aio are extra."""
    create(cluster)
    # Other tests have filled shared buffers: pages may have to go at any time.
    for _ in range(5):
        found = []
        for enabled in (False, True):
            with session_for(cluster, variant, enabled=enabled) as connection:
                rows(connection, QUERIES["range"])
                reset_statistics(connection)
                with gained(connection) as change:
                    rows(connection, QUERIES["range"])
                assert (change.scans > 0) == enabled
                connection.execute("SELECT pg_stat_force_next_flush()")
                found.append(rows(connection, BLOCKS))
        if found[0] == found[1]:
            break
    assert found[0] == found[1]


STATEMENT = """
SELECT calls, rows, shared_blks_hit, shared_blks_read FROM pg_stat_statements
 WHERE query LIKE 'SELECT a, filler FROM measured WHERE a > %'
"""


@pytest.mark.parametrize(
    "order", ["pg_lookahead, pg_stat_statements", "pg_stat_statements, pg_lookahead"]
)
def test_pg_stat_statements(own_cluster: NewCluster, order: str) -> None:
    """Whoever's hooks come first, a statement is counted once, with its own blocks."""
    try:
        cluster = own_cluster({"shared_preload_libraries": order}, preload=False)
    except LookaheadError:
        pytest.skip("this server comes without pg_stat_statements")
    need_extensions(cluster, "pg_stat_statements")
    create(cluster)
    with LogWatch(cluster), connect(cluster) as connection:
        settings(connection, **INDEX_SCANS, enable_sort="off", pg_lookahead__method="advice",
                 pg_lookahead__start_after=0)  # fmt: skip
        assert value(connection, "SHOW shared_preload_libraries") == order
        found = {}
        for cached in (False, True):
            for enabled in ("off", "on"):
                settings(connection, pg_lookahead__enabled=enabled)
                if not cached:
                    cold(connection, "measured")
                value(connection, "SELECT count(pg_stat_statements_reset() IS NULL)")
                with gained(connection) as change:
                    returned = len(rows(connection, QUERIES["range"]))
                assert (change.scans > 0) == (enabled == "on")
                [found[cached, enabled]] = rows(connection, STATEMENT)
    assert found[True, "on"] == found[True, "off"] == (1, returned, found[True, "off"][2], 0)
    calls, counted, _, read = found[False, "on"]
    assert (calls, counted, read) == (1, returned, found[False, "off"][3])
    assert read > 0
    cluster.close()
