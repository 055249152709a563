"""Access methods from outside the server: pgvector's HNSW and IVFFlat."""

from __future__ import annotations

import pytest
from lookahead.cluster import Cluster

from conftest import NewCluster
from support import (
    INDEX_SCANS,
    Connection,
    Variant,
    cold,
    connect,
    gained,
    has_extension,
    ice_cold,
    plan_nodes,
    require_node,
    rows,
    rows_without,
    script,
    settings,
    use,
    value,
)

ROWS = 3000
PROBES = 60

SETUP = f"""
SELECT setseed(0.5);
CREATE TABLE vectors (id int, v vector(8), filler text) WITH (fillfactor = 20);
INSERT INTO vectors
SELECT i, ('[' || random() || ',' || random() || ',' || random() || ',' || random() || ','
           || random() || ',' || random() || ',' || random() || ',' || random() || ']')::vector,
       repeat('x', 150) FROM generate_series(1, {ROWS}) i;
CREATE TABLE copies AS SELECT * FROM vectors;
CREATE INDEX vectors_hnsw ON vectors USING hnsw (v vector_l2_ops);
CREATE INDEX copies_ivfflat ON copies USING ivfflat (v vector_l2_ops) WITH (lists = 20);
VACUUM ANALYZE vectors; VACUUM ANALYZE copies
"""

INDEXES = {"hnsw": ("vectors", "vectors_hnsw"), "ivfflat": ("copies", "copies_ivfflat")}

TARGET = "'[0.5,0.5,0.4,0.6,0.1,0.9,0.5,0.5]'"


def nearest(table: str, limit: int, where: str = "") -> str:
    return f"SELECT id, filler FROM {table} {where} ORDER BY v <-> {TARGET} LIMIT {limit}"


@pytest.fixture
def vectors(cluster: Cluster) -> Cluster:
    if not has_extension(cluster, "vector"):
        pytest.skip("this server has no pgvector")
    create(cluster)
    return cluster


def create(cluster: Cluster) -> None:
    with connect(cluster) as connection:
        if value(connection, "SELECT to_regclass('copies')") is None:
            connection.execute("SET client_min_messages = error")
            script(connection, SETUP)


def start(cluster: Cluster, **more: object) -> Connection:
    connection = connect(cluster)
    settings(connection, **{**INDEX_SCANS, "enable_sort": "off"})
    # Loads pgvector, which defines its settings.
    value(connection, "SELECT '[1]'::vector::text")
    settings(connection, hnsw__ef_search=200, ivfflat__probes=PROBES // 6, **more)
    return connection


@pytest.mark.parametrize("kind", INDEXES)
def test_same_rows(vectors: Cluster, variant: Variant, kind: str) -> None:
    table, index = INDEXES[kind]
    with start(vectors) as connection:
        for query in (
            nearest(table, 1),
            nearest(table, 10),
            nearest(table, 150),
            nearest(table, 60, "WHERE id % 3 = 0"),
        ):
            require_node(connection, query, "Index Scan", index)
            without = rows_without(connection, query)
            use(connection, variant)
            cold(connection, table)
            with gained(connection) as change:
                assert rows(connection, query) == without
            assert len(without) > 0
            assert change.scans == 1
            assert not change.errors
            if "LIMIT 150" in query:
                assert (change.blocks_issued > 0) == variant.reads


@pytest.mark.parametrize("kind", INDEXES)
def test_distances_are_right(vectors: Cluster, variant: Variant, kind: str) -> None:
    """Against a scan without index, as far as an approximate index goes."""
    table, index = INDEXES[kind]
    query = f"SELECT v <-> {TARGET} AS d, id FROM {table} ORDER BY v <-> {TARGET} LIMIT 100"
    with start(vectors) as connection:
        require_node(connection, query, "Index Scan", index)
        use(connection, variant)
        cold(connection, table)
        found = rows(connection, query)
        exact = {i: d for d, i in rows(connection, f"SELECT v <-> {TARGET}, id FROM {table}")}
        assert [d for d, _ in found] == sorted(d for d, _ in found)
        assert all(exact[i] == d for d, i in found)
        best = sorted(exact, key=lambda i: exact[i])[:100]
        assert len(set(best) & {i for _, i in found}) > 50


@pytest.mark.parametrize("kind", INDEXES)
def test_cursor_and_rescan(vectors: Cluster, variant: Variant, kind: str) -> None:
    table, _ = INDEXES[kind]
    lateral = (
        f"SELECT t.id, n.id FROM (SELECT id, v FROM {table} ORDER BY id LIMIT 8) t,"
        f" LATERAL (SELECT id, filler FROM {table} u ORDER BY u.v <-> t.v LIMIT 20) n"
    )
    with start(vectors) as connection:
        settings(connection, enable_sort="on", pg_lookahead__enabled="off")
        nodes = plan_nodes(connection, lateral)
        assert any(node["Node Type"] == "Index Scan" for node in nodes)
        without = rows(connection, lateral)
        by_cursor = rows(connection, nearest(table, 120))
        settings(connection, pg_lookahead__enabled="on")
        use(connection, variant)
        cold(connection, table)
        with gained(connection):
            assert rows(connection, lateral) == without
        cold(connection, table)
        with gained(connection):
            connection.execute("BEGIN")
            connection.execute(f"DECLARE c CURSOR FOR {nearest(table, 120)}")
            found = rows(connection, "FETCH 7 FROM c")
            found += rows(connection, "FETCH 50 FROM c") + rows(connection, "FETCH ALL FROM c")
            connection.execute("COMMIT")
        assert found == by_cursor


def test_changes_meanwhile(vectors: Cluster, variant: Variant) -> None:
    """Rows come and go, and VACUUM repairs the graph, under a cursor."""
    with start(vectors) as connection, start(vectors) as other:
        connection.execute("DROP TABLE IF EXISTS moving")
        connection.execute("CREATE TABLE moving AS SELECT * FROM vectors")
        connection.execute("CREATE INDEX moving_v ON moving USING hnsw (v vector_l2_ops)")
        query = nearest("moving", 150)
        require_node(connection, query, "Index Scan", "moving_v")
        use(connection, variant)
        cold(connection, "moving")
        expected = rows(connection, query)
        settings(other, statement_timeout="60s")
        connection.execute("BEGIN ISOLATION LEVEL REPEATABLE READ")
        connection.execute(f"DECLARE c CURSOR FOR {query}")
        found = rows(connection, "FETCH 10 FROM c")
        ids = ", ".join(str(i) for i, _ in expected[::3])
        other.execute(f"DELETE FROM moving WHERE id IN ({ids})")
        other.execute("INSERT INTO moving SELECT id + 10000, v, 'new' FROM vectors WHERE id < 200")
        other.execute("VACUUM moving")
        found += rows(connection, "FETCH ALL FROM c")
        connection.execute("COMMIT")
        assert len(found) > 10
        order = [i for i, _ in expected]
        positions = [order.index(i) for i, _ in found if i in order]
        assert positions == sorted(positions)
        connection.execute("DROP TABLE moving")


@pytest.fixture(scope="module")
def defaults(own_cluster: NewCluster) -> Cluster:
    cluster = own_cluster({"pg_lookahead.start_after": "8", "shared_buffers": "16MB"})
    if not has_extension(cluster, "vector"):
        pytest.skip("this server has no pgvector")
    create(cluster)
    return cluster


@pytest.mark.parametrize("limit", [1, 5, 8])
@pytest.mark.parametrize("kind", INDEXES)
def test_stays_out_of_small_limits(defaults: Cluster, kind: str, limit: int) -> None:
    """By itself: the second search would cost more than it could save."""
    table, index = INDEXES[kind]
    query = nearest(table, limit)
    with start(defaults) as connection:
        require_node(connection, query, "Index Scan", index)
        ice_cold(defaults, connection, table)
        with gained(connection) as change:
            assert len(rows(connection, query)) == limit
        assert change.scans == change.blocks_issued == 0


@pytest.mark.parametrize("kind", INDEXES)
def test_stays_out_of_cached_data(defaults: Cluster, kind: str) -> None:
    table, index = INDEXES[kind]
    query = nearest(table, 150)
    with start(defaults) as connection:
        require_node(connection, query, "Index Scan", index)
        rows(connection, query)
        with gained(connection) as change:
            assert len(rows(connection, query)) > 100
        assert change.scans == change.blocks_issued == 0
