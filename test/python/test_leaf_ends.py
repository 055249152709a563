"""Leaf look-ahead of scans that do not come to a good end, or not at once.

Errors, cancels, rollbacks, changes of the index under a cursor, damaged pages;
and the same on a standby.
"""

from __future__ import annotations

import random
import struct
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

import psycopg
import pytest
from lookahead import privilege
from lookahead.cluster import Cluster
from lookahead.servers import Server

from conftest import CONF, NewCluster
from leaf_support import (
    BITMAP,
    BITMAP_SCANS,
    CASES,
    ONLY,
    ORDERED,
    PLAIN,
    ROWS,
    Case,
    check_afterwards,
    chill,
    create,
    leaves_of,
    start,
)
from standby_support import CONFLICT, caught_up, standby_from
from support import (
    SEQUENTIAL_SCANS,
    Connection,
    LogWatch,
    Row,
    Variant,
    conf_of,
    connect,
    gained,
    has_extension,
    no_timeout,
    pins,
    require_node,
    rows,
    rows_without,
    script,
    seed,
    session,
    settings,
    until,
    use,
    value,
)
from test_errors import ask, spoil

# Workers that are not needed any more are told so in this way.
pytestmark = pytest.mark.log_may_have('terminating background worker "parallel worker"')


@pytest.fixture
def tables(cluster: Cluster) -> Cluster:
    create(cluster)
    return cluster


# ---------------------------------------------------------------------------
# Errors, cancels, transactions, changes of the index under a cursor


@pytest.mark.parametrize("name", ["forward", "backward", "plain_grown", "bitmap_between"])
def test_error_in_the_query(tables: Cluster, variant: Variant, name: str) -> None:
    case = CASES[name]
    column = case.query.split()[1].strip(",")
    with start(tables, variant, case) as connection:
        for n in (5000, 10007, 20000):
            chill(connection, case)
            query = f"SELECT 1 / ({column} - {n}) FROM ({case.query} OFFSET 0) t"
            with pytest.raises(psycopg.errors.DivisionByZero):
                rows(connection, query)
            assert session(connection).reads_in_flight == 0
        check_afterwards(tables, connection, case)


@pytest.mark.parametrize("name", ["backward", "grown", "bitmap_grown"])
def test_statement_timeout(tables: Cluster, variant: Variant, name: str) -> None:
    case = CASES[name]
    choice = random.Random(f"{seed()} {name}")
    cancelled = 0
    with start(tables, variant, case) as connection:
        for _ in range(25):
            chill(connection, case)
            settings(connection, statement_timeout=f"{choice.randint(1, 15)}ms")
            try:
                rows(connection, case.query)
            except psycopg.errors.QueryCanceled:
                cancelled += 1
            no_timeout(connection)
            assert session(connection).reads_in_flight == 0
        assert cancelled > 0
        check_afterwards(tables, connection, case)


@pytest.mark.parametrize("name", ["backward", "bitmap_grown"])
def test_cancel(tables: Cluster, variant: Variant, name: str) -> None:
    case = CASES[name]
    slow = f"SELECT pg_sleep(0.001) FROM ({case.query} OFFSET 0) t"
    failed: list[BaseException] = []

    def run(connection: Connection) -> None:
        try:
            rows(connection, slow)
        except psycopg.Error as error:
            failed.append(error)

    with start(tables, variant, case) as connection, connect(tables) as other:
        thread = threading.Thread(target=run, args=(connection,))
        thread.start()
        pid = connection.info.backend_pid
        until(
            other,
            f"EXISTS (SELECT FROM pg_stat_activity WHERE pid = {pid} AND state = 'active'"
            " AND query LIKE 'SELECT pg_sleep%')",
        )
        time.sleep(0.3)
        value(other, "SELECT pg_cancel_backend(%s)", (pid,))
        thread.join(90)
        assert not thread.is_alive()
        assert isinstance(failed[0], psycopg.errors.QueryCanceled)
        check_afterwards(tables, connection, case)


def test_subtransactions(tables: Cluster, variant: Variant) -> None:
    """Savepoints come and go while the cursor moves on."""
    case = CASES["grown_backward"]
    choice = random.Random(seed())
    with start(tables, variant, case) as connection:
        expected = rows_without(connection, case.query)
        chill(connection, case)
        connection.execute(f"BEGIN; DECLARE c CURSOR FOR {case.query}")
        found: list[Row] = []
        while len(found) < len(expected):
            connection.execute("SAVEPOINT s")
            found += rows(connection, f"FETCH {choice.choice((1, 100, 900))} FROM c")
            what = choice.choice(("release", "rollback", "error"))
            if what == "error":
                with pytest.raises(psycopg.errors.DivisionByZero):
                    connection.execute("SELECT 1 / 0")
            connection.execute("RELEASE s" if what == "release" else "ROLLBACK TO s")
        assert found == expected
        connection.execute("COMMIT")
        check_afterwards(tables, connection, case)


def test_cursor_of_a_subtransaction(tables: Cluster, variant: Variant) -> None:
    case = CASES["backward"]
    with start(tables, variant, case) as connection:
        expected = rows_without(connection, case.query)[:3000]
        connection.execute("BEGIN")
        for _ in range(3):
            connection.execute(f"SAVEPOINT s; DECLARE c CURSOR FOR {case.query}")
            assert rows(connection, "FETCH 3000 FROM c") == expected
            connection.execute("ROLLBACK TO s")
        connection.execute("COMMIT")
        check_afterwards(tables, connection, case)


def test_rollback_with_open_cursors(tables: Cluster, variant: Variant) -> None:
    case = CASES["grown"]
    with start(tables, variant, case) as connection:
        connection.execute("BEGIN")
        for name in ("c", "d", "e"):
            connection.execute(f"DECLARE {name} CURSOR FOR {case.query}")
            assert len(rows(connection, f"FETCH 2000 FROM {name}")) == 2000
        connection.execute("ROLLBACK")
        check_afterwards(tables, connection, case)


def test_an_idle_cursor_holds_no_pin(tables: Cluster, variant: Variant) -> None:
    if not has_extension(tables, "pg_buffercache"):
        pytest.skip("this server has no pg_buffercache")
    for name in ("forward", "backward", "plain_grown"):
        case = CASES[name]
        with start(tables, variant, case) as connection, connect(tables) as other:
            held = {}
            for enabled in ("off", "on"):
                settings(connection, pg_lookahead__enabled=enabled)
                connection.execute(f"BEGIN; DECLARE c CURSOR FOR {case.query}")
                rows(connection, "FETCH 3000 FROM c")
                held[enabled] = len(pins(other, case.index))
                connection.execute("COMMIT")
            # An index-only scan's own pin of the page that it is on.
            assert held["on"] <= held["off"] <= 1, held


def changing(cluster: Cluster, name: str) -> Case:
    """Make a table that may be changed; return a scan of it."""
    with connect(cluster) as connection:
        connection.execute(f"DROP TABLE IF EXISTS {name}")
        script(
            connection,
            f"CREATE TABLE {name} (k int, id int) WITH (autovacuum_enabled = off);"
            f"INSERT INTO {name} SELECT g, g FROM generate_series(1, 12000) g;"
            f"CREATE INDEX {name}_k ON {name} (k) WITH (fillfactor = 10);"
            f"VACUUM ANALYZE {name}",
        )
    return Case(f"SELECT k FROM {name} ORDER BY k DESC", ONLY, f"{name}_k")


@pytest.mark.parametrize(
    "statement",
    [
        "DROP INDEX {t}_k",
        "TRUNCATE {t}",
        "DROP TABLE {t}",
        "REINDEX INDEX {t}_k",
        "ALTER INDEX {t}_k SET TABLESPACE elsewhere",
    ],
)
def test_statements_that_cannot_run_now(tables: Cluster, variant: Variant, statement: str) -> None:
    """As without look-ahead: refused in the same session, and others wait."""
    case = changing(tables, "kept_open")
    expected = [(k,) for k in range(12000, 0, -1)]
    with start(tables, variant, case) as connection, connect(tables) as other:
        connection.execute(f"BEGIN; DECLARE c CURSOR FOR {case.query}")
        found = rows(connection, "FETCH 3000 FROM c")
        settings(other, lock_timeout="50ms")
        with pytest.raises(psycopg.errors.LockNotAvailable):
            other.execute(statement.format(t="kept_open"))
        settings(other, lock_timeout="0")
        connection.execute("SAVEPOINT s")
        with pytest.raises(psycopg.errors.ObjectInUse):
            connection.execute(statement.format(t="kept_open"))
        connection.execute("ROLLBACK TO s")
        found += rows(connection, "FETCH ALL FROM c")
        assert found == expected
        connection.execute("COMMIT")
        check_afterwards(tables, connection, case)
        other.execute(statement.format(t="kept_open"))
        if statement.startswith(("REINDEX", "ALTER")):
            assert rows(connection, case.query) == expected


@pytest.mark.parametrize(
    "statement", ["REINDEX INDEX CONCURRENTLY {t}_k", "DROP INDEX CONCURRENTLY {t}_k"]
)
def test_concurrent_statements(tables: Cluster, variant: Variant, statement: str) -> None:
    """They begin under the cursor and end when it has."""
    case = changing(tables, "kept_open")
    failed: list[BaseException] = []

    def run() -> None:
        try:
            with connect(tables) as other:
                other.execute(statement.format(t="kept_open"))
        except BaseException as error:
            failed.append(error)

    with start(tables, variant, case) as connection:
        connection.execute(f"BEGIN; DECLARE c CURSOR FOR {case.query}")
        found = rows(connection, "FETCH 2000 FROM c")
        thread = threading.Thread(target=run)
        thread.start()
        for _ in range(10):
            time.sleep(0.02)
            found += rows(connection, "FETCH 900 FROM c")
        found += rows(connection, "FETCH ALL FROM c")
        connection.execute("COMMIT")
        thread.join(90)
        assert not thread.is_alive()
        assert not failed
        assert found == [(k,) for k in range(12000, 0, -1)]
        assert sorted(rows(connection, case.query)) == sorted(found)


def test_changes_under_the_cursor(tables: Cluster, variant: Variant) -> None:
    """Pages are split and deleted in front of the scan; it must not see that."""
    for direction in ("ASC", "DESC"):
        case = changing(tables, "kept_open")
        # Of an index-only scan VACUUM would wait for the page that it is on.
        query = f"SELECT k, id FROM kept_open WHERE k > 0 ORDER BY k {direction}"
        with start(tables, variant, case) as connection, connect(tables) as other:
            require_node(connection, query, PLAIN, "kept_open_k")
            expected = rows_without(connection, query)
            chill(connection, case)
            connection.execute(f"BEGIN; DECLARE c CURSOR FOR {query}")
            found: list[Row] = []
            for i in range(12):
                found += rows(connection, "FETCH 900 FROM c")
                low = (i * 5003) % 12000
                other.execute(
                    f"INSERT INTO kept_open SELECT {low} + g % 50, g FROM generate_series(1, 900) g"
                )
                other.execute(f"DELETE FROM kept_open WHERE k BETWEEN {low + 60} AND {low + 900}")
                other.execute("VACUUM (INDEX_CLEANUP on) kept_open")
            found += rows(connection, "FETCH ALL FROM c")
            connection.execute("COMMIT")
            assert found == expected
            # And now those pages go.
            other.execute("VACUUM (INDEX_CLEANUP on) kept_open")
            other.execute("VACUUM (INDEX_CLEANUP on) kept_open")
            chill(connection, case)
            left = rows(connection, query)
            settings(connection, **SEQUENTIAL_SCANS, enable_sort="on")
            # Rows with the same key may come in any order.
            assert sorted(left) == sorted(rows(connection, query))
            assert [k for k, _ in left] == [k for k, _ in rows(connection, query)]


# ---------------------------------------------------------------------------
# Splits that a crash has left incomplete

BLOCK = 8192
HEADER, POINTER, OPAQUE = 24, 4, 16
INCOMPLETE_SPLIT = 0x80


class Opaque(NamedTuple):
    """What B-tree writes at the end of each page."""

    before: int
    after: int
    level: int
    flags: int


def opaque_of(data: bytes | bytearray, block: int) -> Opaque:
    return Opaque(*struct.unpack_from("<IIIH", data, (block + 1) * BLOCK - OPAQUE))


@dataclass
class Tree:
    """The pages of a B-tree, read from its file."""

    leaves: list[int] = field(default_factory=list)
    parents: list[int] = field(default_factory=list)


def read_tree(index: Path) -> Tree:
    """Return the pages of the two lowest levels, each in key order."""
    data = index.read_bytes()
    right: dict[int, int] = {}
    first: dict[int, int] = {}
    for block in range(1, len(data) // BLOCK):
        opaque = opaque_of(data, block)
        right[block] = opaque.after
        if opaque.before == 0 and opaque.level < 2:
            first[opaque.level] = block
    found = Tree()
    for level, chain in ((0, found.leaves), (1, found.parents)):
        block = first[level]
        while block:
            chain.append(block)
            block = right[block]
    return found


def undo_splits(index: Path) -> int:
    """Leave the tree as crashes do that come between the two steps of a split.

    The new page is there, its left neighbour says that the split is incomplete,
    and the parent does not know of the new page.
    """
    tree = read_tree(index)
    data = bytearray(index.read_bytes())

    def number(place: int, form: str) -> int:
        (found,) = struct.unpack_from(form, data, place)
        return int(found)

    def child(parent: int, pointer: int) -> int:
        place = parent * BLOCK + HEADER + POINTER * pointer
        downlink = parent * BLOCK + (number(place, "<I") & 0x7FFF)
        return number(downlink, "<H") << 16 | number(downlink + 2, "<H")

    undone = 0
    for parent in tree.parents:
        page = parent * BLOCK
        pointers = (number(page + 12, "<H") - HEADER) // POINTER
        # All but the rightmost have a high key in front.
        first = 0 if opaque_of(data, parent).after == 0 else 1
        for pointer in range(pointers - 1, first, -3):
            left, right = child(parent, pointer - 1), child(parent, pointer)
            opaque = opaque_of(data, left)
            assert opaque.after == right
            flags = (left + 1) * BLOCK - OPAQUE + 12
            struct.pack_into("<H", data, flags, opaque.flags | INCOMPLETE_SPLIT)
            place = page + HEADER + POINTER * pointer
            end = page + HEADER + POINTER * pointers
            data[place : end - POINTER] = data[place + POINTER : end]
            pointers -= 1
            undone += 1
        struct.pack_into("<H", data, page + 12, HEADER + POINTER * pointers)
    index.write_bytes(data)
    return undone


def incomplete_splits(index: Path) -> int:
    data = index.read_bytes()
    flags = [opaque_of(data, block).flags for block in range(1, len(data) // BLOCK)]
    return sum(1 for found in flags if found & INCOMPLETE_SPLIT)


@pytest.fixture(scope="module")
def unchecked(own_cluster: NewCluster) -> Callable[[str | None], Cluster]:
    """Clusters without checksums of pages, by io_method."""
    made: dict[str | None, Cluster] = {}

    def get(io_method: str | None) -> Cluster:
        if io_method not in made:
            cluster = own_cluster(conf_of(io_method))
            cluster.stop()
            program = cluster.server.bindir / "pg_checksums"
            done = privilege.run(
                [program, "--disable", "--pgdata", cluster.data], cwd=cluster.data,
                capture_output=True,
            )  # fmt: skip
            assert done.returncode == 0, done.stderr
            cluster.start()
            made[io_method] = cluster
        return made[io_method]

    return get


def test_incomplete_splits(variant: Variant, unchecked: Callable[[str | None], Cluster]) -> None:
    """A third of the leaf pages has no downlink; an insert makes up for it."""
    cluster = unchecked(variant.io_method)
    with connect(cluster) as connection:
        script(
            connection,
            "DROP TABLE IF EXISTS half_split;"
            "CREATE TABLE half_split (k int, id int) WITH (autovacuum_enabled = off);"
            f"INSERT INTO half_split SELECT g, g FROM generate_series(1, {ROWS}) g;"
            "CREATE INDEX half_split_k ON half_split (k) WITH (fillfactor = 10);"
            "VACUUM (FREEZE, ANALYZE) half_split",
        )
        path = cluster.data / value(connection, "SELECT pg_relation_filepath('half_split_k')")
    cluster.stop()
    nleaves = len(read_tree(path).leaves)
    undone = undo_splits(path)
    assert undone > nleaves // 4
    keys = list(range(1, ROWS + 1))
    queries = {
        "SELECT k FROM half_split ORDER BY k": (ONLY, keys),
        "SELECT k FROM half_split ORDER BY k DESC": (ONLY, keys[::-1]),
        "SELECT k, id FROM half_split WHERE k > 700 ORDER BY k": (PLAIN, keys[700:]),
        "SELECT k, id FROM half_split WHERE k < 29000 ORDER BY k DESC": (PLAIN, keys[28998::-1]),
        "SELECT k, id FROM half_split WHERE k < 29000": (BITMAP, keys[:28999]),
    }
    for query, (kind, expected) in queries.items():
        cluster.restart()
        with connect(cluster) as connection:
            use(connection, variant, **(BITMAP_SCANS if kind == BITMAP else ORDERED))
            require_node(connection, query, kind, "half_split_k")
            with leaves_of(connection, "half_split_k") as leaves, gained(connection) as change:
                found = [row[0] for row in rows(connection, query)]
            assert (sorted(found) if kind == BITMAP else found) == expected
            assert not change.errors
            assert leaves.blocks_wasted <= max(2, nleaves // 50), leaves
            if variant.reads:
                assert leaves.blocks_used > (nleaves - undone) // 2, leaves
    cluster.stop()
    assert incomplete_splits(path) == undone

    cluster.start()
    query = "SELECT k FROM half_split ORDER BY k"
    with connect(cluster) as connection, connect(cluster) as other:
        use(connection, variant, **ORDERED)
        connection.execute(f"BEGIN; DECLARE c CURSOR FOR {query}")
        found = [row[0] for row in rows(connection, "FETCH 9000 FROM c")]
        other.execute("INSERT INTO half_split SELECT k, -id FROM half_split")
        found += [row[0] for row in rows(connection, "FETCH ALL FROM c")]
        connection.execute("COMMIT")
        assert found == keys
        other.execute("VACUUM half_split")
        assert [row[0] for row in rows(connection, query)] == sorted(keys * 2)
    cluster.stop()
    assert incomplete_splits(path) == 0
    cluster.start()


# ---------------------------------------------------------------------------
# Damage

EXPECTED = r"page verification failed|invalid page|could not read block|checksum"


@dataclass(frozen=True)
class Damage:
    """The first key of the leaf page that is damaged; 0: it is a page above them."""

    table: str
    key: int

    def scan(self, kind: str, direction: str) -> str:
        """A scan that comes to the damage, if it goes on long enough."""
        columns = "k" if kind == ONLY else "k, id"
        return f"SELECT {columns} FROM {self.table} WHERE k > 0 ORDER BY k {direction}"


@pytest.fixture(scope="module")
def broken(own_cluster: NewCluster) -> Callable[[str | None], tuple[Cluster, dict[str, Damage]]]:
    """Clusters with tables whose indexes are damaged, by io_method."""
    made: dict[str | None, tuple[Cluster, dict[str, Damage]]] = {}

    def get(io_method: str | None) -> tuple[Cluster, dict[str, Damage]]:
        if io_method not in made:
            cluster = own_cluster(conf_of(io_method))
            made[io_method] = (cluster, make_damage(cluster))
        return made[io_method]

    return get


def make_damage(cluster: Cluster) -> dict[str, Damage]:
    files = {}
    with connect(cluster) as connection:
        for table in ("bad_leaf", "bad_parent"):
            script(
                connection,
                f"CREATE TABLE {table} (k int, id int) WITH (autovacuum_enabled = off);"
                f"INSERT INTO {table} SELECT g, g FROM generate_series(1, {ROWS}) g;"
                f"CREATE INDEX {table}_k ON {table} (k) WITH (fillfactor = 10);"
                f"VACUUM (FREEZE, ANALYZE) {table}",
            )
            path = value(connection, f"SELECT pg_relation_filepath('{table}_k')")
            files[table] = cluster.data / path
        connection.execute("CHECKPOINT")
    cluster.stop()
    tree = read_tree(files["bad_leaf"])
    middle = len(tree.leaves) // 2
    # Keys are the numbers from 1 on; count how many stand before the leaf.
    data = files["bad_leaf"].read_bytes()
    before = 0
    for block in tree.leaves[:middle]:
        (lower,) = struct.unpack_from("<H", data, block * BLOCK + 12)
        # Line pointers after the header; the first is the page's high key.
        before += (lower - 24) // 4 - 1
    spoil(files["bad_leaf"], tree.leaves[middle])
    tree = read_tree(files["bad_parent"])
    assert len(tree.parents) >= 3
    # The planner goes down at both ends, the scan at one of them.
    spoil(files["bad_parent"], tree.parents[1])
    cluster.start()
    return {"bad_leaf": Damage("bad_leaf", before + 1), "bad_parent": Damage("bad_parent", 0)}


@pytest.mark.parametrize("kind", [ONLY, PLAIN])
@pytest.mark.parametrize("direction", ["ASC", "DESC"])
def test_damaged_leaf(
    variant: Variant,
    broken: Callable[[str | None], tuple[Cluster, dict[str, Damage]]],
    kind: str,
    direction: str,
) -> None:
    """Only a query that needs the page fails, and as it would have anyway."""
    cluster, damages = broken(variant.io_method)
    damage = damages["bad_leaf"]
    query = damage.scan(kind, direction)
    # Nothing is in shared buffers; a damaged index cannot be moved.
    cluster.restart()
    if direction == "ASC":
        expected = list(range(1, damage.key))
    else:
        # The keys behind the page: it has some 40.
        expected = list(range(ROWS, damage.key + 60, -1))
    taken = len(expected) - 20
    early = f"SELECT * FROM ({query} OFFSET 0) t WHERE k % 1 = 0 LIMIT {taken}"
    with LogWatch(cluster, allowed=[EXPECTED]), connect(cluster) as connection:
        use(connection, variant, **ORDERED)
        require_node(connection, query, kind, "bad_leaf_k")
        with leaves_of(connection, "bad_leaf_k") as leaves:
            answer = ask(connection, early)
        assert answer.error is None
        assert answer.notices == []
        assert [row[0] for row in answer.rows] == expected[:taken]
        assert (leaves.blocks_issued > 0) == variant.reads
        settings(connection, pg_lookahead__enabled="off")
        without = ask(connection, query)
        assert without.error is not None, "the damage does no harm: the test is broken"
        settings(connection, pg_lookahead__enabled="on")
        assert ask(connection, query) == without
        # Through a cursor, up to the damage.
        connection.execute(f"BEGIN; DECLARE c CURSOR FOR {query}")
        assert len(rows(connection, f"FETCH {taken} FROM c")) == taken
        connection.execute("SAVEPOINT s")
        assert ask(connection, "FETCH ALL FROM c").error == without.error
        connection.execute("ROLLBACK TO s")
        connection.execute("ROLLBACK")
        assert session(connection).reads_in_flight == 0


@pytest.mark.parametrize("tolerant", ["zero_damaged_pages", "ignore_checksum_failure"])
def test_damaged_leaf_is_not_accepted(
    variant: Variant,
    broken: Callable[[str | None], tuple[Cluster, dict[str, Damage]]],
    tolerant: str,
) -> None:
    """A query that ends before the damage has not put up with it for others."""
    cluster, damages = broken(variant.io_method)
    damage = damages["bad_leaf"]
    query = damage.scan(PLAIN, "ASC")
    cluster.restart()
    with LogWatch(cluster, allowed=[EXPECTED]), connect(cluster) as connection:
        settings(connection, **ORDERED, pg_lookahead__enabled="off")
        without = ask(connection, query)
        assert without.error is not None, "the damage does no harm: the test is broken"
    cluster.restart()
    taken = damage.key - 21
    early = f"SELECT * FROM ({query} OFFSET 0) t WHERE k % 1 = 0 LIMIT {taken}"
    with LogWatch(cluster, allowed=[EXPECTED]), connect(cluster) as connection:
        use(connection, variant, **ORDERED)
        require_node(connection, query, PLAIN, "bad_leaf_k")
        # Look-ahead of a cursor has begun, and ends.
        connection.execute(f"BEGIN; DECLARE c CURSOR FOR {early}")
        assert len(rows(connection, "FETCH 100 FROM c")) == 100
        settings(connection, **{tolerant: "on"})
        for sql in ("FETCH ALL FROM c", early):
            answer = ask(connection, sql)
            assert (answer.error, answer.notices) == (None, [])
        connection.execute("COMMIT")
        with connect(cluster) as other:
            settings(other, **ORDERED, pg_lookahead__enabled="off")
            assert ask(other, query) == without


def test_damaged_leaf_beside_a_bitmap(
    variant: Variant, broken: Callable[[str | None], tuple[Cluster, dict[str, Damage]]]
) -> None:
    cluster, damages = broken(variant.io_method)
    key = damages["bad_leaf"].key
    cluster.restart()
    with LogWatch(cluster, allowed=[EXPECTED]), connect(cluster) as connection:
        use(connection, variant, **BITMAP_SCANS)
        for condition, count in (
            (f"k < {key - 60}", key - 61),
            (f"k > {key + 60}", ROWS - key - 60),
        ):
            query = f"SELECT count(*) FROM bad_leaf WHERE {condition}"
            require_node(connection, query, BITMAP, "bad_leaf_k")
            answer = ask(connection, query)
            assert (answer.rows, answer.notices, answer.error) == ([(count,)], [], None)
        query = "SELECT count(*) FROM bad_leaf WHERE k > 10"
        settings(connection, pg_lookahead__enabled="off")
        without = ask(connection, query)
        settings(connection, pg_lookahead__enabled="on")
        assert without.error is not None
        assert ask(connection, query) == without


@pytest.mark.parametrize(
    ("direction", "tolerant"),
    [("ASC", ""), ("DESC", ""), ("ASC", "zero_damaged_pages"), ("DESC", "ignore_checksum_failure")],
)
def test_damaged_parent(
    variant: Variant,
    broken: Callable[[str | None], tuple[Cluster, dict[str, Damage]]],
    direction: str,
    tolerant: str,
) -> None:
    """A scan passes from leaf to leaf and never comes to the page above them."""
    cluster, damages = broken(variant.io_method)
    query = damages["bad_parent"].scan(ONLY, direction)
    # A query that does need the page, and what it gives when nobody has read it before.
    needs_it = f"SELECT k FROM bad_parent WHERE k = {ROWS // 2}"
    cluster.restart()
    with LogWatch(cluster, allowed=[EXPECTED]), connect(cluster) as connection:
        settings(connection, **ORDERED, pg_lookahead__enabled="off")
        without = ask(connection, needs_it)
        assert without.error is not None, "the damage does no harm: the test is broken"
    cluster.restart()
    with LogWatch(cluster, allowed=[f"{EXPECTED}|zeroing"]), connect(cluster) as connection:
        if tolerant:
            settings(connection, **{tolerant: "on"})
        use(connection, variant, **ORDERED)
        require_node(connection, query, ONLY, "bad_parent_k")
        with leaves_of(connection, "bad_parent_k") as leaves:
            answer = ask(connection, query)
        assert answer.error is None
        assert answer.notices == []
        keys = [k for (k,) in answer.rows]
        assert keys == sorted(range(1, ROWS + 1), reverse=direction == "DESC")
        if not tolerant:
            # That is where look-ahead ended: it did come there.
            assert (leaves.scans, leaves.errors) == (1, 1)
        assert session(connection).reads_in_flight == 0
        # It was not repaired or accepted for others on the way.
        with connect(cluster) as other:
            settings(other, **ORDERED)
            assert ask(other, needs_it) == without
        # The session goes on, and looks ahead of others.
        with leaves_of(connection, "bad_parent_k"):
            assert value(connection, "SELECT count(*) FROM bad_parent WHERE k < 5000") == 4999


# ---------------------------------------------------------------------------
# Hot standby


STANDBY_SETUP = """
CREATE TABLE sent (k int, id int) WITH (autovacuum_enabled = off);
CREATE INDEX sent_k ON sent (k) WITH (fillfactor = 10);
INSERT INTO sent SELECT (g * 7919) % 12007, g FROM generate_series(1, 12000) g;
VACUUM (FREEZE, ANALYZE) sent
"""


@pytest.mark.thorough
def test_standby(own_cluster: NewCluster, server: Server) -> None:
    primary = own_cluster({"wal_level": "replica", "max_wal_senders": "5"})
    with connect(primary) as connection:
        script(connection, STANDBY_SETUP)
        # The backup begins with a checkpoint, which it would wait for.
        connection.execute("CHECKPOINT")
    conf = {
        **CONF, "hot_standby": "on", "hot_standby_feedback": "on", "wal_level": "replica",
        # Less than there are leaf pages: every scan reads most of them.
        "shared_buffers": "1MB",
    }  # fmt: skip
    standby = Cluster(server, conf=conf)
    methods = ["advice", "aio"] if server.major >= 18 else ["advice", "worker"]
    with (
        standby_from(primary, standby),
        LogWatch(standby, allowed=[CONFLICT, "terminating connection"]),
    ):
        for step in range(3):
            for method in methods:
                for query, kind in (
                    ("SELECT k FROM sent ORDER BY k", ONLY),
                    ("SELECT k FROM sent WHERE k > 500 ORDER BY k DESC", ONLY),
                    ("SELECT k, id FROM sent WHERE k > 500 ORDER BY k DESC", PLAIN),
                ):
                    check_on_standby(primary, standby, Variant(None, method), query, kind)
            with connect(primary) as connection:
                # Splits, deleted pages, a new index.
                low = 1000 + 3000 * step
                script(
                    connection,
                    f"INSERT INTO sent SELECT {low} + g % 300, g FROM generate_series(1, 4000) g;"
                    f"DELETE FROM sent WHERE k BETWEEN {low + 400} AND {low + 1900};"
                    "VACUUM (INDEX_CLEANUP on) sent; VACUUM (INDEX_CLEANUP on) sent",
                )
                if step == 1:
                    connection.execute("REINDEX INDEX sent_k")
    primary.close()


def check_on_standby(
    primary: Cluster, standby: Cluster, variant: Variant, query: str, kind: str
) -> None:
    with connect(primary) as connection:
        settings(connection, **ORDERED)
        expected = rows_without(connection, query)
    caught_up(primary, standby)
    with connect(standby) as connection:
        use(connection, variant, **ORDERED)
        require_node(connection, query, kind, "sent_k")
        with leaves_of(connection, "sent_k") as leaves, gained(connection) as change:
            assert sorted(rows(connection, query)) == sorted(expected)
        assert not change.errors
        assert leaves.blocks_issued > 0
