"""Tasks side by side: what they tell arrives, and none outlives its crew."""

from __future__ import annotations

import os
import time
from pathlib import Path

import pytest

from lookahead.crew import Crew, Tell

SECONDS = 30


def everything(crew: Crew[str]) -> dict[str, list[str | int]]:
    """Return what each task told until all had ended."""
    told: dict[str, list[str | int]] = {}
    while crew:
        for name, news in crew.wait():
            told.setdefault(name, []).append(news)
    return told


def appears(file: Path) -> bool:
    end = time.monotonic() + SECONDS
    while not file.exists():
        if time.monotonic() > end:
            return False
        time.sleep(0.01)
    return True


def test_what_is_told_arrives_in_order() -> None:
    def task(tell: Tell[str]) -> None:
        for i in range(100):
            tell(f"{i}")

    with Crew[str]() as crew:
        crew.start("one", task)
        crew.start("other", task)
        assert everything(crew) == {
            name: [*(f"{i}" for i in range(100)), 0] for name in ("one", "other")
        }


def test_they_are_at_work_at_once(tmp_path: Path) -> None:
    def meet(mine: str, other: str) -> None:
        (tmp_path / mine).touch()
        assert appears(tmp_path / other), f"{other} did not begin while {mine} was at work"

    with Crew[str]() as crew:
        crew.start("one", lambda _: meet("one", "other"))
        crew.start("other", lambda _: meet("other", "one"))
        assert everything(crew) == {"one": [0], "other": [0]}


def test_one_that_fails_leaves_the_others_alone(capfd: pytest.CaptureFixture[str]) -> None:
    def fail(tell: Tell[str]) -> None:
        tell("before")
        raise AssertionError("this is why")

    def succeed(tell: Tell[str]) -> None:
        tell("done")

    def die(_: Tell[str]) -> None:
        os.kill(os.getpid(), 9)

    with Crew[str]() as crew:
        crew.start("fails", fail)
        crew.start("dies", die)
        crew.start("succeeds", succeed)
        assert everything(crew) == {"fails": ["before", 1], "dies": [-9], "succeeds": ["done", 0]}
    assert "this is why" in capfd.readouterr().err


def test_who_still_runs_is_ended_and_clears_up(tmp_path: Path) -> None:
    cleared = tmp_path / "cleared"

    def task(tell: Tell[str]) -> None:
        try:
            tell(f"{os.getpid()}")
            time.sleep(SECONDS)
        finally:
            cleared.touch()

    with Crew[str]() as crew:
        crew.start("sleeps", task)
        [(_, pid)] = crew.wait()
        # Ctrl-C of the terminal would not reach it.
        assert os.getpgid(int(pid)) == int(pid) != os.getpgrp()
    assert cleared.exists()
    with pytest.raises(ProcessLookupError):
        os.kill(int(pid), 0)
