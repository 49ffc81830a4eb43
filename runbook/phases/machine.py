"""What the machine under our feet is: the facts a plan for site `local` reckons with."""

from __future__ import annotations

import platform
from pathlib import Path

import psutil

from runbook.params.catalogue import SchedulerKind, Site
from runbook.plan import Machine


def measure(site: Site) -> Machine | None:
    """Cores, memory and matrix instructions of this machine; None where the jobs run on another one.

    Free disk space changes by the minute and is therefore no part of a plan: 01-environment asks for it.
    """
    if site.scheduler is not SchedulerKind.LOCAL:
        return None
    return Machine(
        cores=psutil.cpu_count(logical=False) or psutil.cpu_count() or 1,
        flags=cpu_flags(Path("/proc/cpuinfo")),
        memory_bytes=psutil.virtual_memory().total,
    )


def identity(site: Site) -> str:
    """Which machine a measured speed belongs to: this one's CPU and cores, or the site's devices."""
    if site.scheduler is not SchedulerKind.LOCAL:
        return f"{site.site}: {site.hardware.device}"
    cores = psutil.cpu_count(logical=False) or psutil.cpu_count() or 1
    return f"{cpu_name(Path('/proc/cpuinfo')) or platform.machine()}, {cores} cores"


def cpu_name(path: Path) -> str:
    """The CPU's name as the kernel has it; empty where it names none."""
    try:
        lines = path.read_text().splitlines()
    except OSError:
        return ""
    return next((line.partition(":")[2].strip() for line in lines if line.startswith("model name")), "")


def cpu_flags(path: Path) -> frozenset[str]:
    """Instruction sets the kernel names; empty where it names none (macOS)."""
    try:
        lines = path.read_text().splitlines()
    except OSError:
        return frozenset()
    return frozenset(next((line.partition(":")[2].split() for line in lines if line.startswith("flags")), []))
