"""The slow storage: what a run that was killed has left is cleared up, and nothing else."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from lookahead import packages, paths, privilege, slow_storage
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


def need_storage() -> None:
    missing = slow_storage.why_not()
    if missing:
        pytest.skip(missing)
    try:
        slow_storage.program(print)
    except LookaheadError as error:
        pytest.skip(str(error))


def test_what_is_built_needs_no_packages(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nor does what can be built, whatever the distribution calls its packages."""
    need_storage()
    monkeypatch.setattr(packages, "are_known", lambda: False)
    monkeypatch.setattr(slow_storage, "_flags", lambda: None)
    assert slow_storage.program(print).exists()
    assert slow_storage.lacking(print) is None
    monkeypatch.setattr(slow_storage, "_can_mount", lambda: False)
    assert "call them libfuse3-dev" in (slow_storage.lacking(print) or "")
    monkeypatch.setattr(slow_storage, "why_not", lambda: "no /dev/fuse")
    assert slow_storage.lacking(print) == "no /dev/fuse"


def test_without_a_compiler_it_names_the_package(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """It is looked for before anything of the extension is built."""
    monkeypatch.setenv("LOOKAHEAD_CACHE", str(tmp_path))
    monkeypatch.setattr(packages, "are_known", lambda: False)
    monkeypatch.setattr(slow_storage, "why_not", lambda: None)
    monkeypatch.setattr(slow_storage, "_flags", lambda: ["-lfuse3"])
    monkeypatch.setattr(slow_storage, "_can_mount", lambda: True)
    monkeypatch.setattr("shutil.which", lambda name: None)
    assert "call them gcc libc6-dev" in (slow_storage.lacking(print) or "")


@pytest.fixture
def killed(tmp_path: Path) -> Path:
    """Mount a folder, which is to be kept, by a program that is killed then."""
    need_storage()
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


def test_links_behind_it_lead_root_nowhere(tmp_path: Path) -> None:
    """Whom the folder behind belongs to gets no more by it than that user may."""
    account = privilege.unprivileged()
    if account is None:
        pytest.skip("only for root")
    need_storage()
    secret = tmp_path / "secret"
    secret.write_text("secret")
    secret.chmod(0o600)
    behind = tmp_path / "behind"
    behind.mkdir()
    (behind / "file").write_text("plain")
    privilege.give(behind)
    tmp_path.chmod(0o755)
    with slow_storage.mounted(
        tmp_path / "below", read_us=0, write_us=0, allocate_us=0, behind=behind, log=print
    ) as place:
        assert (place / "file").stat().st_uid == account.uid
        (behind / "file").unlink()
        (behind / "file").symlink_to(secret)
        # For the kernel it is still a file of that user's.
        with pytest.raises(PermissionError):
            (place / "file").chmod(0o4755)
        with pytest.raises(PermissionError):
            (place / "file").read_text()
        (place / "made").write_text("by root")
        assert (behind / "made").stat().st_uid == account.uid
    assert (secret.stat().st_mode & 0o7777, secret.read_text()) == (0o600, "secret")


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
