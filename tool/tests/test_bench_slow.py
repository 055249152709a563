"""Which groups of a benchmark can run on slow storage, and which runs find room."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from types import SimpleNamespace

import pytest

from lookahead import (
    bench,
    bench_index_scan,
    bench_io_service,
    bench_leaf,
    disk_space,
    slow_storage,
)
from lookahead.bench_io_service import SLOW_GROUPS
from lookahead.bench_session import (
    Options,
    Tuned,
    definition_of,
    delayed_groups,
    possible_groups,
    require_space,
)
from lookahead.errors import LookaheadError, UsageError
from lookahead.servers import Server

POSSIBLE = ("random", "matrix")


@pytest.fixture
def fuse(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(slow_storage, "lacking", lambda log: None)


def test_without_a_delay_all_run() -> None:
    assert delayed_groups(["cached", "random"], POSSIBLE, 0) == ["cached", "random"]


def test_groups_that_read_nothing_are_left_out(fuse: None) -> None:
    assert delayed_groups(["cached", "random"], POSSIBLE, 1000) == ["random"]
    with pytest.raises(UsageError, match="random, matrix"):
        delayed_groups(["cached"], POSSIBLE, 1000)


def test_without_fuse_it_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(slow_storage, "why_not", lambda: "no /dev/fuse")
    with pytest.raises(LookaheadError, match="no /dev/fuse"):
        delayed_groups(["random"], POSSIBLE, 1000)


@pytest.mark.parametrize("module", [bench_index_scan, bench_io_service, bench_leaf])
def test_they_are_groups(module: object) -> None:
    assert set(module.READING_GROUPS) < set(module.GROUPS)  # type: ignore[attr-defined]


def test_runs_of_another_storage_are_others() -> None:
    scale = bench_index_scan.quick()
    options = Options(
        only=None, pairs=None, output=None, match=None, quick=True, resume=False,
        markdown=False, huge_pages=False, extension=False,
    )  # fmt: skip
    disk = definition_of(options, scale, Tuned())
    slow = definition_of(dataclasses.replace(options, read_delay_us=1000), scale, Tuned())
    assert disk != slow
    assert slow["read_delay_us"] == 1000


def test_a_group_that_needs_slow_storage_is_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    """The others run, and the result says so; alone it is an error."""
    monkeypatch.setattr(slow_storage, "why_not", lambda: None)
    monkeypatch.setattr(slow_storage, "program", lambda log: Path("slowfs"))
    assert possible_groups(["vacuum", "vacuum-wal"], SLOW_GROUPS) == (["vacuum", "vacuum-wal"], [])

    def fail(log: object) -> Path:
        raise LookaheadError("no compiler")

    monkeypatch.setattr(slow_storage, "program", fail)
    groups, notes = possible_groups(["vacuum", "vacuum-wal"], SLOW_GROUPS)
    assert groups == ["vacuum"]
    assert notes == ["left out, as there is no slow storage: vacuum-wal (no compiler)"]
    assert possible_groups(["vacuum"], SLOW_GROUPS) == (["vacuum"], [])
    with pytest.raises(LookaheadError, match="no compiler"):
        possible_groups(["vacuum-wal"], SLOW_GROUPS)


def test_a_whole_run_needs_room(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """One of which only a part is made, or that is smaller, has not the figures for it."""
    monkeypatch.setenv("LOOKAHEAD_CACHE", str(tmp_path))
    monkeypatch.setattr("shutil.disk_usage", lambda place: SimpleNamespace(free=4000 << 20))
    there = [Server("18-x", 18, "18", tmp_path, tmp_path, False, False)]
    options = Options(
        only=None, pairs=None, output=None, match=None, quick=False, resume=False,
        markdown=False, huge_pages=False, extension=False,
    )  # fmt: skip
    scale = bench_io_service.full(bench.DEFAULT_ROWS)
    with pytest.raises(LookaheadError, match=r"bench io-service needs 5000 MB .*--only"):
        require_space(bench.IO_SERVICE, options, scale, there)
    require_space(bench.LEAF, options, bench_leaf.full(bench_leaf.DEFAULT_ROWS), there)
    with pytest.raises(LookaheadError, match="7000 MB"):
        require_space(bench.LEAF, options, bench_leaf.full(bench_leaf.DEFAULT_ROWS), other(there))
    indexes = bench_index_scan.full(bench.DEFAULT_ROWS)
    with pytest.raises(LookaheadError, match="10500 MB"):
        require_space(bench.INDEX_SCAN, options, indexes, other(there))
    require_space(bench.IO_SERVICE, options, bench_io_service.quick(), there)
    some = dataclasses.replace(options, only=["vacuum"])
    require_space(bench.IO_SERVICE, some, scale, there)
    # What is there need not be made.
    for name in (bench.IO_SERVICE.data_name(scale), "leaf-other"):
        (tmp_path / "bench-data" / "18-x" / name).mkdir(parents=True)
    monkeypatch.setattr(disk_space, "used_mb", lambda folders: 1000 * len(list(folders)))
    require_space(bench.IO_SERVICE, options, scale, there)


def other(there: list[Server]) -> list[Server]:
    return [*there, dataclasses.replace(there[0], name="15-x", major=15)]
