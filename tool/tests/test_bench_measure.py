"""The probes of the benchmarks, on a real server."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import psycopg
import pytest

from lookahead.bench_measure import (
    PlanRejected,
    Probe,
    check_join,
    check_plan,
    one_processor,
    scan_query,
    server_settings,
    settings_digest,
)
from lookahead.bench_session import libraries_of
from lookahead.cluster import Cluster
from lookahead.demo_data import statements


@pytest.fixture
def conn(plain: Cluster) -> Iterator[psycopg.Connection[Any]]:
    with plain.connect() as connection:
        connection.execute("DROP TABLE IF EXISTS probed")
        connection.execute(
            "CREATE TABLE probed AS"
            " SELECT i::bigint AS a, i::text AS b FROM generate_series(1, 5000) i"
        )
        connection.execute("CREATE INDEX ON probed (a)")
        connection.execute("VACUUM ANALYZE probed")
        yield connection


def test_the_plan_must_be_the_intended_one(conn: psycopg.Connection[Any]) -> None:
    for name in ("seqscan", "bitmapscan", "indexonlyscan"):
        conn.execute(f"SET enable_{name} = off")
    for name in ("bench_scan", "bench_answer"):
        for direction in ("forward", "backward"):
            query = scan_query(name, "probed", 1, 5000, direction)
            check_plan(conn, query, "probed", direction)
    with pytest.raises(PlanRejected, match="Backward"):
        check_plan(conn, scan_query("bench_scan", "probed", 1, 9, "backward"), "probed", "forward")
    conn.execute("SET enable_indexscan = off")
    conn.execute("RESET enable_seqscan")
    with pytest.raises(PlanRejected, match="Sort"):
        check_plan(conn, scan_query("bench_scan", "probed", 1, 9, "forward"), "probed", "forward")


def test_a_join_must_be_of_two_index_scans(conn: psycopg.Connection[Any]) -> None:
    for name in ("seqscan", "bitmapscan", "indexonlyscan", "hashjoin", "memoize", "material"):
        conn.execute(f"SET enable_{name} = off")
    for join, other in (("merge join", "nestloop"), ("nested loop", "mergejoin")):
        conn.execute("RESET enable_nestloop")
        conn.execute("RESET enable_mergejoin")
        conn.execute(f"SET enable_{other} = off")
        for name in ("bench_join_scan", "bench_join_answer"):
            check_join(conn, scan_query(name, "probed", 1, 5000, "forward"), "probed", join)
        timed = scan_query("bench_join_scan", "probed", 1, 5000, "forward")
        with pytest.raises(PlanRejected, match="wanted hash join"):
            check_join(conn, timed, "probed", "hash join")
        conn.execute("SET enable_indexscan = off")
        conn.execute("RESET enable_seqscan")
        with pytest.raises(PlanRejected):
            check_join(conn, timed, "probed", join)
        conn.execute("RESET enable_indexscan")
        conn.execute("SET enable_seqscan = off")


def test_a_run_is_counted(conn: psycopg.Connection[Any], plain: Cluster) -> None:
    conn.execute("SET enable_seqscan = off")
    conn.execute("SET enable_bitmapscan = off")
    probe = Probe(conn, plain.data, "probed", lookahead=False)
    before = probe.snapshot()
    queries = [
        scan_query("bench_answer", "probed", i * 100, i * 100 + 9, "forward") for i in (1, 2)
    ]
    elapsed, answers = probe.timed(queries)
    spent = probe.since(before)
    assert len(elapsed) == 2
    assert [rows[0][0] for rows in answers] == [10, 10]
    assert answers[0] != answers[1]
    assert spent["heap_tuples"] == 20
    assert spent["heap_blks_hit"] + spent["heap_blks_read"] >= 2
    assert "lookahead" not in spent


def test_settings_leave_out_only_the_arm(conn: psycopg.Connection[Any]) -> None:
    before = settings_digest(server_settings(conn))
    conn.execute("SET pg_lookahead.whatever = 'on'")
    assert settings_digest(server_settings(conn)) == before
    conn.execute("SET work_mem = '7MB'")
    assert settings_digest(server_settings(conn)) != before


def test_statement_files_are_split() -> None:
    found = statements("demo_indexes")
    assert found[-1] == "CHECKPOINT"
    assert all(not text.startswith("--") for text in found)


def test_a_library_that_is_replaced_is_seen(tmp_path: Path) -> None:
    data: Any = {"18-test": SimpleNamespace(server=SimpleNamespace(pkglibdir=tmp_path))}
    assert libraries_of(data) == {}
    (tmp_path / "pg_lookahead.so").write_bytes(b"one build")
    one = libraries_of(data)
    assert list(one) == ["18-test"]
    assert libraries_of(data) == one
    (tmp_path / "pg_lookahead.so").write_bytes(b"another")
    assert libraries_of(data) != one


def test_one_processor_is_for_us_and_what_we_start_and_given_back() -> None:
    allowed = os.sched_getaffinity(0)
    shown = "import os; print(*os.sched_getaffinity(0))"
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as other:
        with one_processor(1, other.pid):
            ours = os.sched_getaffinity(0)
            theirs = os.sched_getaffinity(other.pid)
            started = subprocess.run(
                [sys.executable, "-c", shown], check=True, capture_output=True, text=True
            )
        assert os.sched_getaffinity(other.pid) == allowed
        other.communicate(b"\n")
    assert len(ours) == 1
    assert ours <= allowed
    assert theirs == ours
    assert {int(number) for number in started.stdout.split()} == ours
    assert os.sched_getaffinity(0) == allowed


def test_one_processor_where_a_process_has_ended() -> None:
    allowed = os.sched_getaffinity(0)
    ended = subprocess.Popen([sys.executable, "-c", ""])
    ended.wait()
    with one_processor(0, ended.pid):
        assert len(os.sched_getaffinity(0)) == 1
    assert os.sched_getaffinity(0) == allowed
