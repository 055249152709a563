"""What follows from the facts: each check is a function and finds one thing.

A finding says what is wrong, why it matters to look-ahead and which command
mends it; what the severities mean is in doctor_finding.py.  Checks of the
library's own settings are in doctor_limits.py.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace

from .doctor_commands import (
    LIBRARY,
    RELOAD,
    alter_ours,
    as_superuser,
    default_again,
    install,
    is_preloaded,
    of_the_command_line,
    preload_too,
    quote_identifier,
    restart,
    set_to,
)
from .doctor_facts import Facts
from .doctor_finding import NOTE, PROBLEM, WARNING, Finding
from .doctor_limits import (
    DEFAULT_DISTANCE,
    DEFAULT_IO_CONCURRENCY,
    FIRST_DISTANCE,
    SPARE_HANDLES,
    USUAL_SERVICE_WORKERS,
    WORK_US,
    enough_workers,
    falls_behind,
    has_service,
    is_direct,
    is_switched_off,
    limits,
    milliseconds,
    parts_off,
    reads_in_flight,
    short_distance,
    switched_off,
    uses_aio,
    uses_aio_for_pages,
    wanted_workers,
    wastes_much,
)

__all__ = ["NOTE", "PROBLEM", "WARNING", "Finding", "examine"]

OLDEST, NEWEST = 15, 18

# The design's measurements of table blocks: with three workers plain AIO starves, sixteen
# serve.  The server has three unless it is told otherwise, which do for leaf pages and bitmaps.
FEW_IO_WORKERS = 3
ENOUGH_IO_WORKERS = 16
MOST_IO_WORKERS = 32

# Workers of the I/O service: enough to keep a fast device busy, and all that there can be.
DIRECT_IO_WORKERS = 8
MOST_SERVICE_WORKERS = 32
# Of max_worker_processes: the server's default, and what should be left for others.
USUAL_PROCESSES = 8
LEAST_OTHER_PROCESSES = 3
LOWER_DISTANCE = 64

MOSTLY_CACHED = 0.9

# What the server's errors are known by.
UNDEFINED_FILE = "58P01"
UNDEFINED_FUNCTION = "42883"
NOT_IN_PREREQUISITE_STATE = "55000"
INSUFFICIENT_PRIVILEGE = "42501"

# Commands that change catalogs.
OF_CATALOGS = ("CREATE ", "ALTER EXTENSION ", "ALTER ROLE ", "ALTER DATABASE ", "GRANT ")

# Commands that a superuser runs, or who was granted it.
OF_SUPERUSERS = ("ALTER SYSTEM ", "LOAD ", *OF_CATALOGS)

# Platforms without posix_fadvise(), as version() names them.
WITHOUT_ADVICE = ("darwin", "apple", "mingw", "msvc", "visual c++", "windows", "openbsd")

Check = Callable[[Facts], Iterator[Finding]]


def version(facts: Facts) -> Iterator[Finding]:
    if OLDEST <= facts.major <= NEWEST:
        return
    yield Finding(
        "version-unsupported",
        PROBLEM,
        f"PostgreSQL {facts.version} is not supported",
        f"pg_lookahead exists for PostgreSQL {OLDEST} to {NEWEST}.",
    )


def library(facts: Facts) -> Iterator[Finding]:
    """Installed, asked for, and here: three things that can each be missing."""
    if facts.loaded:
        return
    if facts.available_version is None or _is_missing(facts):
        detail = f" ({facts.library_error})" if facts.library_error else ""
        yield Finding(
            "library-not-installed",
            PROBLEM,
            "pg_lookahead is not installed on this server",
            f"The server does not have its files{detail}. They are built on the server's machine,"
            f" in a clone of pg_lookahead, with the headers of PostgreSQL {facts.major}, make and"
            " a C compiler. Where a provider decides which libraries there are, it cannot be had.",
            install(facts),
        )
        return
    preload = facts.settings.get("shared_preload_libraries")
    if preload is None:
        yield Finding(
            "library-not-loaded",
            PROBLEM,
            "The library is not loaded into this session",
            f'User "{facts.username}" may not see shared_preload_libraries. Run doctor as a'
            " superuser, and it gives the command that keeps the libraries that are there.",
            (as_superuser(facts),),
        )
        return
    if preload.pending_restart:
        yield Finding(
            "restart-pending",
            PROBLEM,
            "shared_preload_libraries was changed, but the server was not restarted",
            "Libraries are preloaded only when the server starts.",
            (restart(facts),),
        )
        return
    yield Finding(
        "library-not-loaded",
        PROBLEM,
        "The library is not loaded into this session",
        "Without it no scan looks ahead. Preloading by the server also gives the cumulative"
        " view pg_stat_lookahead; session_preload_libraries needs no restart, but a new"
        " connection, and LOAD serves one session.",
        (preload_too(facts), restart(facts)),
    )


def _is_missing(facts: Facts) -> bool:
    """Return if the functions failed for want of the library's file."""
    return facts.library_error_code == UNDEFINED_FILE


def preloading(facts: Facts) -> Iterator[Finding]:
    if not facts.loaded or facts.preloaded is not False:
        return
    preload = facts.settings.get("shared_preload_libraries")
    hidden = ""
    commands: tuple[str, ...] = ()
    if preload is None:
        # What is there must be kept.
        hidden = " A superuser's doctor gives the command."
        commands = (as_superuser(facts),)
    elif preload.pending_restart:
        commands = (restart(facts),)
    else:
        commands = (preload_too(facts), restart(facts))
    yield Finding(
        "not-preloaded",
        NOTE,
        "The library is loaded per session, not by the server",
        f"Scans look ahead, but pg_stat_lookahead needs shared_preload_libraries.{hidden}",
        commands,
    )


def library_works(facts: Facts) -> Iterator[Finding]:
    """The functions are there, but this role cannot call them, or they fail."""
    if facts.library_error is None or _is_missing(facts):
        return
    commands: tuple[str, ...] = ()
    if facts.library_error_code == INSUFFICIENT_PRIVILEGE and facts.schema:
        commands = (_grant(facts, facts.schema, facts.library_error),)
    elif facts.library_error_code in (UNDEFINED_FUNCTION, NOT_IN_PREREQUISITE_STATE):
        # The functions of the catalog are not those of the library.
        commands = (restart(facts), f"ALTER EXTENSION {LIBRARY} UPDATE;")
    elif facts.schema:
        # The server has more to say of it: a detail, a hint, a line in its log.
        commands = (f"SELECT * FROM {facts.schema}.{LIBRARY}_status();",)
    yield Finding(
        "library-fails",
        WARNING,
        "The extension's functions cannot be called",
        f"What look-ahead does cannot be seen: {facts.library_error}.",
        commands,
    )


def _grant(facts: Facts, schema: str, error: str) -> str:
    """Return what lets this role call the functions; anybody may, unless it was revoked."""
    what = f"USAGE ON SCHEMA {schema}"
    if "function" in error:
        names = ", ".join(f"{schema}.{LIBRARY}_{name}()" for name in ("version", "status"))
        what = f"EXECUTE ON FUNCTION {names}"
    return f"GRANT {what} TO {quote_identifier(facts.username)};"


def extension(facts: Facts) -> Iterator[Finding]:
    if facts.extension_version is not None or facts.available_version is None:
        return
    yield Finding(
        "extension-not-created",
        WARNING,
        f'The extension is not created in database "{facts.database}"',
        "Scans look ahead without it, but its functions and pg_stat_lookahead are missing.",
        (f"CREATE EXTENSION {LIBRARY};",),
    )


def versions_agree(facts: Facts) -> Iterator[Finding]:
    """The library, the catalog and the files are replaced at different times."""
    there, made, loaded = facts.available_version, facts.extension_version, facts.library_version
    if loaded and there and loaded != there:
        yield Finding(
            "library-outdated",
            WARNING,
            f"The running library is {loaded}, the installed one is {there}",
            "The server keeps the library it was started with.",
            (restart(facts),),
        )
    if made and there and made != there:
        yield Finding(
            "extension-outdated",
            WARNING,
            f'The extension in database "{facts.database}" is {made}, the library is {there}',
            "The SQL functions and views are those of another version.",
            (f"ALTER EXTENSION {LIBRARY} UPDATE;",),
        )


def service_workers(facts: Facts) -> tuple[str, ...]:
    """Return what gives the I/O service enough workers, and leaves the others theirs."""
    enough = enough_workers(facts, DIRECT_IO_WORKERS, MOST_SERVICE_WORKERS)
    number = max(wanted_workers(facts), enough)
    commands: tuple[str, ...] = ()
    if number != wanted_workers(facts):
        commands = (alter_ours(facts, "io_workers", number),)
    return (*commands, *more_processes(facts, number))


def more_processes(facts: Facts, number: int) -> tuple[str, ...]:
    """Return what makes room for so many workers of the I/O service, if there is too little."""
    processes = facts.number("max_worker_processes")
    if processes is None:
        return ()
    others = processes
    if is_preloaded(facts):
        others -= wanted_workers(facts)
    enough = number + max(others, USUAL_PROCESSES)
    if enough <= processes:
        return ()
    # With less than its primary a hot standby pauses recovery, or does not start.
    where = "" if facts.in_recovery else "  -- on hot standbys first"
    return (f"ALTER SYSTEM SET max_worker_processes = {enough};{where}",)


def worker_processes(facts: Facts) -> Iterator[Finding]:
    """The service's workers come first; parallel queries and replication get what is left."""
    processes = facts.number("max_worker_processes")
    number = wanted_workers(facts)
    if processes is None or number == 0:
        return
    if not is_preloaded(facts):
        return
    if processes - number >= LEAST_OTHER_PROCESSES:
        return
    yield Finding(
        "few-worker-processes",
        WARNING,
        f"max_worker_processes is {processes}, and the I/O service is to have {number} of them",
        "Parallel queries, replication, index builds that get space and the service's own helper"
        " take one each as well; without one the service cannot find the files that it is to"
        " read, and parallel plans run alone.",
        (*more_processes(facts, number), restart(facts)),
    )


def _few_service_workers(facts: Facts) -> Iterator[Finding]:
    """A worker has one read in flight; with direct I/O nobody else has any."""
    number = wanted_workers(facts)
    slow = number < MOST_SERVICE_WORKERS and falls_behind(facts, number)
    if number >= DIRECT_IO_WORKERS and not slow:
        return
    yield Finding(
        "few-service-workers",
        WARNING,
        f"Direct I/O with {number} workers of the I/O service",
        "Each worker has one read in flight, and with direct I/O the kernel has none."
        f"{_by_latency(facts) if slow else ''} Each takes one of max_worker_processes.",
        (*service_workers(facts), restart(facts)),
    )


def _preload_first(facts: Facts) -> tuple[str, ...]:
    """Return what preloads the library, unless it is or what there is cannot be seen."""
    hidden = "shared_preload_libraries" not in facts.settings
    return () if is_preloaded(facts) or hidden else (preload_too(facts),)


def _by_latency(facts: Facts) -> str:
    """Return the sentence that says how many reads at once are needed, and why."""
    return (
        f" A read takes {milliseconds(facts)}, so a query that has {WORK_US:.0f} us of work for"
        f" each block needs {reads_in_flight(facts):,} in flight."
    )


def reads_by_service(facts: Facts) -> bool:
    """Return if it is the I/O service that reads ahead with direct I/O.

    Without the extension in this database it follows from the settings.
    """
    if facts.method is not None:
        return facts.method == "worker"
    if facts.major >= 18 and facts.value("io_method") != "sync":
        return False
    return has_service(facts)


def direct_io(facts: Facts) -> Iterator[Finding]:
    """With direct I/O the kernel caches nothing: advice is in vain."""
    if not is_direct(facts) or is_switched_off(facts):
        return
    hidden = "shared_preload_libraries" not in facts.settings
    if facts.method is None and facts.major < 18 and hidden and facts.loaded:
        yield Finding(
            "direct-io-unknown",
            NOTE,
            "Direct I/O: whether the I/O service reads is not to be seen",
            f'User "{facts.username}" may not see shared_preload_libraries, and the extension\'s'
            " functions are not to be had in this database. A superuser's doctor sees it.",
            (as_superuser(facts),),
        )
    elif reads_by_service(facts):
        yield from _few_service_workers(facts)
    elif facts.major < 18:
        commands = (*_preload_first(facts), *service_workers(facts), restart(facts))
        yield Finding(
            "direct-io",
            PROBLEM,
            "Direct I/O without the I/O service: nothing is read ahead",
            f"PostgreSQL {facts.major} has no asynchronous I/O, and advice to the kernel does"
            " nothing with direct I/O. The workers of the I/O service can read; they need the"
            " library to be preloaded by the server.",
            commands,
        )
    elif facts.value("io_method") == "sync":
        yield Finding(
            "direct-io-sync",
            PROBLEM,
            "Direct I/O with io_method = sync: nothing can read ahead",
            "Advice does nothing with direct I/O, and synchronous reads cannot run ahead.",
            ("ALTER SYSTEM SET io_method = 'worker';", restart(facts)),
        )
    elif facts.in_recovery and facts.value("io_method") == "io_uring":
        yield Finding(
            "direct-io-standby",
            PROBLEM,
            "Direct I/O with io_method = io_uring on a standby: nothing is read ahead",
            "The process that replays the log may wait for a read that only the query which"
            " began it can complete, so none is begun ahead there. I/O workers complete reads"
            " by themselves.",
            ("ALTER SYSTEM SET io_method = 'worker';", restart(facts)),
        )
    elif facts.value(f"{LIBRARY}.method") == "advice":
        yield Finding(
            "direct-io-advice",
            PROBLEM,
            "Direct I/O with pg_lookahead.method = advice: nothing is read ahead",
            'Advice does nothing with direct I/O. "auto" takes the asynchronous I/O instead.',
            default_again(facts, f"{LIBRARY}.method", "auto"),
        )


def huge_pages(facts: Facts) -> Iterator[Finding]:
    """With direct I/O the device itself fills shared buffers, page by page of memory."""
    pages = facts.number("shared_memory_size_in_huge_pages")
    status = facts.value("huge_pages_status")
    wanted = facts.value("huge_pages")
    if not is_direct(facts) or pages is None or pages < 1:
        return
    if wanted == "on" or status == "on":
        return
    commands: tuple[str, ...] = (
        f"sudo sysctl -w vm.nr_hugepages=$(($(cat /proc/sys/vm/nr_hugepages) + {pages}))",
        restart(facts),
    )
    if wanted == "off":
        commands = ("ALTER SYSTEM SET huge_pages = try;", *commands)
    # Before 17 the server does not tell whether it has got what it tries to get.
    known = status is not None or wanted == "off"
    yield Finding(
        "huge-pages",
        WARNING if known else NOTE,
        f"Direct I/O {'without' if known else 'is better with'} huge pages",
        "In ordinary memory a block lies in two pages, and each read of one has two parts. A"
        " device that takes so many parts at a time takes fewer reads then: with huge pages"
        f" scans that look ahead were a fifth to a third faster. This server needs {pages:,} of"
        " them, beside those that others use; for good, in /etc/sysctl.d.",
        commands,
    )


def platform(facts: Facts) -> Iterator[Finding]:
    """Only advice needs the kernel's help."""
    limit = facts.settings.get("effective_io_concurrency")
    named = any(word in facts.build.lower() for word in WITHOUT_ADVICE)
    if not named and (limit is None or limit.max_value != "0"):
        return
    if uses_aio(facts) or facts.method == "worker" or is_switched_off(facts):
        return
    has_aio = facts.major >= 18 and facts.value("io_method") != "sync"
    forced = facts.value(f"{LIBRARY}.method") in ("advice", "worker")
    if has_aio and not forced:
        return  # the asynchronous reads need no advice
    if has_aio:
        mended = 'With "auto" the server\'s asynchronous I/O reads.'
        commands = default_again(facts, f"{LIBRARY}.method", "auto")
    elif facts.major >= 18:
        mended = "The server's asynchronous I/O can read ahead without it."
        commands = ("ALTER SYSTEM SET io_method = 'worker';", restart(facts))
    else:
        mended = "The I/O service can read ahead without it."
        more = alter_ours(facts, "io_workers", USUAL_SERVICE_WORKERS)
        commands = (*_preload_first(facts), more, restart(facts))
    yield Finding(
        "no-advice",
        PROBLEM,
        "This platform has no posix_fadvise()",
        f"The kernel cannot be told what will be read. {mended}",
        commands,
    )


def io_workers(facts: Facts) -> Iterator[Finding]:
    """The server's own workers, if it is they who read: everything, or a part."""
    workers = facts.number("io_workers")
    if workers is None or facts.value("io_method") != "worker":
        return
    if uses_aio(facts):
        # Buffered, the kernel is advised first, and has more in flight than these.
        slow = is_direct(facts) and workers < MOST_IO_WORKERS and falls_behind(facts, workers)
        if workers > FEW_IO_WORKERS and not slow:
            return
        enough = enough_workers(facts, ENOUGH_IO_WORKERS, MOST_IO_WORKERS)
        what = "All sessions' asynchronous reads wait"
        more = _by_latency(facts) if slow else ""
        more += " io_method = io_uring has no such limit, where the build has it."
    elif uses_aio_for_pages(facts) and workers < FEW_IO_WORKERS:
        enough = FEW_IO_WORKERS
        what = "What is read ahead of leaf pages and bitmap heap scans waits, for all sessions,"
        more = f" The server's default of {FEW_IO_WORKERS} does for these."
    else:
        return
    number = "one process, which" if workers == 1 else f"{workers} processes, each of which"
    yield Finding(
        "few-io-workers",
        WARNING,
        f"io_workers is {workers}",
        f"{what} for {number} reads one thing at a time.{more}",
        (f"ALTER SYSTEM SET io_workers = {enough};", RELOAD),
    )


def io_max_concurrency(facts: Facts) -> Iterator[Finding]:
    limit = facts.number("io_max_concurrency")
    wanted = facts.number(f"{LIBRARY}.io_concurrency") or DEFAULT_IO_CONCURRENCY
    if not uses_aio(facts) or limit is None or not 0 <= limit < wanted:
        return
    yield Finding(
        "low-io-max-concurrency",
        WARNING,
        f"io_max_concurrency is {limit}, pg_lookahead.io_concurrency is {wanted}",
        "A process cannot have more reads in flight than io_max_concurrency, of which look-ahead"
        f" leaves {SPARE_HANDLES} to others.",
        (f"ALTER SYSTEM SET io_max_concurrency = {wanted + SPARE_HANDLES};", restart(facts)),
    )


def effective_io_concurrency(facts: Facts) -> Iterator[Finding]:
    limit = facts.settings.get("effective_io_concurrency")
    if limit is None or limit.value != "0" or limit.max_value == "0":
        return
    yield Finding(
        "no-io-concurrency",
        WARNING,
        "effective_io_concurrency is 0",
        "Index scans look ahead all the same, but bitmap heap scans, which the server reads"
        " ahead for by itself, do not.",
        set_to(facts, "effective_io_concurrency", 16),
    )


def synchronous(facts: Facts) -> Iterator[Finding]:
    if facts.value("io_method") != "sync" or facts.method != "advice":
        return
    yield Finding(
        "io-method-sync",
        NOTE,
        "io_method is sync",
        "That is fine: the kernel, advised in time, does the reading.",
    )


def cached(facts: Facts) -> Iterator[Finding]:
    """Where nothing waits there is nothing to win; that is no fault."""
    buffers = facts.number("shared_buffers")
    size = facts.database_bytes or 0
    if buffers is not None and 0 < size <= buffers * facts.block_size:
        yield Finding(
            "fits-shared-buffers",
            NOTE,
            f'Database "{facts.database}" fits into shared_buffers',
            f"It has {size / 1e6:.0f} MB. Once it is read no scan waits for"
            " storage, and look-ahead stays idle.",
        )
    latency = facts.latency
    if latency and latency.cached_share >= MOSTLY_CACHED:
        yield Finding(
            "in-page-cache",
            NOTE,
            "The largest tables are in the kernel's page cache",
            f"{latency.cached_share:.0%} of {latency.samples} reads took less than 20 us."
            " Look-ahead helps when data comes from storage.",
        )


def waste(facts: Facts) -> Iterator[Finding]:
    seen = facts.counters
    if seen is None or not wastes_much(facts):
        return
    name = f"{LIBRARY}.max_distance"
    now = facts.number(name) or DEFAULT_DISTANCE
    # Below what scans begin with little is left of look-ahead.
    lower = LOWER_DISTANCE if now > LOWER_DISTANCE else max(FIRST_DISTANCE, now // 2)
    yield Finding(
        "much-wasted",
        WARNING,
        f"{seen.wasted / seen.issued:.0%} of the blocks read ahead were not needed",
        f"Queries that end early (LIMIT, EXISTS, cursors) drop what was read for them; most"
        f" of it for {seen.most_wasted}. Looking less far ahead wastes less.",
        set_to(facts, name, lower) if lower < now else (),
    )


CHECKS: tuple[Check, ...] = (
    version,
    library,
    preloading,
    library_works,
    extension,
    versions_agree,
    switched_off,
    parts_off,
    limits,
    direct_io,
    worker_processes,
    huge_pages,
    platform,
    io_workers,
    io_max_concurrency,
    effective_io_concurrency,
    synchronous,
    short_distance,
    cached,
    waste,
)


def _on_the_primary(command: str) -> str:
    """A standby takes what its files say, but its catalogs are the primary's."""
    return f"{command}  -- on the primary" if command.startswith(OF_CATALOGS) else command


def _with_remarks(facts: Facts, finding: Finding) -> Finding:
    """Have a finding say what its commands need that may not be had here."""
    remarks = []
    if facts.value("allow_alter_system") == "off" and any(
        "ALTER SYSTEM " in command for command in finding.commands
    ):
        remarks.append(
            "ALTER SYSTEM is switched off here (allow_alter_system): give the values where the"
            " server's configuration is made."
        )
    if not facts.superuser and any(
        command.startswith(OF_SUPERUSERS) for command in finding.commands
    ):
        remarks.append(f'"{facts.username}" is no superuser, whom these commands may need.')
    if any("pg_ctl restart " in command for command in finding.commands):
        remarks.append(
            "pg_ctl is for the server's own user; what systemd or a container runs is restarted"
            " by these."
        )
    return replace(finding, explanation=" ".join([finding.explanation, *remarks]))


def _on_the_command_line(facts: Facts, finding: Finding) -> Finding:
    """Have a finding say what only the server's command line can mend."""
    told = [of_the_command_line(facts, command) for command in finding.commands]
    wanted = [text for text in told if text is not None]
    if not wanted:
        return finding
    others = [command for command, text in zip(finding.commands, told) if text is None]
    if set(others) <= {RELOAD, restart(facts)}:
        others = []
    return replace(
        finding,
        explanation=f"{finding.explanation} The server's command line goes before ALTER SYSTEM:"
        f" it has to say {' and '.join(wanted)}.",
        commands=tuple(others),
    )


def examine(facts: Facts) -> list[Finding]:
    """Return every finding, the gravest first."""
    # On a server we do not support the rest would only mislead.
    found = list(version(facts)) or [finding for check in CHECKS for finding in check(facts)]
    found = [_with_remarks(facts, _on_the_command_line(facts, finding)) for finding in found]
    if facts.in_recovery:
        found = [
            replace(finding, commands=tuple(map(_on_the_primary, finding.commands)))
            for finding in found
        ]
    return sorted(found, key=lambda finding: (PROBLEM, WARNING, NOTE).index(finding.severity))
