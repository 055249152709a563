"""Reading the machine's apt configuration, and getting sources with it."""

from __future__ import annotations

import contextlib
import functools
import hashlib
import http.server
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from lookahead import apt_source, paths
from lookahead.errors import LookaheadError

DEB822 = """\
Types: deb
# a comment between the fields
URIs: http://mirror.example/debian
Suites: bookworm bookworm-updates
Components: main
Signed-By: /usr/share/keyrings/archive.gpg

Types: deb
URIs: http://mirror.example/security
Suites: bookworm-security
Components: main

Enabled: no
Types: deb
URIs: http://disabled.example/debian
Suites: bookworm
Components: main
"""

INLINE_KEY = """\
Types: deb deb-src
URIs: http://mirror.example/debian
Suites: bookworm
Components: main
Signed-By:
 -----BEGIN PGP PUBLIC KEY BLOCK-----
 .
 abcdef
 -----END PGP PUBLIC KEY BLOCK-----
"""

ONE_LINE = """\
# deb http://commented.example/debian bookworm main
deb [arch=amd64 signed-by=/k.gpg] http://mirror.example/debian bookworm main contrib # end
deb http://third.example/apt stable main
deb-src http://mirror.example/debian bookworm main
"""


@pytest.fixture
def apt(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "sources.list.d").mkdir()
    monkeypatch.setattr(apt_source, "_code_name", lambda: "bookworm")
    return tmp_path


def test_deb822_takes_the_archive_of_the_distribution(apt: Path) -> None:
    (apt / "sources.list.d" / "debian.sources").write_text(DEB822)
    stanzas = apt_source.archive_stanzas(apt)
    assert [stanza["uris"] for stanza in stanzas] == ["http://mirror.example/debian"]
    text = apt_source.source_stanza(stanzas[0], "trixie")
    assert text.splitlines() == [
        "Types: deb-src",
        "Suites: trixie",
        "Uris: http://mirror.example/debian",
        "Components: main",
        "Signed-By: /usr/share/keyrings/archive.gpg",
    ]


def test_deb822_keeps_a_key_that_is_given_in_full(apt: Path) -> None:
    (apt / "sources.list.d" / "debian.sources").write_text(INLINE_KEY)
    text = apt_source.source_stanza(apt_source.archive_stanzas(apt)[0], "sid")
    assert "Signed-By: \n -----BEGIN PGP PUBLIC KEY BLOCK-----\n .\n abcdef\n" in text


def test_one_line_format(apt: Path) -> None:
    (apt / "sources.list").write_text(ONE_LINE)
    assert apt_source.archive_stanzas(apt) == [
        {
            "uris": "http://mirror.example/debian",
            "suites": "bookworm",
            "components": "main contrib",
            "signed-by": "/k.gpg",
        }
    ]


def test_no_archive(apt: Path) -> None:
    assert apt_source.archive_stanzas(apt) == []


def test_one_archive_is_named_once(apt: Path) -> None:
    (apt / "sources.list.d" / "debian.sources").write_text(DEB822)
    (apt / "sources.list").write_text("deb http://mirror.example/debian bookworm main\n")
    assert len(apt_source.archive_stanzas(apt)) == 1


@pytest.fixture
def mirror(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """A mirror on this machine that has the release before, and no lists."""
    if not Path(apt_source.APT_HELPER).exists():
        pytest.skip("needs apt")
    pool = tmp_path / "mirror" / "pool" / "main" / "p" / "postgresql-17"
    pool.mkdir(parents=True)
    (pool / "postgresql-17_17.1.orig.tar.bz2").write_bytes(b"source")
    monkeypatch.setenv("no_proxy", "127.0.0.1")
    monkeypatch.setattr(paths, "folder", lambda _: _made(tmp_path / "cache"))
    monkeypatch.setattr(paths, "locked", lambda _: contextlib.nullcontext())

    class Quiet(http.server.SimpleHTTPRequestHandler):
        def log_message(self, *_: object) -> None:
            pass

    handler = functools.partial(Quiet, directory=str(tmp_path / "mirror"))
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        uri = f"http://127.0.0.1:{server.server_address[1]}"
        stanza = {"uris": f"{uri}/empty {uri}/", "suites": "bookworm", "components": "main"}
        monkeypatch.setattr(apt_source, "archive_stanzas", lambda _: [stanza])
        yield uri
        server.shutdown()


def _made(folder: Path) -> Path:
    folder.mkdir(exist_ok=True)
    return folder


def _known(content: bytes) -> dict[int, tuple[str, str]]:
    return {17: ("postgresql-17_17.1.orig.tar.bz2", hashlib.sha256(content).hexdigest())}


def test_release_before_is_taken_if_the_newest_is_not_there(
    mirror: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(apt_source, "KNOWN", _known(b"source"))
    said: list[str] = []
    assert apt_source.fetch(17, said.append).read_bytes() == b"source"
    # Every suite was asked before.
    assert [line.rsplit(" ", 1)[1] for line in said] == [
        *apt_source.SUITES[17],
        "postgresql-17_17.1.orig.tar.bz2",
    ]


def test_other_content_than_was_known_is_refused(
    mirror: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(apt_source, "KNOWN", _known(b"what it should be"))
    with pytest.raises(LookaheadError, match="Hash Sum mismatch"):
        apt_source.fetch(17, lambda _: None)
    assert not list(paths.folder("src").iterdir())


def test_every_major_has_a_release_that_is_known() -> None:
    assert apt_source.KNOWN.keys() == apt_source.SUITES.keys()
    for major, (name, sha256) in apt_source.KNOWN.items():
        assert name.startswith(f"postgresql-{major}_{major}.")
        assert len(bytes.fromhex(sha256)) == hashlib.sha256().digest_size
