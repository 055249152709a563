"""The slow storage: what a run that was killed has left is cleared up, and nothing else."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from lookahead import paths, slow_storage
from lookahead.errors import LookaheadError

MOUNT = """
import sys, time
from pathlib import Path
from lookahead import slow_storage
with slow_storage.mounted(Path(sys.argv[1]), read_us=0, write_us=0, allocate_us=0,
                          behind=Path(sys.argv[2]), log=print) as place:
    print("mounted", place, flush=True)
    time.sleep(600)
"""


@pytest.fixture
def killed(tmp_path: Path) -> Path:
    """Mount a folder, which is to be kept, by a program that is killed then."""
    missing = slow_storage.why_not()
    if missing:
        pytest.skip(missing)
    try:
        slow_storage.program(print)
    except LookaheadError as error:
        pytest.skip(str(error))
    kept = tmp_path / "kept"
    kept.mkdir()
    (kept / "file").write_text("kept")
    process = subprocess.Popen(
        [sys.executable, "-c", MOUNT, str(tmp_path / "below"), str(kept)],
        env={**os.environ, "PYTHONPATH": str(paths.REPOSITORY / "tool")},
        stdout=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None
    assert process.stdout.readline().startswith("mounted")
    process.kill()
    process.wait()
    process.stdout.close()
    return tmp_path


def programs(folder: Path) -> list[int]:
    found = subprocess.run(
        ["pgrep", "-f", f"slowfs.*{folder}"], capture_output=True, text=True, check=False
    )
    return [int(pid) for pid in found.stdout.split()]


@pytest.mark.parametrize("is_dead", [False, True])
def test_what_was_left_is_unmounted(killed: Path, is_dead: bool) -> None:
    (mount,) = slow_storage.mounts_below(killed)
    assert mount == killed / "below" / "slow"
    assert slow_storage.mounts_below(killed / "kept") == []
    assert (mount / "file").read_text() == "kept"
    if is_dead:
        for pid in programs(killed):
            os.kill(pid, signal.SIGKILL)
    assert slow_storage.let_go(killed)
    assert slow_storage.mounts_below(killed) == []
    assert (killed / "kept" / "file").read_text() == "kept"


def test_who_runs_there_is_ended(killed: Path) -> None:
    (mount,) = slow_storage.mounts_below(killed)
    # Looks like a server to who asks for the name.
    (killed / "postgres").symlink_to("/bin/sleep")
    with subprocess.Popen([str(killed / "postgres"), "600"], cwd=mount) as process:
        other = subprocess.Popen([str(killed / "postgres"), "600"], cwd=killed)
        try:
            assert slow_storage.let_go(killed)
            assert process.wait(10) < 0
            assert other.poll() is None
        finally:
            other.kill()
            other.wait()
