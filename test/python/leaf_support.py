"""What the tests of leaf look-ahead share: tables, queries, counters.

The indexes have many leaf pages for their rows (fillfactor 10), so that small
tables do and three pages of the level above point to them.  What is looked
ahead of leaf pages is counted under the index's own name.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import psycopg
from lookahead.cluster import Cluster

from support import (
    INDEX_SCANS,
    Connection,
    Row,
    Variant,
    cold,
    cold_index,
    connect,
    no_pins,
    once,
    require_node,
    rows,
    rows_without,
    session,
    settings,
    use,
)

ROWS = 30000
MAX_WASTED = 0.02
MIN_USED = 0.85

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
CREATE TABLE thinned (k int, id int) WITH (autovacuum_enabled = off);
INSERT INTO thinned SELECT g, g FROM generate_series(1, {ROWS}) g;
CREATE INDEX thinned_k ON thinned (k) WITH (fillfactor = 10);
CREATE TABLE nulled (up int, down int, id int NOT NULL) WITH (autovacuum_enabled = off);
INSERT INTO nulled
SELECT k, k, g
  FROM (SELECT g, CASE WHEN g % 5 < 2 THEN (g * 7919::bigint) % 30011 END AS k
          FROM generate_series(1, {ROWS}) g) s;
CREATE INDEX nulled_up ON nulled (up, id) WITH (fillfactor = 10);
CREATE INDEX nulled_down ON nulled (down NULLS FIRST, id) WITH (fillfactor = 10);
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
DELETE FROM thinned WHERE k / 30 % 2 = 0 AND k % 30 <> 1;
VACUUM thinned;
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
VACUUM (FREEZE, ANALYZE) thinned;
VACUUM (FREEZE, ANALYZE) nulled;
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
    # Two bitmaps are worth it: the fewer rows, the better.
    "cpu_tuple_cost": "10",
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
    look-ahead has something to do.  `jumps` are the places where it leaves them
    and goes on elsewhere: what was read ahead there is in vain.
    """

    query: str
    kind: str
    index: str
    far: bool = True
    jumps: int = 0
    # Another node that the plan must have.
    above: str = ""

    def most_wasted(self, leaves: Leaves) -> float:
        """Return how many pages may be wasted.

        Empty pages at the end of an index are read in the call that finds no
        row any more, and nobody sees that they were.
        """
        return max(2, MAX_WASTED * leaves.blocks_issued) + self.jumps * leaves.depth_max

    @property
    def table(self) -> str:
        return self.index.rsplit("_", 1)[0]

    @property
    def plan(self) -> dict[str, str]:
        return BITMAP_SCANS if self.kind == BITMAP else ORDERED


def every(step: int, low: int = 7, top: int = 30010) -> str:
    """Return a list of keys, for IN."""
    return ", ".join(str(k) for k in range(low, top, step))


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
    # Most of the index is NULLs, at which a scan ends whichever side it is bounded on.
    "greater_up_to_nulls": Case(
        "SELECT up, id FROM nulled WHERE up > 3000 ORDER BY up, id", ONLY, "nulled_up"
    ),
    "less_down_to_nulls": Case(
        "SELECT down, id FROM nulled WHERE down < 27000 ORDER BY down DESC NULLS LAST, id DESC",
        ONLY, "nulled_down",
    ),
    "row_up_to_nulls": Case(
        "SELECT up, id FROM nulled WHERE (up, id) > (3000, 5) ORDER BY up, id", ONLY, "nulled_up"
    ),
    "less_from_nulls": Case(
        "SELECT down, id FROM nulled WHERE down < 27000 ORDER BY down NULLS FIRST, id",
        ONLY, "nulled_down",
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
        "SELECT b, e FROM leafy WHERE e BETWEEN 1000 AND 28000 ORDER BY b, e",
        ONLY, "leafy_be", jumps=50,
    ),
    "skip_backward": Case(
        "SELECT b, e FROM leafy WHERE e > 9000 AND b > 3 ORDER BY b DESC, e DESC",
        ONLY, "leafy_be", jumps=50
    ),
    "skip_part": Case(
        "SELECT b, e FROM leafy WHERE b BETWEEN 10 AND 30 AND e > 300 ORDER BY b, e",
        ONLY, "leafy_be",
    ),
    "skip_part_backward": Case(
        "SELECT b, e FROM leafy WHERE b BETWEEN 10 AND 30 AND e > 300 ORDER BY b DESC, e DESC",
        ONLY, "leafy_be",
    ),
    # Lists: far apart, near each other, and both.
    "list": Case(
        "SELECT b, e FROM leafy WHERE b IN (3, 4, 5, 20, 21, 40) ORDER BY b, e",
        ONLY, "leafy_be", jumps=4,
    ),
    "list_backward": Case(
        "SELECT b, e FROM leafy WHERE b IN (3, 4, 5, 20, 21, 40) ORDER BY b DESC, e DESC",
        ONLY, "leafy_be", jumps=4
    ),
    "list_and_range": Case(
        "SELECT b, e FROM leafy WHERE b IN (3, 4, 5, 20, 21, 40) AND e > 9000 ORDER BY b, e",
        ONLY, "leafy_be", jumps=4
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
    "dense_part": Case(
        f"SELECT a FROM leafy WHERE a IN ({every(9, 5000, 20000)}) ORDER BY a", ONLY, "leafy_a"
    ),
    "dense_part_backward": Case(
        f"SELECT a FROM leafy WHERE a IN ({every(9, 5000, 20000)}) ORDER BY a DESC",
        ONLY, "leafy_a",
    ),
    "dense_part_descending": Case(
        f"SELECT d, id FROM leafy WHERE d IN ({every(9, 5000, 20000)}) ORDER BY d DESC, id",
        ONLY, "leafy_d",
    ),
    "two_lists": Case(
        "SELECT b, e FROM leafy WHERE b IN (3, 4, 5, 20) AND b IN (4, 5, 6, 20) ORDER BY b, e",
        ONLY, "leafy_be", jumps=4
    ),
    "no_value": Case(
        "SELECT b, e FROM leafy WHERE b IN (3, 4) AND b IN (5, 6) ORDER BY b, e", ONLY, "leafy_be",
        far=False,
    ),
    "null_in_list": Case(
        "SELECT b, e FROM leafy WHERE b IN (3, NULL, 20) ORDER BY b, e", ONLY, "leafy_be", jumps=4
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
    "thinned": Case("SELECT k FROM thinned ORDER BY k", ONLY, "thinned_k"),
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
        PLAIN, "leafy_be", jumps=4
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
        "SELECT b, e FROM leafy WHERE b IN (3, 4, 5, 20, 21, 40)", BITMAP, "leafy_be", jumps=4
    ),
    "bitmap_two_lists": Case(
        "SELECT b, e FROM leafy WHERE b IN (3, 4, 5, 20) AND b IN (4, 5, 6, 20)",
        BITMAP, "leafy_be", jumps=4,
    ),
    "bitmap_no_value": Case(
        "SELECT b, e FROM leafy WHERE b IN (3, 4) AND b IN (5, 6)", BITMAP, "leafy_be", far=False
    ),
    "bitmap_null_in_list": Case(
        "SELECT b, e FROM leafy WHERE b IN (3, NULL, 20)", BITMAP, "leafy_be", jumps=4
    ),
    "bitmap_nothing_but_null": Case(
        "SELECT b, e FROM leafy WHERE b = ANY (ARRAY[NULL, NULL]::int[])", BITMAP, "leafy_be",
        far=False,
    ),
    "bitmap_dense_list": Case(
        f"SELECT a, t FROM leafy WHERE a IN ({every(9)})", BITMAP, "leafy_a"
    ),
    "bitmap_dense_part": Case(
        f"SELECT a, t FROM leafy WHERE a IN ({every(9, 5000, 20000)})", BITMAP, "leafy_a"
    ),
    "bitmap_up_to_nulls": Case(
        "SELECT up, id FROM nulled WHERE up > 3000", BITMAP, "nulled_up"
    ),
    "bitmap_skip": Case(
        "SELECT b, e, t FROM leafy WHERE e BETWEEN 1000 AND 28000", BITMAP, "leafy_be", jumps=50
    ),
    "bitmap_row": Case(
        "SELECT b, e, t FROM leafy WHERE (b, e) > (10, 5000) AND b < 40", BITMAP, "leafy_be"
    ),
    "bitmap_deduplicated": Case("SELECT u, id FROM leafy WHERE u > 30", BITMAP, "leafy_u"),
    "bitmap_no_row": Case("SELECT a FROM leafy WHERE a > 99999", BITMAP, "leafy_a", far=False),
    "bitmap_and": Case(
        "SELECT a, n, id FROM leafy WHERE a < 9000 AND n > 700",
        BITMAP, "leafy_a", above="BitmapAnd",
    ),
    "bitmap_or": Case(
        "SELECT a, n, id FROM leafy WHERE a < 9000 OR n > 700 OR a > 25000", BITMAP, "leafy_a",
        above="BitmapOr",
    ),
}  # fmt: skip


# ---------------------------------------------------------------------------
# Helpers


@dataclass
class Leaves:
    """What was looked ahead of the leaf pages of an index; see leaves_of()."""

    scans: int = 0
    windows: int = 0
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
        once(connection, "few_keys", SETUP)


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
    assert session(connection).reads_in_flight == 0
    no_pins(cluster)
    expected = rows_without(connection, case.query)
    chill(connection, case)
    with leaves_of(connection, case.index) as leaves:
        assert rows(connection, case.query) == expected
    assert leaves.scans > 0
