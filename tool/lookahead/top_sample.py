"""What `lookahead top` sees at one moment, and what is missing there.

A Sample is plain data and can be written to JSON and read back: tests are made
of stored ones.  Counters are as the server has them, from its start on; what
happened between two samples is for top_rates.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

from .doctor_commands import LIBRARY, alter_list, quote_identifier
from .doctor_facts import words

Row = dict[str, Any]

# What can be there or not, each for reasons of its own.
SERVICE = "service"
OWNERS = "owners"
RELATIONS = "relations"
PARTS = (SERVICE, OWNERS, RELATIONS)

SHOWS = {
    SERVICE: "the I/O service and its workers",
    OWNERS: "what is being looked ahead right now",
    RELATIONS: "the busiest relations",
}

# The first version whose own sequential scans, VACUUM and so on read ahead.
STREAMING_MAJOR = 18


@dataclass(frozen=True)
class Missing:
    """Parts that cannot be shown, why, and what would change that."""

    parts: tuple[str, ...]
    reason: str
    hint: str = ""
    commands: tuple[str, ...] = ()


@dataclass(frozen=True)
class Right:
    """Whether the SQL objects of one part exist, and may be read."""

    there: bool = True
    allowed: bool = True


@dataclass(frozen=True)
class Server:
    """What changes only with a restart, an ALTER or a reload."""

    version_num: int
    version: str
    started: str
    database: str
    username: str
    block_size: int
    library_version: str
    preloaded: bool
    method: str
    reason: str
    io_workers: int | None = None
    # None where this user may not see it.
    preload_libraries: str | None = None

    @property
    def has_service(self) -> bool:
        return self.preloaded and bool(self.io_workers)


@dataclass(frozen=True)
class Part:
    """Rows, and the server's clock when it made them, in seconds."""

    at: float
    rows: list[Row]


@dataclass(frozen=True)
class Sample:
    """One look at the server; without a server it says why there is none."""

    time: str
    # Counters can be compared only within one connection: a server that
    # restarts, or that recovers from a crash, begins them anew.
    connection: int = 0
    away: str | None = None
    server: Server | None = None
    missing: tuple[Missing, ...] = ()
    status: Row | None = None
    workers: Part | None = None
    owners: Part | None = None
    relations: Part | None = None


def to_json(sample: Sample) -> Row:
    return asdict(sample)


def from_json(data: Mapping[str, Any]) -> Sample:
    """Return the sample that to_json() was given."""
    found = dict(data)
    for name in ("workers", "owners", "relations"):
        found[name] = Part(**data[name]) if data.get(name) else None
    found["server"] = Server(**data["server"]) if data.get("server") else None
    found["missing"] = tuple(
        Missing(tuple(m["parts"]), m["reason"], m["hint"], tuple(m["commands"]))
        for m in data.get("missing", ())
    )
    return Sample(**found)


@dataclass
class Availability:
    """What of a server can be asked; asking for the rest would only fill its log."""

    missing: list[Missing] = field(default_factory=list)

    def has(self, part: str) -> bool:
        return not any(part in missing.parts for missing in self.missing)


def availability(server: Server, rights: Mapping[str, Right]) -> Availability:
    """Say what cannot be shown here, the most basic reason first."""
    found = Availability()
    for check in (_not_preloaded, _no_service, _outdated, _not_allowed):
        found.missing += list(check(server, rights, found))
    return found


def _left(found: Availability) -> tuple[str, ...]:
    return tuple(part for part in PARTS if found.has(part))


def _not_preloaded(
    server: Server, rights: Mapping[str, Right], found: Availability
) -> Iterator[Missing]:
    if server.preloaded:
        return
    commands: tuple[str, ...] = ()
    if server.preload_libraries is not None:
        libraries = [word for word in words(server.preload_libraries) if word != LIBRARY]
        commands = (alter_list("shared_preload_libraries", [*libraries, LIBRARY]),)
    yield Missing(
        PARTS,
        "the library is not preloaded: no I/O service, and no counters of other sessions",
        "Add pg_lookahead to shared_preload_libraries and restart the server.",
        commands,
    )


def _no_service(
    server: Server, rights: Mapping[str, Right], found: Availability
) -> Iterator[Missing]:
    if not server.preloaded or server.has_service:
        return
    if server.io_workers is None:
        yield Missing(
            (SERVICE, OWNERS),
            f"the library that the server has loaded ({server.library_version}) has no I/O service",
            "Install the current version and restart the server.",
        )
        return
    hint = "Set it above 0 and restart the server."
    if server.version_num // 10000 >= STREAMING_MAJOR:
        hint = (
            "This server reads ahead in sequential scans by itself. For method worker,"
            " set it above 0 and restart the server."
        )
    yield Missing(
        (SERVICE, OWNERS),
        "pg_lookahead.io_workers is 0: the server has no I/O service",
        hint,
        ("ALTER SYSTEM SET pg_lookahead.io_workers = 2;",),
    )


def _outdated(
    server: Server, rights: Mapping[str, Right], found: Availability
) -> Iterator[Missing]:
    parts = tuple(part for part in _left(found) if not rights.get(part, Right()).there)
    if parts:
        yield Missing(
            parts,
            f"the extension in database {quote_identifier(server.database)} is of an older version",
            "Update it.",
            ("ALTER EXTENSION pg_lookahead UPDATE;",),
        )


def _not_allowed(
    server: Server, rights: Mapping[str, Right], found: Availability
) -> Iterator[Missing]:
    parts = tuple(part for part in _left(found) if not rights.get(part, Right()).allowed)
    if parts:
        role = quote_identifier(server.username)
        yield Missing(
            parts,
            f"user {role} may not read the counters of other sessions",
            "Make it a member of pg_monitor.",
            (f"GRANT pg_monitor TO {role};",),
        )
