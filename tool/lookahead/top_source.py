"""Where `lookahead top` gets its samples from: a server that may go away.

What a server has is found out first, without an error, and looked at again
from time to time: a question that fails is an entry in the server's log, and
this tool asks every second.
"""

from __future__ import annotations

import time
from datetime import datetime
from functools import cache
from pathlib import Path
from typing import Any

import psycopg
from psycopg import sql

from .doctor_commands import quote_identifier
from .errors import LookaheadError
from .start import COMMAND
from .top_sample import (
    OWNERS,
    RELATIONS,
    SERVICE,
    SHOWS,
    Availability,
    Missing,
    Part,
    Right,
    Row,
    Sample,
    Server,
    availability,
)
from .visit import Connection, clean, connect, take_care

SQL_FOLDER = Path(__file__).parent / "sql"

# Seconds between two looks at what the server has.
PROBE_SECONDS = 10

# A server that takes longer to answer is shown as one that cannot.
PATIENCE_SECONDS = 5


class Unusable(LookaheadError):
    """There is a server, but no extension that works in this database."""


@cache
def load(name: str) -> str:
    return (SQL_FOLDER / f"top_{name}.sql").read_text()


def in_one_line(error: BaseException) -> str:
    return clean(" ".join(str(error).split()))


class Source:
    """Samples of one database; reconnects when the server was away."""

    def __init__(self, dsn: str | None) -> None:
        self._dsn = dsn or ""
        self._connection: Connection | None = None
        self._connections = 0
        self._probed = 0.0
        self._schema = sql.SQL("")
        self._server: Server | None = None
        self._available = Availability()

    def open(self) -> None:
        """Connect; raise Unusable, or psycopg.Error without a connection."""
        self._connection = connect(self._dsn, "lookahead top")
        self._connections += 1
        self._probe(self._connection)

    def close(self) -> None:
        if self._connection is not None:
            self._connection.close()
            self._connection = None

    def look(self) -> Sample:
        """Return what there is now; no error of the server's ends this."""
        was_open = self._connection is not None
        try:
            return self._look()
        except (psycopg.Error, Unusable) as error:
            self.close()
            if not was_open:
                return self._away(error)
        # It may have been back for long.
        try:
            return self._look()
        except (psycopg.Error, Unusable) as error:
            self.close()
            return self._away(error)

    def _away(self, error: BaseException) -> Sample:
        text = in_one_line(error)
        if not isinstance(error, Unusable):
            text = f"the server is away: {text}"
        return Sample(time=_now(), connection=self._connections, away=text)

    def _look(self) -> Sample:
        if self._connection is None:
            self.open()
        connection = self._connection
        assert connection is not None
        if time.monotonic() >= self._probed + PROBE_SECONDS:
            self._probe(connection)
        service = self._ask(connection, SERVICE)
        owners = self._ask(connection, OWNERS)
        relations = self._ask(connection, RELATIONS)
        return Sample(
            time=_now(),
            connection=self._connections,
            server=self._server,
            missing=tuple(self._available.missing),
            status=service["status"] if service else None,
            workers=_part(service),
            owners=_part(owners),
            relations=_part(relations),
        )

    def _probe(self, connection: Connection) -> None:
        """Find out what there is to be asked."""
        self._probed = time.monotonic()
        server = _one(_asked(connection, load("server")))
        assert server
        schema = server.pop("extension_schema")
        available = server.pop("available_version")
        if server.pop("extension_version") is None:
            raise Unusable(_no_extension(server["database"], available))
        # The server has quoted it.
        self._schema = sql.SQL(schema)
        try:
            library = _one(_asked(connection, self._query("library")))
        except psycopg.DatabaseError as error:
            if connection.closed:
                raise
            raise Unusable(
                f"the library of pg_lookahead cannot be used: {in_one_line(error)}\n"
                f"Hint: {COMMAND} doctor says what is wrong."
            ) from None
        assert library
        rights = _asked(connection, load("rights"), {"schema": schema})
        self._server = Server(**server, **library)
        self._available = availability(
            self._server, {row["part"]: Right(row["there"], row["allowed"]) for row in rights}
        )

    def _query(self, name: str) -> sql.Composed:
        return sql.SQL(load(name)).format(schema=self._schema)

    def _ask(self, connection: Connection, part: str) -> Row | None:
        """Return one part, or None if the server does not have or give it."""
        if not self._available.has(part):
            return None
        try:
            return _one(_asked(connection, self._query(part)))
        except psycopg.DatabaseError as error:
            if connection.closed:
                raise
            self._available.missing.append(refused(part, error))
            return None


def _asked(
    connection: Connection, query: str | sql.Composed, values: dict[str, Any] | None = None
) -> list[Row]:
    with connection.transaction():
        take_care(connection, PATIENCE_SECONDS)
        return connection.execute(query, values).fetchall()


def _one(rows: list[Row]) -> Row | None:
    return rows[0] if rows else None


def refused(part: str, error: psycopg.Error) -> Missing:
    """Say that the server has answered with an error, until it is probed again."""
    message = error.diag.message_primary or in_one_line(error)
    hint = error.diag.message_hint or ""
    if "could not find function" in message:
        hint = "The server runs an older library than is installed: restart it."
    return Missing((part,), f"could not get {SHOWS[part]}: {message}", hint)


def _no_extension(database: str, available: str | None) -> str:
    text = f"the extension pg_lookahead is not created in database {quote_identifier(database)}\n"
    if available is None:
        return text + (
            "Hint: it is not installed on this server; see the README on how to build and"
            " install it."
        )
    return text + (
        "Hint: CREATE EXTENSION pg_lookahead; there, or name another database: "
        f"{COMMAND} top 'dbname=…'"
    )


def _part(row: Row | None) -> Part | None:
    return Part(row["at"], row["rows"]) if row else None


def _now() -> str:
    return datetime.now().astimezone().isoformat(timespec="milliseconds")
