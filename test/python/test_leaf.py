"""Look-ahead of the leaf pages of B-trees: same rows, the right pages, none in vain.

Each query runs without look-ahead, with that of table blocks only, with that of
leaf pages, too, and as a sequential scan.  Its plan must be the intended one,
and index and table are cold whenever look-ahead is on.

The indexes have many leaf pages for their rows (fillfactor 10), so that three
pages of the level above point to them and small tables do.  What is looked ahead
of leaf pages is counted under the index's own name.
"""

from __future__ import annotations

import random
import re
import struct
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psycopg
import pytest
from lookahead.cluster import Cluster, evict
from lookahead.servers import Server

from conftest import CONF, NewCluster
from support import (
    INDEX_SCANS,
    SEQUENTIAL_SCANS,
    Connection,
    LogWatch,
    Row,
    Variant,
    cold,
    cold_index,
    conf_of,
    connect,
    gained,
    has_extension,
    ice_cold,
    pins,
    plan_nodes,
    require_node,
    rows,
    script,
    seed,
    session,
    settings,
    settle,
    use,
    value,
)
from test_errors import ask, spoil
from test_scroll import Oracle, random_move
from test_standby import CONFLICT, evict_all, standby_from

# Workers that are not needed any more are told so in this way.
pytestmark = pytest.mark.log_may_have('terminating background worker "parallel worker"')

ROWS = 30000
MAX_WASTED = 0.02
MIN_USED = 0.85

# The window that look-ahead begins with.
STARTED = 16

# Columns are copies of each other, so that every query has one index to use.
SETUP = f"""
CREATE TABLE leafy (
    id int NOT NULL, a int, d int, i int, n int, m int, b int, e int, u int, s int, p int, t text
) WITH (autovacuum_enabled = off);
INSERT INTO leafy
SELECT g, k, k, k, nullif(k % 997, 0), nullif(k % 997, 0), k % 50, k, k % 50, g % 3, k,
       repeat('x', g % 40)
  FROM (SELECT g, (g * 7919::bigint) % 30011 AS k FROM generate_series(1, {ROWS}) g) s;
CREATE INDEX leafy_a ON leafy (a) WITH (fillfactor = 10);
CREATE INDEX leafy_d ON leafy (d DESC, id) WITH (fillfactor = 10);
CREATE INDEX leafy_i ON leafy (i) INCLUDE (id, t) WITH (fillfactor = 10);
CREATE INDEX leafy_n ON leafy (n NULLS FIRST, id) WITH (fillfactor = 10);
CREATE INDEX leafy_m ON leafy (m DESC NULLS LAST, id DESC) WITH (fillfactor = 10);
CREATE INDEX leafy_be ON leafy (b, e) WITH (fillfactor = 10);
CREATE INDEX leafy_u ON leafy (u) WITH (fillfactor = 10);
CREATE INDEX leafy_s ON leafy (s) WITH (fillfactor = 10, deduplicate_items = off);
CREATE INDEX leafy_p ON leafy (p) WITH (fillfactor = 10) WHERE id > 5000;
CREATE TABLE wide (k int, w text COLLATE "C") WITH (autovacuum_enabled = off);
INSERT INTO wide
SELECT g, (SELECT string_agg(md5(g::text || h), '') FROM generate_series(1, 50) h)
  FROM generate_series(1, 1200) g;
CREATE INDEX wide_w ON wide (w);
CREATE TABLE grown (k int, id int, pad text) WITH (autovacuum_enabled = off);
CREATE INDEX grown_k ON grown (k, pad);
INSERT INTO grown
SELECT (g * 7919::bigint) % 30011, g, repeat('p', 90) FROM generate_series(1, {ROWS // 2}) g;
INSERT INTO grown
SELECT (g * 7919::bigint) % 30011, g, repeat('p', 90)
  FROM generate_series({ROWS // 2 + 1}, {ROWS}) g;
CREATE TABLE shrunk (k int, id int) WITH (autovacuum_enabled = off);
INSERT INTO shrunk SELECT g, g FROM generate_series(1, {ROWS}) g;
CREATE INDEX shrunk_k ON shrunk (k) WITH (fillfactor = 10);
CREATE TABLE holes (k int, id int) WITH (autovacuum_enabled = off);
INSERT INTO holes SELECT g, g FROM generate_series(1, {ROWS}) g;
CREATE INDEX holes_k ON holes (k) WITH (fillfactor = 10);
CREATE TABLE single (a int);
INSERT INTO single SELECT g FROM generate_series(1, 20) g;
CREATE INDEX single_a ON single (a);
CREATE TABLE nothing (a int);
CREATE INDEX nothing_a ON nothing (a);
CREATE TABLE emptied (a int);
INSERT INTO emptied SELECT g FROM generate_series(1, 3000) g;
CREATE INDEX emptied_a ON emptied (a);
DELETE FROM emptied;
DELETE FROM shrunk WHERE k NOT BETWEEN 12000 AND 14500;
DELETE FROM holes WHERE k % 3000 > 500;
VACUUM emptied;
VACUUM shrunk;
VACUUM shrunk;
VACUUM holes;
INSERT INTO holes SELECT g, g FROM generate_series(4000, 5000) g;
CREATE TABLE few_keys AS SELECT g * 1200 AS k FROM generate_series(0, 24) g;
VACUUM (FREEZE, ANALYZE) leafy;
VACUUM (FREEZE, ANALYZE) wide;
VACUUM (FREEZE, ANALYZE) grown;
VACUUM (FREEZE, ANALYZE) shrunk;
VACUUM (FREEZE, ANALYZE) holes;
VACUUM (FREEZE, ANALYZE) single;
VACUUM (FREEZE, ANALYZE) nothing;
VACUUM (FREEZE, ANALYZE) emptied;
ANALYZE few_keys
"""

ORDERED = {
    **INDEX_SCANS,
    "enable_sort": "off",
    "enable_incremental_sort": "off",
    "enable_material": "off",
    "enable_memoize": "off",
    "enable_hashjoin": "off",
    "enable_hashagg": "off",
    # Cursors are planned for all of their rows.
    "cursor_tuple_fraction": "1",
}

BITMAP_SCANS = {
    **ORDERED,
    "enable_bitmapscan": "on",
    "enable_indexscan": "off",
    "enable_indexonlyscan": "off",
}

PARALLEL = {
    "enable_seqscan": "off",
    "enable_sort": "off",
    "max_parallel_workers_per_gather": "2",
    "parallel_setup_cost": "0",
    "parallel_tuple_cost": "0",
    "min_parallel_index_scan_size": "0",
    "min_parallel_table_scan_size": "0",
    "random_page_cost": "0",
    "seq_page_cost": "0",
    "cpu_tuple_cost": "10",
}

ONLY, PLAIN, BITMAP = "Index Only Scan", "Index Scan", "Bitmap Index Scan"


@dataclass(frozen=True)
class Case:
    """A query, the node that its plan must have, and what is looked ahead of.

    `far` says that it reads many leaf pages one after the other, so that
    look-ahead has something to do; `whole` that it reads them to the end.
    """

    query: str
    kind: str
    index: str
    far: bool = True
    whole: bool = True

    @property
    def table(self) -> str:
        return self.index.rsplit("_", 1)[0]

    @property
    def plan(self) -> dict[str, str]:
        return BITMAP_SCANS if self.kind == BITMAP else ORDERED


def every(step: int, top: int = 30010) -> str:
    """Return a list of keys, for IN."""
    return ", ".join(str(k) for k in range(7, top, step))


CASES = {
    # The whole index, and ranges with and without their ends.
    "forward": Case("SELECT a FROM leafy ORDER BY a", ONLY, "leafy_a"),
    "backward": Case("SELECT a FROM leafy ORDER BY a DESC", ONLY, "leafy_a"),
    "less": Case("SELECT a FROM leafy WHERE a < 20000 ORDER BY a", ONLY, "leafy_a"),
    "less_backward": Case("SELECT a FROM leafy WHERE a <= 20000 ORDER BY a DESC", ONLY, "leafy_a"),
    "greater": Case("SELECT a FROM leafy WHERE a >= 9000 ORDER BY a", ONLY, "leafy_a"),
    "greater_backward": Case(
        "SELECT a FROM leafy WHERE a > 9000 ORDER BY a DESC", ONLY, "leafy_a"
    ),
    "between": Case(
        "SELECT a FROM leafy WHERE a BETWEEN 4000 AND 25000 ORDER BY a", ONLY, "leafy_a"
    ),
    "between_backward": Case(
        "SELECT a FROM leafy WHERE a BETWEEN 4000 AND 25000 ORDER BY a DESC", ONLY, "leafy_a"
    ),
    "inside": Case(
        "SELECT a FROM leafy WHERE a > 4000 AND a < 25000 ORDER BY a", ONLY, "leafy_a"
    ),
    "inside_backward": Case(
        "SELECT a FROM leafy WHERE a > 4000 AND a < 25000 ORDER BY a DESC", ONLY, "leafy_a"
    ),
    "redundant": Case(
        "SELECT a FROM leafy WHERE a > 10 AND a > 9000 AND a < 28000 AND a <= 20000 ORDER BY a",
        ONLY, "leafy_a",
    ),
    "equal": Case("SELECT a FROM leafy WHERE a = 4711", ONLY, "leafy_a", far=False),
    "no_row": Case(
        "SELECT a FROM leafy WHERE a > 5000 AND a < 5001 ORDER BY a", ONLY, "leafy_a", far=False
    ),
    "beyond": Case("SELECT a FROM leafy WHERE a > 99999 ORDER BY a", ONLY, "leafy_a", far=False),
    "contradiction": Case(
        "SELECT a FROM leafy WHERE a > 900 AND a < 800 ORDER BY a", ONLY, "leafy_a", far=False
    ),
    # Other orders than ascending.
    "descending": Case("SELECT d, id FROM leafy ORDER BY d DESC, id", ONLY, "leafy_d"),
    "descending_backward": Case("SELECT d, id FROM leafy ORDER BY d, id DESC", ONLY, "leafy_d"),
    "descending_range": Case(
        "SELECT d, id FROM leafy WHERE d BETWEEN 4000 AND 25000 ORDER BY d DESC, id",
        ONLY, "leafy_d",
    ),
    "descending_range_backward": Case(
        "SELECT d, id FROM leafy WHERE d > 4000 AND d <= 25000 ORDER BY d, id DESC",
        ONLY, "leafy_d",
    ),
    "nulls_first": Case("SELECT n, id FROM leafy ORDER BY n NULLS FIRST, id", ONLY, "leafy_n"),
    "nulls_first_backward": Case(
        "SELECT n, id FROM leafy ORDER BY n DESC NULLS LAST, id DESC", ONLY, "leafy_n"
    ),
    "nulls": Case("SELECT n, id FROM leafy WHERE n IS NULL ORDER BY id", ONLY, "leafy_n",
                  far=False),
    "not_null": Case(
        "SELECT n, id FROM leafy WHERE n IS NOT NULL ORDER BY n NULLS FIRST, id", ONLY, "leafy_n"
    ),
    "before_nulls_backward": Case(
        "SELECT n, id FROM leafy WHERE n < 700 ORDER BY n DESC NULLS LAST, id DESC",
        ONLY, "leafy_n",
    ),
    "nulls_last": Case(
        "SELECT m, id FROM leafy ORDER BY m DESC NULLS LAST, id DESC", ONLY, "leafy_m"
    ),
    "nulls_last_backward": Case(
        "SELECT m, id FROM leafy ORDER BY m NULLS FIRST, id", ONLY, "leafy_m"
    ),
    "up_to_nulls": Case(
        "SELECT m, id FROM leafy WHERE m < 700 ORDER BY m DESC NULLS LAST, id DESC",
        ONLY, "leafy_m",
    ),
    # Several columns.
    "prefix": Case("SELECT b, e FROM leafy WHERE b = 7 ORDER BY b, e", ONLY, "leafy_be"),
    "prefix_backward": Case(
        "SELECT b, e FROM leafy WHERE b = 7 ORDER BY b DESC, e DESC", ONLY, "leafy_be"
    ),
    "prefix_and_range": Case(
        "SELECT b, e FROM leafy WHERE b = 7 AND e > 9000 ORDER BY b, e", ONLY, "leafy_be"
    ),
    "prefix_and_range_backward": Case(
        "SELECT b, e FROM leafy WHERE b = 7 AND e > 9000 ORDER BY b DESC, e DESC",
        ONLY, "leafy_be",
    ),
    "range_of_prefixes": Case(
        "SELECT b, e FROM leafy WHERE b BETWEEN 10 AND 30 ORDER BY b, e", ONLY, "leafy_be"
    ),
    "range_of_prefixes_and_range": Case(
        "SELECT b, e FROM leafy WHERE b > 10 AND e < 9000 ORDER BY b, e", ONLY, "leafy_be"
    ),
    "row": Case(
        "SELECT b, e FROM leafy WHERE (b, e) > (10, 5000) ORDER BY b, e", ONLY, "leafy_be"
    ),
    "row_backward": Case(
        "SELECT b, e FROM leafy WHERE (b, e) <= (30, 5000) ORDER BY b DESC, e DESC",
        ONLY, "leafy_be",
    ),
    "rows": Case(
        "SELECT b, e FROM leafy WHERE (b, e) >= (10, 5000) AND (b, e) < (40, 77) ORDER BY b, e",
        ONLY, "leafy_be",
    ),
    "skip": Case(
        "SELECT b, e FROM leafy WHERE e BETWEEN 5000 AND 5400 ORDER BY b, e", ONLY, "leafy_be",
        far=False,
    ),
    "skip_little": Case(
        "SELECT b, e FROM leafy WHERE e BETWEEN 1000 AND 28000 ORDER BY b, e", ONLY, "leafy_be"
    ),
    "skip_backward": Case(
        "SELECT b, e FROM leafy WHERE e > 9000 AND b > 3 ORDER BY b DESC, e DESC",
        ONLY, "leafy_be",
    ),
    # Lists: far apart, near each other, and both.
    "list": Case(
        "SELECT b, e FROM leafy WHERE b IN (3, 4, 5, 20, 21, 40) ORDER BY b, e", ONLY, "leafy_be"
    ),
    "list_backward": Case(
        "SELECT b, e FROM leafy WHERE b IN (3, 4, 5, 20, 21, 40) ORDER BY b DESC, e DESC",
        ONLY, "leafy_be",
    ),
    "list_and_range": Case(
        "SELECT b, e FROM leafy WHERE b IN (3, 4, 5, 20, 21, 40) AND e > 9000 ORDER BY b, e",
        ONLY, "leafy_be",
    ),
    "sparse_list": Case(
        f"SELECT a FROM leafy WHERE a IN ({every(1500)}) ORDER BY a", ONLY, "leafy_a", far=False
    ),
    "dense_list": Case(
        f"SELECT a FROM leafy WHERE a IN ({every(9)}) ORDER BY a", ONLY, "leafy_a"
    ),
    "dense_list_backward": Case(
        f"SELECT a FROM leafy WHERE a IN ({every(9)}) ORDER BY a DESC", ONLY, "leafy_a"
    ),
    "two_lists": Case(
        "SELECT b, e FROM leafy WHERE b IN (3, 4, 5, 20) AND b IN (4, 5, 6, 20) ORDER BY b, e",
        ONLY, "leafy_be",
    ),
    "no_value": Case(
        "SELECT b, e FROM leafy WHERE b IN (3, 4) AND b IN (5, 6) ORDER BY b, e", ONLY, "leafy_be",
        far=False,
    ),
    "null_in_list": Case(
        "SELECT b, e FROM leafy WHERE b IN (3, NULL, 20) ORDER BY b, e", ONLY, "leafy_be"
    ),
    # Other kinds of indexes.
    "include": Case("SELECT i, id FROM leafy WHERE i > 900 ORDER BY i", ONLY, "leafy_i"),
    "include_backward": Case("SELECT i, t FROM leafy ORDER BY i DESC", ONLY, "leafy_i"),
    "deduplicated": Case("SELECT u FROM leafy ORDER BY u", ONLY, "leafy_u"),
    "deduplicated_backward": Case("SELECT u FROM leafy ORDER BY u DESC", ONLY, "leafy_u"),
    "deduplicated_range": Case(
        "SELECT u FROM leafy WHERE u BETWEEN 5 AND 35 ORDER BY u", ONLY, "leafy_u"
    ),
    "same_key": Case("SELECT s FROM leafy WHERE s = 1 ORDER BY s", ONLY, "leafy_s"),
    "same_key_backward": Case(
        "SELECT s FROM leafy WHERE s <= 1 ORDER BY s DESC", ONLY, "leafy_s"
    ),
    "partial_index": Case(
        "SELECT p FROM leafy WHERE id > 5000 AND p > 100 ORDER BY p", ONLY, "leafy_p"
    ),
    "wide": Case("SELECT w FROM wide ORDER BY w", ONLY, "wide_w"),
    "wide_backward": Case("SELECT w FROM wide ORDER BY w DESC", ONLY, "wide_w"),
    "wide_range": Case("SELECT w FROM wide WHERE w > '2' AND w < 'd' ORDER BY w", ONLY, "wide_w"),
    "grown": Case("SELECT k FROM grown ORDER BY k", ONLY, "grown_k"),
    "grown_backward": Case("SELECT k FROM grown ORDER BY k DESC", ONLY, "grown_k"),
    "grown_range": Case(
        "SELECT k, pad FROM grown WHERE k BETWEEN 3000 AND 21000 ORDER BY k, pad", ONLY, "grown_k"
    ),
    "fast_root": Case("SELECT k FROM shrunk ORDER BY k", ONLY, "shrunk_k"),
    "fast_root_backward": Case("SELECT k FROM shrunk ORDER BY k DESC", ONLY, "shrunk_k"),
    "deleted_pages": Case("SELECT k FROM holes ORDER BY k", ONLY, "holes_k"),
    "deleted_pages_backward": Case("SELECT k FROM holes ORDER BY k DESC", ONLY, "holes_k"),
    "one_leaf": Case("SELECT a FROM single ORDER BY a", ONLY, "single_a", far=False),
    "one_leaf_backward": Case(
        "SELECT a FROM single ORDER BY a DESC", ONLY, "single_a", far=False
    ),
    "empty": Case("SELECT a FROM nothing ORDER BY a", ONLY, "nothing_a", far=False),
    "empty_backward": Case(
        "SELECT a FROM nothing ORDER BY a DESC", ONLY, "nothing_a", far=False
    ),
    "emptied": Case("SELECT a FROM emptied ORDER BY a", ONLY, "emptied_a", far=False),
    "emptied_backward": Case(
        "SELECT a FROM emptied ORDER BY a DESC", ONLY, "emptied_a", far=False
    ),
    # With the table.
    "plain": Case("SELECT a, t FROM leafy ORDER BY a", PLAIN, "leafy_a"),
    "plain_backward": Case("SELECT a, t FROM leafy ORDER BY a DESC", PLAIN, "leafy_a"),
    "plain_range": Case(
        "SELECT a, t FROM leafy WHERE a > 4000 AND a <= 25000 ORDER BY a", PLAIN, "leafy_a"
    ),
    "plain_grown": Case("SELECT k, id FROM grown WHERE k > 3000 ORDER BY k", PLAIN, "grown_k"),
    "plain_list": Case(
        "SELECT b, e, t FROM leafy WHERE b IN (3, 4, 5, 20, 21, 40) ORDER BY b, e",
        PLAIN, "leafy_be",
    ),
    "plain_filter": Case(
        "SELECT a, t FROM leafy WHERE id % 100 = 1 ORDER BY a", PLAIN, "leafy_a"
    ),
    # Bitmaps.
    "bitmap": Case(
        "SELECT count(*), sum(a), sum(length(t)) FROM leafy WHERE a < 20000", BITMAP, "leafy_a"
    ),
    "bitmap_between": Case(
        "SELECT a, t FROM leafy WHERE a BETWEEN 4000 AND 25000", BITMAP, "leafy_a"
    ),
    "bitmap_grown": Case("SELECT k, id FROM grown WHERE k < 9000", BITMAP, "grown_k"),
    "bitmap_list": Case(
        "SELECT b, e FROM leafy WHERE b IN (3, 4, 5, 20, 21, 40)", BITMAP, "leafy_be"
    ),
    "bitmap_two_lists": Case(
        "SELECT b, e FROM leafy WHERE b IN (3, 4, 5, 20) AND b IN (4, 5, 6, 20)", BITMAP, "leafy_be"
    ),
    "bitmap_no_value": Case(
        "SELECT b, e FROM leafy WHERE b IN (3, 4) AND b IN (5, 6)", BITMAP, "leafy_be", far=False
    ),
    "bitmap_null_in_list": Case(
        "SELECT b, e FROM leafy WHERE b IN (3, NULL, 20)", BITMAP, "leafy_be"
    ),
    "bitmap_nothing_but_null": Case(
        "SELECT b, e FROM leafy WHERE b = ANY (ARRAY[NULL, NULL]::int[])", BITMAP, "leafy_be",
        far=False,
    ),
    "bitmap_dense_list": Case(
        f"SELECT a, t FROM leafy WHERE a IN ({every(9)})", BITMAP, "leafy_a"
    ),
    "bitmap_skip": Case(
        "SELECT b, e, t FROM leafy WHERE e BETWEEN 1000 AND 28000", BITMAP, "leafy_be"
    ),
    "bitmap_row": Case(
        "SELECT b, e, t FROM leafy WHERE (b, e) > (10, 5000) AND b < 40", BITMAP, "leafy_be"
    ),
    "bitmap_deduplicated": Case("SELECT u, id FROM leafy WHERE u > 30", BITMAP, "leafy_u"),
    "bitmap_no_row": Case("SELECT a FROM leafy WHERE a > 99999", BITMAP, "leafy_a", far=False),
    "bitmap_and": Case(
        "SELECT a, n, id FROM leafy WHERE a < 9000 AND n > 500", BITMAP, "leafy_a", whole=False
    ),
    "bitmap_or": Case(
        "SELECT a, n, id FROM leafy WHERE a < 9000 OR n > 700 OR a > 25000", BITMAP, "leafy_a",
        whole=False,
    ),
}  # fmt: skip


# ---------------------------------------------------------------------------
# Helpers


@dataclass
class Leaves:
    """What was looked ahead of the leaf pages of an index; see leaves_of()."""

    scans: int = 0
    blocks_issued: int = 0
    blocks_used: int = 0
    blocks_wasted: int = 0
    errors: int = 0
    depth_max: int = 0


@contextmanager
def leaves_of(connection: Connection, *indexes: str) -> Iterator[Leaves]:
    """Count what all processes look ahead of the leaf pages of these indexes."""
    names = ", ".join(Leaves.__dataclass_fields__)
    connection.execute("SELECT pg_stat_lookahead_reset()")
    found = Leaves()
    yield found
    query = f"SELECT {names} FROM pg_stat_lookahead WHERE relname = ANY (%s)"
    for row in connection.execute(query, (list(indexes),)).fetchall():
        for name, number in zip(Leaves.__dataclass_fields__, row):
            setattr(found, name, getattr(found, name) + number)
    assert found.blocks_issued == found.blocks_used + found.blocks_wasted, found


def create(cluster: Cluster) -> None:
    with connect(cluster) as connection:
        if value(connection, "SELECT to_regclass('few_keys')") is None:
            script(connection, SETUP)


@pytest.fixture
def tables(cluster: Cluster) -> Cluster:
    create(cluster)
    return cluster


def chill(connection: Connection, case: Case) -> None:
    """Take the table and the index out of shared buffers."""
    cold(connection, case.table)
    cold_index(connection, case.index)


def start(cluster: Cluster, variant: Variant, case: Case, **more: object) -> Connection:
    """Connect, ready to look ahead on a cold index."""
    connection = connect(cluster)
    use(connection, variant, **case.plan)
    settings(connection, **more)
    require_node(connection, case.query, case.kind, case.index)
    chill(connection, case)
    return connection


def without_look_ahead(connection: Connection, query: str) -> list[Row]:
    settings(connection, pg_lookahead__enabled="off")
    found = rows(connection, query)
    settings(connection, pg_lookahead__enabled="on")
    return found


def fetch(connection: Connection, query: str, sizes: tuple[int, ...]) -> list[Row]:
    """Draw rows through a cursor, now so many and now so many."""
    found: list[Row] = []
    connection.execute(f"BEGIN; DECLARE c NO SCROLL CURSOR FOR {query}")
    while True:
        for size in sizes:
            some = rows(connection, f"FETCH {size} FROM c")
            found += some
            if len(some) < size:
                connection.execute("COMMIT")
                return found


def check_afterwards(cluster: Cluster, connection: Connection, case: Case) -> None:
    """The session is as good as new: no pin, and the scan looks ahead again."""
    if connection.info.transaction_status == psycopg.pq.TransactionStatus.INERROR:
        connection.execute("ROLLBACK")
    settings(connection, statement_timeout="60s")
    assert session(connection).pins_held == 0
    no_pins(cluster)
    expected = without_look_ahead(connection, case.query)
    chill(connection, case)
    with leaves_of(connection, case.index) as leaves:
        assert rows(connection, case.query) == expected
    assert leaves.scans > 0


def no_pins(cluster: Cluster) -> None:
    if has_extension(cluster, "pg_buffercache"):
        with connect(cluster) as other:
            settle(other)
            assert pins(other) == []


# ---------------------------------------------------------------------------
# Same rows


@pytest.mark.parametrize("name", CASES)
def test_same_rows(tables: Cluster, variant: Variant, name: str) -> None:
    case = CASES[name]
    with connect(tables) as connection:
        settings(connection, **case.plan)
        require_node(connection, case.query, case.kind, case.index)
        without = without_look_ahead(connection, case.query)
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
            assert leaves.scans == 1
            assert (leaves.blocks_issued > 0) == variant.reads, leaves
        if case.whole:
            assert leaves.blocks_wasted <= max(1, MAX_WASTED * leaves.blocks_issued), leaves

        settings(connection, **SEQUENTIAL_SCANS, enable_sort="on")
        oracle = rows(connection, case.query)
        assert sorted(oracle, key=repr) == sorted(without, key=repr)


@pytest.mark.parametrize("sizes", [(1, 40, 7), (41, 500), (3000,)])
@pytest.mark.parametrize(
    "name", ["forward", "backward", "grown_backward", "list", "dense_list", "wide", "plain_grown",
             "deduplicated", "skip"],
)  # fmt: skip
def test_cursor(tables: Cluster, variant: Variant, name: str, sizes: tuple[int, ...]) -> None:
    case = CASES[name]
    with connect(tables) as connection:
        settings(connection, **case.plan)
        without = without_look_ahead(connection, case.query)
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
        before = value(connection, READ_OF, (case.index,))
        rows(connection, case.query)
        connection.execute("SELECT pg_stat_force_next_flush()")
        read = value(connection, READ_OF, (case.index,)) - before
        assert read > 25

        settings(connection, pg_lookahead__enabled="on")
        cold_index(connection, case.index)
        with leaves_of(connection, case.index) as leaves, gained(connection) as change:
            rows(connection, case.query)
        foreseen = leaves.blocks_used
        if variant.method == "worker":
            # On a busy machine the queues are full now and then.
            foreseen += change.blocks_dropped
        assert foreseen >= MIN_USED * read, (read, leaves)
        assert leaves.blocks_wasted <= MAX_WASTED * leaves.blocks_issued, (read, leaves)


READ_OF = "SELECT coalesce(sum(idx_blks_read), 0) FROM pg_statio_user_indexes" \
    " WHERE indexrelname = %s"  # fmt: skip


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
            without = without_look_ahead(connection, case.query)
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
                without = without_look_ahead(connection, case.query)
                with leaves_of(connection, case.index) as leaves:
                    assert rows(connection, case.query) == without
                assert leaves.blocks_issued > 0
    cluster.close()


# ---------------------------------------------------------------------------
# Scans that end early, turn, or begin again


@pytest.mark.parametrize("n", [1, 50, 300, 2000, 9000])
@pytest.mark.parametrize("name", ["forward", "backward", "grown", "list", "plain"])
def test_limit(tables: Cluster, variant: Variant, name: str, n: int) -> None:
    """What a LIMIT directly above the scan will not need is not read."""
    case = CASES[name]
    query = f"{case.query} LIMIT {n}"
    with connect(tables) as connection:
        settings(connection, **case.plan)
        require_node(connection, query, case.kind, case.index)
        without = without_look_ahead(connection, query)
        use(connection, variant)
        chill(connection, case)
        with leaves_of(connection, case.index) as leaves, gained(connection):
            assert rows(connection, query) == without
        # It counts in pages as full as the one that the scan is on.
        assert leaves.blocks_wasted <= max(2, 0.1 * leaves.blocks_issued), leaves
        if n == 1:
            assert leaves == Leaves()


@pytest.mark.parametrize("n", [1, 50, 300, 2000, 9000])
@pytest.mark.parametrize("name", ["forward", "backward", "grown", "plain"])
def test_early_end(tables: Cluster, variant: Variant, name: str, n: int) -> None:
    """What is in front of the scan when it stops is wasted: at most its depth."""
    case = CASES[name]
    column = case.query.split()[1].strip(",")
    query = f"SELECT * FROM ({case.query} OFFSET 0) t WHERE {column} % 1 = 0 LIMIT {n}"
    with connect(tables) as connection:
        settings(connection, **case.plan)
        require_node(connection, query, case.kind, case.index)
        without = without_look_ahead(connection, query)
        use(connection, variant)
        chill(connection, case)
        with leaves_of(connection, case.index) as leaves, gained(connection):
            assert rows(connection, query) == without
        assert leaves.blocks_wasted <= leaves.depth_max


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
        expected = without_look_ahead(connection, case.query)
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


def test_with_hold(tables: Cluster, variant: Variant) -> None:
    case = CASES["backward"]
    with start(tables, variant, case) as connection:
        expected = without_look_ahead(connection, case.query)
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
        without = without_look_ahead(connection, query)
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
        settings(connection, **case.plan, enable_sort="on", enable_mergejoin="off")
        require_node(connection, query, BITMAP, index)
        without = without_look_ahead(connection, query)
        use(connection, variant)
        chill(connection, case)
        with leaves_of(connection, index) as leaves, gained(connection) as change:
            assert rows(connection, query) == without
        assert not change.errors
        assert (leaves.blocks_issued > 0) == variant.reads


CHANGES = {
    "update": ("UPDATE leafy SET t = 'changed' WHERE a > 9000", PLAIN),
    # New entries come in front of the scan, which must not see them.
    "update_key": ("UPDATE leafy SET a = a + 700 WHERE a BETWEEN 4000 AND 20000", PLAIN),
    "update_bitmap": ("UPDATE leafy SET a = a + 700 WHERE a BETWEEN 4000 AND 20000", BITMAP),
    "delete": ("DELETE FROM leafy WHERE a < 20000", PLAIN),
}


@pytest.mark.parametrize("name", CHANGES)
def test_changes(tables: Cluster, variant: Variant, name: str) -> None:
    statement, kind = CHANGES[name]
    case = Case(statement, kind, "leafy_a")
    state = "SELECT count(*), sum(a), sum(hashtext(t)) FROM leafy"
    with connect(tables) as connection:
        settings(connection, **case.plan, enable_tidscan="off")
        require_node(connection, statement, kind, "leafy_a")
        found = []
        for enabled in ("off", "on"):
            use(connection, variant, pg_lookahead__enabled=enabled)
            chill(connection, case)
            connection.execute("BEGIN")
            with gained(connection) as change:
                changed = connection.execute(statement).rowcount
            settings(connection, pg_lookahead__enabled="off", enable_seqscan="on")
            found.append((changed, rows(connection, state)))
            connection.execute("ROLLBACK")
            connection.execute("VACUUM (INDEX_CLEANUP on, FREEZE) leafy")
            assert not change.errors
        assert found[0] == found[1]
        assert (change.blocks_issued > 0) == variant.reads


@pytest.mark.parametrize("kind", [ONLY, PLAIN])
def test_mark_and_restore(tables: Cluster, variant: Variant, kind: str) -> None:
    """The inner side goes back to its mark, pages behind, for every outer row."""
    more = ", length(y.t)" if kind == PLAIN else ""
    query = (
        f"SELECT x.u, x.id, y.b, y.e{more} FROM (SELECT u, id FROM leafy WHERE id % 211 = 0) x"
        " JOIN leafy y ON x.u = y.b WHERE y.b < 30"
    )
    case = Case(query, kind, "leafy_be")
    with connect(tables) as connection:
        settings(connection, **case.plan, enable_nestloop="off", enable_sort="on")
        require_node(connection, query, "Merge Join")
        require_node(connection, query, kind, "leafy_be")
        without = without_look_ahead(connection, query)
        use(connection, variant)
        chill(connection, case)
        with leaves_of(connection, case.index) as leaves, gained(connection) as change:
            assert rows(connection, query) == without
        assert not change.errors
        assert (leaves.blocks_issued > 0) == variant.reads
        settings(connection, **SEQUENTIAL_SCANS, enable_hashjoin="on")
        assert sorted(rows(connection, query)) == sorted(without)


def test_two_scans_of_one_index(tables: Cluster, variant: Variant) -> None:
    """Two cursors over one index, in two directions, by turns."""
    forward, backward = CASES["forward"], CASES["backward"]
    with start(tables, variant, forward) as connection:
        up, down = (without_look_ahead(connection, case.query) for case in (forward, backward))
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
    "limit": ("SELECT a FROM leafy ORDER BY a LIMIT 9000", ONLY, "leafy_a"),
}  # fmt: skip


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
        without = without_look_ahead(connection, query)
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
        if name != "limit":
            assert leaves.blocks_wasted <= max(STARTED, 0.1 * leaves.blocks_issued), leaves


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
            without = without_look_ahead(connection, query)
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
        expected = without_look_ahead(connection, case.query)
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
        use(connection, variant)
        chill(connection, case)
        with leaves_of(connection, index) as leaves:
            shown = shown_leaves(connection, query)
        assert sum(entry["Blocks Issued"] for entry in shown) == leaves.blocks_issued
        assert len(shown) == (1 if leaves.scans else 0)


# ---------------------------------------------------------------------------
# What takes a few pages


@pytest.fixture(scope="module")
def defaults(own_cluster: NewCluster) -> Cluster:
    """A server on which nothing of ours is set."""
    cluster = own_cluster({"pg_lookahead.start_after": "8"})
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
    connection.execute("CHECKPOINT")
    evict(cluster.data / value(connection, f"SELECT pg_relation_filepath('{index}')"))
    # What is not the query's: the planner looks into the index.
    plan_nodes(connection, query)
    connection.execute("SELECT pg_stat_force_next_flush()")
    connection.execute("SELECT pg_stat_reset()")
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
        assert value(connection, "SHOW pg_lookahead.start_after") == "8"
        kinds = {node["Node Type"] for node in plan_nodes(connection, query)}
        wanted = {"bitmap": BITMAP, "point_of_table": PLAIN}.get(name, ONLY)
        assert wanted in kinds
        settings(connection, pg_lookahead__enabled="off")
        without = few_blocks(defaults, connection, query, index)
        settings(connection, pg_lookahead__enabled="on")
        for method in methods:
            settings(connection, pg_lookahead__method=method)
            with leaves_of(connection, index) as leaves, gained(connection) as change:
                with_it = few_blocks(defaults, connection, query, index)
            assert with_it == without, method
            assert leaves == Leaves()
            assert change.blocks_issued == 0


def test_rows_are_right_with_defaults(defaults: Cluster) -> None:
    """Wherever it starts, if it does, the rows are right."""
    with connect(defaults) as connection:
        for name in ("forward", "backward", "grown", "grown_backward", "plain_grown", "bitmap"):
            case = CASES[name]
            settings(connection, **case.plan)
            without = without_look_ahead(connection, case.query)
            ice_cold(defaults, connection, case.table)
            cold_index(connection, case.index)
            connection.execute("CHECKPOINT")
            path = value(connection, f"SELECT pg_relation_filepath('{case.index}')")
            evict(defaults.data / path)
            with leaves_of(connection, case.index), gained(connection) as change:
                assert rows(connection, case.query) == without
            assert not change.errors


# ---------------------------------------------------------------------------
# Errors, cancels, transactions, changes of the index under a cursor


@pytest.mark.parametrize("name", ["forward", "backward", "plain_grown", "bitmap_between"])
def test_error_in_the_query(tables: Cluster, variant: Variant, name: str) -> None:
    case = CASES[name]
    column = case.query.split()[1].strip(",")
    with start(tables, variant, case) as connection:
        for n in (5000, 10007, 20000):
            chill(connection, case)
            query = f"SELECT 1 / ({column} - {n}) FROM ({case.query} OFFSET 0) t"
            with pytest.raises(psycopg.errors.DivisionByZero):
                rows(connection, query)
            assert session(connection).pins_held == 0
        check_afterwards(tables, connection, case)


@pytest.mark.parametrize("name", ["backward", "grown", "bitmap_grown"])
def test_statement_timeout(tables: Cluster, variant: Variant, name: str) -> None:
    case = CASES[name]
    choice = random.Random(f"{seed()} {name}")
    with start(tables, variant, case) as connection:
        for _ in range(25):
            chill(connection, case)
            connection.execute("BEGIN")
            # Taken back by the rollback, so that it hits nothing else.
            connection.execute(f"SET LOCAL statement_timeout = {choice.randint(1, 15)}")
            with suppress(psycopg.errors.QueryCanceled):
                rows(connection, case.query)
            connection.execute("ROLLBACK")
            assert session(connection).pins_held == 0
        check_afterwards(tables, connection, case)


@pytest.mark.parametrize("name", ["backward", "bitmap_grown"])
def test_cancel(tables: Cluster, variant: Variant, name: str) -> None:
    case = CASES[name]
    slow = f"SELECT pg_sleep(0.001) FROM ({case.query} OFFSET 0) t"
    failed: list[BaseException] = []

    def run(connection: Connection) -> None:
        try:
            rows(connection, slow)
        except psycopg.Error as error:
            failed.append(error)

    with start(tables, variant, case) as connection, connect(tables) as other:
        thread = threading.Thread(target=run, args=(connection,))
        thread.start()
        time.sleep(0.3)
        value(other, "SELECT pg_cancel_backend(%s)", (connection.info.backend_pid,))
        thread.join(30)
        assert not thread.is_alive()
        assert isinstance(failed[0], psycopg.errors.QueryCanceled)
        check_afterwards(tables, connection, case)


def test_subtransactions(tables: Cluster, variant: Variant) -> None:
    """Savepoints come and go while the cursor moves on."""
    case = CASES["grown_backward"]
    choice = random.Random(seed())
    with start(tables, variant, case) as connection:
        expected = without_look_ahead(connection, case.query)
        chill(connection, case)
        connection.execute(f"BEGIN; DECLARE c CURSOR FOR {case.query}")
        found: list[Row] = []
        while len(found) < len(expected):
            connection.execute("SAVEPOINT s")
            found += rows(connection, f"FETCH {choice.choice((1, 100, 900))} FROM c")
            what = choice.choice(("release", "rollback", "error"))
            if what == "error":
                with pytest.raises(psycopg.errors.DivisionByZero):
                    connection.execute("SELECT 1 / 0")
            connection.execute("RELEASE s" if what == "release" else "ROLLBACK TO s")
        assert found == expected
        connection.execute("COMMIT")
        check_afterwards(tables, connection, case)


def test_cursor_of_a_subtransaction(tables: Cluster, variant: Variant) -> None:
    case = CASES["backward"]
    with start(tables, variant, case) as connection:
        expected = without_look_ahead(connection, case.query)[:3000]
        connection.execute("BEGIN")
        for _ in range(3):
            connection.execute(f"SAVEPOINT s; DECLARE c CURSOR FOR {case.query}")
            assert rows(connection, "FETCH 3000 FROM c") == expected
            connection.execute("ROLLBACK TO s")
        connection.execute("COMMIT")
        check_afterwards(tables, connection, case)


def test_rollback_with_open_cursors(tables: Cluster, variant: Variant) -> None:
    case = CASES["grown"]
    with start(tables, variant, case) as connection:
        connection.execute("BEGIN")
        for name in ("c", "d", "e"):
            connection.execute(f"DECLARE {name} CURSOR FOR {case.query}")
            assert len(rows(connection, f"FETCH 2000 FROM {name}")) == 2000
        connection.execute("ROLLBACK")
        check_afterwards(tables, connection, case)


def test_an_idle_cursor_holds_no_pin(tables: Cluster, variant: Variant) -> None:
    if not has_extension(tables, "pg_buffercache"):
        pytest.skip("this server has no pg_buffercache")
    for name in ("forward", "backward", "plain_grown"):
        case = CASES[name]
        with start(tables, variant, case) as connection, connect(tables) as other:
            connection.execute(f"BEGIN; DECLARE c CURSOR FOR {case.query}")
            held = {}
            for enabled in ("off", "on"):
                settings(connection, pg_lookahead__enabled=enabled)
                connection.execute(f"DECLARE {enabled} CURSOR FOR {case.query}")
                rows(connection, f'FETCH 3000 FROM "{enabled}"')
                settle(other)
                held[enabled] = len(pins(other, case.index))
                connection.execute(f'CLOSE "{enabled}"')
            assert held["on"] <= held["off"], held
            connection.execute("COMMIT")


def changing(cluster: Cluster, name: str) -> Case:
    """Make a table that may be changed; return a scan of it."""
    with connect(cluster) as connection:
        connection.execute(f"DROP TABLE IF EXISTS {name}")
        script(
            connection,
            f"CREATE TABLE {name} (k int, id int) WITH (autovacuum_enabled = off);"
            f"INSERT INTO {name} SELECT g, g FROM generate_series(1, 12000) g;"
            f"CREATE INDEX {name}_k ON {name} (k) WITH (fillfactor = 10);"
            f"VACUUM ANALYZE {name}",
        )
    return Case(f"SELECT k FROM {name} ORDER BY k DESC", ONLY, f"{name}_k")


@pytest.mark.parametrize(
    "statement",
    [
        "DROP INDEX {t}_k",
        "TRUNCATE {t}",
        "DROP TABLE {t}",
        "REINDEX INDEX {t}_k",
        "ALTER INDEX {t}_k SET TABLESPACE elsewhere",
    ],
)
def test_statements_that_cannot_run_now(tables: Cluster, variant: Variant, statement: str) -> None:
    """As without look-ahead: refused in the same session, and others wait."""
    case = changing(tables, "kept_open")
    expected = [(k,) for k in range(12000, 0, -1)]
    with start(tables, variant, case) as connection, connect(tables) as other:
        connection.execute(f"BEGIN; DECLARE c CURSOR FOR {case.query}")
        found = rows(connection, "FETCH 3000 FROM c")
        settings(other, lock_timeout="50ms")
        with pytest.raises(psycopg.errors.LockNotAvailable):
            other.execute(statement.format(t="kept_open"))
        connection.execute("SAVEPOINT s")
        with pytest.raises(psycopg.errors.ObjectInUse):
            connection.execute(statement.format(t="kept_open"))
        connection.execute("ROLLBACK TO s")
        found += rows(connection, "FETCH ALL FROM c")
        assert found == expected
        connection.execute("COMMIT")
        check_afterwards(tables, connection, case)
        other.execute(statement.format(t="kept_open"))
        if statement.startswith(("REINDEX", "ALTER")):
            assert rows(connection, case.query) == expected


@pytest.mark.parametrize(
    "statement", ["REINDEX INDEX CONCURRENTLY {t}_k", "DROP INDEX CONCURRENTLY {t}_k"]
)
def test_concurrent_statements(tables: Cluster, variant: Variant, statement: str) -> None:
    """They begin under the cursor and end when it has."""
    case = changing(tables, "kept_open")
    failed: list[BaseException] = []

    def run() -> None:
        try:
            with connect(tables) as other:
                other.execute(statement.format(t="kept_open"))
        except BaseException as error:
            failed.append(error)

    with start(tables, variant, case) as connection:
        connection.execute(f"BEGIN; DECLARE c CURSOR FOR {case.query}")
        found = rows(connection, "FETCH 2000 FROM c")
        thread = threading.Thread(target=run)
        thread.start()
        for _ in range(10):
            time.sleep(0.02)
            found += rows(connection, "FETCH 900 FROM c")
        found += rows(connection, "FETCH ALL FROM c")
        connection.execute("COMMIT")
        thread.join(30)
        assert not thread.is_alive()
        assert not failed
        assert found == [(k,) for k in range(12000, 0, -1)]
        assert sorted(rows(connection, case.query)) == sorted(found)


def test_changes_under_the_cursor(tables: Cluster, variant: Variant) -> None:
    """Pages are split and deleted in front of the scan; it must not see that."""
    for direction in ("ASC", "DESC"):
        case = changing(tables, "kept_open")
        query = f"SELECT k FROM kept_open WHERE k > 0 ORDER BY k {direction}"
        with start(tables, variant, case) as connection, connect(tables) as other:
            expected = without_look_ahead(connection, query)
            chill(connection, case)
            connection.execute(f"BEGIN; DECLARE c CURSOR FOR {query}")
            found: list[Row] = []
            for i in range(12):
                found += rows(connection, "FETCH 900 FROM c")
                low = (i * 5003) % 12000
                other.execute(
                    f"INSERT INTO kept_open SELECT {low} + g % 50, g FROM generate_series(1, 900) g"
                )
                other.execute(f"DELETE FROM kept_open WHERE k BETWEEN {low + 60} AND {low + 900}")
                other.execute("VACUUM (INDEX_CLEANUP on) kept_open")
            found += rows(connection, "FETCH ALL FROM c")
            connection.execute("COMMIT")
            assert found == expected
            # And now those pages go.
            other.execute("VACUUM (INDEX_CLEANUP on) kept_open")
            other.execute("VACUUM (INDEX_CLEANUP on) kept_open")
            chill(connection, case)
            left = rows(connection, query)
            settings(connection, **SEQUENTIAL_SCANS, enable_sort="on")
            assert left == rows(connection, query)


# ---------------------------------------------------------------------------
# Damage

BLOCK = 8192
EXPECTED = r"page verification failed|invalid page|could not read block|checksum"


@dataclass
class Tree:
    """The pages of a B-tree, read from its file."""

    leaves: list[int] = field(default_factory=list)
    parents: list[int] = field(default_factory=list)


def read_tree(index: Path) -> Tree:
    """Return the pages of the two lowest levels, each in key order."""
    data = index.read_bytes()
    right: dict[int, int] = {}
    first: dict[int, int] = {}
    for block in range(1, len(data) // BLOCK):
        opaque = data[(block + 1) * BLOCK - 16 : (block + 1) * BLOCK]
        before, after, level, _flags, _cycle = struct.unpack("<IIIHH", opaque)
        right[block] = after
        if before == 0 and level < 2:
            first[level] = block
    found = Tree()
    for level, chain in ((0, found.leaves), (1, found.parents)):
        block = first[level]
        while block:
            chain.append(block)
            block = right[block]
    return found


@dataclass(frozen=True)
class Damage:
    """The first key of the leaf page that is damaged; 0: it is a page above them."""

    table: str
    key: int

    def scan(self, kind: str, direction: str) -> str:
        """A scan that comes to the damage, if it goes on long enough."""
        columns = "k" if kind == ONLY else "k, id"
        return f"SELECT {columns} FROM {self.table} WHERE k > 0 ORDER BY k {direction}"


@pytest.fixture(scope="module")
def broken(own_cluster: NewCluster) -> Callable[[str | None], tuple[Cluster, dict[str, Damage]]]:
    """Clusters with tables whose indexes are damaged, by io_method."""
    made: dict[str | None, tuple[Cluster, dict[str, Damage]]] = {}

    def get(io_method: str | None) -> tuple[Cluster, dict[str, Damage]]:
        if io_method not in made:
            cluster = own_cluster(conf_of(io_method))
            made[io_method] = (cluster, make_damage(cluster))
        return made[io_method]

    return get


def make_damage(cluster: Cluster) -> dict[str, Damage]:
    files = {}
    with connect(cluster) as connection:
        for table in ("bad_leaf", "bad_parent"):
            script(
                connection,
                f"CREATE TABLE {table} (k int, id int) WITH (autovacuum_enabled = off);"
                f"INSERT INTO {table} SELECT g, g FROM generate_series(1, {ROWS}) g;"
                f"CREATE INDEX {table}_k ON {table} (k) WITH (fillfactor = 10);"
                f"VACUUM (FREEZE, ANALYZE) {table}",
            )
            path = value(connection, f"SELECT pg_relation_filepath('{table}_k')")
            files[table] = cluster.data / path
        connection.execute("CHECKPOINT")
    cluster.stop()
    tree = read_tree(files["bad_leaf"])
    middle = len(tree.leaves) // 2
    # Keys are the numbers from 1 on; count how many stand before the leaf.
    data = files["bad_leaf"].read_bytes()
    before = 0
    for block in tree.leaves[:middle]:
        (lower,) = struct.unpack_from("<H", data, block * BLOCK + 12)
        # Line pointers after the header; the first is the page's high key.
        before += (lower - 24) // 4 - 1
    spoil(files["bad_leaf"], tree.leaves[middle])
    tree = read_tree(files["bad_parent"])
    assert len(tree.parents) >= 3
    # The planner goes down at both ends, the scan at one of them.
    spoil(files["bad_parent"], tree.parents[1])
    cluster.start()
    return {"bad_leaf": Damage("bad_leaf", before + 1), "bad_parent": Damage("bad_parent", 0)}


@pytest.mark.parametrize("kind", [ONLY, PLAIN])
@pytest.mark.parametrize("direction", ["ASC", "DESC"])
def test_damaged_leaf(
    variant: Variant,
    broken: Callable[[str | None], tuple[Cluster, dict[str, Damage]]],
    kind: str,
    direction: str,
) -> None:
    """Only a query that needs the page fails, and as it would have anyway."""
    cluster, damages = broken(variant.io_method)
    damage = damages["bad_leaf"]
    query = damage.scan(kind, direction)
    if direction == "ASC":
        expected = list(range(1, damage.key))
    else:
        # The keys behind the page: it has some 40.
        expected = list(range(ROWS, damage.key + 60, -1))
    taken = len(expected) - 20
    early = f"SELECT * FROM ({query} OFFSET 0) t WHERE k % 1 = 0 LIMIT {taken}"
    with LogWatch(cluster, allowed=[EXPECTED]), connect(cluster) as connection:
        settings(connection, **ORDERED, pg_lookahead__enabled="off")
        require_node(connection, query, kind, "bad_leaf_k")
        without = ask(connection, query)
        assert without.error is not None, "the damage does no harm: the test is broken"
        use(connection, variant, pg_lookahead__enabled="on")
        for _ in range(2):
            cold(connection, "bad_leaf")
            answer = ask(connection, early)
            assert answer.error is None
            assert answer.notices == []
            assert [row[0] for row in answer.rows] == expected[:taken]
        assert ask(connection, query) == without
        # Through a cursor, up to the damage.
        connection.execute(f"BEGIN; DECLARE c CURSOR FOR {query}")
        assert len(rows(connection, f"FETCH {taken} FROM c")) == taken
        connection.execute("SAVEPOINT s")
        assert ask(connection, "FETCH ALL FROM c").error == without.error
        connection.execute("ROLLBACK TO s")
        connection.execute("ROLLBACK")
        assert session(connection).pins_held == 0


def test_damaged_leaf_beside_a_bitmap(
    variant: Variant, broken: Callable[[str | None], tuple[Cluster, dict[str, Damage]]]
) -> None:
    cluster, damages = broken(variant.io_method)
    key = damages["bad_leaf"].key
    with LogWatch(cluster, allowed=[EXPECTED]), connect(cluster) as connection:
        use(connection, variant, **BITMAP_SCANS)
        for condition, count in (
            (f"k < {key - 60}", key - 61),
            (f"k > {key + 60}", ROWS - key - 60),
        ):
            query = f"SELECT count(*) FROM bad_leaf WHERE {condition}"
            require_node(connection, query, BITMAP, "bad_leaf_k")
            cold(connection, "bad_leaf")
            answer = ask(connection, query)
            assert (answer.rows, answer.notices, answer.error) == ([(count,)], [], None)
        query = "SELECT count(*) FROM bad_leaf WHERE k > 10"
        settings(connection, pg_lookahead__enabled="off")
        without = ask(connection, query)
        settings(connection, pg_lookahead__enabled="on")
        assert without.error is not None
        assert ask(connection, query) == without


@pytest.mark.parametrize("tolerant", ["", "zero_damaged_pages", "ignore_checksum_failure"])
@pytest.mark.parametrize("direction", ["ASC", "DESC"])
def test_damaged_parent(
    variant: Variant,
    broken: Callable[[str | None], tuple[Cluster, dict[str, Damage]]],
    direction: str,
    tolerant: str,
) -> None:
    """A scan passes from leaf to leaf and never comes to the page above them."""
    cluster, damages = broken(variant.io_method)
    query = damages["bad_parent"].scan(ONLY, direction)
    # From the last run on the page may be in shared buffers, zeroed or accepted.
    cluster.restart()
    with LogWatch(cluster, allowed=[f"{EXPECTED}|zeroing"]), connect(cluster) as connection:
        if tolerant:
            settings(connection, **{tolerant: "on"})
        use(connection, variant, **ORDERED)
        require_node(connection, query, ONLY, "bad_parent_k")
        with leaves_of(connection, "bad_parent_k") as leaves:
            answer = ask(connection, query)
        assert answer.error is None
        assert answer.notices == []
        keys = [k for (k,) in answer.rows]
        assert keys == sorted(range(1, ROWS + 1), reverse=direction == "DESC")
        assert leaves.scans == 1
        if not tolerant:
            # That is where look-ahead ended: it did come there.
            assert leaves.errors == 1
        assert session(connection).pins_held == 0
        # The session goes on, and looks ahead of others.
        with leaves_of(connection, "bad_parent_k"):
            assert value(connection, "SELECT count(*) FROM bad_parent WHERE k < 5000") == 4999


# ---------------------------------------------------------------------------
# Hot standby


STANDBY_SETUP = """
CREATE TABLE sent (k int, id int) WITH (autovacuum_enabled = off);
CREATE INDEX sent_k ON sent (k) WITH (fillfactor = 10);
INSERT INTO sent SELECT (g * 7919) % 12007, g FROM generate_series(1, 12000) g;
VACUUM (FREEZE, ANALYZE) sent
"""


def test_standby(own_cluster: NewCluster, server: Server) -> None:
    primary = own_cluster({"wal_level": "replica", "max_wal_senders": "5"})
    with connect(primary) as connection:
        script(connection, STANDBY_SETUP)
        # The backup begins with a checkpoint, which it would wait for.
        connection.execute("CHECKPOINT")
    conf = {**CONF, "hot_standby": "on", "hot_standby_feedback": "on", "wal_level": "replica"}
    standby = Cluster(server, conf=conf)
    methods = ["advice", "aio"] if server.major >= 18 else ["advice", "worker"]
    with (
        standby_from(primary, standby),
        LogWatch(standby, allowed=[CONFLICT, "terminating connection"]),
    ):
        for step in range(3):
            for method in methods:
                for query, kind in (
                    ("SELECT k FROM sent ORDER BY k", ONLY),
                    ("SELECT k FROM sent WHERE k > 500 ORDER BY k DESC", ONLY),
                    ("SELECT k, id FROM sent WHERE k > 500 ORDER BY k DESC", PLAIN),
                ):
                    check_on_standby(primary, standby, Variant(None, method), query, kind)
            with connect(primary) as connection:
                # Splits, deleted pages, a new index.
                low = 1000 + 3000 * step
                script(
                    connection,
                    f"INSERT INTO sent SELECT {low} + g % 300, g FROM generate_series(1, 4000) g;"
                    f"DELETE FROM sent WHERE k BETWEEN {low + 400} AND {low + 1900};"
                    "VACUUM (INDEX_CLEANUP on) sent; VACUUM (INDEX_CLEANUP on) sent",
                )
                if step == 1:
                    connection.execute("REINDEX INDEX sent_k")
    primary.close()


def check_on_standby(
    primary: Cluster, standby: Cluster, variant: Variant, query: str, kind: str
) -> None:
    with connect(primary) as connection:
        settings(connection, **ORDERED)
        expected = without_look_ahead(connection, query)
    evict_all(primary, standby)
    with connect(standby) as connection:
        use(connection, variant, **ORDERED)
        require_node(connection, query, kind, "sent_k")
        with leaves_of(connection, "sent_k") as leaves, gained(connection) as change:
            assert sorted(rows(connection, query)) == sorted(expected)
        assert not change.errors
        assert leaves.blocks_issued > 0
