"""Huge pages for the servers of a benchmark.

PostgreSQL asks for huge pages by default (`huge_pages = try`), but gets them only
where the machine has some in reserve (`vm.nr_hugepages`), as one that is set up for
a database has.  They decide what is measured.  A block of 8 kB in ordinary memory
lies in two pages of 4 kB here and there, so a direct read of it has two parts, and
a device that takes so many parts at a time takes fewer reads; in a huge page it has
one.  And every page of shared buffers that a new backend touches costs it a fault.

So the benchmarks reserve some for both of their servers; see kernel_setting.py.
"""

from __future__ import annotations

from pathlib import Path

from .kernel_setting import KernelSetting

# One that wants more does without, as anywhere else where the reserve is too small.
RESERVED_MB = 1024

# Shared buffers of two servers that run at once and both fit into the reserve, with
# the rest of their shared memory.
OF_TWO_SERVERS = "448MB"

PROCFS = Path("/proc")


def page_mb(procfs: Path = PROCFS) -> int | None:
    """Return the size of a huge page in MB; None where the kernel has none."""
    try:
        lines = (procfs / "meminfo").read_text().splitlines()
    except OSError:
        return None
    for line in lines:
        name, _, value = line.partition(":")
        if name == "Hugepagesize":
            return max(1, int(value.split()[0]) // 1024)
    return None


class HugePages(KernelSetting):
    """Reserves huge pages for the duration of a `with` block; never fewer than there are."""

    def __init__(
        self, mb: int = RESERVED_MB, *, procfs: Path = PROCFS, notes: Path | None = None
    ) -> None:
        size = page_mb(procfs)
        super().__init__(
            procfs / "sys" / "vm" / "nr_hugepages" if size else None,
            mb // size if size else 0,
            name="reserve of huge pages",
            key="huge-pages",
            unit="pages",
            missing="the kernel has none",
            notes=notes,
        )

    def target(self, was: int) -> int:
        return max(was, self.wanted)

    @property
    def are_there(self) -> bool:
        return self.problem is None
