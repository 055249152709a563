"""Huge pages are reserved, and given back; with a folder that stands in for /proc.

That they are given back after errors, signals and kills is kernel_setting.py's
business: test_read_ahead.py.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from lookahead.huge_pages import HugePages, page_mb


@pytest.fixture
def procfs(tmp_path: Path) -> Path:
    place = tmp_path / "proc"
    (place / "sys" / "vm").mkdir(parents=True)
    (place / "sys" / "vm" / "nr_hugepages").write_text("10\n")
    (place / "meminfo").write_text("MemTotal: 24684096 kB\nHugepagesize:    2048 kB\n")
    return place


def reserved(procfs: Path) -> int:
    return int((procfs / "sys" / "vm" / "nr_hugepages").read_text())


def pages(procfs: Path, mb: int) -> HugePages:
    return HugePages(mb, procfs=procfs, notes=procfs)


def test_they_are_reserved_and_given_back(procfs: Path) -> None:
    assert page_mb(procfs) == 2
    with pages(procfs, 100) as found:
        assert reserved(procfs) == 50
        assert found.are_there
        assert "50 pages" in found.describe()
    assert reserved(procfs) == 10


def test_there_are_never_fewer_than_before(procfs: Path) -> None:
    with pages(procfs, 4) as found:
        assert reserved(procfs) == 10
        assert found.are_there
    assert reserved(procfs) == 10


def test_a_kernel_that_has_less_memory(procfs: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write = Path.write_text

    def scarce(file: Path, text: str, *args: object) -> int:
        return write(file, "30\n" if text == "50" else text)

    monkeypatch.setattr(Path, "write_text", scarce)
    with pages(procfs, 100) as found:
        assert not found.are_there
        assert "30 pages after 50" in found.describe()
    assert reserved(procfs) == 10


def test_a_kernel_without_them(procfs: Path) -> None:
    (procfs / "meminfo").write_text("MemTotal: 24684096 kB\n")
    with pages(procfs, 100) as found:
        assert not found.are_there
        assert "the kernel has none" in found.describe()
    assert page_mb(procfs / "elsewhere") is None
    assert reserved(procfs) == 10
