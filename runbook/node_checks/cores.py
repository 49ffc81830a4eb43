"""Counts the cores this process may use, and measures how fast each core is."""

import os
import statistics
import time
from pathlib import Path

from runbook.node_checks.answers import Facts
from runbook.node_checks.control_groups import core_quota

LOOP_TURNS = 60_000
"""Number of passes through the loop, which take about 3 ms on a core from 2023.

The loop is short enough for nodes with many cores, and long enough for the clock resolution.
"""
ROUNDS = 3
MAX_TIMED_CORES = 64
"""At most this many cores are timed.

On a node with more cores, evenly spaced ones are timed: 64 cores x 3 rounds x 3 ms stay under a
second.
"""
SUSPECT_RATIO = 1.5
"""A core is timed again if it takes this many times as long as the median."""
SECOND_LOOKS = 5
SECOND_LOOK_PAUSE = 0.2
"""Seconds to wait before the repeated timings.

If a virtual machine waits for its host, the wait counts as processor time on a core, but only
briefly. A slow core stays slow.
"""


def look_at_cores() -> Facts:
    """Return the number of usable cores, their quota, and the median and longest time for a loop.

    The loop is the same on each core. Processor time is measured, not wall time, to keep other
    processes on a core from making it look slow.
    """
    allowed = sorted(os.sched_getaffinity(0))
    step = max(1, len(allowed) // MAX_TIMED_CORES)
    seconds = {core: _loop_seconds(core) for core in allowed[::step]}
    _look_again(seconds)
    os.sched_setaffinity(0, allowed)
    slowest = max(seconds, key=lambda core: seconds[core])
    return {
        "cores": len(allowed),
        "online": os.cpu_count(),
        "quota": core_quota(),
        "model": _model(),
        "loop_seconds": statistics.median(seconds.values()),
        "slowest_core": slowest,
        "slowest_seconds": seconds[slowest],
    }


def _look_again(seconds: dict[int, float]) -> None:
    """Time slow cores again, and keep their best times."""
    for _ in range(SECOND_LOOKS):
        limit = SUSPECT_RATIO * statistics.median(seconds.values())
        suspects = []
        for core, core_seconds in seconds.items():
            if core_seconds > limit:
                suspects.append(core)

        if not suspects:
            return
        time.sleep(SECOND_LOOK_PAUSE)
        for core in suspects:
            seconds[core] = min(seconds[core], _loop_seconds(core))


def _loop_seconds(core: int) -> float:
    """Return the processor seconds the loop takes on a core, in the best of several rounds."""
    os.sched_setaffinity(0, {core})
    return min(_timed_loop() for _ in range(ROUNDS))


def _timed_loop() -> float:
    start = time.thread_time()
    total = 0
    for number in range(LOOP_TURNS):
        total = _mix(total, number)
    return time.thread_time() - start


def _mix(total: int, number: int) -> int:
    return (total * 31 + number) & 0xFFFF_FFFF


def _model() -> str:
    """Return the processor name, or an empty string if the kernel does not report it."""
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith("model name"):
            return line.partition(":")[2].strip()

    return ""
