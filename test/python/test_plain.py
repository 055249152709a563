"""Functions that look-ahead does not call, and how it finds out: without waiting for others.

More of it is in sql/stayout.sql, and catalogs that are locked in test_slow_storage.py.
"""

from __future__ import annotations

import psycopg
import pytest
from lookahead.cluster import Cluster
from lookahead.servers import Server

from support import (
    INDEX_SCANS,
    Connection,
    cold,
    connect,
    gained,
    require_node,
    rows,
    rows_without,
    script,
    settings,
)

ROWS = 2000

ORDERS = f"""
CREATE TYPE order_line AS (article int);
CREATE TABLE orders (id int, lines order_line[], filler text);
INSERT INTO orders SELECT i, ARRAY[row(i)::order_line], repeat('x', 300)
  FROM generate_series(1, {ROWS}) i ORDER BY md5(i::text);
VACUUM ANALYZE orders;
"""

SKIPPED = f"""
CREATE OPERATOR === (LEFTARG = int, RIGHTARG = int, FUNCTION = plpgsql_equal);
CREATE OPERATOR CLASS strange_ops FOR TYPE int USING btree AS
    OPERATOR 1 <, OPERATOR 2 <=, OPERATOR 3 ===, OPERATOR 4 >=, OPERATOR 5 >,
    FUNCTION 1 btint4cmp(int, int);
CREATE TABLE skipped (a int, b int, filler text);
INSERT INTO skipped SELECT i % 5, i % 20, repeat('x', 300)
  FROM generate_series(1, {ROWS}) i ORDER BY md5(i::text);
VACUUM ANALYZE skipped;
"""


def check(connection: Connection, table: str, index: str, condition: str, count: int) -> bool:
    """Scan a cold table by an index, find what is found without us; did it look ahead?"""
    query = f"SELECT ctid, length(filler) FROM {table} WHERE {condition}"
    settings(connection, **INDEX_SCANS)
    require_node(connection, query, "Index Scan", index)
    expected = sorted(rows_without(connection, query))
    assert len(expected) == count
    cold(connection, table)
    with gained(connection) as change:
        assert sorted(rows(connection, query)) == expected
    return change.blocks_issued > 0


@pytest.mark.parametrize("columns", ["(id) INCLUDE (lines)", "(id, lines)"])
def test_row_type_of_somebody(cluster: Cluster, columns: str) -> None:
    """A type that the query does not look at may be locked: so much is known without it."""
    query = "SELECT id, length(filler) FROM orders WHERE id > 5 ORDER BY id"
    with connect(cluster) as other:
        script(other, ORDERS)
        other.execute(f"CREATE INDEX orders_id ON orders {columns}")
        expected = rows_without(other, query)
        other.execute("BEGIN")
        other.execute("ALTER TYPE order_line RENAME ATTRIBUTE article TO item")
        # A session that knows nothing of the type yet.
        with connect(cluster) as connection:
            settings(connection, **INDEX_SCANS, lock_timeout="2s")
            require_node(connection, query, "Index Scan", "orders_id")
            assert rows(connection, query) == expected
        other.execute("ROLLBACK")
        script(other, "DROP TABLE orders; DROP TYPE order_line")


# Each is of something that the index does not show: what is inside may have any function.
HIDDEN = {
    "hash of rows": (
        "CREATE TYPE inside AS (x int);"
        "CREATE TABLE hidden AS SELECT row(i % 4)::inside AS v, repeat('x', 300) AS filler"
        f" FROM generate_series(1, {ROWS}) i; CREATE INDEX hidden_v ON hidden USING hash (v)",
        "v = row(3)::inside",
        "DROP TABLE hidden; DROP TYPE inside",
    ),
    "multiranges": (
        "CREATE TYPE inside AS RANGE (subtype = int, multirange_type_name = insides);"
        "CREATE TABLE hidden AS SELECT insides(inside(i % 4, i % 4 + 1)) AS v, repeat('x', 300)"
        f" AS filler FROM generate_series(1, {ROWS}) i;"
        "CREATE INDEX hidden_v ON hidden USING gist (v)",
        "v && insides(inside(3, 4))",
        "DROP TABLE hidden; DROP TYPE inside",
    ),
    "a hash of numbers": (
        "CREATE TABLE hidden AS SELECT i % 4 AS v, repeat('x', 300) AS filler"
        f" FROM generate_series(1, {ROWS}) i; CREATE INDEX hidden_v ON hidden USING hash (v)",
        "v = 3",
        "DROP TABLE hidden",
    ),
}


@pytest.mark.parametrize("name", HIDDEN)
def test_what_an_index_does_not_show(cluster: Cluster, name: str) -> None:
    setup, condition, undo = HIDDEN[name]
    with connect(cluster) as connection:
        script(connection, setup)
        looked_ahead = check(connection, "hidden", "hidden_v", condition, ROWS // 4)
        assert looked_ahead == (name == "a hash of numbers")
        script(connection, undo)


# Families of operators for numbers of two kinds, the second with some functions of its own.
FAMILIES = """
CREATE FUNCTION own_hash(int8) RETURNS int LANGUAGE {language} IMMUTABLE STRICT AS {hash};
CREATE FUNCTION own_less(int8, int8) RETURNS bool LANGUAGE {language} IMMUTABLE STRICT AS {less};
CREATE OPERATOR <<< (LEFTARG = int8, RIGHTARG = int8, FUNCTION = own_less);
CREATE OPERATOR FAMILY own_numbers USING hash;
CREATE OPERATOR CLASS own_hash4 FOR TYPE int USING hash FAMILY own_numbers AS
    OPERATOR 1 =, FUNCTION 1 hashint4(int);
CREATE OPERATOR CLASS own_hash8 FOR TYPE int8 USING hash FAMILY own_numbers AS
    OPERATOR 1 =, FUNCTION 1 own_hash(int8);
ALTER OPERATOR FAMILY own_numbers USING hash ADD OPERATOR 1 = (int, int8);
CREATE OPERATOR FAMILY own_numbers USING btree;
CREATE OPERATOR CLASS own_tree4 FOR TYPE int USING btree FAMILY own_numbers AS
    OPERATOR 1 <, OPERATOR 2 <=, OPERATOR 3 =, OPERATOR 4 >=, OPERATOR 5 >,
    FUNCTION 1 btint4cmp(int, int);
CREATE OPERATOR CLASS own_tree8 FOR TYPE int8 USING btree FAMILY own_numbers AS
    OPERATOR 1 <<<, OPERATOR 2 <=, OPERATOR 3 =, OPERATOR 4 >=, OPERATOR 5 >,
    FUNCTION 1 btint8cmp(int8, int8);
ALTER OPERATOR FAMILY own_numbers USING btree ADD
    OPERATOR 1 < (int, int8), OPERATOR 2 <= (int, int8), OPERATOR 3 = (int, int8),
    OPERATOR 4 >= (int, int8), OPERATOR 5 > (int, int8), FUNCTION 1 btint48cmp(int, int8);
CREATE TABLE mixed AS SELECT i % 20 AS v, repeat('x', 300) AS filler
  FROM generate_series(1, {rows}) i;
"""
WRITTEN = {
    "C": {"language": "internal", "hash": "'hashint8'", "less": "'int8lt'"},
    "SQL": {
        "language": "sql", "hash": "'SELECT hashint8($1)'", "less": "'SELECT $1 < $2'",
    },
}  # fmt: skip

# name: (index, condition, twentieths of the rows, languages of those functions that are run)
OTHER_KINDS = {
    "hash": ("USING hash (v own_hash4)", "v = 3::int8", 1, ["C"]),
    "hash, its own kind": ("USING hash (v own_hash4)", "v = 3", 1, ["C", "SQL"]),
    "equal": ("(v own_tree4)", "v = 3::int8", 1, ["C", "SQL"]),
    "less than one of": ("(v own_tree4)", "v < ANY (ARRAY[1, 2, 1]::int8[])", 2, ["C"]),
    # Which of two keys says more is found out with functions of its own.
    "between": ("(v own_tree4)", "v > 3::int8 AND v < 7::int8", 3, []),
    "between, its own kind": ("(v own_tree4)", "v > 3 AND v < 7", 3, ["C", "SQL"]),
}


@pytest.mark.parametrize("language", WRITTEN)
@pytest.mark.parametrize("name", OTHER_KINDS)
def test_keys_of_another_type(cluster: Cluster, name: str, language: str) -> None:
    """The access method fetches functions for them that the index itself does not need."""
    index, condition, twentieths, languages = OTHER_KINDS[name]
    with connect(cluster) as connection:
        script(connection, FAMILIES.format(rows=ROWS, **WRITTEN[language]))
        try:
            connection.execute(f"CREATE INDEX mixed_v ON mixed {index}")
            connection.execute("VACUUM ANALYZE mixed")
            count = ROWS // 20 * twentieths
            looked_ahead = check(connection, "mixed", "mixed_v", condition, count)
            assert looked_ahead == (language in languages)
        finally:
            script(
                connection,
                "DROP TABLE mixed; DROP OPERATOR FAMILY own_numbers USING hash;"
                " DROP OPERATOR FAMILY own_numbers USING btree; DROP OPERATOR <<< (int8, int8);"
                " DROP FUNCTION own_hash, own_less",
            )


# What is inside an array of a domain; of a domain of rows nothing is known.
DOMAINS = {
    "numbers": ("CREATE DOMAIN inside AS int CHECK (value > -1)", "i % 4", "", True),
    "rows": (
        "CREATE TYPE pair AS (x int); CREATE DOMAIN inside AS pair", "row(i % 4)::pair",
        "; DROP TYPE pair", False,
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", DOMAINS)
def test_arrays_of_domains(cluster: Cluster, name: str) -> None:
    setup, element, undo, looks_ahead = DOMAINS[name]
    condition = "v >= (SELECT max(v) FROM domains)"
    with connect(cluster) as connection:
        script(connection, setup)
        try:
            connection.execute(
                f"CREATE TABLE domains AS SELECT ARRAY[{element}]::inside[] AS v,"
                f" repeat('x', 300) AS filler FROM generate_series(1, {ROWS}) i"
            )
            script(connection, "CREATE INDEX domains_v ON domains (v); VACUUM ANALYZE domains")
            looked_ahead = check(connection, "domains", "domains_v", condition, ROWS // 4)
            assert looked_ahead == looks_ahead
        finally:
            script(connection, f"DROP TABLE IF EXISTS domains; DROP DOMAIN inside{undo}")


GONE = f"""
CREATE FUNCTION gone(int, int, int, bool, bool) RETURNS bool LANGUAGE c IMMUTABLE
    AS '$libdir/pg_lookahead', 'pg_lookahead_version';
CREATE OPERATOR CLASS partly_gone FOR TYPE int USING btree AS
    OPERATOR 1 <, OPERATOR 2 <=, OPERATOR 3 =, OPERATOR 4 >=, OPERATOR 5 >,
    FUNCTION 1 btint4cmp(int, int), FUNCTION 3 gone(int, int, int, bool, bool);
UPDATE pg_proc SET probin = '$libdir/of_another_server' WHERE proname = 'gone';
CREATE TABLE scanned AS SELECT i % 4 AS v, repeat('x', 300) AS filler
  FROM generate_series(1, {ROWS}) i ORDER BY md5(i::text);
CREATE INDEX scanned_v ON scanned (v partly_gone);
VACUUM ANALYZE scanned;
"""


def test_function_that_no_scan_calls(cluster: Cluster) -> None:
    """Its library is not there: a query that does not want it must not load it."""
    with connect(cluster) as connection:
        script(connection, GONE)
    with connect(cluster) as connection:
        assert check(connection, "scanned", "scanned_v", "v = 3", ROWS // 4)
        script(
            connection,
            "DROP TABLE scanned; DROP OPERATOR FAMILY partly_gone USING btree; DROP FUNCTION gone",
        )


NOT_COMPARED = f"""
CREATE FUNCTION compares(int, int) RETURNS int LANGUAGE internal IMMUTABLE STRICT AS 'btint4cmp';
CREATE OPERATOR CLASS of_another FOR TYPE int USING btree AS
    OPERATOR 1 <, OPERATOR 2 <=, OPERATOR 3 =, OPERATOR 4 >=, OPERATOR 5 >,
    FUNCTION 1 compares(int, int);
CREATE TABLE scanned AS SELECT i % 4 AS v, i AS w, repeat('x', 300) AS filler
  FROM generate_series(1, {ROWS}) i ORDER BY md5(i::text);
CREATE INDEX scanned_v ON scanned (v, w of_another);
VACUUM ANALYZE scanned;
"""
TAKEN_AWAY = """
UPDATE pg_proc SET prolang = (SELECT oid FROM pg_language WHERE lanname = 'c'),
       probin = '$libdir/of_another_server'
 WHERE proname = 'compares'
"""


def test_column_that_is_not_compared(cluster: Cluster) -> None:
    """Nor the library that compares a column for which the query has no condition."""
    with connect(cluster) as connection:
        script(connection, f"{NOT_COMPARED}; {TAKEN_AWAY}")
    with connect(cluster) as connection:
        assert check(connection, "scanned", "scanned_v", "v = 3", ROWS // 4)
        with pytest.raises(psycopg.errors.UndefinedFile):
            check(connection, "scanned", "scanned_v", "v = 3 AND w > 0", ROWS // 4)
    with connect(cluster) as connection:
        script(
            connection,
            "DROP TABLE scanned; DROP OPERATOR FAMILY of_another USING btree;"
            " DROP FUNCTION compares",
        )


def test_operators_of_skip_scans(cluster: Cluster, server: Server) -> None:
    """For a column without a key 18 makes one, with an operator of the index's family.

    What that is matters to a second scan; such a scan is followed from the leaf page in hand.
    """
    if server.major < 18:
        pytest.skip("skip scans are of 18 and later")
    query = "SELECT a, b, length(filler) FROM skipped WHERE b = 7"
    with connect(cluster) as connection:
        connection.execute(
            "CREATE FUNCTION plpgsql_equal(int, int) RETURNS bool LANGUAGE plpgsql IMMUTABLE"
            " AS 'BEGIN RETURN $1 = $2; END'"
        )
        script(connection, SKIPPED)
        settings(connection, **INDEX_SCANS)
        for operators in ("int4_ops", "strange_ops"):
            connection.execute(f"CREATE INDEX skipped_a_b ON skipped (a {operators}, b)")
            require_node(connection, query, "Index Scan", "skipped_a_b")
            expected = sorted(rows_without(connection, query))
            assert len(expected) == ROWS // 20
            cold(connection, "skipped")
            with gained(connection) as change:
                assert sorted(rows(connection, query)) == expected
            assert change.blocks_issued > 0
            connection.execute("DROP INDEX skipped_a_b")
        script(
            connection,
            "DROP TABLE skipped; DROP OPERATOR FAMILY strange_ops USING btree;"
            " DROP OPERATOR === (int, int); DROP FUNCTION plpgsql_equal",
        )
