"""`lookahead top`: what the I/O service and look-ahead do, second by second.

    server ---ask---> sample ---compare---> rates ---arrange---> panels ---> terminal
           top_source  top_sample    top_rates      top_panels      top_draw
                                         `----> JSON

It reads the extension's views and the progress of commands, and changes
nothing.  Exit status 0: ended by Ctrl-C or after --count refreshes; 1: the
extension is not there; 2: no connection, or wrong usage.
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Callable, Iterator

import psycopg

from .top_chart import History
from .top_draw import Plain, Screen, can_take_terminal, write_any_name
from .top_panels import panels, point
from .top_rates import Rates, as_data, rates
from .top_sample import Sample
from .top_source import Source, in_one_line
from .visit import how_to_connect

Show = Callable[[int, Sample, Rates], None]


def main(dsn: str | None, *, interval: float, count: int | None, as_json: bool) -> int:
    """Watch a server; return the exit status."""
    source = Source(dsn)
    try:
        try:
            source.open()
        except (psycopg.OperationalError, psycopg.ProgrammingError) as error:
            print(f"lookahead: could not connect: {in_one_line(error)}", file=sys.stderr)
            print(how_to_connect("top"), file=sys.stderr)
            return 2
        if as_json:
            watch(source, interval, count, write_json)
        else:
            draw(source, interval, count)
    except KeyboardInterrupt:
        pass
    except BrokenPipeError:
        # Who reads has seen enough.  Nothing more is to be written at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    finally:
        source.close()
    return 0


def watch(
    source: Source, interval: float, count: int | None, show: Show, *, at_once: bool = False
) -> None:
    """Show the rates of one interval after the other.

    The first sample is only what the next is compared with, so that every
    refresh that counts is whole.  With `at_once` it is shown, as number 0.
    """
    before = source.look()
    if at_once:
        show(0, before, rates(None, before))
    for number in ticks(interval, count):
        now = source.look()
        show(number, now, rates(before, now))
        before = now


def ticks(interval: float, count: int | None) -> Iterator[int]:
    """Wait for one moment after the other; yield their numbers, from 1 on.

    They keep to a grid.  Those that were missed, because the server answered
    late, are left out of the numbers, but not of the count.
    """
    start = time.monotonic()
    number = 0
    while count is None or count > 0:
        number = max(number, int((time.monotonic() - start) / interval)) + 1
        time.sleep(max(start + number * interval - time.monotonic(), 0))
        yield number
        if count is not None:
            count -= 1


def write_json(number: int, sample: Sample, found: Rates) -> None:
    print(json.dumps(as_data(sample, found)), flush=True)


def draw(source: Source, interval: float, count: int | None) -> None:
    """Show pictures: one in place of the other on a terminal, else in a row."""
    write_any_name()
    history = History(interval)
    live = can_take_terminal()
    output: Screen | Plain = Screen() if live else Plain()

    def show(number: int, sample: Sample, found: Rates) -> None:
        history.add(number, point(found))
        output.show(panels(sample, found, history, interval, output.size))

    with output:
        watch(source, interval, count, show, at_once=live)
