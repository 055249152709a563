"""Parallel index scans and index-only scans: same rows, and all processes look ahead."""

from __future__ import annotations

import json
import re
from typing import Any

import pytest
from lookahead.cluster import Cluster

from support import (
    SEQUENTIAL_SCANS,
    Connection,
    Row,
    Variant,
    cold,
    connect,
    gained,
    once,
    plan_nodes,
    rows,
    rows_without,
    settings,
    use,
    value,
)

# Workers that are not needed any more are told so in this way.
pytestmark = pytest.mark.log_may_have('terminating background worker "parallel worker"')

PARALLEL = {
    "enable_seqscan": "off",
    "enable_bitmapscan": "off",
    "enable_sort": "off",
    "max_parallel_workers_per_gather": "2",
    "parallel_setup_cost": "0",
    "parallel_tuple_cost": "0",
    "min_parallel_index_scan_size": "0",
    "min_parallel_table_scan_size": "0",
    # Only what is divided between the workers costs anything.
    "random_page_cost": "0",
    "seq_page_cost": "0",
    "cpu_tuple_cost": "10",
}

SETUP = """
CREATE TABLE shared_out (id int, a int, b int, filler text)
  WITH (fillfactor = 20, autovacuum_enabled = off);
INSERT INTO shared_out SELECT i, (i * 7919) % 6007, i % 100, repeat('x', 100)
  FROM generate_series(1, 6000) i;
ALTER TABLE shared_out SET (parallel_workers = 2);
CREATE INDEX shared_out_a ON shared_out (a);
CREATE INDEX shared_out_ba ON shared_out (b, a);
VACUUM ANALYZE shared_out;
UPDATE shared_out SET filler = 'y' WHERE id % 2 = 0;
DELETE FROM shared_out WHERE id % 7 = 0;
CREATE TABLE shared_keys AS SELECT g AS k FROM generate_series(1, 100) g;
ANALYZE shared_keys;
"""

# name: (query, kind of the parallel scan, is the order of the rows given?)
QUERIES = {
    "range": (
        "SELECT count(*), sum(length(filler)), sum(a) FROM shared_out WHERE a BETWEEN 500 AND 5500",
        "Index Scan",
        True,
    ),
    "merge": ("SELECT a, filler FROM shared_out WHERE a > 300 ORDER BY a", "Index Scan", True),
    "backward": ("SELECT a, filler FROM shared_out ORDER BY a DESC", "Index Scan", True),
    "list": (
        "SELECT count(*), sum(a), sum(length(filler)) FROM shared_out"
        f" WHERE b IN ({', '.join(map(str, range(3, 99, 2)))}) AND a > 1000",
        "Index Scan",
        False,
    ),
    "index_only": ("SELECT a FROM shared_out WHERE a > 300 ORDER BY a", "Index Only Scan", True),
    "limit": ("SELECT a, filler FROM shared_out ORDER BY a LIMIT 700", "Index Scan", True),
    "join": (
        "SELECT k, sum(o.id) FROM shared_out o JOIN shared_keys ON b = k"
        " WHERE a > 2000 AND o.filler <> '' GROUP BY k",
        "Index Scan",
        False,
    ),
}


def create(cluster: Cluster) -> None:
    with connect(cluster) as connection:
        once(connection, "shared_out", SETUP)


def require_parallel(connection: Connection, query: str, kind: str) -> None:
    nodes = plan_nodes(connection, query)
    assert any(node["Node Type"].startswith("Gather") for node in nodes), nodes
    assert any(node["Node Type"] == kind and node["Parallel Aware"] for node in nodes), nodes


def comparable(found: list[Row], is_ordered: bool) -> list[Row]:
    return found if is_ordered else sorted(found, key=repr)


@pytest.mark.parametrize("leader", ["on", "off"])
@pytest.mark.parametrize("name", QUERIES)
def test_same_rows(cluster: Cluster, variant: Variant, name: str, leader: str) -> None:
    create(cluster)
    query, kind, is_ordered = QUERIES[name]
    with connect(cluster) as connection:
        settings(connection, **PARALLEL, parallel_leader_participation=leader)
        if name == "join":
            settings(connection, enable_mergejoin="off", enable_nestloop="off")
        require_parallel(connection, query, kind)

        without = comparable(rows_without(connection, query), is_ordered)
        use(connection, variant)
        connection.execute("SELECT pg_stat_lookahead_reset()")
        cold(connection, "shared_out")
        assert comparable(rows(connection, query), is_ordered) == without
        issued, balanced = rows(
            connection,
            "SELECT blocks_issued, blocks_issued = blocks_used + blocks_wasted"
            " FROM pg_stat_lookahead WHERE relname = 'shared_out'",
        )[0]
        assert balanced
        assert (issued > 0) == variant.reads

        settings(connection, **{**SEQUENTIAL_SCANS, "enable_sort": "on"})
        assert comparable(rows(connection, query), is_ordered) == without


def look_ahead_of(connection: Connection, query: str) -> list[dict[str, Any]]:
    """Return what EXPLAIN shows of look-ahead in the table, as it is in 18 or before."""
    text = value(connection, f"EXPLAIN (ANALYZE, BUFFERS, SUMMARY, FORMAT json) {query}")
    document = text if isinstance(text, list) else json.loads(text)
    found = [
        entry
        for entry in document[0].get("Look-Ahead", [])
        if entry["Looks Ahead Of"] != "index leaf pages"
    ]

    def walk(node: dict[str, Any]) -> None:
        if "Look-Ahead" in node:
            found.append(node["Look-Ahead"])
        for child in node.get("Plans", []):
            walk(child)

    walk(document[0]["Plan"])
    return found


@pytest.mark.parametrize("leader", ["on", "off"])
def test_explain_shows_the_workers_share(cluster: Cluster, variant: Variant, leader: str) -> None:
    create(cluster)
    query = QUERIES["range"][0]
    with connect(cluster) as connection:
        settings(connection, **PARALLEL, parallel_leader_participation=leader)
        use(connection, variant)
        require_parallel(connection, query, "Index Scan")
        for _ in range(2):
            connection.execute("SELECT pg_stat_lookahead_reset()")
            cold(connection, "shared_out")
            with gained(connection) as own:
                shown = look_ahead_of(connection, query)
            assert len(shown) == 1
            total = value(
                connection,
                "SELECT blocks_issued FROM pg_stat_lookahead WHERE relname = 'shared_out'",
            )
            assert shown[0]["Blocks Issued"] == total
            if variant.reads:
                assert total > 0
                assert leader == "on" or own.blocks_issued == 0
            assert re.fullmatch(r"advice|aio|worker|none|parallel workers", str(shown[0]["Method"]))


BESIDE = """
CREATE TABLE beside (a int, filler text) WITH (fillfactor = 20, autovacuum_enabled = off);
INSERT INTO beside SELECT i, repeat('x', 700) FROM generate_series(1, 6000) i;
ALTER TABLE beside SET (parallel_workers = 2);
CREATE INDEX beside_a ON beside (a);
VACUUM ANALYZE beside
"""

# What a function does that the leader, or a worker, runs, and a query that has it called once.
# The scans of both have the same place in their plans, in which there are no subqueries: the
# server numbers those, too, and then leaves them out.
OTHERS = {
    "leader": (
        "RESTRICTED",
        "SELECT count(*), sum(length(filler)), pg_backend_pid() FROM beside WHERE a > 0",
        "SELECT count(*), sum(length(filler)), scan_beside() FROM shared_out WHERE a > 500",
    ),
    "worker": (
        "SAFE",
        "SELECT DISTINCT count(*) FROM beside WHERE a > 0 GROUP BY length(filler) LIMIT 9",
        "SELECT count(*), sum(length(filler)) FROM shared_out"
        " WHERE a > 500 AND (a <> 3001 OR scan_beside())",
    ),
}


@pytest.mark.parametrize("who", OTHERS)
def test_another_plan_meanwhile(cluster: Cluster, variant: Variant, who: str) -> None:
    """What is counted for a node of it is not shown with the same node of the outer plan."""
    if not variant.reads:
        pytest.skip("reads nothing")
    create(cluster)
    safety, inner, outer = OTHERS[who]
    with connect(cluster) as connection:
        once(connection, "beside", BESIDE)
        connection.execute(
            f"CREATE OR REPLACE FUNCTION scan_beside() RETURNS boolean PARALLEL {safety}"
            " LANGUAGE plpgsql AS"
            f" $$BEGIN PERFORM {inner.removeprefix('SELECT ')}; RETURN true; END$$"
        )
        settings(connection, **PARALLEL, parallel_leader_participation="off")
        use(connection, variant)
        require_parallel(connection, outer, "Index Scan")
        kinds = [[str(node["Node Type"]) for node in plan_nodes(connection, outer)]]
        # A worker has none of its own.
        settings(connection, max_parallel_workers_per_gather=2 if who == "leader" else 0)
        kinds.append([str(node["Node Type"]) for node in plan_nodes(connection, inner)])
        settings(connection, max_parallel_workers_per_gather=2)
        assert len({nodes.index("Index Scan") for nodes in kinds}) == 1, kinds
        assert value(connection, "SELECT count(*) FROM shared_out WHERE a = 3001") == 1
        # Where no worker can be had the leader does all, and shows it.
        for _ in range(3):
            connection.execute("SELECT pg_stat_lookahead_reset()")
            cold(connection, "shared_out", "beside")
            entries = look_ahead_of(connection, outer)
            shown = sum(int(entry["Blocks Issued"]) for entry in entries)
            assert issued(connection, "beside") > issued(connection, "shared_out") > 0
            # What workers have counted is gone when the leader begins another plan.
            expected = 0 if who == "leader" else issued(connection, "shared_out")
            if shown == expected:
                break
        assert shown == expected


def issued(connection: Connection, table: str) -> int:
    """What all processes have asked for since the last reset, of a table."""
    query = f"SELECT sum(blocks_issued) FROM pg_stat_lookahead WHERE relname = '{table}'"
    return int(value(connection, query) or 0)


def test_rescans(cluster: Cluster, variant: Variant) -> None:
    """A Gather below a nested loop starts its workers again and again."""
    create(cluster)
    query = (
        "SELECT k, (SELECT sum(length(filler)) FROM (SELECT * FROM shared_out WHERE b = 7"
        " OFFSET 0) o WHERE o.a % 100 = 5) FROM shared_keys WHERE k < 5"
    )
    with connect(cluster) as connection:
        settings(connection, **PARALLEL, pg_lookahead__enabled="off")
        require_parallel(connection, query, "Index Scan")
        without = rows(connection, query)
        settings(connection, pg_lookahead__enabled="on")
        use(connection, variant)
        connection.execute("SELECT pg_stat_lookahead_reset()")
        cold(connection, "shared_out")
        assert rows(connection, query) == without
        assert (issued(connection, "shared_out") > 0) == variant.reads


def test_error_in_a_worker(cluster: Cluster, variant: Variant) -> None:
    create(cluster)
    query = "SELECT sum(1 / (a - 3001)), sum(length(filler)) FROM shared_out WHERE a > 100"
    with connect(cluster) as connection:
        settings(connection, **PARALLEL)
        use(connection, variant)
        require_parallel(connection, query, "Index Scan")
        for leader in ("on", "off"):
            settings(connection, parallel_leader_participation=leader)
            cold(connection, "shared_out")
            with pytest.raises(Exception, match="division by zero"):
                rows(connection, query)
        with gained(connection):
            assert rows(connection, QUERIES["range"][0])


def test_cursor(cluster: Cluster, variant: Variant) -> None:
    """A cursor over a parallel plan is fetched from without one."""
    create(cluster)
    query, kind, _ = QUERIES["merge"]
    with connect(cluster) as connection:
        settings(connection, **PARALLEL)
        require_parallel(connection, query, kind)
        expected = rows_without(connection, query)
        use(connection, variant)
        cold(connection, "shared_out")
        with gained(connection) as change:
            connection.execute("BEGIN")
            connection.execute(f"DECLARE c NO SCROLL CURSOR FOR {query}")
            found = rows(connection, "FETCH 10 FROM c") + rows(connection, "FETCH ALL FROM c")
            connection.execute("COMMIT")
        assert found == expected
        assert (change.blocks_issued > 0) == variant.reads


def test_no_worker_to_be_had(cluster: Cluster, variant: Variant) -> None:
    """A parallel plan whose leader has to do it all."""
    create(cluster)
    query, kind, _ = QUERIES["merge"]
    with connect(cluster) as connection:
        settings(connection, **PARALLEL)
        require_parallel(connection, query, kind)
        expected = rows(connection, query)
        use(connection, variant, max_parallel_workers=0)
        require_parallel(connection, query, kind)
        for leader in ("on", "off"):
            settings(connection, parallel_leader_participation=leader)
            cold(connection, "shared_out")
            with gained(connection) as change:
                assert rows(connection, query) == expected
            assert (change.blocks_issued > 0) == variant.reads
