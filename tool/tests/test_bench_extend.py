"""`bench extend`: its cases, and how calls and pages are judged."""

from __future__ import annotations

from typing import Any

import pytest

from lookahead.bench_extend import CHECKS, DISK, GOALS, GROUPS, SLOW, STORAGES, cases
from lookahead.bench_extend_run import growing_calls, size_faults
from lookahead.bench_pairs import RunCell
from lookahead.servers import Server

TRACE = """\
pwrite64(5</data/base/5/16384>, ""..., 8192, 0) = 8192
pwrite64(5</data/base/5/16384>, ""..., 8192, 8192) = 8192
pwrite64(5</data/base/5/16384>, ""..., 8192, 0) = 8192
pwrite64(6</data/base/5/163840>, ""..., 8192, 81920) = 8192
pwritev(5</data/base/5/16384>, [{iov_base=""..., iov_len=8192}], 1, 16384) = 8192
fallocate(5</data/base/5/16384>, 0, 24576, 4194304) = 0
pwrite64(5</data/base/5/16384>, ""..., 8192, 32768) = 8192
pwrite64(5</data/base/5/16384>, ""..., 8192, 4218880) = -1 ENOSPC (No space left on device)
pwrite64(5</data/base/5/16384>, ""..., 8192, 4218880) = 8192
pwrite64(7</data/base/5/16384.1>, ""..., 8192, 0) = 8192
--- SIGUSR1 {si_signo=SIGUSR1, si_code=SI_USER} ---
"""


def test_calls_that_make_a_file_longer() -> None:
    """Those that write inside of it, that fail or that go to other files do not count."""
    assert growing_calls(TRACE, "/16384") == 6


def test_cases() -> None:
    """Checks are made on the disk only; everything else on each storage."""
    server: Any = type("S", (), {"name": "18-x"})
    chosen: list[Server] = [server]
    found = cases(chosen, GROUPS, STORAGES)
    assert len(found) == len(GROUPS) + len(GROUPS) - len(CHECKS)
    assert len({case.id for case in found}) == len(found)
    for case in found:
        cell: RunCell = case
        assert cell.pair_factor == 1
        if case.group not in CHECKS:
            assert case.goal == GOALS[case.group, case.storage]
    assert {case.storage for case in cases(chosen, CHECKS, STORAGES)} == {DISK}
    assert cases(chosen, CHECKS, [SLOW]) == []


@pytest.mark.parametrize(
    ("change", "faults"),
    [
        ({}, 0),
        ({"small_pages": 11}, 1),
        ({"spare": 512}, 0),
        ({"spare": 513}, 1),
        ({"lost": 1, "spare": 600}, 2),
    ],
)
def test_sizes(change: dict[str, int], faults: int) -> None:
    stock = {"small_pages": 10, "pages": 5000, "spare": 0, "lost": 0}
    assert len(size_faults({"stock": stock, "lookahead": {**stock, **change}})) == faults
