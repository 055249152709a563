"""Another extension stands in for an index's access method before us: it is still asked."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from lookahead.cluster import Cluster

from support import (
    INDEX_SCANS,
    SEQUENTIAL_SCANS,
    Connection,
    cold,
    connect,
    gained,
    require_node,
    rows,
    script,
    settings,
    value,
)

ROWS = 2000

SETUP = f"""
CREATE FUNCTION la_stand_in(regclass) RETURNS void AS 'la_stand_in' LANGUAGE C;
CREATE FUNCTION la_stood_in(text) RETURNS int AS 'la_stand_in' LANGUAGE C;
CREATE TABLE stood (a int, filler text) WITH (fillfactor = 20);
INSERT INTO stood SELECT i, repeat('x', 100) FROM generate_series(1, {ROWS}) i
 ORDER BY md5(i::text);
CREATE INDEX stood_a ON stood (a);
CREATE INDEX stood_other ON stood ((a + 1));
VACUUM ANALYZE stood
"""
QUERY = "SELECT count(*), sum(length(filler)) FROM stood WHERE a > 0"
ANSWER = [(ROWS, ROWS * 100)]
BITMAP_SCANS = {**SEQUENTIAL_SCANS, "enable_seqscan": "off", "enable_bitmapscan": "on"}


@pytest.fixture
def connection(cluster: Cluster) -> Iterator[Connection]:
    """A session that has used no index that we could know B-tree's functions from."""
    with connect(cluster) as other:
        script(other, SETUP)
    with connect(cluster) as connection:
        yield connection
        script(
            connection,
            "DROP TABLE stood; DROP FUNCTION la_stand_in; DROP FUNCTION la_stood_in",
        )


def stand_in(connection: Connection) -> None:
    cold(connection, "stood")
    value(connection, "SELECT la_stand_in('stood_a')")


def asked(connection: Connection, what: str) -> int:
    return int(value(connection, "SELECT la_stood_in(%s)", (what,)))


def test_entries(connection: Connection) -> None:
    settings(connection, **INDEX_SCANS)
    require_node(connection, QUERY, "Index Scan", "stood_a")
    stand_in(connection)
    with gained(connection) as change:
        assert rows(connection, QUERY) == ANSWER
    # For each entry and for the end, and by the scan that runs ahead.
    assert asked(connection, "tuples") > ROWS
    assert change.blocks_issued > 0


def test_bitmaps(connection: Connection) -> None:
    settings(connection, **BITMAP_SCANS)
    require_node(connection, QUERY, "Bitmap Index Scan", "stood_a")
    stand_in(connection)
    for n in (1, 2):
        assert rows(connection, QUERY) == ANSWER
        assert asked(connection, "bitmaps") == n


def test_after_an_index_of_the_usual_kind(connection: Connection) -> None:
    """Then the one that is not is left alone."""
    settings(connection, **INDEX_SCANS)
    usual = QUERY.replace("WHERE a >", "WHERE a + 1 >")
    require_node(connection, usual, "Index Scan", "stood_other")
    assert rows(connection, usual) == ANSWER
    stand_in(connection)
    with gained(connection) as change:
        assert rows(connection, QUERY) == ANSWER
    # The end, and the planner's questions for the least and the greatest key.
    assert ROWS < asked(connection, "tuples") <= ROWS + 3
    assert change.blocks_issued == 0
