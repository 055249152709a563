"""The tool's own virtual environments: one for all commands, one that tests and benchmarks need.

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

from . import packages, paths, start
from .errors import LookaheadError, MissingPackages, UsageError

TOOL = paths.REPOSITORY / "tool"
REQUIREMENTS = TOOL / "requirements.txt"
COMPLETE = ".complete"

# The commands that need more, and what.
TESTING = ("test", "bench")
TESTING_REQUIREMENTS = TOOL / "requirements-test.txt"


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
        python = environment(arguments[0] if arguments else "")
    except (LookaheadError, OSError) as error:
        print(f"lookahead: {error}", file=sys.stderr)
        usage = isinstance(error, UsageError)
        sys.exit(start.WRONG_USAGE if usage else start.failed(arguments))
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


def requirements(command: str) -> list[Path]:
    """Return the files that name what a command needs."""
    return [REQUIREMENTS, TESTING_REQUIREMENTS] if command in TESTING else [REQUIREMENTS]


def environment(command: str = "") -> Path:
    """Return the python of a command's environment; make the environment if need be.

    Its name holds the interpreter and the requirements: when either changes,
    another one is made.
    """
    files = requirements(command)
    wanted = "".join(file.read_text() for file in files)
    key = hashlib.sha256(f"{sys.base_prefix} {sys.version} {wanted}".encode()).hexdigest()[:10]
    name = f"{sys.version_info[0]}.{sys.version_info[1]}-{key}"
    place = paths.folder("venv") / (f"test-{name}" if command in TESTING else name)
    python = place / "bin" / "python"

    def usable() -> bool:
        # The second is a link, which dangles once the interpreter is removed.
        return (place / COMPLETE).exists() and python.exists()

    if not usable():
        with paths.locked("venv"):
            if not usable():
                _make(place, files)
    return python


def _make(place: Path, files: list[Path]) -> None:
    _say("preparing the tool's Python environment (only the first time)")
    if importlib.util.find_spec("ensurepip") is None:
        _get_ensurepip()
    with paths.replacing(place) as fresh:
        # Not through the venv module: what apt-get has just installed is not
        # visible to a running interpreter.
        _check(_run([sys.executable, "-m", "venv", "--clear", str(fresh)]), "create")
        fill = [
            str(fresh / "bin" / "python"), "-m", "pip", "install", "--quiet",
            "--no-input", "--disable-pip-version-check",
            *(word for file in files for word in ("--requirement", str(file))),
        ]  # fmt: skip
        filled = packages.persist(lambda: _run(fill), lambda done: done.returncode == 0)
        _check(filled, "fill", without_internet(files))
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
    # Elsewhere a module of the folder could come before one of Python's.
    return subprocess.run(
        command,
        cwd="/",
        env={**os.environ, **_whole_path("PIP_FIND_LINKS")},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
    )


def _whole_path(variable: str) -> dict[str, str]:
    """Return a variable with the whole path of a folder that is named from where we are."""
    place = os.environ.get(variable, "")
    return {variable: str(Path(place).resolve())} if place and Path(place).is_dir() else {}


def without_internet(files: list[Path]) -> str:
    """Say how to do without it."""
    names = " ".join(f"-r {file}" for file in files)
    return (
        "This needs the internet once. Without: download the packages elsewhere, for the same"
        f" Python and kind of machine,\n    pip download -d FOLDER {names}\n"
        "bring the folder here, and set PIP_NO_INDEX=1 and PIP_FIND_LINKS=FOLDER. doctor and top"
        " can also run on another\nmachine, from which the server can be reached."
    )


def _check(done: subprocess.CompletedProcess[str], verb: str, hint: str = "") -> None:
    if done.returncode:
        text = f"could not {verb} the tool's Python environment:\n{done.stdout.strip()}"
        raise LookaheadError(f"{text}\n{hint}" if hint else text)


def _say(text: str) -> None:
    print(f"lookahead: {text}", file=sys.stderr, flush=True)
