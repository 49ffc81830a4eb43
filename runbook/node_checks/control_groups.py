"""Reads control groups, which limit the processes in a job.

A scheduler, a container runtime or systemd sets the limits.
"""

import contextlib
from collections.abc import Iterator
from pathlib import Path

ROOT = Path("/sys/fs/cgroup")
NO_LIMIT = 1 << 60
"""Version 1 of control groups reports a number near 2^63 if there is no limit."""


def memory_limit() -> int | None:
    """Return the smallest memory limit in bytes, or None if there is none."""
    values = [*_values("memory", "memory.limit_in_bytes"), *_values("", "memory.max")]
    return _smallest(values)


def memory_left() -> int | None:
    """Return the bytes that may still be used under the tightest memory limit.

    Return None if there is no limit. Cached files do not count as used, because the kernel frees
    them when a process needs memory.
    """
    left = []
    for controller, limit_name, usage_name, prefix in (
        ("memory", "memory.limit_in_bytes", "memory.usage_in_bytes", "total_"),
        ("", "memory.max", "memory.current", ""),
    ):
        for folder in _folders(controller):
            # The root group of version 2 has none of these files, and `max` is not a number.
            with contextlib.suppress(OSError, ValueError):
                limit = int((folder / limit_name).read_text())
                usage = int((folder / usage_name).read_text())
                if limit < NO_LIMIT:
                    left.append(limit - usage + _cached_files(folder, prefix))

    return min(left, default=None)


def _cached_files(folder: Path, prefix: str) -> int:
    """Return the bytes in a control group that are copies of files on a disk."""
    cached = 0
    for line in (folder / "memory.stat").read_text().splitlines():
        name, _, value = line.partition(" ")
        if name in (f"{prefix}active_file", f"{prefix}inactive_file"):
            cached += int(value)

    return cached


def task_limit() -> int | None:
    """Return the smallest limit on processes and threads.

    Return None if there is no limit. systemd calls it TasksMax. Kubernetes and Docker set it too.
    """
    return _smallest([*_values("pids", "pids.max"), *_values("", "pids.max")])


def core_quota() -> float | None:
    """Return the quota of processor time in cores, or None if there is no limit."""
    quotas = []
    for text in _values("", "cpu.max"):
        quota, _, period = text.partition(" ")
        if quota.isdigit():
            quotas.append(int(quota) / int(period))

    for folder in _folders("cpu"):
        with contextlib.suppress(OSError, ValueError):
            quota_us = int((folder / "cpu.cfs_quota_us").read_text())
            period_us = int((folder / "cpu.cfs_period_us").read_text())
            if quota_us > 0:
                quotas.append(quota_us / period_us)

    return min(quotas, default=None)


def _smallest(values: list[str]) -> int | None:
    limits = [int(value) for value in values if value.isdigit()]
    return min((limit for limit in limits if limit < NO_LIMIT), default=None)


def _values(controller: str, name: str) -> list[str]:
    """Return the contents of a file in our control group and in its parents."""
    values = []
    for folder in _folders(controller):
        with contextlib.suppress(OSError):
            values.append((folder / name).read_text().strip())

    return values


def _folders(controller: str) -> Iterator[Path]:
    """Yield the folders for our control group and its parents.

    If `controller` is empty, the folders of version 2 are used.
    """
    for line in Path("/proc/self/cgroup").read_text().splitlines():
        _, controllers, path = line.split(":", 2)
        if controller not in controllers.split(","):
            continue
        # `cpu` is often a link to the folder `cpu,cpuacct`.
        root = ROOT / controller
        group = root / path.lstrip("/")
        yield group
        for folder in group.parents:
            if not folder.is_relative_to(root):
                break
            yield folder
