"""The kernel's read-ahead of a block device.

How far the kernel reads ahead of a sequential reader is a property of the disk
(`queue/read_ahead_kb`), and distributions and clouds set it to anything between
128 kB and 8 MB.  Benchmarks of sequential reads are only comparable when it is
known, so they set it; see kernel_setting.py.
"""

from __future__ import annotations

from pathlib import Path

from .kernel_setting import KernelSetting

# What Linux sets for a disk that nobody has tuned.
USUAL_KB = 128

SYSFS = Path("/sys")
FILE = "read_ahead_kb"


def queue_of(device: str, sysfs: Path = SYSFS) -> Path:
    """Return the folder of a block device's queue; a partition has its disk's."""
    place = sysfs / "class" / "block" / device
    own = place / "queue"
    return own if own.is_dir() else place.resolve().parent / "queue"


class ReadAhead(KernelSetting):
    """Sets the read-ahead of a device, in kB, for the duration of a `with` block."""

    def __init__(
        self,
        device: str | None,
        kb: int = USUAL_KB,
        *,
        sysfs: Path = SYSFS,
        notes: Path | None = None,
    ) -> None:
        super().__init__(
            queue_of(device, sysfs) / FILE if device else None,
            kb,
            name=f"kernel read-ahead of {device}" if device else "kernel read-ahead",
            key=f"read-ahead-{device}",
            unit="kB",
            missing="the data is not on a block device",
            notes=notes,
        )
