"""What the tests of commands that are followed from outside have in common."""

from __future__ import annotations

import pytest
from lookahead.cluster import Cluster
from lookahead.errors import LookaheadError
from lookahead.servers import Server

from conftest import NewCluster
from support import Connection, rows, script, value, wait_for

CONF = {
    # Scans of our tables are synchronized: they are larger than a quarter.
    "shared_buffers": "8MB",
    "pg_lookahead.min_table_size": "8MB",
    "pg_lookahead.io_workers": "2",
    "max_worker_processes": "12",
    "max_parallel_maintenance_workers": "0",
    # Blocks are counted: no more than the rows need.
    "pg_lookahead.heap_extend_size": "0",
}

BLOCKS = 2500

# 20 rows a block; nothing is compressed.
SETUP = f"""
CREATE TABLE maintained (a int, filler text);
INSERT INTO maintained SELECT i, repeat('x', 360) FROM generate_series(1, {BLOCKS * 20}) i;
CREATE INDEX maintained_a ON maintained (a);
VACUUM (FREEZE) maintained
"""

SLOW = """
CREATE FUNCTION {}(i int) RETURNS int LANGUAGE plpgsql IMMUTABLE PARALLEL SAFE AS $$
BEGIN
    IF i % 500 = 0 THEN
        PERFORM pg_sleep({});
    END IF;
    RETURN i;
END $$
"""

# For how many seconds such a function sleeps each time.
UNTIL_SEEN = "CASE WHEN EXISTS (SELECT FROM public.pg_stat_lookahead_owners) THEN {} ELSE 0.1 END"
SLOW_FUNCTIONS = {
    "slow": "0.012",
    "slow_until_seen": UNTIL_SEEN.format("0.012"),
    # To be cancelled then.
    "endless_once_seen": UNTIL_SEEN.format("60"),
}

SLOW_VACUUM = "SET vacuum_cost_delay = '5ms'; SET vacuum_cost_limit = 200"


def cluster_with_direct_io(own_cluster: NewCluster, server: Server) -> Cluster:
    """Return a server whose workers read into shared buffers, at a distance from VACUUM."""
    if server.major not in (16, 17):
        pytest.skip("direct I/O and commands that nobody else reads ahead are of 16 and 17")
    try:
        return own_cluster({**CONF, "shared_buffers": "64MB", "debug_io_direct": "data"})
    except LookaheadError as error:
        pytest.skip(f"cannot be used here: {error}")


def setup(connection: Connection) -> None:
    script(connection, SETUP)
    connection.execute("CREATE EXTENSION IF NOT EXISTS pg_lookahead")
    for name, seconds in SLOW_FUNCTIONS.items():
        connection.execute(SLOW.format(name, seconds))


def owners(connection: Connection) -> int:
    return int(value(connection, "SELECT count(*) FROM pg_stat_lookahead_owners"))


def scans(connection: Connection, table: str = "maintained") -> tuple[int, int, int]:
    """Return how often a table was looked ahead for, blocks asked for, blocks there."""
    found = rows(
        connection,
        "SELECT scans, blocks_issued, blocks_hit FROM pg_stat_lookahead"
        f" WHERE relid = '{table}'::regclass",
    )
    return (int(found[0][0]), int(found[0][1]), int(found[0][2])) if found else (0, 0, 0)


def rest(connection: Connection) -> None:
    """Wait until nothing is followed, all is reported, and no resolver has a snapshot."""
    processes = (
        "SELECT count(*) FILTER (WHERE backend_type = 'pg_lookahead watcher'"
        "                          AND wait_event_type = 'Extension') = 1"
        "   AND count(*) FILTER (WHERE backend_type = 'pg_lookahead resolver') = 0"
        "  FROM pg_stat_activity"
    )
    # An owner ends before the watcher reports, and begins before it waits.
    wait_for(
        lambda: (
            owners(connection) == 0 and value(connection, processes) and owners(connection) == 0
        ),
        60,
    )


def errors(connection: Connection) -> int:
    """Return what has failed in the service's workers, in scans and in the watcher."""
    workers = value(connection, "SELECT sum(errors) FROM pg_stat_lookahead_io")
    return int(
        workers + value(connection, "SELECT coalesce(sum(errors), 0) FROM pg_stat_lookahead")
    )


def watcher(connection: Connection) -> int | None:
    found = rows(
        connection,
        "SELECT pid FROM pg_stat_activity WHERE backend_type = 'pg_lookahead watcher'",
    )
    return int(found[0][0]) if found else None


def followed(connection: Connection, statements: str, table: str = "maintained") -> int:
    """Run statements; return how many blocks were asked for, -1 if it was not followed."""
    rest(connection)
    before, failed = scans(connection, table), errors(connection)
    script(connection, statements)
    rest(connection)
    after = scans(connection, table)
    assert errors(connection) == failed
    if after[0] == before[0]:
        return -1
    return after[1] + after[2] - before[1] - before[2]


def tried(connection: Connection, statements: str, least: int, table: str = "maintained") -> int:
    """The same, of the first of five times in which more than so many were asked for, or the last.

    The watcher may get its processor late, and the command be over.
    """
    for _ in range(5):
        asked = followed(connection, statements, table)
        if asked > least:
            break
    return asked
