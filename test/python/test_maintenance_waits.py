"""A command need not wait to be followed: what it reads must come from storage."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from lookahead import privilege
from lookahead.cluster import Cluster
from lookahead.servers import Server

from conftest import NewCluster
from extend_support import odd_files
from maintenance_support import (
    BLOCKS,
    CONF,
    SLOW_VACUUM,
    followed,
    owners,
    rest,
    scans,
    setup,
)
from support import (
    Connection,
    LogWatch,
    cold,
    connect,
    evict_file,
    prepare,
    rows,
    script,
    value,
    wait_for,
)

BLOCK_BYTES = 8192
SLOW_READS = "LA_SLOW_READS"
READ_AHEAD = "LA_READ_AHEAD"

# These sleep so much by themselves that the kernel's read-ahead keeps up with them.
BUILD = "CREATE INDEX made ON maintained (slow(a)); DROP INDEX made"
COMMANDS = {
    "vacuum": f"{SLOW_VACUUM}; VACUUM maintained",
    "build": BUILD,
}


def read_of(process: int | str, kind: str) -> int:
    """Return what a process has read: "rchar", or "read_bytes", which storage has."""
    lines = Path(f"/proc/{process}/io").read_text().splitlines()
    return int(dict(line.split(": ") for line in lines)[kind])


def read_by_workers(connection: Connection) -> int:
    """Return how many bytes the service's workers have read, into shared buffers or not."""
    workers = "SELECT pid FROM pg_stat_activity WHERE backend_type = 'pg_lookahead io worker'"
    return sum(read_of(pid, "rchar") for (pid,) in rows(connection, workers))


def make_cold(cluster: Cluster, connection: Connection) -> Path:
    """Have the table in no cache; return its file."""
    cold(connection, "maintained")
    connection.execute("CHECKPOINT")
    file = cluster.data / value(connection, "SELECT pg_relation_filepath('maintained')")
    evict_file(file)
    return file


@pytest.fixture(scope="module")
def waiting(own_cluster: NewCluster, server: Server) -> Cluster:
    """A server on which commands are followed if there is a reason."""
    if server.major >= 18:
        pytest.skip("18 reads these ahead itself")
    # No scan of ours is synchronized, so where it begins is known.
    conf = {**CONF, "shared_buffers": "128MB", "pg_lookahead.start_after": "8"}
    cluster = own_cluster(conf, start=False)
    odd_files(cluster, SLOW_READS, READ_AHEAD)
    cluster.start()
    prepare(cluster)
    with connect(cluster) as connection:
        setup(connection)
        file = make_cold(cluster, connection)
        before = read_of("self", "read_bytes")
        file.read_bytes()
        if read_of("self", "read_bytes") - before < BLOCKS * BLOCK_BYTES // 2:
            pytest.skip("the kernel does not count what is read from this file system")
    return cluster


@pytest.fixture
def connection(waiting: Cluster) -> Iterator[Connection]:
    with LogWatch(waiting), connect(waiting) as connection:
        # Workers may copy for it.
        connection.execute("SET pg_lookahead.seqscan = off")
        yield connection


def tried(
    waiting: Cluster, connection: Connection, command: str, *, is_cold: bool, least: int | None
) -> int:
    """Run a command on a table that is in the page cache, or nowhere.

    Returns how many blocks were asked for, -1 if it was not followed, the second of five times
    in which it was more than the least, or -1 if that is None, or the last: the watcher may get
    its processor late, what is in the page cache need not stay there, and storage may be busy,
    for longer than five times take.
    """
    times = 0
    for _ in range(15 if is_cold and least is None else 5):
        connection.execute("UPDATE maintained SET a = a WHERE a % 20 = 0")
        file = make_cold(waiting, connection)
        if not is_cold:
            file.read_bytes()
        asked = followed(connection, command)
        times += (asked == -1) if least is None else (asked > least)
        if times == 2:
            break
    return asked


@pytest.mark.parametrize("name", COMMANDS)
def test_reads_storage(waiting: Cluster, connection: Connection, name: str) -> None:
    """Reading ahead becomes work of the service: advice, or, in front of VACUUM, reading."""
    before = read_by_workers(connection)
    asked = tried(waiting, connection, COMMANDS[name], is_cold=True, least=BLOCKS // 2)
    assert asked > BLOCKS / 2
    assert value(connection, "SELECT sum(blocks_read) FROM pg_stat_lookahead_io") == 0
    read = read_by_workers(connection) - before
    if name == "vacuum":
        assert read > BLOCKS * BLOCK_BYTES / 2
    else:
        assert read < BLOCKS * BLOCK_BYTES / 10


def test_vacuum_waits_all_the_same(waiting: Cluster, connection: Connection) -> None:
    """Where a worker that reads for it waits as much, the kernel is advised from then on."""
    vacuum = f"{SLOW_VACUUM}; VACUUM (INDEX_CLEANUP OFF) maintained"
    slow_reads = waiting.dir / SLOW_READS.lower()
    for _ in range(5):
        connection.execute("UPDATE maintained SET a = a WHERE a % 20 = 0")
        # Where odd_files.c looks.
        script(connection, "ALTER TABLE maintained SET TABLESPACE elsewhere")
        script(connection, "ALTER TABLE maintained SET TABLESPACE pg_default; CHECKPOINT")
        path = value(connection, "SELECT pg_relation_filepath('maintained')")
        evict_file(waiting.data / path)
        rest(connection)
        before, read = scans(connection)[0], read_by_workers(connection)
        with ThreadPoolExecutor() as pool, connect(waiting) as other:
            running = pool.submit(script, connection, vacuum)
            wait_for(lambda: owners(other) > 0 or running.done())
            wait_for(lambda: read_by_workers(other) > read or running.done())
            privilege.write(slow_reads, "")
            try:
                running.result()
            finally:
                slow_reads.unlink()
        rest(connection)
        times = scans(connection)[0] - before
        if times > 1:
            break
    assert times == 2


# A row to a block; it is judged anew after the first 32768.
LARGE = """
CREATE TABLE large (a int, filler text) WITH (autovacuum_enabled = off) TABLESPACE elsewhere;
ALTER TABLE large ALTER filler SET STORAGE plain;
INSERT INTO large SELECT i, repeat('x', 5000) FROM generate_series(1, 42000) i
"""


def test_vacuum_waits_no_longer(waiting: Cluster, connection: Connection) -> None:
    """After a moment in which it waited VACUUM is judged anew, and a worker reads for it again."""
    vacuum = f"{SLOW_VACUUM}; SET vacuum_cost_limit = 800; VACUUM (TRUNCATE off) large"
    slow_reads = waiting.dir / SLOW_READS.lower()
    for _ in range(4):
        script(connection, LARGE)
        cold(connection, "large")
        connection.execute("CHECKPOINT")
        path = value(connection, "SELECT pg_relation_filepath('large')")
        evict_file(waiting.data / path)
        rest(connection)
        read = read_by_workers(connection)
        with ThreadPoolExecutor() as pool, connect(waiting) as other:
            running = pool.submit(script, connection, vacuum)
            wait_for(lambda: read_by_workers(other) > read + BLOCK_BYTES or running.done(), 60)
            privilege.write(slow_reads, "")
            try:
                # What a worker has read is reported when the kernel is advised instead.
                wait_for(lambda: scans(other, "large")[0] > 0 or running.done(), 60)
            finally:
                slow_reads.unlink()
            read = read_by_workers(other)
            running.result()
        rest(connection)
        again = read_by_workers(connection) - read
        connection.execute("DROP TABLE large")
        if again > 1000 * BLOCK_BYTES:
            break
    assert again > 1000 * BLOCK_BYTES


@pytest.mark.parametrize("name", COMMANDS)
def test_reads_the_page_cache(waiting: Cluster, connection: Connection, name: str) -> None:
    assert tried(waiting, connection, COMMANDS[name], is_cold=False, least=None) == -1


@pytest.mark.parametrize("kilobytes", [128, 8192])
def test_parallel_build(waiting: Cluster, connection: Connection, kilobytes: int) -> None:
    """Its processes have a read-ahead each, which is better than advice if it reaches far."""
    is_short = kilobytes == 128
    read_ahead = waiting.dir / READ_AHEAD.lower()
    script(
        connection,
        "SET max_parallel_maintenance_workers = 1; SET maintenance_work_mem = '128MB';"
        " ALTER TABLE maintained SET (parallel_workers = 1)",
    )
    read_ahead.write_text(f"{kilobytes}\n")
    try:
        if is_short:
            # Two processes are twice as fast: it might be over before it is seen where they are.
            build = BUILD.replace("slow", "slow_until_seen")
            assert tried(waiting, connection, build, is_cold=True, least=0) > 0
        else:
            assert tried(waiting, connection, BUILD, is_cold=True, least=None) == -1
    finally:
        read_ahead.unlink()
        connection.execute("ALTER TABLE maintained RESET (parallel_workers)")
