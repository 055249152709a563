"""Building an extension out of tree, and what is said when it cannot be."""

from __future__ import annotations

from pathlib import Path

import pytest

from lookahead import build, installs, servers
from lookahead.cluster import Cluster
from lookahead.errors import LookaheadError, MissingPackages
from lookahead.servers import Server

# What build_extension() installs.
OURS = ("pg_lookahead", "la_free_space", "la_other_am", "la_stand_in")


def library(server: Server) -> Path:
    return server.pkglibdir / "la_dummy.so"


def test_build_install_and_use(embedded: Server, plain: Cluster, extension: Path) -> None:
    build.build_from(extension, embedded)
    with plain.connect() as connection:
        connection.execute("DROP EXTENSION IF EXISTS la_dummy")
        connection.execute("CREATE EXTENSION la_dummy")
        assert connection.execute("SELECT la_dummy()").fetchone() == (7,)
        connection.execute("DROP EXTENSION la_dummy")
    assert not list(extension.rglob("*.o")), "the sources' folder was built in"


def test_builds_again_only_when_something_changed(embedded: Server, extension: Path) -> None:
    build.build_from(extension, embedded)
    first = library(embedded).stat().st_mtime_ns
    build.build_from(extension, embedded)
    assert library(embedded).stat().st_mtime_ns == first
    source = extension / "src" / "dummy.c"
    source.write_text(source.read_text().replace("(7)", "(8)"))
    build.build_from(extension, embedded)
    assert library(embedded).stat().st_mtime_ns != first


def test_builds_again_when_the_server_lost_it(embedded: Server, extension: Path) -> None:
    build.build_from(extension, embedded)
    library(embedded).unlink()
    build.build_from(extension, embedded)
    assert library(embedded).exists()


def test_builds_again_when_another_checkout_was_there(embedded: Server, extension: Path) -> None:
    build.build_from(extension, embedded)
    ours = library(embedded).read_bytes()
    library(embedded).write_bytes(b"another build")
    build.build_from(extension, embedded)
    assert library(embedded).read_bytes() == ours


def test_removed_files_leave_the_copy(embedded: Server, extension: Path) -> None:
    more = extension / "sql" / "la_dummy--0.0.1--0.1.0.sql"
    more.write_text("SELECT 1;\n")
    build.build_from(extension, embedded)
    copy = build.build_folder(extension, embedded) / "sql" / more.name
    assert copy.exists()
    more.unlink()
    build.build_from(extension, embedded)
    assert not copy.exists()


def test_warnings_are_errors(embedded: Server, extension: Path) -> None:
    source = extension / "src" / "dummy.c"
    source.write_text(source.read_text() + "\nstatic int unused(void) { return 1; }\n")
    with pytest.raises(LookaheadError, match="unused"):
        build.build_from(extension, embedded)
    build.build_from(extension, embedded, werror=False)
    first = library(embedded).stat().st_mtime_ns
    build.build_from(extension, embedded, werror=False)
    assert library(embedded).stat().st_mtime_ns == first
    # What has no warnings is good for all; what may have some is not.
    source.write_text(source.read_text().replace("static int unused(void) { return 1; }", ""))
    build.build_from(extension, embedded, werror=False)
    second = library(embedded).stat().st_mtime_ns
    build.build_from(extension, embedded)
    third = library(embedded).stat().st_mtime_ns
    assert third != second != first
    build.build_from(extension, embedded, werror=False)
    assert library(embedded).stat().st_mtime_ns == third


def test_missing_header_names_the_package(embedded: Server, extension: Path) -> None:
    source = extension / "src" / "dummy.c"
    source.write_text("#include <gssapi/no_such_header.h>\n" + source.read_text())
    with pytest.raises(MissingPackages) as caught:
        build.build_from(extension, embedded)
    assert caught.value.packages == ["libkrb5-dev"]


def test_missing_compiler_names_the_package(
    embedded: Server, extension: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("shutil.which", lambda name: None)
    with pytest.raises(MissingPackages) as caught:
        build.build_from(extension, embedded)
    assert caught.value.packages[:2] == ["gcc", "make"]
    assert "apt-get install gcc make" in str(caught.value)


def test_flags_leave_out_what_older_compilers_lack(embedded: Server) -> None:
    assert "-Wmissing-variable-declarations" in embedded.settings["CFLAGS"]
    flags = build.compiler_flags(embedded, werror=True).split()
    assert "-Wmissing-variable-declarations" not in flags
    assert {"-Wall", "-Wextra", "-Werror", "-O2"} <= set(flags)


def test_private_copy_leaves_the_original_alone(
    embedded: Server, extension: Path, readable: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An installation outside the cache is copied, and the copy works."""
    monkeypatch.setenv("LOOKAHEAD_CACHE", str(readable / "cache"))
    original = embedded.pkglibdir

    def times() -> dict[Path, int]:
        # Ours may at this moment be installed there, for the tests of that server.
        others = (file for file in original.rglob("*") if not file.name.startswith(OURS))
        return {file: file.stat().st_mtime_ns for file in others}

    before = times()

    server = servers.from_pg_config(embedded.pg_config)
    assert server.name.startswith("18-custom-")
    assert server.pg_config.is_relative_to(readable / "cache")
    for name in ("BINDIR", "PKGLIBDIR", "SHAREDIR", "PGXS", "INCLUDEDIR-SERVER"):
        assert Path(server.settings[name]).is_relative_to(readable / "cache"), name
        assert Path(server.settings[name]).exists(), name

    build.build_from(extension, server)
    with Cluster(server, preload=False) as cluster:
        assert cluster.psql("CREATE EXTENSION la_dummy; SELECT la_dummy();") == "7\n"
    assert times() == before

    # The copy is made once, and made again when the original changes.
    marker = readable / "cache" / "servers" / server.name / installs.COMPLETE
    made = marker.stat().st_mtime_ns
    servers.from_pg_config(embedded.pg_config)
    assert marker.stat().st_mtime_ns == made
    marker.write_text("another version")
    servers.from_pg_config(embedded.pg_config)
    assert marker.stat().st_mtime_ns != made
