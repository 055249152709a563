"""Connections of `lookahead doctor` and `lookahead top`: to servers of others.

Whatever their encoding is, and whatever the user's own variables and service
files say.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import psycopg
from psycopg.adapt import Buffer, Loader
from psycopg.conninfo import conninfo_to_dict
from psycopg.rows import dict_row

from .start import COMMAND

Row = dict[str, Any]
Connection = psycopg.Connection[Row]

# A machine that does not answer any more is given up after this many seconds,
# and milliseconds.
DEFAULTS = {"connect_timeout": "10", "tcp_user_timeout": "10000"}
# What libpq would take from here, if we did not say it.
VARIABLES = {"connect_timeout": "PGCONNECT_TIMEOUT", "application_name": "PGAPPNAME"}

CAUTION = (Path(__file__).parent / "sql" / "visit_session.sql").read_text()

TEXT_TYPES = ("text", "name", "varchar", "bpchar", '"char"')


def how_to_connect(command: str) -> str:
    """Return what to say when there is no connection."""
    return (
        f"Hint: name the server, the role and the database: {COMMAND} {command}"
        " 'host=… user=… dbname=…'.\n"
        "A password is not asked for, and not for the command line, where others see it: put it"
        " into ~/.pgpass,\na service file or PGPASSWORD.\n"
        'Where roles are known by the name of the system\'s user ("peer"), run it as that user,'
        f" from a\nfolder that it may read: sudo -u postgres {COMMAND} {command}"
    )


class AnyText(Loader):
    """Text as text, also where a database does not say in which encoding it is."""

    def load(self, data: Buffer) -> str:
        return bytes(data).decode("utf-8", errors="replace")


def connect(dsn: str | None, name: str) -> Connection:
    """Connect under a name of ours, unless the user gives one; may raise psycopg.Error."""
    given = conninfo_to_dict(dsn or "")
    options: dict[str, Any] = {**DEFAULTS, "application_name": name}
    for option, variable in VARIABLES.items():
        if variable in os.environ:
            del options[option]
    connection = psycopg.connect(
        autocommit=True,
        row_factory=dict_row,
        **{**options, **given, "client_encoding": "UTF8"},
    )
    if connection.info.parameter_status("server_encoding") == "SQL_ASCII":
        # The server would refuse to convert what it does not know.
        connection.execute("SET client_encoding = 'SQL_ASCII'")
    for kind in TEXT_TYPES:
        connection.adapters.register_loader(kind, AnyText)
    # A plan that outlives ALTER EXTENSION would fail, and poolers keep none.
    connection.prepare_threshold = None
    return connection


def take_care(connection: psycopg.Connection[Any], seconds: int) -> None:
    """Set what a look at somebody's server needs, for the transaction that is open."""
    connection.execute(CAUTION, (f"{seconds}s",))


def clean(text: str) -> str:
    """Replace what would control the terminal: names and queries may hold anything."""
    return "".join(c if c.isprintable() else "?" for c in text)


def clean_lines(error: BaseException) -> str:
    """The same of the lines of a message, which a server may have written."""
    return "\n".join(clean(line.expandtabs()) for line in str(error).strip().splitlines())
