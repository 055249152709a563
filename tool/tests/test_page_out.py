"""The kernel pages nothing out by itself meanwhile; with a folder that stands in for /sys.

That what was found is put back after errors, signals and kills is kernel_setting.py's
business: test_read_ahead.py.
"""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from lookahead.page_out import PageOut, page_out

THREAD = "kernel/mm/damon/admin/kdamonds/0"


@pytest.fixture
def sysfs(tmp_path: Path) -> Path:
    place = tmp_path / "sys"
    scheme = place / THREAD / "contexts/0/schemes/0"
    scheme.mkdir(parents=True)
    (scheme / "action").write_text("pageout\n")
    (place / THREAD / "state").write_text("on\n")
    return place


def state(sysfs: Path) -> str:
    return (sysfs / THREAD / "state").read_text().strip()


def stand_still(sysfs: Path) -> None:
    (sysfs / THREAD / "state").write_text("off\n")


def made(sysfs: Path) -> PageOut:
    setting = page_out(sysfs, sysfs)
    assert setting is not None
    return setting


def test_it_stands_still_meanwhile(sysfs: Path) -> None:
    with made(sysfs) as setting:
        assert state(sysfs) == "off"
        assert setting.problem is None
        assert setting.as_dict()["was"] == 1
        assert "set to 0 at work" in setting.describe()
    assert state(sysfs) == "on"


@pytest.fixture
def refusing(monkeypatch: pytest.MonkeyPatch) -> None:
    """As the kernel does: what stands still cannot be stopped."""
    write = Path.write_text

    def write_text(path: Path, text: str) -> int:
        if path.name == "state" and text == path.read_text().strip() == "off":
            raise PermissionError(1, "Operation not permitted")
        return write(path, text)

    monkeypatch.setattr(Path, "write_text", write_text)


def test_one_that_stood_still(sysfs: Path, refusing: None) -> None:
    stand_still(sysfs)
    with made(sysfs) as setting:
        assert setting.problem is None
        assert state(sysfs) == "off"
    assert state(sysfs) == "off"


def test_a_run_that_was_killed(sysfs: Path, refusing: None) -> None:
    killed = made(sysfs)
    killed.__enter__()
    note = (sysfs / "page-out").read_text()
    killed.restore()
    (sysfs / "page-out").write_text(note)
    stand_still(sysfs)
    with made(sysfs) as setting:
        assert setting.problem is None
        assert state(sysfs) == "off"
    assert state(sysfs) == "on"


def test_that_at_work_is_stopped(sysfs: Path) -> None:
    other = sysfs / THREAD.replace("/0", "/1")
    shutil.copytree(sysfs / THREAD, other)
    stand_still(sysfs)
    with made(sysfs):
        assert (other / "state").read_text() == "off"
    assert (other / "state").read_text() == "on"


@pytest.mark.parametrize("action", ["stat", "lru_prio"])
def test_one_that_pages_nothing_out(sysfs: Path, action: str) -> None:
    (sysfs / THREAD / "contexts/0/schemes/0/action").write_text(f"{action}\n")
    assert page_out(sysfs, sysfs) is None


def test_a_kernel_without(tmp_path: Path) -> None:
    assert page_out(tmp_path, tmp_path) is None
