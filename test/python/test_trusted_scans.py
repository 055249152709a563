"""Index scans that are started again and again while nothing is read.

After some rounds the scan of a B-tree is trusted (hook/index_am.c): it is not looked
at before this backend reads something, whatever that is.
"""

from __future__ import annotations

import random

import psycopg
import pytest
from lookahead.cluster import Cluster

from conftest import NewCluster
from support import (
    INDEX_SCANS,
    Connection,
    cold,
    connect,
    evict_tablespaces,
    gained,
    once,
    plan_nodes,
    rows,
    rows_without,
    script,
    seed,
    settings,
    slow_tablespace,
    value,
)

NESTED_LOOPS = {
    **INDEX_SCANS,
    "enable_seqscan": "on",
    "enable_hashjoin": "off",
    "enable_mergejoin": "off",
    "enable_material": "off",
    "enable_memoize": "off",
}

# Keys 0 to 199; each has so many rows, which lie far apart.
SETUP = """
CREATE TABLE rounds (k int, id int);
INSERT INTO rounds SELECT i, i FROM generate_series(0, 199) i;
CREATE TABLE inner_one (id int, k int, n int, filler text) WITH (fillfactor = 20);
INSERT INTO inner_one
SELECT row_number() OVER (ORDER BY md5(k || '.' || i)), k, i, repeat('x', 300)
  FROM generate_series(0, 199) k, generate_series(1, 9) i WHERE i <= k % 5 + k / 190 * 4;
CREATE TABLE inner_two (id int, k int, filler text) WITH (fillfactor = 20);
INSERT INTO inner_two SELECT id, (id * 7) % 200, filler FROM inner_one;
CREATE INDEX inner_one_k ON inner_one (k, id);
CREATE INDEX inner_two_k ON inner_two (k);
VACUUM ANALYZE rounds, inner_one, inner_two;
"""

FUNCTIONS = (
    """
CREATE FUNCTION rows_of_inner_one(key int) RETURNS bigint LANGUAGE plpgsql STABLE
AS 'BEGIN RETURN (SELECT count(filler) FROM inner_one WHERE k = key); END'
""",
    """
CREATE FUNCTION fails_in_rounds(key int, bad int) RETURNS int LANGUAGE plpgsql STABLE AS $$
DECLARE result int;
BEGIN
    SELECT sum(1 / (o.k - bad) + length(i.filler)) INTO result
      FROM rounds o JOIN inner_one i ON i.k = o.k WHERE o.k <= key;
    RETURN result;
EXCEPTION WHEN division_by_zero THEN
    RETURN -1;
END $$
""",
)

# Each has an inner scan that is started for every row of "rounds".
QUERIES = {
    "rows": "SELECT o.k, i.id FROM rounds o JOIN inner_one i ON i.k = o.k"
    " WHERE i.filler IS NOT NULL ORDER BY 1, 2",
    "index_only": "SELECT o.k, i.id FROM rounds o JOIN inner_one i ON i.k = o.k ORDER BY 1, 2",
    "backward": "SELECT o.k, (SELECT array_agg(id) FROM (SELECT id, filler FROM inner_one"
    " WHERE k = o.k ORDER BY k DESC, id DESC OFFSET 0) b) FROM rounds o ORDER BY 1",
    "three": "SELECT o.k, i.id, j.id FROM rounds o JOIN inner_one i ON i.k = o.k"
    " JOIN inner_two j ON j.k = i.n WHERE j.filler <> i.filler || 'y' ORDER BY 1, 2, 3",
    "one_index_twice": "SELECT o.k, i.id, j.id FROM rounds o JOIN inner_one i ON i.k = o.k"
    " JOIN inner_one j ON j.k = i.n AND j.id > i.id WHERE j.filler IS NOT NULL ORDER BY 1, 2, 3",
    "exists": "SELECT k FROM rounds o WHERE EXISTS (SELECT FROM inner_one i"
    " WHERE i.k = o.k AND i.filler IS NOT NULL) ORDER BY 1",
    "limits": "SELECT o.k, i.id FROM rounds o, LATERAL (SELECT id FROM inner_one"
    " WHERE k = o.k AND filler IS NOT NULL ORDER BY k, id LIMIT 1 + o.k % 3) i ORDER BY 1, 2",
    "the_index_in_a_function": "SELECT o.k, i.id, rows_of_inner_one(o.k) FROM rounds o"
    " JOIN inner_one i ON i.k = o.k WHERE i.filler IS NOT NULL ORDER BY 1, 2",
    "errors_within": "SELECT o.k, i.id,"
    " CASE WHEN o.k % 20 = 7 THEN fails_in_rounds(o.k, o.k - 3) END"
    " FROM rounds o JOIN inner_one i ON i.k = o.k WHERE i.filler IS NOT NULL ORDER BY 1, 2",
    "marks": "SELECT o.k, m.* FROM rounds o, LATERAL (SELECT i.id AS one, j.id AS two"
    " FROM (SELECT k, id, filler FROM inner_one WHERE k = o.k AND filler IS NOT NULL"
    " ORDER BY k, id OFFSET 0) i JOIN (SELECT k, id, filler FROM inner_one"
    " WHERE k = o.k ORDER BY k, id OFFSET 0) j USING (k)) m ORDER BY 1, 2, 3",
    "union": "SELECT o.k, i.id FROM rounds o, LATERAL (SELECT id FROM inner_one WHERE k = o.k"
    " UNION ALL SELECT id FROM inner_two WHERE k = o.k) i ORDER BY 1, 2",
}

PATIENCE = (1, 8)

# As in src/source/scout.h.
FREE_ENTRIES = 100_000


@pytest.fixture
def connection(cluster: Cluster) -> Connection:
    with connect(cluster) as connection:
        if once(connection, "rounds", SETUP):
            for function in FUNCTIONS:
                connection.execute(function)
        settings(connection, **NESTED_LOOPS)
        yield connection


def require_inner_scan(connection: Connection, query: str) -> None:
    nodes = plan_nodes(connection, query)
    inner = [
        node
        for node in nodes
        if node["Node Type"] in ("Index Scan", "Index Only Scan")
        and node["Index Name"] == "inner_one_k"
        and "o.k" in node.get("Index Cond", "")
    ]
    assert inner, nodes


@pytest.mark.parametrize("patience", PATIENCE)
@pytest.mark.parametrize("name", QUERIES)
def test_answers(connection: Connection, name: str, patience: int) -> None:
    """In shared buffers, out of them, and with parts in them."""
    query = QUERIES[name]
    settings(connection, pg_lookahead__start_after=patience)
    require_inner_scan(connection, query)
    expected = rows_without(connection, query)
    assert len(expected) > 150
    for state in ("cached", "cold", "in part", "cached"):
        if state != "cached":
            cold(connection, "inner_one", "inner_two")
        if state == "in part":
            rows(connection, "SELECT filler FROM inner_one WHERE k < 100")
        with gained(connection) as change:
            assert rows(connection, query) == expected, state
        assert not change.errors


MARKED = """
CREATE TABLE marked_outer (k int, m int, filler text);
INSERT INTO marked_outer SELECT k, 2 * m, repeat('x', 300)
  FROM generate_series(0, 199) k, generate_series(0, 3) m, generate_series(1, 2);
CREATE TABLE marked_inner (k int, m int, filler text) WITH (fillfactor = 20);
INSERT INTO marked_inner SELECT k, 2 * m + CASE WHEN k < 60 THEN 1 ELSE 0 END, repeat('x', 300)
  FROM generate_series(0, 199) k, generate_series(0, 3) m, generate_series(1, 3)
 ORDER BY md5(k || '.' || m);
CREATE INDEX marked_outer_k ON marked_outer (k, m);
CREATE INDEX marked_inner_k ON marked_inner (k, m);
VACUUM ANALYZE marked_outer, marked_inner;
"""


@pytest.mark.parametrize("patience", PATIENCE)
@pytest.mark.parametrize(
    ("kind", "shown"), [("Index Scan", "r.ctid, r.filler"), ("Index Only Scan", "r.m")]
)
def test_marks_after_rounds_without(
    connection: Connection, patience: int, kind: str, shown: str
) -> None:
    """A merge join that is done again and again goes back when it finds something at last.

    By then its scans are trusted, if all is in shared buffers; the answers are the same.
    """
    once(connection, "marked_outer", MARKED)
    settings(
        connection,
        pg_lookahead__start_after=patience,
        enable_nestloop="off",
        enable_mergejoin="on",
        enable_sort="off",
    )
    query = (
        "SELECT o.k, s.* FROM rounds o, LATERAL (SELECT l.m, length(l.filler),"
        f" {shown} FROM marked_outer l JOIN marked_inner r USING (m)"
        " WHERE l.k = o.k AND r.k = o.k OFFSET 0) s"
    )
    nodes = plan_nodes(connection, query)
    (join,) = (node for node in nodes if node["Node Type"] == "Merge Join")
    inner = join["Plans"][1]
    assert (inner["Node Type"], inner["Index Name"]) == (kind, "marked_inner_k")
    settings(connection, pg_lookahead__enabled="off")
    expected = sorted(rows(connection, query))
    assert len(expected) == (200 - 60) * 4 * 2 * 3
    settings(connection, pg_lookahead__enabled="on")
    for state in ("cached", "cold", "in part", "cached"):
        if state != "cached":
            cold(connection, "marked_outer", "marked_inner")
        if state == "in part":
            rows(connection, "SELECT count(filler) FROM marked_outer WHERE k < 100")
            rows(connection, "SELECT count(filler) FROM marked_inner WHERE k < 100")
        with gained(connection) as change:
            assert sorted(rows(connection, query)) == expected, state
        assert not change.errors


@pytest.mark.parametrize("patience", PATIENCE)
def test_cursors_side_by_side(connection: Connection, patience: int) -> None:
    """Several are trusted at a time, of the same and other indexes, and some are broken off."""
    settings(connection, pg_lookahead__start_after=patience, cursor_tuple_fraction=1)
    choice = random.Random(f"{seed()} {patience}")
    names = [name for name in QUERIES if name != "errors_within"]
    # Without a sort above the join, which would run it at once.
    queries = {name: QUERIES[name].rsplit(" ORDER BY ", 1)[0] for name in names}
    expected = {name: rows_without(connection, query) for name, query in queries.items()}
    for _ in range(6):
        cold(connection, "inner_one" if choice.random() < 0.5 else "inner_two")
        connection.execute("BEGIN")
        found: dict[str, list[object]] = {}
        for name in choice.sample(names, 4):
            connection.execute(f"DECLARE c_{name} CURSOR FOR {queries[name]}")
            found[name] = []
        for _ in range(40):
            name = choice.choice(list(found))
            found[name] += rows(connection, f"FETCH {choice.choice([1, 10, 60])} FROM c_{name}")
            if choice.random() < 0.2:
                connection.execute("SAVEPOINT s")
                with pytest.raises(psycopg.errors.DivisionByZero):
                    rows(
                        connection,
                        "SELECT 1 / (o.k - 151) FROM rounds o JOIN inner_one i ON i.k = o.k"
                        " WHERE i.filler IS NOT NULL",
                    )
                connection.execute("ROLLBACK TO s")
        for name, some in found.items():
            if choice.random() < 0.7:
                some += rows(connection, f"FETCH ALL FROM c_{name}")
                assert some == expected[name], name
            else:
                assert some == expected[name][: len(some)], name
        connection.execute("COMMIT")


def test_the_index_of_a_cursor_that_failed_is_dropped(connection: Connection) -> None:
    """Its memory stays until the cursor is closed, and its index does not."""
    settings(connection, pg_lookahead__start_after=8, cursor_tuple_fraction=1)
    script(
        connection,
        "CREATE TABLE leaving (k int, filler text);"
        "INSERT INTO leaving SELECT g % 60, repeat('x', 100) FROM generate_series(1, 6000) g;"
        "CREATE INDEX leaving_k ON leaving (k);"
        "VACUUM ANALYZE leaving",
    )
    query = "SELECT 1 / (o.k - {}), filler FROM rounds o JOIN leaving USING (k) WHERE o.k < 60"
    other = QUERIES["rows"]
    expected = rows(connection, other)
    for _ in range(2):
        assert len(rows(connection, query.format(99))) == 6000
    connection.execute("BEGIN")
    connection.execute(f"DECLARE c CURSOR FOR {query.format(40)}")
    assert len(rows(connection, "FETCH 1500 FROM c")) == 1500
    connection.execute("SAVEPOINT s")
    with pytest.raises(psycopg.errors.DivisionByZero):
        rows(connection, "FETCH ALL FROM c")
    connection.execute("ROLLBACK TO s")
    for statement in ("SELECT 1", "DROP INDEX leaving_k"):
        connection.execute(statement)
        cold(connection, "inner_one")
        for _ in range(3):
            assert rows(connection, other) == expected
    connection.execute("ROLLBACK")
    connection.execute("DROP TABLE leaving")


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize(
    ("passed", "cached"),
    [(0, "59"), (3000, "59"), (0, "59 AND k NOT IN (3, 40)"), (FREE_ENTRIES + 20000, "59")],
)
def test_a_cold_round_after_many_that_were_cached(
    new_cluster: NewCluster, passed: int, cached: str, workers: int
) -> None:
    """What is trusted is looked at again as soon as something is read.

    That may be in the middle of a round, more entries from its start than a scout would
    search for a scan that has lost a few.  It may have been followed before, for a round
    that was not cached, and have been left alone again after some that were.  There is an
    end to the search: where it has not come to the scan by then, nothing is read ahead.
    """
    blocks = 400
    cluster = new_cluster()
    with slow_tablespace(cluster, read_us=2000):
        with connect(cluster) as connection:
            script(
                connection,
                f"""
                CREATE TABLE groups WITH (parallel_workers = 2) AS
                  SELECT i AS k FROM generate_series(1, 60) i;
                CREATE TABLE skewed (k int, place int, filler text)
                  WITH (fillfactor = 10) TABLESPACE slow;
                INSERT INTO skewed SELECT 1 + i % 59, i, repeat('x', 700)
                  FROM generate_series(1, 120) i;
                ALTER TABLE skewed SET (fillfactor = {100 if passed > FREE_ENTRIES else 10});
                INSERT INTO skewed SELECT 60, -i, 'x' FROM generate_series(1, {passed}) i;
                ALTER TABLE skewed SET (fillfactor = 10);
                INSERT INTO skewed SELECT 60, (i * 149) % {blocks}, repeat('x', 700)
                  FROM generate_series(1, {blocks}) i;
                CREATE INDEX skewed_k ON skewed (k, place) TABLESPACE slow;
                VACUUM ANALYZE groups, skewed;
                """,
            )
        cluster.restart()
        evict_tablespaces(cluster)
        with connect(cluster) as connection:
            settings(connection, **NESTED_LOOPS)
            settings(
                connection,
                pg_lookahead__start_after=8,
                max_parallel_workers_per_gather=workers,
                min_parallel_table_scan_size="0",
                parallel_setup_cost="0",
                parallel_tuple_cost="0",
                parallel_leader_participation="off",
            )
            query = "SELECT sum(length(filler)) FROM groups JOIN skewed USING (k) WHERE k <= {}"
            nodes = plan_nodes(connection, query.format(60))
            assert ("Gather" in {node["Node Type"] for node in nodes}) == (workers > 0)
            (inner,) = (node for node in nodes if node["Node Type"] == "Index Scan")
            assert inner["Index Cond"] == "(k = groups.k)", inner
            settings(connection, pg_lookahead__enabled="off")
            rows(connection, query.format(cached))
            settings(connection, enable_seqscan="off")
            rows(connection, "SELECT count(filler) FROM skewed WHERE k = 60 AND place < -1")
            settings(connection, pg_lookahead__enabled="on", enable_seqscan="on")
            seen = (
                "SELECT coalesce(sum(blocks_issued), 0) FROM pg_stat_lookahead"
                " WHERE relname = 'skewed'"
            )
            before = value(connection, seen)
            assert value(connection, query.format(60)) == 700 * (120 + blocks) + passed
            issued = value(connection, seen) - before
            if passed < FREE_ENTRIES:
                assert issued > blocks // 2, issued
            else:
                assert issued == 0
