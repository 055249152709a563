"""The PostgreSQL servers that pg_lookahead is built for and tested on.

A Server is an installation the tool may write to: the extension is installed
into it.  Four kinds exist:

    18-embedded              a whole 18 from PyPI; always to be had
    16-wheel                 a 16 from PyPI
    15-debian, 17-debian …   the distribution's, through a private copy
    17-assert, 18-release …  built from the distribution's source packages

`available()` is every server that is there without a download or a build,
and the embedded one.
"""

from __future__ import annotations

import os
import re
import subprocess
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from . import installs, paths, source_build
from .errors import LookaheadError, UsageError
from .start import COMMAND

MAJORS = (15, 16, 17, 18)
KINDS = ("assert", "release")


@dataclass(frozen=True)
class Server:
    """One installation of PostgreSQL that the extension can go into."""

    name: str
    major: int
    version: str
    pg_config: Path
    bindir: Path
    assertions: bool
    io_uring: bool

    @cached_property
    def settings(self) -> dict[str, str]:
        """What pg_config prints: PKGLIBDIR, CFLAGS, ..."""
        return read_pg_config(self.pg_config)

    @property
    def pkglibdir(self) -> Path:
        return Path(self.settings["PKGLIBDIR"])

    @property
    def sharedir(self) -> Path:
        return Path(self.settings["SHAREDIR"])

    @property
    def pgxs(self) -> Path:
        return Path(self.settings["PGXS"])

    @property
    def pg_regress(self) -> Path | None:
        return self._test_program("regress", "pg_regress")

    @property
    def pg_isolation_regress(self) -> Path | None:
        return self._test_program("isolation", "pg_isolation_regress")

    @property
    def build_tree(self) -> Path | None:
        """The tree this server was built in: where PostgreSQL's own tests are."""
        tree = paths.cache() / "build" / self.name
        return tree if (tree / "src" / "test" / "regress" / "pg_regress").exists() else None

    def _test_program(self, folder: str, name: str) -> Path | None:
        place = self.pgxs.parents[1] / "test" / folder / name
        return place if os.access(place, os.X_OK) else None


def read_pg_config(pg_config: Path) -> dict[str, str]:
    """Return every line that pg_config prints, by its name."""
    try:
        done = subprocess.run([str(pg_config)], capture_output=True, text=True, check=True)
    except (OSError, subprocess.CalledProcessError) as error:
        raise LookaheadError(f"could not run {pg_config}: {error}") from error
    lines = (line.partition(" = ") for line in done.stdout.splitlines())
    return {name.strip(): value for name, _, value in lines}


def from_pg_config(path: str | os.PathLike[str]) -> Server:
    """Return the server that this pg_config belongs to.

    An installation outside the cache folder is not ours to write to: it is
    copied into the cache first, and the copy is what is used.  The name is that
    of its folder in the cache.
    """
    pg_config = Path(path).absolute()
    if not os.access(pg_config, os.X_OK) or pg_config.is_dir():
        raise UsageError(f"{pg_config} is not a pg_config program")
    settings = read_pg_config(pg_config)
    found = re.match(r"PostgreSQL (\d+)(\S*)", settings.get("VERSION", ""))
    if not found:
        raise UsageError(f"{pg_config} is not a pg_config program")
    major = int(found[1])
    if major not in MAJORS:
        raise UsageError(
            f"{pg_config} belongs to PostgreSQL {found[1]}{found[2]};"
            f" pg_lookahead supports {MAJORS[0]} to {MAJORS[-1]}"
        )
    home = paths.folder("servers").resolve()
    if not pg_config.resolve().is_relative_to(home):
        pg_config = installs.private_copy(pg_config, major, settings)
        settings = read_pg_config(pg_config)
    # What is installed must not get into the original.
    for name in ("BINDIR", "PKGLIBDIR", "SHAREDIR"):
        if not Path(settings[name]).resolve().is_relative_to(home):
            raise LookaheadError(
                f"{pg_config} names {settings[name]}, which is not in {home}: cannot use a copy"
                " of this server"
            )
    headers = _configuration_header(Path(settings["INCLUDEDIR-SERVER"]))
    return Server(
        name=pg_config.resolve().relative_to(home).parts[0],
        major=major,
        version=found[1] + found[2],
        pg_config=pg_config,
        bindir=Path(settings["BINDIR"]),
        assertions="#define USE_ASSERT_CHECKING 1" in headers,
        io_uring="#define USE_LIBURING 1" in headers,
    )


def _configuration_header(folder: Path) -> str:
    # Some distributions have one pg_config.h per architecture.
    return "".join(file.read_text(errors="replace") for file in folder.glob("pg_config*.h"))


def embedded() -> Server:
    """Return the embedded 18; install its wheel if it is not in the cache."""
    return from_pg_config(installs.wheel(installs.EMBEDDED_18))


def wheel16(*, fetch: bool = False) -> Server | None:
    """Return the 16 from PyPI if it is in the cache, or can be fetched."""
    if not fetch and not installs.wheel_installed(installs.WHEEL_16):
        return None
    return from_pg_config(installs.wheel(installs.WHEEL_16))


def debian(major: int) -> Server | None:
    """Return the distribution's server of this major, if both halves are there.

    The server and its headers are two packages, and only one may be present.
    """
    bindir = Path(f"/usr/lib/postgresql/{major}/bin")
    pgxs = bindir.parent / "lib" / "pgxs"
    if not ((bindir / "pg_config").exists() and pgxs.is_dir() and (bindir / "postgres").exists()):
        return None
    return from_pg_config(bindir / "pg_config")


def source(major: int, kind: str) -> Server | None:
    """Return a server built here from its source package, if it is complete."""
    name = f"{major}-{kind}"
    place = paths.cache() / "servers" / name
    if not (place / source_build.COMPLETE).exists():
        return None
    return from_pg_config(place / "bin" / "pg_config")


def build_source(major: int, kind: str, log: Callable[[str], None]) -> Server:
    """Build a server from the distribution's source package, unless it is there."""
    there = source(major, kind)
    if there is None:
        source_build.build(major, kind, log)
        there = source(major, kind)
    if there is None:
        raise LookaheadError(f"the build of {major}-{kind} left no server behind")
    return there


def available() -> list[Server]:
    """Return every server that is at hand, and the embedded one, newest first.

    Without the embedded one, which may have to be fetched, the others will do.
    """
    found: list[Server | None] = []
    problem: LookaheadError | None = None
    try:
        found.append(embedded())
    except LookaheadError as error:
        problem = error
    for major in reversed(MAJORS):
        found.append(debian(major))
        found.extend(source(major, kind) for kind in KINDS)
    found.append(wheel16())
    servers = [server for server in found if server is not None]
    if problem is not None and not servers:
        raise problem
    return sorted(servers, key=lambda server: (-server.major, server.name != "18-embedded"))


def _known() -> list[str]:
    """The names that by_name() takes here; finding them out fetches nothing."""
    there = [debian(major) for major in MAJORS]
    there += [source(major, kind) for major in MAJORS for kind in KINDS]
    return sorted({"18-embedded", "16-wheel", *(server.name for server in there if server)})


def by_name(name: str) -> Server:
    """Return the server of this name, or that this pg_config belongs to.

    A server from a wheel is fetched; one from source has to be there.
    """
    if "/" in name:
        return from_pg_config(name)
    major, _, kind = name.partition("-")
    if name == "18-embedded":
        return embedded()
    found: Server | None = None
    if name == "16-wheel":
        found = wheel16(fetch=True)
    elif major.isdigit() and kind == "debian":
        found = debian(int(major))
        if found is None and int(major) in MAJORS:
            raise LookaheadError(
                f"PostgreSQL {major} is not installed:"
                f" apt-get install postgresql-{major} postgresql-server-dev-{major}"
            )
    elif major.isdigit() and kind in KINDS:
        found = source(int(major), kind)
        if found is None and int(major) in source_build.SUITES:
            raise LookaheadError(f"{name} is not built yet: {COMMAND} test --build-servers")
    if found is None:
        raise UsageError(f'there is no server "{name}"; there are: {", ".join(_known())}')
    return found
