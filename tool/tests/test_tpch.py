"""TPC-H's tables and queries: what is in the files, and that a server takes them."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import psycopg
import pytest

from lookahead import tpch
from lookahead.bench_measure import SQL_FOLDER
from lookahead.cluster import Cluster
from lookahead.demo_data import statements
from lookahead.errors import LookaheadError


def text_of(number: int) -> str:
    return tpch.query(number).as_string(None)


def test_there_are_22_queries() -> None:
    files = sorted(file.stem for file in (SQL_FOLDER / "tpch").glob("q*.sql"))
    assert files == [f"q{number:02}" for number in tpch.QUERIES]
    assert len({text_of(number) for number in tpch.QUERIES}) == 22


@pytest.mark.parametrize("number", tpch.QUERIES)
def test_a_query_is_one_statement_with_a_question(number: int) -> None:
    text = text_of(number)
    assert ";" not in text
    assert "{" not in text
    asked = tpch.question(number)
    assert asked[-1] in ".?,)"
    assert not asked.startswith("-")
    assert any(line.startswith(("SELECT", "WITH")) for line in text.splitlines())
    # An order that is fixed, so that answers can be compared.
    assert "GROUP BY" not in text or "ORDER BY" in text or number in (17,)


def test_the_schema_has_every_table_once() -> None:
    made = [words.split()[2] for words in statements("tpch/schema")]
    assert made == list(tpch.TABLES)
    keyed = [words.split()[2] for words in statements("tpch/keys")]
    assert keyed == made


def test_every_table_is_asked_about() -> None:
    every = "\n".join(text_of(number) for number in tpch.QUERIES)
    for table in tpch.TABLES:
        assert f" {table}" in every


@pytest.fixture(scope="module")
def loaded(plain: Cluster) -> Iterator[psycopg.Connection[Any]]:
    """The tables at the least scale at which all keys are unique; 15 MB."""
    try:
        tpch.generator()
    except LookaheadError as reason:
        pytest.skip(str(reason))
    with plain.connect() as conn:
        conn.execute("CREATE DATABASE tpch")
    with plain.connect("tpch") as conn:
        tpch.load(conn, 0.01)
        yield conn


def test_the_tables_are_those_of_the_specification(loaded: psycopg.Connection[Any]) -> None:
    for table, rows in (("region", 5), ("nation", 25), ("customer", 1500), ("orders", 15000)):
        row = loaded.execute(f"SELECT count(*) FROM {table}".encode()).fetchone()
        assert row == (rows,)
    row = loaded.execute("SELECT n_name FROM nation WHERE n_nationkey = 7").fetchone()
    assert row == ("GERMANY",)


@pytest.mark.parametrize("number", tpch.QUERIES)
def test_a_server_takes_the_query(loaded: psycopg.Connection[Any], number: int) -> None:
    cursor = loaded.execute(tpch.query(number).as_bytes(loaded))
    rows = cursor.fetchall()
    # Some ask for what a database this small does not have.
    assert rows or number in (2, 8, 18, 19, 20, 21)
