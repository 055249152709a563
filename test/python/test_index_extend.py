"""Space for indexes that are being built.

It is made only on storage where allocating takes time, so these tests have
some: everything else on it is free.  An index that was built with it must be
the one that is built without, to the byte, with nothing allocated behind its
end; whatever happens in the middle, the worker is gone afterwards.
"""

from __future__ import annotations

import os
import signal
import subprocess
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import psycopg
import pytest
from lookahead import privilege
from lookahead.cluster import Cluster

from conftest import NewCluster
from support import (
    Connection,
    LogWatch,
    at_work,
    connect,
    has_extension,
    rows,
    script,
    slow_tablespace,
    until,
    value,
)

BLOCK = 8192
SEGMENT = 1 << 30

# A table of more than 32 MB, which is the least.  How many rows a table has decides how a hash
# index begins; the first build on it would say so, too.
ROWS = 300_000
SOURCE = f"""
CREATE TABLE source AS
SELECT i AS a, i * 719 % 1000003 AS b, repeat('x', 90) AS c, point(i, i % 100) AS p
  FROM generate_series(1, {ROWS}) i;
CREATE TABLE parts (a int, b int, c text, p point) PARTITION BY RANGE (a);
CREATE TABLE part PARTITION OF parts DEFAULT;
INSERT INTO parts SELECT * FROM source;
CREATE TABLE small AS SELECT * FROM source LIMIT 1000;
CREATE UNLOGGED TABLE unlogged AS SELECT * FROM source;
CREATE MATERIALIZED VIEW seen AS SELECT * FROM source;
ANALYZE
"""

MEDIUM_ROWS = 275_000
MEDIUM = f"""
CREATE TABLE source AS SELECT i AS a, repeat('x', 100) AS c FROM generate_series(1, {MEDIUM_ROWS}) i
"""

# More than what counts as cheap.
ALLOCATE_US = 500

# What may be in the way of a file system: its own blocks for a file.
OVERHEAD = 64 << 10

WORKER = "pg_lookahead index space"


@pytest.fixture(scope="module")
def built(own_cluster: NewCluster) -> Iterator[Cluster]:
    cluster = own_cluster(
        {
            "shared_buffers": "64MB",
            "max_wal_size": "2GB",
            "maintenance_work_mem": "64MB",
            "statement_timeout": "240s",
        }
    )
    has_extension(cluster, "amcheck")
    with slow_tablespace(cluster, allocate_us=ALLOCATE_US):
        with connect(cluster) as connection:
            script(connection, SOURCE)
            connection.execute("ALTER DATABASE postgres SET default_tablespace = slow")
        yield cluster


@pytest.fixture
def connection(built: Cluster) -> Iterator[Connection]:
    allowed = r"could not create unique index|canceling|terminating"
    with LogWatch(built, allowed=[allowed]), connect(built) as connection:
        connection.execute("SET max_parallel_maintenance_workers = 1")
        yield connection
        with connect(built) as other:
            script(other, DROP)
        no_worker(built)


DROP = """
DROP TABLE IF EXISTS altered;
DROP INDEX IF EXISTS made, made_2, part_made;
ALTER TABLE source DROP CONSTRAINT IF EXISTS made_key;
DROP INDEX IF EXISTS parts_made
"""


def workers(cluster: Cluster) -> list[int]:
    """Return the processes that make space; they show nowhere in the server."""
    postmaster = int((cluster.data / "postmaster.pid").read_text().split()[0])
    found = []
    for status in Path("/proc").glob("[0-9]*/stat"):
        try:
            parent = int(status.read_text().rpartition(") ")[2].split()[1])
            command = (status.parent / "cmdline").read_bytes()
        except (OSError, IndexError, ValueError):
            continue
        if parent == postmaster and WORKER.encode() in command:
            found.append(int(status.parent.name))
    return found


def no_worker(cluster: Cluster) -> None:
    end = time.monotonic() + 10
    while workers(cluster):
        assert time.monotonic() < end, "a worker was left behind"
        time.sleep(0.02)


def a_worker(cluster: Cluster) -> int:
    end = time.monotonic() + 20
    while True:
        found = workers(cluster)
        if found:
            return found[0]
        assert time.monotonic() < end, "no worker came"
        time.sleep(0.005)


def counters(connection: Connection) -> dict[str, int]:
    row = rows(
        connection,
        "SELECT index_builds, index_pages, busy, errors"
        " FROM pg_lookahead_extend() WHERE scope = 'server'",
    )[0]
    return dict(zip(("builds", "pages", "busy", "errors"), row, strict=True))


def excess(cluster: Cluster, connection: Connection, index: str) -> int:
    """Return how many bytes more than its length the last file of an index has."""
    path = cluster.data / value(connection, f"SELECT pg_relation_filepath('{index}')")
    size = value(connection, f"SELECT pg_relation_size('{index}')")
    last = (size - 1) // SEGMENT
    status = os.stat(f"{path}.{last}" if last else path)
    return status.st_blocks * 512 - status.st_size


def tidy(cluster: Cluster, connection: Connection, *indexes: str) -> None:
    no_worker(cluster)
    for index in indexes:
        assert excess(cluster, connection, index) <= OVERHEAD, index


def sound(connection: Connection, index: str) -> None:
    """Have amcheck look at an index, on servers that come with it."""
    if value(connection, "SELECT count(*) FROM pg_extension WHERE extname = 'amcheck'"):
        connection.execute(f"SELECT bt_index_check('{index}', true)")


# Statements, the indexes that they make, and how many workers come.
BUILDS = {
    "create": ("CREATE INDEX made ON source (b, c)", ["made"], 1),
    "unique": ("CREATE UNIQUE INDEX made ON source (a)", ["made"], 1),
    "expression": ("CREATE INDEX made ON source ((b + 1)) WHERE a % 2 = 0", ["made"], 1),
    "concurrently": ("CREATE INDEX CONCURRENTLY made ON source (b)", ["made"], 1),
    "constraint": ("ALTER TABLE source ADD CONSTRAINT made_key UNIQUE (a)", ["made_key"], 1),
    "unlogged": ("CREATE INDEX made ON unlogged (b)", ["made"], 1),
    "view": ("CREATE INDEX made ON seen (b)", ["made"], 1),
    "partition": ("CREATE INDEX parts_made ON parts (b)", ["part_b_idx"], 1),
    "hash": ("CREATE INDEX made ON source USING hash (b)", ["made"], 1),
    "gist": ("CREATE INDEX made ON source USING gist (p)", ["made"], 1),
    "spgist": ("CREATE INDEX made ON source USING spgist (p)", ["made"], 1),
    "gin": ("CREATE INDEX made ON source USING gin ((ARRAY[a, b]))", ["made"], 1),
    "brin": ("CREATE INDEX made ON source USING brin (b)", ["made"], 1),
    "reindex": ("CREATE INDEX made ON source (b); REINDEX INDEX made", ["made"], 2),
    "reindex concurrently": (
        "CREATE INDEX made ON source (b); REINDEX INDEX CONCURRENTLY made", ["made"], 2,
    ),
    "reindex table": (
        "CREATE INDEX made ON source (b); CREATE INDEX made_2 ON source (a);"
        "REINDEX TABLE source", ["made", "made_2"], 4,
    ),
    "reindex table concurrently": (
        "CREATE INDEX made ON source (b); CREATE INDEX made_2 ON source (a);"
        # All are made first, and filled after that.
        "REINDEX TABLE CONCURRENTLY source", ["made", "made_2"], 6,
    ),
    "in a transaction": (
        "BEGIN; CREATE INDEX made ON source (b); SAVEPOINT s; CREATE INDEX made_2 ON source (a);"
        "ROLLBACK TO s; CREATE INDEX made_2 ON source (c); COMMIT", ["made", "made_2"], 3,
    ),
}  # fmt: skip


# What is done on every server.
MAIN_BUILDS = ("create", "concurrently", "reindex concurrently", "reindex table", "gin")


def build(
    cluster: Cluster, connection: Connection, statements: str, indexes: list[str], *, builds: int
) -> tuple[list[int], int]:
    """Build and drop indexes; return their sizes, and the pages made by workers for so many."""
    before = counters(connection)
    script(connection, statements)
    after = counters(connection)
    tidy(cluster, connection, *indexes)
    sizes = [value(connection, f"SELECT pg_relation_size('{i}')") for i in indexes]
    for index in indexes:
        if value(connection, f"SELECT relam FROM pg_class WHERE relname = '{index}'") == 403:
            sound(connection, index)
    script(connection, DROP)
    assert after["builds"] - before["builds"] == builds
    assert after["errors"] == before["errors"]
    assert after["busy"] == before["busy"]
    return sizes, after["pages"] - before["pages"]


@pytest.mark.parametrize(
    "name",
    [
        pytest.param(name, marks=() if name in MAIN_BUILDS else pytest.mark.thorough)
        for name in BUILDS
    ],
)
def test_same_as_without(built: Cluster, connection: Connection, name: str) -> None:
    statements, indexes, builds = BUILDS[name]
    connection.execute("SET pg_lookahead.index_extend_size = 0")
    stock, pages = build(built, connection, statements, indexes, builds=0)
    assert pages == 0
    connection.execute("SET pg_lookahead.index_extend_size = '256kB'")
    fills = 2 if "reindex" in name else 1
    # What the build has added before the worker came to it is not counted; and it may
    # have been kept waiting for a processor.
    for _ in range(5):
        sizes, pages = build(built, connection, statements, indexes, builds=builds)
        # Pages of these are split, or where they go is decided, by chance.
        if name not in ("gist", "spgist"):
            assert sizes == stock
        if sum(sizes) <= 1 << 20 or pages * BLOCK > fills * sum(sizes) * 5 // 8:
            return
    raise AssertionError(f"only {pages} pages were made for {sizes}")


ALTERED = """
CREATE TABLE altered AS SELECT a, c::varchar(100) AS c FROM source;
CREATE INDEX altered_a ON altered (a);
CREATE INDEX altered_c ON altered (c)
"""

# What ALTER TABLE does, how many parallel workers there may be, and how many indexes it
# builds where space is made for them.
ALTERS = {
    "catalog only": ("ALTER c TYPE varchar(200)", 1, 0),
    "rewritten": ("ALTER a TYPE bigint, ADD CONSTRAINT altered_key UNIQUE (a)", 1, 0),
    "rebuilt": ('ALTER c TYPE varchar(100) COLLATE "C"', 1, 1),
    "column": ("ADD COLUMN d int UNIQUE", 1, 1),
    "constraint": ("ADD CONSTRAINT altered_key UNIQUE (a), ADD CHECK (a > 0)", 0, 1),
}


@pytest.mark.thorough
@pytest.mark.parametrize("name", ALTERS)
def test_alter_table(built: Cluster, connection: Connection, name: str) -> None:
    """Space is made for indexes that are built, not for those that are kept or come later."""
    actions, parallel, builds = ALTERS[name]
    connection.execute(f"SET max_parallel_maintenance_workers = {parallel}")
    # A worker that comes too late to a short build makes nothing.
    for _ in range(5):
        script(connection, f"DROP TABLE IF EXISTS altered; {ALTERED}")
        before = counters(connection)
        connection.execute(f"ALTER TABLE altered {actions}")
        after = counters(connection)
        assert after["builds"] == before["builds"] + builds
        assert after["errors"] == before["errors"]
        tidy(built, connection, "altered_a", "altered_c")
        if builds == 0 or after["pages"] > before["pages"]:
            break
    assert (after["pages"] > before["pages"]) == (builds > 0)
    sound(connection, "altered_a")
    sound(connection, "altered_c")


def test_alter_table_fails(built: Cluster, connection: Connection) -> None:
    """An index that was to be kept, and is there after an error, has nothing in excess."""
    script(connection, ALTERED)
    with pytest.raises(psycopg.errors.CheckViolation):
        connection.execute(f"ALTER TABLE altered ALTER c TYPE varchar(200), ADD CHECK (a < {ROWS})")
    tidy(built, connection, "altered_a", "altered_c")
    sound(connection, "altered_c")


def test_built_twice(built: Cluster, connection: Connection) -> None:
    """An index that one command builds again is another file."""
    script(
        connection,
        """
        CREATE INDEX made ON source (b);
        CREATE TABLE altered (a int);
        INSERT INTO altered VALUES (1)
        """,
    )
    connection.execute(
        """
        CREATE FUNCTION twice() RETURNS bool LANGUAGE plpgsql AS $$BEGIN
          REINDEX INDEX made; REINDEX INDEX made; RETURN true; END$$
        """
    )
    before = counters(connection)
    connection.execute("ALTER TABLE altered ADD CHECK (twice())")
    assert counters(connection)["builds"] == before["builds"] + 2
    script(connection, "DROP TABLE altered; DROP FUNCTION twice()")
    tidy(built, connection, "made")
    sound(connection, "made")


@pytest.mark.parametrize(
    "statement",
    [
        "CREATE INDEX made ON small (b)",
        "CREATE TEMPORARY TABLE mine AS SELECT * FROM source; CREATE INDEX made ON mine (b)",
        "SET pg_lookahead.enabled = off; CREATE INDEX made ON source (b)",
        "CREATE TABLE empty (a int PRIMARY KEY, b text)",
    ],
    ids=["small", "temporary", "off", "empty"],
)
def test_left_alone(connection: Connection, statement: str) -> None:
    before = counters(connection)
    script(connection, statement)
    assert counters(connection) == before
    connection.execute("DROP TABLE IF EXISTS mine, empty")


def test_cheap_storage(built: Cluster, connection: Connection) -> None:
    """On a disk it is found out that there is nothing to win."""
    connection.execute("SET default_tablespace = pg_default")
    before = counters(connection)
    connection.execute("CREATE INDEX made ON source (b, c)")
    after = counters(connection)
    assert after["builds"] == before["builds"] + 1
    # It leaves after one step of 4 MB, or stays to the end if this disk is slow.
    size = value(connection, "SELECT pg_relation_size('made')")
    assert (after["pages"] - before["pages"]) * BLOCK <= size + (8 << 20)
    tidy(built, connection, "made")


def test_errors(built: Cluster, connection: Connection) -> None:
    """An index that cannot be built leaves no worker and no file behind."""
    with pytest.raises(psycopg.Error, match="could not create unique index"):
        connection.execute("CREATE UNIQUE INDEX made ON source ((a / 2))")
    no_worker(built)
    with pytest.raises(psycopg.Error, match="division by zero"):
        connection.execute("CREATE INDEX made ON source ((1 / (a - 290000)))")
    no_worker(built)
    connection.execute("CREATE INDEX made ON source (b)")
    tidy(built, connection, "made")
    with pytest.raises(psycopg.Error, match="could not create unique index"):
        connection.execute("CREATE UNIQUE INDEX CONCURRENTLY made_2 ON source ((a / 2))")
    no_worker(built)
    connection.execute("DROP INDEX made_2")


def test_error_after_another_index(built: Cluster, connection: Connection) -> None:
    """REINDEX of partitions commits each one: what is done then has nothing in excess.

    Partitions are gone through in the order of their OIDs. The tables of a schema
    are in that of their rows in pg_class, so the failing one may be the first.
    """
    script(
        connection,
        """
        CREATE SCHEMA several;
        CREATE TABLE several.parts (LIKE source) PARTITION BY RANGE (a);
        CREATE TABLE several.first PARTITION OF several.parts FOR VALUES FROM (1) TO (10000000);
        CREATE TABLE several.second PARTITION OF several.parts FOR VALUES FROM (-10) TO (1);
        INSERT INTO several.parts SELECT * FROM source;
        INSERT INTO several.parts (a) SELECT 1 - a FROM generate_series(1, 10) a;
        CREATE INDEX several_first ON several.first (b, c);
        CREATE SEQUENCE several.calls;
        CREATE FUNCTION several.once(a int) RETURNS int IMMUTABLE LANGUAGE sql
          AS $$SELECT a / (nextval('several.calls') <= 10)::int$$;
        CREATE INDEX several_second ON several.second (several.once(a::int));
        """,
    )
    file = "SELECT pg_relation_filenode('several.several_first')"
    before = value(connection, file)
    with pytest.raises(psycopg.Error, match="division by zero"):
        connection.execute("REINDEX TABLE several.parts")
    assert value(connection, file) != before
    tidy(built, connection, "several.several_first")
    connection.execute("DROP SCHEMA several CASCADE")


@pytest.mark.parametrize("first", ["", "CREATE INDEX made_2 ON source (c);"])
def test_error_that_is_caught(built: Cluster, connection: Connection, first: str) -> None:
    """A command below that fails does not take away what those before it have to return."""
    connection.execute(
        f"""
        CREATE FUNCTION catches() RETURNS event_trigger LANGUAGE plpgsql AS $$
        BEGIN
            IF current_setting('look.caught', true) = 'here' THEN
                RETURN;
            END IF;
            PERFORM set_config('look.caught', 'here', false);
            {first}
            BEGIN
                CREATE INDEX ON nowhere (a);
            EXCEPTION WHEN undefined_table THEN
                PERFORM set_config('look.caught', 'yes', false);
            END;
        END $$
        """
    )
    connection.execute(
        "CREATE EVENT TRIGGER catches ON ddl_command_end WHEN TAG IN ('CREATE INDEX')"
        " EXECUTE FUNCTION catches()"
    )
    try:
        before = counters(connection)
        connection.execute("CREATE INDEX made ON source (b)")
        after = counters(connection)
    finally:
        connection.execute("DROP EVENT TRIGGER catches")
        connection.execute("DROP FUNCTION catches()")
    assert value(connection, "SELECT current_setting('look.caught', true)") == "yes"
    made = ["made", "made_2"] if first else ["made"]
    assert after["builds"] == before["builds"] + len(made)
    tidy(built, connection, *made)


def test_files_that_are_to_be_written(built: Cluster, connection: Connection) -> None:
    """Where the server is told to write its files no space is allocated for them."""
    if not rows(connection, "SELECT FROM pg_settings WHERE name = 'file_extend_method'"):
        pytest.skip("this server has no such setting")
    try:
        connection.execute("ALTER SYSTEM SET file_extend_method = write_zeros")
        connection.execute("SELECT pg_reload_conf()")
        until(connection, "current_setting('file_extend_method') = 'write_zeros'", 30)
        before = counters(connection)
        connection.execute("CREATE INDEX made ON source (b, c)")
        assert counters(connection) == before
    finally:
        connection.execute("ALTER SYSTEM RESET file_extend_method")
        connection.execute("SELECT pg_reload_conf()")
        until(connection, "current_setting('file_extend_method') <> 'write_zeros'", 30)


def test_worker_that_does_not_stop(built: Cluster, connection: Connection) -> None:
    """As if its allocation did not return: the command does not wait for that for long."""
    before = counters(connection)
    with connect(built) as other:
        index = "CREATE INDEX made ON source (c, b)"
        build = threading.Thread(target=other.execute, args=(index,))
        build.start()
        worker = a_worker(built)
        # Not while it starts: it has locks of the server's then.
        time.sleep(0.3)
        os.kill(worker, signal.SIGSTOP)
        try:
            build.join(60)
            assert not build.is_alive()
            assert workers(built) == [worker]
        finally:
            os.kill(worker, signal.SIGCONT)
            build.join()
    no_worker(built)
    assert counters(connection)["busy"] == before["busy"] + 1
    sound(connection, "made")


@pytest.mark.parametrize("how", ["pg_cancel_backend", "pg_terminate_backend"])
@pytest.mark.parametrize("kind", ["", "CONCURRENTLY"])
def test_interrupted(built: Cluster, connection: Connection, how: str, kind: str) -> None:
    other = connect(built)
    pid = other.info.backend_pid
    over = threading.Event()
    failures = []

    def build_again_and_again() -> None:
        with connect(built) as third:
            while not over.is_set():
                try:
                    other.execute(f"CREATE INDEX {kind} made ON source (c, b)")
                except psycopg.Error as error:
                    failures.append(error)
                    return
                third.execute("DROP INDEX made")

    with at_work(build_again_and_again):
        try:
            # One that comes between two builds cancels nothing.
            for _ in range(3):
                a_worker(built)
                assert value(connection, f"SELECT {how}({pid})")
                end = time.monotonic() + 30
                while not failures and time.monotonic() < end:
                    time.sleep(0.01)
                if failures:
                    break
        finally:
            over.set()
    assert failures
    no_worker(built)
    other.close()
    script(connection, DROP)
    connection.execute("CREATE INDEX made ON source (b)")
    sound(connection, "made")


def test_killed_worker(built: Cluster, connection: Connection) -> None:
    """Told to go by somebody else, it goes, and the build does not mind."""
    with connect(built) as other:
        with at_work(lambda: other.execute("CREATE INDEX made ON source (c, b)")):
            os.kill(a_worker(built), 15)
    tidy(built, connection, "made")
    sound(connection, "made")


@pytest.mark.thorough
def test_writers(built: Cluster, connection: Connection) -> None:
    """Rows come while the index is built, and while its space is returned."""
    # What the writers add while an index is built makes what comes next take longer.
    connection.execute("SET statement_timeout = '300s'")
    connection.execute("CREATE TABLE busy AS SELECT * FROM source")
    over = threading.Event()

    def write() -> None:
        with connect(built) as other:
            while not over.is_set():
                other.execute("INSERT INTO busy SELECT * FROM source LIMIT 50")
                over.wait(0.02)

    with at_work(write, write):
        try:
            connection.execute("CREATE INDEX CONCURRENTLY made ON busy (b)")
            for _ in range(2):
                connection.execute("REINDEX INDEX CONCURRENTLY made")
        finally:
            over.set()
    no_worker(built)
    sound(connection, "made")
    count = value(connection, "SELECT count(*) FROM busy")
    connection.execute("SET enable_seqscan = off")
    connection.execute("SET enable_bitmapscan = off")
    connection.execute("VACUUM busy")
    assert value(connection, "SELECT count(*) FROM (SELECT b FROM busy ORDER BY b) x") == count
    connection.execute("DROP TABLE busy")


def counted_at_the_second_file(built: Cluster, connection: Connection) -> tuple[int, int]:
    """Build; return the pages counted when the second file was begun, and at the end."""
    second_files = "pg_tblspc/*/PG_*/[0-9]*/[0-9]*.1"
    others = set(built.data.glob(second_files))

    def build() -> None:
        connection.execute("CREATE INDEX made ON wide (a, c) WITH (fillfactor = 10)")

    with connect(built) as other:
        with at_work(build, seconds=900):
            end = time.monotonic() + 900
            while set(built.data.glob(second_files)) <= others:
                assert time.monotonic() < end, "the index does not come to a second file"
                time.sleep(0.01)
            first = counters(other)["pages"]
        return first, counters(other)["pages"]


@pytest.mark.thorough
@pytest.mark.timeout(2400)
def test_end_of_a_file(built: Cluster, connection: Connection) -> None:
    """An index of more than 1 GB is a row of files."""
    connection.execute("CREATE TABLE wide (a int, c text)")
    connection.execute("ALTER TABLE wide ALTER c SET STORAGE PLAIN")
    connection.execute(
        "INSERT INTO wide SELECT i, repeat(md5(i::text), 45) FROM generate_series(1, 140000) i"
    )
    connection.execute("SET statement_timeout = 0")
    before = counters(connection)
    first, second = counted_at_the_second_file(built, connection)
    size = value(connection, "SELECT pg_relation_size('made')")
    assert size > SEGMENT + (8 << 20)
    after = counters(connection)
    assert after["errors"] == before["errors"]
    assert (after["pages"] - before["pages"]) * BLOCK > size // 2
    # In the second file as in the first: some 70 MB of it.
    assert first > before["pages"]
    assert (second - first) * BLOCK > 16 << 20
    tidy(built, connection, "made")
    sound(connection, "made")
    connection.execute("DROP TABLE wide")


def test_no_space(own_cluster: NewCluster) -> None:
    """Near a full disk nothing is made in advance; on a full one the error is PostgreSQL's."""
    if os.geteuid() != 0:
        pytest.skip("only root can mount a small file system")
    cluster = own_cluster({"shared_buffers": "64MB"})
    has_extension(cluster, "amcheck")
    small = cluster.dir / "small"
    small.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=40m", "tmpfs", str(small)], check=True)
    privilege.give(small)
    try:
        with slow_tablespace(cluster, small, allocate_us=ALLOCATE_US):
            _no_space(cluster)
    finally:
        subprocess.run(["umount", str(small)], check=True)


def _no_space(cluster: Cluster) -> None:
    with connect(cluster) as connection:
        connection.execute(MEDIUM)
        connection.execute("SET default_tablespace = slow")
        before = counters(connection)
        # A worker that comes when the index is built asks for nothing.
        for _ in range(5):
            connection.execute("DROP INDEX IF EXISTS made")
            connection.execute("CREATE INDEX made ON source (a)")
            after = counters(connection)
            assert after["pages"] == before["pages"]
            if after["errors"] > before["errors"]:
                break
        assert after["errors"] == before["errors"] + 1
        sound(connection, "made")
        with pytest.raises(psycopg.Error, match="could not extend file"):
            connection.execute("CREATE INDEX made_2 ON source (c, a) WITH (fillfactor = 20)")
        no_worker(cluster)
        # With steps that are small enough there is room for some.
        connection.execute("SET pg_lookahead.index_extend_size = '128kB'")
        before = counters(connection)
        for _ in range(5):
            with pytest.raises(psycopg.Error, match="could not extend file"):
                connection.execute("CREATE INDEX made_2 ON source (c, a) WITH (fillfactor = 20)")
            no_worker(cluster)
            if counters(connection)["pages"] > before["pages"]:
                break
        assert counters(connection)["pages"] > before["pages"]
        sound(connection, "made")
        assert value(connection, "SELECT count(*) FROM source WHERE a > 0") == MEDIUM_ROWS


def test_no_worker_to_be_had(own_cluster: NewCluster) -> None:
    cluster = own_cluster(
        {"shared_buffers": "64MB", "max_worker_processes": "0", "pg_lookahead.io_workers": "0"}
    )
    with connect(cluster) as connection:
        connection.execute(MEDIUM)
        before = counters(connection)
        connection.execute("CREATE INDEX made ON source (a)")
        after = counters(connection)
        assert after["errors"] == before["errors"] + 1
        assert after["builds"] == before["builds"]
        assert value(connection, "SELECT count(*) FROM source WHERE a > 0") == MEDIUM_ROWS
        # One that has the table planned for again and again asks once all the same.
        connection.execute(
            "CREATE FUNCTION planning(i int) RETURNS int LANGUAGE plpgsql IMMUTABLE AS"
            " 'BEGIN EXECUTE ''SELECT a FROM public.source LIMIT 0''; RETURN i; END'"
        )
        before = counters(connection)
        connection.execute(
            "CREATE INDEX CONCURRENTLY planned ON source (planning(a)) WHERE a < 100"
        )
        assert counters(connection)["errors"] == before["errors"] + 1


def test_crash(own_cluster: NewCluster) -> None:
    """A server that goes in the middle of a build comes back, and can build it."""
    cluster = own_cluster({"shared_buffers": "64MB", "restart_after_crash": "off"})
    has_extension(cluster, "amcheck")
    with slow_tablespace(cluster, allocate_us=ALLOCATE_US):
        with connect(cluster) as connection:
            connection.execute(MEDIUM)
        for delay in (0.0, 0.2, 0.5):
            _crash(cluster, delay)
        with connect(cluster) as connection:
            connection.execute("DROP INDEX IF EXISTS made")
            connection.execute("CREATE INDEX made ON source (c, a) TABLESPACE slow")
            sound(connection, "made")
            tidy(cluster, connection, "made")


def _crash(cluster: Cluster, delay: float) -> None:
    def build() -> None:
        with pytest.raises(psycopg.Error), connect(cluster) as other:
            other.execute("SET default_tablespace = slow")
            while True:
                other.execute("CREATE INDEX made ON source (c, a)")
                other.execute("DROP INDEX made")

    with connect(cluster) as connection:
        connection.execute("DROP INDEX IF EXISTS made")
    thread = threading.Thread(target=build)
    thread.start()
    found = a_worker(cluster)
    time.sleep(delay)
    cluster.stop("immediate")
    thread.join()
    assert not Path(f"/proc/{found}").exists()
    cluster.start()
