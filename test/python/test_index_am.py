"""Index access methods of other extensions: scanned twice at once only if they are named."""

from __future__ import annotations

from collections.abc import Iterator

import psycopg
import pytest
from lookahead.cluster import Cluster

from support import (
    INDEX_SCANS,
    Connection,
    Variant,
    cold,
    connect,
    gained,
    require_node,
    rows,
    script,
    settings,
    use,
    value,
)

ROWS = 2000

SETUP = f"""
CREATE FUNCTION la_index_am_handler(internal) RETURNS index_am_handler
  AS 'la_index_am' LANGUAGE C;
CREATE FUNCTION la_index_am_scans() RETURNS int AS 'la_index_am' LANGUAGE C;
CREATE FUNCTION la_index_am_incomplete() RETURNS int AS 'la_index_am' LANGUAGE C;
CREATE FUNCTION la_index_am_fail(boolean) RETURNS void AS 'la_index_am' LANGUAGE C;
CREATE ACCESS METHOD counted TYPE INDEX HANDLER la_index_am_handler;
CREATE OPERATOR CLASS counted_ops DEFAULT FOR TYPE box USING counted
  AS OPERATOR 8 <@,
     FUNCTION 1 gist_box_consistent(internal, box, smallint, oid, internal),
     FUNCTION 2 gist_box_union(internal, internal),
     FUNCTION 5 gist_box_penalty(internal, internal, internal),
     FUNCTION 6 gist_box_picksplit(internal, internal),
     FUNCTION 7 gist_box_same(box, box, internal);
CREATE TABLE counted (a box, filler text) WITH (fillfactor = 20, autovacuum_enabled = off);
INSERT INTO counted SELECT box(point(i, i % 100)), repeat('x', 100)
  FROM generate_series(1, {2 * ROWS}) i ORDER BY md5(i::text);
CREATE INDEX counted_a ON counted USING counted (a);
VACUUM ANALYZE counted
"""
QUERY = f"SELECT count(*), sum(length(filler)) FROM counted WHERE a <@ box '(1,0),({ROWS},99)'"
ANSWER = [(ROWS, ROWS * 100)]
SETTING = "pg_lookahead.index_access_methods"


CLEAN_UP = """
DROP TABLE IF EXISTS counted;
DROP ACCESS METHOD IF EXISTS counted CASCADE;
DROP FUNCTION IF EXISTS la_index_am_handler;
DROP FUNCTION IF EXISTS la_index_am_scans;
DROP FUNCTION IF EXISTS la_index_am_incomplete;
DROP FUNCTION IF EXISTS la_index_am_fail
"""


@pytest.fixture
def connection(cluster: Cluster) -> Iterator[Connection]:
    with connect(cluster) as other:
        try:
            script(other, SETUP)
            with connect(cluster) as connection:
                yield connection
        finally:
            script(other, CLEAN_UP)


def scanned(connection: Connection) -> tuple[int, int, int]:
    """Return the most scans at once, calls without a table, and blocks read ahead."""
    require_node(connection, QUERY, "Index Scan", "counted_a")
    cold(connection, "counted")
    value(connection, "SELECT la_index_am_scans()")
    before = value(connection, "SELECT la_index_am_incomplete()")
    with gained(connection) as change:
        assert rows(connection, QUERY) == ANSWER
    after = value(connection, "SELECT la_index_am_incomplete()")
    scans = value(connection, "SELECT la_index_am_scans()")
    return scans, after - before, change.blocks_issued + change.blocks_hit


def test_strangers_are_left_alone(connection: Connection, variant: Variant) -> None:
    use(connection, variant, **INDEX_SCANS)
    assert value(connection, f"SHOW {SETTING}") == "hnsw, ivfflat"
    assert scanned(connection) == (1, 0, 0)
    connection.execute(f"""SET {SETTING} = 'ivfflat, "COUNTED"'""")
    assert scanned(connection) == (1, 0, 0)
    # The test would see it.
    connection.execute(f"SET {SETTING} = ivfflat, COUNTED")
    scans, incomplete, blocks = scanned(connection)
    assert scans == 2
    assert incomplete > ROWS / 2
    if variant.reads:
        assert blocks > 0
    # In the session that has followed one.
    connection.execute(f"SET {SETTING} = ''")
    assert scanned(connection) == (1, 0, 0)


def test_an_error_without_a_message(connection: Connection, cluster: Cluster) -> None:
    settings(connection, **INDEX_SCANS)
    connection.execute(f"SET {SETTING} = counted")
    require_node(connection, QUERY, "Index Scan", "counted_a")
    value(connection, "SELECT la_index_am_fail(true)")
    cold(connection, "counted")
    with gained(connection) as change:
        assert rows(connection, QUERY) == ANSWER
    assert change.errors == 1


def test_who_may_say_so(cluster: Cluster) -> None:
    with connect(cluster) as connection:
        with pytest.raises(psycopg.errors.InvalidParameterValue) as failed:
            connection.execute(f"SET {SETTING} = 'hnsw,,'")
        assert failed.value.diag.message_detail == "List syntax is invalid."
        connection.execute("CREATE ROLE counting")
        try:
            connection.execute("SET ROLE counting")
            with pytest.raises(psycopg.errors.InsufficientPrivilege):
                connection.execute(f"SET {SETTING} = 'counted'")
        finally:
            script(connection, "RESET ROLE; DROP ROLE counting")
