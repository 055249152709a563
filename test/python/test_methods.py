"""Which method serves: by io_method, direct I/O, kind of table and setting.

In every combination the rows are right, and pg_lookahead_status() says what
happens and why.
"""

from __future__ import annotations

import ctypes
import mmap
import shutil
import subprocess
import time
from concurrent.futures import ThreadPoolExecutor
from itertools import product
from pathlib import Path

import psycopg
import pytest
from lookahead import build, paths, privilege
from lookahead.cluster import Cluster
from lookahead.errors import LookaheadError
from lookahead.servers import Server

from conftest import NewCluster
from service_support import stopped
from support import (
    INDEX_SCANS,
    Connection,
    LogWatch,
    cold,
    connect,
    gained,
    ice_cold,
    look_ahead_of,
    need_extensions,
    plan_nodes,
    require_node,
    rows,
    script,
    settings,
    until,
    until_served,
    value,
)

SETUP = """
CREATE TABLE served (a int, filler text) WITH (fillfactor = 20);
INSERT INTO served SELECT i, repeat('x', 100) FROM generate_series(1, 2000) i
 ORDER BY md5(i::text);
CREATE INDEX served_a ON served (a);
VACUUM ANALYZE served
"""
TEMPORARY = SETUP.replace("TABLE served", "TEMP TABLE own").replace("served", "own")

SCAN = "SELECT a, length(filler) FROM {table} ORDER BY a"
ALL_ROWS = [(i, 100) for i in range(1, 2001)]

# So many blocks a scan looks ahead at first, from its own on if it comes back to that.
FIRST_WINDOW = 16

# For each of these settings the method that serves a table.
SETTINGS = ("auto", "advice", "worker", "aio", "none")

# (io_method, direct I/O, is the I/O service there?)
EXPECTED = {
    ("sync", False, False): ("advice", "advice", "advice", "advice", "none"),
    ("sync", False, True): ("advice", "advice", "worker", "advice", "none"),
    ("worker", False, False): ("advice", "advice", "advice", "aio", "none"),
    ("worker", False, True): ("advice", "advice", "worker", "aio", "none"),
    ("io_uring", False, False): ("advice", "advice", "advice", "aio", "none"),
    ("sync", True, False): ("none", "none", "none", "none", "none"),
    ("sync", True, True): ("worker", "worker", "worker", "worker", "none"),
    ("worker", True, False): ("aio", "none", "none", "aio", "none"),
    ("worker", True, True): ("aio", "worker", "worker", "aio", "none"),
    ("io_uring", True, False): ("aio", "none", "none", "aio", "none"),
    ("io_uring", True, True): ("aio", "worker", "worker", "aio", "none"),
    (None, False, False): ("advice", "advice", "advice", None, "none"),
    (None, False, True): ("advice", "advice", "worker", None, "none"),
    (None, True, False): ("none", "none", "none", None, "none"),
    (None, True, True): ("worker", "worker", "worker", None, "none"),
}


def start(
    make: NewCluster,
    server: Server,
    io_method: str | None,
    direct: bool,
    service: bool,
    **more: str,
) -> Cluster:
    if (io_method is not None) != (server.major >= 18):
        pytest.skip("io_method is of 18 and later")
    if io_method == "io_uring" and not server.io_uring:
        pytest.skip("this server has no io_uring")
    if direct and server.major < 16:
        pytest.skip("direct I/O is of 16 and later")
    conf = {"io_method": io_method} if io_method else {}
    conf |= more
    conf["pg_lookahead.io_workers"] = "2" if service else "0"
    if direct:
        conf["debug_io_direct"] = "data"
    try:
        return make(conf)
    except LookaheadError as error:
        # The file system may not have it, the container may forbid it.
        if direct or io_method == "io_uring":
            pytest.skip(f"cannot be used here: {error}")
        raise


def served_by(connection: Connection, table: str, method: str) -> bool:
    """Scan with a setting; did look-ahead read?  The rows must be right."""
    settings(connection, pg_lookahead__method=method)
    query = SCAN.format(table=table)
    require_node(connection, query, "Index Scan", f"{table}_a")
    cold(connection, table)
    with gained(connection) as change:
        assert rows(connection, query) == ALL_ROWS
    return change.blocks_issued > 0


@pytest.mark.parametrize(("io_method", "direct", "service"), EXPECTED)
def test_which_method_serves(
    own_cluster: NewCluster, server: Server, io_method: str | None, direct: bool, service: bool
) -> None:
    cluster = start(own_cluster, server, io_method, direct, service)
    with LogWatch(cluster), connect(cluster) as connection:
        script(connection, SETUP)
        settings(connection, **INDEX_SCANS, temp_buffers="100")
        script(connection, TEMPORARY)
        if service:
            until_served(connection)
        for setting, expected in zip(SETTINGS, EXPECTED[io_method, direct, service]):
            if expected is None:
                with pytest.raises(psycopg.errors.InvalidParameterValue):
                    settings(connection, pg_lookahead__method=setting)
                continue
            settings(connection, pg_lookahead__method=setting)
            row = rows(connection, "SELECT * FROM pg_lookahead_status()")[0]
            assert row[:4] == (True, io_method, direct, expected), setting
            assert row[4]
            assert row[5] == 0
            assert row[6] == (0 if service else None)
            assert served_by(connection, "served", setting) == (expected != "none"), setting

            # Temporary tables are nobody else's to read.
            reads = not direct and setting != "none"
            assert served_by(connection, "own", setting) == reads, setting
    cluster.close()


@pytest.mark.parametrize("setting", ["zero_damaged_pages", "ignore_checksum_failure"])
def test_reason_where_damage_is_accepted(cluster: Cluster, setting: str) -> None:
    """The server's asynchronous I/O would do that in silence."""
    with connect(cluster) as connection:
        shown = "SELECT method, reason FROM pg_lookahead_status()"
        settings(connection, pg_lookahead__method="auto")
        [usual] = rows(connection, shown)
        settings(connection, **{setting: "on"})
        assert rows(connection, shown) == [usual], "nothing changes without aio"
        if value(connection, "SELECT current_setting('io_method', true)") not in (None, "sync"):
            settings(connection, pg_lookahead__method="aio")
            why = "damaged pages are accepted, and the query's own read must warn of them"
            assert rows(connection, shown) == [("advice", why)]


@pytest.mark.parametrize("setting", ["zero_damaged_pages", "ignore_checksum_failure"])
def test_damage_is_accepted_in_the_middle(
    own_cluster: NewCluster, server: Server, setting: str
) -> None:
    """What was to be read by asynchronous I/O is left to the query's own reads."""
    if server.major < 18:
        pytest.skip("asynchronous I/O is of 18 and later")
    cluster = own_cluster({"io_method": "worker"})
    with LogWatch(cluster), connect(cluster) as connection:
        script(connection, SETUP)
        settings(connection, enable_seqscan="off", enable_indexscan="off")
        settings(connection, pg_lookahead__method="aio")
        query = "SELECT a FROM served WHERE a BETWEEN 1 AND 1500"
        require_node(connection, query, "Bitmap Heap Scan")
        issued = {}
        for accepted in ("off", "on"):
            cold(connection, "served")
            with gained(connection) as change:
                connection.execute("BEGIN")
                connection.execute(f"DECLARE c CURSOR FOR {query}")
                found = rows(connection, "FETCH 20 FROM c")
                settings(connection, **{setting: accepted})
                found += rows(connection, "FETCH ALL FROM c")
                connection.execute("COMMIT")
            issued[accepted] = change.blocks_issued
            assert (change.blocks_dropped > 0) == (accepted == "on")
            assert sorted(row[0] for row in found) == list(range(1, 1501))
        assert 0 < issued["on"] < issued["off"] / 2
    cluster.close()


def test_io_workers_come_and_go(own_cluster: NewCluster, server: Server) -> None:
    """With one worker, with many, and changing in the middle of a scan."""
    if server.major < 18:
        pytest.skip("I/O workers are of 18 and later")
    cluster = own_cluster({"io_method": "worker", "io_workers": "1"})
    with LogWatch(cluster), connect(cluster) as connection, connect(cluster) as other:
        script(connection, SETUP)
        settings(connection, **INDEX_SCANS)
        assert served_by(connection, "served", "aio")
        cold(connection, "served")
        connection.execute("BEGIN")
        connection.execute(f"DECLARE c CURSOR FOR {SCAN.format(table='served')}")
        found = []
        for workers in (8, 1, 32, 2, 3):
            found += rows(connection, "FETCH 150 FROM c")
            other.execute(f"ALTER SYSTEM SET io_workers = {workers}")
            value(other, "SELECT pg_reload_conf()")
        found += rows(connection, "FETCH ALL FROM c")
        connection.execute("COMMIT")
        assert found == ALL_ROWS
    cluster.close()


def in_page_cache(file: Path) -> set[int]:
    """Return the blocks of a file that the kernel has in its page cache."""
    libc = ctypes.CDLL(None, use_errno=True)
    with file.open("rb") as opened, mmap.mmap(opened.fileno(), 0, access=mmap.ACCESS_COPY) as area:
        pages = (ctypes.c_ubyte * (len(area) // mmap.PAGESIZE))()
        start = ctypes.c_char.from_buffer(area)
        place = ctypes.c_void_p(ctypes.addressof(start))
        failed = libc.mincore(place, ctypes.c_size_t(len(area)), pages)
        del start
        if failed:
            pytest.skip(f"the kernel does not say: errno {ctypes.get_errno()}")
    return {page * mmap.PAGESIZE // 8192 for page, there in enumerate(pages) if there & 1}


def test_the_kernel_is_told_before_io_workers(own_cluster: NewCluster, server: Server) -> None:
    """They are few, so the whole window is on its way before the first of them has read a block.

    None of them does here: what comes into the page cache was asked for by the scan itself.
    """
    if server.major < 18:
        pytest.skip("I/O workers are of 18 and later")
    cluster = own_cluster({"io_method": "worker", "io_workers": "1"})
    query = SCAN.format(table="served")
    workers_are = "SELECT pid FROM pg_stat_activity WHERE backend_type = 'io worker'"
    with LogWatch(cluster), connect(cluster) as connection, connect(cluster) as other:
        script(connection, SETUP)
        settings(
            connection, **INDEX_SCANS, pg_lookahead__method="aio", pg_lookahead__leafscan="off"
        )
        require_node(connection, query, "Index Scan", "served_a")
        order = rows(connection, "SELECT (ctid::text::point)[0]::int FROM served ORDER BY a")
        window = list(dict.fromkeys(block for (block,) in order))[:FIRST_WINDOW]
        ice_cold(cluster, connection, "served")
        place = value(connection, "SELECT pg_relation_filepath('served')")
        if in_page_cache(cluster.data / place):
            pytest.skip("this file system does not let go of what is in the page cache")
        asleep = (
            "(SELECT wait_event = 'AioIoCompletion' FROM pg_stat_activity"
            f" WHERE pid = {connection.info.backend_pid})"
        )
        value(other, f"SELECT {asleep}")
        workers = [pid for (pid,) in rows(other, workers_are)]
        assert len(workers) == 1
        with ThreadPoolExecutor(1) as pool:
            with stopped(workers):
                scan = pool.submit(rows, connection, query)
                until(other, asleep)
                end = time.monotonic() + 30
                while missing := set(window) - in_page_cache(cluster.data / place):
                    assert time.monotonic() < end, missing
                    time.sleep(0.02)
            assert scan.result(60) == ALL_ROWS
    cluster.close()


def build_without_advice(server: Server, folder: Path) -> None:
    """Build the library as on a platform that has no posix_fadvise()."""
    for part in ("src", "sql"):
        shutil.copytree(paths.REPOSITORY / part, folder / part)
    for file in ("Makefile", "META.json", "pg_lookahead.control"):
        shutil.copy(paths.REPOSITORY / file, folder)
    flags = f"{build.compiler_flags(server, werror=True)} -DLA_NO_ADVICE"
    command = ["make", "-j2", f"PG_CONFIG={server.pg_config}", f"CFLAGS={flags}", "with_llvm=no"]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


@pytest.mark.thorough
def test_without_advice(new_cluster: NewCluster, server: Server) -> None:
    """Where the kernel cannot be advised workers read, if there are any."""
    # In the cluster's folder, which its user may read.
    cluster = new_cluster(start=False)
    folder = cluster.dir / "without"
    folder.mkdir()
    build_without_advice(server, folder)
    privilege.give(folder)
    conf = dict(cluster.conf)
    for workers, method in product(("2", "0"), ("auto", "advice")):
        more = {"dynamic_library_path": f"{folder}:$libdir", "pg_lookahead.io_workers": workers}
        cluster.configure({**conf, **more})
        cluster.start()
        with LogWatch(cluster), connect(cluster) as connection:
            script(connection, f"DROP TABLE IF EXISTS served; {SETUP}")
        cluster.restart()
        with LogWatch(cluster), connect(cluster) as connection:
            running = "SELECT count(*) FROM pg_stat_activity WHERE backend_type = '{}'"
            until(connection, f"({running.format('pg_lookahead io worker')}) = {workers}")
            settings(connection, **INDEX_SCANS, pg_lookahead__method=method)
            query = SCAN.format(table="served")
            require_node(connection, query, "Index Scan", "served_a")
            seen = {entry["Method"]: entry for entry in look_ahead_of(connection, query)}
            assert rows(connection, query) == ALL_ROWS
        cluster.stop()
        if server.major >= 18 and method == "auto":
            assert seen["aio"]["Blocks Issued"] > 0, seen
        elif workers == "2":
            assert seen["worker"]["Blocks Issued"] > 0, seen
        else:
            assert seen == {}
    cluster.close()


@pytest.mark.parametrize("concurrency", ["1", "2", "5", "64"])
def test_few_handles(own_cluster: NewCluster, server: Server, concurrency: str) -> None:
    """A scan never waits for a handle that its own look-ahead holds."""
    if server.major < 18:
        pytest.skip("I/O handles are of 18 and later")
    method = "io_uring" if server.io_uring else "worker"
    cluster = own_cluster(
        {"io_method": method, "io_max_concurrency": concurrency, "statement_timeout": "20s"}
    )
    with LogWatch(cluster), connect(cluster) as connection:
        script(connection, SETUP)
        settings(connection, **INDEX_SCANS, pg_lookahead__io_concurrency=1000)
        # How many handles must be had for a read depends on what else holds one.
        is_served = served_by(connection, "served", "aio")
        assert is_served or concurrency != "64"
        # Two scans at once, and a third that streams.
        query = (
            "SELECT count(*), sum(length(x.filler) + length(y.filler)) FROM served x"
            " JOIN served y ON x.a = y.a WHERE x.a IN (SELECT a FROM served)"
        )
        settings(connection, enable_hashjoin="off", enable_nestloop="off", enable_sort="off")
        cold(connection, "served")
        assert rows(connection, query) == [(2000, 400000)]
    cluster.close()


# Scans of one plan, and the buffers that there are.
MERGED = 60
BUFFERS = 16384


def test_pins_of_many_scans(own_cluster: NewCluster, server: Server) -> None:
    """Reads in flight, of all scans together, pin no more than a backend's share of buffers."""
    cluster = start(
        own_cluster,
        server,
        "io_uring",
        False,
        False,
        shared_buffers=f"{BUFFERS * 8}kB",
        max_connections="20",
        io_max_concurrency="64",
        io_combine_limit="256kB",
        max_locks_per_transaction="256",
    )
    need_extensions(cluster, "pg_buffercache")
    query = "SELECT a, part, pinned() FROM merged ORDER BY a"
    with LogWatch(cluster), connect(cluster) as connection:
        script(
            connection,
            """
CREATE TABLE merged (part int, a int, filler text) PARTITION BY LIST (part);
CREATE FUNCTION pinned() RETURNS bigint LANGUAGE sql VOLATILE
AS 'SELECT sum(pinned) FROM pg_buffercache_usage_counts()'
""",
        )
        partitions = [f"merged_{i}" for i in range(MERGED)]
        for i, name in enumerate(partitions):
            connection.execute(
                f"CREATE TABLE {name} PARTITION OF merged FOR VALUES IN ({i})"
                " WITH (fillfactor = 20)"
            )
        connection.execute(
            "INSERT INTO merged SELECT part, i, repeat('x', 700)"
            f" FROM generate_series(0, {MERGED - 1}) part, generate_series(1, 100) i"
        )
        script(connection, "CREATE INDEX ON merged (a); VACUUM ANALYZE merged")
        settings(connection, **INDEX_SCANS, enable_sort="off", pg_lookahead__method="aio")
        require_node(connection, query, "Merge Append")
        cold(connection, *partitions)
        with gained(connection) as change:
            found = rows(connection, query)
        assert sorted(row[:2] for row in found) == list(product(range(1, 101), range(MERGED)))
        assert change.scans == MERGED
        assert change.blocks_issued > 2000
        # Each scan is on a page, too.  More than 64 processes share the buffers.
        most = max(row[2] for row in found) - MERGED
        assert 3 * FIRST_WINDOW <= most <= BUFFERS // 64


@pytest.mark.parametrize("io_method", ["worker", "io_uring"])
@pytest.mark.log_may_have('terminating background worker "parallel worker"')
def test_parallel_plans(own_cluster: NewCluster, server: Server, io_method: str) -> None:
    """No read that only its own process completes, where others of the plan may wait for it."""
    cluster = start(own_cluster, server, io_method, False, False)
    with LogWatch(cluster), connect(cluster) as connection:
        script(connection, SETUP)
        settings(
            connection,
            pg_lookahead__method="aio",
            max_parallel_workers_per_gather=1,
            parallel_setup_cost=0,
            parallel_tuple_cost=0,
            min_parallel_table_scan_size=0,
            min_parallel_index_scan_size=0,
            enable_seqscan="off",
            enable_bitmapscan="off",
        )
        script(connection, "ALTER TABLE served SET (parallel_workers = 1)")
        alone = "SELECT method FROM pg_lookahead_status()"
        beside = f"SELECT ({alone}), count(*), sum(length(filler)) FROM served WHERE a > 0"
        require_node(connection, beside, "Gather")
        assert value(connection, alone) == "aio"
        cold(connection, "served")
        method = "aio" if io_method == "worker" else "advice"
        assert rows(connection, beside) == [(method, 2000, 200000)]
        assert value(connection, alone) == "aio"
    cluster.close()


# Statements that scan the table, and may wait there for other transactions.
WAITING = (
    "SELECT length(filler) FROM served WHERE a > 0 FOR UPDATE",
    "SELECT length(filler) FROM served WHERE a > 0 FOR KEY SHARE",
    "UPDATE served SET filler = filler WHERE a > 0",
    "DELETE FROM served WHERE a > 0",
    "INSERT INTO taken SELECT a FROM served WHERE a > 0 ORDER BY length(filler)",
    "WITH changed AS (INSERT INTO taken VALUES (1) RETURNING a)"
    " SELECT length(filler) FROM served WHERE a > (SELECT a - 1 FROM changed)",
)


@pytest.mark.parametrize(
    ("io_method", "direct", "expected"),
    [("worker", False, "aio"), ("io_uring", False, "advice"), ("io_uring", True, None)],
)
def test_statements_that_wait(
    own_cluster: NewCluster, server: Server, io_method: str, direct: bool, expected: str | None
) -> None:
    """Nor such a read where somebody else may wait for it who is waited for."""
    cluster = start(own_cluster, server, io_method, direct, False)
    with LogWatch(cluster), connect(cluster) as connection:
        script(connection, SETUP + "; CREATE TABLE taken (a int)")
        settings(connection, **INDEX_SCANS, pg_lookahead__method="aio")
        alone = "SELECT sum(length(filler)) FROM served WHERE a > 0"
        for statement, method in {alone: "aio", **dict.fromkeys(WAITING, expected)}.items():
            cold(connection, "served")
            connection.execute("BEGIN")
            nodes = plan_nodes(connection, statement, ", ANALYZE")
            connection.execute("ROLLBACK")
            [found] = [
                node
                for node in nodes
                if node.get("Relation Name") == "served" and node["Node Type"] == "Index Scan"
            ]
            assert found.get("Look-Ahead", {}).get("Method") == method, statement
    cluster.close()


@pytest.mark.parametrize(("io_method", "expected"), [("worker", "aio"), ("io_uring", "advice")])
def test_standby(own_cluster: NewCluster, server: Server, io_method: str, expected: str) -> None:
    """Nor such a read where the log is replayed, with pages locked while others are read."""
    cluster = start(own_cluster, server, io_method, False, False)
    with connect(cluster) as connection:
        script(connection, SETUP)
    cluster.stop()
    (cluster.data / "standby.signal").touch()
    cluster.start()
    with LogWatch(cluster), connect(cluster) as connection:
        settings(connection, **INDEX_SCANS, pg_lookahead__method="aio")
        assert value(connection, "SELECT pg_is_in_recovery()")
        assert value(connection, "SELECT method FROM pg_lookahead_status()") == expected
        [found] = [
            node
            for node in plan_nodes(
                connection, "SELECT sum(length(filler)) FROM served WHERE a > 0", ", ANALYZE"
            )
            if node["Node Type"] == "Index Scan"
        ]
        assert found["Look-Ahead"]["Method"] == expected
    cluster.close()
