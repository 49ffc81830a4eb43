"""Time a job needs before its first step."""

START_UP_SECONDS = 120.0
"""Assumed time to start on a cluster: loading the image (74 to 200 s on 64 nodes in the Azure
document), importing and connecting.
"""
START_UP_SECONDS_ON_CPU = 15.0
"""Time to import torch and megatron-core and to connect the ranks.

On two cores of a shared machine, this took 8 to 40 s.
"""


def start_up_seconds(*, on_cpu: bool) -> float:
    """Return the expected time to start, in seconds."""
    return START_UP_SECONDS_ON_CPU if on_cpu else START_UP_SECONDS
