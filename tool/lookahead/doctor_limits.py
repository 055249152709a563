"""The library's own settings: what is switched off, and what limits look-ahead.

A value is looked for wherever it may come from: the configuration, this
session, and what ALTER ROLE and ALTER DATABASE have left for it or for others.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from .doctor_commands import (
    LIBRARY,
    OF_ROLES,
    default_again,
    is_preloaded,
    reset,
    restart,
    set_to,
)
from .doctor_facts import BLOCK, Facts, RoleSetting
from .doctor_finding import NOTE, PROBLEM, WARNING, Finding

USUAL_SERVICE_WORKERS = 2

# Below these a ratio means nothing, or nothing bad.
ENOUGH_BLOCKS = 1000
MUCH_WASTE = 0.2

# docs/reference.md, how to size max_distance: a query has about so much work for a block.
WORK_US = 10.0
# A measurement is none to the last read: what is nearly enough is enough.
NEARLY = 1.5
# Of pg_lookahead.max_distance and .io_concurrency.
DEFAULT_DISTANCE, MOST_DISTANCE = 256, 4096
DEFAULT_IO_CONCURRENCY, MOST_IO_CONCURRENCY = 64, 1000
# What look-ahead leaves of io_max_concurrency.
SPARE_HANDLES = 4

# What scans begin with, in blocks: those of indexes, and sequential ones.
FIRST_DISTANCE = 16
FIRST_SEQUENTIAL_DISTANCE = 256
FEW_IO_CONCURRENCY = FIRST_DISTANCE // 2
FEW_RING_KB = 2 * FIRST_SEQUENTIAL_DISTANCE * BLOCK // 1024
FEW_BATCH_BLOCKS = 4
LATE_START = 1000
LARGE_TABLE_BLOCKS = 8 << 30 >> 13
LEAST_EXTEND_SIZE = 16

# Minor releases from which on tables grow ahead of their rows.
GROWS_FROM = {15: 150007, 16: 160003}

UNITS = {"": 0, "b": 1, "kb": 1 << 10, "mb": 1 << 20, "gb": 1 << 30, "tb": 1 << 40}


@dataclass(frozen=True)
class Place:
    """A value that a setting has somewhere: here, or where ALTER … SET has left it."""

    name: str
    value: str
    source: str
    entry: RoleSetting | None = None

    @property
    def title(self) -> str:
        where = f" for {_whom(self.entry)}" if self.entry else ""
        return f"{self.name} is {self.value}{where}"

    @property
    def origin(self) -> str:
        if self.entry:
            return "It takes a new connection to change that."
        return f"The value comes from: {self.source}."

    def concerns(self, facts: Facts) -> bool:
        entry = self.entry
        if entry is None:
            return True
        return entry.database in (None, facts.database) and entry.role in (None, facts.username)

    def mended(self, facts: Facts, default: str) -> tuple[str, ...]:
        """Return what gives the default back there."""
        return (reset(self.entry),) if self.entry else default_again(facts, self.name, default)


def _whom(entry: RoleSetting) -> str:
    parts = []
    if entry.role:
        parts.append(f'role "{entry.role}"')
    if entry.database:
        parts.append(f'database "{entry.database}"')
    return " in ".join(parts) or "all roles"


def places(facts: Facts, name: str) -> Iterator[Place]:
    """Return every value of a setting that is to be seen."""
    setting = facts.settings.get(name)
    # What this session has from a role or a database is in the list below.
    if setting and setting.source not in OF_ROLES:
        yield Place(name, setting.value, setting.source)
    for entry in facts.role_settings:
        if entry.name == name:
            yield Place(name, entry.value, "", entry)


def is_off(value: str) -> bool:
    """Return if the server takes this for off."""
    word = value.strip().lower()
    if word in ("0", "of", "off"):
        return True
    return word != "" and ("false".startswith(word) or "no".startswith(word))


def in_units(value: str, unit_bytes: int) -> float | None:
    """Return a value of a setting as a number of its units; None if it is none."""
    found = re.fullmatch(r"\s*(-?\d+(?:\.\d*)?)\s*([A-Za-z]*)\s*", value)
    factor = UNITS.get(found[2].lower()) if found else None
    if found is None or factor is None or (factor and not unit_bytes):
        return None
    number = float(found[1])
    return number * factor / unit_bytes if factor else number


# ---------------------------------------------------------------------------
# How blocks are read


def is_switched_off(facts: Facts) -> bool:
    """Return if it is a setting of ours that keeps everything from being read ahead."""
    return facts.value(f"{LIBRARY}.enabled") == "off" or facts.value(f"{LIBRARY}.method") == "none"


def is_direct(facts: Facts) -> bool:
    return "data" in facts.words("debug_io_direct")


def uses_aio(facts: Facts) -> bool:
    """Return if look-ahead of table blocks goes through the server's asynchronous I/O."""
    if facts.method is not None:
        return facts.method == "aio"
    if facts.major < 18 or facts.value("io_method") == "sync":
        return False
    return facts.value(f"{LIBRARY}.method") == "aio" or is_direct(facts)


def uses_aio_for_pages(facts: Facts) -> bool:
    """Return if look-ahead of leaf pages or of bitmap heap scans does.

    With "auto" it does so, too, where advice serves index scans and I/O workers
    are the server's method: see la_dense_method_for().
    """
    if uses_aio(facts):
        return True
    if facts.major < 18 or facts.value("io_method") != "worker" or is_direct(facts):
        return False
    parts = [facts.value(f"{LIBRARY}.{part}") != "off" for part in ("leafscan", "bitmapscan")]
    return facts.value(f"{LIBRARY}.method") == "auto" and any(parts) and not is_switched_off(facts)


def wanted_workers(facts: Facts) -> int:
    """Return how many workers the I/O service is to have; -1 is the library's usual number."""
    number = facts.number(f"{LIBRARY}.io_workers")
    if number is None or number < 0:
        return USUAL_SERVICE_WORKERS if facts.major < 18 else 0
    return number


def has_service(facts: Facts) -> bool:
    return is_preloaded(facts) and wanted_workers(facts) > 0


def reads_in_flight(facts: Facts) -> int | None:
    """Return how many reads at once keep a query busy, by the latency of a read.

    distance = read latency x table blocks per second, as in docs/reference.md;
    None if no storage was measured.
    """
    latency = facts.latency
    if latency is None or latency.storage_us is None:
        return None
    return math.ceil(latency.storage_us / WORK_US)


def milliseconds(facts: Facts) -> str:
    """Return what a read from storage was measured to take."""
    assert facts.latency
    assert facts.latency.storage_us is not None
    return f"{facts.latency.storage_us / 1000:.2g} ms"


def enough_workers(facts: Facts, least: int, most: int) -> int:
    """Return how many processes that read one thing at a time keep up with the latency."""
    needed = reads_in_flight(facts) or 0
    return least if needed < NEARLY * least else min(most, -(-needed // 8) * 8)


def falls_behind(facts: Facts, number: int) -> bool:
    """Return if so many reads at once are too few for the latency."""
    return (reads_in_flight(facts) or 0) >= NEARLY * number


def wastes_much(facts: Facts) -> bool:
    seen = facts.counters
    return (
        seen is not None
        and seen.issued >= ENOUGH_BLOCKS
        and seen.wasted / seen.issued >= MUCH_WASTE
    )


# ---------------------------------------------------------------------------
# Everything off


def switched_off(facts: Facts) -> Iterator[Finding]:
    """pg_lookahead.enabled and .method, wherever they may be set."""
    for place in places(facts, f"{LIBRARY}.enabled"):
        if is_off(place.value):
            yield _everything_off("switched-off", place, facts, "on")
    for place in places(facts, f"{LIBRARY}.method"):
        if place.value.lower() == "none":
            yield _everything_off("method-none", place, facts, "auto")


def _everything_off(name: str, place: Place, facts: Facts, default: str) -> Finding:
    whose = "Sessions there read nothing ahead" if place.entry else "Nothing is read ahead"
    return Finding(
        name,
        PROBLEM if place.concerns(facts) else WARNING,
        place.title,
        f"{whose}. {place.origin}",
        place.mended(facts, default),
    )


# ---------------------------------------------------------------------------
# Parts off


@dataclass(frozen=True)
class Part:
    """A setting that switches a part of look-ahead off, and what is then not done."""

    name: str
    usual: str
    without: str
    is_off: Callable[[str], bool] = is_off
    exists: Callable[[Facts], bool] = lambda facts: True


def _below(least: int, unit_bytes: int = BLOCK) -> Callable[[str], bool]:
    """Return what finds a size of fewer blocks, or of what a number stands for."""

    def is_below(value: str) -> bool:
        number = in_units(value, unit_bytes)
        return number is not None and number < least

    return is_below


def _is_large_table(value: str) -> bool:
    number = in_units(value, BLOCK)
    return number is not None and number >= LARGE_TABLE_BLOCKS


def _reads_sequentially(facts: Facts) -> bool:
    return facts.major < 18


def _grows_tables(facts: Facts) -> bool:
    return facts.version_num >= GROWS_FROM.get(facts.major, 0)


def _vacuum_rings(least_kb: int, majors: Sequence[int]) -> Part:
    """Return the part that is off where VACUUM has the server's ring, or a smaller one."""
    return Part(
        "vacuum_buffer_usage_limit",
        "'16MB'",
        "VACUUM of large tables waits for WAL more often than it must.",
        is_off=_below(least_kb, 1024),
        exists=lambda facts: facts.major in majors,
    )


PARTS = (
    Part("bitmapscan", "on", "Bitmap heap scans are not looked ahead of."),
    Part("leafscan", "on", "The leaf pages of B-tree indexes are not looked ahead of."),
    Part(
        "seqscan",
        "on",
        "Sequential scans are not looked ahead of.",
        exists=_reads_sequentially,
    ),
    Part(
        "min_table_size",
        "'1GB'",
        "Sequential scans of smaller tables are not looked ahead of; 1 GB is usual.",
        is_off=_is_large_table,
        exists=_reads_sequentially,
    ),
    Part(
        "maintenance",
        "on",
        "VACUUM, index builds and COPY TO are not looked ahead of.",
        exists=lambda facts: facts.major < 18 and has_service(facts),
    ),
    Part(
        "heap_extend_size",
        "'4MB'",
        "Tables that are being filled do not grow ahead of their rows.",
        is_off=_below(LEAST_EXTEND_SIZE),
        exists=_grows_tables,
    ),
    Part(
        "index_extend_size",
        "'4MB'",
        "Indexes that are being built get no space in advance.",
        is_off=_below(1),
    ),
    # The server's own ring has 256 kB, and 2 MB from 17 on; 15 has none between that and 16 MB.
    _vacuum_rings(16384, (15,)),
    _vacuum_rings(257, (16,)),
    _vacuum_rings(2049, (17, 18)),
    Part(
        "write_combine_size",
        "'256kB'",
        "What loads have filled is written page by page.",
        is_off=_below(1),
        exists=lambda facts: facts.major >= 17,
    ),
)


def parts_off(facts: Facts) -> Iterator[Finding]:
    """What does a part of the work, and is switched off."""
    for part in PARTS:
        if not part.exists(facts):
            continue
        for place in places(facts, f"{LIBRARY}.{part.name}"):
            if part.is_off(place.value):
                yield Finding(
                    "part-off",
                    NOTE,
                    place.title,
                    f"{part.without} {place.origin} If that is not meant:",
                    place.mended(facts, part.usual),
                )


# ---------------------------------------------------------------------------
# Numbers with which look-ahead hardly helps


@dataclass(frozen=True)
class Limit:
    """A setting, the values with which look-ahead hardly helps, and why."""

    name: str
    usual: str
    is_far: Callable[[float], bool]
    why: str
    unit_bytes: int = 0
    matters: Callable[[Facts], bool] = lambda facts: True


LIMITS = (
    Limit(
        "start_after",
        "8",
        lambda blocks: blocks >= LATE_START,
        "Scans that visit fewer table blocks than that never look ahead.",
    ),
    Limit(
        "start_after",
        "8",
        lambda blocks: blocks == 0,
        "That is for tests: every scan looks ahead from its first row on, also where nothing"
        " waits, and reads blocks that queries with a LIMIT do not need.",
    ),
    Limit(
        "max_distance",
        "256",
        lambda blocks: blocks < FIRST_DISTANCE,
        f"Scans begin {FIRST_DISTANCE} blocks ahead and go on from there, but for this limit.",
        unit_bytes=BLOCK,
        # What wastes much is told to look less far ahead.
        matters=lambda facts: not wastes_much(facts),
    ),
    Limit(
        "io_concurrency",
        "64",
        lambda reads: reads < FEW_IO_CONCURRENCY,
        f"With asynchronous I/O a scan looks ahead at most two blocks for each read in flight,"
        f" and otherwise begins with {FIRST_DISTANCE}.",
        matters=uses_aio_for_pages,
    ),
    Limit(
        "ring_size",
        "'64MB'",
        lambda kilobytes: kilobytes < FEW_RING_KB,
        "Sequential scans look ahead half of what the rings of the I/O service's workers hold,"
        f" all together, and each begins {FIRST_SEQUENTIAL_DISTANCE} blocks ahead.",
        unit_bytes=1024,
        matters=lambda facts: has_service(facts) and facts.major < 18,
    ),
    Limit(
        "io_batch_size",
        "16",
        lambda blocks: blocks < FEW_BATCH_BLOCKS,
        "The workers of the I/O service read that much at once, and wait for each read.",
        unit_bytes=BLOCK,
        matters=lambda facts: has_service(facts) and facts.major >= 17,
    ),
)


def limits(facts: Facts) -> Iterator[Finding]:
    """Numbers that leave little of look-ahead."""
    for limit in LIMITS:
        if not limit.matters(facts):
            continue
        for place in places(facts, f"{LIBRARY}.{limit.name}"):
            number = in_units(place.value, limit.unit_bytes)
            if number is not None and limit.is_far(number):
                usual = limit.usual.strip("'")
                yield Finding(
                    "unusual-setting",
                    WARNING,
                    f"{place.title}, and usually {usual}",
                    f"{limit.why} {place.origin}",
                    place.mended(facts, limit.usual),
                )


# ---------------------------------------------------------------------------
# The latency of the storage


def short_distance(facts: Facts) -> Iterator[Finding]:
    """How far scans look ahead, against what a read was measured to take."""
    needed = reads_in_flight(facts)
    distance = facts.number(f"{LIBRARY}.max_distance")
    if needed is None or distance is None or is_switched_off(facts) or wastes_much(facts):
        return
    commands: tuple[str, ...] = ()
    titles = []
    if FIRST_DISTANCE <= distance < min(needed, MOST_DISTANCE):
        better = min(MOST_DISTANCE, _power_of_two(2 * needed))
        commands += set_to(facts, f"{LIBRARY}.max_distance", better)
        titles.append(f"{LIBRARY}.max_distance is {distance}")
    reads = facts.number(f"{LIBRARY}.io_concurrency") or DEFAULT_IO_CONCURRENCY
    if uses_aio(facts) and FEW_IO_CONCURRENCY <= reads < min(needed / 2, MOST_IO_CONCURRENCY):
        better = min(MOST_IO_CONCURRENCY, _power_of_two(needed))
        commands += set_to(facts, f"{LIBRARY}.io_concurrency", better)
        titles.append(f"{LIBRARY}.io_concurrency is {reads}")
        handles = facts.number("io_max_concurrency")
        if handles is not None and 0 <= handles < better + SPARE_HANDLES:
            more = f"ALTER SYSTEM SET io_max_concurrency = {better + SPARE_HANDLES};"
            commands += (more, restart(facts))
    if not titles:
        return
    yield Finding(
        "short-distance",
        NOTE,
        f"A read takes {milliseconds(facts)}, and {' and '.join(titles)}",
        f"A query that has {WORK_US:.0f} us of work for each block needs {needed:,} blocks ahead"
        " then, and as much again, because a window is refilled when half of it is used. Worth"
        " a try where EXPLAIN shows many waits with depth at its limit; if it brings nothing,"
        " the device is at its own.",
        commands,
    )


def _power_of_two(least: int) -> int:
    return 1 << (least - 1).bit_length()
