"""Reading the machine's apt configuration."""

from __future__ import annotations

from pathlib import Path

import pytest

from lookahead import apt_source

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
