"""What of a server can be shown by `lookahead top`, and stored samples."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

from lookahead.top_sample import (
    OWNERS,
    PARTS,
    RELATIONS,
    SERVICE,
    Missing,
    Right,
    Server,
    availability,
    from_json,
    to_json,
)

SAMPLES = Path(__file__).parent / "test_top_samples.json"

SERVER = Server(
    version_num=170006,
    version="17.6",
    started="2026-11-21T08:00:00+00:00",
    database="shop",
    username="bob",
    block_size=8192,
    library_version="0.1.0",
    preloaded=True,
    method="worker",
    reason="",
    io_workers=2,
    preload_libraries="pg_lookahead",
)

NO_RIGHTS = dict.fromkeys(PARTS, Right(allowed=False))


def only(found: list[Missing]) -> Missing:
    assert len(found) == 1
    return found[0]


def test_samples_survive_json() -> None:
    for data in json.loads(SAMPLES.read_text()):
        sample = from_json(data)
        assert from_json(json.loads(json.dumps(to_json(sample)))) == sample


def test_missing_survives_json() -> None:
    sample = from_json(json.loads(SAMPLES.read_text())[0])
    sample = replace(sample, missing=(Missing(PARTS, "because", "do", ("this;",)),))
    assert from_json(json.loads(json.dumps(to_json(sample)))) == sample


def test_everything_is_there() -> None:
    found = availability(SERVER, dict.fromkeys(PARTS, Right()))
    assert found.missing == []
    assert all(found.has(part) for part in PARTS)


def test_not_preloaded_is_the_only_reason() -> None:
    """Neither what follows from it nor rights, which would not help, are told."""
    server = replace(SERVER, preloaded=False, io_workers=0, preload_libraries='auto_explain, "x"')
    missing = only(availability(server, NO_RIGHTS).missing)
    assert missing.parts == PARTS
    assert missing.commands == (
        "ALTER SYSTEM SET shared_preload_libraries = 'auto_explain', 'x', 'pg_lookahead';",
    )


def test_not_preloaded_and_not_allowed_to_see_what_is() -> None:
    server = replace(SERVER, preloaded=False, preload_libraries=None)
    missing = only(availability(server, {}).missing)
    assert missing.commands == ()
    assert "shared_preload_libraries" in missing.hint


def test_no_service() -> None:
    found = availability(replace(SERVER, io_workers=0), {})
    missing = only(found.missing)
    assert missing.parts == (SERVICE, OWNERS)
    assert "by itself" not in missing.hint
    assert missing.commands == ("ALTER SYSTEM SET pg_lookahead.io_workers = 2;",)
    assert found.has(RELATIONS)


def test_no_service_where_the_server_reads_ahead_itself() -> None:
    missing = only(availability(replace(SERVER, io_workers=0, version_num=180001), {}).missing)
    assert "by itself" in missing.hint


def test_a_library_without_a_service() -> None:
    missing = only(availability(replace(SERVER, io_workers=None), {}).missing)
    assert "0.1.0" in missing.reason
    assert missing.parts == (SERVICE, OWNERS)


def test_an_extension_of_an_older_version() -> None:
    rights = {SERVICE: Right(there=False, allowed=False), OWNERS: Right(there=False)}
    missing = only(availability(SERVER, rights).missing)
    assert missing.parts == (SERVICE, OWNERS)
    assert missing.commands == ("ALTER EXTENSION pg_lookahead UPDATE;",)


def test_no_rights() -> None:
    missing = only(availability(replace(SERVER, username='o"dd'), NO_RIGHTS).missing)
    assert missing.parts == PARTS
    assert missing.commands == ('GRANT pg_monitor TO "o""dd";',)


def test_no_service_and_no_rights() -> None:
    found = availability(replace(SERVER, io_workers=0), NO_RIGHTS)
    assert [missing.parts for missing in found.missing] == [(SERVICE, OWNERS), (RELATIONS,)]
