"""From stored samples to rates."""

from __future__ import annotations

import json
from collections.abc import Callable
from copy import deepcopy
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from lookahead.top_rates import as_data, rates
from lookahead.top_sample import Part, Row, Sample, from_json

SAMPLES = Path(__file__).parent / "test_top_samples.json"


@pytest.fixture
def samples() -> list[Sample]:
    """Three, two seconds apart; one of a server that is away; one after its restart."""
    return [from_json(data) for data in json.loads(SAMPLES.read_text())]


def changed(part: Part | None, change: Callable[[list[Row]], Any], at: float = 0) -> Part:
    """Return a part with other rows, or made some seconds later."""
    assert part is not None
    rows = deepcopy(part.rows)
    change(rows)
    return Part(part.at + at, rows)


def same(rows: list[Row]) -> None:
    pass


def test_the_service(samples: list[Sample]) -> None:
    found = rates(samples[0], samples[1])
    assert found.seconds == 2
    assert found.service is not None
    expected = {
        "blocks_read_per_second": 6400,
        "bytes_per_second": 6400 * 8192,
        "reads_per_second": 400,
        "blocks_per_read": 16,
        "requests_per_second": 500,
        "merged_per_second": 60,
        "dropped_per_second": 2.5,
        "blocks_passed_per_second": 4,
        "request_latency_us": 2000,
        "read_latency_us": 400,
        "queue_depth": 30,
        "ring_bytes": 2 * 4096 * 8192,
        "requests_total": 3000,
    }
    assert {name: found.service[name] for name in expected} == pytest.approx(expected)


def test_each_worker(samples: list[Sample]) -> None:
    workers = rates(samples[0], samples[1]).workers
    assert workers is not None
    assert [(w["worker"], w["pid"], w["dropped_per_second"]) for w in workers] == [
        (0, 101, 0),
        (1, 102, 2.5),
    ]


def test_the_first_sample_has_what_is_of_the_moment(samples: list[Sample]) -> None:
    found = rates(None, samples[0])
    assert found.seconds is None
    assert found.service is not None
    assert found.service["reads_per_second"] is None
    assert found.service["request_latency_us"] is None
    assert found.service["queue_depth"] == 24
    assert found.relations == []
    assert found.lookahead is not None
    assert set(found.lookahead.values()) == {None}
    assert found.owners is not None
    assert [owner["blocks_per_second"] for owner in found.owners] == [None] * 4
    assert found.owners[0]["ahead_blocks"] == 4000


def test_an_interval_without_work(samples: list[Sample]) -> None:
    """No reads have no latency; that is not the same as 0."""
    later = replace(samples[1], workers=changed(samples[1].workers, same, at=1))
    service = rates(samples[1], later).service
    assert service is not None
    assert service["reads_per_second"] == 0
    assert service["read_latency_us"] is None
    assert service["blocks_per_read"] is None


def test_away(samples: list[Sample]) -> None:
    found = rates(samples[2], samples[3])
    assert (found.service, found.owners, found.relations) == (None, None, None)


@pytest.mark.parametrize("before", [2, 3])
def test_another_connection_is_a_new_beginning(samples: list[Sample], before: int) -> None:
    found = rates(samples[before], samples[4])
    assert found.seconds is None
    assert found.service is not None
    assert found.service["reads_per_second"] is None
    assert found.service["errors_total"] == 0


def test_counters_that_began_anew(samples: list[Sample]) -> None:
    def begin(rows: list[Row]) -> None:
        rows[1]["reads"] = 3

    later = replace(samples[1], workers=changed(samples[1].workers, begin))
    found = rates(samples[0], later)
    assert found.workers is not None
    assert found.workers[0]["reads_per_second"] == 200
    assert found.workers[1]["reads_per_second"] is None
    assert found.service is not None
    assert found.service["reads_per_second"] is None


def test_a_clock_that_was_set_back(samples: list[Sample]) -> None:
    later = replace(
        samples[1],
        workers=changed(samples[1].workers, same, at=-60),
        owners=changed(samples[1].owners, same, at=-60),
        relations=changed(samples[1].relations, same, at=-60),
    )
    found = rates(samples[0], later)
    assert found.seconds is None
    assert found.service is not None
    assert found.service["reads_per_second"] is None
    assert found.relations == []
    assert found.owners is not None
    assert found.owners[0]["blocks_per_second"] is None


def test_a_server_without_the_service(samples: list[Sample]) -> None:
    one, two = (replace(s, status=None, workers=None, owners=None) for s in samples[:2])
    found = rates(one, two)
    assert (found.service, found.workers, found.owners) == (None, None, None)
    assert found.seconds == 2
    assert found.relations


def test_what_is_looked_ahead(samples: list[Sample]) -> None:
    owners = rates(samples[0], samples[1]).owners
    assert owners is not None
    orders, items, products, old = owners
    assert orders["ahead_blocks"] == 4000
    assert orders["blocks_per_second"] == 4500
    assert orders["done"] == pytest.approx(29000 / 137000)
    assert items["blocks_per_second"] == 250
    # In the order of an index.
    assert [products[name] for name in ("ahead_blocks", "done", "blocks_per_second")] == [None] * 3
    # It has overtaken what was asked for, and nobody knows how large it is.
    assert (old["ahead_blocks"], old["done"]) == (0, None)


def test_a_table_that_has_grown(samples: list[Sample]) -> None:
    def shrink(rows: list[Row]) -> None:
        rows[0]["blocks"] = 100

    owners = rates(None, replace(samples[0], owners=changed(samples[0].owners, shrink))).owners
    assert owners is not None
    assert owners[0]["done"] is None


def test_a_scan_that_began_again(samples: list[Sample]) -> None:
    def begin(rows: list[Row]) -> None:
        rows[0]["position"] = 1

    owners = rates(samples[0], replace(samples[1], owners=changed(samples[1].owners, begin))).owners
    assert owners is not None
    assert owners[0]["blocks_per_second"] is None


def test_two_scans_of_one_relation_in_one_process(samples: list[Sample]) -> None:
    later = replace(
        samples[1], owners=changed(samples[1].owners, lambda rows: rows.append(dict(rows[0])))
    )
    owners = rates(samples[0], later).owners
    assert owners is not None
    assert [owner["blocks_per_second"] for owner in owners] == [None, 250, None, 0, None]


def test_busiest_relations(samples: list[Sample]) -> None:
    found = rates(samples[0], samples[1])
    assert found.relations is not None
    # The first is new in the view; "customers" was not touched.
    assert [(r["relation"], r["blocks_issued"]) for r in found.relations] == [
        ('"Odd name"', 5300),
        ("products", 800),
    ]
    assert found.lookahead is not None
    assert found.lookahead["blocks_issued_per_second"] == pytest.approx(3050)


def test_a_relation_whose_counters_were_reset(samples: list[Sample]) -> None:
    def reset(rows: list[Row]) -> None:
        for row in rows:
            row.update(stats_reset=row["stats_reset"] + 5)
        # More than before all the same.
        rows[0]["blocks_issued"] = 6000

    later = replace(samples[1], relations=changed(samples[1].relations, reset))
    found = rates(samples[0], later).relations
    assert found is not None
    assert found[0]["relation"] == "products"
    assert found[0]["blocks_issued"] == 6000


def test_json(samples: list[Sample]) -> None:
    for number, sample in enumerate(samples):
        before = samples[number - 1] if number else None
        data = json.loads(json.dumps(as_data(sample, rates(before, sample))))
        assert list(data) == [
            "time", "seconds", "away", "server", "missing", "service", "workers", "owners",
            "relations", "lookahead",
        ]  # fmt: skip
        assert (data["away"] is None) == (number != 3)
        assert (data["service"] is None) == (number == 3)
    data = as_data(samples[1], rates(samples[0], samples[1]))
    assert data["service"]["status"]["io_requests"] == 3000
    assert data["owners"][0]["done"] == 0.212
