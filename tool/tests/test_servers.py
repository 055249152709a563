"""Finding servers, and the small tools around them."""

from __future__ import annotations

import contextlib
import errno
import os
import shutil
import tempfile
from pathlib import Path
from types import SimpleNamespace

import pytest

from lookahead import (
    cli,
    disk_space,
    installs,
    packages,
    paths,
    privilege,
    servers,
    source_build,
    venv,
)
from lookahead.errors import LookaheadError, MissingPackages, UsageError
from lookahead.servers import Server


def test_embedded(embedded: Server) -> None:
    assert (embedded.name, embedded.major, embedded.version) == ("18-embedded", 18, "18.6")
    assert not embedded.assertions
    assert not embedded.io_uring
    assert embedded.pg_regress
    assert embedded.pg_isolation_regress
    assert servers.from_pg_config(embedded.pg_config) == embedded
    assert servers.by_name("18-embedded") == embedded
    assert servers.by_name(str(embedded.pg_config)) == embedded


def test_available_begins_with_the_embedded_one() -> None:
    found = servers.available()
    assert found[0].name == "18-embedded"
    assert len({server.name for server in found}) == len(found)


def test_debian_is_used_through_a_copy() -> None:
    system = Path("/usr/lib/postgresql/15/bin")
    server = servers.debian(15)
    if server is None:
        pytest.skip("no PostgreSQL 15 of the distribution's")
    assert server.name == "15-debian"
    assert server.bindir != system
    assert server.pkglibdir.is_relative_to(paths.cache())
    assert server.sharedir.is_relative_to(paths.cache())


def test_a_pg_config_that_calls_another(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Debian's /usr/bin/pg_config is a script; what is built must not go where it points."""
    system = Path("/usr/lib/postgresql/15/bin/pg_config")
    if servers.debian(15) is None:
        pytest.skip("no PostgreSQL 15 of the distribution's")
    wrapper = tmp_path / "pg_config"
    wrapper.write_text(f'#!/bin/sh\nexec {system} "$@"\n')
    wrapper.chmod(0o755)
    monkeypatch.setenv("LOOKAHEAD_CACHE", str(tmp_path / "cache"))
    root = paths.folder("servers") / "15-debian"
    server = servers.from_pg_config(wrapper)
    assert server.name == "15-debian"
    for place in (server.pkglibdir, server.sharedir, server.bindir):
        assert place.resolve().is_relative_to(root.resolve())
    assert servers.read_pg_config(server.pg_config)["BINDIR"] == str(server.bindir)


def test_a_copy_that_points_back_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    system = Path("/usr/lib/postgresql/15/bin/pg_config")
    if servers.debian(15) is None:
        pytest.skip("no PostgreSQL 15 of the distribution's")
    copy = paths.folder("servers") / "wrong" / "pg_config"
    monkeypatch.setattr(installs, "private_copy", lambda *_: copy)
    copy.parent.mkdir()
    try:
        copy.symlink_to(system)
        with pytest.raises(LookaheadError, match="which is not in"):
            servers.from_pg_config(system)
    finally:
        shutil.rmtree(copy.parent)


def test_without_the_embedded_one(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where it cannot be fetched the servers that are there do."""
    others = [server.name for server in servers.available()][1:]

    def cannot() -> Server:
        raise LookaheadError("there is no network")

    monkeypatch.setattr(servers, "embedded", cannot)
    if others:
        assert [server.name for server in servers.available()] == others
    for name in ("debian", "source"):
        monkeypatch.setattr(servers, name, lambda *_: None)
    monkeypatch.setattr(servers, "wheel16", lambda: None)
    with pytest.raises(LookaheadError, match="no network"):
        servers.available()


def test_assertions_are_seen() -> None:
    server = servers.source(18, "assert")
    if server is None:
        pytest.skip("18-assert is not built")
    assert server.assertions
    assert server.io_uring
    assert server.build_tree


@pytest.mark.parametrize("name", ["19-embedded", "18-nonsense", "nonsense", "18", ""])
def test_unknown_names(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """They are told from others without fetching anything."""

    def fetched(*_: object, **__: object) -> None:
        raise AssertionError("something was fetched")

    monkeypatch.setattr("lookahead.installs.wheel", fetched)
    monkeypatch.setattr(servers, "embedded", fetched)
    with pytest.raises(UsageError, match=r"no server .* there are: .*18-embedded"):
        servers.by_name(name)


def test_a_missing_major_names_its_packages() -> None:
    if servers.debian(16) is not None:
        pytest.skip("PostgreSQL 16 is here")
    with pytest.raises(LookaheadError, match="postgresql-16 postgresql-server-dev-16"):
        servers.by_name("16-debian")


def test_other_programs_are_no_pg_config() -> None:
    for path in ("/bin/true", "/nonexistent/pg_config", "/usr"):
        with pytest.raises(UsageError, match="not a pg_config"):
            servers.from_pg_config(path)


def test_unsupported_major(tmp_path: Path) -> None:
    program = tmp_path / "pg_config"
    program.write_text("#!/bin/sh\necho 'VERSION = PostgreSQL 14.9'\n")
    program.chmod(0o755)
    with pytest.raises(UsageError, match="supports 15 to 18"):
        servers.from_pg_config(program)


def test_configure_options() -> None:
    of_17 = source_build.configure_options(17, "release", Path("/p"))
    of_18 = source_build.configure_options(18, "assert", Path("/p"))
    assert "--with-liburing" not in of_17
    assert {"--with-liburing", "--enable-cassert", "--prefix=/p"} <= set(of_18)
    of_15 = source_build.configure_options(15, "assert", Path("/p"))
    assert {"--enable-injection-points", "--enable-cassert"} & set(of_15) == {"--enable-cassert"}
    assert "liburing-dev" in source_build.needed_packages(18, "release")
    assert "valgrind" in source_build.needed_packages(17, "assert")
    with pytest.raises(UsageError):
        source_build.build(16, "assert", print)


def test_packages_are_named_when_they_cannot_be_installed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(packages, "missing", lambda names: ["bison", "flex"])
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    with pytest.raises(MissingPackages, match="apt-get install bison flex"):
        packages.ensure(["bison", "flex"], "the build", print)


def test_without_dpkg_it_says_what_is_needed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(packages, "are_known", lambda: False)
    with pytest.raises(LookaheadError, match=r"(?s)the build needs.*call them bison flex$"):
        packages.ensure(["bison", "flex"], "the build", print)
    with pytest.raises(LookaheadError, match="--pg-config"):
        source_build.build(17, "assert", print)


def test_what_has_no_room_is_not_begun(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("shutil.disk_usage", lambda place: SimpleNamespace(free=1 << 20))
    with pytest.raises(LookaheadError, match=r"a test needs 2 MB in .*, 1 MB are free; use less"):
        disk_space.require(tmp_path, 2, "a test", "use less")
    disk_space.require(tmp_path, 1, "a test", "use less")
    (tmp_path / "below").mkdir()
    (tmp_path / "below" / "file").write_bytes(b"x" * (2 << 20))
    assert disk_space.used_mb([tmp_path]) == 2
    assert disk_space.used_mb([tmp_path / "below", tmp_path / "nowhere"]) == 2
    lstat = Path.lstat

    def status(place: Path) -> object:
        if place.name == "dead":
            raise OSError(errno.ENOTCONN, "what is mounted there has died")
        if place.name == "mounted":
            return SimpleNamespace(st_dev=0, st_blocks=1 << 20)
        return lstat(place)

    for name in ("dead", "mounted"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "file").write_bytes(b"x" * (2 << 20))
    monkeypatch.setattr(Path, "lstat", status)
    assert disk_space.used_mb([tmp_path]) == 2
    monkeypatch.undo()
    monkeypatch.setattr("shutil.disk_usage", lambda place: SimpleNamespace(free=1 << 20))
    monkeypatch.setenv("LOOKAHEAD_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(packages, "ensure", lambda *_: None)
    monkeypatch.setattr("lookahead.apt_source.fetch", lambda *_: tmp_path / "tar")
    with pytest.raises(LookaheadError, match=r"building 17-assert needs .*LOOKAHEAD_CACHE"):
        source_build.build(17, "assert", print)


def test_folder_is_replaced_whole_or_not_at_all(tmp_path: Path) -> None:
    target = tmp_path / "target"
    with paths.replacing(target) as fresh:
        (fresh / "first").touch()
    with contextlib.suppress(ValueError), paths.replacing(target) as fresh:
        (fresh / "second").touch()
        raise ValueError("broken")
    assert [file.name for file in target.iterdir()] == ["first"]
    # A run that was killed has left one.
    Path(tempfile.mkdtemp(prefix=".target-", dir=tmp_path)).joinpath("half").touch()
    with paths.replacing(target) as fresh:
        (fresh / "third").touch()
    assert [file.name for file in target.iterdir()] == ["third"]
    assert [place.name for place in tmp_path.iterdir()] == ["target"]


def test_cache_folder_follows_the_environment(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LOOKAHEAD_CACHE", str(tmp_path / "mine"))
    assert paths.cache() == tmp_path / "mine"
    monkeypatch.delenv("LOOKAHEAD_CACHE")
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "xdg"))
    assert paths.cache() == tmp_path / "xdg" / "pg_lookahead"
    monkeypatch.delenv("XDG_CACHE_HOME")
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    assert paths.cache() == tmp_path / "home" / ".cache" / "pg_lookahead"


def test_cache_folder_that_cannot_be(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LOOKAHEAD_CACHE", "/proc/nonexistent")
    with pytest.raises(LookaheadError, match="LOOKAHEAD_CACHE"):
        paths.cache()


@pytest.mark.skipif(os.geteuid() != 0, reason="only root drops privileges")
def test_server_programs_do_not_run_as_root(tmp_path: Path, readable: Path) -> None:
    done = privilege.run(["id", "-u"], cwd=readable, capture_output=True)
    assert int(done.stdout) != 0
    hidden = tmp_path / "hidden"
    hidden.mkdir(mode=0o700)
    with pytest.raises(LookaheadError, match="cannot read"):
        privilege.require_readable(hidden, "a test")


@pytest.mark.parametrize(
    ("users", "expected"),
    [
        ({"postgres", "pg_lookahead", "nobody"}, "postgres"),
        ({"pg_lookahead", "nobody"}, "pg_lookahead"),
        ({"nobody"}, "nobody"),
        (set(), None),
    ],
)
def test_user_for_servers(
    users: set[str], expected: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    def lookup(name: str) -> privilege.Account | None:
        return privilege.Account(name, 99, 99) if name in users else None

    monkeypatch.setattr(privilege, "_lookup", lookup)
    monkeypatch.setattr("shutil.which", lambda name: None)
    # Not the function itself, which remembers its answer.
    choose = privilege._account.__wrapped__
    if expected:
        assert choose().name == expected
    else:
        with pytest.raises(LookaheadError, match="useradd"):
            choose()


def test_environment_has_no_connection_settings(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PGHOST", "elsewhere")
    assert "PGHOST" not in privilege.environment()
    assert privilege.environment({"PGHOST": "here"})["PGHOST"] == "here"


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        (["test", "--build-servers"], ["test", "--build-servers=assert"]),
        (["test", "--build-servers", "release", "-k", "x"],
         ["test", "--build-servers=release", "-k", "x"]),
        (["test", "--build-servers", "--only", "core"],
         ["test", "--build-servers=assert", "--only", "core"]),
        (["test", "--build-servers=release"], ["test", "--build-servers=release"]),
    ],
)  # fmt: skip
def test_option_with_a_default_value(given: list[str], expected: list[str]) -> None:
    assert cli.normalized(given) == expected


def test_virtual_environment_is_made_once(monkeypatch: pytest.MonkeyPatch) -> None:
    # Made by the run that this test is of; the other takes a download, and is of the same code.
    python = venv.environment("test")
    monkeypatch.setattr(venv, "_make", lambda *_: pytest.fail("made again"))
    assert venv.environment("bench") == python


def test_who_only_looks_needs_no_tools_of_ours() -> None:
    wanted = venv.requirements("doctor")
    assert [venv.requirements(name) for name in ("top", "demo", "--help", "")] == [wanted] * 4
    text = "".join(file.read_text() for file in wanted)
    assert all(name in text for name in ("psycopg", "typer", "rich"))
    assert not any(name in text for name in ("pytest==", "ruff", "mypy", "tpchgen"))
    more = "".join(file.read_text() for file in venv.requirements("test"))
    assert all(name in more for name in ("psycopg", "pytest==", "ruff", "mypy", "tpchgen"))


def test_without_the_internet_it_says_what_to_do(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(tmp_path))
    monkeypatch.setattr(packages, "PAUSE_SECONDS", 0)
    with pytest.raises(LookaheadError, match=r"(?s)could not fill.*PIP_FIND_LINKS.*another"):
        venv._make(tmp_path / "venv", venv.requirements("doctor"))
    assert list(tmp_path.iterdir()) == []


def test_packages_from_a_folder_that_is_named_from_here(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """pip runs elsewhere."""
    (tmp_path / "wheels").mkdir()
    monkeypatch.chdir(tmp_path)
    shown = ["sh", "-c", 'pwd; echo "$PIP_FIND_LINKS"']
    for given, wanted in (("wheels", tmp_path / "wheels"), ("file:///wheels", "file:///wheels")):
        monkeypatch.setenv("PIP_FIND_LINKS", given)
        assert venv._run(shown).stdout.split() == ["/", str(wanted)]


def test_python_without_venv_names_the_package(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.executable", "/usr/bin/python3")
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    with pytest.raises(MissingPackages, match="apt-get install python3-venv"):
        venv._get_ensurepip()


def test_cache_folders_that_cannot_be(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """make cannot bear blanks; nobody's home is not found with a traceback."""
    monkeypatch.setenv("LOOKAHEAD_CACHE", str(tmp_path / "my cache"))
    with pytest.raises(LookaheadError, match=r"(?s)blanks.*LOOKAHEAD_CACHE"):
        paths.cache()
    monkeypatch.delenv("LOOKAHEAD_CACHE")
    monkeypatch.setattr("os.geteuid", lambda: 4_000_000)

    def nobody() -> Path:
        raise RuntimeError("Could not determine home directory.")

    monkeypatch.setattr("pathlib.Path.home", nobody)
    monkeypatch.setenv("XDG_CACHE_HOME", "relative")
    with pytest.raises(LookaheadError, match=r"(?s)home.*LOOKAHEAD_CACHE"):
        paths.cache()
