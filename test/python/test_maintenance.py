"""VACUUM, ANALYZE, index builds, CLUSTER and COPY TO are followed from outside.

The watcher looks at what commands report of themselves.  It needs a moment to
see one, so the commands here take about a second: VACUUM and ANALYZE by their
cost delay, index builds by a function that sleeps, VACUUM FULL by values that it
has to fetch and store again.  Where it matters how much of a table is left when a
command is seen, the command goes slowly until then.
"""

from __future__ import annotations

import mmap
import os
import signal
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path

import psycopg
import pytest
from lookahead.cluster import Cluster, evict
from lookahead.servers import Server

from conftest import NewCluster, log_may_have
from maintenance_support import (
    BLOCKS,
    CONF,
    cluster_with_direct_io,
    SLOW_VACUUM,
    errors,
    followed,
    owners,
    rest,
    scans,
    setup,
    tried,
    watcher,
)
from service_support import until_left
from support import (
    SEQUENTIAL_SCANS,
    Connection,
    LogWatch,
    cached_pages,
    cold,
    connect,
    evict_file,
    evict_tablespaces,
    need_extensions,
    require_node,
    rows,
    script,
    settings,
    settle,
    slow_tablespace,
    value,
    wait_for,
)


@pytest.fixture(scope="module")
def watched(own_cluster: NewCluster, server: Server) -> Cluster:
    if server.major >= 18:
        pytest.skip("18 reads these ahead itself")
    cluster = own_cluster(CONF)
    with connect(cluster) as connection:
        setup(connection)
    return cluster


@pytest.fixture
def connection(request: pytest.FixtureRequest, watched: Cluster) -> Iterator[Connection]:
    with LogWatch(watched, allowed=log_may_have(request)), connect(watched) as connection:
        yield connection


def copy_slowly(connection: Connection, seen_by: Connection | None = None) -> None:
    with connection.cursor() as cursor, cursor.copy("COPY maintained TO STDOUT") as copy:
        for number, _ in enumerate(copy):
            if number % 500 == 0:
                time.sleep(0.1 if seen_by and owners(seen_by) == 0 else 0.01)


def test_it_is_there(connection: Connection) -> None:
    """The watcher is a process like others, with a name and a wait event."""
    wait_for(lambda: watcher(connection) is not None)
    shown = (
        "SELECT wait_event_type, datname FROM pg_stat_activity"
        " WHERE backend_type = 'pg_lookahead watcher'"
    )
    wait_for(lambda: rows(connection, shown) == [("Extension", None)])


@pytest.mark.parametrize(
    "statements",
    [
        pytest.param("CREATE INDEX made ON maintained (slow_until_seen(a))", id="btree"),
        pytest.param("CREATE INDEX made ON maintained USING brin (slow_until_seen(a))", id="brin"),
        pytest.param(
            "CREATE INDEX CONCURRENTLY made ON maintained (slow_until_seen(a))", id="concurrently"
        ),
        pytest.param(
            "SET max_parallel_maintenance_workers = 2; SET min_parallel_table_scan_size = 0;"
            " CREATE INDEX made ON maintained (slow_until_seen(a))",
            id="parallel",
        ),
    ],
)
def test_index_builds(connection: Connection, statements: str) -> None:
    try:
        # A synchronized scan that begins where another one has stopped, which is not followed.
        connection.execute("SET pg_lookahead.seqscan = off")
        statements = (
            "SELECT a FROM maintained OFFSET 20000 LIMIT 1; DROP INDEX IF EXISTS made;" + statements
        )
        assert tried(connection, statements, BLOCKS // 3) > BLOCKS / 3
        count = value(connection, "SELECT count(*) FROM maintained WHERE slow(a) IS NOT NULL")
        assert count == BLOCKS * 20
        assert tried(connection, "REINDEX INDEX made", BLOCKS // 3) > BLOCKS / 3
    finally:
        connection.execute("DROP INDEX IF EXISTS made")


# Whatever the query beside it does, these begin at block 0.
FROM_ZERO = {
    "brin": "CREATE INDEX made ON maintained USING brin (endless_once_seen(a))",
    "not_synchronized": "SET synchronize_seqscans = off;"
    " CREATE INDEX made ON maintained (endless_once_seen(a))",
}


@pytest.mark.parametrize("name", FROM_ZERO)
def test_build_beside_a_scan(connection: Connection, watched: Cluster, name: str) -> None:
    """A query's synchronized scan at the same pace is not taken for the build's."""
    place = "SELECT position, frontier FROM pg_stat_lookahead_owners WHERE pid = %s"
    behind = 1000
    with connect(watched) as reader, connect(watched) as build, ThreadPoolExecutor() as pool:
        settings(reader, **SEQUENTIAL_SCANS, pg_lookahead__seqscan="off")
        # It begins where another one has stopped.
        rest(connection)
        cold(connection, "maintained")
        rows(reader, f"SELECT a FROM maintained OFFSET {behind * 20} LIMIT 1")
        file = watched.data / value(connection, "SELECT pg_relation_filepath('maintained')")
        connection.execute("CHECKPOINT")
        evict_file(file)
        query = "SELECT count(*) FROM maintained WHERE endless_once_seen(a) IS NOT NULL"
        require_node(reader, query, "Seq Scan")
        reading = pool.submit(value, reader, query)
        building = pool.submit(script, build, FROM_ZERO[name])
        pid = build.info.backend_pid
        wait_for(lambda: bool(connection.execute(place, (pid,)).fetchall()), 30)
        # Both sleep now.
        settle(connection)
        [(position, frontier)] = connection.execute(place, (pid,)).fetchall()
        # The query has read behind this, and nobody in front of it.
        frontier = min(frontier, behind)
        cached = cached_pages(file)
        for process in (pid, reader.info.backend_pid):
            value(connection, f"SELECT pg_cancel_backend({process})")
        for running in (building, reading):
            with pytest.raises(psycopg.errors.QueryCanceled):
                running.result()
    assert position < frontier
    pages = 8192 // mmap.PAGESIZE
    assert sum(cached[position * pages : frontier * pages]) > (frontier - position) * pages / 2


def test_reindex_of_a_table(connection: Connection) -> None:
    """The table is read once for each of its indexes, and followed each time."""
    connection.execute("CREATE INDEX made ON maintained (slow_until_seen(a))")
    connection.execute("CREATE INDEX made_2 ON maintained (slow_until_seen(a + 1))")
    # The third index is that of the table itself, which may be too fast to be seen.
    connection.execute("ALTER TABLE maintained SET (parallel_workers = 0)")
    try:
        # More than the table has: it was followed more than once.
        assert tried(connection, "REINDEX TABLE maintained", BLOCKS) > BLOCKS
    finally:
        connection.execute("DROP INDEX made, made_2")


def blocker(cluster: Cluster, connection: Connection, writer: Connection) -> set[str]:
    """Let an index build wait between building and validating; make the index cold there.

    Returns the phases that were seen after that.
    """
    # What is seen of others does not change within a transaction: two sessions.
    phase = "SELECT max(phase) FROM pg_stat_progress_create_index"
    wait_for(lambda: str(value(connection, phase)).startswith("building index"), 60)
    with writer.transaction():
        writer.execute("LOCK TABLE maintained IN ROW EXCLUSIVE MODE")
        wait_for(lambda: "before validation" in str(value(connection, phase)), 60)
        evict_tablespaces(cluster)
    seen: set[str] = set()

    def has_ended() -> bool:
        found = value(connection, phase)
        seen.add(str(found))
        return found is None

    wait_for(has_ended, 60)
    return seen


def test_validation_of_an_index(own_cluster: NewCluster, server: Server) -> None:
    """CONCURRENTLY goes through the new index, and through the table again."""
    if server.major >= 18:
        pytest.skip("18 reads these ahead itself")
    cluster = own_cluster(CONF)
    with slow_tablespace(cluster, read_us=10000), LogWatch(cluster):
        with (
            connect(cluster) as connection,
            connect(cluster) as watching,
            connect(cluster) as writer,
            ThreadPoolExecutor() as pool,
        ):
            setup(connection)
            # The watcher may get its processor late.
            for _ in range(5):
                connection.execute("DROP INDEX IF EXISTS made")
                phases = pool.submit(blocker, cluster, watching, writer)
                script(
                    connection,
                    "CREATE INDEX CONCURRENTLY made ON maintained ((filler || slow(a)))"
                    " TABLESPACE slow",
                )
                seen = phases.result()
                rest(connection)
                assert errors(connection) == 0
                size = value(connection, "SELECT pg_relation_size('made') / 8192")
                began, issued, hit = scans(connection, "made")
                assert began <= 1
                if began == 1 and issued + hit > size / 3:
                    break
            assert "index validation: scanning index" in seen
            assert began == 1
            assert issued + hit > size / 3
            script(connection, "SET enable_seqscan = off; SET enable_bitmapscan = off")
            query = "SELECT count(*) FROM maintained WHERE (filler || slow(a)) >= 'x'"
            assert value(connection, query) == BLOCKS * 20


def test_vacuum(connection: Connection) -> None:
    """Both passes; afterwards nothing dead is left."""
    for digit in range(7, 12):
        connection.execute(f"DELETE FROM maintained WHERE a % 20 = {digit}")
        before = scans(connection)[0]
        asked = followed(connection, f"{SLOW_VACUUM}; VACUUM maintained")
        passes = scans(connection)[0] - before
        connection.execute("ANALYZE maintained")
        connection.execute("INSERT INTO maintained SELECT i, repeat('x', 360) FROM"
                           f" generate_series({digit}, {BLOCKS * 20}, 20) i")  # fmt: skip
        # The watcher may get its processor late.
        if asked > BLOCKS / 2 and passes == 2:
            break
    assert asked > BLOCKS / 2
    assert passes == 2
    size = value(connection, "SELECT pg_relation_size('maintained') / 8192")
    assert size <= BLOCKS + 10


# It is only started later then.
@pytest.mark.log_may_have("worker took too long to start; canceled")
def test_autovacuum(connection: Connection) -> None:
    """Nobody's session: it is followed all the same."""
    found = (
        "SELECT count(*) FROM pg_stat_lookahead_owners o JOIN pg_stat_activity a USING (pid)"
        " WHERE a.backend_type = 'autovacuum worker' AND o.relid = 'vacuumed'::regclass"
    )
    script(
        connection,
        "CREATE TABLE vacuumed WITH (autovacuum_enabled = on, autovacuum_vacuum_threshold = 1,"
        " autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_cost_delay = 5,"
        " autovacuum_vacuum_cost_limit = 100) AS SELECT * FROM maintained;"
        "ALTER SYSTEM SET autovacuum_naptime = '5s'; ALTER SYSTEM SET autovacuum = on",
    )
    try:
        value(connection, "SELECT pg_reload_conf()")
        for turn in range(10):
            connection.execute(f"DELETE FROM vacuumed WHERE a % 20 = {turn}")
            end = time.monotonic() + 20
            while not (seen := value(connection, found)) and time.monotonic() < end:
                time.sleep(0.02)
            if seen:
                break
        assert seen == 1
    finally:
        script(connection, "ALTER SYSTEM RESET autovacuum_naptime; ALTER SYSTEM RESET autovacuum")
        value(connection, "SELECT pg_reload_conf()")
        wait_for(lambda: value(connection, found) == 0, 60)
        connection.execute("DROP TABLE vacuumed")


def vacuumed_after_restart(cluster: Cluster, digit: int) -> tuple[int, int, int]:
    """Take a row out of each block; VACUUM when nothing of them is cached.

    Returns how many blocks were asked for, and how many the workers have passed and read.
    """
    with connect(cluster) as connection:
        connection.execute(f"DELETE FROM maintained WHERE a % 20 = {digit}")
    cluster.restart()
    with LogWatch(cluster), connect(cluster) as connection:
        evict(cluster.data / value(connection, "SELECT pg_relation_filepath('maintained')"))
        asked = followed(connection, f"{SLOW_VACUUM}; VACUUM maintained")
        done = "SELECT sum(blocks_passed), sum(blocks_read) FROM pg_stat_lookahead_io"
        [(passed, read)] = rows(connection, done)
    return asked, int(passed), int(read)


def test_vacuum_with_large_rings(own_cluster: NewCluster, server: Server) -> None:
    """What may not be read close to the command is never all that is asked for."""
    if server.major >= 18:
        pytest.skip("18 reads these ahead itself")
    cluster = own_cluster(
        {**CONF, "shared_buffers": "256MB", "pg_lookahead.io_workers": "8",
         "pg_lookahead.ring_size": "128MB", "max_worker_processes": "20"}
    )  # fmt: skip
    with connect(cluster) as connection:
        setup(connection)
    # The watcher, and the workers, may get their processor late.
    for digit in range(7, 12):
        asked, passed, _ = vacuumed_after_restart(cluster, digit)
        if asked > BLOCKS / 4 and passed < asked / 10:
            break
    assert asked > BLOCKS / 4
    assert passed < asked / 10
    cluster.close()


def test_vacuum_with_direct_io(own_cluster: NewCluster, server: Server) -> None:
    """The workers read into shared buffers then, at a distance from VACUUM."""
    cluster = cluster_with_direct_io(own_cluster, server)
    with connect(cluster) as connection:
        setup(connection)
    # The watcher, and the workers, may get their processor late.
    for digit in range(7, 12):
        asked, _, read = vacuumed_after_restart(cluster, digit)
        with connect(cluster) as connection:
            left = f"SELECT count(*), bool_or(a % 20 BETWEEN 7 AND {digit}) FROM maintained"
            assert rows(connection, left) == [(BLOCKS * (20 - (digit - 6)), False)]
        if asked > BLOCKS / 4 and read > BLOCKS / 4:
            break
    assert asked > BLOCKS / 4
    assert read > BLOCKS / 4
    cluster.close()


# Blocks with dead rows, what VACUUM leaves out between them, and how far in front of it
# workers read at the least.
BEFORE = range(BLOCKS - 300, BLOCKS)
BEHIND = range(BLOCKS * 2, BLOCKS * 3)
LEAST_MARGIN = 512


def read_behind_a_gap(cluster: Cluster, digit: int) -> list[int]:
    """VACUUM some of the blocks in front of a gap; return which behind it are there then."""
    with connect(cluster) as connection:
        for part in (BEFORE, BEHIND):
            connection.execute(
                f"DELETE FROM maintained WHERE a % 20 = {digit}"
                f" AND a > {part.start * 20} AND a <= {part.stop * 20}"
            )
    cluster.restart()
    at = "SELECT max(heap_blks_scanned) FROM pg_stat_progress_vacuum"
    there = (
        "SELECT relblocknumber::int FROM pg_buffercache"
        " WHERE relfilenode = pg_relation_filenode('maintained')"
        f" AND relforknumber = 0 AND relblocknumber >= {BEHIND.start} ORDER BY 1"
    )
    with LogWatch(cluster), connect(cluster) as connection, connect(cluster) as vacuuming:
        script(vacuuming, "SET vacuum_cost_delay = '20ms'; SET vacuum_cost_limit = 100")
        with ThreadPoolExecutor(1) as pool:
            running = pool.submit(vacuuming.execute, "VACUUM maintained")
            wait_for(lambda: (value(connection, at) or 0) > BEFORE.start + 20)
            os.kill(vacuuming.info.backend_pid, signal.SIGSTOP)
            try:
                # It may have come to the gap before it was stopped.
                in_front = value(connection, at) < BEFORE.stop
                with suppress(AssertionError):
                    wait_for(lambda: bool(rows(connection, there)), 3)
                settle(connection)
                found = [block for (block,) in rows(connection, there)] if in_front else []
            finally:
                os.kill(vacuuming.info.backend_pid, signal.SIGCONT)
            running.result()
    return found


def test_vacuum_jumps_with_direct_io(own_cluster: NewCluster, server: Server) -> None:
    """What VACUUM leaves out is no distance: it may be behind a gap at once."""
    cluster = cluster_with_direct_io(own_cluster, server)
    need_extensions(cluster, "pg_buffercache")
    with LogWatch(cluster), connect(cluster) as connection:
        setup(connection)
        connection.execute(
            "INSERT INTO maintained SELECT i, repeat('x', 360)"
            f" FROM generate_series({BLOCKS * 20 + 1}, {BLOCKS * 60}) i"
        )
        connection.execute("VACUUM (FREEZE) maintained")
    # The watcher may get its processor late.
    for digit in range(7, 12):
        found = read_behind_a_gap(cluster, digit)
        if found:
            break
    assert found
    assert found[0] >= BEHIND.start + LEAST_MARGIN - len(BEFORE)
    cluster.close()


def test_vacuum_skips(connection: Connection) -> None:
    """What the visibility map lets VACUUM leave out is not read."""
    # The watcher may get its processor late.
    for _ in range(5):
        script(connection, "SET vacuum_cost_delay = 0; VACUUM (FREEZE) maintained")
        connection.execute("UPDATE maintained SET a = a WHERE a BETWEEN 20000 AND 24000")
        # 200 blocks, and those that the new versions have gone to.
        script(connection, "SET vacuum_cost_delay = '10ms'; SET vacuum_cost_limit = 60")
        asked = followed(connection, "VACUUM maintained")
        if asked > 0:
            break
    assert 0 < asked < BLOCKS / 2

    # It does not leave out anything if it was told so.
    script(connection, "SET vacuum_cost_delay = 0; VACUUM (FREEZE) maintained")
    script(connection, "SET vacuum_cost_delay = '10ms'; SET vacuum_cost_limit = 30")
    everything = "VACUUM (DISABLE_PAGE_SKIPPING) maintained"
    assert tried(connection, everything, BLOCKS // 3) > BLOCKS / 3


def test_vacuum_that_freezes_skips_less(connection: Connection) -> None:
    """It visits pages that are all-visible, which is seen though no gap between others is long."""
    connection.execute("CREATE TABLE gaps (a int, filler text)")
    # The watcher may get its processor late.
    for digit in range(5):
        script(connection, "TRUNCATE gaps; SET vacuum_cost_delay = 0")
        script(
            connection,
            "INSERT INTO gaps SELECT i, repeat('x', 360)"
            f" FROM generate_series(1, {BLOCKS * 20}) i; VACUUM gaps;"
            f"UPDATE gaps SET a = a WHERE a % 1000 = {digit + 1}",
        )
        script(connection, "SET vacuum_cost_delay = '10ms'; SET vacuum_cost_limit = 60")
        asked = followed(connection, "VACUUM (FREEZE) gaps", "gaps")
        if asked > BLOCKS / 3:
            break
    assert asked > BLOCKS / 3


def test_vacuum_skips_while_somebody_waits_for_the_table(
    connection: Connection, watched: Cluster
) -> None:
    """The visibility map cannot be looked at then; what was seen of it is still good."""
    # The watcher may get its processor late.
    for _ in range(5):
        script(connection, "VACUUM (FREEZE) maintained")
        connection.execute("UPDATE maintained SET a = a WHERE a BETWEEN 30000 AND 34000")
        # What it dirties is most of what VACUUM is slowed down for.
        connection.execute("CHECKPOINT")
        rest(connection)
        before = scans(connection)
        with connect(watched) as vacuum, connect(watched) as waiting, ThreadPoolExecutor() as pool:
            script(vacuum, "SET vacuum_cost_delay = '10ms'; SET vacuum_cost_limit = 10")
            vacuuming = pool.submit(vacuum.execute, "VACUUM (TRUNCATE OFF) maintained")
            wait_for(lambda: owners(connection) > 0)
            lock = "LOCK TABLE maintained IN ACCESS EXCLUSIVE MODE"
            locking = pool.submit(waiting.execute, f"BEGIN; {lock}; ROLLBACK")
            wait_for(lambda: value(connection, "SELECT bool_or(NOT granted) FROM pg_locks"))
            time.sleep(1.5)
            assert not vacuuming.done(), "it was too fast to be disturbed"
            vacuuming.result()
            locking.result()
        rest(connection)
        after = scans(connection)
        assert after[0] > before[0]
        # 200 blocks, those that the new versions have gone to, and the short gaps between.
        asked = sum(after[1:]) - sum(before[1:])
        assert asked < BLOCKS / 4
        if asked > 250:
            break
    assert asked > 250


def test_analyze(connection: Connection) -> None:
    """Followed if the sample is the table, and left alone if not."""
    script(connection, "SET vacuum_cost_delay = '10ms'; SET vacuum_cost_limit = 50")
    assert tried(connection, "ANALYZE maintained", BLOCKS // 3) > BLOCKS / 3
    few = "SET default_statistics_target = 4; ANALYZE maintained"
    assert followed(connection, few) == -1


def test_copy_to(connection: Connection, watched: Cluster) -> None:
    before = scans(connection)
    with connect(watched) as other:
        copy_slowly(connection, seen_by=other)
    rest(connection)
    assert scans(connection)[0] > before[0]

    # Nothing says where such a scan is.
    before = scans(connection)
    connection.execute("SET synchronize_seqscans = off")
    copy_slowly(connection)
    rest(connection)
    assert scans(connection) == before


def test_vacuum_full(connection: Connection) -> None:
    script(
        connection,
        "CREATE TABLE toasted (a int, inline text, far text);"
        "ALTER TABLE toasted ALTER inline SET STORAGE plain, ALTER far SET STORAGE external;"
        "INSERT INTO toasted SELECT i, repeat('x', 1500),"
        " CASE WHEN i % 4 = 0 THEN repeat('y', 2500) END FROM generate_series(1, 48000) i;"
        "CREATE INDEX toasted_a ON toasted (a)",
    )
    blocks = value(connection, "SELECT pg_relation_size('toasted') / 8192")
    # The watcher sees it some milliseconds late, and nothing here slows the statements:
    # a machine that has other things to do may let half of the table go by.
    least = blocks // 10
    assert tried(connection, "VACUUM FULL toasted", least, "toasted") > least
    # CLUSTER that sorts what it has read in the order of the table.
    script(connection, "SET enable_indexscan = off")
    assert tried(connection, "CLUSTER toasted USING toasted_a", least, "toasted") > least
    connection.execute("RESET enable_indexscan")
    assert value(connection, "SELECT sum(length(far)) FROM toasted") == 12000 * 2500
    connection.execute("DROP TABLE toasted")


def test_what_is_not_followed(connection: Connection, watched: Cluster) -> None:
    """Small tables, temporary ones, and everything once it is switched off."""
    build = "CREATE INDEX ON {} (slow(a * 50))"
    connection.execute("CREATE TABLE small AS SELECT * FROM maintained LIMIT 5000")
    assert followed(connection, build.format("small"), "small") == -1
    connection.execute("CREATE TEMP TABLE own AS SELECT * FROM maintained")
    assert followed(connection, "CREATE INDEX ON own (slow(a))", "own") == -1
    connection.execute("DROP TABLE small, own")

    connection.execute("ALTER SYSTEM SET pg_lookahead.maintenance = off")
    try:
        value(connection, "SELECT pg_reload_conf()")
        # Nothing tells when the watcher has seen it.
        for _ in range(10):
            asked = followed(connection, "CREATE INDEX made ON maintained (slow(a))")
            connection.execute("DROP INDEX made")
            if asked == -1:
                break
        assert asked == -1
    finally:
        connection.execute("ALTER SYSTEM RESET pg_lookahead.maintenance")
        value(connection, "SELECT pg_reload_conf()")


def test_who_has_it_switched_off(connection: Connection, watched: Cluster) -> None:
    """A session, a transaction, a database: their commands are not followed, others' are."""
    build = "CREATE INDEX made ON maintained (slow(a))"
    until_seen = "CREATE INDEX made ON maintained (slow_until_seen(a))"
    undo = "DROP INDEX IF EXISTS made"
    off = "pg_lookahead.enabled = off"
    assert followed(connection, f"SET {off}; {build}; {undo}") == -1
    assert followed(connection, f"RESET pg_lookahead.enabled; {until_seen}; {undo}") > 0
    assert followed(connection, f"BEGIN; SET LOCAL {off}; {build}; ROLLBACK") == -1
    assert followed(connection, f"{until_seen}; {undo}") > 0

    database = value(connection, "SELECT current_database()")
    connection.execute(f"ALTER DATABASE {database} SET {off}")
    try:
        with connect(watched) as other:
            assert followed(other, f"{build}; {undo}") == -1
    finally:
        connection.execute(f"ALTER DATABASE {database} RESET pg_lookahead.enabled")
    # The session before this one, at the same place, has left nothing behind.
    with connect(watched) as other:
        assert followed(other, f"{until_seen}; {undo}") > 0


def test_file_that_nobody_else_sees(connection: Connection) -> None:
    rest(connection)
    script(
        connection,
        "BEGIN; CREATE TABLE fresh AS SELECT * FROM maintained;"
        "CREATE INDEX ON fresh (slow(a)); COMMIT",
    )
    rest(connection)
    assert scans(connection, "fresh")[0] == 0
    connection.execute("DROP TABLE fresh")


@pytest.mark.parametrize("command", ["REINDEX TABLE fresh", "CLUSTER fresh USING fresh_slow"])
def test_file_that_is_left(connection: Connection, watched: Cluster, command: str) -> None:
    """Others still see the old one, which nobody reads any more."""
    function = "slow_until_seen" if command.startswith("REINDEX") else "slow"
    script(
        connection,
        "CREATE TABLE fresh AS SELECT * FROM maintained;"
        f"CREATE INDEX fresh_slow ON fresh ({function}(a)); CHECKPOINT; SET enable_indexscan = off",
    )
    rest(connection)
    failed, before = errors(connection), scans(connection, "fresh")[0]
    old = watched.data / value(connection, "SELECT pg_relation_filepath('fresh')")
    with connection.transaction():
        # With a tenth less CLUSTER sees that the file is another one.
        connection.execute("TRUNCATE fresh")
        connection.execute("INSERT INTO fresh SELECT * FROM maintained WHERE a % 10 > 0")
        evict_file(old)
        before_it = cached_pages(old)
        connection.execute(command)
        assert not any(now and not was for was, now in zip(before_it, cached_pages(old)))
    rest(connection)
    # What is smaller than the file may be it all the same, if it is not CLUSTER that reads.
    assert scans(connection, "fresh")[0] - before == (1 if command.startswith("REINDEX") else 0)
    assert errors(connection) == failed
    assert value(connection, "SELECT count(*) FROM fresh WHERE slow(a) > 0") == BLOCKS * 18
    script(connection, "DROP TABLE fresh; RESET enable_indexscan")


def read_ahead(connection: Connection, file: Path) -> int:
    """Return how many blocks are cached of a file that an index build has not come to."""
    done = value(connection, "SELECT max(blocks_done) FROM pg_stat_progress_create_index")
    return sum(cached_pages(file)) * mmap.PAGESIZE // 8192 - (done or BLOCKS)


def test_constraint_is_added(own_cluster: NewCluster, server: Server) -> None:
    """ALTER TABLE has the table to itself: nobody else may read it, but the kernel is advised."""
    if server.major >= 18:
        pytest.skip("18 reads these ahead itself")
    cluster = own_cluster(CONF)
    alter = "ALTER TABLE slowly ADD EXCLUDE USING btree (slow_until_seen(a) WITH =)"
    with slow_tablespace(cluster, read_us=1000), LogWatch(cluster):
        with (
            connect(cluster) as connection,
            connect(cluster) as other,
            ThreadPoolExecutor() as pool,
        ):
            setup(connection)
            connection.execute("CREATE TABLE slowly TABLESPACE slow AS SELECT * FROM maintained")
            place = value(connection, "SELECT pg_relation_filepath('slowly')")
            connection.execute("CHECKPOINT")
            evict_tablespaces(cluster)
            altering = pool.submit(other.execute, alter)
            file = cluster.data / place
            wait_for(lambda: read_ahead(connection, file) >= 128 or altering.done(), 60)
            assert not altering.done(), "nothing was read ahead"
            altering.result()
            assert errors(connection) == 0


def cancelled_when_followed(connection: Connection, other: Connection, table: str) -> None:
    """Have an index built until the table is read ahead for that."""
    with ThreadPoolExecutor() as pool:
        building = pool.submit(other.execute, f"CREATE INDEX ON {table} (endless_once_seen(a))")
        try:
            wait_for(lambda: owners(connection) > 0, 30)
        finally:
            connection.execute("SELECT pg_cancel_backend(%s)", (other.info.backend_pid,))
        with pytest.raises(psycopg.errors.QueryCanceled):
            building.result()


def test_the_table_goes(connection: Connection, watched: Cluster) -> None:
    """DROP, TRUNCATE and rewriting wait for nobody and leave nothing behind."""
    took = []
    for statement in ("TRUNCATE {}", "ALTER TABLE {} ALTER a TYPE bigint", "DROP TABLE {}"):
        with connect(watched) as other:
            connection.execute("CREATE TABLE going AS SELECT * FROM maintained")
            cancelled_when_followed(connection, other, "going")
            start = time.monotonic()
            connection.execute(statement.format("going"))
            took.append(time.monotonic() - start)
            rest(connection)
            if not statement.startswith("DROP"):
                assert scans(connection, "going")[0] > 0, "it was not followed"
            connection.execute("DROP TABLE IF EXISTS going")
    # On a busy machine one of them may take its time.
    assert max(took) < 30
    assert min(took) < 5


def test_the_database_goes(connection: Connection, watched: Cluster) -> None:
    connection.execute("CREATE DATABASE going")
    with connect(watched, "going") as other:
        setup(other)
        cancelled_when_followed(connection, other, "maintained")
    until_left(connection, "going")
    start = time.monotonic()
    connection.execute("DROP DATABASE going")
    assert time.monotonic() - start < 30
    wait_for(lambda: owners(connection) == 0)


def test_the_watcher_cannot_be_cancelled(connection: Connection) -> None:
    """There is no query to cancel; it must not end."""
    wait_for(lambda: watcher(connection) is not None)
    first = watcher(connection)
    connection.execute("SELECT pg_cancel_backend(%s)", (first,))
    time.sleep(1)
    assert watcher(connection) == first


def test_the_watcher_dies(connection: Connection, watched: Cluster) -> None:
    """It comes back, what it had begun is ended, and it follows again."""
    wait_for(lambda: watcher(connection) is not None)
    first = watcher(connection)
    with connect(watched) as other:
        other.execute("SELECT pg_terminate_backend(%s)", (first,))
    wait_for(lambda: watcher(connection) not in (None, first))
    assert owners(connection) == 0
    build = "CREATE INDEX made ON maintained (slow_until_seen(a)); DROP INDEX made"
    assert tried(connection, build, BLOCKS // 3) > BLOCKS / 3
