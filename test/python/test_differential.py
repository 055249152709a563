"""Random queries give the same rows with look-ahead, without it, and without index.

The generator is seeded; LOOKAHEAD_SEED gives other queries, and a failure
prints the query and the settings.  A query whose plan is not an index scan of
the table is rejected and counted, never passed; the tables are cold whenever
look-ahead is on, and it must have read something by the end.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass

import pytest
from lookahead.cluster import Cluster
from lookahead.servers import Server

from conftest import NewCluster
from support import (
    INDEX_SCANS,
    SEQUENTIAL_SCANS,
    Connection,
    Row,
    Variant,
    cold,
    connect,
    gained,
    plan_nodes,
    rows,
    rows_without,
    script,
    seed,
    settings,
    use,
)

ROWS = 5000
QUERIES = 120
MIN_ACCEPTED = 0.8

# Columns of the tables, each another order of the same rows; all B-tree.
PATTERNS = ("correlated", "fuzzy", "shuffled", "duplicates", "gaps")

TABLES = ("clean", "churned")

SETUP = """
SELECT setseed(0.42);
CREATE TABLE {table} (
    id int NOT NULL, correlated int, fuzzy int, shuffled int, duplicates int, gaps int,
    place point, word text, filler text
) WITH (fillfactor = 20);
INSERT INTO {table}
SELECT i, i, i + (64 * (random() - 0.5))::int, (random() * {rows})::int, (random() * 40)::int,
       CASE WHEN random() < 0.7 THEN (random() * 500)::int END,
       point(random() * 1000, random() * 1000), md5(i::text), repeat('x', (random() * 150)::int)
  FROM generate_series(1, {rows}) i;
CREATE INDEX {table}_correlated ON {table} (correlated);
CREATE INDEX {table}_fuzzy ON {table} (fuzzy, id);
CREATE INDEX {table}_shuffled ON {table} (shuffled) INCLUDE (id);
CREATE INDEX {table}_duplicates ON {table} (duplicates);
CREATE INDEX {table}_gaps ON {table} (gaps DESC NULLS LAST, shuffled);
CREATE INDEX {table}_hash ON {table} USING hash (duplicates);
CREATE INDEX {table}_gist ON {table} USING gist (place);
CREATE INDEX {table}_spgist ON {table} USING spgist (place);
CREATE INDEX {table}_word ON {table} USING spgist (word);
"""

# Dead entries, redirected and dead line pointers, pages that are and are not
# all-visible; the last changes are not vacuumed.
CHURN = """
DELETE FROM churned WHERE id % 3 = 0;
UPDATE churned SET filler = filler || 'y' WHERE id % 5 = 0;
VACUUM churned;
DELETE FROM churned WHERE id % 7 = 0;
UPDATE churned SET shuffled = shuffled + 1 WHERE id % 11 = 0;
INSERT INTO churned SELECT id + 100000, correlated, fuzzy, shuffled, duplicates, gaps, place, word
  FROM clean WHERE id % 13 = 0;
"""


@dataclass(frozen=True)
class Query:
    """One query; the first columns of its rows are what it is ordered by."""

    sql: str
    table: str
    keys: int
    limited: bool


def _condition(choice: random.Random, column: str) -> str:
    top = {"duplicates": 40, "gaps": 500}.get(column, ROWS)
    low = choice.randrange(top)
    high = min(top, low + choice.choice((top // 50, top // 10, top // 2)) + 1)
    few = sorted(choice.sample(range(top), min(top, choice.choice((3, 10, 200))) // 2 + 1))
    kinds = [
        f"{column} BETWEEN {low} AND {high}",
        f"{column} > {low}",
        f"{column} <= {high}",
        f"{column} = {low}",
        f"{column} IN ({', '.join(map(str, few))})",
        f"{column} IS NOT NULL",
    ]
    if column == "gaps":
        kinds += [
            "gaps IS NULL",
            f"(gaps, shuffled) < ({high}, {low})",
            f"gaps = {low} AND shuffled > {low}",
            f"gaps IN ({', '.join(map(str, few))}) AND shuffled < {ROWS // 2}",
            f"shuffled BETWEEN {low} AND {low + 50}",
        ]
    if column == "fuzzy":
        kinds += [
            f"(fuzzy, id) > ({low}, {high})",
            f"fuzzy IN ({', '.join(map(str, few))}) AND id > {low}",
        ]
    return choice.choice(kinds)


def _btree(choice: random.Random, table: str) -> Query:
    column = choice.choice(PATTERNS)
    backward = choice.random() < 0.4
    order = column
    if column == "gaps" and not backward:
        order = "gaps DESC NULLS LAST"
    elif column == "gaps":
        order = "gaps NULLS FIRST"
    elif backward:
        order += " DESC"
    columns = choice.choice(("id, filler", "id", "word", column))
    sql = f"SELECT {column}, {columns} FROM {table} WHERE {_condition(choice, column)}"
    if choice.random() < 0.25:
        sql += f" AND id % {choice.choice((2, 3, 50))} = 1"
    sql += f" ORDER BY {order}"
    return _maybe_limited(choice, sql, table)


def _nearest(choice: random.Random, table: str) -> Query:
    where = ""
    if choice.random() < 0.4:
        x, y = choice.randrange(900), choice.randrange(900)
        where = f"WHERE place <@ box '(({x},{y}),({x + 400},{y + 400}))'"
    distance = f"place <-> point '({choice.randrange(1000)},{choice.randrange(1000)})'"
    sql = f"SELECT {distance}, id FROM {table} {where} ORDER BY {distance}"
    return _maybe_limited(choice, sql, table)


def _unordered(choice: random.Random, table: str) -> Query:
    x, y, low = choice.randrange(900), choice.randrange(900), choice.randrange(40)
    where = choice.choice(
        (
            f"place <@ box '(({x},{y}),({x + 500},{y + 300}))'",
            f"word ^@ '{low % 10}'",
            f"duplicates = {low}",
        )
    )
    columns = choice.choice(("id, filler", "id", "place", "word"))
    return Query(f"SELECT {columns} FROM {table} WHERE {where}", table, 0, False)


def _join(choice: random.Random, table: str) -> Query:
    column = choice.choice(("correlated", "fuzzy", "shuffled"))
    low = choice.randrange(ROWS)
    if choice.random() < 0.3:
        limit = choice.randint(1, 30)
        sql = (
            f"SELECT o.n, l.k, l.id FROM outer_rows o, LATERAL (SELECT i.{column} AS k, id"
            f" FROM {table} i WHERE i.{column} > o.n ORDER BY i.{column} LIMIT {limit}) l"
        )
        return Query(sql, table, 2, True)
    kinds = [
        f"SELECT o.n, i.id FROM outer_rows o JOIN {table} i ON i.{column} = o.n WHERE o.n > {low}",
        f"SELECT o.n FROM outer_rows o WHERE NOT EXISTS"
        f" (SELECT FROM {table} i WHERE i.duplicates = o.n AND i.id > {low})",
        f"SELECT a.id, b.id FROM {table} a JOIN {table} b ON a.{column} = b.gaps"
        f" WHERE a.id < {low}",
        f"SELECT a.id FROM {table} a WHERE EXISTS"
        f" (SELECT FROM {table} b WHERE a.duplicates = b.duplicates AND b.id % 900 = 1)",
    ]
    return Query(choice.choice(kinds), table, 0, False)


def _maybe_limited(choice: random.Random, sql: str, table: str) -> Query:
    if choice.random() < 0.5:
        return Query(sql, table, 1, False)
    sql += f" LIMIT {choice.choice((1, 3, 20, 150, 1500))}"
    if choice.random() < 0.3:
        sql += f" OFFSET {choice.choice((1, 50, 700))}"
    return Query(sql, table, 1, True)


def make_query(choice: random.Random) -> Query:
    """Return a random query."""
    kinds: list[Callable[[random.Random, str], Query]] = [_btree, _nearest, _unordered, _join]
    kind = choice.choices(kinds, weights=(6, 2, 2, 2))[0]
    return kind(choice, choice.choice(TABLES))


def is_index_scan(connection: Connection, query: Query) -> bool:
    """Does the plan come to the table by an index scan and in no other way?"""
    ways = {
        node["Node Type"]
        for node in plan_nodes(connection, query.sql)
        if node.get("Relation Name") == query.table or node["Node Type"].startswith("Bitmap")
    }
    return bool(ways) and ways <= {"Index Scan", "Index Only Scan"}


def fetch(connection: Connection, query: Query, choice: random.Random) -> list[Row]:
    """Run a query, or draw its rows through a cursor, a few at a time."""
    if choice.random() < 0.6:
        return rows(connection, query.sql)
    found: list[Row] = []
    with connection.transaction():
        connection.execute(f"DECLARE c NO SCROLL CURSOR FOR {query.sql}")
        while True:
            count = choice.choice((1, 7, 100, 1000))
            some = rows(connection, f"FETCH {count} FROM c")
            found += some
            if len(some) < count:
                return found


def ordered(found: list[Row], query: Query) -> list[Row]:
    """What of an answer must be equal when it comes from another plan."""
    if query.limited:
        return [row[: query.keys] for row in found]
    return sorted(found, key=repr)


def setup(cluster: Cluster) -> None:
    with connect(cluster) as connection:
        if connection.execute("SELECT to_regclass('churned')").fetchone() != (None,):
            return
        for table in TABLES:
            connection.execute(SETUP.format(table=table, rows=ROWS))
        connection.execute("VACUUM clean")
        script(connection, CHURN)
        connection.execute(
            "CREATE TABLE outer_rows AS SELECT (g * 97) % 5000 AS n FROM generate_series(1, 80) g"
        )
        connection.execute("ANALYZE")


def compare(cluster: Cluster, variant: Variant, choice: random.Random, count: int) -> int:
    """Run random queries; return how many blocks look-ahead issued."""
    setup(cluster)
    accepted = issued = 0
    with connect(cluster) as connection:
        for _ in range(count):
            query = make_query(choice)
            joins = {
                "enable_hashjoin": "off",
                "enable_material": "off",
                "enable_memoize": "off",
                "cursor_tuple_fraction": "1",
                "enable_mergejoin": choice.choice(("on", "off")),
            }
            settings(connection, **INDEX_SCANS, **joins)
            if not is_index_scan(connection, query):
                continue
            accepted += 1
            ours = {
                "pg_lookahead__max_distance": choice.choice((8, 64, 256, 4096)),
                "pg_lookahead__io_concurrency": choice.choice((1, 4, 64, 1000)),
                "pg_lookahead__start_after": choice.choice((0, 0, 0, 1)),
            }

            without = rows_without(connection, query.sql)
            use(connection, variant, **ours)
            cold(connection, query.table)
            with gained(connection) as change:
                with_it = fetch(connection, query, choice)
            issued += change.blocks_issued
            context = f"{query.sql}\n-- {ours} {joins}"
            assert with_it == without, context
            assert not change.errors, context

            settings(connection, **SEQUENTIAL_SCANS, enable_hashjoin="on", enable_mergejoin="on")
            oracle = rows(connection, query.sql)
            assert ordered(with_it, query) == ordered(oracle, query), context
    assert accepted >= MIN_ACCEPTED * count, f"only {accepted} of {count} queries were index scans"
    return issued


def test_random_queries(cluster: Cluster, variant: Variant) -> None:
    issued = compare(cluster, variant, random.Random(f"{seed()} {variant}"), QUERIES)
    assert (issued > 0) == variant.reads


@pytest.mark.parametrize("size", ["512kB", "2MB"])
def test_tiny_shared_buffers(own_cluster: NewCluster, server: Server, size: str) -> None:
    """So few buffers that a window would be a good part of them."""
    cluster = own_cluster({"shared_buffers": size, "max_connections": "10"})
    choice = random.Random(f"{seed()} {size}")
    methods = ("aio", "advice") if server.major >= 18 else ("advice",)
    for method in methods:
        assert compare(cluster, Variant(None, method), choice, QUERIES // 3) > 0
    cluster.close()
