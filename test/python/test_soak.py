"""Everything at once, with whatever settings, on a server that is killed again and again.

Sessions move money, load, delete, scan, build indexes, vacuum, rewrite and make and drop tables,
each with settings of look-ahead chosen at random.  Every load notes in the same transaction what
it brought, so a snapshot can be checked at any time, and by every kind of scan: the money is all
there, and each table has the rows that the notes say.  A standby replays all of it and answers
the same questions.

A life of the server ends in one of several ways.  After each the tables and indexes are looked
at by amcheck, and the checks are made again.

It lives a few short lives, on servers with assertions; for longer, and with another seed:

    LOOKAHEAD_SOAK_LIVES=40 LOOKAHEAD_SEED=7 ./lookahead test --server 17-assert \\
        --only python -k soak
"""

from __future__ import annotations

import os
import random
import signal
import threading
import time
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial
from typing import TypeVar

import psycopg
import pytest
from lookahead.cluster import Cluster
from lookahead.servers import Server
from psycopg.types.numeric import Int4

import crowd
from conftest import CONF, NewCluster
from crowd import Body
from standby_support import caught_up, standby_from
from support import (
    ELSEWHERE,
    END_OF_WAL,
    SEQUENTIAL_SCANS,
    Connection,
    LogWatch,
    connect,
    insist,
    need_extensions,
    nothing_pinned,
    rows,
    script,
    seed,
    settings,
    until,
    value,
)
from test_interrupts import has_crashed, wait_until_back

T = TypeVar("T")

LIVES = int(os.environ.get("LOOKAHEAD_SOAK_LIVES", "3"))
SECONDS = 8

# A life, and what is looked at after it, on a machine that has other things to do.
MOST_SECONDS = 240

pytestmark = [pytest.mark.thorough, pytest.mark.timeout(MOST_SECONDS * (LIVES + 1))]

ACCOUNTS = 8000

SETUP = f"""
CREATE TABLE account (id int PRIMARY KEY, branch int, balance bigint, pad text)
  WITH (fillfactor = 40);
INSERT INTO account SELECT i, i * 7919 % 500, 0, repeat('x', 100)
  FROM generate_series(1, {ACCOUNTS}) i;
CREATE INDEX account_branch ON account (branch) INCLUDE (balance);
CREATE INDEX account_balance ON account (balance);
CREATE INDEX account_point ON account USING gist (point(branch, id));
CREATE TABLE ledger (target text, batch bigint, rows int, PRIMARY KEY (target, batch));
CREATE SEQUENCE batches;
CREATE TABLE heap (batch bigint, n int, pad text);
CREATE INDEX heap_batch ON heap (batch, n);
CREATE INDEX heap_n ON heap USING hash (n);
CREATE TABLE bare (batch bigint, n int, pad text) WITH (fillfactor = 70);
CREATE TABLE parted (batch bigint, n int, pad text) PARTITION BY HASH (n);
CREATE TABLE parted_0 PARTITION OF parted FOR VALUES WITH (MODULUS 2, REMAINDER 0);
CREATE TABLE parted_1 PARTITION OF parted FOR VALUES WITH (MODULUS 2, REMAINDER 1);
CREATE INDEX parted_batch ON parted (batch);
VACUUM ANALYZE account
"""

TARGETS = ("heap", "bare", "parted")
TABLES = ("account", "ledger", "heap", "bare", "parted_0", "parted_1")


class OwnAnswer(Exception):
    """An index of a standby gives a wrong answer, without look-ahead, too; the table does not.

    Before an index that was built CONCURRENTLY is used the server waits for older snapshots,
    but not for those of standbys: there it lacks rows that were deleted meanwhile.
    """


# What others may do to a session here, with or without look-ahead.
ACCEPTED = (
    *crowd.ACCEPTED,
    OwnAnswer,
    psycopg.errors.QueryCanceled,
    psycopg.errors.SerializationFailure,
    psycopg.errors.UndefinedTable,
    psycopg.errors.UndefinedObject,
    psycopg.errors.DuplicateTable,
    psycopg.errors.DivisionByZero,
    psycopg.errors.ObjectNotInPrerequisiteState,
)

# What a life leaves in the log when it ends in this way.
CRASH = (
    "terminated by signal|terminating|the database system is"
    "|WARNING:  (autovacuum )?(worker|aborting)"
    f"|canceling|invalid record|{END_OF_WAL}|unexpected directory entry"
    "|replication terminated"
    "|could not (receive|send|open|connect|start WAL streaming)|background worker .* exited"
    "|conflict with recovery"
    "|there is already a transaction|there is no transaction|skipping reindex of invalid index"
    "|cannot reindex invalid index"
)

INDEXES = {
    "more_n": "heap (n)",
    "more_batch": "bare (batch, n)",
    "more_pad": "heap (pad, n)",
    "more_brin": "bare USING brin (batch)",
    "more_gin": "bare USING gin ((ARRAY[n, n + 1]))",
}


def chosen(connection: Connection, choice: random.Random) -> None:
    """Settings of look-ahead, of the planner, and limits, all by chance."""
    major = connection.info.server_version // 10000
    methods = ["auto", "advice", "worker", "none"] + (["aio"] if major >= 18 else [])
    settings(
        connection,
        pg_lookahead__enabled=choice.choice(("on", "on", "on", "off")),
        pg_lookahead__method=choice.choice(methods),
        pg_lookahead__start_after=choice.choice((0, 0, 4, 100)),
        pg_lookahead__max_distance=choice.choice((8, 64, 256, 1024)),
        pg_lookahead__heap_extend_size=choice.choice(("0", "64kB", "4MB", "4MB")),
        pg_lookahead__index_extend_size=choice.choice(("0", "4MB")),
        pg_lookahead__write_combine_size=choice.choice(("0", "32kB", "256kB")),
        pg_lookahead__io_concurrency=choice.choice((1, 16, 256)),
        pg_lookahead__parallel_chunk_size=choice.choice((0, 1, 64)),
        pg_lookahead__leafscan=choice.choice(("on", "on", "off")),
        pg_lookahead__bitmapscan=choice.choice(("on", "on", "off")),
        pg_lookahead__min_table_size="8MB",
        enable_seqscan=choice.choice(("on", "off")),
        enable_bitmapscan=choice.choice(("on", "off")),
        enable_indexscan=choice.choice(("on", "off")),
        enable_indexonlyscan=choice.choice(("on", "off")),
        enable_sort=choice.choice(("on", "off")),
        max_parallel_workers_per_gather=choice.choice((0, 0, 2)),
        min_parallel_table_scan_size=0,
        min_parallel_index_scan_size=0,
        parallel_setup_cost=0,
        parallel_tuple_cost=0,
        cursor_tuple_fraction=choice.choice((0.1, 1)),
        statement_timeout=choice.choice(("60s", "60s", "60s", "300ms")),
    )


def transfer(connection: Connection, choice: random.Random) -> None:
    """Move money, sometimes between many accounts, sometimes in vain."""
    low = choice.randrange(ACCOUNTS)
    width = choice.choice((1, 1, 1, 200))
    with connection.transaction(force_rollback=choice.random() < 0.1):
        connection.execute("SET LOCAL lock_timeout = '500ms'")
        for sign, start in ((1, low), (-1, low + width)):
            with connection.transaction():
                connection.execute(
                    "UPDATE account SET balance = balance + %s"
                    " WHERE id = ANY (SELECT 1 + (g + %s) %% %s FROM generate_series(1, %s) g)",
                    (sign * 7, start, ACCOUNTS, Int4(width)),
                )


def load(connection: Connection, choice: random.Random) -> None:
    """Bring a batch of rows to a table, and note it."""
    target = choice.choice(TARGETS)
    count = choice.choice((1, 20, 3000, 20000))
    batch = value(connection, "SELECT nextval('batches')")
    source = (
        f"SELECT {batch}, g, repeat('y', {choice.choice((10, 200, 900))})"
        f" FROM generate_series(1, {count}) g"
    )
    how = choice.choice(("insert", "copy", "rows", "create", "in two"))
    connection.execute("BEGIN")
    if how == "insert":
        connection.execute(f"INSERT INTO {target} {source}")
    elif how == "copy":
        with connection.cursor().copy(f"COPY {target} FROM STDIN") as copy:
            for g in range(1, count + 1):
                copy.write_row((batch, g, "z" * 150))
    elif how == "rows":
        count = min(count, 50)
        for g in range(1, count + 1):
            connection.execute(f"INSERT INTO {target} VALUES (%s, %s, 'row')", (batch, g))
    elif how == "create":
        connection.execute(f"CREATE TEMP TABLE mine ON COMMIT DROP AS {source}")
        connection.execute(f"INSERT INTO {target} SELECT * FROM mine")
    else:
        with suppress(psycopg.errors.DivisionByZero), connection.transaction():
            connection.execute(f"INSERT INTO {target} {source}")
            connection.execute("SELECT 1 / 0")
        connection.execute(f"INSERT INTO {target} {source}")
    connection.execute("INSERT INTO ledger VALUES (%s, %s, %s)", (target, batch, count))
    end = choice.choice(("COMMIT", "COMMIT", "COMMIT", "ROLLBACK", "PREPARE"))
    if end == "PREPARE" and how != "create":
        # Whoever finds it after a crash ends it; see clear().
        connection.execute(f"PREPARE TRANSACTION '{batch}'")
        time.sleep(choice.choice((0, 0.2)))
        connection.execute(f"{choice.choice(('COMMIT', 'ROLLBACK'))} PREPARED '{batch}'")
    else:
        connection.execute("ROLLBACK" if end == "ROLLBACK" else "COMMIT")


def delete(connection: Connection, choice: random.Random) -> None:
    """Take batches away again, most of what there is."""
    target = choice.choice(TARGETS)
    connection.execute("BEGIN")
    connection.execute("SET LOCAL lock_timeout = '500ms'")
    # In the order of the key: two such sessions do not wait for each other.
    found = connection.execute(
        "SELECT batch FROM ledger WHERE target = %s AND random() < 0.4 ORDER BY batch FOR UPDATE",
        (target,),
    ).fetchall()
    for (batch,) in found:
        connection.execute(f"DELETE FROM {target} WHERE batch = %s", (batch,))
        connection.execute("DELETE FROM ledger WHERE target = %s AND batch = %s", (target, batch))
    connection.execute("COMMIT")


def maintain(connection: Connection, choice: random.Random) -> None:
    settings(connection, lock_timeout="2s", statement_timeout="60s")
    table = choice.choice(("account", *TARGETS))
    single = choice.choice(TABLES)
    connection.execute(
        choice.choice(
            (
                f"VACUUM {table}",
                f"VACUUM (FREEZE, ANALYZE) {table}",
                f"VACUUM (PARALLEL 2, INDEX_CLEANUP on) {table}",
                f"VACUUM FULL {single}",
                f"ANALYZE {table}",
                "CLUSTER account USING account_branch",
                f"REINDEX TABLE CONCURRENTLY {table}",
                f"REINDEX TABLE {single}",
                f"ALTER TABLE {single} SET TABLESPACE {ELSEWHERE}",
                f"ALTER TABLE {single} SET TABLESPACE pg_default",
                "CHECKPOINT",
                "DISCARD ALL",
            )
        )
    )


def define(connection: Connection, choice: random.Random) -> None:
    """Build and drop indexes; make, fill and drop tables."""
    settings(connection, lock_timeout="2s", statement_timeout="60s")
    name = choice.choice(list(INDEXES))
    kind = choice.choice(("", "CONCURRENTLY"))
    what = choice.randrange(4)
    if what == 0:
        connection.execute(f"DROP INDEX IF EXISTS {name}")
    elif what == 1:
        table, _, rest = INDEXES[name].partition(" ")
        connection.execute(f"DROP INDEX IF EXISTS {name}")
        connection.execute(f"CREATE INDEX {kind} {name} ON {table} {rest}")
    else:
        made = f"made_{choice.randrange(3)}"
        unlogged = choice.choice(("", "UNLOGGED"))
        connection.execute(f"DROP TABLE IF EXISTS {made}")
        connection.execute(
            f"CREATE {unlogged} TABLE {made} AS SELECT * FROM account WHERE branch < 300"
        )
        if what == 3:
            connection.execute("BEGIN")
            connection.execute(f"TRUNCATE {made}")
            connection.execute(f"INSERT INTO {made} SELECT * FROM account")
            connection.execute(choice.choice(("COMMIT", "ROLLBACK")))


def in_pieces(connection: Connection, query: str, choice: random.Random) -> int:
    """Count what a query returns, through a cursor."""
    connection.execute(f"DECLARE c CURSOR FOR {query}")
    found = 0
    while some := len(rows(connection, f"FETCH {choice.choice((7, 200, 5000))} FROM c")):
        found += some
    connection.execute("CLOSE c")
    return found


def compare(connection: Connection, ask: Callable[[], T], expected: T, what: str) -> None:
    """Fail if an answer is not what is expected because of look-ahead."""
    found = ask()
    if found != expected and value(connection, "SELECT pg_is_in_recovery()"):
        settings(connection, pg_lookahead__enabled="off")
        again = ask()
        settings(connection, **SEQUENTIAL_SCANS)
        if again == found and ask() == expected:
            raise OwnAnswer(what)
    assert found == expected, (what, found)


def check(connection: Connection, choice: random.Random) -> None:
    """In one snapshot all money and all rows are there, whatever the plan."""
    connection.execute("BEGIN ISOLATION LEVEL REPEATABLE READ")
    money = choice.choice(
        (
            "SELECT sum(balance), count(*) FROM account",
            "SELECT sum(balance), count(*) FROM account WHERE branch >= 0",
            "SELECT sum(balance), count(*) FROM account WHERE branch >= 0 AND pad <> ''",
            "SELECT sum(balance), count(*) FROM account WHERE id > 0 AND pad <> ''",
            "SELECT sum(balance), count(*) FROM account WHERE balance > -1000000000000",
            "SELECT sum(balance), count(*) FROM account"
            " WHERE point(branch, id) <@ box '((-1,-1),(501,9001))'",
            "SELECT sum(balance), count(*) FROM"
            " (SELECT balance FROM account WHERE pad <> '' ORDER BY branch DESC) s",
        )
    )
    compare(connection, lambda: rows(connection, money), [(0, ACCOUNTS)], money)
    for target in choice.sample(TARGETS, 2):
        noted = value(
            connection, "SELECT coalesce(sum(rows), 0) FROM ledger WHERE target = %s", (target,)
        )
        condition = choice.choice(("", "WHERE batch >= 0", "WHERE batch >= 0 AND pad <> ''"))
        count = f"SELECT count(*) FROM {target} {condition}"
        compare(connection, partial(value, connection, count), noted, count)
        query = f"SELECT batch, pad FROM {target} {condition} ORDER BY batch"
        if choice.random() < 0.3:
            compare(connection, partial(in_pieces, connection, query, choice), noted, query)
        wrong = (
            f"SELECT batch, l.rows, count(t.n), count(DISTINCT t.n) FROM ledger l"
            f" LEFT JOIN {target} t USING (batch) WHERE target = '{target}'"
            " GROUP BY 1, 2 HAVING count(t.n) <> l.rows OR count(DISTINCT t.n) <> l.rows"
        )
        compare(connection, partial(rows, connection, wrong), [], wrong)
    connection.execute("COMMIT")


STANDBY = "check the standby"

# How many sessions do each.
WORK: Sequence[tuple[str, Body, int]] = (
    ("transfer", transfer, 2),
    ("load", load, 3),
    ("delete", delete, 1),
    ("maintain", maintain, 1),
    ("define", define, 1),
    ("check", check, 2),
)


class Life:
    """Sessions at work on a server until they are told to stop, or it is gone."""

    def __init__(self, cluster: Cluster, standby: Cluster, name: str) -> None:
        self.is_over = threading.Event()
        self.may_break = threading.Event()
        self.done: Counter[str] = Counter()
        self.refused: Counter[str] = Counter()
        self.failures: list[str] = []
        work = [(what, body, cluster) for what, body, many in WORK for _ in range(many)]
        work.append((STANDBY, check, standby))
        self.threads = [
            threading.Thread(target=self._work, args=(what, body, at, f"{seed()} {name} {i}"))
            for i, (what, body, at) in enumerate(work)
        ]
        for thread in self.threads:
            thread.start()

    def _work(self, what: str, body: Body, at: Cluster, key: str) -> None:
        choice = random.Random(key)
        while not self.is_over.is_set():
            try:
                with connect(at, connect_timeout=60) as connection:
                    for _ in range(choice.randrange(1, 8)):
                        if self.is_over.is_set():
                            break
                        self._once(what, body, connection, choice)
            except psycopg.OperationalError as error:
                # The server is going, or coming back; and a standby ends sessions that are
                # in the way of what it replays.
                if not self.may_break.is_set() and what != STANDBY:
                    self.failures.append(f"{what}: {error!r}")
                    return
                time.sleep(0.1)
            except BaseException as error:
                self.failures.append(f"{what}: {error!r}")
                return

    def _once(self, what: str, body: Body, connection: Connection, choice: random.Random) -> None:
        chosen(connection, choice)
        try:
            body(connection, choice)
            self.done[what] += 1
        except ACCEPTED as error:
            self.refused[type(error).__name__] += 1
        # A limit that was meant for the body may end these, too.
        insist(connection, "ROLLBACK")
        insist(connection, "SET statement_timeout = 0")

    def has_done_all(self) -> bool:
        return all(self.done[what] > 0 for what, _, _ in WORK)

    def end(self) -> None:
        self.is_over.set()
        for thread in self.threads:
            thread.join(120)
            assert not thread.is_alive()
        assert not self.failures, "\n".join(self.failures)


def kill_one(cluster: Cluster, log: LogWatch, kind: str) -> None:
    """Kill one process of the server; it goes down with it, and comes back by itself.

    One that has just ended, or is about to, takes nobody with it: then it is another's turn.
    """
    crashes = log.text().count("reinitializing")
    for _ in range(20):
        try:
            with connect(cluster) as connection:
                found = rows(
                    connection,
                    "SELECT pid FROM pg_stat_activity WHERE pid <> pg_backend_pid()"
                    f" AND {kind} ORDER BY random() LIMIT 1",
                )
        except psycopg.OperationalError:
            # It was noticed late.
            break
        if not found:
            return
        with suppress(ProcessLookupError):
            os.kill(found[0][0], signal.SIGKILL)
            if has_crashed(log, crashes + 1, seconds=30):
                break
    wait_until_back(cluster, log, crashes + 1)


def finish(cluster: Cluster, log: LogWatch, life: Life, how: str) -> None:
    """End a life of the server, with its sessions in the middle of their work."""
    if how == "idle":
        life.end()
    life.may_break.set()
    if how == "kill a session":
        kill_one(cluster, log, "backend_type = 'client backend' AND state = 'active'")
    elif how == "kill an I/O worker":
        kill_one(cluster, log, "backend_type = 'pg_lookahead io worker'")
    elif how in ("fast", "immediate"):
        cluster.stop(how)
    if how != "idle":
        life.end()


def sound(cluster: Cluster) -> None:
    """What amcheck, pins and the checks say of a server at rest."""
    with connect(cluster) as connection:
        settings(connection, statement_timeout="0")
        for table in TABLES:
            assert rows(connection, f"SELECT * FROM verify_heapam('{table}')") == [], table
        connection.execute(
            "SELECT bt_index_check(indexrelid, true) FROM pg_index i"
            " JOIN pg_class c ON c.oid = indexrelid JOIN pg_am a ON a.oid = relam"
            " WHERE amname = 'btree' AND indisvalid AND c.oid >= 16384"
            " AND c.relpersistence <> 't' AND c.relkind = 'i'"
        )
        nothing_pinned(connection)
        for turn in range(6):
            choice = random.Random(turn)
            chosen(connection, choice)
            settings(connection, statement_timeout="0")
            check(connection, choice)


def looked_ahead(cluster: Cluster) -> Counter[str]:
    """What was read and made ahead since the server started, of each kind."""
    with connect(cluster) as connection:
        issued = rows(
            connection,
            "SELECT coalesce(sum(blocks_issued) FILTER (WHERE relkind = 'i'), 0),"
            " coalesce(sum(blocks_issued) FILTER (WHERE relkind = 'r'), 0)"
            " FROM pg_stat_lookahead JOIN pg_class ON pg_class.oid = relid",
        )[0]
        made = "SELECT pages_added FROM pg_lookahead_extend() WHERE scope = 'server'"
        return Counter(
            leaf_pages=int(issued[0]), table_blocks=int(issued[1]), space=value(connection, made)
        )


def clear(connection: Connection) -> None:
    """End what a crash has left half done, and keep the tables small."""
    for (name,) in rows(connection, "SELECT gid FROM pg_prepared_xacts ORDER BY gid"):
        connection.execute(f"{('COMMIT', 'ROLLBACK')[int(name) % 2]} PREPARED '{name}'")
    for name in INDEXES:
        connection.execute(f"DROP INDEX IF EXISTS {name}")
    for table in TARGETS:
        if value(connection, f"SELECT count(*) FROM {table}") > 150_000:
            connection.execute(f"TRUNCATE {table}")
            connection.execute("DELETE FROM ledger WHERE target = %s", (table,))
    left = rows(
        connection,
        "SELECT indexrelid::regclass FROM pg_index WHERE NOT indisvalid AND indexrelid >= 16384",
    )
    for (name,) in left:
        connection.execute(f"DROP INDEX IF EXISTS {name}")


# By turns: with so few that a process has hardly a share no space is made ahead from 16 on.
BUFFERS = ("16MB", "2MB")


def conf_of_life(server: Server, choice: random.Random, number: int) -> dict[str, str]:
    """The settings of the number-th start of the server."""
    conf = {
        **CONF,
        "shared_buffers": BUFFERS[number % len(BUFFERS)],
        "max_connections": "30",
        "wal_level": "replica",
        "max_wal_senders": "5",
        "max_prepared_transactions": "10",
        "wal_keep_size": "1GB",
        "autovacuum": choice.choice(("on", "off")),
        "autovacuum_naptime": "1s",
        "log_error_verbosity": "verbose",
        "deadlock_timeout": "200ms",
        "pg_lookahead.io_workers": choice.choice(("1", "4")),
        "pg_lookahead.io_batch_size": choice.choice(("8kB", "128kB", "256kB")),
        "pg_lookahead.max_requests_per_worker": choice.choice(("16", "256")),
        "pg_lookahead.protect_time": choice.choice(("10ms", "3s")),
        "pg_lookahead.ring_size": choice.choice(("1MB", "16MB")),
        "bgwriter_lru_maxpages": choice.choice(("0", "100")),
        "checkpoint_timeout": choice.choice(("30s", "1h")),
    }
    if server.major >= 18:
        methods = ["worker", "sync"] + (["io_uring"] if server.io_uring else [])
        conf["io_method"] = choice.choice(methods)
        conf["io_max_concurrency"] = choice.choice(("16", "64"))
    return conf


ENDS = ("kill a session", "immediate", "kill an I/O worker", "fast", "idle")


def test_soak(own_cluster: NewCluster, server: Server) -> None:
    choice = random.Random(seed())
    starts = 0
    conf = conf_of_life(server, choice, starts)
    primary = own_cluster(conf)
    need_extensions(primary, "amcheck", "pg_buffercache")
    with connect(primary) as connection:
        script(connection, SETUP)
    done: Counter[str] = Counter()
    ahead: Counter[str] = Counter()
    standby = Cluster(server, conf={**conf, "hot_standby": "on", "hot_standby_feedback": "on"})
    log = LogWatch(primary, [CRASH])
    with standby_from(primary, standby), log, LogWatch(standby, [CRASH]):
        for turn in range(LIVES):
            how = ENDS[turn % len(ENDS)]
            life = Life(primary, standby, f"life {turn}")
            time.sleep(SECONDS)
            # On a busy machine until each kind of work was done once.
            end = time.monotonic() + 60
            while not life.has_done_all() and not life.failures and time.monotonic() < end:
                time.sleep(0.1)
            ahead += looked_ahead(primary)
            finish(primary, log, life, how)
            done += life.done
            print(
                f"life {turn}: {how}, {dict(life.done)}, refused {dict(life.refused)}", flush=True
            )
            if how in ("fast", "immediate"):
                starts += 1
                primary.configure(conf_of_life(server, choice, starts))
                primary.start()
            with connect(primary) as connection:
                until(connection, "NOT pg_is_in_recovery()")
                settings(connection, statement_timeout="0")
                clear(connection)
            sound(primary)
            caught_up(primary, standby)
    assert all(done[what] > 0 for what, _, _ in WORK), done
    assert all(ahead[what] > 0 for what in ("leaf_pages", "table_blocks", "space")), ahead
