"""Where runs are kept: one JSON line per run, written as it is made.

A benchmark runs for an hour, so every run goes to `runs.jsonl` at once and is
flushed; `--resume` reads the file back and makes only what is missing.  What
must not be mixed in one file is compared first: a run made by another build of
the extension, on other data or at another scale is refused.

Lines have a "type": header (first line: definition and metadata), settings
(once per distinct set of server settings), run, answer, check (what is right or
wrong and has no time), rejected and note.
"""

from __future__ import annotations

import hashlib
import json
import os
import platform
import subprocess
import sys
from collections.abc import Collection
from datetime import datetime, timezone
from pathlib import Path
from typing import Any, TextIO

from .bench_measure import device_of, server_settings, settings_digest
from .errors import UsageError
from .mount_list import mounts
from .paths import REPOSITORY
from .read_ahead import queue_of
from .start import COMMAND

FORMAT = 1
RUNS_FILE = "runs.jsonl"


class StoreError(UsageError):
    """The output folder cannot take these runs."""


def now() -> str:
    return datetime.now(timezone.utc).isoformat(timespec="seconds")


def build_digest() -> str:
    """Return a hash of the extension's sources: which build the runs measure."""
    digest = hashlib.sha256()
    folders = [REPOSITORY / "src", REPOSITORY / "sql"]
    files = sorted(f for folder in folders if folder.is_dir() for f in folder.rglob("*"))
    for file in [REPOSITORY / "Makefile", *files]:
        if file.is_file() and file.suffix in ("", ".c", ".h", ".sql"):
            digest.update(file.relative_to(REPOSITORY).as_posix().encode())
            digest.update(file.read_bytes())
    return digest.hexdigest()[:12]


def git_commit() -> str | None:
    """Return the commit of the work tree, marked when files differ from it."""
    git = ["git", "-C", str(REPOSITORY)]
    try:
        head, status = (
            subprocess.run([*git, *words], capture_output=True, text=True, check=True).stdout
            for words in (["rev-parse", "--short=12", "HEAD"], ["status", "--porcelain"])
        )
    except (OSError, subprocess.CalledProcessError):
        return None
    return head.strip() + ("+changes" if status.strip() else "")


def _read(path: str) -> str | None:
    try:
        return Path(path).read_text().strip()
    except OSError:
        return None


def _field(path: str, key: str) -> str | None:
    """Return the value of the first `key: value` line of a /proc file."""
    for line in (_read(path) or "").splitlines():
        name, _, value = line.partition(":")
        if name.strip() == key:
            return value.strip()
    return None


def machine() -> dict[str, Any]:
    """Describe the machine: kernel, processor, memory."""
    return {
        "kernel": platform.release(),
        "architecture": platform.machine(),
        "cpus": os.cpu_count(),
        "cpu_model": _field("/proc/cpuinfo", "model name"),
        "memory": _field("/proc/meminfo", "MemTotal"),
        "load_average": _read("/proc/loadavg"),
    }


def device(folder: Path) -> dict[str, Any]:
    """Describe the block device and file system below *folder*."""
    name = device_of(folder)
    queue = queue_of(name) if name else None
    return {
        "device": name,
        "file_system": file_system(folder),
        "rotational": _read(f"{queue}/rotational"),
        "read_ahead_kb": _read(f"{queue}/read_ahead_kb"),
        "scheduler": _read(f"{queue}/scheduler"),
        "requests": _read(f"{queue}/nr_requests"),
    }


def file_system(folder: Path) -> str | None:
    """Return the type of the file system that *folder* is on."""
    best, kind = "", None
    for mount, found in mounts():
        if folder.resolve().is_relative_to(mount) and len(mount) >= len(best):
            best, kind = mount, found
    return kind


def command_line() -> str:
    """Return the command as typed, without the paths of this machine."""
    words = [word.replace(str(REPOSITORY), ".") for word in sys.argv[1:]]
    return " ".join([COMMAND, *words])


class Store:
    """The runs of one benchmark, on disk and in memory."""

    def __init__(self, folder: Path, lines: list[dict[str, Any]]) -> None:
        self.folder = folder
        self.lines = lines
        self._file: TextIO | None = None
        self._runs = {(r["cell"], r["pair"], r["arm"]): r for r in self.of("run")}
        self._answers = {(r["cell"], r["arm"]): r for r in self.of("answer")}
        self._settings = {r["digest"] for r in self.of("settings")}

    @classmethod
    def create(cls, folder: Path, definition: dict[str, Any], metadata: dict[str, Any]) -> Store:
        """Start a new file; an existing one is never overwritten."""
        cls.expect_none(folder)
        folder.mkdir(parents=True, exist_ok=True)
        store = cls(folder, [])
        header = {"type": "header", "format": FORMAT, "started": now()}
        store.add({**header, "definition": definition, "metadata": metadata})
        return store

    @staticmethod
    def expect_none(folder: Path) -> None:
        """Raise StoreError if there are runs in this folder already."""
        path = folder / RUNS_FILE
        if path.exists():
            raise StoreError(f"{path} exists; continue it with --resume or pick another --output")

    @classmethod
    def resume(cls, folder: Path, definition: dict[str, Any]) -> Store:
        """Continue a file whose definition is the same, or raise StoreError."""
        path = folder / RUNS_FILE
        if not path.exists():
            raise StoreError(f"nothing to resume: {path} does not exist")
        lines = read_lines(path)
        if not lines or lines[0].get("type") != "header":
            raise StoreError(f"{path} has no header line")
        differing = differences(lines[0]["definition"], definition)
        if differing:
            raise StoreError("cannot resume, these differ:\n  " + "\n  ".join(differing))
        return cls(folder, lines)

    def of(self, kind: str) -> list[dict[str, Any]]:
        return [line for line in self.lines if line.get("type") == kind]

    @property
    def header(self) -> dict[str, Any]:
        return self.lines[0]

    def add(self, line: dict[str, Any]) -> None:
        """Write one line and make sure it is on its way to the disk."""
        if self._file is None:
            self._file = (self.folder / RUNS_FILE).open("a")
        self._file.write(json.dumps(line) + "\n")
        self._file.flush()
        self.lines.append(line)
        if line["type"] == "run":
            self._runs[line["cell"], line["pair"], line["arm"]] = line
        elif line["type"] == "answer":
            self._answers[line["cell"], line["arm"]] = line

    def has_run(self, cell: str, pair: int, arm: str) -> bool:
        return (cell, pair, arm) in self._runs

    def has_answer(self, cell: str, arm: str) -> bool:
        return (cell, arm) in self._answers

    def has_check(self, cell: str) -> bool:
        return any(line["cell"] == cell for line in self.of("check"))

    def is_rejected(self, cell: str) -> bool:
        return any(line["cell"] == cell for line in self.of("rejected"))

    def note(self, text: str) -> None:
        if all(line["text"] != text for line in self.of("note")):
            self.add({"type": "note", "text": text})

    def settings(self, conn: Any, apart: Collection[str] = ()) -> str:
        """Return the digest of a session's settings, keeping each set once.

        The names in *apart* are those that the arms are meant to differ in.
        """
        every = server_settings(conn)
        found = {name: value for name, value in every.items() if name not in apart}
        digest = settings_digest(found)
        if digest not in self._settings:
            self._settings.add(digest)
            self.add({"type": "settings", "digest": digest, "settings": found})
        return digest

    def close(self) -> None:
        if self._file is not None:
            self._file.close()
            self._file = None


def read_lines(path: Path) -> list[dict[str, Any]]:
    """Read a file of JSON lines; a line cut off by a crash ends it."""
    lines = []
    kept = 0
    text = path.read_text()
    for line in text.splitlines(keepends=True):
        try:
            lines.append(json.loads(line))
        except json.JSONDecodeError:
            break
        kept += len(line.encode())
    if kept < len(text.encode()):
        # Appending after half a line would spoil the next one as well.
        os.truncate(path, kept)
    return lines


def differences(one: Any, other: Any, name: str = "") -> list[str]:
    """List where two JSON values differ, as `name: this -> that`."""
    if isinstance(one, dict) and isinstance(other, dict):
        found = []
        for key in sorted({*one, *other}):
            inner = f"{name}.{key}" if name else str(key)
            found += differences(one.get(key), other.get(key), inner)
        return found
    one = list(one) if isinstance(one, tuple) else one
    other = list(other) if isinstance(other, tuple) else other
    return [] if one == other else [f"{name}: {one} -> {other}"]
