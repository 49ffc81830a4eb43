"""Checks that copies fit into the folder, free memory on the node and the job memory limit."""

import contextlib
import shutil
from collections.abc import Iterator
from pathlib import Path

from runbook.plan_file.alarms import in_bytes
from runbook.training.health.memory_and_disk import host_bytes_left

USABLE_SHARE = 0.9
"""Share of the free memory that copies may use.

The rest stays free, since memory usage in training varies by a few percent.
"""
CONTROL_GROUPS = Path("/sys/fs/cgroup")
_FILES = (
    ("", "memory.max", "memory.current"),
    ("memory", "memory.limit_in_bytes", "memory.usage_in_bytes"),
)
"""The folder, limit file and usage file of the memory controller, in version 2 and in version 1 of control groups."""
_CACHE = ("inactive_file", "total_inactive_file")
"""Lines in memory.stat, for version 2 and 1, with the pages the kernel reclaims before it kills a
process.
"""


def lack_of_room(folder: Path, needed: int) -> str:
    """Return why `needed` more bytes do not fit into a folder in node memory, or ''.

    Files in the folder occupy the node memory, and count toward the memory limit of the job writing
    them.
    """
    rooms = [(shutil.disk_usage(folder).free, f"free in {folder}")]
    with contextlib.suppress(OSError, StopIteration):
        rooms.append((host_bytes_left(), "free in the node's memory"))
    with contextlib.suppress(OSError):  # The system has no control groups
        rooms += [(left, "left of the job's memory") for left in _left_in_groups()]
    room, where = min(rooms)
    if needed <= USABLE_SHARE * room:
        return ""
    return f"copies need {in_bytes(needed)} on this node, but only {in_bytes(room)} are {where}"


def _left_in_groups() -> Iterator[int]:
    """Yield the free memory in each control group this process belongs to."""
    for controller, limit_name, used_name in _FILES:
        for folder in _folders(controller):
            with contextlib.suppress(OSError, ValueError):
                limit = int((folder / limit_name).read_text("ascii"))  # "max" means no limit
                used = int((folder / used_name).read_text("ascii"))
                yield limit - used + _cache_bytes(folder)


def _cache_bytes(folder: Path) -> int:
    lines = (folder / "memory.stat").read_text("ascii").split("\n")
    values = [line.split()[1] for line in lines if line.startswith(_CACHE)]
    return int(values[-1]) if values else 0


def _folders(controller: str) -> Iterator[Path]:
    """Yield the control group this process is in, and its parents.

    An empty controller name means version 2.
    """
    for line in Path("/proc/self/cgroup").read_text("ascii").splitlines():
        _, controllers, path = line.split(":", 2)
        if controller in controllers.split(","):
            root = CONTROL_GROUPS / controller
            group = root / path.lstrip("/")
            yield from (folder for folder in (group, *group.parents) if folder.is_relative_to(root))
