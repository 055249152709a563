"""What the tests of space share: tables, loads, what is looked at after them."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

from lookahead import privilege
from lookahead.cluster import Cluster

from conftest import NewCluster
from support import (
    ELSEWHERE,
    Connection,
    LogWatch,
    comes_with,
    connect,
    has_extension,
    need_extensions,
    rows,
    script,
)

LOADS = {"shared_buffers": "64MB", "max_wal_size": "1GB"}

BLOCK = 8192

# 1725 pages, of which 256 are filled before anything is added.
ROWS = 100_000
ROWS_ON_A_PAGE = 58
SOURCE = f"""
CREATE TABLE source AS SELECT i AS a, repeat('x', 100) AS b FROM generate_series(1, {ROWS}) i;
CREATE FUNCTION la_free_space(regclass, bigint) RETURNS int AS 'la_free_space' LANGUAGE C;
CREATE FUNCTION free_space(regclass, OUT blkno bigint, OUT avail int) RETURNS SETOF record
    LANGUAGE sql AS $$
    SELECT blkno, la_free_space($1, blkno)
      FROM generate_series(0, pg_relation_size($1) / {BLOCK} - 1) AS blkno
$$
"""

# A table grows by a sixteenth at most, and by 4 MB.
SIXTEENTH = 16
STEP = 512

# Pages of an extension that are made in shared buffers, within a millisecond on 15.
AT_LEAST_BUFFERED = 16


class Pages(NamedTuple):
    size: int
    used: int
    spare: int  # empty, and in the free space map

    @property
    def lost(self) -> int:
        # The page that was begun last may still be in the map as empty.
        return max(0, self.size - self.used - self.spare)


def pages(connection: Connection, table: str) -> Pages:
    row = rows(
        connection,
        f"""
        WITH rel AS (SELECT pg_relation_size('{table}') / {BLOCK} AS size),
             used AS (SELECT DISTINCT (ctid::text::point)[0]::bigint AS block FROM {table})
        SELECT (SELECT size FROM rel), (SELECT count(*) FROM used),
               (SELECT count(*) FROM free_space('{table}') f, rel
                 WHERE avail > 8000 AND blkno < rel.size
                   AND NOT EXISTS (SELECT FROM used WHERE block = blkno))
        """,
    )[0]
    return Pages(*map(int, row))


def counters(connection: Connection, scope: str = "session") -> dict[str, int]:
    row = rows(
        connection,
        "SELECT extensions, pages_added, pages_returned, busy, errors"
        f" FROM pg_lookahead_extend() WHERE scope = '{scope}'",
    )[0]
    return dict(zip(("extensions", "added", "returned", "busy", "errors"), row, strict=True))


@contextmanager
def grows(connection: Connection, scope: str = "session") -> Iterator[None]:
    """Pages are added ahead in here, by this session or by any of the server."""
    before = counters(connection, scope)["added"]
    yield
    assert counters(connection, scope)["added"] > before


def answer(connection: Connection, table: str) -> tuple[object, ...]:
    return rows(connection, f"SELECT count(*), sum(hashint8(a)), sum(length(b)) FROM {table}")[0]


def sound(connection: Connection, *tables: str) -> None:
    """Have amcheck look at tables, on servers that come with it."""
    if not comes_with(connection, "amcheck"):
        return
    for table in tables:
        assert rows(connection, f"SELECT * FROM verify_heapam('{table}')") == []


def tidy(found: Pages) -> None:
    """Nothing is lost, and no more is spare than may have been added last."""
    assert found.lost == 0, found
    assert found.spare <= min(STEP, found.size // SIXTEENTH) + 1, found


def cluster_with_source(
    own_cluster: NewCluster, *extensions: str, settings: Mapping[str, str] | None = None
) -> Cluster:
    """A cluster with a table to load from, and a file that COPY wrote of it."""
    cluster = own_cluster({**LOADS, **(settings or {})})
    need_extensions(cluster, *extensions)
    has_extension(cluster, "amcheck")
    with connect(cluster) as connection:
        script(connection, SOURCE)
        connection.execute(f"COPY source TO '{cluster.dir}/source.copy'")
    return cluster


def write_copy_that_fails(cluster: Cluster, connection: Connection, filled: int) -> Path:
    """Write a file of as many rows as so many pages have, and one that is none."""
    file = cluster.dir / "some.copy"
    connection.execute(
        f"COPY (SELECT a::text, b FROM source LIMIT {filled * ROWS_ON_A_PAGE}) TO '{file}'"
    )
    with file.open("a") as opened:
        opened.write("none\tx\n")
    return file


# What odd_files.c looks for to have reads of pages take longer that are new to a process.
COLD_READS = "LA_COLD_READS"


def odd_files(cluster: Cluster, *variables: str) -> list[Path]:
    """Put odd_files.c before a server to be started; return the files that it looks for."""
    compiler = shutil.which("cc") or shutil.which("gcc")
    assert compiler is not None
    library = cluster.dir / "odd_files.so"
    source = Path(__file__).with_name("odd_files.c")
    command = [compiler, "-O1", "-shared", "-fPIC", "-o", str(library), str(source), "-ldl"]
    subprocess.run(command, check=True)
    privilege.give(library)
    flags = [cluster.dir / variable.lower() for variable in variables]
    cluster.server_env.update(LD_PRELOAD=str(library))
    cluster.server_env.update(zip(variables, map(str, flags), strict=True))
    return flags


def off(connection: Connection) -> None:
    connection.execute("SET pg_lookahead.heap_extend_size = 0")


def on(connection: Connection) -> None:
    connection.execute("RESET pg_lookahead.heap_extend_size")


CREATE = "CREATE TABLE {} (a int, b text)"

PARTED = """
CREATE TABLE filled (a int, b text) PARTITION BY HASH (a);
CREATE TABLE filled_0 PARTITION OF filled FOR VALUES WITH (MODULUS 2, REMAINDER 0);
CREATE TABLE filled_1 PARTITION OF filled FOR VALUES WITH (MODULUS 2, REMAINDER 1)
"""

LOADS_OF_ONE_TABLE = {
    "insert": f"{CREATE}; INSERT INTO {{}} SELECT * FROM source",
    "values": f"{CREATE}; INSERT INTO {{}} SELECT * FROM source LIMIT 50000;"
    " INSERT INTO {} VALUES (1, 'x'), (2, 'y'), (3, NULL)",
    "cte": f"{CREATE}; WITH new AS (INSERT INTO {{}} SELECT * FROM source RETURNING a)"
    " SELECT sum(a) FROM new",
    "on conflict": "CREATE TABLE {} (a int PRIMARY KEY, b text);"
    " INSERT INTO {} SELECT * FROM source ON CONFLICT DO NOTHING",
    "single rows": f"{CREATE}; DO $$BEGIN FOR i IN 1..30000 LOOP"
    " INSERT INTO {} VALUES (i, repeat('x', 200))@ END LOOP@ END$$",
    "copy": f"{CREATE}; COPY {{}} FROM '%s/source.copy'",
    "copy, a row at a time": "CREATE TABLE {} (a int, b text DEFAULT random()::text);"
    " COPY {} FROM '%s/source.copy'",
    "copy frozen": f"BEGIN; {CREATE}; COPY {{}} FROM '%s/source.copy' WITH (FREEZE); COMMIT",
    "ctas": "CREATE TABLE {} AS SELECT * FROM source",
    "select into": "SELECT * INTO {} FROM source",
    "unlogged": "CREATE UNLOGGED TABLE {} (a int, b text); INSERT INTO {} SELECT * FROM source",
    "tablespace": f"CREATE TABLE {{}} (a int, b text) TABLESPACE {ELSEWHERE};"
    " INSERT INTO {} SELECT * FROM source",
    "truncated": f"{CREATE}; INSERT INTO {{}} VALUES (1, 'x'); BEGIN; TRUNCATE {{}};"
    " INSERT INTO {} SELECT * FROM source; COMMIT",
    "update": f"{CREATE}; INSERT INTO {{}} SELECT * FROM source; UPDATE {{}} SET a = a + 1;"
    " VACUUM (FREEZE) {}; INSERT INTO {} SELECT * FROM source",
}


def load(connection: Connection, cluster: Cluster, statements: str, table: str) -> None:
    text = statements.replace("{}", table).replace("%s", str(cluster.dir))
    for statement in text.split(";"):
        connection.execute(statement.replace("@", ";"))


@contextmanager
def new_session(cluster: Cluster, allowed: Sequence[str] = ()) -> Iterator[Connection]:
    """A session without the tables of the test before, and a look at the server's log."""
    with LogWatch(cluster, allowed=allowed), connect(cluster) as connection:
        connection.execute("DROP TABLE IF EXISTS filled, plain, other CASCADE")
        yield connection
