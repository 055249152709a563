#!/usr/bin/env python3
"""Tests of the checks: each breaks something in a copy and expects it to be found.

Run it as a program; it needs only Python 3.9.
"""

from __future__ import annotations

import importlib
import shutil
import subprocess
import sys
import tempfile
import unittest
from pathlib import Path

sys.dont_write_bytecode = True
HERE = Path(__file__).resolve().parent
ROOT = HERE.parent
sys.path.insert(0, str(HERE))

FILES = (
    "Makefile", "META.json", "*.md", "*.control", "bench/*.md", "bench/slowfs/*", "ci/*", "debian/**/*", "docs/*",
    "sql/*", "src/**/*", "test/expected/*", "test/specs/*", "test/sql/*", "LICENSE",
    "tool/lookahead/__init__.py",
)  # fmt: skip


class Copy(unittest.TestCase):
    """A copy of what the checks look at, to be broken."""

    def setUp(self) -> None:
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.root = Path(folder.name)
        for pattern in FILES:
            for file in ROOT.glob(pattern):
                if file.is_file():
                    place = self.root / file.relative_to(ROOT)
                    place.parent.mkdir(parents=True, exist_ok=True)
                    shutil.copy(file, place)

    def replace(self, name: str, old: str, new: str) -> None:
        file = self.root / name
        text = file.read_text()
        self.assertIn(old, text)
        file.write_text(text.replace(old, new, 1))

    def write(self, name: str, text: str) -> None:
        file = self.root / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)

    def append(self, name: str, text: str) -> None:
        self.write(name, (self.root / name).read_text() + text)

    def found(self, check: str) -> list[str]:
        problems = importlib.import_module(f"checks.{check}").check(self.root)
        assert isinstance(problems, list)
        return problems

    def expect(self, check: str, *words: str) -> None:
        """The check finds one thing, and its text has all these words."""
        problems = self.found(check)
        self.assertEqual(len(problems), 1, problems)
        for word in words:
            self.assertIn(word, problems[0])


@unittest.skipUnless(shutil.which("git"), "git is not here")
class Commits(Copy):
    """The copy becomes a repository; its pages name one commit, its own."""

    def setUp(self) -> None:
        super().setUp()
        for name in ("docs/benchmarks.md", "docs/benchmark-log.md"):
            self.write(name, "")
        self.git("init", "--quiet")
        # No hash that is nothing but digits, or but letters.
        here = ""
        while not (any(c.isdigit() for c in here) and any(c.isalpha() for c in here)):
            self.git("commit", "--quiet", "--allow-empty", "--message", "one")
            here = self.git("rev-parse", "--short=7", "HEAD").strip()
        self.here = here

    def git(self, *arguments: str) -> str:
        who = ("-c", "user.name=regress", "-c", "user.email=regress@localhost")
        command = ["git", "-C", str(self.root), *who, *arguments]
        return subprocess.run(command, check=True, capture_output=True, text=True).stdout

    def test_those_that_exist(self) -> None:
        self.append("docs/benchmarks.md", f"7 pairs, {self.here}, idle; 1234567 rows, `deadbee1`\n")
        self.append("CONTRIBUTING.md", f"as of commit {self.here}, a5f9c12 being anything\n")
        self.assertEqual(self.found("commits"), [])

    def test_one_that_does_not(self) -> None:
        self.append("docs/benchmarks.md", "7 pairs, 0dead00, idle\n")
        self.expect("commits", "docs/benchmarks.md", "there is no commit 0dead00")

    def test_one_on_another_page(self) -> None:
        self.append("CONTRIBUTING.md", "as of commit 1234567\n")
        self.expect("commits", "CONTRIBUTING.md", "there is no commit 1234567")

    def test_nothing_is_said_of_a_shallow_clone(self) -> None:
        self.append("docs/benchmarks.md", "7 pairs, 0dead00, idle\n")
        self.write(".git/shallow", self.git("rev-parse", "HEAD"))
        self.assertEqual(self.found("commits"), [])


class Documented(Copy):
    def test_a_column_without_a_row(self) -> None:
        self.replace("docs/reference.md", "| `reads_in_flight` |", "| pins |")
        self.expect("documented", "pg_lookahead_session", "has no reads_in_flight")

    def test_a_row_without_a_column(self) -> None:
        self.replace(
            "docs/reference.md", "| `reads_in_flight` |", "| `old` | x | x |\n| `reads_in_flight` |"
        )
        self.expect("documented", "there is no old")

    def test_a_function_without_a_section(self) -> None:
        self.replace("docs/reference.md", "### `pg_lookahead_version()`", "### Version")
        self.expect("documented", "no section `pg_lookahead_version`")

    def test_a_new_function(self) -> None:
        self.append(
            "sql/pg_lookahead--0.1.0.sql",
            "CREATE FUNCTION la_new(a oid DEFAULT NULL, OUT b numeric(3, 2)) RETURNS numeric\n"
            "AS 'MODULE_PATHNAME' LANGUAGE C;\n",
        )
        problems = "\n".join(self.found("documented"))
        self.assertIn("la_new has no COMMENT ON", problems)
        self.assertIn("does not name la_new", problems)
        self.assertIn("no section `la_new`", problems)

    def test_an_explain_label(self) -> None:
        self.replace("src/report/explain_scans.c", '"Depth Reached"', '"Depth"')
        self.expect("documented", "explain_scans.c", '"Depth"')

    def test_a_message(self) -> None:
        self.replace("src/report/views.c", 'errmsg("cumulative', 'errmsg("lasting')
        self.expect("documented", "views.c", "lasting look-ahead counters")

    def test_a_reason(self) -> None:
        self.replace("src/method/method.c", "kernel advice serves", "the kernel serves")
        self.expect("documented", "the kernel serves buffered I/O")


class LineLengths(Copy):
    def test_a_long_line(self) -> None:
        self.append("src/settings.h", "\t\t/* " + "x" * 70 + " */\n")
        self.expect("line_lengths", "src/settings.h: 1 lines")

    def test_a_long_string_is_left_alone(self) -> None:
        self.append("src/settings.h", '\t\tf("' + "x" * 90 + '");\n')
        self.assertEqual(self.found("line_lengths"), [])

    def test_known_ones(self) -> None:
        line = "\t\t/* " + "x" * 70 + " */\n"
        self.append("ci/long_lines.txt", "src/settings.h 2\n")
        self.append("src/settings.h", line * 2)
        self.assertEqual(self.found("line_lengths"), [])
        self.append("src/settings.h", line)
        self.expect("line_lengths", "src/settings.h: 3 lines", "2 of them known")

    def test_a_file_that_is_gone(self) -> None:
        self.append("ci/long_lines.txt", "src/gone.c 2\n")
        self.expect("line_lengths", "there is no src/gone.c")


class Links(Copy):
    def test_a_file_that_is_not_there(self) -> None:
        self.append("README.md", "\n[x](docs/none.md)\n")
        self.expect("links", "README.md", "docs/none.md")

    def test_a_heading_that_is_not_there(self) -> None:
        self.append("README.md", "\n[x](docs/reference.md#nothing)\n")
        self.expect("links", "no such heading")


class Settings(Copy):
    def test_another_default(self) -> None:
        self.replace(
            "src/settings.h", "LA_DEFAULT_MAX_DISTANCE\t\t256", "LA_DEFAULT_MAX_DISTANCE 128"
        )
        problems = self.found("settings")
        self.assertEqual(len(problems), 2, problems)
        self.assertIn("default is 128, not 256", problems[0])

    def test_another_range(self) -> None:
        self.replace("src/settings.c", '{"none", LA_METHOD_NONE, false},', "")
        self.assertIn("range is auto, advice, aio", self.found("settings")[0])

    def test_another_context(self) -> None:
        self.replace("src/settings.c", "PGC_USERSET", "PGC_SUSET")
        self.assertIn("context is superuser", self.found("settings")[0])

    def test_a_setting_that_is_gone(self) -> None:
        row = "| `pg_lookahead.old` | boolean | on, off | on | user | x |\n"
        self.replace("README.md", "| `pg_lookahead.method`", row + "| `pg_lookahead.method`")
        self.expect("settings", "README.md: there is no setting pg_lookahead.old")

    def test_another_default_beside_another_systems(self) -> None:
        self.replace(
            "docs/reference.md",
            "`pg_lookahead.protect_time` | ms | 1–3600000 | 1000",
            "`pg_lookahead.protect_time` | ms | 1–3600000 | 2000",
        )
        self.expect("settings", "protect_time, retold: default is 1000, not 2000")

    def test_another_range_behind_a_name(self) -> None:
        self.replace(
            "docs/reference.md",
            "`pg_lookahead.io_batch_size`: blocks, 1–32",
            "`pg_lookahead.io_batch_size`: blocks, 1–64",
        )
        self.expect("settings", "io_batch_size, retold: range is 1–32, not 1–64")

    def test_the_order(self) -> None:
        self.replace("src/settings.c", '"pg_lookahead.enabled"', '"pg_lookahead.switched_on"')
        self.assertIn("not in order", self.found("settings")[0])

    def test_a_definition_elsewhere(self) -> None:
        self.append("src/window/pace.c", 'void f(void) { DefineCustomBoolVariable("a"); }\n')
        self.expect("settings", "src/window/pace.c")


class Sources(Copy):
    def test_a_file_that_is_not_built(self) -> None:
        shutil.copy(self.root / "src/method/none.c", self.root / "src/method/more.c")
        problems = self.found("sources")
        self.assertEqual(len(problems), 2, problems)
        self.assertIn("OBJS has no src/method/more.o", problems[0])
        self.assertIn("its header says none.c", problems[1])

    def test_an_object_without_a_source(self) -> None:
        (self.root / "src/method/none.c").unlink()
        self.expect("sources", "src/method/none.o")

    def test_no_copyright(self) -> None:
        self.replace("src/method/none.c", " * Copyright", " * Written")
        self.expect("sources", "no copyright")


class TestsListed(Copy):
    def test_no_expected_output(self) -> None:
        self.write("test/specs/fresh.spec", "")
        self.expect("tests_listed", "test/expected/fresh.out")

    def test_no_test(self) -> None:
        self.write("test/expected/left_over.out", "")
        self.expect("tests_listed", "left_over.out", "no such test")

    def test_an_alternative_output(self) -> None:
        self.write("test/expected/scans_1.out", "")
        self.assertEqual(self.found("tests_listed"), [])

    def test_two_tests_of_one_name(self) -> None:
        self.write("test/specs/scans.spec", "")
        self.expect("tests_listed", "scans", "share")


class VersionGuards(Copy):
    def test_a_guard(self) -> None:
        self.append("src/window/pace.c", "#if PG_VERSION_NUM >= 170000\n#endif\n")
        self.expect("version_guards", "src/window/pace.c", "PG_VERSION_NUM")

    def test_a_comment_is_no_guard(self) -> None:
        self.append("src/window/pace.c", "/* PG_VERSION_NUM\n * is for compat.h */\n")
        self.assertEqual(self.found("version_guards"), [])


class Versions(Copy):
    def test_the_library(self) -> None:
        self.replace("src/report/views.c", 'LA_VERSION "0.1.0"', 'LA_VERSION "0.1.1"')
        self.expect("versions", "LA_VERSION says 0.1.1")

    def test_everything_but_the_control_file(self) -> None:
        self.replace("pg_lookahead.control", "0.1.0", "0.2.0")
        problems = "\n".join(self.found("versions"))
        for place in (
            "META.json", "LA_VERSION", "CHANGELOG.md", "debian/changelog", "sql/",
            "docs/reference.md", "__version__",
        ):  # fmt: skip
            self.assertIn(place, problems)

    def test_no_upgrade_script(self) -> None:
        self.append("CHANGELOG.md", "\n## 0.0.9 (2026-01-01)\n")
        self.expect("versions", "sql/pg_lookahead--0.0.9--0.1.0.sql")

    def test_a_heading_without_a_date(self) -> None:
        self.append("CHANGELOG.md", "\n## 0.0.9\n")
        self.expect("versions", "YYYY-MM-DD")

    def test_the_oldest_server(self) -> None:
        self.replace("debian/pgversions", "15\n", "14\n15\n")
        self.expect("versions", "debian/pgversions says 14 15 16 17 18")


class Everything(Copy):
    def test_what_is_here_is_good(self) -> None:
        for file in sorted((HERE / "checks").glob("[a-z]*.py")):
            with self.subTest(file.stem):
                self.assertEqual(self.found(file.stem), [])


if __name__ == "__main__":
    unittest.main()
