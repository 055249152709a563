"""Look-ahead of the leaf pages of B-trees: same rows, the right pages, none in vain.

Each query runs without look-ahead, with that of table blocks only, with that of
leaf pages, too, and as a sequential scan.  Its plan must be the intended one,
and index and table are cold whenever look-ahead is on.
"""

from __future__ import annotations

import random
import re
from itertools import pairwise
from typing import Any

import pytest
from lookahead.cluster import Cluster
from lookahead.errors import LookaheadError
from lookahead.servers import Server

import test_methods
from conftest import NewCluster
from extend_support import COLD_READS, odd_files
from leaf_support import (
    BITMAP,
    BITMAP_SCANS,
    CASES,
    MAX_WASTED,
    MIN_USED,
    ONLY,
    ORDERED,
    PARALLEL,
    PLAIN,
    ROWS,
    Case,
    Leaves,
    check_afterwards,
    chill,
    create,
    fetch,
    leaves_of,
    start,
)
from support import (
    Connection,
    INDEX_SCANS,
    Row,
    SEQUENTIAL_SCANS,
    Variant,
    blocks_read,
    cold,
    cold_index,
    connect,
    evict_relations,
    gained,
    ice_cold,
    plan_nodes,
    prepare,
    require_node,
    reset_statistics,
    rows,
    rows_without,
    script,
    seed,
    settings,
    until_served,
    use,
    value,
)
from test_scroll import Oracle, random_move

# Workers that are not needed any more are told so in this way.
pytestmark = pytest.mark.log_may_have('terminating background worker "parallel worker"')


@pytest.fixture
def tables(cluster: Cluster) -> Cluster:
    create(cluster)
    return cluster


# ---------------------------------------------------------------------------
# Same rows


@pytest.mark.parametrize("name", CASES)
def test_same_rows(tables: Cluster, variant: Variant, name: str) -> None:
    case = CASES[name]
    with connect(tables) as connection:
        settings(connection, **case.plan)
        require_node(connection, case.query, case.kind, case.index)
        if case.above:
            require_node(connection, case.query, case.above)
        without = rows_without(connection, case.query)
        assert bool(without) is (name not in {
            "no_row", "beyond", "contradiction", "empty", "empty_backward", "emptied",
            "emptied_backward", "bitmap_no_row", "no_value", "bitmap_no_value",
            "bitmap_nothing_but_null",
        })  # fmt: skip

        use(connection, variant, pg_lookahead__leafscan="off")
        chill(connection, case)
        with leaves_of(connection, case.index) as leaves, gained(connection):
            assert rows(connection, case.query) == without
        assert leaves == Leaves()

        settings(connection, pg_lookahead__leafscan="on")
        chill(connection, case)
        with leaves_of(connection, case.index) as leaves, gained(connection) as change:
            assert rows(connection, case.query) == without
        assert not change.errors
        if case.far:
            assert leaves.scans > 0
            assert (leaves.blocks_issued > 0) == variant.reads, leaves
        assert leaves.blocks_wasted <= case.most_wasted(leaves), leaves

        settings(connection, **SEQUENTIAL_SCANS, enable_sort="on")
        oracle = rows(connection, case.query)
        assert sorted(oracle, key=repr) == sorted(without, key=repr)


@pytest.mark.parametrize("sizes", [(1, 40, 7, 300), (3000,)])
@pytest.mark.parametrize(
    "name", ["forward", "backward", "grown_backward", "list", "dense_list", "wide", "plain_grown",
             "deduplicated", "skip"],
)  # fmt: skip
def test_cursor(tables: Cluster, variant: Variant, name: str, sizes: tuple[int, ...]) -> None:
    case = CASES[name]
    with connect(tables) as connection:
        settings(connection, **case.plan)
        without = rows_without(connection, case.query)
        use(connection, variant)
        chill(connection, case)
        with leaves_of(connection, case.index) as leaves, gained(connection) as change:
            found = fetch(connection, case.query, sizes)
        assert found == without
        assert not change.errors
        if case.far:
            assert (leaves.blocks_issued > 0) == variant.reads


@pytest.mark.parametrize(
    "name", ["forward", "backward", "between", "between_backward", "descending", "nulls_last",
             "range_of_prefixes", "row", "row_backward", "include", "deduplicated", "same_key",
             "grown", "grown_backward", "wide", "wide_backward", "fast_root", "deleted_pages",
             "deleted_pages_backward", "bitmap", "bitmap_grown", "plain_grown"],
)  # fmt: skip
def test_what_is_read_was_foreseen(tables: Cluster, variant: Variant, name: str) -> None:
    """Nearly every leaf page is foreseen, hardly one in vain."""
    if not variant.reads:
        pytest.skip("reads nothing")
    case = CASES[name]
    with connect(tables) as connection:
        settings(connection, **case.plan)
        require_node(connection, case.query, case.kind, case.index)
        use(connection, variant, pg_lookahead__enabled="off")
        # The table is cached, the index is not.
        rows(connection, case.query)
        cold_index(connection, case.index)
        reset_statistics(connection)
        before = index_reads(connection, case.index)
        rows(connection, case.query)
        read = index_reads(connection, case.index) - before
        assert read > 25

        settings(connection, pg_lookahead__enabled="on")
        # Where nothing that is left out was waited for, look-ahead stops for a while.
        for _ in range(3):
            cold_index(connection, case.index)
            with leaves_of(connection, case.index) as leaves, gained(connection) as change:
                rows(connection, case.query)
            # On a busy machine queues are full, and no I/O worker is free, now and then.
            foreseen = leaves.blocks_used + change.blocks_dropped
            if foreseen >= MIN_USED * read and leaves.blocks_used >= read / 2:
                break
        assert foreseen >= MIN_USED * read, (read, leaves)
        assert leaves.blocks_used >= read / 2, (read, leaves)
        assert leaves.blocks_wasted <= case.most_wasted(leaves), (read, leaves)


WIDE = """
CREATE TABLE both_cold (a int, k text, f text);
ALTER TABLE both_cold ALTER k SET STORAGE plain;
CREATE INDEX both_cold_k ON both_cold (k);
INSERT INTO both_cold SELECT i, lpad(md5(i::text), 1200, 'x'), repeat('y', 500)
  FROM generate_series(1, 6000) i ORDER BY md5((i + 1)::text);
VACUUM (FREEZE, ANALYZE) both_cold
"""


def test_table_and_index(own_cluster: NewCluster, server: Server) -> None:
    """The scout goes on where a step of its has many leaf pages read ahead."""
    if server.major < 18:
        pytest.skip("asynchronous I/O is of 18 and later")
    conf = {"io_method": "worker", "debug_io_direct": "data", "shared_buffers": "64MB"}
    try:
        cluster = own_cluster(conf)
    except LookaheadError as error:
        pytest.skip(f"direct I/O cannot be used here: {error}")
    query = "SELECT a, f FROM both_cold ORDER BY k"
    with connect(cluster) as connection:
        script(connection, WIDE)
        use(connection, Variant("worker", "aio"), pg_lookahead__max_distance=256, **INDEX_SCANS)
        require_node(connection, query, "Index Scan", "both_cold_k")
        pages = value(connection, "SELECT relpages FROM pg_class WHERE relname = 'both_cold'")
        used = (
            "SELECT coalesce(sum(blocks_used), 0) FROM pg_stat_lookahead"
            " WHERE relname = 'both_cold'"
        )
        # How deep it gets depends on how often the scan finds that it has waited, and what
        # is used on how often a handle is free.
        deepest = 0
        most = 0
        for _ in range(10):
            cold(connection, "both_cold")
            cold_index(connection, "both_cold_k")
            with leaves_of(connection, "both_cold_k") as leaves:
                rows(connection, query)
            deepest = max(deepest, leaves.depth_max)
            most = max(most, value(connection, used))
            if deepest > 32 and most >= MIN_USED * pages:
                break
        assert deepest > 32
        assert most >= MIN_USED * pages


# A page of the table for each row, and 80 of them for each leaf page.
FLOW = """
CREATE TABLE flow (k int, pad text) WITH (autovacuum_enabled = off, fillfactor = 10);
INSERT INTO flow SELECT (g * 1237) % 8009, repeat('x', 700) FROM generate_series(1, 8000) g;
CREATE INDEX flow_k ON flow (k) WITH (fillfactor = 20);
VACUUM (FREEZE, ANALYZE) flow
"""


def test_leaf_pages_stay_until_they_are_used(own_cluster: NewCluster, server: Server) -> None:
    """Pages of the table, read meanwhile, do not push them out of shared buffers."""
    if server.major < 18:
        pytest.skip("asynchronous I/O is of 18 and later")
    cluster = own_cluster({"shared_buffers": "8MB", "max_connections": "10"})
    query = "SELECT k FROM flow WHERE pad > '' ORDER BY k"
    with connect(cluster) as connection:
        script(connection, FLOW)
        settings(connection, **INDEX_SCANS)
        require_node(connection, query, PLAIN, "flow_k")
        # When they are read goes by waits, which on a busy machine may be any.
        for _ in range(5):
            read = {}
            for method in ("none", "aio"):
                settings(connection, pg_lookahead__method=method)
                cold(connection, "flow")
                cold_index(connection, "flow_k")
                before = index_reads(connection, "flow_k")
                with leaves_of(connection, "flow_k") as leaves:
                    assert len(rows(connection, query)) == 8000
                read[method] = index_reads(connection, "flow_k") - before
            if leaves.blocks_used > 80 and read["aio"] <= 1.1 * read["none"]:
                break
        assert leaves.blocks_used > 80
        assert read["aio"] <= 1.1 * read["none"], read
    cluster.close()


def index_reads(connection: Connection, index: str) -> int:
    """Return how many blocks of an index were read, as the server counts them."""
    connection.execute("SELECT pg_stat_force_next_flush()")
    query = "SELECT idx_blks_read FROM pg_statio_user_indexes WHERE indexrelname = %s"
    return int(value(connection, query, (index,)))


def random_case(choice: random.Random) -> Case:
    """Return a query over one of the indexes, with conditions at random."""
    index = choice.choice(("leafy_a", "leafy_be", "leafy_d", "leafy_n", "leafy_u", "leafy_s",
                           "grown_k", "holes_k", "shrunk_k"))  # fmt: skip
    first = {"leafy_be": "b", "grown_k": "k", "holes_k": "k", "shrunk_k": "k"}.get(index, index[-1])
    second = {"leafy_be": "e", "leafy_d": "id", "leafy_n": "id"}.get(index)
    top = {"b": 50, "u": 50, "s": 3, "n": 997}.get(first, 30000)
    low = choice.randrange(top)
    high = min(top, low + choice.choice((1, top // 10, top // 2)))
    step = choice.choice((1, 2, max(1, top // 40), max(1, top // 4)))
    few = ", ".join(map(str, range(low, top, step)[:700]))
    conditions = [
        "true",
        f"{first} BETWEEN {low} AND {high}",
        f"{first} > {low}",
        f"{first} < {high}",
        f"{first} = {low}",
        f"{first} IN ({few})",
        f"{first} IN ({few}) AND {first} < {high}",
    ]
    if second:
        conditions += [
            f"({first}, {second}) > ({low}, {choice.randrange(30000)})",
            f"({first}, {second}) <= ({low}, {choice.randrange(30000)})",
            f"{first} IN ({few}) AND {second} < {choice.randrange(30000)}",
            f"{first} >= {low} AND {second} BETWEEN 9000 AND {choice.randrange(9000, 30000)}",
            f"{second} BETWEEN 9000 AND 9400",
        ]
    if first == "n":
        conditions += ["n IS NULL", "n IS NOT NULL", f"n IS NOT NULL AND id > {low}"]
    condition = choice.choice(conditions)
    forward = {
        "leafy_be": "b, e", "leafy_d": "d DESC, id", "leafy_n": "n NULLS FIRST, id",
    }.get(index, first)  # fmt: skip
    backward = {
        "leafy_be": "b DESC, e DESC", "leafy_d": "d, id DESC",
        "leafy_n": "n DESC NULLS LAST, id DESC",
    }.get(index, f"{first} DESC")  # fmt: skip
    table = index.rsplit("_", 1)[0]
    own = f"{first}, {second}" if second else first
    kind = choice.choice((ONLY, ONLY, PLAIN, BITMAP))
    if kind != ONLY:
        own += ", id"
    if kind == BITMAP:
        return Case(f"SELECT {own} FROM {table} WHERE {condition}", kind, index)
    query = f"SELECT {own} FROM {table} WHERE {condition}"
    query += f" ORDER BY {choice.choice((forward, backward))}"
    if choice.random() < 0.3:
        query += f" LIMIT {choice.choice((1, 30, 400, 5000))}"
    return Case(query, kind, index)


@pytest.mark.thorough
def test_random_queries(tables: Cluster, variant: Variant) -> None:
    choice = random.Random(f"{seed()} {variant}")
    accepted = issued = 0
    with connect(tables) as connection:
        for _ in range(100):
            case = random_case(choice)
            settings(connection, **case.plan)
            nodes = plan_nodes(connection, case.query)
            if not any(
                node["Node Type"] == case.kind and node.get("Index Name") == case.index
                for node in nodes
            ):
                continue
            accepted += 1
            without = rows_without(connection, case.query)
            distance = choice.choice((8, 64, 256, 4096))
            use(connection, variant, pg_lookahead__max_distance=distance)
            chill(connection, case)
            with leaves_of(connection, case.index) as leaves, gained(connection) as change:
                if choice.random() < 0.6:
                    found = rows(connection, case.query)
                else:
                    found = fetch(connection, case.query, (choice.choice((13, 200, 2000)),))
            assert found == without, case
            assert not change.errors, case
            issued += leaves.blocks_issued
            if "LIMIT" not in case.query:
                settings(connection, **SEQUENTIAL_SCANS, enable_sort="on")
                oracle = rows(connection, case.query)
                assert sorted(oracle, key=repr) == sorted(without, key=repr), case
    assert accepted > 60
    assert (issued > 0) == variant.reads


@pytest.mark.thorough
def test_tiny_shared_buffers(own_cluster: NewCluster, server: Server) -> None:
    """So few buffers that a window would be a good part of them."""
    cluster = own_cluster({"shared_buffers": "512kB", "max_connections": "10"})
    create(cluster)
    methods = ("aio", "advice") if server.major >= 18 else ("advice",)
    with connect(cluster) as connection:
        for method in methods:
            for name in ("forward", "backward", "grown_backward", "plain_grown", "bitmap"):
                case = CASES[name]
                settings(connection, **case.plan, pg_lookahead__method=method)
                without = rows_without(connection, case.query)
                with leaves_of(connection, case.index) as leaves:
                    assert rows(connection, case.query) == without
                assert leaves.blocks_issued > 0
    cluster.close()


# ---------------------------------------------------------------------------
# Scans that end early, turn, or begin again


@pytest.mark.parametrize("n", [1, 300, 9000])
@pytest.mark.parametrize("name", ["forward", "backward", "grown", "list", "plain", "thinned"])
def test_limit(tables: Cluster, variant: Variant, name: str, n: int) -> None:
    """What a LIMIT directly above the scan will not need is not read."""
    case = CASES[name]
    query = f"{case.query} LIMIT {n}"
    with connect(tables) as connection:
        settings(connection, **case.plan)
        require_node(connection, query, case.kind, case.index)
        without = rows_without(connection, query)
        use(connection, variant)
        chill(connection, case)
        with leaves_of(connection, case.index) as leaves, gained(connection):
            assert rows(connection, query) == without
        # It counts in pages as full as they were so far.
        most = max(2, 0.1 * leaves.blocks_issued) + case.jumps * leaves.depth_max
        assert leaves.blocks_wasted <= most, leaves
        if n == 1:
            assert leaves == Leaves()
        elif n == 9000:
            assert (leaves.blocks_issued > 0) == variant.reads


def test_with_ties(tables: Cluster, variant: Variant) -> None:
    """Rows that are equal to the last one come, too: a LIMIT like this is none."""
    query = "SELECT b FROM leafy ORDER BY b FETCH FIRST 10 ROWS WITH TIES"
    case = Case(query, ONLY, "leafy_be")
    with start(tables, variant, case) as connection:
        with leaves_of(connection, case.index) as leaves:
            assert len(rows(connection, query)) == ROWS // 50
        assert (leaves.blocks_used > 8) == variant.reads, leaves


@pytest.mark.parametrize("n", [50, 2000])
@pytest.mark.parametrize("name", ["forward", "backward", "grown", "plain"])
def test_early_end(tables: Cluster, variant: Variant, name: str, n: int) -> None:
    """What is in front of the scan when it stops is wasted: at most its depth."""
    case = CASES[name]
    column = case.query.split()[1].strip(",")
    query = f"SELECT * FROM ({case.query} OFFSET 0) t WHERE {column} % 1 = 0 LIMIT {n}"
    with connect(tables) as connection:
        settings(connection, **case.plan)
        require_node(connection, query, case.kind, case.index)
        without = rows_without(connection, query)
        use(connection, variant)
        chill(connection, case)
        with leaves_of(connection, case.index) as leaves, gained(connection):
            assert rows(connection, query) == without
        assert leaves.blocks_wasted <= leaves.depth_max
        if n == 2000:
            assert (leaves.blocks_issued > 0) == variant.reads


@pytest.mark.parametrize(
    "name", ["forward", "backward", "grown", "list", "list_backward", "dense_list", "nulls_first",
             "row", "wide", "same_key", "plain", "deleted_pages"],
)  # fmt: skip
def test_scroll(tables: Cluster, variant: Variant, name: str) -> None:
    case = CASES[name]
    choice = random.Random(f"{seed()} {name} {variant}")
    with connect(tables) as connection:
        settings(connection, **case.plan)
        settings(connection, pg_lookahead__max_distance=choice.choice((8, 64, 256)))
        expected = rows_without(connection, case.query)
        use(connection, variant)
        chill(connection, case)
        oracle = Oracle(expected)
        done: list[str] = []
        with gained(connection) as change:
            connection.execute(f"BEGIN; DECLARE c SCROLL CURSOR FOR {case.query}")
            for _ in range(90):
                move = random_move(choice, len(expected))
                if choice.random() < 0.1:
                    move = f"{choice.choice(('FORWARD', 'BACKWARD'))} 3000"
                done.append(move)
                assert rows(connection, f"FETCH {move} FROM c") == oracle.fetch(move), done
            connection.execute("COMMIT")
        assert not change.errors
        assert (change.blocks_issued > 0) == variant.reads


def test_with_hold(tables: Cluster, variant: Variant) -> None:
    case = CASES["backward"]
    with start(tables, variant, case) as connection:
        expected = rows_without(connection, case.query)
        chill(connection, case)
        with leaves_of(connection, case.index) as leaves:
            connection.execute(f"BEGIN; DECLARE c CURSOR WITH HOLD FOR {case.query}")
            found = rows(connection, "FETCH 100 FROM c")
            connection.execute("COMMIT")
            found += rows(connection, "FETCH ALL FROM c")
            connection.execute("CLOSE c")
        assert found == expected
        assert (leaves.blocks_issued > 0) == variant.reads


NESTED = {
    "ranges": "SELECT k, a FROM few_keys, LATERAL"
    " (SELECT a FROM leafy WHERE a BETWEEN k AND k + 1000 ORDER BY a OFFSET 0) l",
    "backward": "SELECT k, a FROM few_keys, LATERAL"
    " (SELECT a FROM leafy WHERE a <= k AND a > k - 900 ORDER BY a DESC OFFSET 0) l",
    "limits": "SELECT k, a FROM few_keys, LATERAL"
    " (SELECT a FROM leafy WHERE a > k ORDER BY a LIMIT 700) l",
    "lists": "SELECT k, b, e FROM few_keys, LATERAL"
    " (SELECT b, e FROM leafy WHERE b IN (k / 1200, k / 1200 + 7) ORDER BY b, e OFFSET 0) l",
    "single": "SELECT k, (SELECT a FROM leafy WHERE a > k ORDER BY a LIMIT 1) FROM few_keys",
    "exists": "SELECT k FROM few_keys WHERE EXISTS (SELECT FROM leafy WHERE a = k)",
}


@pytest.mark.parametrize("name", NESTED)
def test_rescans(tables: Cluster, variant: Variant, name: str) -> None:
    query = NESTED[name]
    index = "leafy_be" if name == "lists" else "leafy_a"
    case = Case(query, ONLY, index)
    with connect(tables) as connection:
        settings(connection, **case.plan, enable_mergejoin="off")
        require_node(connection, query, ONLY, index)
        without = rows_without(connection, query)
        use(connection, variant)
        chill(connection, case)
        with leaves_of(connection, index) as leaves, gained(connection) as change:
            assert rows(connection, query) == without
        assert not change.errors
        if name in ("single", "exists"):
            assert leaves == Leaves()
        else:
            assert (leaves.blocks_issued > 0) == variant.reads


NESTED_BITMAPS = {
    "ranges": ("SELECT k, count(*), sum(a) FROM few_keys JOIN leafy ON a BETWEEN k AND k + 1000"
               " GROUP BY k ORDER BY k", "leafy_a"),
    "lists": ("SELECT k, count(*), sum(e) FROM few_keys"
              " JOIN leafy ON b = ANY (ARRAY[k / 1200, k / 1200 + 1, k / 1200 + 20])"
              " GROUP BY k ORDER BY k", "leafy_be"),
}  # fmt: skip


@pytest.mark.parametrize("name", NESTED_BITMAPS)
def test_rescans_of_a_bitmap(tables: Cluster, variant: Variant, name: str) -> None:
    query, index = NESTED_BITMAPS[name]
    case = Case(query, BITMAP, index)
    with connect(tables) as connection:
        settings(connection, **{**case.plan, "enable_sort": "on"}, enable_mergejoin="off")
        require_node(connection, query, BITMAP, index)
        without = rows_without(connection, query)
        use(connection, variant)
        chill(connection, case)
        with leaves_of(connection, index) as leaves, gained(connection) as change:
            assert rows(connection, query) == without
        assert not change.errors
        assert (leaves.blocks_issued > 0) == variant.reads


CHANGES = {
    "update": ("UPDATE altered SET t = 'changed' WHERE k > 3000", PLAIN),
    # New entries come in front of the scan, which must not see them.
    "update_key": ("UPDATE altered SET k = k + 700 WHERE k BETWEEN 1000 AND 6000", PLAIN),
    "update_bitmap": ("UPDATE altered SET k = k + 700 WHERE k BETWEEN 1000 AND 6000", BITMAP),
    "delete": ("DELETE FROM altered WHERE k < 6000", PLAIN),
}


@pytest.mark.parametrize("name", CHANGES)
def test_changes(tables: Cluster, variant: Variant, name: str) -> None:
    statement, kind = CHANGES[name]
    case = Case(statement, kind, "altered_k")
    state = "SELECT count(*), sum(k), sum(hashtext(t)) FROM altered"
    with connect(tables) as connection:
        connection.execute("DROP TABLE IF EXISTS altered")
        script(
            connection,
            "CREATE TABLE altered (k int, t text) WITH (autovacuum_enabled = off);"
            "INSERT INTO altered SELECT (g * 7919) % 8009, 'x' FROM generate_series(1, 8000) g;"
            "CREATE INDEX altered_k ON altered (k) WITH (fillfactor = 10);"
            "VACUUM ANALYZE altered",
        )
        found = []
        for enabled in ("off", "on"):
            settings(connection, **case.plan)
            require_node(connection, statement, kind, "altered_k")
            use(connection, variant, pg_lookahead__enabled=enabled)
            chill(connection, case)
            connection.execute("BEGIN")
            with gained(connection) as change:
                changed = connection.execute(statement).rowcount
            connection.execute("SET LOCAL pg_lookahead.enabled = off")
            found.append((changed, rows(connection, state)))
            connection.execute("ROLLBACK")
            assert not change.errors
        assert found[0] == found[1]
        assert (change.blocks_issued > 0) == variant.reads


@pytest.mark.parametrize("kind", [ONLY, PLAIN])
def test_mark_and_restore(tables: Cluster, variant: Variant, kind: str) -> None:
    """The inner side goes back to its mark, pages behind, for every outer row."""
    more = ", length(x.t), length(y.t)" if kind == PLAIN else ""
    query = (
        f"SELECT x.b, x.e, y.e{more} FROM leafy x JOIN leafy y ON x.b = y.b"
        " WHERE x.e % 211 = 0 AND x.b < 30 AND y.b < 30"
    )
    case = Case(query, kind, "leafy_be")
    with connect(tables) as connection:
        settings(connection, **case.plan, enable_nestloop="off")
        require_node(connection, query, "Merge Join")
        require_node(connection, query, kind, "leafy_be")
        without = rows_without(connection, query)
        assert len(without) > 10000
        use(connection, variant)
        chill(connection, case)
        with leaves_of(connection, case.index) as leaves, gained(connection) as change:
            assert rows(connection, query) == without
        assert not change.errors
        assert (leaves.blocks_issued > 0) == variant.reads
        settings(connection, **SEQUENTIAL_SCANS, enable_hashjoin="on", enable_mergejoin="off")
        assert sorted(rows(connection, query)) == sorted(without)


def test_two_scans_of_one_index(tables: Cluster, variant: Variant) -> None:
    """Two cursors over one index, in two directions, by turns."""
    forward, backward = CASES["forward"], CASES["backward"]
    with start(tables, variant, forward) as connection:
        up, down = (rows_without(connection, case.query) for case in (forward, backward))
        chill(connection, forward)
        with gained(connection) as change:
            connection.execute("BEGIN")
            connection.execute(f"DECLARE up CURSOR FOR {forward.query}")
            connection.execute(f"DECLARE down CURSOR FOR {backward.query}")
            for place in range(0, ROWS, 1000):
                assert rows(connection, "FETCH 1000 FROM up") == up[place : place + 1000]
                assert rows(connection, "FETCH 1000 FROM down") == down[place : place + 1000]
            connection.execute("COMMIT")
        assert not change.errors
        assert (change.blocks_issued > 0) == variant.reads


# ---------------------------------------------------------------------------
# Parallel scans, and other kinds of tables


PARALLEL_CASES = {
    "index_only": ("SELECT a FROM leafy WHERE a > 300 ORDER BY a", ONLY, "leafy_a"),
    "index_only_backward": ("SELECT a FROM leafy ORDER BY a DESC", ONLY, "leafy_a"),
    "count": ("SELECT count(*), sum(a) FROM leafy WHERE a BETWEEN 500 AND 28000", ONLY,
              "leafy_a"),
    "grown": ("SELECT count(*), sum(k) FROM grown WHERE k > 500", ONLY, "grown_k"),
    "index": ("SELECT a, t FROM leafy WHERE a > 300 ORDER BY a", PLAIN, "leafy_a"),
    "index_backward": ("SELECT a, t FROM leafy ORDER BY a DESC", PLAIN, "leafy_a"),
    "list": ("SELECT count(*), sum(e) FROM leafy WHERE b IN (3, 4, 5, 6, 7, 8, 9, 20, 21, 40)",
             ONLY, "leafy_be"),
    "bitmap": ("SELECT count(*), sum(a), sum(length(t)) FROM leafy WHERE a < 20000", BITMAP,
               "leafy_a"),
    "far_list": ("SELECT count(*), sum(e) FROM leafy WHERE b IN (3, 13, 23, 33, 43)", ONLY,
                 "leafy_be"),
    "limit": ("SELECT a FROM leafy ORDER BY a LIMIT 9000", ONLY, "leafy_a"),
}  # fmt: skip


# Two workers and the leader, which may take part.
PROCESSES = 3


@pytest.mark.parametrize("leader", ["on", "off"])
@pytest.mark.parametrize("name", PARALLEL_CASES)
def test_parallel(tables: Cluster, variant: Variant, name: str, leader: str) -> None:
    query, kind, index = PARALLEL_CASES[name]
    case = Case(query, kind, index)
    with connect(tables) as connection:
        settings(
            connection,
            **{**BITMAP_SCANS, **PARALLEL} if kind == BITMAP else {**ORDERED, **PARALLEL},
            parallel_leader_participation=leader,
        )
        if kind == PLAIN:
            settings(connection, enable_indexonlyscan="off")
        nodes = plan_nodes(connection, query)
        assert any(node["Node Type"].startswith("Gather") for node in nodes), nodes
        scan = "Bitmap Heap Scan" if kind == BITMAP else kind
        assert any(n["Node Type"] == scan and n["Parallel Aware"] for n in nodes), nodes
        without = rows_without(connection, query)
        use(connection, variant)
        # On a busy machine the process that looks ahead may find nothing left.
        for _ in range(10):
            chill(connection, case)
            with leaves_of(connection, index) as leaves:
                assert rows(connection, query) == without
            assert not leaves.errors
            if not variant.reads or leaves.blocks_issued:
                break
        assert (leaves.blocks_issued > 0) == variant.reads
        if "LIMIT" not in query:
            # What others have come to was not in vain, and is not asked for again.
            most = MAX_WASTED * leaves.blocks_issued + 2 * PROCESSES
            assert leaves.blocks_wasted <= most, leaves
            pages = value(connection, f"SELECT relpages FROM pg_class WHERE relname = '{index}'")
            if name == "far_list":
                # Some twenty for each value; what is between two of them is left out.
                pages = 5 * 23
            assert leaves.blocks_issued <= PROCESSES * pages, (pages, leaves)


def test_parallel_processes_do_not_wait_for_each_other(tables: Cluster, variant: Variant) -> None:
    """One has the right to the next page, the other is reading that page ahead.

    The latter must not wait for the former before its read has come to an end
    that the former can see.
    """
    if variant.method != "aio":
        pytest.skip("whoever reads needs nobody else to see the end of it")
    query, kind, index = PARALLEL_CASES["index_only"]
    case = Case(query, kind, index)
    with connect(tables) as connection:
        settings(connection, **{**ORDERED, **PARALLEL}, statement_timeout="60s")
        without = rows_without(connection, query)
        use(connection, variant)
        issued = 0
        for i in range(60):
            settings(connection, parallel_leader_participation="on" if i % 2 else "off")
            chill(connection, case)
            with leaves_of(connection, index) as leaves:
                assert rows(connection, query) == without
            issued += leaves.blocks_issued
        assert issued > 0


@pytest.mark.parametrize("kind", ["TEMP", "UNLOGGED"])
@pytest.mark.parametrize("direction", ["ASC", "DESC"])
def test_kinds_of_tables(tables: Cluster, variant: Variant, kind: str, direction: str) -> None:
    with connect(tables) as connection:
        connection.execute("DROP TABLE IF EXISTS kept")
        script(
            connection,
            f"CREATE {kind} TABLE kept (k int, pad text);"
            "CREATE INDEX kept_k ON kept (k) WITH (fillfactor = 10);"
            "INSERT INTO kept SELECT (g * 7919) % 12007, 'x' FROM generate_series(1, 12000) g;"
            "VACUUM ANALYZE kept",
        )
        for query, node in (
            (f"SELECT k FROM kept WHERE k > 100 ORDER BY k {direction}", ONLY),
            (f"SELECT k, pad FROM kept WHERE k > 100 ORDER BY k {direction}", PLAIN),
        ):
            settings(connection, **ORDERED)
            require_node(connection, query, node, "kept_k")
            without = rows_without(connection, query)
            use(connection, variant)
            for sizes in ((20000,), (13, 400)):
                cold(connection, "kept")
                cold_index(connection, "kept_k")
                with gained(connection) as change:
                    assert fetch(connection, query, sizes) == without
                assert not change.errors
                if node == ONLY:
                    # Of temporary tables nothing is kept but the session's own count.
                    assert (change.blocks_issued > 0) == variant.reads
        connection.execute("DROP TABLE kept")


# ---------------------------------------------------------------------------
# Settings and what is shown


def test_switches(tables: Cluster, variant: Variant) -> None:
    case = CASES["plain_grown"]
    with start(tables, variant, case) as connection:
        seen = "SELECT relname FROM pg_stat_lookahead ORDER BY 1"
        for enabled, leafscan, expected in (
            ("off", "on", []),
            ("on", "off", ["grown"]),
            ("on", "on", ["grown", "grown_k"]),
        ):
            settings(connection, pg_lookahead__enabled=enabled, pg_lookahead__leafscan=leafscan)
            chill(connection, case)
            connection.execute("SELECT pg_stat_lookahead_reset()")
            rows(connection, case.query)
            assert [name for (name,) in rows(connection, seen)] == expected


def test_switched_in_the_middle(tables: Cluster, variant: Variant) -> None:
    case = CASES["backward"]
    with start(tables, variant, case) as connection:
        expected = rows_without(connection, case.query)
        chill(connection, case)
        connection.execute(f"BEGIN; DECLARE c CURSOR FOR {case.query}")
        found: list[Row] = []
        for i in range(30):
            settings(connection, pg_lookahead__leafscan="on" if i % 3 else "off")
            settings(connection, pg_lookahead__enabled="on" if i % 4 else "off")
            found += rows(connection, "FETCH 1000 FROM c")
        found += rows(connection, "FETCH ALL FROM c")
        connection.execute("COMMIT")
        assert found == expected
        settings(connection, pg_lookahead__leafscan="on", pg_lookahead__enabled="on")
        check_afterwards(tables, connection, case)


def shown_leaves(connection: Connection, query: str) -> list[dict[str, Any]]:
    """Return what EXPLAIN shows of leaf pages, as it is in 18 or before."""
    options = "ANALYZE, BUFFERS, SUMMARY, FORMAT json"
    document = value(connection, f"EXPLAIN ({options}) {query}")
    found = [
        entry
        for entry in document[0].get("Look-Ahead", [])
        if entry["Looks Ahead Of"] == "index leaf pages"
    ]

    def walk(node: dict[str, Any]) -> None:
        if "Leaf Look-Ahead" in node:
            found.append({**node["Leaf Look-Ahead"], "Node Type": node["Node Type"]})
        for child in node.get("Plans", []):
            walk(child)

    walk(document[0]["Plan"])
    return found


@pytest.mark.parametrize(
    "name", ["backward", "plain_grown", "bitmap", "bitmap_and", "bitmap_or", "list"]
)
def test_explain(tables: Cluster, variant: Variant, name: str) -> None:
    case = CASES[name]
    with start(tables, variant, case) as connection:
        names = {
            node["Index Name"]
            for node in plan_nodes(connection, case.query)
            if "Index Name" in node
        }
        cold_index(connection, *(names - {case.index}))
        with leaves_of(connection, *names) as leaves:
            shown = shown_leaves(connection, case.query)
        assert shown
        assert {entry["Node Type"] for entry in shown} == {case.kind}
        assert sum(entry["Blocks Issued"] for entry in shown) == leaves.blocks_issued
        assert sum(entry["Blocks Used"] for entry in shown) == leaves.blocks_used
        assert (leaves.blocks_issued > 0) == variant.reads
        for entry in shown:
            assert set(entry) >= {
                "Method", "Blocks Issued", "Blocks Used", "Blocks Wasted", "Blocks Hit", "Waits",
                "Depth Reached",
            }  # fmt: skip
            assert entry["Method"] == variant.method

        settings(connection, pg_lookahead__leafscan="off")
        chill(connection, case)
        assert shown_leaves(connection, case.query) == []


@pytest.mark.parametrize("service", [False, True])
@pytest.mark.parametrize("io_method", [None, "sync", "worker", "io_uring"])
def test_who_reads(
    own_cluster: NewCluster, server: Server, io_method: str | None, service: bool
) -> None:
    """By default workers read leaf pages if there are any, else the kernel is advised."""
    cluster = test_methods.start(own_cluster, server, io_method, False, service)
    expected = "aio" if io_method == "worker" else "worker" if service else "advice"
    create(cluster)
    case = CASES["backward"]
    with connect(cluster) as connection:
        settings(connection, **case.plan)
        require_node(connection, case.query, case.kind, case.index)
        if service:
            until_served(connection)
        answer = rows_without(connection, case.query)
        chill(connection, case)
        (shown,) = shown_leaves(connection, case.query)
        assert shown["Method"] == expected
        assert shown["Blocks Issued"] > 0
        chill(connection, case)
        assert rows(connection, case.query) == answer
    cluster.close()


def explain_text(connection: Connection, query: str) -> str:
    options = "ANALYZE, BUFFERS, SUMMARY, COSTS off, TIMING off"
    return "\n".join(line for (line,) in rows(connection, f"EXPLAIN ({options}) {query}"))


def test_explain_text(tables: Cluster) -> None:
    line = r"method=advice issued=\d+ used=\d+ wasted=\d+ hit=\d+ waits=\d+ depth=\d+"
    for name, node in (
        ("backward", "Index Only Scan Backward using leafy_a on leafy"),
        ("plain_grown", "Index Scan using grown_k on grown"),
        ("bitmap", "Bitmap Index Scan on leafy_a"),
    ):
        case = CASES[name]
        variant = Variant(None, "advice")
        with start(tables, variant, case) as connection:
            text = explain_text(connection, case.query)
        if tables.server.major >= 18:
            pattern = rf"{node} .*?\n(?:[^\n]*\n)*? +Leaf Look-Ahead: {line}"
        else:
            pattern = rf"{node}, leaf pages: {line}"
            pattern = pattern.replace("Scan Backward", "Scan(?: Backward)?")
        assert re.search(pattern, text), text


@pytest.mark.parametrize("form", ["text", "json", "xml", "yaml"])
def test_every_format(tables: Cluster, form: str) -> None:
    case = CASES["plain_grown"]
    options = f"ANALYZE, BUFFERS, SUMMARY, FORMAT {form}"
    # Where the server has no place for it at the node, leaf pages are named in words.
    words = ("Leaf Look-Ahead", "Leaf-Look-Ahead", "leaf pages")
    with start(tables, Variant(None, "advice"), case) as connection:
        for leafscan in ("on", "off"):
            settings(connection, pg_lookahead__leafscan=leafscan)
            chill(connection, case)
            found = rows(connection, f"EXPLAIN ({options}) {case.query}")
            text = "\n".join(str(line) for (line,) in found)
            assert "Look-Ahead" in text
            assert any(word in text for word in words) is (leafscan == "on"), text


@pytest.mark.parametrize("leader", ["on", "off"])
def test_explain_shows_the_workers_share(tables: Cluster, variant: Variant, leader: str) -> None:
    query, kind, index = PARALLEL_CASES["count"]
    case = Case(query, kind, index)
    with connect(tables) as connection:
        settings(connection, **{**ORDERED, **PARALLEL}, parallel_leader_participation=leader)
        nodes = plan_nodes(connection, query)
        assert any(node["Node Type"].startswith("Gather") for node in nodes), nodes
        use(connection, variant)
        # On a busy machine the process that looks ahead may find nothing left.
        for _ in range(10):
            chill(connection, case)
            with leaves_of(connection, index) as leaves:
                shown = shown_leaves(connection, query)
            assert sum(entry["Blocks Issued"] for entry in shown) == leaves.blocks_issued
            assert len(shown) == (1 if leaves.scans else 0)
            if not variant.reads or leaves.blocks_issued:
                break
        assert (leaves.blocks_issued > 0) == variant.reads


# ---------------------------------------------------------------------------
# What takes a few pages


@pytest.fixture(scope="module")
def defaults(own_cluster: NewCluster) -> Cluster:
    """A server on which nothing of ours is set, with room for all tables."""
    conf = {"pg_lookahead.start_after": "8", "shared_buffers": "128MB"}
    cluster = own_cluster(conf, start=False)
    odd_files(cluster, COLD_READS)
    cluster.start()
    prepare(cluster)
    create(cluster)
    return cluster


FEW = {
    "limit": ("SELECT a FROM leafy ORDER BY a LIMIT {n}", "leafy_a"),
    "limit_backward": ("SELECT a FROM leafy ORDER BY a DESC LIMIT {n}", "leafy_a"),
    "limit_from": ("SELECT k FROM grown WHERE k > 15000 ORDER BY k LIMIT {n}", "grown_k"),
    "hidden_limit": (
        "SELECT * FROM (SELECT a FROM leafy ORDER BY a OFFSET 0) t WHERE a > -{n} LIMIT {n}",
        "leafy_a",
    ),
    "point": ("SELECT a FROM leafy WHERE a = {n} * 33", "leafy_a"),
    "point_of_table": ("SELECT a, t FROM leafy WHERE a = {n} * 33", "leafy_a"),
    "points": ("SELECT a FROM leafy WHERE a IN ({n}, {n} * 40, {n} * 70)", "leafy_a"),
    "bitmap": ("SELECT a, t FROM leafy WHERE a BETWEEN {n} AND {n} + 90", "leafy_a"),
}


def few_blocks(
    cluster: Cluster, connection: Connection, query: str, index: str
) -> tuple[int, int, list[Row]]:
    """Return blocks read and hit by a query of an ice-cold index, by two accounts."""
    table = index.rsplit("_", 1)[0]
    ice_cold(cluster, connection, table)
    cold_index(connection, index)
    evict_relations(cluster, connection, index)
    # What is not the query's: the planner looks into the index.
    plan_nodes(connection, query)
    reset_statistics(connection)
    top = plan_nodes(connection, query, ", ANALYZE, BUFFERS, TIMING off")[0]
    connection.execute("SELECT pg_stat_force_next_flush()")
    statistics = connection.execute(
        "SELECT heap_blks_read, heap_blks_hit, idx_blks_read, idx_blks_hit"
        " FROM pg_statio_user_tables WHERE relname = %s",
        (table,),
    ).fetchall()
    return top["Shared Read Blocks"], top["Shared Hit Blocks"], list(statistics)


@pytest.mark.parametrize("n", [1, 10, 100])
@pytest.mark.parametrize("name", FEW)
def test_not_one_block_more(defaults: Cluster, server: Server, name: str, n: int) -> None:
    text, index = FEW[name]
    query = text.format(n=n)
    methods = ["auto", "aio"] if server.major >= 18 else ["auto"]
    with connect(defaults) as connection:
        settings(connection, **(BITMAP_SCANS if name == "bitmap" else ORDERED))
        # It may well look ahead of the table.
        settings(connection, pg_lookahead__bitmapscan="off")
        assert value(connection, "SHOW pg_lookahead.start_after") == "8"
        kinds = {node["Node Type"] for node in plan_nodes(connection, query)}
        wanted = {"bitmap": BITMAP, "point_of_table": PLAIN}.get(name, ONLY)
        assert wanted in kinds
        settings(connection, pg_lookahead__enabled="off")
        # The first time it reads catalogs, too.
        rows(connection, query)
        without = few_blocks(defaults, connection, query, index)
        settings(connection, pg_lookahead__enabled="on")
        for method in methods:
            settings(connection, pg_lookahead__method=method)
            with leaves_of(connection, index) as leaves, gained(connection) as change:
                with_it = few_blocks(defaults, connection, query, index)
            assert with_it == without, method
            assert leaves == Leaves()
            assert change.blocks_issued == 0


# Its leaf pages are in no order, and so are the blocks of the table.
RESTS = """
DROP TABLE IF EXISTS rests;
CREATE TABLE rests (k int, pad text) WITH (autovacuum_enabled = off);
ALTER TABLE rests ALTER pad SET STORAGE plain;
CREATE INDEX rests_k ON rests (k, pad);
INSERT INTO rests SELECT (g * 1237) % 8009, repeat('x', 700) FROM generate_series(1, 8000) g;
VACUUM (FREEZE, ANALYZE) rests
"""


@pytest.mark.parametrize("direction", ["ASC", "DESC"])
@pytest.mark.parametrize("kind", [PLAIN, ONLY])
def test_leaves_where_the_table_is_cached(defaults: Cluster, kind: str, direction: str) -> None:
    """The index is looked ahead of though a scout rests that has begun in cold data.

    The blocks of the first 200 rows are cold, or not all-visible; the rest is
    cached, or need not be read.
    """
    order = f"ORDER BY k {direction}, pad {direction}"
    query = f"SELECT k, pad FROM rests {order}"
    if kind == PLAIN:
        query = f"SELECT k, pad FROM rests WHERE ctid IS DISTINCT FROM '(0,0)' {order}"
    by_place = "FROM rests WHERE ctid = ANY (%s::tid[])"
    with connect(defaults) as connection:
        script(connection, RESTS)
        settings(connection, **ORDERED)
        require_node(connection, query, kind, "rests_k")
        places = rows(connection, f"SELECT ctid::text FROM rests {order}")
        blocks = [str(ctid).split(",")[0] for (ctid,) in places]
        first, rest = set(blocks[:200]), set(blocks) - set(blocks[:200])
        connection.execute(f"DELETE {by_place}", ([f"{block},2)" for block in first],))
        without = rows_without(connection, query)
        pages = value(connection, "SELECT relpages FROM pg_class WHERE relname = 'rests_k'")
        seen = (
            "SELECT blocks_used, blocks_hit, blocks_dropped FROM pg_stat_lookahead"
            " WHERE relname = '{}'"
        )
        # Where one of its probes was not waited for it rests.
        for _ in range(5):
            cold(connection, "rests")
            cold_index(connection, "rests_k")
            if kind == PLAIN:
                warm = [f"{block},1)" for block in rest]
                found = value(connection, f"SELECT count(pad) {by_place}", (warm,))
                assert found == len(rest) > 400
            evict_relations(defaults, connection, "rests", "rests_k")
            with leaves_of(connection, "rests_k") as leaves:
                assert rows(connection, query) == without
            [(used, hit, _)] = rows(connection, seen.format("rests")) or [(0, 0, 0)]
            # What the I/O workers had no time for was foreseen as well.
            [(_, _, dropped)] = rows(connection, seen.format("rests_k")) or [(0, 0, 0)]
            if used > 50 and leaves.blocks_used + dropped > pages / 2:
                break
        # It began to look ahead of the table, and left that where there is nothing to read.
        assert used > 50
        assert hit < len(without) / 2
        assert leaves.blocks_used + dropped > pages / 2
        assert leaves.blocks_wasted <= MAX_WASTED * pages + 2 * leaves.depth_max


def test_pages_without_a_row(defaults: Cluster, server: Server) -> None:
    """Pages that the scan passes over in one call, as nothing on them is wanted, were used."""
    if server.major >= 18:
        pytest.skip("a skip scan goes past them")
    # Some forty rows on a thousand pages.
    case = Case("SELECT d, id FROM leafy WHERE id < 40 ORDER BY d, id DESC", ONLY, "leafy_d")
    with connect(defaults) as connection:
        settings(connection, **case.plan)
        require_node(connection, case.query, case.kind, case.index)
        without = rows_without(connection, case.query)
        for _ in range(5):
            cold_index(connection, case.index)
            evict_relations(defaults, connection, case.index)
            with leaves_of(connection, case.index) as leaves:
                assert rows(connection, case.query) == without
            if leaves.depth_max > 20 and leaves.blocks_used > 300:
                break
        assert leaves.depth_max > 20, leaves
        assert leaves.blocks_used > 300, leaves
        # The last ones are read in the call that finds no row any more.
        assert leaves.blocks_wasted <= MAX_WASTED * leaves.blocks_issued + 25, leaves


def test_few_leaves_to_a_parent(defaults: Cluster) -> None:
    """Of the level above little is read at a time, however far ahead the scan is."""
    case = CASES["wide_backward"]
    slow = defaults.dir / COLD_READS.lower()
    with connect(defaults) as connection:
        settings(connection, **case.plan, pg_lookahead__method="advice")
        without = rows_without(connection, case.query)
        # There and back: reads of other tablespaces are not slow.
        cold_index(connection, case.index, case.index)
        # It waits for each page, whatever is advised, and so looks as far ahead as it may.
        slow.write_text("-1000000\n")
        try:
            read = []
            with leaves_of(connection, case.index) as leaves:
                connection.execute(f"BEGIN; DECLARE c CURSOR FOR {case.query}")
                found = []
                while row := rows(connection, "FETCH c"):
                    found += row
                    read.append(blocks_read(connection, case.index))
                connection.execute("COMMIT")
        finally:
            slow.unlink()
        assert found == without
        # A descent to the first parent, four more parents, and the scan's own page.
        assert max(b - a for a, b in pairwise(read)) <= 8, leaves
        assert leaves.depth_max > 40, leaves


# Groups of some fifty leaf pages, in no order.
GROUPS = """
DROP TABLE IF EXISTS groups;
CREATE TABLE groups (k int, pad text) WITH (autovacuum_enabled = off);
ALTER TABLE groups ALTER pad SET STORAGE plain;
CREATE INDEX groups_k ON groups (k, pad);
INSERT INTO groups SELECT (g * 1237) % 8009 / 400, md5(g::text) || repeat('x', 700)
  FROM generate_series(1, 8000) g;
VACUUM (FREEZE, ANALYZE) groups
"""


def test_restored_far_back(defaults: Cluster) -> None:
    """Until the inner side is where it was the window waits for it, and is not dropped."""
    query = (
        "SELECT x.k, left(y.pad, 32) FROM groups x JOIN groups y ON x.k = y.k"
        " WHERE left(x.pad, 2) BETWEEN '10' AND '13'"
    )
    with connect(defaults) as connection:
        script(connection, GROUPS)
        settings(connection, **ORDERED, enable_nestloop="off")
        require_node(connection, query, "Merge Join")
        nodes = {n.get("Parent Relationship"): n for n in plan_nodes(connection, query)}
        assert nodes["Inner"]["Node Type"] == ONLY
        assert nodes["Inner"]["Alias"] == "y", nodes
        without = rows_without(connection, query)
        for _ in range(5):
            cold_index(connection, "groups_k")
            evict_relations(defaults, connection, "groups_k")
            with leaves_of(connection, "groups_k") as leaves:
                assert rows(connection, query) == without
            if leaves.blocks_used > 100:
                break
        assert leaves.blocks_used > 100
        assert leaves.blocks_wasted <= MAX_WASTED * leaves.blocks_issued, leaves


def test_rows_are_right_with_defaults(defaults: Cluster) -> None:
    """Wherever it starts, if it does, the rows are right."""
    with connect(defaults) as connection:
        for name in ("forward", "backward", "grown", "grown_backward", "plain_grown", "bitmap"):
            case = CASES[name]
            settings(connection, **case.plan)
            without = rows_without(connection, case.query)
            ice_cold(defaults, connection, case.table)
            cold_index(connection, case.index)
            evict_relations(defaults, connection, case.index)
            with leaves_of(connection, case.index), gained(connection) as change:
                assert rows(connection, case.query) == without
            assert not change.errors
