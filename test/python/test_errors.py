"""Blocks that cannot be read: a query that does not need them never notices.

Each cluster has tables with damage that one part of a scan meets and another
does not: a bad heap page, a bad index page, a file that is too short.  Queries
that stop before the damage must give their rows and not even a warning, though
look-ahead has come across it; those that need it must give what they give
without look-ahead.
"""

from __future__ import annotations

import re
import struct
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import psycopg
import pytest
from lookahead.cluster import Cluster

from conftest import NewCluster
from support import (
    INDEX_SCANS,
    Connection,
    LogWatch,
    Row,
    Variant,
    conf_of,
    connect,
    gained,
    has_extension,
    no_pins,
    pins,
    require_node,
    rows,
    script,
    settings,
    use,
    value,
)

BLOCK = 8192
ROWS = 3000

# Rows that a scan returns before it comes to the damage, and how many of them
# a query takes that must not notice.  Look-ahead begins with 16 blocks.
BEFORE = 12
TAKEN = 8

# What the server may log about the damage.
EXPECTED = r"page verification failed|invalid page|could not read block|checksum|zeroing"

# Tables: one for each kind of damage, and those of test_settings_that_ignore_damage.
KINDS = ("bad_heap", "bad_leaf", "short_file")
TOLERANT = ("zero_damaged_pages", "ignore_checksum_failure")
WAYS = ("without", "advice", "aio", "worker")

SETUP = """
CREATE TABLE {table} (a int, filler text) WITH (fillfactor = 20);
INSERT INTO {table}
SELECT i, repeat('x', 120) FROM generate_series(1, {rows}) i ORDER BY md5(i::text);
CREATE INDEX {table}_a ON {table} (a) WITH (fillfactor = 10);
VACUUM ANALYZE {table};
"""

# Larger than shared buffers, and in the order of its index.
SETUP_INTACT = """
CREATE TABLE intact (a int, filler text) WITH (fillfactor = 10);
INSERT INTO intact SELECT i, repeat('x', 120) FROM generate_series(1, 6000) i;
CREATE INDEX intact_a ON intact (a);
VACUUM ANALYZE intact;
"""


@dataclass(frozen=True)
class Damage:
    """A table with damage; a scan from `start` meets it after BEFORE rows."""

    table: str
    start: int

    @property
    def scan(self) -> str:
        return f"SELECT a, length(filler) FROM {self.table} WHERE a >= {self.start} ORDER BY a"


@dataclass(frozen=True)
class Answer:
    """All that a client sees of a query."""

    rows: list[Row]
    notices: list[tuple[str | None, str | None]]
    error: tuple[str | None, str | None, str | None] | None


def ask(connection: Connection, query: str) -> Answer:
    """Run a query and note everything that comes back."""
    notices: list[tuple[str | None, str | None]] = []

    def note(diagnostic: psycopg.errors.Diagnostic) -> None:
        notices.append((diagnostic.sqlstate, diagnostic.message_primary))

    connection.add_notice_handler(note)
    try:
        cursor = connection.execute(query)
        return Answer(cursor.fetchall() if cursor.description else [], notices, None)
    except psycopg.Error as error:
        diagnostic = error.diag
        what = (diagnostic.sqlstate, diagnostic.message_primary, diagnostic.message_detail)
        return Answer([], notices, what)
    finally:
        connection.remove_notice_handler(note)


def leaf_pages(index: Path) -> list[int]:
    """Return the leaf pages of a B-tree in key order, read from its file."""
    data = index.read_bytes()
    following = {}
    first = None
    for block in range(1, len(data) // BLOCK):
        opaque = data[(block + 1) * BLOCK - 16 : (block + 1) * BLOCK]
        before, after, level, _flags, _cycle = struct.unpack("<IIIHH", opaque)
        if level == 0:
            following[block] = after
            if before == 0:
                first = block
    assert first is not None
    chain = [first]
    while following[chain[-1]]:
        chain.append(following[chain[-1]])
    return chain


def spoil(file: Path, block: int) -> None:
    """Overwrite a part of a page."""
    with file.open("r+b") as page:
        page.seek(block * BLOCK + BLOCK - 200)
        page.write(b"not what was there")


def start_before(order: list[int], bad: set[int]) -> int:
    """Return the key that has BEFORE rows up to the first one on a bad block.

    `order` is the block of each row in key order.
    """
    for position, block in enumerate(order):
        before = order[max(0, position - BEFORE) : position]
        if block in bad and len(before) == BEFORE and not bad & set(before):
            return position - BEFORE + 1
    raise AssertionError("the damage is nowhere far enough into the scan")


def make_damage(cluster: Cluster) -> dict[str, Damage]:
    """Create the tables, stop the server and damage their files."""
    tables = (*KINDS, *(f"{setting}_{way}" for setting in TOLERANT for way in WAYS))
    with connect(cluster) as connection:
        for table in tables:
            script(connection, SETUP.format(table=table, rows=ROWS))
        script(connection, SETUP_INTACT)
        order = {
            table: [
                block
                for (block,) in rows(
                    connection,
                    f"SELECT (ctid::text::point)[0]::int FROM {table} ORDER BY a",
                )
            ]
            for table in tables
        }
        file = {
            name: cluster.data / value(connection, f"SELECT pg_relation_filepath('{name}')")
            for name in (*tables, "bad_leaf_a")
        }
        connection.execute("CHECKPOINT")
    cluster.stop()

    damages = []
    for table in tables:
        if table not in ("bad_leaf", "short_file"):
            bad = max(order[table]) // 2
            spoil(file[table], bad)
            damages.append(Damage(table, start_before(order[table], {bad})))

    # Keys are the numbers from 1 on; count how many stand before the leaf.
    leaves = leaf_pages(file["bad_leaf_a"])
    data = file["bad_leaf_a"].read_bytes()
    first_key = 0
    for block in leaves[: len(leaves) // 2]:
        page = data[block * BLOCK : (block + 1) * BLOCK]
        (lower,) = struct.unpack_from("<H", page, 12)
        # Line pointers after the header; the first is the page's high key.
        first_key += (lower - 24) // 4 - 1
    spoil(file["bad_leaf_a"], leaves[len(leaves) // 2])
    leaf = Damage("bad_leaf", first_key - BEFORE + 1)

    last = max(order["short_file"])
    with file["short_file"].open("r+b") as short:
        short.truncate((last - 2) * BLOCK)
    cut = Damage("short_file", start_before(order["short_file"], {last - 2, last - 1, last}))

    cluster.start()
    return {damage.table: damage for damage in (*damages, leaf, cut)}


Broken = Callable[[str | None], tuple[Cluster, dict[str, Damage]]]


@pytest.fixture(scope="session")
def broken(new_cluster: NewCluster) -> Broken:
    """Clusters with damaged tables, by io_method."""
    made: dict[str | None, tuple[Cluster, dict[str, Damage]]] = {}

    def get(io_method: str | None) -> tuple[Cluster, dict[str, Damage]]:
        if io_method not in made:
            # Few buffers and fewer processes, so that each has a share of some.
            conf = {
                "shared_buffers": "8MB",
                "max_connections": "8",
                "max_wal_senders": "0",
                # The launcher of logical replication, and the I/O service.
                "max_worker_processes": "3",
            }
            if io_method:
                conf.update(conf_of(io_method))
                conf.update(io_max_concurrency="32", autovacuum_worker_slots="1")
            cluster = new_cluster(conf)
            made[io_method] = (cluster, make_damage(cluster))
        return made[io_method]

    return get


class Case:
    """A damaged table and a session, with or without look-ahead."""

    def __init__(self, cluster: Cluster, damage: Damage, variant: Variant) -> None:
        self.cluster = cluster
        self.damage = damage
        self.variant = variant

    def session(self, *, enabled: bool) -> Connection:
        """Connect, with nothing of the tables in shared buffers."""
        connection = connect(self.cluster)
        settings(connection, **INDEX_SCANS, pg_lookahead__enabled="off")
        require_node(connection, self.damage.scan, "Index Scan", f"{self.damage.table}_a")
        # An index scan of a table some times the size of shared buffers.
        value(connection, "SELECT sum(length(filler)) FROM (SELECT * FROM intact ORDER BY a) t")
        use(connection, self.variant, pg_lookahead__enabled="on" if enabled else "off")
        return connection


@pytest.fixture(params=KINDS)
def case(
    request: pytest.FixtureRequest,
    variant: Variant,
    broken: Broken,
) -> Iterator[Case]:
    cluster, damages = broken(variant.io_method)
    with LogWatch(cluster, allowed=[EXPECTED]):
        yield Case(cluster, damages[request.param], variant)


def early_stop(damage: Damage) -> str:
    """A query that ends before the damage, not by a LIMIT directly above the scan."""
    return f"SELECT * FROM ({damage.scan} OFFSET 0) t WHERE a % 1 = 0 AND length <> 7 LIMIT {TAKEN}"


def test_limit_before_the_damage(case: Case) -> None:
    expected = [(case.damage.start + i, 120) for i in range(TAKEN)]
    with case.session(enabled=True) as connection:
        with gained(connection) as change:
            answer = ask(connection, early_stop(case.damage))
        assert answer == Answer(expected, [], None)
        assert change.scans >= 1
        if case.damage.table == "bad_leaf":
            # That is where the look-ahead ended: it did come there.
            assert change.errors == 1
        elif case.variant.reads:
            assert change.blocks_wasted > 0


def test_errors_are_in_the_view(variant: Variant, broken: Broken) -> None:
    """Once for the scan whose look-ahead came to the damage, under the table."""
    cluster, damages = broken(variant.io_method)
    damage = damages["bad_leaf"]
    seen = (
        "SELECT relname, errors, scans FROM pg_stat_lookahead"
        " WHERE relname = 'bad_leaf' OR errors > 0"
    )
    with (
        LogWatch(cluster, allowed=[EXPECTED]),
        Case(cluster, damage, variant).session(enabled=True) as connection,
    ):
        connection.execute("SELECT pg_stat_lookahead_reset()")
        assert len(ask(connection, early_stop(damage)).rows) == TAKEN
        assert rows(connection, seen) == [("bad_leaf", 1, 1)]
        assert len(ask(connection, early_stop(damage)).rows) == TAKEN
        assert rows(connection, seen) == [("bad_leaf", 2, 2)]


def test_cursor_before_the_damage(case: Case) -> None:
    expected = [(case.damage.start + i, 120) for i in range(TAKEN)]
    with case.session(enabled=True) as connection:
        connection.execute("BEGIN")
        connection.execute(f"DECLARE c CURSOR FOR {case.damage.scan}")
        for i in range(TAKEN):
            assert ask(connection, "FETCH c") == Answer(expected[i : i + 1], [], None)
        if has_extension(case.cluster, "pg_buffercache"):
            with connect(case.cluster) as other:
                look_ahead_pins = pins(other, case.damage.table)
            assert len(look_ahead_pins) <= 1, "only the cursor's own"
        assert ask(connection, "CLOSE c").error is None
        connection.execute("COMMIT")


def test_damage_that_is_needed(case: Case) -> None:
    with case.session(enabled=False) as connection:
        without = ask(connection, case.damage.scan)
    assert without.error is not None, "the damage does no harm: the test is broken"
    with case.session(enabled=True) as connection:
        assert ask(connection, case.damage.scan) == without
        # The session goes on, and looks ahead again.
        count = "SELECT count(length) FROM (SELECT length(filler) FROM intact ORDER BY a) t"
        assert value(connection, count) == 6000
        no_pins(case.cluster)


def test_damage_met_by_fetching_on(case: Case) -> None:
    with case.session(enabled=False) as connection:
        expected = ask(connection, case.damage.scan).error
    with case.session(enabled=True) as connection:
        connection.execute("BEGIN")
        connection.execute(f"DECLARE c CURSOR FOR {case.damage.scan}")
        assert len(rows(connection, f"FETCH {BEFORE} FROM c")) == BEFORE
        connection.execute("SAVEPOINT s")
        assert ask(connection, "FETCH 100 FROM c").error == expected
        connection.execute("ROLLBACK TO s")
        assert value(connection, "SELECT count(*) FROM intact WHERE a <= 1000") == 1000
        connection.execute("COMMIT")


@pytest.mark.parametrize("setting", TOLERANT)
def test_settings_that_ignore_damage(
    variant: Variant,
    broken: Broken,
    setting: str,
) -> None:
    """Rows and warnings as without look-ahead, also where damage is put up with.

    Each table can be used once: index entries of a page that was zeroed are
    found to be dead.
    """
    if not variant.reads:
        pytest.skip("reads nothing")
    cluster, damages = broken(variant.io_method)
    answers = []
    for table, enabled in ((f"{setting}_without", False), (f"{setting}_{variant.method}", True)):
        damage = damages[table]
        with Case(cluster, damage, variant).session(enabled=enabled) as connection:
            connection.execute("BEGIN")
            if not enabled:
                # The next variant of this cluster asks again.
                connection.execute("SET enable_indexscan = off; SET enable_seqscan = on")
            connection.execute(f"SET {setting} = on")
            # One row on the page, so it is read once.
            until = f"a <= {damage.start + BEFORE} ORDER BY"
            answer = ask(connection, damage.scan.replace("ORDER BY", f"AND {until}"))
            connection.execute("COMMIT")
        notices = [(code, re.sub(r"[0-9]+", "N", text or "")) for code, text in answer.notices]
        answers.append((answer.rows, notices, answer.error))
    without, with_it = answers
    assert without[1]
    assert with_it == without


def test_who_wants_to_know(variant: Variant, broken: Broken) -> None:
    """At DEBUG1 the client hears what look-ahead has met, and its settings are as they were."""
    cluster, damages = broken(variant.io_method)
    damage = damages["bad_leaf"]
    with (
        LogWatch(cluster, allowed=[EXPECTED]),
        Case(cluster, damage, variant).session(enabled=True) as connection,
    ):
        expected = [(damage.start + i, 120) for i in range(TAKEN)]
        connection.execute("SET client_min_messages = debug1")
        answer = ask(connection, early_stop(damage))
        assert answer.rows == expected
        assert answer.error is None
        given_up = [text for _, text in answer.notices if "look-ahead gave up" in (text or "")]
        assert len(given_up) == 1
        assert value(connection, "SHOW client_min_messages") == "debug1"
