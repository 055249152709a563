"""Scroll cursors that go anywhere, against the list of rows they go over.

The list is what the query gives without look-ahead; the cursor's moves are
random and seeded.  Another session churns the table and vacuums it meanwhile,
which a cursor must not see.
"""

from __future__ import annotations

import random

import pytest
from lookahead.cluster import Cluster

from support import (
    INDEX_SCANS,
    Connection,
    Row,
    Variant,
    cold,
    connect,
    gained,
    has_extension,
    once,
    plan_nodes,
    rows,
    rows_without,
    script,
    seed,
    settings,
    use,
    value,
)

MOVES = 120

SETUP = """
CREATE TABLE scrolled (id int, a int, b int, p point, filler text) WITH (fillfactor = 20);
INSERT INTO scrolled
SELECT i, (i * 7919) % 3001, i % 50, point((i * 7919) % 3001, i % 100), repeat('x', 100)
  FROM generate_series(1, 3000) i;
CREATE INDEX scrolled_a ON scrolled (a);
CREATE INDEX scrolled_ba ON scrolled (b, a);
CREATE INDEX scrolled_hash ON scrolled USING hash (b);
VACUUM ANALYZE scrolled;
DELETE FROM scrolled WHERE id % 11 = 0;
UPDATE scrolled SET filler = 'y' WHERE id % 13 = 0;
"""

# name: (query, what its plan must have); plans that can go backward by themselves
QUERIES = {
    "btree": ("SELECT a, filler FROM scrolled ORDER BY a", "Index Scan"),
    "backward": (
        "SELECT a, id FROM scrolled WHERE a BETWEEN 200 AND 2800 ORDER BY a DESC",
        "Index Scan",
    ),
    "list": (
        "SELECT b, a, id FROM scrolled WHERE b IN (3, 4, 9, 17, 30, 31) AND a > 100 ORDER BY b, a",
        "Index Scan",
    ),
    "index_only": ("SELECT a FROM scrolled ORDER BY a", "Index Only Scan"),
    "hash": ("SELECT id FROM scrolled WHERE b = 7", "Index Scan"),
    "append": (
        "SELECT id FROM scrolled WHERE a < 500 UNION ALL SELECT id FROM scrolled WHERE a > 2000",
        "Append",
    ),
    # Materialized by the server, as it cannot go backward.
    "merge": (
        "SELECT x.id, y.id FROM scrolled x JOIN scrolled y ON x.a = y.b",
        "Merge Join",
    ),
}


def create(cluster: Cluster) -> None:
    with connect(cluster) as connection:
        once(connection, "scrolled", SETUP)


def random_move(choice: random.Random, length: int) -> str:
    n = choice.choice((1, 1, 1, 2, 5, 17, 60, 400))
    return choice.choice(
        (
            "NEXT", "NEXT", "PRIOR", "PRIOR",
            f"FORWARD {n}", f"FORWARD {n}", f"BACKWARD {n}",
            f"RELATIVE {choice.choice((-1, 1)) * n}", "RELATIVE 0",
            f"ABSOLUTE {choice.randint(-length - 2, length + 2)}",
            "FIRST", "LAST", "FORWARD 0",
        )
    )  # fmt: skip


class Oracle:
    """A cursor over a list, as SQL describes it.  Positions 1..n, 0 and n+1."""

    def __init__(self, found: list[Row]) -> None:
        self.rows = found
        self.position = 0

    def _to(self, position: int) -> list[Row]:
        end = len(self.rows) + 1
        self.position = max(0, min(position, end))
        if 0 < self.position < end:
            return [self.rows[self.position - 1]]
        return []

    def fetch(self, move: str) -> list[Row]:
        word, _, number = move.partition(" ")
        n = int(number) if number else 0
        if word in ("NEXT", "PRIOR"):
            return self._to(self.position + (1 if word == "NEXT" else -1))
        if word == "FIRST":
            return self._to(1)
        if word == "LAST":
            return self._to(len(self.rows))
        if word == "RELATIVE":
            return self._to(self.position + n)
        if word == "ABSOLUTE":
            return self._to(n if n >= 0 else len(self.rows) + 1 + n)
        if n == 0:
            return self._to(self.position)
        step = 1 if word == "FORWARD" else -1
        found: list[Row] = []
        for _ in range(n):
            one = self._to(self.position + step)
            found += one
            if not one:
                break
        return found


def scroll(connection: Connection, query: str, oracle: Oracle, choice: random.Random) -> None:
    done = []
    connection.execute(f"DECLARE c SCROLL CURSOR FOR {query}")
    for _ in range(MOVES):
        move = random_move(choice, len(oracle.rows))
        done.append(move)
        assert rows(connection, f"FETCH {move} FROM c") == oracle.fetch(move), (query, done)
    connection.execute("CLOSE c")


@pytest.mark.parametrize("name", QUERIES)
def test_random_moves(cluster: Cluster, variant: Variant, name: str) -> None:
    create(cluster)
    query, node = QUERIES[name]
    choice = random.Random(f"{seed()} {name} {variant}")
    with connect(cluster) as connection:
        use(connection, variant, **INDEX_SCANS, cursor_tuple_fraction=1)
        settings(connection, enable_hashjoin="off", enable_sort="off", enable_nestloop="off")
        settings(connection, pg_lookahead__max_distance=choice.choice((8, 64, 256)))
        assert node in {found["Node Type"] for found in plan_nodes(connection, query)}
        expected = rows_without(connection, query)
        assert len(expected) > 40

        cold(connection, "scrolled")
        with gained(connection) as change:
            connection.execute("BEGIN")
            scroll(connection, query, Oracle(expected), choice)
            connection.execute("COMMIT")
        assert change.scans > 0
        assert not change.errors
        assert (change.blocks_issued > 0) == variant.reads


def test_two_cursors_over_one_table(cluster: Cluster, variant: Variant) -> None:
    create(cluster)
    choice = random.Random(f"{seed()} {variant}")
    forward, backward = QUERIES["btree"][0], QUERIES["backward"][0]
    with connect(cluster) as connection:
        use(connection, variant, **INDEX_SCANS)
        oracles = {
            "c": Oracle(rows_without(connection, forward)),
            "d": Oracle(rows_without(connection, backward)),
        }
        cold(connection, "scrolled")
        with gained(connection) as change:
            connection.execute("BEGIN")
            connection.execute(f"DECLARE c SCROLL CURSOR FOR {forward}")
            connection.execute(f"DECLARE d SCROLL CURSOR FOR {backward}")
            for _ in range(MOVES):
                name = choice.choice("cd")
                oracle = oracles[name]
                move = random_move(choice, len(oracle.rows))
                assert rows(connection, f"FETCH {move} FROM {name}") == oracle.fetch(move), move
            connection.execute("COMMIT")
        assert change.scans >= 2


def test_churn_under_the_cursor(cluster: Cluster, variant: Variant) -> None:
    """What others and its own transaction change is nothing to the cursor."""
    choice = random.Random(f"{seed()} {variant}")
    with connect(cluster) as connection, connect(cluster) as other:
        connection.execute("DROP TABLE IF EXISTS churned_scroll")
        script(connection, SETUP.replace("scrolled", "churned_scroll"))
        query = QUERIES["btree"][0].replace("scrolled", "churned_scroll")
        use(connection, variant, **INDEX_SCANS)
        oracle = Oracle(rows_without(connection, query))
        cold(connection, "churned_scroll")
        connection.execute("BEGIN")
        connection.execute(f"DECLARE c SCROLL CURSOR FOR {query}")
        settings(other, statement_timeout="60s", lock_timeout="30s")
        for i in range(MOVES):
            move = random_move(choice, len(oracle.rows))
            assert rows(connection, f"FETCH {move} FROM c") == oracle.fetch(move), move
            if i % 6:
                continue
            low = choice.randrange(3000)
            other.execute(f"DELETE FROM churned_scroll WHERE a BETWEEN {low} AND {low + 30}")
            other.execute(
                f"UPDATE churned_scroll SET a = a + 1 WHERE a BETWEEN {low + 60} AND {low + 90}"
            )
            other.execute(
                f"INSERT INTO churned_scroll SELECT g, {low} + g FROM generate_series(1, 40) g"
            )
            other.execute("VACUUM churned_scroll")
        connection.execute("COMMIT")
        connection.execute("DROP TABLE churned_scroll")


def evict(connection: Connection, table: str) -> None:
    """Take a table out of shared buffers under an open cursor (17 and later)."""
    value(
        connection,
        "SELECT count(pg_buffercache_evict(bufferid)) FROM pg_buffercache"
        " WHERE relfilenode = pg_relation_filenode(%s::regclass) AND pinning_backends = 0",
        (table,),
    )


def test_looks_ahead_in_both_directions(cluster: Cluster, variant: Variant) -> None:
    """After a turn the blocks are right, too: most of what is read is used."""
    if cluster.server.major < 17 or not has_extension(cluster, "pg_buffercache"):
        pytest.skip("this server cannot evict a table under a cursor")
    create(cluster)
    query = QUERIES["btree"][0]
    with connect(cluster) as connection:
        use(connection, variant, **INDEX_SCANS, cursor_tuple_fraction=1)
        expected = rows(connection, query)
        half = len(expected) // 2
        cold(connection, "scrolled")
        with gained(connection) as change:
            connection.execute("BEGIN")
            connection.execute(f"DECLARE c SCROLL CURSOR FOR {query}")
            found = rows(connection, f"FETCH {half} FROM c")
            for move in (f"BACKWARD {half - 100}", "FORWARD 900", "BACKWARD 800", "FORWARD ALL"):
                evict(connection, "scrolled")
                found += rows(connection, f"FETCH {move} FROM c")
            connection.execute("COMMIT")
        oracle = Oracle(expected)
        for move in (f"FORWARD {half}", f"BACKWARD {half - 100}", "FORWARD 900", "BACKWARD 800",
                     "FORWARD 9999"):  # fmt: skip
            for row in oracle.fetch(move):
                assert found.pop(0) == row
        assert not found
        if variant.reads:
            # Each leg reads most of the table's 250 blocks again.
            assert change.blocks_used > 800, change
            assert change.blocks_wasted < change.blocks_issued * 0.2, change
