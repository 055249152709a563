"""The commands that the doctor gives: as they are to be run, where the value comes from.

SQL ends with a semicolon; what does not is for a shell on the server's machine.
"""

from __future__ import annotations

import re
import shlex

from psycopg.conninfo import make_conninfo

from .doctor_facts import Facts, RoleSetting
from .start import COMMAND

LIBRARY = "pg_lookahead"

RELOAD = "SELECT pg_reload_conf();"

USUAL_PORT = "5432"

# Sources of a setting that ALTER ROLE and ALTER DATABASE leave.
OF_ROLES = ("global", "database", "user", "database user")


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


def is_debian(facts: Facts) -> bool:
    """Return if the server is of a package of Debian, Ubuntu or PostgreSQL's for these."""
    if facts.bindir:
        return facts.bindir == f"/usr/lib/postgresql/{facts.major}/bin"
    # Behind the platform is the compiler, which may be Debian's where the server is not.
    return re.search(r"\((Debian|Ubuntu) ", facts.build.split(" on ")[0]) is not None


def restart(facts: Facts) -> str:
    """Return the command that restarts this server."""
    # Debian keeps the configuration apart, and pg_ctl would not find it.
    config = facts.value("config_file")
    found = re.match(r"/etc/postgresql/(\d+)/([^/]+)/", config or "")
    if not found and config is None and is_debian(facts):
        # Who may not see the files may see what Debian calls the server after them.
        found = re.fullmatch(r"(\d+)/([^/]+)", facts.value("cluster_name") or "")
    if found:
        return f"sudo pg_ctlcluster {found[1]} {shlex.quote(found[2])} restart"
    folder = facts.value("data_directory")
    # The PostgreSQL project's packages for Red Hat: systemd would not know of pg_ctl's server.
    found = re.fullmatch(r"/var/lib/pgsql/(\d+)/data/?", folder or "")
    if found:
        return f"sudo systemctl restart postgresql-{found[1]}"
    # Fedora's and Red Hat's own.
    if folder and folder.rstrip("/") == "/var/lib/pgsql/data":
        return "sudo systemctl restart postgresql"
    program = shlex.quote(f"{facts.bindir}/pg_ctl" if facts.bindir else "pg_ctl")
    if folder:
        return f"{program} restart -D {shlex.quote(folder)}"
    # Quoted, or a shell would take it for a redirection.
    return (
        f"{program} restart -D '<data directory>'"
        "  # SHOW data_directory; says it to superusers and members of pg_monitor"
    )


def alter_ours(facts: Facts, name: str, value: object) -> str:
    """Return ALTER SYSTEM for a setting of ours, also where the library is not loaded."""
    # Before 17 the server refuses a name that it does not know.
    first = f"LOAD '{LIBRARY}'; " if not facts.loaded and facts.major < 17 else ""
    return f"{first}ALTER SYSTEM SET {LIBRARY}.{name} = {value};"


def install(facts: Facts) -> tuple[str, ...]:
    """Return what builds and installs the extension, in a clone of its repository."""
    folder = facts.bindir
    packages: tuple[str, ...] = ()
    if is_debian(facts):
        folder = f"/usr/lib/postgresql/{facts.major}/bin"
        headers = f"postgresql-server-dev-{facts.major}"
        packages = (f"sudo apt-get install build-essential {headers}",)
    elif folder == f"/usr/pgsql-{facts.major}/bin":
        headers = f"postgresql{facts.major}-devel"
        packages = (f"sudo dnf install gcc make redhat-rpm-config {headers}",)
    program = shlex.quote(f"PG_CONFIG={folder}/pg_config" if folder else "PG_CONFIG=pg_config")
    return (*packages, f"make {program}", f"sudo make install {program}")


def as_superuser(facts: Facts) -> str:
    """Return the command that asks again as somebody who sees everything."""
    dsn = {"dbname": facts.database}
    port = facts.value("port")
    if port and port != USUAL_PORT:
        dsn["port"] = port
    return f"sudo -u postgres {COMMAND} doctor {shlex.quote(make_conninfo(**dsn))}"


def alter_place(entry: RoleSetting, action: str) -> str:
    """Return ALTER DATABASE or ALTER ROLE for where a setting was left."""
    if entry.role is None and entry.database is not None:
        return f"ALTER DATABASE {quote_identifier(entry.database)} {action};"
    role = quote_identifier(entry.role) if entry.role else "ALL"
    where = f" IN DATABASE {quote_identifier(entry.database)}" if entry.database else ""
    return f"ALTER ROLE {role}{where} {action};"


def reset(entry: RoleSetting) -> str:
    return alter_place(entry, f"RESET {entry.name}")


def _source(facts: Facts, name: str) -> str:
    return facts.settings[name].source if name in facts.settings else "default"


def _place_here(facts: Facts, source: str) -> RoleSetting:
    """Return the place that such a source of this session's means."""
    database = facts.database if "database" in source else None
    role = facts.username if "user" in source else None
    return RoleSetting(database, role, "", "")


def set_to(facts: Facts, name: str, value: object) -> tuple[str, ...]:
    """Return what gives a setting another value, wherever the present one comes from."""
    source = _source(facts, name)
    if source in ("client", "environment variable", "session"):
        return (f"SET {name} = {value};",)
    if source in OF_ROLES:
        return (alter_place(_place_here(facts, source), f"SET {name} = {value}"),)
    return (f"ALTER SYSTEM SET {name} = {value};", RELOAD)


ALTERS = re.compile(r"ALTER SYSTEM SET ([\w.]+) = (.*);")


def of_the_command_line(facts: Facts, command: str) -> str | None:
    """Return what the server's command line is to say, if it goes before this command."""
    found = ALTERS.search(command)
    if not found or _source(facts, found[1]) != "command line":
        return None
    # A list is one word there.
    words = re.findall(r"'((?:[^']|'')*)'", found[2])
    return f"{found[1]}={','.join(words) if words else found[2]}"


def default_again(facts: Facts, name: str, default: str) -> tuple[str, ...]:
    """Return what gives a setting its default back, wherever the value comes from."""
    source = _source(facts, name)
    if source in ("client", "environment variable", "session"):
        return (f"RESET {name};", "unset PGOPTIONS")
    if source in OF_ROLES:
        return (alter_place(_place_here(facts, source), f"RESET {name}"),)
    # RESET would leave what a file says that somebody has written.
    return set_to(facts, name, default)
