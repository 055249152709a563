"""What follows from the facts: each check is a function and finds one thing.

A finding says what is wrong, why it matters to look-ahead and which command
mends it.  "problem": look-ahead does nothing.  "warning": it does less than
it could, or cannot be watched.  "note": worth knowing, nothing to mend.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

from .doctor_facts import Facts, RoleSetting

PROBLEM = "problem"
WARNING = "warning"
NOTE = "note"

OLDEST, NEWEST = 15, 18
LIBRARY = "pg_lookahead"

# The design's measurements: with three workers plain AIO starves, sixteen serve.
FEW_IO_WORKERS = 3
ENOUGH_IO_WORKERS = 16

# Reads of one scan in flight, where the setting cannot be seen.
DEFAULT_IO_CONCURRENCY = 64

# Below these a ratio means nothing, or nothing bad.
ENOUGH_BLOCKS = 1000
MUCH_WASTE = 0.2
# Workers of the I/O service: enough to keep a fast device busy, and the default.
DIRECT_IO_WORKERS = 8
USUAL_SERVICE_WORKERS = 2
# Of max_worker_processes: the server's default, and what should be left for others.
USUAL_PROCESSES = 8
LEAST_OTHER_PROCESSES = 3
LOWER_DISTANCE = 64
# Of pg_lookahead.max_distance.
DEFAULT_DISTANCE, LEAST_DISTANCE = 256, 8

MOSTLY_CACHED = 0.9

FOLDER = "<data directory>"
RELOAD = "SELECT pg_reload_conf();"

# What the server's errors are known by.
UNDEFINED_FILE = "58P01"
UNDEFINED_FUNCTION = "42883"
INSUFFICIENT_PRIVILEGE = "42501"

# Commands that change catalogs.
OF_CATALOGS = ("CREATE ", "ALTER EXTENSION ", "ALTER ROLE ", "ALTER DATABASE ", "GRANT ")

# Sources of a setting that ALTER ROLE and ALTER DATABASE leave.
OF_ROLES = ("global", "database", "user", "database user")

# Platforms without posix_fadvise(), as version() names them.
WITHOUT_ADVICE = ("darwin", "apple", "mingw", "msvc", "visual c++", "windows", "openbsd")


@dataclass(frozen=True)
class Finding:
    """One thing to know, and what to do about it."""

    id: str
    severity: str
    title: str
    explanation: str
    commands: tuple[str, ...] = ()


Check = Callable[[Facts], Iterator[Finding]]


def quote_identifier(name: str) -> str:
    return '"' + name.replace('"', '""') + '"'


def quote_literal(text: str) -> str:
    return "'" + text.replace("'", "''") + "'"


def alter_list(name: str, words: list[str]) -> str:
    """Return ALTER SYSTEM for a list; its elements are quoted one by one."""
    value = ", ".join(quote_literal(word) for word in words) or "''"
    return f"ALTER SYSTEM SET {name} = {value};"


def is_preloaded(facts: Facts) -> bool:
    """Return if the settings say so, as far as this user may see them."""
    return LIBRARY in facts.words("shared_preload_libraries")


def preload_too(facts: Facts) -> str:
    """Return what adds the library to those that are preloaded."""
    name = "shared_preload_libraries"
    return alter_list(name, [*facts.words(name), LIBRARY])


def restart(facts: Facts) -> str:
    """Return the command that restarts this server."""
    # Debian keeps the configuration apart, and pg_ctl would not find it.
    found = re.match(r"/etc/postgresql/(\d+)/([^/]+)/", facts.value("config_file") or "")
    if found:
        return f"pg_ctlcluster {found[1]} {found[2]} restart"
    folder = facts.value("data_directory")
    program = f"{facts.bindir}/pg_ctl" if facts.bindir else "pg_ctl"
    return f"{shlex.quote(program)} restart -D {shlex.quote(folder) if folder else FOLDER}"


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
        program = f"{facts.bindir}/pg_config" if facts.bindir else "pg_config"
        detail = f" ({facts.library_error})" if facts.library_error else ""
        yield Finding(
            "library-not-installed",
            PROBLEM,
            "pg_lookahead is not installed on this server",
            f"The server does not have its files{detail}.",
            (f"make PG_CONFIG={program}", f"make install PG_CONFIG={program}"),
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
            ("sudo -u postgres ./lookahead doctor",),
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
        role = quote_identifier(facts.username)
        commands = (f"GRANT USAGE ON SCHEMA {facts.schema} TO {role};",)
    elif facts.library_error_code == UNDEFINED_FUNCTION:
        # The functions of the catalog are not those of the library.
        commands = (restart(facts), f"ALTER EXTENSION {LIBRARY} UPDATE;")
    yield Finding(
        "library-fails",
        WARNING,
        "The extension's functions cannot be called",
        f"What look-ahead does cannot be seen: {facts.library_error}.",
        commands,
    )


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


def switched_off(facts: Facts) -> Iterator[Finding]:
    """pg_lookahead.enabled and .method, wherever they may be set."""
    bad = {f"{LIBRARY}.enabled": "off", f"{LIBRARY}.method": "none"}
    for name, value in bad.items():
        setting = facts.settings.get(name)
        if not setting or setting.value != value:
            continue
        if setting.source in OF_ROLES:
            # The command for it comes with the list below.
            continue
        commands = default_again(facts, name, "on" if value == "off" else "auto")
        yield Finding(
            "switched-off" if value == "off" else "method-none",
            PROBLEM,
            f"{name} is {value}",
            f"Nothing is read ahead. The value comes from: {setting.source}.",
            commands,
        )
    for entry in facts.role_settings:
        if bad.get(entry.name) in (entry.value, _as_bool(entry.value)):
            yield Finding(
                "switched-off" if entry.value != "none" else "method-none",
                PROBLEM if _concerns(entry, facts) else WARNING,
                f"{entry.name} is {entry.value} for {_whom(entry)}",
                "Sessions there read nothing ahead; it takes a new connection to change that.",
                (_reset(entry),),
            )


def _as_bool(value: str) -> str:
    lower = value.lower()
    return "off" if lower in ("off", "false", "no", "0", "f", "n") else lower


def _concerns(entry: RoleSetting, facts: Facts) -> bool:
    return entry.database in (None, facts.database) and entry.role in (None, facts.username)


def _whom(entry: RoleSetting) -> str:
    parts = []
    if entry.role:
        parts.append(f'role "{entry.role}"')
    if entry.database:
        parts.append(f'database "{entry.database}"')
    return " in ".join(parts) or "all roles"


def _reset(entry: RoleSetting) -> str:
    if entry.role is None and entry.database is not None:
        return f"ALTER DATABASE {quote_identifier(entry.database)} RESET {entry.name};"
    role = quote_identifier(entry.role) if entry.role else "ALL"
    where = f" IN DATABASE {quote_identifier(entry.database)}" if entry.database else ""
    return f"ALTER ROLE {role}{where} RESET {entry.name};"


def default_again(facts: Facts, name: str, default: str) -> tuple[str, ...]:
    """Return what gives a setting its default back, wherever the value comes from."""
    source = facts.settings[name].source if name in facts.settings else "default"
    if source in ("client", "environment variable", "session"):
        return (f"RESET {name};", "unset PGOPTIONS")
    if source == "command line":
        return ()  # nothing that is set later goes before it
    if source in OF_ROLES:
        database = facts.database if "database" in source else None
        role = facts.username if "user" in source else None
        return (_reset(RoleSetting(database, role, name, "")),)
    # RESET would leave what a file says that somebody has written.
    return (f"ALTER SYSTEM SET {name} = {default};", RELOAD)


def service_workers(facts: Facts) -> tuple[str, ...]:
    """Return what gives the I/O service enough workers, and leaves the others theirs."""
    number = max(wanted_workers(facts), DIRECT_IO_WORKERS)
    commands: tuple[str, ...] = ()
    if number != wanted_workers(facts):
        commands = (f"ALTER SYSTEM SET {LIBRARY}.io_workers = {number};",)
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
    return (f"ALTER SYSTEM SET max_worker_processes = {enough};",)


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


def wanted_workers(facts: Facts) -> int:
    """Return how many workers the I/O service is to have; -1 is the library's usual number."""
    number = facts.number(f"{LIBRARY}.io_workers")
    if number is None or number < 0:
        return USUAL_SERVICE_WORKERS if facts.major < 18 else 0
    return number


def _few_service_workers(facts: Facts) -> Iterator[Finding]:
    """A worker has one read in flight; with direct I/O nobody else has any."""
    number = wanted_workers(facts)
    if number >= DIRECT_IO_WORKERS:
        return
    yield Finding(
        "few-service-workers",
        WARNING,
        f"Direct I/O with {number} workers of the I/O service",
        "Each worker has one read in flight, and with direct I/O the kernel has none. Each takes"
        " one of max_worker_processes.",
        (*service_workers(facts), restart(facts)),
    )


def is_switched_off(facts: Facts) -> bool:
    """Return if it is a setting of ours that keeps everything from being read ahead."""
    return facts.value(f"{LIBRARY}.enabled") == "off" or facts.value(f"{LIBRARY}.method") == "none"


def reads_by_service(facts: Facts) -> bool:
    """Return if it is the I/O service that reads ahead with direct I/O.

    Without the extension in this database it follows from the settings.
    """
    if facts.method is not None:
        return facts.method == "worker"
    if facts.major >= 18 and facts.value("io_method") != "sync":
        return False
    return is_preloaded(facts) and wanted_workers(facts) > 0


def direct_io(facts: Facts) -> Iterator[Finding]:
    """With direct I/O the kernel caches nothing: advice is in vain."""
    if "data" not in facts.words("debug_io_direct") or is_switched_off(facts):
        return
    hidden = "shared_preload_libraries" not in facts.settings
    if facts.method is None and facts.major < 18 and hidden and facts.loaded:
        yield Finding(
            "direct-io-unknown",
            NOTE,
            "Direct I/O: whether the I/O service reads is not to be seen",
            f'User "{facts.username}" may not see shared_preload_libraries, and the extension\'s'
            " functions are not to be had in this database.",
        )
    elif reads_by_service(facts):
        yield from _few_service_workers(facts)
    elif facts.major < 18:
        commands: tuple[str, ...] = (*service_workers(facts), restart(facts))
        if not is_preloaded(facts) and not hidden:
            commands = (preload_too(facts), *commands)
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
    if "data" not in facts.words("debug_io_direct") or pages is None or pages < 1:
        return
    if wanted == "on" or status == "on":
        return
    commands: tuple[str, ...] = (f"sysctl -w vm.nr_hugepages={pages}", restart(facts))
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
        commands = (f"ALTER SYSTEM SET {LIBRARY}.io_workers = 2;", restart(facts))
    yield Finding(
        "no-advice",
        PROBLEM,
        "This platform has no posix_fadvise()",
        f"The kernel cannot be told what will be read. {mended}",
        commands,
    )


def uses_aio(facts: Facts) -> bool:
    """Return if look-ahead goes through the server's asynchronous I/O."""
    if facts.method is not None:
        return facts.method == "aio"
    if facts.major < 18 or facts.value("io_method") == "sync":
        return False
    forced = facts.value(f"{LIBRARY}.method") == "aio"
    return forced or "data" in facts.words("debug_io_direct")


def io_workers(facts: Facts) -> Iterator[Finding]:
    workers = facts.number("io_workers")
    if not uses_aio(facts) or facts.value("io_method") != "worker" or workers is None:
        return
    if workers > FEW_IO_WORKERS:
        return
    yield Finding(
        "few-io-workers",
        WARNING,
        f"io_workers is {workers}",
        f"All sessions' asynchronous reads wait for {workers} processes, each of which reads one"
        " thing at a time. io_method = io_uring has no such limit, where the build has it.",
        (f"ALTER SYSTEM SET io_workers = {ENOUGH_IO_WORKERS};", RELOAD),
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
        "A process cannot have more reads in flight than io_max_concurrency.",
        (f"ALTER SYSTEM SET io_max_concurrency = {wanted};", restart(facts)),
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
        ("ALTER SYSTEM SET effective_io_concurrency = 16;", RELOAD),
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
    if buffers is not None and 0 < size <= buffers * 8192:
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
    if seen is None or seen.issued < ENOUGH_BLOCKS:
        return
    share = seen.wasted / seen.issued
    if share >= MUCH_WASTE:
        now = facts.number(f"{LIBRARY}.max_distance") or DEFAULT_DISTANCE
        lower = LOWER_DISTANCE if now > LOWER_DISTANCE else max(LEAST_DISTANCE, now // 2)
        yield Finding(
            "much-wasted",
            WARNING,
            f"{share:.0%} of the blocks read ahead were not needed",
            f"Queries that end early (LIMIT, EXISTS, cursors) drop what was read for them; most"
            f" of it for {seen.most_wasted}. Looking less far ahead wastes less.",
            (f"ALTER SYSTEM SET {LIBRARY}.max_distance = {lower};", RELOAD) if lower < now else (),
        )


CHECKS: tuple[Check, ...] = (
    version,
    library,
    preloading,
    library_works,
    extension,
    versions_agree,
    switched_off,
    direct_io,
    worker_processes,
    huge_pages,
    platform,
    io_workers,
    io_max_concurrency,
    effective_io_concurrency,
    synchronous,
    cached,
    waste,
)


def _on_the_primary(command: str) -> str:
    """A standby takes what its files say, but its catalogs are the primary's."""
    return f"{command}  -- on the primary" if command.startswith(OF_CATALOGS) else command


def examine(facts: Facts) -> list[Finding]:
    """Return every finding, the gravest first."""
    # On a server we do not support the rest would only mislead.
    found = list(version(facts)) or [finding for check in CHECKS for finding in check(facts)]
    if facts.in_recovery:
        found = [
            replace(finding, commands=tuple(map(_on_the_primary, finding.commands)))
            for finding in found
        ]
    return sorted(found, key=lambda finding: (PROBLEM, WARNING, NOTE).index(finding.severity))
