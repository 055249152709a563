"""Running PostgreSQL as a user without privileges.

PostgreSQL refuses to run as root.  When the tool itself is root (containers,
CI), every server program runs as another user, who owns the data directories
but nothing else.
"""

from __future__ import annotations

import os
import pwd
import shutil
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from .errors import LookaheadError

# The first of these that exists; the second is created where it can be.
POSTGRES_USER = "postgres"
OWN_USER = "pg_lookahead"
LAST_RESORT = "nobody"


@dataclass(frozen=True)
class Account:
    """The user that servers run as."""

    name: str
    uid: int
    gid: int


def unprivileged() -> Account | None:
    """Return the user for server programs; None when the tool is not root."""
    return _account() if os.geteuid() == 0 else None


@cache
def _account() -> Account:
    for name in (POSTGRES_USER, OWN_USER):
        with_name = _lookup(name)
        if with_name:
            return with_name
    if shutil.which("useradd"):
        command = ["useradd", "--system", "--no-create-home", "--shell", "/bin/sh", OWN_USER]
        subprocess.run(command, check=False, capture_output=True)
    account = _lookup(OWN_USER) or _lookup(LAST_RESORT)
    if account is None:
        raise LookaheadError(
            "PostgreSQL refuses to run as root, and there is no user to run it as.\n"
            f"Create one: useradd --system {OWN_USER}"
        )
    return account


def _lookup(name: str) -> Account | None:
    try:
        entry = pwd.getpwnam(name)
    except KeyError:
        return None
    return Account(name, entry.pw_uid, entry.pw_gid) if entry.pw_uid else None


def environment(extra: Mapping[str, str] | None = None) -> dict[str, str]:
    """Return an environment for server programs and clients.

    The caller's PG* variables would send them to another server, and its
    locale would translate the messages that tests compare.
    """
    clean = {name: value for name, value in os.environ.items() if not name.startswith("PG")}
    clean.update(LC_ALL="C", LANG="C")
    if extra:
        clean.update(extra)
    return clean


def as_user() -> dict[str, Any]:
    """Return the arguments of subprocess.run that drop root's privileges."""
    account = unprivileged()
    if account is None:
        return {}
    return {"user": account.uid, "group": account.gid, "extra_groups": []}


def run(
    command: Sequence[str | os.PathLike[str]],
    *,
    cwd: Path,
    env: Mapping[str, str] | None = None,
    **options: Any,
) -> subprocess.CompletedProcess[str]:
    """Run a program as the unprivileged user, in a folder it can enter."""
    return subprocess.run(
        [os.fspath(part) for part in command],
        cwd=cwd,
        env=environment(env),
        text=True,
        check=False,
        stdin=subprocess.DEVNULL,
        **as_user(),
        **options,
    )


def give(place: Path) -> None:
    """Make a file or folder, and what is in it, the unprivileged user's."""
    account = unprivileged()
    if account is None:
        return
    os.chown(place, account.uid, account.gid, follow_symlinks=False)
    if place.is_symlink():
        return
    # By descriptors: a folder that is theirs by now may become a link meanwhile.
    for _, folders, files, opened in os.fwalk(place):
        for name in (*folders, *files):
            os.chown(name, account.uid, account.gid, dir_fd=opened, follow_symlinks=False)


def copy_tree(source: Path, target: Path) -> None:
    """Copy a folder of the unprivileged user's to a new one in another of theirs.

    As that user: root would follow links in it, and give away what they point to.
    """
    done = run(["cp", "-a", "-T", "--", source, target], cwd=Path("/"), stderr=subprocess.PIPE)
    if done.returncode:
        raise LookaheadError(f"{source} cannot be copied: {done.stderr.strip()}")


def write(place: Path, text: str, *, append: bool = False, mode: int = 0o600) -> None:
    """Write a file of the unprivileged user's, in a folder of theirs.

    As that user: a link there, or in place of a folder above, could have root write,
    and give away, anything.
    """
    script = f'umask 077 && cat {">>" if append else ">"} "$1" && chmod {mode:o} "$1"'
    done = subprocess.run(
        ["sh", "-c", script, "sh", str(place)],
        check=False, cwd="/", input=text, text=True, stderr=subprocess.PIPE, **as_user(),
    )  # fmt: skip
    if done.returncode:
        raise LookaheadError(f"{place} cannot be written: {done.stderr.strip()}")


def working_folder(pid: int) -> Path:
    """Return the folder that a process of the unprivileged user's works in; OSError if none.

    In most containers root may not look, but that user may.
    """
    link = Path(f"/proc/{pid}/cwd")
    try:
        return link.readlink()
    except PermissionError:
        done = subprocess.run(
            ["readlink", str(link)],
            check=False, cwd="/", capture_output=True, text=True, **as_user(),
        )  # fmt: skip
        if done.returncode:
            raise
        return Path(done.stdout.removesuffix("\n"))


def require_readable(place: Path, what: str) -> None:
    """Fail with advice when the unprivileged user cannot reach a folder."""
    account = unprivileged()
    if account is None:
        return
    # `test -r` by that user is the only answer that knows every parent's mode.
    done = subprocess.run(
        ["test", "-r", str(place), "-a", "-x", str(place)], check=False, cwd="/", **as_user()
    )
    if done.returncode:
        raise LookaheadError(
            f"user {account.name}, who runs the servers, cannot read {place} ({what}).\n"
            "Set LOOKAHEAD_CACHE and LOOKAHEAD_TMP to folders that every user may enter."
        )
