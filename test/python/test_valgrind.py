"""The core cases under Valgrind; only with LOOKAHEAD_VALGRIND set.

`lookahead test --valgrind` sets it to the folder of Valgrind's reports.  Set
to anything else, the reports go to a folder of the test's own.  The servers
built with assertions also tell Valgrind which buffers are pinned, so a look at
a page without a pin is found, too.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import psycopg
import pytest
from lookahead import privilege, valgrind
from lookahead.cluster import Cluster
from lookahead.servers import Server

from conftest import CONF
from support import (
    INDEX_SCANS,
    Connection,
    Row,
    cold,
    connect,
    gained,
    no_timeout,
    prepare,
    require_node,
    rows,
    rows_without,
    script,
    settings,
)

ROWS = 1500

SETUP = f"""
CREATE TABLE core (a int, b int, p point, filler text) WITH (fillfactor = 20);
INSERT INTO core SELECT i, i % 20, point(i, i % 37), repeat('x', 100)
  FROM generate_series(1, {ROWS}) i ORDER BY md5(i::text);
CREATE INDEX core_a ON core (a);
CREATE INDEX core_ba ON core (b, a);
CREATE INDEX core_hash ON core USING hash (b);
CREATE INDEX core_gist ON core USING gist (p);
CREATE INDEX core_spgist ON core USING spgist (p);
VACUUM ANALYZE core;
UPDATE core SET filler = 'y' WHERE a % 5 = 0;
"""

SCAN = "SELECT a, length(filler) FROM core ORDER BY a"
ALL_ROWS = [(i, 1 if i % 5 == 0 else 100) for i in range(1, ROWS + 1)]


@pytest.fixture(scope="module")
def logs(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    place = Path(os.environ[valgrind.VARIABLE])
    if not place.is_dir():
        place = tmp_path_factory.mktemp("valgrind")
        place.parent.chmod(0o755)
        place.parent.parent.chmod(0o755)
        privilege.give(place)
    saved = os.environ[valgrind.VARIABLE]
    os.environ[valgrind.VARIABLE] = str(place)
    yield place
    os.environ[valgrind.VARIABLE] = saved


def methods() -> list[str]:
    return ["advice", "aio"]


@pytest.fixture(scope="module", params=["worker", "io_uring"])
def slow_cluster(request: pytest.FixtureRequest, server: Server, logs: Path) -> Iterator[Cluster]:
    if not server.assertions:
        pytest.skip("Valgrind needs a server built with assertions")
    conf = {**CONF, "statement_timeout": "0", "max_parallel_workers_per_gather": "0"}
    if server.major >= 18:
        conf["io_method"] = request.param
    if request.param == "io_uring" and not (server.major >= 18 and server.io_uring):
        pytest.skip("this server has no io_uring")
    with Cluster(server, conf=conf) as cluster:
        prepare(cluster)
        with connect(cluster) as connection:
            script(connection, SETUP)
        yield cluster
        cluster.stop()
    assert list(logs.glob("*.log")), "it did not run under Valgrind"
    assert valgrind.errors(logs) == []


@pytest.fixture(params=methods())
def connection(
    request: pytest.FixtureRequest, slow_cluster: Cluster, server: Server
) -> Iterator[Connection]:
    if request.param == "aio" and server.major < 18:
        pytest.skip("this server has no asynchronous I/O")
    with connect(slow_cluster) as session:
        settings(session, **INDEX_SCANS, pg_lookahead__method=request.param)
        cold(session, "core")
        yield session


def test_scans(connection: Connection) -> None:
    for query, kind in (
        (SCAN, "Index Scan"),
        (SCAN + " DESC", "Index Scan"),
        ("SELECT a FROM core WHERE a > 10 ORDER BY a", "Index Only Scan"),
        (
            "SELECT a, filler FROM core WHERE b IN (1, 5, 9, 13) AND a > 50 ORDER BY b, a",
            "Index Scan",
        ),
        ("SELECT a, filler FROM core WHERE b = 7", "Index Scan"),
        ("SELECT a, filler FROM core WHERE p <@ box '((0,0),(900,30))'", "Index Scan"),
        ("SELECT a, filler FROM core ORDER BY p <-> point '(500,9)' LIMIT 200", "Index Scan"),
    ):
        require_node(connection, query, kind)
        without = rows_without(connection, query)
        cold(connection, "core")
        with gained(connection) as change:
            assert rows(connection, query) == without
        assert change.blocks_issued > 0


def test_cursor(connection: Connection) -> None:
    found: list[Row] = []
    with gained(connection) as change:
        connection.execute(f"BEGIN; DECLARE c SCROLL CURSOR FOR {SCAN}")
        for count in (1, 1, 20, 300):
            found += rows(connection, f"FETCH {count} FROM c")
        assert found == ALL_ROWS[:322]
        assert rows(connection, "FETCH BACKWARD 50 FROM c") == ALL_ROWS[271:321][::-1]
        assert rows(connection, "FETCH ABSOLUTE 900 FROM c") == ALL_ROWS[899:900]
        assert rows(connection, "FETCH 20 FROM c") == ALL_ROWS[900:920]
        connection.execute("CLOSE c; COMMIT")
    assert change.blocks_issued > 0


def test_rescan(connection: Connection) -> None:
    query = (
        "SELECT g, l.* FROM generate_series(1, 25) g,"
        " LATERAL (SELECT a, left(filler, 0) FROM core WHERE a > g * 50 ORDER BY a LIMIT 12) l"
    )
    require_node(connection, query, "Index Scan", "core_a")
    expected = [(g, g * 50 + i, "") for g in range(1, 26) for i in range(1, 13)]
    assert rows(connection, query) == expected


def test_mark_and_restore(connection: Connection) -> None:
    settings(connection, enable_hashjoin="off", enable_nestloop="off", enable_sort="off")
    settings(connection, enable_material="off")
    query = "SELECT count(*) FROM core x JOIN core y ON x.b = y.b WHERE y.a % 9 = 0 AND x.a % 7 = 0"
    require_node(connection, query, "Merge Join")
    without = rows_without(connection, query)
    cold(connection, "core")
    assert rows(connection, query) == without


def test_limit(connection: Connection) -> None:
    for n in (1, 5, 40):
        cold(connection, "core")
        assert rows(connection, f"{SCAN} LIMIT {n}") == ALL_ROWS[:n]
    stopped = f"SELECT * FROM ({SCAN} OFFSET 0) t WHERE a > 3 LIMIT 10"
    cold(connection, "core")
    with gained(connection) as change:
        assert rows(connection, stopped) == ALL_ROWS[3:13]
    assert change.blocks_wasted > 0


def test_error(connection: Connection) -> None:
    for n in (1, 30, 400):
        cold(connection, "core")
        with pytest.raises(psycopg.errors.DivisionByZero):
            rows(connection, f"SELECT 1 / (a - {n}), filler FROM core ORDER BY a")
    connection.execute("BEGIN")
    connection.execute(f"DECLARE c CURSOR FOR {SCAN}")
    rows(connection, "FETCH 10 FROM c")
    connection.execute("SAVEPOINT s")
    with pytest.raises(psycopg.errors.DivisionByZero):
        rows(connection, "SELECT 1 / (a - 30), filler FROM core ORDER BY a")
    connection.execute("ROLLBACK TO s")
    assert rows(connection, "FETCH 5 FROM c") == ALL_ROWS[10:15]
    connection.execute("ROLLBACK")
    settings(connection, statement_timeout="300ms")
    with pytest.raises(psycopg.errors.QueryCanceled):
        rows(connection, "SELECT a, filler, pg_sleep(0.01) FROM core ORDER BY a")
    no_timeout(connection)
    assert rows(connection, SCAN) == ALL_ROWS


def test_changes(connection: Connection) -> None:
    connection.execute("BEGIN")
    connection.execute("UPDATE core SET filler = 'z' WHERE a BETWEEN 100 AND 600")
    connection.execute("DELETE FROM core WHERE a BETWEEN 550 AND 700")
    found = rows(connection, "SELECT a FROM core WHERE filler <> 'q' ORDER BY a FOR UPDATE")
    assert found == [(i,) for i in range(1, ROWS + 1) if not 550 <= i <= 700]
    connection.execute("ROLLBACK")


def test_parallel(connection: Connection) -> None:
    settings(
        connection,
        max_parallel_workers_per_gather=2,
        parallel_setup_cost=0,
        parallel_tuple_cost=0,
        min_parallel_index_scan_size=0,
        min_parallel_table_scan_size=0,
        random_page_cost=0,
        cpu_tuple_cost=10,
    )
    query = "SELECT count(*), sum(length(filler)) FROM core WHERE a > 0"
    require_node(connection, query, "Gather")
    cold(connection, "core")
    assert rows(connection, query) == [(ROWS, sum(length for _, length in ALL_ROWS))]


def test_explain(connection: Connection) -> None:
    for form in ("text", "json", "xml", "yaml"):
        cold(connection, "core")
        assert rows(connection, f"EXPLAIN (ANALYZE, BUFFERS, FORMAT {form}) {SCAN}")
    assert rows(connection, "SELECT count(*) > 0 FROM pg_stat_lookahead") == [(True,)]
