"""The tool's own virtual environment.

The launcher runs this with whatever python3 there is, so it may import only
the standard library and modules that do.
"""

from __future__ import annotations

import hashlib
import importlib.util
import os
import subprocess
import sys
from pathlib import Path
from typing import NoReturn

from . import packages, paths
from .errors import LookaheadError, MissingPackages, UsageError

TOOL = paths.REPOSITORY / "tool"
REQUIREMENTS = TOOL / "requirements.txt"
COMPLETE = ".complete"


# What is run instead of `-m lookahead`: before 3.11 that puts the current folder
# in front of everything, whoever may write there, and knows no PYTHONSAFEPATH.
START = (
    "import sys; sys.path[:] = [place for place in sys.path if place];"
    " from lookahead.cli import main; main()"
)


def enter(arguments: list[str]) -> NoReturn:
    """Replace this process by the tool, in its environment."""
    os.umask(0o022)
    try:
        python = environment()
    except LookaheadError as error:
        print(f"lookahead: {error}", file=sys.stderr)
        sys.exit(2 if isinstance(error, UsageError) else 1)
    except OSError as error:
        print(f"lookahead: {error}", file=sys.stderr)
        sys.exit(1)
    except KeyboardInterrupt:
        sys.exit(130)
    variables = dict(os.environ)
    others = variables.get("PYTHONPATH")
    variables["PYTHONPATH"] = f"{TOOL}{os.pathsep}{others}" if others else str(TOOL)
    # Neither should the current folder's files be imported, nor bytecode be
    # left in a checkout.
    variables["PYTHONSAFEPATH"] = "1"
    variables["PYTHONDONTWRITEBYTECODE"] = "1"
    sys.stdout.flush()
    os.execve(python, [str(python), "-c", START, *arguments], variables)


def environment() -> Path:
    """Return the environment's python; make the environment if need be.

    Its name holds the interpreter and the requirements: when either changes,
    another one is made.
    """
    wanted = REQUIREMENTS.read_text()
    key = hashlib.sha256(f"{sys.base_prefix} {sys.version} {wanted}".encode()).hexdigest()[:10]
    place = paths.folder("venv") / f"{sys.version_info[0]}.{sys.version_info[1]}-{key}"
    python = place / "bin" / "python"

    def usable() -> bool:
        # The second is a link, which dangles once the interpreter is removed.
        return (place / COMPLETE).exists() and python.exists()

    if not usable():
        with paths.locked("venv"):
            if not usable():
                _make(place)
    return python


def _make(place: Path) -> None:
    _say("preparing the tool's Python environment (only the first time)")
    if importlib.util.find_spec("ensurepip") is None:
        _get_ensurepip()
    with paths.replacing(place) as fresh:
        # Not through the venv module: what apt-get has just installed is not
        # visible to a running interpreter.
        _check(_run([sys.executable, "-m", "venv", "--clear", str(fresh)]), "create")
        fill = [
            str(fresh / "bin" / "python"), "-m", "pip", "install", "--quiet",
            "--no-input", "--disable-pip-version-check", "--requirement", str(REQUIREMENTS),
        ]  # fmt: skip
        _check(packages.persist(lambda: _run(fill), lambda done: done.returncode == 0), "fill")
        fresh.chmod(paths.FOLDER_MODE)
        (fresh / COMPLETE).touch()


def _get_ensurepip() -> None:
    """Debian keeps a part of Python's standard library in another package."""
    what = "Python's venv module is incomplete."
    names = ["python3-venv"]
    # A Python that is not the distribution's has no packages.
    if not sys.executable.startswith("/usr/bin/"):
        raise LookaheadError(f"{what}\n{sys.executable} has no ensurepip; use another Python.")
    if os.geteuid() != 0:
        raise MissingPackages(what, names)
    packages.ensure(names, what, _say)


def _run(command: list[str]) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        command,
        cwd="/",
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
    )


def _check(done: subprocess.CompletedProcess[str], verb: str) -> None:
    if done.returncode:
        raise LookaheadError(
            f"could not {verb} the tool's Python environment:\n{done.stdout.strip()}"
        )


def _say(text: str) -> None:
    print(f"lookahead: {text}", file=sys.stderr, flush=True)
