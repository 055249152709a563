"""Building the extension for one server and installing it there.

The sources are copied into the cache first: a repository has one set of
object files, but there are many servers, and the repository may be read-only.
"""

from __future__ import annotations

import contextlib
import filecmp
import hashlib
import os
import re
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

from . import packages, paths
from .errors import LookaheadError, MissingPackages
from .servers import Server

# What of the repository goes into a build.
PARTS = ("Makefile", "META.json", "*.control", "sql/**/*.sql", "src/**/*.[ch]", "test/modules/**/*")

# gcc 14 knows this one, and some servers were built with it.
UNKNOWN_TO_OLDER_COMPILERS = ("-Wmissing-variable-declarations",)

# -Wextra finds these in PostgreSQL's own headers and in what its API asks for
# (fixed signatures, PG_MODULE_MAGIC's short initialiser, int against Size).
WARNINGS = (
    "-Wall", "-Wextra", "-Wno-unused-parameter", "-Wno-sign-compare",
    "-Wno-missing-field-initializers",
)  # fmt: skip

# Which package has a header, when PostgreSQL's headers ask for it.
HEADER_PACKAGES = {
    "gssapi": "libkrb5-dev",
    "openssl": "libssl-dev",
    "libxml": "libxml2-dev",
    "unicode": "libicu-dev",
    "liburing.h": "liburing-dev",
    "valgrind": "valgrind",
}
DEFAULT_HEADER_PACKAGE = "libc6-dev"

# Variables of the caller's that would change what is built.
NOT_FOR_MAKE = ("MAKEFLAGS", "MAKELEVEL", "CFLAGS", "CPPFLAGS", "DESTDIR", "PROFILE", "COPT")

INSTALLED = ".installed"
TAIL_CHARACTERS = 6000


def build_extension(server: Server, *, werror: bool = True) -> None:
    """Build pg_lookahead for a server and install it there.

    Does nothing when neither the sources nor the server have changed since; what was
    built with warnings as errors does without, too.  Raises LookaheadError with the
    compiler's output when it fails.
    """
    build_from(paths.REPOSITORY, server, werror=werror)


def build_from(repository: Path, server: Server, *, werror: bool = True) -> None:
    """Like build_extension(), from any folder with such a Makefile."""
    # One lock per server, whatever is built: it is installed there.
    with paths.locked(f"ext-{server.name}"):
        place = build_folder(repository, server)
        flags = compiler_flags(server, werror=werror)
        strict = compiler_flags(server, werror=True)
        command = [
            "make", "--no-print-directory", f"-j{len(os.sched_getaffinity(0))}",
            f"PG_CONFIG={server.pg_config}", f"CFLAGS={flags}", "with_llvm=no",
        ]  # fmt: skip
        recipe, stricter = (f"{server.version} {server.pg_config} {f}" for f in (flags, strict))
        sources = _sources(repository)
        stamp = _digest(repository, sources, recipe)
        marker = place / INSTALLED
        if (
            marker.exists()
            and marker.read_text() in (stamp, _digest(repository, sources, stricter))
            and _is_installed(server, place, sources)
        ):
            return
        _check_tools(server)
        _copy(repository, sources, place, recipe)
        _make([*command, "all"], place)
        _make([*command, "install"], place)
        for module in sorted(place.glob("test/modules/*/Makefile")):
            _make([*command, "all"], module.parent)
            _make([*command, "install"], module.parent)
        marker.write_text(stamp)


def build_folder(repository: Path, server: Server) -> Path:
    """Return where the objects of this repository for this server are kept."""
    name = server.name
    if repository != paths.REPOSITORY:
        name += "-" + hashlib.sha256(str(repository).encode()).hexdigest()[:8]
    return paths.folder("ext") / name


def compiler_flags(server: Server, *, werror: bool) -> str:
    """Return CFLAGS: the server's own and our warnings, the same everywhere."""
    own = server.settings["CFLAGS"].split()
    flags = [flag for flag in own if flag not in UNKNOWN_TO_OLDER_COMPILERS]
    flags += WARNINGS
    if werror:
        flags.append("-Werror")
    return " ".join(flags)


def _sources(repository: Path) -> list[Path]:
    """Return the files of a build, relative to the repository."""

    def found() -> Iterator[Path]:
        for pattern in PARTS:
            for file in repository.glob(pattern):
                if file.is_file() and file.suffix not in (".o", ".so", ".bc"):
                    yield file.relative_to(repository)

    return sorted(set(found()))


def _digest(repository: Path, sources: list[Path], recipe: str) -> str:
    digest = hashlib.sha256(recipe.encode())
    for file in sources:
        digest.update(f"\0{file}\0".encode())
        digest.update((repository / file).read_bytes())
    return digest.hexdigest()


def _is_installed(server: Server, place: Path, sources: list[Path]) -> bool:
    """The server may have been installed anew since, or another checkout's build into it."""
    ours = [(place / file).with_suffix(".so") for file in sources if file.suffix == ".control"]
    with contextlib.suppress(OSError):
        return all(filecmp.cmp(so, server.pkglibdir / so.name, shallow=False) for so in ours)
    return False


def _copy(repository: Path, sources: list[Path], place: Path, recipe: str) -> None:
    """Bring the out-of-tree copy up to date, touching only what differs."""
    place.mkdir(parents=True, exist_ok=True)
    (place / INSTALLED).unlink(missing_ok=True)
    last = place / ".recipe"
    if not last.exists() or last.read_text() != recipe:
        shutil.rmtree(place)
        place.mkdir()
        last.write_text(recipe)
    wanted = set(sources)
    for file in _sources(place):
        if file not in wanted:
            (place / file).unlink()
    for file in sources:
        target = place / file
        content = (repository / file).read_bytes()
        if not target.exists() or target.read_bytes() != content:
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_bytes(content)


def _check_tools(server: Server) -> None:
    """Name what is missing before make does, in words that help."""
    absent = []
    compiler = server.settings.get("CC", "gcc").split()[0]
    if not shutil.which(compiler):
        absent.append("clang" if "clang" in compiler else "gcc")
    if not shutil.which("make"):
        absent.append("make")
    if not Path("/usr/include/stdio.h").exists() and "gcc" in absent:
        absent.append("libc6-dev")
    if absent:
        _get(absent, "A C compiler and make are needed to build pg_lookahead.")
    header = Path(server.settings["INCLUDEDIR-SERVER"]) / "postgres.h"
    if not header.exists() or not server.pgxs.exists():
        raise MissingPackages(
            f"The server's header files are missing ({header}).",
            [f"postgresql-server-dev-{server.major}"],
        )


def _get(absent: list[str], what: str) -> None:
    """Install packages where we may, or say which."""
    if os.geteuid() != 0 or not (shutil.which("apt-get") and shutil.which("dpkg-query")):
        raise MissingPackages(what, absent)
    # What a compiler needs for anything at all comes as a recommendation only.
    packages.ensure([*absent, "libc6-dev"], what, print)


def _make(command: list[str], place: Path) -> None:
    env = {name: value for name, value in os.environ.items() if name not in NOT_FOR_MAKE}
    env["LC_ALL"] = "C"
    done = subprocess.run(
        command,
        cwd=place,
        env=env,
        check=False,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        errors="replace",
    )
    if done.returncode == 0:
        return
    output = done.stdout[-TAIL_CHARACTERS:]
    header = re.search(r"fatal error: (\S+): No such file", done.stdout)
    if header and not header[1].startswith(("src/", "../")):
        package = next(
            (name for part, name in HEADER_PACKAGES.items() if header[1].startswith(part)),
            DEFAULT_HEADER_PACKAGE,
        )
        known = header[1].split("/")[0] in HEADER_PACKAGES or header[1].startswith(
            ("std", "sys/", "unistd", "string.h", "errno", "limits")
        )
        if known:
            raise MissingPackages(f"{output}\nThe header file {header[1]} is missing.", [package])
    raise LookaheadError(f"{output}\nThe build of pg_lookahead failed in {place}")
