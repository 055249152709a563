"""Look-ahead on a disk of which each page is cold until it was read or asked for: odd_files.c.

The time is that of such reads alone, so what the trials decide does not hang on the machine.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from lookahead.cluster import Cluster

from conftest import NewCluster
from extend_support import COLD_READS, odd_files
from support import (
    INDEX_SCANS,
    Connection,
    cold,
    cold_index,
    connect,
    gained,
    prepare,
    require_node,
    rows,
    rows_without,
    script,
    settings,
    value,
)

ALL = 1_000_000

# One row to a page, in the order of the index.
BLOCKS = 16000
IN_ORDER = f"""
CREATE TABLE in_order (a int, filler text) WITH (autovacuum_enabled = off);
ALTER TABLE in_order ALTER filler SET STORAGE plain;
INSERT INTO in_order SELECT i, repeat('x', 5000) FROM generate_series(1, {BLOCKS}) i;
CREATE INDEX in_order_a ON in_order (a);
VACUUM ANALYZE in_order;
"""
QUERY = "SELECT count(*), sum(a), sum(length(filler)) FROM in_order WHERE a > 0"

# What a trial reads before look-ahead begins, and while it is timed: see pace.c.
TRIAL = 512 + 2048

LEAVES = 4000
ENTRIES = f"""
CREATE TABLE entries (a int) WITH (autovacuum_enabled = off);
INSERT INTO entries SELECT i FROM generate_series(1, {LEAVES * 100}) i;
CREATE INDEX entries_a ON entries (a) WITH (fillfactor = 25);
VACUUM ANALYZE entries;
"""
BACKWARD = "SELECT count(*), sum(a) FROM (SELECT a FROM entries ORDER BY a DESC OFFSET 0) AS s"


@pytest.fixture(scope="module")
def disk(own_cluster: NewCluster) -> tuple[Cluster, Path]:
    conf = {"shared_buffers": "256MB", "pg_lookahead.start_after": "8"}
    cluster = own_cluster(conf, start=False)
    (flag,) = odd_files(cluster, COLD_READS)
    cluster.start()
    prepare(cluster)
    with connect(cluster) as connection:
        script(connection, IN_ORDER)
        script(connection, ENTRIES)
    return cluster, flag


@pytest.fixture
def cold_reads(disk: tuple[Cluster, Path]) -> Iterator[Path]:
    yield disk[1]
    disk[1].unlink(missing_ok=True)


@pytest.fixture
def connection(disk: tuple[Cluster, Path]) -> Iterator[Connection]:
    with connect(disk[0]) as connection:
        settings(connection, **INDEX_SCANS, pg_lookahead__method="advice")
        # There and back: reads of other tablespaces are not odd.
        cold(connection, "in_order", "in_order")
        cold_index(connection, "entries_a", "entries_a")
        yield connection


def test_rest_in_the_page_cache(cold_reads: Path, connection: Connection) -> None:
    """Look-ahead that has won a trial ends where the kernel has what it asks for."""
    require_node(connection, QUERY, "Index Scan", "in_order_a")
    ahead = 5000
    cold_reads.write_text(f"{ahead}\n")
    with gained(connection) as change:
        found = rows(connection, QUERY)
    assert found == rows_without(connection, QUERY)
    # From the trial's second half on, and then until four probes did not wait.
    assert ahead - TRIAL - 512 < change.blocks_issued < ahead
    assert change.windows > 0


def test_half_in_shared_buffers(cold_reads: Path, connection: Connection) -> None:
    """What is there already makes look-ahead no faster than the kernel."""
    require_node(connection, QUERY, "Index Scan", "in_order_a")
    evens = f"SELECT format('(%s,1)', i)::tid FROM generate_series(0, {BLOCKS - 1}, 2) i"
    connection.execute("SET enable_tidscan = on")
    connection.execute(f"SELECT count(*) FROM in_order WHERE ctid = ANY(ARRAY({evens}))")
    cold_reads.write_text(f"-{ALL}\n")
    with gained(connection) as change:
        found = rows(connection, QUERY)
    assert found == rows_without(connection, QUERY)
    # The trial was lost when as much was read with as without.
    assert 0 < change.blocks_issued < TRIAL + 512


def test_probes_of_leaf_pages(cold_reads: Path, connection: Connection) -> None:
    """A probe that waits is one that the scan has come to, and not the page after it."""
    require_node(connection, BACKWARD, "Index Only Scan", "entries_a")
    cold_reads.write_text(f"{ALL}\n")
    with gained(connection) as change:
        found = rows(connection, BACKWARD)
    assert found == rows_without(connection, BACKWARD)
    # One page of eight windows is a probe, and for none is what comes after it given up.
    pages = value(connection, "SELECT relpages FROM pg_class WHERE relname = 'entries_a'")
    assert change.blocks_dropped > 0
    assert pages - change.blocks_issued - change.blocks_dropped < 48
