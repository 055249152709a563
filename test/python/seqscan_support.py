"""What the tests of sequential scans share: a table, queries, settings."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import pytest
from lookahead import privilege
from lookahead.cluster import Cluster
from lookahead.servers import Server

from support import (
    SEQUENTIAL_SCANS,
    Connection,
    connect,
    once,
    rows,
    settings,
    settle,
    until_served,
    value,
)

# A bit more than the least min_table_size there is.
LEAST = "8MB"
ROWS = 7000
MIN_BLOCKS = 1100

SETUP = f"""
CREATE TABLE long (id int, a int, filler text) WITH (fillfactor = 10, autovacuum_enabled = off);
INSERT INTO long SELECT i, (i * 7919) % 7001, repeat('x', 120) FROM generate_series(1, {ROWS}) i;
DELETE FROM long WHERE id % 13 = 0 OR id BETWEEN 3000 AND 3200;
UPDATE long SET filler = 'y' WHERE id % 17 = 0;
ALTER TABLE long SET (parallel_workers = 2);
CREATE TABLE keys AS SELECT g AS k FROM generate_series(0, 5) g;
ANALYZE
"""

SCAN = "SELECT id, length(filler) FROM long"

# name: (query, does it come to the end of the table?)
QUERIES = {
    "all": ("SELECT id, a, filler FROM long", True),
    "addresses": ("SELECT ctid, id FROM long", True),
    "aggregate": ("SELECT count(*), sum(a), sum(length(filler)) FROM long", True),
    "filter": ("SELECT id FROM long WHERE a % 5 = 1", True),
    "few": ("SELECT id, filler FROM long WHERE a = 77 OR a = 5000", True),
    "no_rows": ("SELECT id FROM long WHERE length(filler) = 7", True),
    "filter_in_plpgsql": ("SELECT id FROM long WHERE odd(a)", True),
    "first_row": ("SELECT id FROM long LIMIT 1", False),
    "limit": ("SELECT id, filler FROM long LIMIT 2000", False),
    "offset": ("SELECT id FROM long OFFSET 4000 LIMIT 20", False),
    "sorted": ("SELECT id FROM long ORDER BY filler, a DESC", True),
    "hash_join": ("SELECT x.id, y.id FROM long x JOIN long y ON x.a = y.id", True),
    "union": ("SELECT id FROM long WHERE a < 9 UNION ALL SELECT a FROM long WHERE id < 9", True),
    "rescans": (
        "SELECT k, (SELECT sum(id) FROM long WHERE a % 6 = k) FROM keys",
        True,
    ),
    "unfinished_rescans": (
        "SELECT k, l.id FROM keys, LATERAL (SELECT id FROM long WHERE a % 6 = k LIMIT 400) l",
        False,
    ),
    "exists": (
        "SELECT k FROM keys WHERE EXISTS (SELECT FROM long WHERE long.a + k * 1000 = 6999)",
        False,
    ),
    "cte": ("WITH c AS MATERIALIZED (SELECT * FROM long) SELECT id FROM c LIMIT 3000", False),
}


# Those of sequential scans.
METHODS = ("worker", "advice")

PARALLEL = {
    **SEQUENTIAL_SCANS,
    "max_parallel_workers_per_gather": "2",
    "parallel_setup_cost": "0",
    "parallel_tuple_cost": "0",
    "min_parallel_table_scan_size": "0",
    # Processes share the rows, not the pages, of which tests before may have left many.
    "seq_page_cost": "0",
    "enable_mergejoin": "off",
    "enable_nestloop": "off",
}


def need_followed_scans(server: Server) -> None:
    """Skip the test from 18 on."""
    if server.major >= 18:
        pytest.skip("the server reads sequential scans ahead itself")


def switch(connection: Connection, *, on: bool) -> None:
    settings(connection, pg_lookahead__enabled="on" if on else "off")


@contextmanager
def long_table(cluster: Cluster, server: Server) -> Iterator[None]:
    """There is a table "long" in a block of code, and the service meets no error."""
    with connect(cluster) as connection:
        if once(connection, "long", SETUP):
            connection.execute(
                "CREATE FUNCTION odd(a int) RETURNS boolean LANGUAGE plpgsql AS"
                " 'BEGIN RETURN a % 2 = 1; END'"
            )
        assert blocks_of(connection, "long") > MIN_BLOCKS
    if server.major >= 18:
        yield  # without a service, unless one is asked for
        return
    with no_service_errors(cluster):
        yield


def blocks_of(connection: Connection, table: str) -> int:
    size = "SELECT pg_relation_size(%s::regclass) / current_setting('block_size')::int"
    return int(value(connection, size, (table,)))


def scanning(
    connection: Connection, method: str = "worker", *, enabled: bool = True, **more: object
) -> None:
    """Have a session scan sequentially, in the order of the table."""
    ours = {
        "pg_lookahead.enabled": "on" if enabled else "off",
        "pg_lookahead.method": method,
        "pg_lookahead.min_table_size": LEAST,
        "synchronize_seqscans": "off",
    }
    settings(connection, **{**SEQUENTIAL_SCANS, **ours, **more})
    if method == "worker":
        until_served(connection)


def asked_of_workers(connection: Connection) -> int:
    """Return how many requests the I/O service was given; it may not have served them all."""
    return int(value(connection, "SELECT sum(requests) FROM pg_stat_lookahead_io"))


def read_by_workers(connection: Connection) -> int:
    """Return how many blocks the I/O service has dealt with, now that it rests."""
    settle(connection)
    dealt_with = "SELECT sum(blocks_read + blocks_hit + blocks_passed) FROM pg_stat_lookahead_io"
    return int(value(connection, dealt_with))


@contextmanager
def no_service_errors(cluster: Cluster) -> Iterator[None]:
    """The I/O service meets no error in a block of code."""
    errors = "SELECT sum(errors) FROM pg_stat_lookahead_io"
    with connect(cluster) as connection:
        before = value(connection, errors)
        yield
        settle(connection)
        assert value(connection, errors) == before


def add_hole(cluster: Cluster, connection: Connection, table: str, blocks: int) -> None:
    """Make a table that many blocks long; what is added is empty and takes no room on disk."""
    path = value(connection, "SELECT pg_relation_filepath(%s::regclass)", (table,))
    size, segment = rows(
        connection,
        "SELECT current_setting('block_size')::int, setting::int FROM pg_settings"
        " WHERE name = 'segment_size'",
    )[0]
    for number in range(-(-blocks // segment)):
        file = cluster.data / (path if number == 0 else f"{path}.{number}")
        with file.open("ab") as opened:
            opened.truncate(min(blocks - number * segment, segment) * size)
        privilege.give(file)
    assert blocks_of(connection, table) == blocks
