"""What the machine under our feet is: the facts a plan for site `local` reckons with."""

from __future__ import annotations

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


def cpu_flags(path: Path) -> frozenset[str]:
    """Instruction sets the kernel names; empty where it names none (macOS)."""
    try:
        lines = path.read_text().splitlines()
    except OSError:
        return frozenset()
    return frozenset(next((line.partition(":")[2].split() for line in lines if line.startswith("flags")), []))
