"""The control rule of look-ahead, move by move: test/unit/test_pace.c."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

from lookahead import paths
from lookahead.servers import Server


def test_control_rule(server: Server, tmp_path: Path) -> None:
    compiler = shutil.which("cc") or shutil.which("gcc")
    assert compiler is not None
    program = tmp_path / "test_pace"
    root = paths.REPOSITORY
    command = [
        compiler, *"-D_GNU_SOURCE -O1 -g -Wall -Werror".split(),
        f"-I{server.settings['INCLUDEDIR-SERVER']}", f"-I{root / 'src'}",
        "-o", program, root / "test/unit/test_pace.c", root / "src/window/pace.c",
    ]  # fmt: skip
    subprocess.run(command, check=True)
    done = subprocess.run([program], capture_output=True, text=True)
    assert (done.returncode, done.stdout) == (0, "")
