"""Servers for the tests, one per way of reading ahead.

LOOKAHEAD_SERVER names the server (`lookahead test` sets it); the embedded 18
is the default.  Clusters start when the first test asks for them and live for
the whole run; tests that crash, corrupt or reconfigure a server make their own
with `new_cluster`.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Iterator, Mapping
from functools import cache
from pathlib import Path

import pytest
from lookahead import build, privilege, servers, valgrind
from lookahead.cluster import Cluster
from lookahead.errors import LookaheadError
from lookahead.servers import Server
from lookahead.suites import ALONE

from support import LogWatch, Variant, conf_of, prepare, variants_of

# However the run is ended, servers are stopped.  A job in the background ignores
# Ctrl-C; under nohup the terminal's end is ignored, and shall stay so.
for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
    if number != signal.SIGHUP or signal.getsignal(number) is not signal.SIG_IGN:
        signal.signal(number, signal.default_int_handler)

CONF = {
    "pg_lookahead.seqscan": "on",
    # A backend's share, which limits asynchronous I/O, is a hundredth of it.
    "shared_buffers": "16MB",
    "max_connections": "20",
    "max_parallel_workers": "4",
    "autovacuum": "off",
    "jit": "off",
    # For support.cold().
    "allow_in_place_tablespaces": "on",
    "checkpoint_timeout": "1h",
    # VACUUM passes by a page that another process has pinned, to write it.
    "bgwriter_lru_maxpages": "0",
    # Whatever hangs is to fail.
    "statement_timeout": "60s",
    "pg_lookahead.start_after": "0",
    # What was read for a scan may be lost, and wasted, if the scan gets no processor for longer.
    "pg_lookahead.protect_time": "60s",
}

NewCluster = Callable[..., Cluster]


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", "log_may_have(pattern): what the server may well log")
    config.addinivalue_line(
        "markers", "thorough: left to a server with assertions, if there is one"
    )
    config.addinivalue_line("markers", f"{ALONE}: `lookahead test` runs nothing beside it")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Under Valgrind everything takes minutes: run what was made for it."""
    special = "test_valgrind.py"
    under_valgrind = valgrind.VARIABLE in os.environ
    reason = "runs without Valgrind" if under_valgrind else "runs with --valgrind"
    for item in items:
        if (item.path.name == special) != under_valgrind:
            item.add_marker(pytest.mark.skip(reason=reason))
        elif item.get_closest_marker("thorough") and _another_asserts():
            item.add_marker(pytest.mark.skip(reason="a server with assertions sees to it"))


AS_SHIPPED = (Variant(None, "auto"), Variant("worker", "auto"))


# Leaf-page tests where method "none", which decides all and reads nothing, may find something.
DECISIONS = ("test_same_rows", "test_random_queries", "test_explain")


@cache
def _server() -> Server:
    return servers.by_name(os.environ.get("LOOKAHEAD_SERVER", "18-embedded"))


@cache
def _another_asserts() -> bool:
    """Whether another server of the same major is there that has assertions."""
    ours = _server()
    return not ours.assertions and servers.source(ours.major, "assert") is not None


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Run a test that wants a variant with each that the server has.

    All tests of one variant run in a row, as they share a cluster.
    """
    if "variant" in metafunc.fixturenames:
        server = _server()
        variants = variants_of(server)
        # Method "none" takes the same decisions as the others: where assertions look on is enough.
        if _another_asserts():
            variants = [variant for variant in variants if variant.reads]
        # These are many, and take minutes for each variant: all of them where assertions look on.
        if metafunc.module.__name__.startswith("test_leaf"):
            if not server.assertions:
                variants = variants[:1]
            elif metafunc.function.__name__ not in DECISIONS:
                variants = [variant for variant in variants if variant.reads]
        # As it is shipped, table blocks and leaf pages may come by different methods.
        if metafunc.module.__name__ in ("test_differential", "test_scroll"):
            variants = [AS_SHIPPED[server.major >= 18], *variants]
        metafunc.parametrize("variant", variants, ids=str, scope="session")


@pytest.fixture(scope="session")
def server() -> Server:
    found = _server()
    build.build_extension(found)
    return found


@pytest.fixture(scope="session")
def template(server: Server, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A fresh data directory, to be copied: cheaper than one initdb per cluster."""
    cluster = Cluster(server)
    cluster.init()
    yield cluster.data
    cluster.close()


@pytest.fixture(scope="session")
def new_cluster(server: Server, template: Path) -> Iterator[NewCluster]:
    """Make a cluster, started and with the extension; stopped at the end."""
    made: list[Cluster] = []

    def make(
        conf: Mapping[str, str] | None = None, *, start: bool = True, preload: bool = True
    ) -> Cluster:
        cluster = Cluster(server, conf={**CONF, **(conf or {})}, preload=preload)
        made.append(cluster)
        privilege.copy_tree(template, cluster.data)
        if start:
            cluster.start()
            prepare(cluster)
        return cluster

    yield make
    for cluster in made:
        cluster.close()


@pytest.fixture(scope="module")
def own_cluster(new_cluster: NewCluster) -> Iterator[NewCluster]:
    """Like new_cluster, but gone when the file of tests is done."""
    made: list[Cluster] = []

    def make(*args: object, **options: object) -> Cluster:
        cluster = new_cluster(*args, **options)
        made.append(cluster)
        return cluster

    yield make
    for cluster in made:
        cluster.close()


@pytest.fixture(scope="session")
def shared_clusters(new_cluster: NewCluster) -> Callable[[str | None], Cluster]:
    """The clusters that most tests share, by io_method."""
    running: dict[str | None, Cluster | LookaheadError] = {}

    def get(io_method: str | None) -> Cluster:
        if io_method not in running:
            try:
                running[io_method] = new_cluster(conf_of(io_method))
            except LookaheadError as error:
                # A container may forbid io_uring.
                if io_method != "io_uring":
                    raise
                running[io_method] = error
        cluster = running[io_method]
        if isinstance(cluster, LookaheadError):
            pytest.skip(f"io_uring cannot be used here: {cluster}")
        return cluster

    return get


def log_may_have(request: pytest.FixtureRequest) -> list[str]:
    """Return what the test's marks allow in the log."""
    return [mark.args[0] for mark in request.node.iter_markers("log_may_have")]


@pytest.fixture
def cluster(
    request: pytest.FixtureRequest, shared_clusters: Callable[[str | None], Cluster]
) -> Iterator[Cluster]:
    """The shared cluster of the test's variant; its log must stay clean."""
    variant: Variant | None = None
    if "variant" in request.fixturenames:
        variant = request.getfixturevalue("variant")
    found = shared_clusters(variant.io_method if variant else None)
    with LogWatch(found, allowed=log_may_have(request)):
        yield found
