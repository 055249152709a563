"""Every finding of the doctor, from made-up facts."""

from __future__ import annotations

import re
import shlex
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from psycopg.conninfo import conninfo_to_dict

from lookahead import doctor
from lookahead.doctor_checks import NOTE, PROBLEM, WARNING, Finding, examine
from lookahead.doctor_facts import Counters, Facts, Latency, RoleSetting, Setting, summarize


def settings(**changes: str | None) -> dict[str, Setting]:
    """Return settings of a server that is in order; None removes one."""
    values: dict[str, str | None] = {
        "config_file": "/data/postgresql.conf",
        "data_directory": "/data",
        "debug_io_direct": "",
        "effective_io_concurrency": "16",
        "io_max_concurrency": "64",
        "io_method": "worker",
        "io_workers": "3",
        "max_worker_processes": "8",
        "pg_lookahead.enabled": "on",
        "pg_lookahead.io_concurrency": "64",
        "pg_lookahead.max_distance": "256",
        "pg_lookahead.method": "auto",
        "session_preload_libraries": "",
        "shared_buffers": "16384",
        "shared_preload_libraries": "pg_lookahead",
    }
    values.update({name.replace("__", "."): value for name, value in changes.items()})
    return {name: Setting(value) for name, value in values.items() if value is not None}


# Direct I/O that the I/O service reads ahead for, with processes for all.
SERVED_DIRECTLY = {
    "debug_io_direct": "data",
    "pg_lookahead__io_workers": "8",
    "max_worker_processes": "16",
}


def facts(changed: Mapping[str, str | None] | None = None, **changes: Any) -> Facts:
    """Return facts about a server that is in order, with changes."""
    good = Facts(
        version_num=180006,
        version="18.6",
        database="shop",
        database_bytes=10 << 30,
        available_version="0.1.0",
        extension_version="0.1.0",
        loaded=True,
        library_version="0.1.0",
        preloaded=True,
        method="advice",
        reason="kernel advice serves buffered I/O",
        bindir="/pg/bin",
        settings=settings(**(changed or {})),
        counters=Counters(),
        latency=Latency(64, 90.0, 200.0, 0.0, 90.0),
    )
    return replace(good, **changes)


def test_every_finding_is_documented() -> None:
    """In docs/doctor.md, with its severity."""
    root = Path(__file__).parents[2]
    folder = root / "tool" / "lookahead"
    source = "".join(file.read_text() for file in sorted(folder.glob("doctor*.py")))
    found = {
        (name, severity.lower())
        for name, severity in re.findall(
            r'Finding\(\s+"([a-z0-9-]+)",\s+(PROBLEM|WARNING|NOTE),', source
        )
    }
    table = (root / "docs" / "doctor.md").read_text()
    documented = dict(re.findall(r"^\| `([a-z0-9-]+)` \| ([a-z, ]+) \|", table, re.MULTILINE))
    assert len(found) > 15
    for name in ("switched-off", "method-none"):
        assert documented.pop(name) == "problem, warning"
    assert found == set(documented.items())


def only(found: list[Finding], name: str) -> Finding:
    """Return the finding of this name; it must be the only one."""
    assert [finding.id for finding in found] == [name]
    return found[0]


# Without the library its settings are not there either.
NOT_LOADED: dict[str, str | None] = {
    "pg_lookahead__enabled": None,
    "pg_lookahead__io_concurrency": None,
    "pg_lookahead__max_distance": None,
    "pg_lookahead__method": None,
}


def test_nothing_to_mend() -> None:
    assert examine(facts()) == []


@pytest.mark.parametrize(("number", "name"), [(140012, "14.12"), (190000, "19devel")])
def test_unsupported_version(number: int, name: str) -> None:
    found = only(examine(facts(version_num=number, version=name)), "version-unsupported")
    assert found.severity == PROBLEM
    assert name in found.title


def test_library_not_installed() -> None:
    found = examine(
        facts(
            NOT_LOADED,
            loaded=False,
            available_version=None,
            extension_version=None,
            library_version=None,
        )
    )
    finding = only(found, "library-not-installed")
    assert finding.commands == (
        "make PG_CONFIG=/pg/bin/pg_config",
        "sudo make install PG_CONFIG=/pg/bin/pg_config",
    )
    assert "headers of PostgreSQL 18" in finding.explanation


@pytest.mark.parametrize(
    ("bindir", "build", "package", "pg_config"),
    [
        (
            "/usr/lib/postgresql/18/bin",
            "PostgreSQL 18.6 (Debian 18.6-1.pgdg12+1) on x86_64-pc-linux-gnu",
            "sudo apt-get install build-essential postgresql-server-dev-18",
            "/usr/lib/postgresql/18/bin/pg_config",
        ),
        (
            # Who may not see the folder sees whose build it is.
            None,
            "PostgreSQL 18.6 (Ubuntu 18.6-1.pgdg24.04+1) on x86_64-pc-linux-gnu",
            "sudo apt-get install build-essential postgresql-server-dev-18",
            "/usr/lib/postgresql/18/bin/pg_config",
        ),
        (
            "/usr/pgsql-18/bin",
            "PostgreSQL 18.6 on x86_64-pc-linux-gnu, compiled by gcc (GCC) 11.5.0",
            "sudo dnf install gcc make redhat-rpm-config postgresql18-devel",
            "/usr/pgsql-18/bin/pg_config",
        ),
    ],
)
def test_library_not_installed_names_the_headers(
    bindir: str | None, build: str, package: str, pg_config: str
) -> None:
    given = facts(
        NOT_LOADED,
        loaded=False,
        available_version=None,
        extension_version=None,
        library_version=None,
        bindir=bindir,
        build=build,
    )
    assert only(examine(given), "library-not-installed").commands == (
        package,
        f"make PG_CONFIG={pg_config}",
        f"sudo make install PG_CONFIG={pg_config}",
    )


def test_library_file_is_gone() -> None:
    finding = only(
        examine(
            facts(
                NOT_LOADED,
                loaded=False,
                library_error='could not access file "x"',
                library_error_code="58P01",
            )
        ),
        "library-not-installed",
    )
    assert 'could not access file "x"' in finding.explanation


def test_not_loaded_keeps_the_libraries_that_are_there() -> None:
    changed = {**NOT_LOADED, "shared_preload_libraries": "pg_stat_statements, auto_explain"}
    finding = only(examine(facts(changed, loaded=False, preloaded=False)), "library-not-loaded")
    assert finding.severity == PROBLEM
    assert finding.commands == (
        "ALTER SYSTEM SET shared_preload_libraries ="
        " 'pg_stat_statements', 'auto_explain', 'pg_lookahead';",
        "/pg/bin/pg_ctl restart -D /data",
    )


def test_not_loaded_on_debian_restarts_as_debian_does() -> None:
    changed = {
        **NOT_LOADED,
        "shared_preload_libraries": "",
        "config_file": "/etc/postgresql/15/main/postgresql.conf",
    }
    finding = only(examine(facts(changed, loaded=False)), "library-not-loaded")
    assert finding.commands[-1] == "sudo pg_ctlcluster 15 main restart"


def restarted(changed: Mapping[str, str | None], **more: Any) -> str:
    """Return the command that restarts such a server."""
    changed = {**NOT_LOADED, "shared_preload_libraries": "", **changed}
    given = facts(changed, loaded=False, **more)
    return only(examine(given), "library-not-loaded").commands[-1]


def test_restart_of_a_package_for_red_hat() -> None:
    """systemd would take a server that pg_ctl has started for one that has failed."""
    found = restarted({"data_directory": "/var/lib/pgsql/18/data"}, bindir="/usr/pgsql-18/bin")
    assert found == "sudo systemctl restart postgresql-18"
    found = restarted({"data_directory": "/srv/a b"}, bindir="/usr/pgsql-18/bin")
    assert found == "/usr/pgsql-18/bin/pg_ctl restart -D '/srv/a b'"
    found = restarted({"data_directory": "/var/lib/pgsql/data"}, bindir="/usr/bin")
    assert found == "sudo systemctl restart postgresql"


HIDDEN: dict[str, str | None] = {"config_file": None, "data_directory": None}


def test_restart_where_the_folder_is_hidden() -> None:
    """No shell takes what stands for it for a redirection, and it says who sees it."""
    command, _, comment = restarted(HIDDEN, bindir=None).partition("#")
    assert shlex.split(command) == ["pg_ctl", "restart", "-D", "<data directory>"]
    assert "SHOW data_directory" in comment
    assert "pg_monitor" in comment


@pytest.mark.parametrize(
    ("build", "name", "expected"),
    [
        ("PostgreSQL 18.6 (Debian 18.6-1) on x86_64", "18/main", "sudo pg_ctlcluster 18 main"),
        ("PostgreSQL 18.6 (Debian 18.6-1) on x86_64", "shop", "pg_ctl"),
        ("PostgreSQL 18.6 on x86_64", "18/main", "pg_ctl"),
        # Built from source with Debian's compiler.
        ("PostgreSQL 18.6 on x86_64, compiled by gcc (Debian 12.2.0-14)", "18/main", "pg_ctl"),
        # It is there to be copied to a shell.
        ("PostgreSQL 18.6 (Debian 18.6-1)", "18/a;b", "sudo pg_ctlcluster 18 'a;b'"),
    ],
)
def test_restart_where_only_debians_name_is_seen(build: str, name: str, expected: str) -> None:
    found = restarted({**HIDDEN, "cluster_name": name}, bindir=None, build=build)
    assert found.startswith(f"{expected} restart")


def test_not_loaded_and_not_allowed_to_see_why() -> None:
    changed = {**NOT_LOADED, "shared_preload_libraries": None}
    finding = only(examine(facts(changed, loaded=False, username="bob")), "library-not-loaded")
    assert "bob" in finding.explanation
    assert finding.commands == ("sudo -u postgres ./lookahead doctor dbname=shop",)


def test_command_to_ask_as_a_superuser_names_database_and_port() -> None:
    changed = {**NOT_LOADED, "shared_preload_libraries": None, "port": "5433"}
    finding = only(examine(facts(changed, loaded=False, database="odd name")), "library-not-loaded")
    *words, dsn = shlex.split(finding.commands[0])
    assert words == ["sudo", "-u", "postgres", "./lookahead", "doctor"]
    assert conninfo_to_dict(dsn) == {"dbname": "odd name", "port": "5433"}


def test_where_alter_system_is_not_to_be_had() -> None:
    changed = {**NOT_LOADED, "shared_preload_libraries": ""}

    def said(settings: Mapping[str, str | None], superuser: bool) -> str:
        given = facts({**changed, **settings}, loaded=False, superuser=superuser, username="bob")
        return only(examine(given), "library-not-loaded").explanation

    usual = said({}, True)
    assert "allow_alter_system" not in usual
    assert "bob" not in usual
    assert "allow_alter_system" in said({"allow_alter_system": "off"}, True)
    assert '"bob" is no superuser' in said({}, False)


def test_restart_pending() -> None:
    given = facts(NOT_LOADED, loaded=False)
    given.settings["shared_preload_libraries"] = Setting(
        "pg_lookahead", "configuration file", pending_restart=True
    )
    assert only(examine(given), "restart-pending").commands == ("/pg/bin/pg_ctl restart -D /data",)


def test_loaded_per_session_is_only_noted() -> None:
    finding = only(
        examine(facts({"shared_preload_libraries": "x"}, preloaded=False)), "not-preloaded"
    )
    assert finding.severity == NOTE
    assert finding.commands[0].endswith("= 'x', 'pg_lookahead';")


def test_extension_not_created() -> None:
    finding = only(
        examine(facts(extension_version=None, library_version=None)), "extension-not-created"
    )
    assert finding.severity == WARNING
    assert finding.commands == ("CREATE EXTENSION pg_lookahead;",)


def test_library_outdated() -> None:
    found = examine(facts(available_version="0.2.0", extension_version="0.2.0"))
    finding = only(found, "library-outdated")
    assert finding.commands == ("/pg/bin/pg_ctl restart -D /data",)


def test_extension_outdated() -> None:
    found = examine(facts(available_version="0.2.0", library_version="0.2.0"))
    assert only(found, "extension-outdated").commands == ("ALTER EXTENSION pg_lookahead UPDATE;",)


@pytest.mark.parametrize(
    ("source", "first"),
    [
        ("configuration file", "ALTER SYSTEM SET pg_lookahead.enabled = on;"),
        ("client", "RESET pg_lookahead.enabled;"),
        ("command line", None),
        ("default", "ALTER SYSTEM SET pg_lookahead.enabled = on;"),
    ],
)
def test_switched_off(source: str, first: str | None) -> None:
    given = facts()
    given.settings["pg_lookahead.enabled"] = Setting("off", source)
    finding = only(examine(given), "switched-off")
    assert finding.severity == PROBLEM
    assert (finding.commands or (None,))[0] == first
    assert ("pg_lookahead.enabled=on" in finding.explanation) == (source == "command line")


def test_what_the_command_line_says() -> None:
    """ALTER SYSTEM would change nothing, however often the server is restarted."""
    given = facts(loaded=False)
    given.settings["shared_preload_libraries"] = Setting("auto_explain", "command line")
    finding = only(examine(given), "library-not-loaded")
    assert finding.commands == ()
    assert "shared_preload_libraries=auto_explain,pg_lookahead." in finding.explanation
    given = facts()
    given.settings["effective_io_concurrency"] = Setting("0", "command line")
    assert only(examine(given), "no-io-concurrency").commands == ()


def test_where_the_limit_of_reads_comes_from() -> None:
    given = facts()
    for source, command in (
        ("user", 'ALTER ROLE "postgres" SET effective_io_concurrency = 16;'),
        ("configuration file", "ALTER SYSTEM SET effective_io_concurrency = 16;"),
    ):
        given.settings["effective_io_concurrency"] = Setting("0", source)
        assert only(examine(given), "no-io-concurrency").commands[0] == command


@pytest.mark.parametrize(
    ("database", "role", "severity", "command"),
    [
        ("shop", None, PROBLEM, 'ALTER DATABASE "shop" RESET pg_lookahead.enabled;'),
        ("other", None, WARNING, 'ALTER DATABASE "other" RESET pg_lookahead.enabled;'),
        (None, "postgres", PROBLEM, 'ALTER ROLE "postgres" RESET pg_lookahead.enabled;'),
        (None, 'o"dd', WARNING, 'ALTER ROLE "o""dd" RESET pg_lookahead.enabled;'),
        (
            "shop",
            "bob",
            WARNING,
            'ALTER ROLE "bob" IN DATABASE "shop" RESET pg_lookahead.enabled;',
        ),
        (None, None, PROBLEM, "ALTER ROLE ALL RESET pg_lookahead.enabled;"),
    ],
)
@pytest.mark.parametrize("value", ["off", "False", "0"])
def test_switched_off_for_some(
    database: str | None, role: str | None, severity: str, command: str, value: str
) -> None:
    entry = RoleSetting(database, role, "pg_lookahead.enabled", value)
    finding = only(examine(facts(role_settings=(entry,))), "switched-off")
    assert finding.severity == severity
    assert finding.commands == (command,)


def test_off_for_the_database_is_reported_once() -> None:
    entry = RoleSetting("shop", None, "pg_lookahead.enabled", "off")
    given = facts(role_settings=(entry,))
    given.settings["pg_lookahead.enabled"] = Setting("off", "database")
    only(examine(given), "switched-off")


def test_switched_on_for_some() -> None:
    entry = RoleSetting("shop", None, "pg_lookahead.enabled", "on")
    assert examine(facts(role_settings=(entry,))) == []


def test_method_none() -> None:
    given = facts(method="none")
    given.settings["pg_lookahead.method"] = Setting("none", "configuration file")
    finding = only(examine(given), "method-none")
    assert finding.commands[0] == "ALTER SYSTEM SET pg_lookahead.method = auto;"


def test_method_none_for_a_role() -> None:
    entry = RoleSetting(None, "bob", "pg_lookahead.method", "none")
    finding = only(examine(facts(role_settings=(entry,))), "method-none")
    assert finding.commands == ('ALTER ROLE "bob" RESET pg_lookahead.method;',)


def test_direct_io_before_18() -> None:
    changed = {"debug_io_direct": "data, wal", "io_method": None, "io_workers": None}
    given = facts(changed, version_num=170011, version="17.11", method="none")
    finding = only(examine(given), "direct-io")
    assert finding.severity == PROBLEM
    assert finding.commands[:2] == (
        "ALTER SYSTEM SET pg_lookahead.io_workers = 8;",
        "ALTER SYSTEM SET max_worker_processes = 16;  -- on hot standbys first",
    )


def test_direct_io_before_18_without_preloading() -> None:
    changed = {"debug_io_direct": "data", "shared_preload_libraries": "auto_explain"}
    given = facts(changed, version_num=170011, method="none", preloaded=False)
    (finding,) = (found for found in examine(given) if found.id == "direct-io")
    assert finding.commands[0].endswith("= 'auto_explain', 'pg_lookahead';")
    assert finding.commands[1] == "ALTER SYSTEM SET pg_lookahead.io_workers = 8;"
    # The library is new, and so are all of its workers.
    assert (
        finding.commands[2]
        == "ALTER SYSTEM SET max_worker_processes = 16;  -- on hot standbys first"
    )


@pytest.mark.parametrize(("number", "first"), [(160014, "LOAD 'pg_lookahead'; "), (170011, "")])
def test_direct_io_without_the_library(number: int, first: str) -> None:
    """Before 17 ALTER SYSTEM refuses the name of a setting that is not known."""
    changed = {**NOT_LOADED, "debug_io_direct": "data", "shared_preload_libraries": ""}
    given = facts(changed, version_num=number, method="none", preloaded=False, loaded=False)
    found = next(finding for finding in examine(given) if finding.id == "direct-io")
    assert found.commands[1] == f"{first}ALTER SYSTEM SET pg_lookahead.io_workers = 8;"


@pytest.mark.parametrize(("workers", "number"), [("-1", 2), ("2", 2), ("5", 5), ("7", 7)])
def test_few_service_workers(workers: str, number: int) -> None:
    changed = {"debug_io_direct": "data", "pg_lookahead__io_workers": workers}
    found = examine(facts(changed, version_num=170011, method="worker"))
    if 8 - number < 3:
        few = {"few-service-workers", "few-worker-processes"}
        assert {finding.id for finding in found} == few
        found = [finding for finding in found if finding.id == "few-service-workers"]
    finding = only(found, "few-service-workers")
    assert finding.severity == WARNING
    assert f"with {number} workers" in finding.title
    assert (
        finding.commands[1]
        == "ALTER SYSTEM SET max_worker_processes = 16;  -- on hot standbys first"
    )


def test_enough_service_workers() -> None:
    assert examine(facts(SERVED_DIRECTLY, version_num=170011, method="worker")) == []


@pytest.mark.parametrize(("processes", "is_enough"), [("8", False), ("10", False), ("11", True)])
def test_processes_for_others(processes: str, is_enough: bool) -> None:
    changed = {"pg_lookahead__io_workers": "8", "max_worker_processes": processes}
    found = examine(facts(changed, version_num=170011))
    if is_enough:
        assert found == []
        return
    finding = only(found, "few-worker-processes")
    assert finding.severity == WARNING
    assert (
        finding.commands[0]
        == "ALTER SYSTEM SET max_worker_processes = 16;  -- on hot standbys first"
    )


def test_service_that_does_not_run() -> None:
    """No command sets what is set already."""
    given = facts(SERVED_DIRECTLY, version_num=170011, method="none")
    finding = only(examine(given), "direct-io")
    assert [command.split()[0] for command in finding.commands] == ["/pg/bin/pg_ctl"]


def test_direct_io_seen_by_anybody() -> None:
    """Who may not see what is preloaded is not told that nothing is."""
    changed = {"debug_io_direct": "data", "shared_preload_libraries": None}
    given = facts(changed, version_num=170011, method=None, preloaded=None)
    finding = only(examine(given), "direct-io-unknown")
    assert finding.severity == NOTE
    assert finding.commands == ("sudo -u postgres ./lookahead doctor dbname=shop",)


def test_loaded_by_the_session_seen_by_anybody() -> None:
    """A command that would drop the libraries that are there is none."""
    finding = only(
        examine(facts({"shared_preload_libraries": None}, preloaded=False)), "not-preloaded"
    )
    assert finding.commands == ("sudo -u postgres ./lookahead doctor dbname=shop",)


@pytest.mark.parametrize(
    ("code", "error", "first"),
    [
        (
            "42501",
            "permission denied for schema ext",
            'GRANT USAGE ON SCHEMA ext TO "postgres";',
        ),
        (
            "42501",
            "permission denied for function pg_lookahead_version",
            "GRANT EXECUTE ON FUNCTION ext.pg_lookahead_version(), ext.pg_lookahead_status()"
            ' TO "postgres";',
        ),
        ("42883", "no such function", "/pg/bin/pg_ctl restart -D /data"),
        ("55000", "not the columns that the library gives", "/pg/bin/pg_ctl restart -D /data"),
        ("57014", "canceled", "SELECT * FROM ext.pg_lookahead_status();"),
    ],
)
def test_functions_that_fail(code: str, error: str, first: str) -> None:
    given = facts(library_version=None, library_error=error, library_error_code=code, schema="ext")
    finding = only(examine(given), "library-fails")
    assert finding.commands[0] == first


def test_direct_io_without_the_extension() -> None:
    """The settings tell who reads; the library is not named twice."""
    changed = dict(SERVED_DIRECTLY)
    unknown = {"extension_version": None, "method": None, "preloaded": None}
    given = facts(changed, version_num=170011, **unknown)
    only(examine(given), "extension-not-created")
    changed["pg_lookahead__io_workers"] = "0"
    given = facts(changed, version_num=170011, **unknown)
    finding = next(found for found in examine(given) if found.id == "direct-io")
    assert finding.commands[0] == "ALTER SYSTEM SET pg_lookahead.io_workers = 8;"


@pytest.mark.parametrize("setting", [("enabled", "off"), ("method", "none")])
def test_direct_io_is_no_matter_if_switched_off(setting: tuple[str, str]) -> None:
    name, value = setting
    changed = {"debug_io_direct": "data", f"pg_lookahead__{name}": value}
    given = facts(changed, version_num=170011, method="none")
    assert "direct-io" not in {found.id for found in examine(given)}


def with_huge_pages(**changed: str) -> list[Finding]:
    """Examine a server with direct I/O that would need 80 huge pages."""
    given = {
        **SERVED_DIRECTLY,
        "shared_memory_size_in_huge_pages": "80",
        **changed,
    }
    return examine(facts(given, version_num=170011, method="worker"))


def test_direct_io_without_huge_pages() -> None:
    finding = only(with_huge_pages(huge_pages="try", huge_pages_status="off"), "huge-pages")
    assert finding.severity == WARNING
    added = "sudo sysctl -w vm.nr_hugepages=$(($(cat /proc/sys/vm/nr_hugepages) + 80))"
    assert finding.commands[0] == added
    switched_off = only(with_huge_pages(huge_pages="off", huge_pages_status="off"), "huge-pages")
    assert switched_off.commands[0] == "ALTER SYSTEM SET huge_pages = try;"


def test_whether_16_has_huge_pages_is_not_known() -> None:
    assert only(with_huge_pages(huge_pages="try"), "huge-pages").severity == NOTE
    assert only(with_huge_pages(huge_pages="off"), "huge-pages").severity == WARNING


@pytest.mark.parametrize(
    "changed",
    [
        {"huge_pages": "try", "huge_pages_status": "on"},
        {"huge_pages": "on"},
        {"huge_pages": "try", "debug_io_direct": ""},
        {"huge_pages": "try", "shared_memory_size_in_huge_pages": "-1"},
    ],
)
def test_huge_pages_that_are_there_or_of_no_use(changed: dict[str, str]) -> None:
    assert "huge-pages" not in {found.id for found in with_huge_pages(**changed)}


def test_direct_io_for_wal_only() -> None:
    assert examine(facts({"debug_io_direct": "wal"}, version_num=170011)) == []


def test_direct_io_with_synchronous_reads() -> None:
    given = facts({"debug_io_direct": "data", "io_method": "sync"}, method="none")
    finding = only(examine(given), "direct-io-sync")
    assert finding.commands[0] == "ALTER SYSTEM SET io_method = 'worker';"


@pytest.mark.parametrize(
    ("io_method", "in_recovery", "method", "is_told"),
    [
        ("io_uring", True, "none", True),
        ("io_uring", True, None, True),
        ("io_uring", True, "worker", False),
        ("io_uring", False, "aio", False),
        ("worker", True, "aio", False),
    ],
)
def test_direct_io_of_a_standby(
    io_method: str, in_recovery: bool, method: str | None, is_told: bool
) -> None:
    given = facts(
        {"debug_io_direct": "data", "io_method": io_method}, method=method, in_recovery=in_recovery
    )
    found = [finding for finding in examine(given) if finding.id == "direct-io-standby"]
    assert len(found) == is_told
    for finding in found:
        assert finding.commands[0] == "ALTER SYSTEM SET io_method = 'worker';"


def test_direct_io_with_advice() -> None:
    given = facts({"debug_io_direct": "data", "pg_lookahead__method": "advice"}, method="none")
    only(examine(given), "direct-io-advice")


def test_few_io_workers() -> None:
    finding = only(examine(facts({"debug_io_direct": "data"}, method="aio")), "few-io-workers")
    assert finding.severity == WARNING
    assert finding.commands == (
        "ALTER SYSTEM SET io_workers = 16;",
        "SELECT pg_reload_conf();",
    )


def test_few_io_workers_is_told_without_the_extension() -> None:
    """Then nobody says which method it is; the settings do."""
    given = facts(
        {"pg_lookahead__method": "aio"}, method=None, extension_version=None, library_version=None
    )
    assert "few-io-workers" in [finding.id for finding in examine(given)]


def test_io_workers_read_leaf_pages_and_bitmaps_with_auto() -> None:
    """Advice serves index scans, but these go through the I/O workers.

    So it is in la_dense_method_for() of src/method/method.c.  Three workers, which
    the server has by default, do for them.
    """
    finding = only(examine(facts({"io_workers": "1"})), "few-io-workers")
    assert finding.severity == WARNING
    assert "leaf pages and bitmap heap scans" in finding.explanation
    assert finding.commands[0] == "ALTER SYSTEM SET io_workers = 3;"
    assert examine(facts({"io_workers": "3"})) == []
    changed = {"io_workers": "1", "pg_lookahead__leafscan": "off"}
    assert [found.id for found in examine(facts(changed))] == ["few-io-workers", "part-off"]


@pytest.mark.parametrize(
    "changed",
    [
        {"pg_lookahead__method": "advice"},
        {"io_method": "io_uring"},
        {"pg_lookahead__leafscan": "off", "pg_lookahead__bitmapscan": "off"},
    ],
)
def test_io_workers_that_read_nothing_do_not_matter(changed: dict[str, str]) -> None:
    found = examine(facts({"io_workers": "1", **changed}))
    assert "few-io-workers" not in {finding.id for finding in found}


def test_io_workers_that_cannot_keep_up_with_the_storage() -> None:
    """A worker has one read in flight: with direct I/O there are no others."""
    slow = Latency(64, 1000.0, 2000.0, 0.0, 1000.0)
    changed = {"debug_io_direct": "data", "io_workers": "16"}
    assert examine(facts(changed, method="aio")) == []
    finding = only(examine(facts(changed, method="aio", latency=slow)), "few-io-workers")
    assert "takes 1 ms" in finding.explanation
    assert "needs 100 in flight" in finding.explanation
    assert finding.commands[0] == "ALTER SYSTEM SET io_workers = 32;"
    # More there cannot be; and with buffered storage the kernel has more in flight.
    assert examine(facts({**changed, "io_workers": "32"}, method="aio", latency=slow)) == []
    assert examine(facts({"io_workers": "16"}, method="aio", latency=slow)) == []


@pytest.mark.parametrize(
    ("microseconds", "workers", "expected"),
    [(110, 8, None), (130, 8, 16), (200, 16, None), (1000, 16, 32), (1000, 32, None)],
)
def test_service_workers_that_cannot_keep_up_with_the_storage(
    microseconds: int, workers: int, expected: int | None
) -> None:
    changed = {
        **SERVED_DIRECTLY,
        "pg_lookahead__io_workers": str(workers),
        "max_worker_processes": str(workers + 8),
    }
    latency = Latency(64, microseconds, 9999.0, 0.0, microseconds)
    found = examine(facts(changed, version_num=170011, method="worker", latency=latency))
    if expected is None:
        assert found == []
        return
    finding = only(found, "few-service-workers")
    assert finding.commands[:2] == (
        f"ALTER SYSTEM SET pg_lookahead.io_workers = {expected};",
        f"ALTER SYSTEM SET max_worker_processes = {expected + 8};  -- on hot standbys first",
    )


def test_distance_that_the_storage_outruns() -> None:
    """The formula of docs/reference.md; a 256 of blocks covers 2.56 ms."""
    latency = Latency(64, 2560.0, 9999.0, 0.0, 2560.0)
    assert examine(facts(latency=latency)) == []
    latency = Latency(64, 5000.0, 9999.0, 0.0, 5000.0)
    finding = only(examine(facts(latency=latency)), "short-distance")
    assert finding.severity == NOTE
    assert finding.title == "A read takes 5 ms, and pg_lookahead.max_distance is 256"
    assert "needs 500 blocks ahead" in finding.explanation
    assert finding.commands == (
        "ALTER SYSTEM SET pg_lookahead.max_distance = 1024;",
        "SELECT pg_reload_conf();",
    )
    assert examine(facts({"pg_lookahead__max_distance": "1024"}, latency=latency)) == []
    most = {"pg_lookahead__max_distance": "4096"}
    assert examine(facts(most, latency=Latency(64, 90000.0, 1.0, 0.0, 90000.0))) == []


def test_distance_is_raised_where_it_was_set() -> None:
    given = facts(latency=Latency(64, 5000.0, 9999.0, 0.0, 5000.0))
    given.settings["pg_lookahead.max_distance"] = Setting("256", "database user")
    assert only(examine(given), "short-distance").commands == (
        'ALTER ROLE "postgres" IN DATABASE "shop" SET pg_lookahead.max_distance = 1024;',
    )
    given.settings["pg_lookahead.max_distance"] = Setting("256", "client")
    assert only(examine(given), "short-distance").commands == (
        "SET pg_lookahead.max_distance = 1024;",
    )


def test_reads_in_flight_that_the_storage_outruns() -> None:
    """Asynchronous I/O looks ahead two blocks for each of them."""
    latency = Latency(64, 2000.0, 9999.0, 0.0, 2000.0)
    changed = {"io_method": "io_uring", "debug_io_direct": "data"}
    finding = only(examine(facts(changed, method="aio", latency=latency)), "short-distance")
    assert finding.title.endswith("pg_lookahead.io_concurrency is 64")
    assert finding.commands == (
        "ALTER SYSTEM SET pg_lookahead.io_concurrency = 256;",
        "SELECT pg_reload_conf();",
        "ALTER SYSTEM SET io_max_concurrency = 260;",
        "/pg/bin/pg_ctl restart -D /data",
    )
    changed |= {"pg_lookahead__io_concurrency": "256", "io_max_concurrency": "260"}
    assert examine(facts(changed, method="aio", latency=latency)) == []


def test_cached_reads_say_nothing_of_the_storage() -> None:
    assert examine(facts(latency=Latency(64, 5000.0, 9999.0, 0.8))) == []
    found = summarize([5.0] * 49 + [5000.0] * 15)
    assert found
    assert found.storage_us is None
    found = summarize([5.0] * 48 + [5000.0] * 16)
    assert found
    assert (found.median_us, found.storage_us) == (5.0, 5000.0)


def test_low_io_max_concurrency() -> None:
    changed = {"io_method": "io_uring", "io_max_concurrency": "16"}
    finding = only(examine(facts(changed, method="aio")), "low-io-max-concurrency")
    assert finding.commands[0] == "ALTER SYSTEM SET io_max_concurrency = 68;"


def test_no_effective_io_concurrency() -> None:
    finding = only(examine(facts({"effective_io_concurrency": "0"})), "no-io-concurrency")
    assert "bitmap" in finding.explanation


def test_synchronous_reads_are_fine_with_advice() -> None:
    assert only(examine(facts({"io_method": "sync"})), "io-method-sync").severity == NOTE


def test_platform_without_advice() -> None:
    build = "PostgreSQL 18.6 on aarch64-apple-darwin24"
    given = facts(
        {"io_method": None},
        version_num=170011,
        build="PostgreSQL 17.11 on x86_64-apple-darwin",
        method="none",
    )
    finding = only(examine(given), "no-advice")
    assert finding.severity == PROBLEM
    assert finding.commands[0] == "ALTER SYSTEM SET pg_lookahead.io_workers = 2;"
    given.settings["shared_preload_libraries"] = Setting("auto_explain")
    finding = next(found for found in examine(given) if found.id == "no-advice")
    assert finding.commands[0].endswith("= 'auto_explain', 'pg_lookahead';")
    given.settings["shared_preload_libraries"] = Setting("pg_lookahead")
    # Once the service runs, or on 18 by itself, there is nothing to mend.
    assert examine(replace(given, method="worker")) == []
    assert examine(facts({"io_workers": "16"}, build=build, method="aio")) == []
    assert examine(facts(build=build, method=None, reason=None)) == []
    given = facts({"io_method": "sync"}, build=build, method="none")
    finding = only(examine(given), "no-advice")
    assert finding.commands[0] == "ALTER SYSTEM SET io_method = 'worker';"
    for forced in ("advice", "worker"):
        given = facts({"pg_lookahead__method": forced}, build=build, method="none")
        finding = only(examine(given), "no-advice")
        assert finding.commands[0] == "ALTER SYSTEM SET pg_lookahead.method = auto;"


def test_platform_where_the_setting_cannot_be_raised() -> None:
    given = facts({"io_method": None}, version_num=160014, method="none")
    given.settings["effective_io_concurrency"] = Setting("0", max_value="0")
    only(examine(given), "no-advice")


def test_database_in_shared_buffers() -> None:
    finding = only(examine(facts(database_bytes=100 << 20)), "fits-shared-buffers")
    assert finding.severity == NOTE


def test_tables_in_the_page_cache() -> None:
    given = facts(latency=Latency(64, 5.0, 9.0, 0.98))
    assert only(examine(given), "in-page-cache").severity == NOTE


def test_much_wasted() -> None:
    seen = Counters(scans=9, issued=10000, used=7000, wasted=3000, most_wasted="orders")
    finding = only(examine(facts(counters=seen)), "much-wasted")
    assert "30%" in finding.title
    assert "orders" in finding.explanation
    assert finding.commands[0] == "ALTER SYSTEM SET pg_lookahead.max_distance = 64;"
    finding = only(
        examine(facts({"pg_lookahead__max_distance": "32"}, counters=seen)), "much-wasted"
    )
    assert finding.commands[0] == "ALTER SYSTEM SET pg_lookahead.max_distance = 16;"
    # Lower is no look-ahead; that it is low already is no finding then.
    for least in ("8", "16"):
        given = facts({"pg_lookahead__max_distance": least}, counters=seen)
        assert only(examine(given), "much-wasted").commands == ()


# Values with which look-ahead hardly helps, on a 17 with the I/O service.
FAR = [
    ("start_after", "1000000", "8"),
    ("start_after", "0", "8"),
    ("max_distance", "8", "256"),
    ("ring_size", "1024", "'64MB'"),
    ("io_batch_size", "1", "16"),
]


@pytest.mark.parametrize(("name", "value", "usual"), FAR)
def test_settings_with_which_look_ahead_hardly_helps(name: str, value: str, usual: str) -> None:
    given = facts(version_num=170011)
    given.settings[f"pg_lookahead.{name}"] = Setting(value, "configuration file")
    finding = only(examine(given), "unusual-setting")
    assert finding.severity == WARNING
    assert finding.title.startswith(f"pg_lookahead.{name} is {value}, ")
    assert "configuration file" in finding.explanation
    assert finding.commands == (
        f"ALTER SYSTEM SET pg_lookahead.{name} = {usual};",
        "SELECT pg_reload_conf();",
    )


@pytest.mark.parametrize(
    ("name", "value"),
    [
        # What docs/troubleshooting.md proposes is no fault.
        ("start_after", "50"),
        ("max_distance", "32"),
        ("max_distance", "16"),
        ("io_concurrency", "8"),
        ("ring_size", "4096"),
        ("io_batch_size", "4"),
        ("min_table_size", "1048575"),
        ("heap_extend_size", "16"),
    ],
)
@pytest.mark.parametrize("number", [170011, 180006])
def test_settings_with_which_it_helps(name: str, value: str, number: int) -> None:
    assert examine(facts({f"pg_lookahead__{name}": value}, version_num=number)) == []


def test_few_reads_in_flight_matter_where_reads_are_asynchronous() -> None:
    few = {"pg_lookahead__io_concurrency": "1"}
    assert only(examine(facts(few)), "unusual-setting").severity == WARNING
    assert examine(facts(few, version_num=170011)) == []
    assert examine(facts({**few, "io_method": "io_uring"})) == []
    ring = {"pg_lookahead__ring_size": "1024", "pg_lookahead__io_batch_size": "1"}
    assert examine(facts({**ring, "pg_lookahead__io_workers": "0"}, version_num=170011)) == []


@pytest.mark.parametrize(
    ("name", "value", "database", "role", "command"),
    [
        ("start_after", "5000", None, "bob", 'ALTER ROLE "bob" RESET pg_lookahead.start_after;'),
        (
            "max_distance",
            "64kB",
            "shop",
            None,
            'ALTER DATABASE "shop" RESET pg_lookahead.max_distance;',
        ),
        (
            "max_distance",
            "8",
            "shop",
            "bob",
            'ALTER ROLE "bob" IN DATABASE "shop" RESET pg_lookahead.max_distance;',
        ),
    ],
)
def test_unusual_settings_for_some(
    name: str, value: str, database: str | None, role: str | None, command: str
) -> None:
    entry = RoleSetting(database, role, f"pg_lookahead.{name}", value)
    given = facts(role_settings=(entry,))
    # The session that has it from there is no second place.
    given.settings[f"pg_lookahead.{name}"] = Setting("8", "database user")
    finding = only(examine(given), "unusual-setting")
    assert value in finding.title
    assert (role or database or "") in finding.title
    assert finding.commands == (command,)


@pytest.mark.parametrize("value", ["4MB", "1GB", "512", "many", "1 furlong"])
def test_usual_settings_for_some(value: str) -> None:
    entry = RoleSetting("shop", None, "pg_lookahead.max_distance", value)
    assert examine(facts(role_settings=(entry,))) == []


# Parts of the work that can be switched off; those of some versions with the versions.
OFF = [
    ("bitmapscan", "off", "on", ()),
    ("leafscan", "off", "on", ()),
    ("seqscan", "off", "on", (15, 16, 17)),
    ("maintenance", "off", "on", (15, 16, 17)),
    ("min_table_size", "2147483647", "'1GB'", (15, 16, 17)),
    ("heap_extend_size", "0", "'4MB'", ()),
    ("index_extend_size", "0", "'4MB'", ()),
    ("vacuum_buffer_usage_limit", "0", "'16MB'", ()),
    ("vacuum_buffer_usage_limit", "256", "'16MB'", ()),
    ("vacuum_buffer_usage_limit", "2MB", "'16MB'", (15, 17, 18)),
    ("vacuum_buffer_usage_limit", "8MB", "'16MB'", (15,)),
    ("write_combine_size", "0", "'256kB'", (17, 18)),
]


@pytest.mark.parametrize("major", [15, 16, 17, 18])
@pytest.mark.parametrize(("name", "value", "usual", "versions"), OFF)
def test_parts_that_are_switched_off(
    name: str, value: str, usual: str, versions: tuple[int, ...], major: int
) -> None:
    changed = {f"pg_lookahead__{name}": value}
    given = facts(changed, version_num=major * 10000 + 8)
    if versions and major not in versions:
        assert examine(given) == []
        return
    finding = only(examine(given), "part-off")
    assert finding.severity == NOTE
    assert finding.commands[0] == f"ALTER SYSTEM SET pg_lookahead.{name} = {usual};"


def test_nobody_could_follow_commands_without_the_service() -> None:
    changed = {"pg_lookahead__maintenance": "off", "pg_lookahead__io_workers": "0"}
    assert examine(facts(changed, version_num=170008)) == []


@pytest.mark.parametrize("number", [150006, 160002])
def test_tables_do_not_grow_ahead_in_old_minor_releases(number: int) -> None:
    assert examine(facts({"pg_lookahead__heap_extend_size": "0"}, version_num=number)) == []


def test_part_off_for_a_role() -> None:
    entry = RoleSetting(None, "bob", "pg_lookahead.leafscan", "no")
    finding = only(examine(facts(role_settings=(entry,))), "part-off")
    assert 'role "bob"' in finding.title
    assert finding.commands == ('ALTER ROLE "bob" RESET pg_lookahead.leafscan;',)


@pytest.mark.parametrize("value", ["NONE", "None"])
def test_method_none_in_capitals(value: str) -> None:
    entry = RoleSetting(None, "bob", "pg_lookahead.method", value)
    only(examine(facts(role_settings=(entry,))), "method-none")


def test_little_waste_or_little_to_go_by() -> None:
    assert examine(facts(counters=Counters(issued=10000, used=9000, wasted=1000))) == []
    assert examine(facts(counters=Counters(issued=10, wasted=10))) == []


def test_problems_come_first() -> None:
    given = facts({"effective_io_concurrency": "0"}, database_bytes=1, role_settings=())
    given.settings["pg_lookahead.enabled"] = Setting("off", "configuration file")
    assert [f.severity for f in examine(given)] == [PROBLEM, WARNING, NOTE]


def test_facts_that_may_not_be_seen() -> None:
    """A user without rights gets what there is to be had, and no error."""
    bare = Facts(version_num=180006, version="18.6", superuser=False)
    assert [finding.id for finding in examine(bare)] == ["library-not-installed"]
    doctor.show(bare, examine(bare))


def test_latency_figures() -> None:
    found = summarize([5.0] * 50 + [100.0] * 50)
    assert found
    assert (found.samples, found.cached_share, found.p90_us) == (100, 0.5, 100.0)
    assert summarize([5.0]) is None


def test_every_finding_can_be_shown(capsys: pytest.CaptureFixture[str]) -> None:
    given = facts({"effective_io_concurrency": "0"}, database_bytes=1)
    doctor.show(given, examine(given))
    shown = capsys.readouterr().out
    assert "ALTER SYSTEM SET effective_io_concurrency = 16;" in shown
    assert "0 problem(s), 1 warning(s)" in shown


def test_names_that_would_control_the_terminal(capsys: pytest.CaptureFixture[str]) -> None:
    entry = RoleSetting("shop\x1b]0;owned\x07", None, "pg_lookahead.enabled", "off")
    given = facts(database_bytes=1, role_settings=(entry,))
    found = examine(given)
    assert any("\x1b" in command for finding in found for command in finding.commands)
    doctor.show(given, found)
    shown = capsys.readouterr().out
    assert all(c.isprintable() or c == "\n" for c in shown)
    assert "do not copy it" in shown
    assert "shop?]0;owned?" in shown


def test_standby() -> None:
    """Its catalogs are written by the primary, its settings by itself."""
    entry = RoleSetting("shop", None, "pg_lookahead.enabled", "off")
    given = facts(
        {"io_workers": "3", "debug_io_direct": "data"},
        extension_version=None,
        method="aio",
        in_recovery=True,
        role_settings=(entry,),
    )
    commands = [command for finding in examine(given) for command in finding.commands]
    assert "CREATE EXTENSION pg_lookahead;  -- on the primary" in commands
    assert 'ALTER DATABASE "shop" RESET pg_lookahead.enabled;  -- on the primary' in commands
    assert "ALTER SYSTEM SET io_workers = 16;" in commands
