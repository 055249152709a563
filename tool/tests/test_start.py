"""What is said before anything else: where the tool runs, what it is called, how it ends."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import psycopg
import pytest

from lookahead import cli, doctor, paths, start
from lookahead.errors import LookaheadError, UsageError


@pytest.mark.parametrize(
    ("program", "name"),
    [
        ("./lookahead", "./lookahead"),
        ("/home/me/clone/lookahead", "./lookahead"),
        ("/usr/bin/pg_lookahead", "pg_lookahead"),
        ("pg_lookahead", "pg_lookahead"),
    ],
)
def test_it_is_called_what_it_was_started_as(program: str, name: str) -> None:
    assert start.name_of(program) == name


def test_messages_have_that_name() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "lookahead", "doctor", "host=/nonexistent"],
        env={**os.environ, start.VARIABLE: start.IN_A_PACKAGE},
        capture_output=True,
        text=True,
        check=False,
        cwd=paths.REPOSITORY / "tool",
    )
    assert "sudo -u postgres pg_lookahead doctor" in done.stderr
    assert "./lookahead" not in done.stderr


@pytest.mark.parametrize(
    ("command", "platform", "reason"),
    [
        ("demo", "linux", None),
        ("demo", "darwin", "Linux only"),
        ("test", "freebsd14", "Linux only"),
        ("bench", "darwin", "doctor and top may run here"),
        ("doctor", "darwin", None),
        ("doctor", "win32", "not for Windows"),
        ("--help", "darwin", None),
    ],
)
def test_systems(command: str, platform: str, reason: str | None) -> None:
    found = start.why_not([command], platform)
    assert (found is None) == (reason is None)
    assert reason is None or reason in (found or "")
    assert start.why_not([], "darwin") is None


def ended(
    arguments: list[str], error: Exception, monkeypatch: pytest.MonkeyPatch
) -> int | str | None:
    def fail(*_: object, **__: object) -> int:
        raise error

    monkeypatch.setattr(doctor, "main", fail)
    monkeypatch.setattr("lookahead.top.main", fail)
    monkeypatch.setattr(sys, "argv", ["lookahead", *arguments])
    monkeypatch.setattr(cli, "exit_on", lambda number: None)
    with pytest.raises(SystemExit) as caught:
        cli.main()
    return caught.value.code


@pytest.mark.parametrize(
    ("error", "status"),
    [
        (LookaheadError("no place"), 3),
        (OSError("no disk"), 3),
        (psycopg.OperationalError("gone"), 3),
        (KeyError("a fault of ours"), 3),
        (UsageError("no such thing"), 2),
    ],
)
def test_a_doctor_that_fails_is_no_finding(
    error: Exception,
    status: int,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert ended(["doctor"], error, monkeypatch) == status
    assert str(error) in capsys.readouterr().err
    assert ended(["top"], error, monkeypatch) == (status if status == 2 else 1)


def test_an_environment_that_cannot_be_made(tmp_path: Path) -> None:
    blank = {**os.environ, "LOOKAHEAD_CACHE": str(tmp_path / "a blank")}
    for command, status in (("doctor", 3), ("top", 1)):
        done = subprocess.run(
            [sys.executable, str(paths.REPOSITORY / "lookahead"), command],
            env=blank, capture_output=True, text=True, check=False,
        )  # fmt: skip
        assert done.returncode == status
        assert "has blanks in its name" in done.stderr


@pytest.mark.parametrize(
    ("command", "option"), [("demo", "--pg-config PATH"), ("bench", "--server PATH")]
)
def test_pg_config_of_make_is_not_looked_at(command: str, option: str) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "lookahead", command, "--help"],
        env={**os.environ, "PG_CONFIG": "/bin/true"},
        capture_output=True,
        text=True,
        check=False,
        cwd=paths.REPOSITORY / "tool",
    )
    assert done.returncode == 0
    assert f"PG_CONFIG is set, and not looked at here: use {option}" in done.stderr
