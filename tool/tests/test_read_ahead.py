"""The kernel's read-ahead is always put back; with a folder that stands in for /sys."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from lookahead.errors import LookaheadError
from lookahead.read_ahead import ReadAhead, queue_of

# Sets it, says so, and waits to be ended, as the tool does.
CHILD = """
import signal, sys, time
from pathlib import Path
from lookahead.read_ahead import ReadAhead
from lookahead.signals import exit_on
exit_on(signal.SIGTERM)
with ReadAhead("sda", sysfs=Path(sys.argv[1]), notes=Path(sys.argv[2])) as read_ahead:
    print(read_ahead.current(), flush=True)
    time.sleep(60)
"""


@pytest.fixture
def sysfs(tmp_path: Path) -> Path:
    """A disk with a partition; only the disk has a queue."""
    disk = tmp_path / "sys" / "devices" / "sda"
    (disk / "queue").mkdir(parents=True)
    (disk / "queue" / "read_ahead_kb").write_text("8192\n")
    (disk / "sda1").mkdir()
    block = tmp_path / "sys" / "class" / "block"
    block.mkdir(parents=True)
    (block / "sda").symlink_to(disk)
    (block / "sda1").symlink_to(disk / "sda1")
    return tmp_path / "sys"


@pytest.fixture
def notes(tmp_path: Path) -> Path:
    place = tmp_path / "notes"
    place.mkdir()
    return place


def value(sysfs: Path) -> int:
    return int((sysfs / "class/block/sda/queue/read_ahead_kb").read_text())


@pytest.mark.parametrize("device", ["sda", "sda1"])
def test_it_is_set_and_put_back(sysfs: Path, notes: Path, device: str) -> None:
    with ReadAhead(device, sysfs=sysfs, notes=notes) as read_ahead:
        assert value(sysfs) == read_ahead.current() == 128
        assert "128 kB" in read_ahead.describe()
        assert read_ahead.as_dict()["was"] == 8192
    assert value(sysfs) == 8192
    assert read_ahead.current() == 8192


def test_a_partition_has_its_disks_queue(sysfs: Path) -> None:
    assert queue_of("sda1", sysfs).resolve() == queue_of("sda", sysfs).resolve()


@pytest.mark.parametrize("error", [ValueError, KeyboardInterrupt, SystemExit])
def test_it_is_put_back_after_an_error(
    sysfs: Path, notes: Path, error: type[BaseException]
) -> None:
    with pytest.raises(error), ReadAhead("sda", sysfs=sysfs, notes=notes):
        raise error
    assert value(sysfs) == 8192


def start_child(sysfs: Path, notes: Path) -> subprocess.Popen[str]:
    child = subprocess.Popen(
        [sys.executable, "-c", CHILD, str(sysfs), str(notes)],
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": str(Path(__file__).parents[1])},
    )
    assert child.stdout is not None
    assert child.stdout.readline().strip() == "128"
    return child


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_it_is_put_back_by_signals(sysfs: Path, notes: Path, number: signal.Signals) -> None:
    with start_child(sysfs, notes) as child:
        child.send_signal(number)
        child.wait(30)
    assert value(sysfs) == 8192


def test_what_a_killed_run_left_the_next_one_puts_back(sysfs: Path, notes: Path) -> None:
    with start_child(sysfs, notes) as child:
        child.kill()
        child.wait(30)
    assert value(sysfs) == 128
    with ReadAhead("sda", sysfs=sysfs, notes=notes):
        assert value(sysfs) == 128
    assert value(sysfs) == 8192
    # And a third one takes what it finds.
    (sysfs / "class/block/sda/queue/read_ahead_kb").write_text("512\n")
    with ReadAhead("sda", sysfs=sysfs, notes=notes):
        pass
    assert value(sysfs) == 512


def test_a_note_of_another_boot_is_not_believed(sysfs: Path, notes: Path) -> None:
    """A machine that has started again has the value it is set up for."""
    (notes / "read-ahead-sda").write_text("64 another-boot")
    with ReadAhead("sda", sysfs=sysfs, notes=notes):
        assert value(sysfs) == 128
    assert value(sysfs) == 8192


def test_two_runs_do_not_set_the_same_device(sysfs: Path, notes: Path) -> None:
    with ReadAhead("sda", sysfs=sysfs, notes=notes):
        with (
            pytest.raises(LookaheadError, match="another benchmark"),
            ReadAhead("sda", sysfs=sysfs, notes=notes),
        ):
            pass
        assert value(sysfs) == 128
    assert value(sysfs) == 8192


def test_where_it_is_not_allowed_it_says_so(sysfs: Path, notes: Path) -> None:
    with ReadAhead("sdb", sysfs=sysfs, notes=notes) as read_ahead:
        assert "could not be set" in read_ahead.describe()
        assert read_ahead.current() is None
    with ReadAhead(None, sysfs=sysfs, notes=notes) as read_ahead:
        assert "not on a block device" in read_ahead.describe()
    assert value(sysfs) == 8192
    assert not any(file.read_text() for file in notes.iterdir())


def test_a_kernel_that_takes_another_value(
    sysfs: Path, notes: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write = Path.write_text

    def rounding(file: Path, text: str, *args: object) -> int:
        return write(file, "64\n" if text == "128" else text)

    monkeypatch.setattr(Path, "write_text", rounding)
    with ReadAhead("sda", sysfs=sysfs, notes=notes) as read_ahead:
        assert "64 kB after 128" in read_ahead.describe()
    assert value(sysfs) == 8192
