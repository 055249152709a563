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
