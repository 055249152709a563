"""Scans that look ahead to the end of the leaf page in hand, and index-only scans."""

from __future__ import annotations

import random

import pytest
from lookahead.cluster import Cluster

from support import (
    INDEX_SCANS,
    blocks_read,
    cold,
    cold_index,
    connect,
    gained,
    once,
    require_node,
    rows,
    script,
    settings,
    value,
)

# Of each value of `a` there is one row.  b = 7 has 45, on the first pages of the index.
SPARSE = """
CREATE TABLE sparse (a int, b int, filler text) WITH (fillfactor = 10);
INSERT INTO sparse SELECT a, CASE WHEN a % 100 = 0 AND a <= 4500 THEN 7 ELSE 10 + a % 5 END,
       repeat('x', 50) FROM generate_series(1, 60000) a ORDER BY md5(a::text);
CREATE INDEX sparse_ab ON sparse (a, b);
VACUUM (FREEZE, ANALYZE) sparse
"""
OF_SPARSE = "SELECT a, filler FROM sparse WHERE a > 0 AND b = 7 ORDER BY a"

# Of each value of `a` there are fifty rows, some seven values on a page of the index.
LISTS = """
CREATE TABLE lists (a int, b int, c int, filler text) WITH (fillfactor = 10);
INSERT INTO lists SELECT i % 200, i, 1, repeat('x', 100) FROM generate_series(1, 10000) i
 ORDER BY md5(i::text);
CREATE INDEX lists_abc ON lists (a, b, c);
VACUUM (FREEZE, ANALYZE) lists
"""
VALUES = list(range(1, 200, 2))
OF_LISTS = f"SELECT a, b, filler FROM lists WHERE a = ANY ('{{{str(VALUES)[1:-1]}}}') AND c > 0"

# Some thirty entries on each page of the index, which has three levels, and two rows on each page
# of the table.  Three of ten values of the list are there.
GAPS = """
CREATE TABLE gaps (a int, filler text);
ALTER TABLE gaps ALTER filler SET STORAGE plain;
INSERT INTO gaps SELECT i * 10, repeat('x', 3000) FROM generate_series(1, 30000) i
 ORDER BY md5(i::text);
CREATE INDEX gaps_a ON gaps (a) WITH (fillfactor = 10);
VACUUM (FREEZE, ANALYZE) gaps
"""

# In the order of the index: page N, one that is all-visible, N again, and one that is not.
WOVEN = """
CREATE TABLE woven (a int, b int, c int, filler text);
ALTER TABLE woven ALTER filler SET STORAGE plain;
CREATE INDEX woven_abc ON woven (a, b, c);
INSERT INTO woven SELECT i * 4 + 1, i, 1, repeat('v', 8100) FROM generate_series(1, 100) i;
VACUUM (FREEZE) woven;
INSERT INTO woven SELECT i * 4 + 3, i, 1, repeat('x', 8100) FROM generate_series(1, 100) i;
INSERT INTO woven SELECT i * 4 + n, i, 1 FROM generate_series(1, 100) i, (VALUES (0), (2)) AS n (n)
"""
# By the leaf page in hand, and by a second scan of the index.
OF_WOVEN = {"filtering": "a > 0 AND c > 0", "bounding": "a > 0"}


def test_values_that_are_not_there(cluster: Cluster) -> None:
    """However many of a list follow one another, the second scan goes on behind them."""
    chance = random.Random(1)
    listed = [i * 400 + (0 if chance.random() < 0.3 else 5) for i in range(1, 700)]
    there = sum(a % 10 == 0 for a in listed)
    query = f"SELECT a, filler FROM gaps WHERE a = ANY ('{{{str(listed)[1:-1]}}}')"
    with connect(cluster) as connection:
        script(connection, GAPS)
        settings(connection, **INDEX_SCANS, pg_lookahead__leafscan="off")
        require_node(connection, query, "Index Scan", "gaps_a")
        cold(connection, "gaps")
        cold_index(connection, "gaps_a")
        with gained(connection) as change:
            assert sorted(a for a, _ in rows(connection, query)) == [
                a for a in listed if a % 10 == 0
            ]
        assert change.scans == 1
        assert change.blocks_used > there * 0.9, (change, there)
        assert change.blocks_wasted == 0, change
        connection.execute("DROP TABLE gaps")


def test_no_further_in_the_index_than_the_query(cluster: Cluster) -> None:
    """What lies behind the last match is read by who asks for it; on 18 that is a skip scan."""
    pages = {}
    with connect(cluster) as connection:
        script(connection, SPARSE)
        settings(connection, **INDEX_SCANS, pg_lookahead__leafscan="off")
        require_node(connection, OF_SPARSE, "Index Scan", "sparse_ab")
        for enabled in ("off", "on"):
            settings(connection, pg_lookahead__enabled=enabled)
            cold(connection, "sparse")
            cold_index(connection, "sparse_ab")
            with gained(connection) as change, connection.transaction():
                connection.execute(f"DECLARE k CURSOR FOR {OF_SPARSE}")
                before = blocks_read(connection, "sparse_ab")
                found = rows(connection, "FETCH 40 FROM k")
                pages[enabled] = blocks_read(connection, "sparse_ab") - before
            assert [a for a, _ in found] == list(range(100, 4001, 100))
        assert change.scans == 1
        size = value(connection, "SELECT pg_relation_size('sparse_ab') / 8192")
        assert pages["off"] < size / 4
        # The page that it is on, and the one before.
        assert pages["on"] <= pages["off"] + 2
        connection.execute("DROP TABLE sparse")


def test_values_of_a_list_on_one_page(cluster: Cluster) -> None:
    """Each value begins anew where it has items of its own (before 17)."""
    with connect(cluster) as connection:
        script(connection, LISTS)
        settings(connection, **INDEX_SCANS, pg_lookahead__enabled="off")
        require_node(connection, OF_LISTS, "Index Scan", "lists_abc")
        without = rows(connection, OF_LISTS)
        assert len(without) == 50 * len(VALUES)
        settings(connection, pg_lookahead__enabled="on")
        cold(connection, "lists")
        with gained(connection) as change:
            assert rows(connection, OF_LISTS) == without
        blocks = value(connection, "SELECT pg_relation_size('lists') / 8192")
        # Nearly every block has a row of some value; the first of a page is not foreseen.
        assert change.blocks_used > blocks * 0.7, change
        assert change.blocks_wasted == 0
        connection.execute("DROP TABLE lists")


@pytest.mark.parametrize("name", OF_WOVEN)
def test_pages_that_are_come_to_again(cluster: Cluster, name: str) -> None:
    """A page is named again if the scan has been at others meanwhile, which are not read."""
    query = f"SELECT a FROM woven WHERE {OF_WOVEN[name]}"
    with connect(cluster) as connection:
        once(connection, "woven", WOVEN)
        settings(connection, **INDEX_SCANS, pg_lookahead__enabled="off")
        require_node(connection, query, "Index Only Scan", "woven_abc")
        without = rows(connection, query)
        settings(connection, pg_lookahead__enabled="on")
        cold(connection, "woven")
        with gained(connection) as change:
            assert rows(connection, query) == without
        assert change.blocks_wasted == 0, change
        assert change.blocks_used > 80, change
