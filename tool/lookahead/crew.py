"""Tasks side by side, each in a process of its own, that tell how they get on.

A task is a function that is given `tell`: what it tells arrives in the process
that started it, in order.  Processes and not threads, because a task that is to
end gets SIGTERM, which raises SystemExit in it as in any command of this tool:
the handlers that stop its servers run.
"""

from __future__ import annotations

import multiprocessing
import multiprocessing.connection
import os
import signal
from collections.abc import Callable
from multiprocessing.connection import Connection
from multiprocessing.context import ForkProcess
from types import TracebackType
from typing import Generic, TypeVar

from .signals import exit_on

T = TypeVar("T")
Tell = Callable[[T], None]

# A fork takes along what the task is made of; nothing has to be sent.
_fork = multiprocessing.get_context("fork")


class Crew(Generic[T]):
    """Those at work; leaving the context ends them.

    No other thread may be about when one is started, as it would be missing
    in the fork with whatever lock it holds.
    """

    def __init__(self) -> None:
        self._members: dict[str, tuple[ForkProcess, Connection]] = {}

    def __enter__(self) -> Crew[T]:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        for process, _ in self._members.values():
            process.terminate()
        for process, connection in self._members.values():
            process.join()
            connection.close()
        self._members.clear()

    def __len__(self) -> int:
        return len(self._members)

    def start(self, name: str, task: Callable[[Tell[T]], None]) -> None:
        """Set a task to work under a name that no other has."""
        assert name not in self._members
        here, there = _fork.Pipe(duplex=False)
        process = _fork.Process(target=_work, args=(task, there), name=name)
        process.start()
        # The end of the task is the end of the pipe: only it may hold this side.
        there.close()
        self._members[name] = (process, here)

    def wait(self) -> list[tuple[str, T | int]]:
        """Wait for news: (name, what it told), at its end (name, exit status)."""
        names = {connection: name for name, (_, connection) in self._members.items()}
        news: list[tuple[str, T | int]] = []
        for ready in multiprocessing.connection.wait(list(names)):
            assert isinstance(ready, Connection)
            name = names[ready]
            try:
                news.append((name, ready.recv()))
            except EOFError:
                process, connection = self._members.pop(name)
                process.join()
                connection.close()
                assert process.exitcode is not None
                news.append((name, process.exitcode))
        return news


def _work(task: Callable[[Tell[T]], None], there: Connection) -> None:
    # Ctrl-C goes to all of a terminal's group, and whoever has children tells
    # them as well: told twice they would cut short their clearing up.  In a
    # group of its own a task is told once, by SIGTERM.
    os.setpgid(0, 0)
    exit_on(signal.SIGTERM)
    task(there.send)
