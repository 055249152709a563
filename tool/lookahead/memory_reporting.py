"""Free memory that a virtual machine gives back to its host.

A virtual machine with a memory balloon may tell its host of memory that has been free
for two seconds (free page reporting), and the host takes it.  To use it again stops the
processor until the host has given other memory, page by page: about 1 µs for each kB
was seen.  Dropping the page cache frees gigabytes, so each cold run pays for what it
reads, more or less by how long ago the caches were dropped, and in processor time.

So the benchmarks have no memory reported while they run; see kernel_setting.py.
"""

from __future__ import annotations

from pathlib import Path

from .kernel_setting import KernelSetting

# Free memory is reported in pieces of at least 2^order pages.  There is none so large.
NONE = 11

SYSFS = Path("/sys")

# VIRTIO_BALLOON_F_REPORTING
FEATURE = 5


def is_reported(sysfs: Path = SYSFS) -> bool:
    """Is the host told of free memory here?"""
    for file in (sysfs / "bus/virtio/drivers/virtio_balloon").glob("virtio*/features"):
        try:
            features = file.read_text()
        except OSError:
            continue
        if features[FEATURE : FEATURE + 1] == "1":
            return True
    return False


class MemoryReporting(KernelSetting):
    """Has no free memory reported to the host for the duration of a `with` block."""

    def __init__(self, *, sysfs: Path = SYSFS, notes: Path | None = None) -> None:
        file = sysfs / "module/page_reporting/parameters/page_reporting_order"
        super().__init__(
            file if file.exists() else None,
            NONE,
            name="smallest free memory that the host is told of",
            key="memory-reporting",
            unit="doublings of a page",
            missing="the kernel has no setting for it",
            notes=notes,
        )


def memory_reporting(sysfs: Path = SYSFS, notes: Path | None = None) -> MemoryReporting | None:
    """Return what switches it off; None where there is nothing to switch off."""
    return MemoryReporting(sysfs=sysfs, notes=notes) if is_reported(sysfs) else None
