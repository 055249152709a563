"""The cumulative counters: many relations, many sessions, restarts."""

from __future__ import annotations

import pytest
from lookahead.cluster import Cluster
from lookahead.servers import Server

from conftest import NewCluster
from support import (
    INDEX_SCANS,
    at_work,
    connect,
    once,
    rows,
    script,
    settings,
    value,
)

# As many as shared memory has room for: LA_MAX_RELATIONS.
MOST_RELATIONS = 2048

SETUP = """
CREATE TABLE summed (a int, filler text) WITH (fillfactor = 20);
INSERT INTO summed SELECT i, repeat('x', 100) FROM generate_series(1, 2000) i
 ORDER BY md5(i::text);
CREATE INDEX summed_a ON summed (a);
ANALYZE summed
"""

SCAN = "SELECT a, filler FROM summed WHERE a < 200 ORDER BY a"
COUNTERS = (
    "SELECT scans, windows, blocks_issued + blocks_hit + blocks_dropped,"
    " blocks_issued - blocks_used - blocks_wasted FROM pg_stat_lookahead WHERE relname = 'summed'"
)


@pytest.fixture
def table(cluster: Cluster) -> Cluster:
    with connect(cluster) as connection:
        once(connection, "summed", SETUP)
        connection.execute("SELECT pg_stat_lookahead_reset()")
    return cluster


def test_sessions_add_up(table: Cluster) -> None:
    """Eight sessions at once; not one scan is lost."""

    def scan() -> None:
        with connect(table) as connection:
            settings(connection, **INDEX_SCANS)
            for _ in range(25):
                rows(connection, SCAN)

    with at_work(*[scan] * 8):
        pass
    with connect(table) as connection:
        scans, windows, blocks, unaccounted = rows(connection, COUNTERS)[0]
        assert scans == 200
        assert windows >= 200
        assert blocks > 200
        assert unaccounted == 0


def test_reset_while_others_scan(table: Cluster) -> None:
    with connect(table) as connection, connect(table) as other:
        settings(connection, **INDEX_SCANS)
        connection.execute(f"BEGIN; DECLARE c CURSOR FOR {SCAN}")
        rows(connection, "FETCH 10 FROM c")
        rows(connection, SCAN)
        assert rows(other, COUNTERS)[0][0] == 1
        other.execute("SELECT pg_stat_lookahead_reset('summed'::regclass)")
        assert rows(other, COUNTERS) == []
        connection.execute("COMMIT")
        # The cursor's scan ended after the reset.
        assert rows(other, COUNTERS)[0][0] == 1


def test_restart_forgets(own_cluster: NewCluster) -> None:
    cluster = own_cluster()
    with connect(cluster) as connection:
        script(connection, SETUP)
        settings(connection, **INDEX_SCANS)
        rows(connection, SCAN)
        assert rows(connection, COUNTERS)[0][0] == 1
    cluster.restart()
    with connect(cluster) as connection:
        assert rows(connection, "TABLE pg_stat_lookahead") == []
    cluster.close()


def test_more_relations_than_there_is_room_for(own_cluster: NewCluster, server: Server) -> None:
    """Those with the fewest blocks make room for new ones."""
    cluster = own_cluster()
    with connect(cluster) as connection:
        settings(connection, statement_timeout="0", **INDEX_SCANS)
        script(connection, SETUP)
        connection.execute(
            """
            CREATE PROCEDURE fill(low int, high int) LANGUAGE plpgsql AS $$
            BEGIN
                FOR i IN low..high LOOP
                    EXECUTE format('CREATE TABLE small_%s AS SELECT g AS a,'
                                   ' repeat(''x'', 3000) AS f FROM generate_series(1, 6) g', i);
                    EXECUTE format('CREATE INDEX ON small_%s (a)', i);
                    EXECUTE format('SELECT count(f) FROM (SELECT a, f FROM small_%s ORDER BY a'
                                   ' OFFSET 0) t', i);
                    COMMIT;
                END LOOP;
            END $$
            """
        )
        for _ in range(20):
            rows(connection, SCAN)
        connection.execute(f"CALL fill(1, {MOST_RELATIONS + 50})")
        shown = value(connection, "SELECT count(*) FROM pg_stat_lookahead")
        lost = value(connection, "SELECT relations_lost FROM pg_lookahead_status()")
        # A sixteenth makes room at a time.
        assert lost == MOST_RELATIONS // 16
        assert shown + lost == MOST_RELATIONS + 51
        assert rows(connection, COUNTERS)[0][0] == 20
        last = f"small_{MOST_RELATIONS + 50}"
        seen = "SELECT count(*) FROM pg_stat_lookahead WHERE relname = %s AND scans = 1"
        assert value(connection, seen, (last,)) == 1
        if server.assertions:
            # Who is not seen any more makes room in the end, however much it had.
            last = MOST_RELATIONS + 50
            for _ in range(2):
                connection.execute(f"CALL fill({last + 1}, {last + MOST_RELATIONS})")
                last += MOST_RELATIONS
            assert rows(connection, COUNTERS) == []
        # There is room again after a reset.
        connection.execute("SELECT pg_stat_lookahead_reset()")
        rows(connection, SCAN)
        assert value(connection, "SELECT count(*) FROM pg_stat_lookahead") == 1
    cluster.close()
