"""EXPLAIN's other formats are well-formed, and other ways to get one work."""

from __future__ import annotations

from typing import Any
from xml.etree import ElementTree

import pytest
from lookahead.cluster import Cluster

from support import (
    INDEX_SCANS,
    Connection,
    LogWatch,
    cold,
    connect,
    gained,
    look_ahead_of,
    once,
    require_node,
    rows,
    settings,
    value,
)

SETUP = """
CREATE TABLE shown (a int, filler text) WITH (fillfactor = 20);
INSERT INTO shown SELECT i, repeat('x', 100) FROM generate_series(1, 2000) i
 ORDER BY md5(i::text);
CREATE INDEX shown_a ON shown (a);
VACUUM ANALYZE shown
"""

SCAN = "SELECT a, filler FROM shown ORDER BY a"
PROPERTIES = {
    "Method", "Blocks Issued", "Blocks Used", "Blocks Wasted", "Blocks Hit", "Waits",
    "Depth Reached",
}  # fmt: skip
MORE_BEFORE_18 = {
    "Looks Ahead Of",
    "Node Type",
    "Relation Name",
    "Index Name",
    "Alias",
    "Scan Direction",
}


@pytest.fixture
def connection(cluster: Cluster) -> Any:
    with connect(cluster) as session:
        once(session, "shown", SETUP)
        settings(session, **INDEX_SCANS, pg_lookahead__leafscan="off")
        require_node(session, SCAN, "Index Scan", "shown_a")
        cold(session, "shown")
        yield session


def explain(connection: Connection, form: str, query: str = SCAN) -> str:
    options = f"ANALYZE, BUFFERS, SUMMARY, FORMAT {form}"
    return "\n".join(str(line) for (line,) in rows(connection, f"EXPLAIN ({options}) {query}"))


def test_xml(connection: Connection) -> None:
    document = ElementTree.fromstring(explain(connection, "xml"))
    space = document.tag.partition("}")[0] + "}"
    query = document.find(f"{space}Query")
    assert query is not None
    if connection.info.server_version >= 180000:
        found = query.find(f"{space}Plan/{space}Look-Ahead")
    else:
        found = query.find(f"{space}Look-Ahead/{space}Scan")
    assert found is not None
    properties = {child.tag[len(space) :].replace("-", " "): child.text for child in found}
    assert set(properties) >= PROPERTIES
    assert set(properties) <= PROPERTIES | MORE_BEFORE_18
    assert int(properties["Blocks Issued"] or 0) > 0


def test_yaml(connection: Connection) -> None:
    """Without a parser: every line is `key: value` at a depth that fits."""
    depth = 0
    inside: dict[str, str] = {}
    look_ahead_at = None
    for line in explain(connection, "yaml").splitlines():
        indent = len(line) - len(line.lstrip(" "))
        content = line.strip()
        if content.startswith("- "):
            indent, content = indent + 2, content[2:]
        key, colon, text = content.partition(":")
        assert colon, line
        assert indent % 2 == 0
        assert indent <= depth + 4, line
        depth = indent
        if key == "Look-Ahead":
            look_ahead_at = indent
        elif look_ahead_at is not None:
            if indent <= look_ahead_at:
                look_ahead_at = None
            else:
                inside[key] = text.strip()
    assert set(inside) >= PROPERTIES
    assert int(inside["Blocks Issued"]) > 0


@pytest.mark.parametrize("case", ["all", "partly_cached", "stopped"])
def test_numbers_are_the_scans_own(connection: Connection, case: str) -> None:
    """What EXPLAIN shows of an index scan is what it has added to the session's counters."""
    query = SCAN
    if case == "partly_cached":
        assert len(rows(connection, "SELECT filler FROM shown WHERE a < 10")) == 9
    elif case == "stopped":
        query = f"SELECT * FROM ({SCAN} OFFSET 0) t WHERE a > 0 LIMIT 3"
    with gained(connection) as change:
        [found] = look_ahead_of(connection, query)
    assert found["Blocks Issued"] == change.blocks_issued > 0
    assert found["Blocks Used"] == change.blocks_used > 0
    assert found["Blocks Wasted"] == change.blocks_wasted
    assert found["Blocks Hit"] == change.blocks_hit
    assert found["Waits"] == change.waits
    assert (change.blocks_wasted > 0) == (case == "stopped")
    if case == "partly_cached":
        assert change.blocks_hit > 0


@pytest.mark.parametrize("form", ["text", "json", "xml", "yaml"])
def test_nothing_is_shown_where_nothing_was_done(connection: Connection, form: str) -> None:
    settings(connection, pg_lookahead__enabled="off")
    assert "Look-Ahead" not in explain(connection, form)
    settings(connection, pg_lookahead__enabled="on")
    assert "Look-Ahead" in explain(connection, form)


def test_execute(connection: Connection) -> None:
    """A prepared statement; 15 to 17 show no summary for it."""
    connection.execute(f"PREPARE shown_scan AS {SCAN}")
    text = explain(connection, "text", "EXECUTE shown_scan")
    assert "Index Scan using shown_a" in text
    if connection.info.server_version >= 180000:
        assert "Look-Ahead: method=" in text
    connection.execute("DEALLOCATE shown_scan")


def test_create_table_as(connection: Connection) -> None:
    assert "Look-Ahead" in explain(connection, "text", f"CREATE TEMP TABLE shown_copy AS {SCAN}")
    cold(connection, "shown")
    connection.execute("CREATE MATERIALIZED VIEW shown_view AS SELECT 1 AS a WITH NO DATA")
    connection.execute("DROP MATERIALIZED VIEW shown_view")


def test_explain_that_fails(connection: Connection) -> None:
    for form in ("text", "json"):
        with pytest.raises(Exception, match="division by zero"):
            explain(connection, form, "SELECT 1 / (a - 900), filler FROM shown ORDER BY a")
        cold(connection, "shown")
        assert "Look-Ahead" in explain(connection, form)


def test_explain_within_explain(connection: Connection) -> None:
    """The inner one's scans are not the outer one's."""
    connection.execute(
        """
        CREATE OR REPLACE FUNCTION explain_it() RETURNS bigint LANGUAGE plpgsql AS $$
        DECLARE
            line text;
            n bigint := 0;
        BEGIN
            FOR line IN EXECUTE 'EXPLAIN (ANALYZE, BUFFERS) SELECT a, filler FROM shown ORDER BY a'
            LOOP
                n := n + (line LIKE '%Look-Ahead%')::int;
            END LOOP;
            RETURN n;
        END $$
        """
    )
    assert value(connection, "SELECT explain_it()") == 1
    cold(connection, "shown")
    outer = explain(connection, "json", "SELECT explain_it()")
    assert "Blocks Issued" not in outer
    cold(connection, "shown")
    both = explain(connection, "text", f"SELECT explain_it(), t.* FROM ({SCAN} LIMIT 300) t")
    assert both.count("method=") == 1


def test_auto_explain(cluster: Cluster, connection: Connection) -> None:
    try:
        connection.execute("LOAD 'auto_explain'")
    except Exception:
        pytest.skip("this server has no auto_explain")
    settings(
        connection,
        auto_explain__log_min_duration=0,
        auto_explain__log_analyze="on",
        auto_explain__log_buffers="on",
        auto_explain__log_format="json",
        auto_explain__log_nested_statements="on",
    )
    with LogWatch(cluster) as log:
        assert len(rows(connection, SCAN)) == 2000
        assert "Look-Ahead" in explain(connection, "text")
        text = log.text()
    assert '"Node Type": "Index Scan"' in text
    if connection.info.server_version >= 180000:
        assert '"Blocks Issued"' in text
