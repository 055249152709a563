"""Free memory is not reported to the host meanwhile; with a folder that stands in for /sys.

That what was found is put back after errors, signals and kills is kernel_setting.py's
business: test_read_ahead.py.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from lookahead.memory_reporting import NONE, is_reported, memory_reporting

PARAMETER = "module/page_reporting/parameters/page_reporting_order"
BALLOON = "bus/virtio/drivers/virtio_balloon/virtio0"


@pytest.fixture
def sysfs(tmp_path: Path) -> Path:
    place = tmp_path / "sys"
    (place / PARAMETER).parent.mkdir(parents=True)
    (place / PARAMETER).write_text("9\n")
    (place / BALLOON).mkdir(parents=True)
    (place / BALLOON / "features").write_text("0110010100000000\n")
    return place


def order(sysfs: Path) -> int:
    return int((sysfs / PARAMETER).read_text())


def test_it_is_off_meanwhile(sysfs: Path) -> None:
    setting = memory_reporting(sysfs, sysfs)
    assert setting is not None
    with setting:
        assert order(sysfs) == NONE
        assert setting.problem is None
        assert "set to 11" in setting.describe()
    assert order(sysfs) == 9


def test_a_host_that_is_not_told(sysfs: Path) -> None:
    (sysfs / BALLOON / "features").write_text("0110000100000000\n")
    assert not is_reported(sysfs)
    assert memory_reporting(sysfs, sysfs) is None


def test_a_machine_that_is_not_virtual(tmp_path: Path) -> None:
    assert memory_reporting(tmp_path, tmp_path) is None


def test_a_kernel_that_does_not_let_it(sysfs: Path) -> None:
    (sysfs / PARAMETER).unlink()
    setting = memory_reporting(sysfs, sysfs)
    assert setting is not None
    with setting:
        assert setting.problem == "the kernel has no setting for it"
