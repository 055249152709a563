"""What packagers do with the Makefile: build elsewhere, and install into a folder of theirs."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

from lookahead import paths
from lookahead.servers import Server


@pytest.fixture
def place(tmp_path: Path) -> Path:
    return tmp_path / "elsewhere"


@pytest.fixture
def sources(tmp_path: Path) -> Path:
    """A copy: the repository may have been built in."""
    copy = tmp_path / "sources"
    copy.mkdir()
    built = shutil.ignore_patterns("*.o", "*.so", "*.bc", "__pycache__")
    for name in ("src", "sql", "test"):
        shutil.copytree(paths.REPOSITORY / name, copy / name, ignore=built)
    for name in ("Makefile", "pg_lookahead.control"):
        shutil.copy(paths.REPOSITORY / name, copy)
    return copy


@pytest.mark.parametrize("how", ["-f", "VPATH"])
def test_build_elsewhere(embedded: Server, sources: Path, place: Path, how: str) -> None:
    place.mkdir()
    command = ["make", "--dry-run", "-f", f"{sources}/Makefile", f"PG_CONFIG={embedded.pg_config}"]
    if how == "VPATH":
        command.append(f"VPATH={sources}/")

    def said(*targets: str) -> str:
        done = subprocess.run(
            [*command, *targets], cwd=place, capture_output=True, text=True, check=True
        )
        return done.stdout

    compiled = said("all")
    for source in (sources / "src").rglob("*.c"):
        name = source.relative_to(sources)
        assert str(source) in compiled, name
        assert (place / name).parent.is_dir(), name
    installed = said("install", f"DESTDIR={place}/destination")
    assert "pg_lookahead--" in installed
    assert "pg_lookahead.control" in installed
    assert f"{place}/destination" in installed
    (sources / "src" / "hook" / "left.o").touch()
    left = subprocess.run(command, cwd=place, capture_output=True, text=True, check=False)
    assert left.returncode
    assert "make clean" in left.stderr
    (sources / "src" / "hook" / "left.o").unlink()
    checked = said("installcheck")
    for test in [*(sources / "test/sql").glob("*.sql"), *(sources / "test/specs").glob("*.spec")]:
        assert test.stem in checked


def test_a_folder_with_a_blank(embedded: Server, sources: Path, tmp_path: Path) -> None:
    """Built there once, it can be built again, and installed."""
    here = sources.rename(tmp_path / "my sources")
    command = ["make", "--dry-run", f"PG_CONFIG={embedded.pg_config}", "with_llvm=no"]
    (here / "src" / "hook" / "left.o").touch()
    for target in ("all", "install", "clean"):
        done = subprocess.run(
            [*command, target], cwd=here, capture_output=True, text=True, check=False
        )
        assert done.returncode == 0, done.stderr


@pytest.mark.parametrize(
    ("script", "message"),
    [
        (None, "is no pg_config that works"),
        ("exit 1", "is no pg_config that works"),
        ("echo /nonexistent/pgxs.mk", "names /nonexistent/pgxs.mk, which is not there"),
    ],
)
def test_a_pg_config_that_will_not_do(
    sources: Path, tmp_path: Path, script: str | None, message: str
) -> None:
    program = tmp_path / "pg_config"
    if script:
        program.write_text(f"#!/bin/sh\n{script}\n")
        program.chmod(0o755)
    command = ["make", "--dry-run", f"PG_CONFIG={program}"]
    done = subprocess.run(command, cwd=sources, capture_output=True, text=True, check=False)
    assert done.returncode
    assert message in done.stderr
    assert "postgresql-server-dev-N" in done.stderr
    # The archive needs no server.
    subprocess.run([*command, "dist"], cwd=sources, capture_output=True, check=True)
