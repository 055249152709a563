"""A page that cannot be read, in front of a sequential scan that may not need it."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import pytest
from lookahead.cluster import Cluster
from lookahead.servers import Server

from conftest import NewCluster
from seqscan_support import METHODS, SETUP, need_followed_scans, scanning, switch
from support import (
    Connection,
    LogWatch,
    Row,
    connect,
    gained,
    require_node,
    rows,
    script,
    settle,
    value,
)
from test_errors import EXPECTED, TOLERANT, Answer, ask, spoil

# The page that is damaged, and one from which a scan looks ahead as far as that.
BAD = 700
NEAR = BAD - 30
SCAN = "SELECT id, length(filler) FROM long"
ERRORS = "SELECT sum(errors) FROM pg_stat_lookahead_io"


@dataclass(frozen=True)
class Damage:
    cluster: Cluster
    near: list[Row]  # rows of the pages before NEAR
    before: list[Row]  # rows of the pages before BAD
    others: list[Row]  # rows of all pages but BAD


@pytest.fixture(scope="module")
def damage(own_cluster: NewCluster, server: Server) -> Damage:
    need_followed_scans(server)
    cluster = own_cluster(
        {"pg_lookahead.io_workers": "2", "pg_lookahead.start_after": "0", "shared_buffers": "16MB"}
    )
    with connect(cluster) as connection:
        script(connection, SETUP + ";" + SETUP.split(";")[0].replace("long", "other"))
        connection.execute("INSERT INTO other SELECT long.* FROM long, generate_series(1, 3)")
        found = Damage(
            cluster,
            rows(connection, f"{SCAN} WHERE ctid < '({NEAR},0)'"),
            rows(connection, f"{SCAN} WHERE ctid < '({BAD},0)'"),
            rows(connection, f"{SCAN} WHERE ctid < '({BAD},0)' OR ctid >= '({BAD + 1},0)'"),
        )
        assert len(found.near) < len(found.before) < len(found.others)
        file = cluster.data / value(connection, "SELECT pg_relation_filepath('long')")
        connection.execute("CHECKPOINT")
    cluster.stop()
    spoil(file, BAD)
    cluster.start()
    return found


@pytest.fixture(params=METHODS)
def connection(request: pytest.FixtureRequest, damage: Damage) -> Iterator[Connection]:
    with LogWatch(damage.cluster, allowed=[EXPECTED]), connect(damage.cluster) as connection:
        scanning(connection, request.param)
        require_node(connection, SCAN, "Seq Scan")
        yield connection


def ask_cold(connection: Connection, query: str, *, enabled: bool = True) -> Answer:
    """Ask when other pages have taken all of shared buffers."""
    switch(connection, on=False)
    others = "SELECT count(*) FROM other WHERE ctid >= '(0,0)'"
    require_node(connection, others, "Tid Range Scan")
    for _ in range(2):
        value(connection, others)
    switch(connection, on=enabled)
    requests = "SELECT sum(requests) FROM pg_stat_lookahead_io"
    before = value(connection, requests)
    with gained(connection) as change:
        answer = ask(connection, query)
    # A scan that failed does not come to count what it issued.
    if answer.error is None:
        assert (change.blocks_issued > NEAR / 2) == enabled
    elif method(connection) == "worker":
        assert (value(connection, requests) > before) == enabled
    return answer


def method(connection: Connection) -> str:
    return str(value(connection, "SHOW pg_lookahead.method"))


def test_end_before_the_damage(damage: Damage, connection: Connection) -> None:
    before = value(connection, ERRORS)
    # A LIMIT below which nothing throws rows away is foreseen.
    query = f"SELECT * FROM ({SCAN} OFFSET 0) t WHERE id > -1 LIMIT {len(damage.near)}"
    # On a busy machine the query may be over before a worker gets to it.
    for turn in range(100):
        assert ask_cold(connection, query) == Answer(damage.near, [], None)
        settle(connection)
        if turn >= 3 and (method(connection) == "advice" or value(connection, ERRORS) > before):
            break
    else:
        pytest.fail("no worker came to the damage: the test tests nothing")


def test_damage_that_is_needed(damage: Damage, connection: Connection) -> None:
    without = ask_cold(connection, SCAN, enabled=False)
    assert without.error is not None
    assert ask_cold(connection, SCAN) == without
    # The session goes on, and looks ahead again.
    query = f"{SCAN} WHERE id > -1 LIMIT {len(damage.near)}"
    assert ask_cold(connection, query) == Answer(damage.near, [], None)


def test_damage_met_by_fetching_on(damage: Damage, connection: Connection) -> None:
    expected = ask_cold(connection, SCAN, enabled=False).error
    switch(connection, on=True)
    connection.execute("BEGIN")
    connection.execute(f"DECLARE c CURSOR FOR {SCAN}")
    assert rows(connection, f"FETCH {len(damage.near)} FROM c") == damage.near
    settle(connection)
    left = len(damage.before) - len(damage.near)
    assert rows(connection, f"FETCH {left} FROM c") == damage.before[-left:]
    connection.execute("SAVEPOINT s")
    assert ask(connection, "FETCH 100 FROM c").error == expected
    connection.execute("ROLLBACK TO s")
    assert ask(connection, f"{SCAN} LIMIT 50") == Answer(damage.near[:50], [], None)
    connection.execute("COMMIT")
    assert value(connection, "SELECT count(*) FROM pg_stat_lookahead_owners") == 0


@pytest.mark.parametrize("setting", TOLERANT)
def test_damage_that_is_put_up_with(damage: Damage, connection: Connection, setting: str) -> None:
    """The query's own read warns, as without look-ahead."""
    connection.execute(f"SET {setting} = on")
    without = ask_cold(connection, SCAN, enabled=False)
    assert without.notices
    assert ask_cold(connection, SCAN) == without
    if setting == "zero_damaged_pages":
        assert without.rows == damage.others
