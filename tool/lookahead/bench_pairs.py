"""Runs in pairs: which arm goes first, what is kept of a run, what is resumed.

Every benchmark goes through its cases pair by pair, not case by case: pair 1 of
all cases, then pair 2.  A minute in which the disk is slow then spoils one pair
of several cases and not all pairs of one.  Within a pair the two arms follow each
other, and the arm that goes first changes from pair to pair.
"""

from __future__ import annotations

import contextlib
import re
import subprocess
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, Generic, Protocol, TypeVar

from .bench_measure import PlanRejected, answer_digest, one_processor, postmaster_of
from .bench_result import ARMS, LOOKAHEAD
from .bench_store import Store, now
from .data import ACCOUNTS, BenchData, pgbench_name
from .errors import LookaheadError

# Memory beside the blocks that are read: shared buffers, a backend's own.
SPARE_BYTES = 256 * 1024 * 1024

# pgbench -S, and how many transactions a client makes in a turn of it.
SELECT_ONLY = "select-only"
TURN_TRANSACTIONS = 10_000

# How long the server may take for what takes it a moment.
PATIENCE_SECONDS = 60.0
MOMENT = 0.02

Progress = Callable[[str], None]


class RunFailed(LookaheadError):
    """A run could not be made at all."""


def until(
    condition: Callable[[], bool], seconds: float = PATIENCE_SECONDS, *, every: float = MOMENT
) -> bool:
    """Wait for something to become true; say whether it did."""
    end = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > end:
            return False
        time.sleep(every)
    return True


class RunCell(Protocol):
    """What a case has to say for its runs to be made."""

    @property
    def id(self) -> str: ...
    @property
    def group(self) -> str: ...
    @property
    def server(self) -> str: ...
    @property
    def pair_factor(self) -> int: ...


CellT = TypeVar("CellT", bound=RunCell)


class PairRunner(Generic[CellT]):
    """Makes the runs of all cells that the store does not have yet."""

    def __init__(self, store: Store, *, extension: bool, progress: Progress) -> None:
        self.store = store
        self.extension = extension
        self.progress = progress
        self._twins_ready: set[str] = set()

    def run(self, cells: Sequence[CellT], pairs: int) -> None:
        """Make every missing run, group by group and pair by pair."""
        by_group: dict[tuple[str, str], list[CellT]] = {}
        for cell in cells:
            by_group.setdefault((cell.server, cell.group), []).append(cell)
        for (_, group), some in by_group.items():
            most = pairs * max(cell.pair_factor for cell in some)
            for pair in range(most):
                wanted = [c for c in some if pair < pairs * c.pair_factor]
                for batch in self._batches(group, wanted):
                    self._pair_of(group)(batch, pair)

    def _pair_of(self, group: str) -> Callable[[list[CellT], int], None]:
        """Return what makes one pair of runs of a group's cells."""
        raise NotImplementedError

    def _batches(self, group: str, cells: Sequence[CellT]) -> Iterator[list[CellT]]:
        """Cells that share one start of the server; cold runs share none."""
        yield from ([cell] for cell in cells)

    def _order(self, pair: int) -> tuple[str, ...]:
        return ARMS if pair % 2 == 0 else ARMS[::-1]

    def _is_ahead(self, arm: str) -> bool:
        """Say whether this arm has the library; with --no-extension none has."""
        return self.extension and arm == LOOKAHEAD

    def _record(
        self, cell: CellT, pair: int, arm: str, cache: str, settings: str, **parts: Any
    ) -> None:
        self.store.add(
            {
                "type": "run", "cell": cell.id, "pair": pair, "arm": arm,
                "first": self._order(pair)[0] == arm, "at": now(),
                "cache": cache, "settings": settings, **parts,
            }
        )  # fmt: skip
        self.progress(f"{cell.id}  pair {pair + 1}  {arm}  {parts['elapsed_ms']:,.1f} ms")

    def _reject(self, cell: CellT, reason: PlanRejected) -> None:
        self.store.add({"type": "rejected", "cell": cell.id, "reason": str(reason)})
        self.progress(f"{cell.id}  rejected: {reason}")

    def _add_answer(self, cell: CellT, arm: str, answers: Sequence[Any]) -> None:
        digest = answer_digest(answers)
        self.store.add({"type": "answer", "cell": cell.id, "arm": arm, "answer": digest})

    @contextlib.contextmanager
    def _both(
        self,
        data: BenchData,
        needed: Iterable[str],
        conf: Callable[[str], dict[str, str]],
        pair: int,
    ) -> Iterator[dict[str, BenchData]]:
        """Run two servers at once, one for each arm, each with its settings.

        Which of the two an arm has changes from pair to pair.
        """
        twin = data.twin()
        if data.server.name not in self._twins_ready:
            twin.ensure(needed, extension=self.extension)
            self._twins_ready.add(data.server.name)
        arms = dict(zip(ARMS, (data, twin) if pair % 2 == 0 else (twin, data)))
        try:
            for arm, one in arms.items():
                one.start(conf(arm), preload=self._is_ahead(arm), cold=False)
            yield arms
        finally:
            for one in arms.values():
                one.stop()

    def _pgbench_cached(
        self,
        cell: CellT,
        pair: int,
        data: BenchData,
        conf: dict[str, str],
        *,
        scale: int,
        clients: int,
        turns: int,
    ) -> None:
        """Make a pair of runs of pgbench -S, everything in shared buffers."""
        if all(self.store.has_run(cell.id, pair, arm) for arm in ARMS):
            return
        settings = {}
        with self._both(data, [pgbench_name(scale)], lambda _: conf, pair) as arms:
            for arm, one in arms.items():
                with one.connect() as conn:
                    settings[arm] = self.store.settings(conn)
                    one.prewarm(conn, ACCOUNTS)
            tps = self._pgbench_by_turns(arms, clients, turns)
        for arm in ARMS:
            self._record(
                cell, pair, arm, "shared buffers", settings[arm],
                # Of 1,000 transactions.
                elapsed_ms=round(1e6 / max(tps[arm]), 3),
                tps=tps[arm],
            )  # fmt: skip

    def _pgbench_by_turns(
        self, arms: dict[str, BenchData], clients: int, turns: int
    ) -> dict[str, list[float]]:
        """Run pgbench -S on both servers by turns; return the tps of each turn.

        Turns are short and many, and both arms have the same transactions in
        them, because what else the machine does comes and goes within a second.
        """
        tps: dict[str, list[float]] = {arm: [] for arm in arms}
        for turn in range(-1, turns):
            for arm in self._order(turn):
                done = pgbench_transactions(
                    arms[arm], SELECT_ONLY, clients, TURN_TRANSACTIONS, seed=turn + 2
                )
                # The first turn brings catalogs and code into memory.
                if turn >= 0:
                    tps[arm].append(done)
        return tps


def pgbench(data: BenchData, script: str, clients: int, seconds: int) -> float:
    """Run a built-in script of pgbench for a while; return transactions per second."""
    return _pgbench(data, script, clients, ["--time", str(seconds)])


def pgbench_transactions(
    data: BenchData, script: str, clients: int, transactions: int, seed: int
) -> float:
    """Run so many transactions of each client, the same ones for the same seed."""
    how = ["--transactions", str(transactions), "--random-seed", str(seed)]
    return _pgbench(data, script, clients, how)


def _pgbench(data: BenchData, script: str, clients: int, how: Sequence[str]) -> float:
    command = [
        str(data.server.bindir / "pgbench"), f"--builtin={script}", "--no-vacuum",
        "--client", str(clients), "--jobs", str(clients), *how, data.dsn(),
    ]  # fmt: skip
    alone = one_processor(0, postmaster_of(data.folder)) if clients == 1 else None
    with alone or contextlib.nullcontext():
        done = subprocess.run(command, check=False, capture_output=True, text=True)
    found = re.search(r"^tps = ([0-9.]+)", done.stdout, re.MULTILINE)
    if done.returncode or found is None:
        raise RunFailed(f"pgbench failed: {done.stderr.strip()}")
    return float(found.group(1))
