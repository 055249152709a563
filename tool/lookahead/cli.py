"""The commands of ./lookahead: what they are called and what they accept.

The work is done elsewhere.  Modules are imported when their command is used:
the demonstration starts without the benchmarks' libraries, and a module that
is broken breaks only its own command.
"""

# No `from __future__ import annotations` here: typer reads the annotations, and
# with Python 3.9 it gets less out of those that are kept as text.

import io
import os
import signal
import sys
import traceback
from pathlib import Path
from typing import Annotated, Optional

import psycopg
import typer

from . import start
from .errors import LookaheadError, UsageError
from .signals import exit_on
from .visit import clean_lines

SUITES = ("regress", "isolation", "python", "tool", "core", "smoke")

# Tests on two servers side by side end as they do one by one; more share the disk.
JOBS = 2

# Kept here, so that help can list commands without loading them.
DEMO_HELP = (
    "Show what look-ahead does, on a private server with real data.\n\nTakes five minutes at most,"
    " and 3.5 GB of disk (--quick: 0.7). Root drops the page cache of the whole machine, again and"
    " again: do not run it as root beside a server that others work with. Another user cannot; the"
    " files are taken out of the caches as far as they go."
)
BENCH_HELP = "Measure look-ahead against stock PostgreSQL, and read the results."


def run_tests(
    server: Annotated[
        Optional[list[str]],
        typer.Option(help="Test on this server only: 18-embedded, 17-assert, … May be repeated."),
    ] = None,
    pg_config: Annotated[
        Optional[list[Path]],
        typer.Option(help="Test on the server of this pg_config, through a private copy."),
    ] = None,
    build_servers: Annotated[
        Optional[str],
        typer.Option(
            metavar="[assert|release]",
            help="First build 15, 17 and 18 from the distribution's source packages, with"
            " assertions; with 'release' also without.",
        ),
    ] = None,
    only: Annotated[
        Optional[list[str]], typer.Option(help=f"Run only this suite: {', '.join(SUITES)}.")
    ] = None,
    k: Annotated[
        Optional[str],
        typer.Option("-k", metavar="EXPR", help="Run only tests with this in their name."),
    ] = None,
    valgrind: Annotated[
        bool, typer.Option("--valgrind", help="Run the servers under Valgrind (17-, 18-assert).")
    ] = False,
    jobs: Annotated[
        Optional[int],
        typer.Option(
            "--jobs",
            "-j",
            min=1,
            help="Test so many servers side by side; default: 2, or the number of cores.",
        ),
    ] = None,
) -> None:
    """Build the extension for every server at hand and run all tests."""
    from . import testing

    unknown = [name for name in only or [] if name not in SUITES]
    if unknown:
        raise UsageError(f'there is no suite "{unknown[0]}"; there are: {", ".join(SUITES)}')
    if build_servers not in (None, "assert", "release"):
        raise UsageError("--build-servers takes assert or release")
    chosen = [*(server or []), *(str(path.absolute()) for path in pg_config or [])]
    # The tool's own tests belong to no server.
    default = tuple(name for name in SUITES if not (chosen and name == "tool"))
    plan = testing.Plan(
        servers=chosen,
        suites=tuple(only) if only else default,
        build_kinds=_kinds(build_servers),
        select=k,
        valgrind=valgrind,
        jobs=jobs or min(JOBS, len(os.sched_getaffinity(0))),
    )
    raise typer.Exit(testing.main(plan))


def _kinds(build_servers: Optional[str]) -> tuple[str, ...]:
    if build_servers is None:
        return ()
    return ("assert", "release") if build_servers == "release" else ("assert",)


def doctor(
    dsn: Annotated[
        Optional[str],
        typer.Argument(help="Connection string or URI; otherwise libpq's environment is used."),
    ] = None,
    json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Say what keeps look-ahead from helping on a running server."""
    from . import doctor as module

    raise typer.Exit(module.main(dsn, as_json=json))


def top(
    dsn: Annotated[
        Optional[str],
        typer.Argument(help="Connection string or URI; otherwise libpq's environment is used."),
    ] = None,
    interval: Annotated[
        float, typer.Option("--interval", "-i", min=0.1, help="Seconds between two refreshes.")
    ] = 1.0,
    count: Annotated[
        Optional[int], typer.Option("--count", "-n", min=1, help="End after this many refreshes.")
    ] = None,
    json: Annotated[bool, typer.Option("--json", help="Print a line of JSON per refresh.")] = False,
) -> None:
    """Watch the I/O service and look-ahead on a running server."""
    from . import top as module

    raise typer.Exit(module.main(dsn, interval=interval, count=count, as_json=json))


def _placeholder() -> None:
    raise AssertionError("replaced when the command is used")


def make_app(arguments: list[str]) -> typer.Typer:
    """Return the application, with the command that these arguments ask for."""
    app = typer.Typer(
        name="lookahead",
        help="Scans that look ahead: try, test, measure and examine pg_lookahead.",
        no_args_is_help=True,
        add_completion=False,
        pretty_exceptions_enable=False,
        rich_markup_mode=None,
        context_settings={"help_option_names": ["-h", "--help"]},
    )
    wanted = arguments[0] if arguments else ""
    if wanted == "demo":
        from . import demo

        app.command("demo", help=DEMO_HELP)(demo.main)
    else:
        app.command("demo", help=DEMO_HELP)(_placeholder)
    app.command("test")(run_tests)
    app.command()(doctor)
    app.command()(top)
    if wanted == "bench":
        from . import bench

        app.add_typer(bench.app, name="bench", help=BENCH_HELP)
    else:
        app.command("bench", help=BENCH_HELP)(_placeholder)
    return app


def normalized(arguments: list[str]) -> list[str]:
    """Give --build-servers its default value, which typer cannot do."""
    result = []
    rest = list(arguments)
    while rest:
        argument = rest.pop(0)
        if argument == "--build-servers":
            kind = rest.pop(0) if rest[:1] in (["assert"], ["release"]) else "assert"
            argument = f"--build-servers={kind}"
        result.append(argument)
    return result


def pg_config_ignored(command: str) -> str:
    """Return what to say of PG_CONFIG, which make looks at and we do not."""
    option = "--server PATH" if command == "bench" else "--pg-config PATH"
    return f"lookahead: PG_CONFIG is set, and not looked at here: use {option}"


def main() -> None:
    """Run the command line; exit 0 success, 1 failed (3 of doctor), 2 usage."""
    # Servers run as another user, who must be able to read what root makes.
    os.umask(0o022)
    for number in (signal.SIGTERM, signal.SIGHUP):
        # Under nohup the latter is ignored, and shall stay so.
        if signal.getsignal(number) is not signal.SIG_IGN:
            exit_on(number)
    # What a terminal has no letter for is better than an end in the middle.
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="replace")
    arguments = normalized(sys.argv[1:])
    if arguments[:1] not in (["doctor"], ["top"]):
        if "PG_CONFIG" in os.environ and arguments[:1]:
            print(pg_config_ignored(arguments[0]), file=sys.stderr)
        # libpq's variables are for the user's servers, not for our private ones.
        for name in [name for name in os.environ if name.startswith("PG")]:
            del os.environ[name]
    try:
        make_app(arguments)(arguments, prog_name=start.COMMAND)
    except LookaheadError as error:
        print(f"lookahead: {error}", file=sys.stderr)
        usage = isinstance(error, UsageError)
        sys.exit(start.WRONG_USAGE if usage else start.failed(arguments))
    except KeyboardInterrupt:
        sys.exit(130)
    except (OSError, psycopg.Error) as error:
        # A full disk, a folder that is not ours to write to, a server that went away.
        print(f"lookahead: {clean_lines(error)}", file=sys.stderr)
        sys.exit(start.failed(arguments))
    except Exception:
        traceback.print_exc()
        sys.exit(start.failed(arguments))
