"""Reading what pg_regress prints, old and new."""

from __future__ import annotations

import pytest

from lookahead.regress import read_output

OLD = """\
============== creating database "contrib_regression" ==============
CREATE DATABASE
test guc                          ... ok           20 ms
parallel group (2 tests):  scan  explain
     scan                         ... ok          120 ms
     explain                      ... FAILED      130 ms
test last                         ... FAILED (test process exited with exit code 2)    9 ms

======================
 2 of 4 tests failed.
======================
"""

TAP = """\
# using postmaster on /tmp, port 5432
ok 1         - guc                                        20 ms
# parallel group (2 tests):  scan explain
ok 2         + scan                                      120 ms
not ok 3     + explain                                   130 ms
# (test process exited with exit code 2)
not ok 4     - last                                        9 ms
1..4
# 2 of 4 tests failed.
"""


@pytest.mark.parametrize("text", [OLD, TAP])
def test_both_formats(text: str) -> None:
    outcome = read_output(text, 1)
    assert outcome.passed == ["guc", "scan"]
    assert outcome.failed == ["explain", "last"]


def test_breaking_off_is_a_failure() -> None:
    outcome = read_output("could not connect\n", 2)
    assert len(outcome.failed) == 1
    assert "could not connect" in outcome.details


def test_nothing_run_is_a_failure() -> None:
    assert len(read_output("1..0\n", 0).failed) == 1
