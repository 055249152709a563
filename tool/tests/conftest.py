"""What the tests of the tool share: the embedded server, and a small extension."""

from __future__ import annotations

import shutil
import signal
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from lookahead import build, paths, servers
from lookahead.cluster import Cluster
from lookahead.servers import Server

# A job in the background ignores Ctrl-C, and so would the programs that tests start and stop.
# However the run is ended, servers are stopped; under nohup the terminal's end is ignored, and
# shall stay so.
for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
    if number != signal.SIGHUP or signal.getsignal(number) is not signal.SIG_IGN:
        signal.signal(number, signal.default_int_handler)

DUMMY = Path(__file__).parent / "dummy"


@pytest.fixture(scope="session")
def embedded() -> Server:
    return servers.embedded()


@pytest.fixture(scope="session")
def plain(embedded: Server) -> Iterator[Cluster]:
    """A running server without the extension; tests may not reconfigure it."""
    with Cluster(embedded, preload=False) as cluster:
        yield cluster


@pytest.fixture
def readable() -> Iterator[Path]:
    """An empty folder that the servers' user may enter, unlike pytest's own."""
    place = Path(tempfile.mkdtemp(prefix="test-", dir=paths.temp_root()))
    place.chmod(0o755)
    yield place
    shutil.rmtree(place)


@pytest.fixture
def extension(tmp_path: Path, embedded: Server) -> Iterator[Path]:
    """The sources of an extension of one function, to build and to break."""
    place = tmp_path / "extension"
    shutil.copytree(DUMMY, place)
    yield place
    # Neither its objects nor the extension shall stay in the cache.
    shutil.rmtree(build.build_folder(place, embedded), ignore_errors=True)
    for folder in (embedded.pkglibdir, embedded.sharedir / "extension"):
        for file in folder.glob("la_dummy*"):
            file.unlink()
