"""Fetching a source package from a suite that the machine does not use.

Each major is in one suite of the distribution or two, rarely the one that is
installed.  A private apt configuration, made from the machine's own, names
those suites: same mirror, same keys, and the system's apt is left alone.

A mirror that is being brought up to date may name a release in its lists and
not have its files yet.  The release before, which is still there, will do.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import tempfile
from collections.abc import Callable, Iterable
from pathlib import Path

from . import packages, paths
from .errors import LookaheadError

APT_FOLDER = Path("/etc/apt")

# Suites to try, per major.  Names of other distributions fail and are skipped.
SUITES = {
    15: ("bookworm",),
    17: ("trixie", "questing", "plucky"),
    18: ("forky", "sid", "resolute"),
}

# Tarballs with their SHA-256, for when no suite's can be had: what the suites'
# own lists, or the uploader's signature, gave for them.
KNOWN = {
    15: (
        "postgresql-15_15.18.orig.tar.bz2",
        "11df0df97fe3ea4ba9a791faaf39cee1d2fe571e78885b5b55d8517d27c323b4",
    ),
    17: (
        "postgresql-17_17.11.orig.tar.bz2",
        "dd27f2b3c59e73ed14aa3324901242bf69a032a6347805f274e6260322d42979",
    ),
    18: (
        "postgresql-18_18.6.orig.tar.bz2",
        "555610c24d53e4316da5b7d3fc25c279d96856d5e0e23ee308c328c5fa881d9f",
    ),
}
APT_HELPER = "/usr/lib/apt/apt-helper"

# What apt says when there is no use in trying once more.
NOT_THERE = re.compile(r"\b404\b|Unable to find a source package|put some 'deb-src' URIs")

Stanza = dict[str, str]


def fetch(major: int, log: Callable[[str], None]) -> Path:
    """Return the original tarball of this major's source package."""
    place = paths.folder("src")
    with paths.locked(f"src-{major}"):
        there = _tarball(place, major)
        if there:
            return there
        own = archive_stanzas(APT_FOLDER)
        if not own:
            raise LookaheadError(
                f"found no package archive in {APT_FOLDER} to take the source of"
                f" PostgreSQL {major} from"
            )
        failures = []
        for source in (*SUITES[major], KNOWN[major][0]):
            log(f"fetching the source of PostgreSQL {major} from {source}")
            with tempfile.TemporaryDirectory(prefix=f".{major}-", dir=place) as temporary:
                if source in SUITES[major]:
                    failure = _download(major, source, own, Path(temporary))
                else:
                    failure = _download_known(major, own, Path(temporary))
                got = _tarball(Path(temporary), major)
                if got:
                    for file in got.parent.glob(f"postgresql-{major}_*"):
                        if file != got:
                            shutil.move(file, place / file.name)
                    # Last, as this is the one that is looked for.
                    shutil.move(got, place / got.name)
                    return place / got.name
            failures.append(f"{source}: {failure}")
        raise LookaheadError(
            f"could not fetch the source package postgresql-{major}:\n" + "\n".join(failures)
        )


def _tarball(place: Path, major: int) -> Path | None:
    found = sorted(place.glob(f"postgresql-{major}_*.orig.tar.*"))
    found = [file for file in found if file.suffix in (".bz2", ".gz", ".xz")]
    return found[-1] if found else None


def _download(major: int, suite: str, own: Iterable[Stanza], target: Path) -> str:
    """Download into a folder; return what apt-get said if it failed."""
    apt = target / "apt"
    for name in ("lists/partial", "cache/archives/partial", "sources.list.d"):
        (apt / name).mkdir(parents=True)
    (apt / "sources.list.d" / "source.sources").write_text(
        "\n".join(source_stanza(stanza, suite) for stanza in own)
    )
    (apt / "apt.conf").write_text(
        'Dir::Etc::sourcelist "/dev/null";\n'
        f'Dir::Etc::sourceparts "{apt}/sources.list.d";\n'
        f'Dir::State::lists "{apt}/lists";\n'
        f'Dir::Cache "{apt}/cache";\n'
        'Acquire::Languages "none";\n'
        # apt's own user cannot write into our folder; the files are checked
        # against the signed lists whoever downloads them.
        'APT::Sandbox::User "root";\n'
    )
    commands = (
        ["apt-get", "-c", str(apt / "apt.conf"), "-q", "update"],
        ["apt-get", "-c", str(apt / "apt.conf"), "-q", "source", "--download-only",
         f"postgresql-{major}"],
    )  # fmt: skip
    for command in commands:
        failure = _apt(command, target)
    return failure


def _download_known(major: int, own: Iterable[Stanza], target: Path) -> str:
    """Download the tarball that we know into a folder; return what went wrong, if so."""
    name, sha256 = KNOWN[major]
    failures = []
    for uri in (uri for stanza in own for uri in stanza["uris"].split()):
        path = f"{uri.rstrip('/')}/pool/main/p/postgresql-{major}/{name}"
        failure = _apt(
            [APT_HELPER, "download-file", path, str(target / name), f"SHA256:{sha256}"], target
        )
        if not failure:
            return ""
        (target / name).unlink(missing_ok=True)
        failures.append(failure)
    return "\n".join(failures)


def _apt(command: list[str], folder: Path) -> str:
    """Run a command of apt in a folder; return what it said if it failed."""

    def run() -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [command[0], *packages.RETRIES, *command[1:]],
            cwd=folder,
            env={**os.environ, "LC_ALL": "C"},
            capture_output=True,
            text=True,
            check=False,
            stdin=subprocess.DEVNULL,
        )

    def is_final(done: subprocess.CompletedProcess[str]) -> bool:
        return done.returncode == 0 or bool(NOT_THERE.search(done.stdout + done.stderr))

    done = packages.persist(run, is_final)
    if done.returncode == 0:
        return ""
    return done.stderr.strip() or done.stdout.strip() or f"exit code {done.returncode}"


def source_stanza(stanza: Stanza, suite: str) -> str:
    """Return one of the machine's stanzas, for the source packages of a suite."""
    kept = {name: text for name, text in stanza.items() if name not in ("types", "suites")}
    lines = ["Types: deb-src", f"Suites: {suite}"]
    lines += [f"{name.title()}: {text}" for name, text in kept.items()]
    return "\n".join(lines) + "\n"


def archive_stanzas(folder: Path) -> list[Stanza]:
    """Return where the machine's own distribution comes from.

    That is every archive from which it takes a suite of its own name: third
    parties' archives have names of their own, or name no such suite as we
    look for, which is then their failure and not ours.
    """
    found: list[Stanza] = []
    parts = folder / "sources.list.d"
    for file in sorted(parts.glob("*.sources")):
        found += _read_deb822(file.read_text(errors="replace"))
    for file in [folder / "sources.list", *sorted(parts.glob("*.list"))]:
        if file.exists():
            found += _read_one_line(file.read_text(errors="replace"))
    code_name = _code_name()
    own = [stanza for stanza in found if code_name in stanza["suites"].split()]
    unique: dict[str, Stanza] = {}
    for stanza in own:
        unique.setdefault(stanza["uris"], stanza)
    return list(unique.values())


def _code_name(file: Path = Path("/etc/os-release")) -> str:
    if not file.exists():
        return ""
    found = re.search(r'^VERSION_CODENAME="?([\w.-]+)', file.read_text(), re.MULTILINE)
    # Debian's unstable and testing have none.
    return found[1] if found else "sid"


def _read_deb822(text: str) -> list[Stanza]:
    stanzas = []
    for block in re.split(r"\n\s*\n", text):
        fields: Stanza = {}
        last = ""
        for line in block.splitlines():
            if line.startswith("#"):
                continue
            if line[:1].isspace() and last:
                # A continuation: a key that is given in full has many.
                fields[last] += "\n" + line
            elif ":" in line:
                name, _, value = line.partition(":")
                last = name.strip().lower()
                fields[last] = value.strip()
        disabled = fields.get("enabled", "yes").lower() in ("no", "false", "0")
        if "deb" in fields.get("types", "").split() and not disabled:
            fields.pop("enabled", None)
            fields.setdefault("suites", "")
            stanzas.append(fields)
    return stanzas


def _read_one_line(text: str) -> list[Stanza]:
    stanzas = []
    pattern = r"^\s*deb\s+(?:\[([^\]]*)\]\s+)?(\S+)\s+(\S+)\s+([^#\n]+)"
    for options, uri, suite, components in re.findall(pattern, text, re.MULTILINE):
        stanza = {"uris": uri, "suites": suite, "components": components.strip()}
        for name, _, value in (option.partition("=") for option in options.split()):
            if name.lower() == "signed-by":
                stanza["signed-by"] = value
        stanzas.append(stanza)
    return stanzas
