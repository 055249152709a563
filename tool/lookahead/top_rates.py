"""From two samples of `lookahead top` to what happened between them.

Everything here is arithmetic on plain data.  A figure that cannot be had is
None: there is no earlier sample, or the counters began anew in between.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Optional

from .top_sample import Part, Row, Sample

# Optional, as this is not an annotation and Python 3.9 has no other way.
Figures = dict[str, Optional[float]]

# Counters of pg_stat_lookahead_io, and what their gain per second is called.
IO_COUNTERS = {
    "requests": "requests_per_second",
    "merged": "merged_per_second",
    "dropped": "dropped_per_second",
    "done": "done_per_second",
    "stale": "stale_per_second",
    "locked": "locked_per_second",
    "blocks_passed": "blocks_passed_per_second",
    "blocks_hit": "blocks_hit_per_second",
    "blocks_read": "blocks_read_per_second",
    "reads": "reads_per_second",
    "errors": "errors_per_second",
}

# Milliseconds in all; they are divided by what took them.
IO_TIMES = ("request_time", "read_time")

RELATION_COUNTERS = (
    "scans", "blocks_issued", "blocks_used", "blocks_wasted", "blocks_hit",
    "blocks_dropped", "waits", "errors",
)  # fmt: skip

US_PER_MS = 1000


@dataclass(frozen=True)
class Rates:
    """What happened from one sample to the next, and what is going on now."""

    # How long that was; of the service if there is one.
    seconds: float | None = None
    # None: the server does not have this, or did not give it.
    service: Figures | None = None
    workers: list[Row] | None = None
    owners: list[Row] | None = None
    relations: list[Row] | None = None
    # The sums of the relations, per second.
    lookahead: Figures | None = None


def rates(before: Sample | None, now: Sample) -> Rates:
    """Compare a sample with the one before it."""
    if before is not None and before.connection != now.connection:
        before = None
    if now.server is None:
        return Rates()
    old = before or Sample(time="")
    service, workers = io_rates(old.workers, now.workers, now.server.block_size)
    relations, lookahead = relation_gains(old.relations, now.relations)
    return Rates(
        seconds=_elapsed(old.workers, now.workers) or _elapsed(old.relations, now.relations),
        service=service,
        workers=workers,
        owners=owner_progress(old.owners, now.owners),
        relations=relations,
        lookahead=lookahead,
    )


def _elapsed(before: Part | None, now: Part | None) -> float | None:
    """Return the seconds between two; None also if the clock was set back."""
    if before is None or now is None or now.at <= before.at:
        return None
    return now.at - before.at


def _gains(before: Row | None, now: Row, names: Iterable[str]) -> dict[str, float] | None:
    """Return what the counters have gained; None if they began anew."""
    if before is None:
        return None
    found = {name: now[name] - before[name] for name in names}
    return found if all(gain >= 0 for gain in found.values()) else None


# ----------------------------------------------------------------------
# The I/O service


def io_rates(
    before: Part | None, now: Part | None, block_size: int
) -> tuple[Figures | None, list[Row] | None]:
    """Return the figures of all workers together, and of each."""
    if now is None:
        return None, None
    seconds = _elapsed(before, now)
    old = {row["worker"]: row for row in before.rows} if before else {}
    names = (*IO_COUNTERS, *IO_TIMES)
    gains = [_gains(old.get(row["worker"]), row, names) for row in now.rows]
    workers = []
    for row, gain in zip(now.rows, gains):
        place = {name: row[name] for name in ("worker", "pid")}
        workers.append({**place, **_io_figures(gain, [row], seconds, block_size)})
    known = [gain for gain in gains if gain is not None]
    total = None
    if known and len(known) == len(gains):
        total = {name: sum(gain[name] for gain in known) for name in names}
    return _io_figures(total, now.rows, seconds, block_size), workers


def _io_figures(
    gain: Mapping[str, float] | None,
    rows: Sequence[Row],
    seconds: float | None,
    block_size: int,
) -> Figures:
    """Return the figures of these workers; without a gain, those of this moment."""
    found: Figures = dict.fromkeys(IO_COUNTERS.values())
    found["bytes_per_second"] = None
    found["blocks_per_read"] = None
    found["request_latency_us"] = None
    found["read_latency_us"] = None
    if gain is not None and seconds is not None:
        for counter, name in IO_COUNTERS.items():
            found[name] = gain[counter] / seconds
        found["bytes_per_second"] = gain["blocks_read"] * block_size / seconds
        if gain["reads"]:
            found["blocks_per_read"] = gain["blocks_read"] / gain["reads"]
            found["read_latency_us"] = gain["read_time"] * US_PER_MS / gain["reads"]
        if gain["done"]:
            found["request_latency_us"] = gain["request_time"] * US_PER_MS / gain["done"]
    found["queue_depth"] = sum(row["queue_depth"] for row in rows)
    found["ring_bytes"] = sum(row["ring_blocks"] for row in rows) * block_size
    for counter in ("requests", "dropped", "blocks_read", "reads", "errors"):
        found[f"{counter}_total"] = sum(row[counter] for row in rows)
    return found


# ----------------------------------------------------------------------
# What is looked ahead now


def owner_progress(before: Part | None, now: Part | None) -> list[Row] | None:
    """Return the scans with how far they are ahead, and how fast they are."""
    if now is None:
        return None
    seconds = _elapsed(before, now)
    counts = Counter(_owner(row) for row in now.rows)
    old = {_owner(row): row for row in before.rows} if before else {}
    old_counts = Counter(_owner(row) for row in before.rows) if before else Counter()
    found = []
    for row in now.rows:
        key = _owner(row)
        # One process can scan a relation twice at once; which is which is not known.
        same = old[key] if counts[key] == old_counts[key] == 1 else None
        found.append({**row, **_progress(same, row, seconds)})
    return found


def _owner(row: Row) -> tuple[Any, ...]:
    return (row["pid"], row["database"], row["relid"])


def _progress(before: Row | None, row: Row, seconds: float | None) -> Row:
    # Scans in the order of an index have no position: both are 0.
    if not row["frontier"]:
        return {"ahead_blocks": None, "done": None, "blocks_per_second": None}
    position, blocks = row["position"], row["blocks"]
    speed = None
    if before is not None and seconds and position >= before["position"]:
        speed = (position - before["position"]) / seconds
    return {
        # A scan that has overtaken its read-ahead is not behind it.
        "ahead_blocks": max(row["frontier"] - position, 0),
        # The table may have grown since its size was noted.
        "done": position / blocks if blocks and position <= blocks else None,
        "blocks_per_second": speed,
    }


# ----------------------------------------------------------------------
# Relations


def relation_gains(
    before: Part | None, now: Part | None
) -> tuple[list[Row] | None, Figures | None]:
    """Return what was done for each relation, the busiest first, and the sums."""
    if now is None:
        return None, None
    totals: Figures = {f"{name}_per_second": None for name in RELATION_COUNTERS}
    seconds = _elapsed(before, now)
    if before is None or seconds is None:
        return [], totals
    old = {row["relid"]: row for row in before.rows}
    found = []
    for row in now.rows:
        gain = _relation_gain(old.get(row["relid"]), row)
        if any(gain.values()):
            found.append({"relid": row["relid"], "relation": row["relation"], **gain})
    found.sort(key=lambda gain: [-gain[name] for name in _BUSY] + [gain["relid"]])
    for name in RELATION_COUNTERS:
        totals[f"{name}_per_second"] = sum(gain[name] for gain in found) / seconds
    return found, totals


_BUSY = ("blocks_issued", "blocks_used", "blocks_hit", "scans")


def _relation_gain(before: Row | None, row: Row) -> dict[str, float]:
    # New here, or forgotten in between: then all of it is new.
    if before is not None and before["stats_reset"] == row["stats_reset"]:
        gain = _gains(before, row, RELATION_COUNTERS)
        if gain is not None:
            return gain
    return {name: row[name] for name in RELATION_COUNTERS}


# ----------------------------------------------------------------------
# As JSON


def as_data(sample: Sample, found: Rates) -> Row:
    """Return one refresh as it is written by --json."""
    service = None
    if sample.status is not None:
        service = {"status": sample.status, "rates": found.service}
    data = {
        "time": sample.time,
        "seconds": found.seconds,
        "away": sample.away,
        "server": asdict(sample.server) if sample.server else None,
        "missing": [asdict(missing) for missing in sample.missing],
        "service": service,
        "workers": found.workers,
        "owners": found.owners,
        "relations": found.relations,
        "lookahead": found.lookahead,
    }
    rounded: Row = _rounded(data)
    return rounded


def _rounded(value: Any) -> Any:
    """Drop the digits that mean nothing."""
    if isinstance(value, float):
        return round(value, 3)
    if isinstance(value, dict):
        return {name: _rounded(part) for name, part in value.items()}
    if isinstance(value, list):
        return [_rounded(part) for part in value]
    return value
