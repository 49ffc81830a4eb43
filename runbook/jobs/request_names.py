"""How queues name nodes, time, partition, account and array in a script, and how they write times.

`script_directives` reads the directives themselves.
"""

import re
from collections.abc import Callable, Mapping
from enum import Enum, auto

from runbook.core.units import clock_seconds


class RequestKind(Enum):
    """A kind of request that a job can make to any queue."""

    NODES = auto()
    PARTITION = auto()
    ACCOUNT = auto()
    WALLTIME = auto()
    ARRAY = auto()


REQUESTS: Mapping[str, Mapping[str, RequestKind]] = {
    "slurm": {
        "nodes": RequestKind.NODES,
        "partition": RequestKind.PARTITION,
        "account": RequestKind.ACCOUNT,
        "time": RequestKind.WALLTIME,
        "array": RequestKind.ARRAY,
    },
    "pbs": {
        "select": RequestKind.NODES,
        "q": RequestKind.PARTITION,
        "A": RequestKind.ACCOUNT,
        "walltime": RequestKind.WALLTIME,
        "J": RequestKind.ARRAY,
    },
    "lsf": {
        "nnodes": RequestKind.NODES,
        "q": RequestKind.PARTITION,
        "P": RequestKind.ACCOUNT,
        "W": RequestKind.WALLTIME,
    },
    "sge": {
        "nodes": RequestKind.NODES,
        "q": RequestKind.PARTITION,
        "P": RequestKind.ACCOUNT,
        "g": RequestKind.ACCOUNT,
        "h_rt": RequestKind.WALLTIME,
    },
    "pjm": {
        "nodes": RequestKind.NODES,
        "rscgrp": RequestKind.PARTITION,
        "g": RequestKind.ACCOUNT,
        "elapse": RequestKind.WALLTIME,
    },
    "oar": {
        "nodes": RequestKind.NODES,
        "host": RequestKind.NODES,
        "q": RequestKind.PARTITION,
        "project": RequestKind.ACCOUNT,
        "walltime": RequestKind.WALLTIME,
    },
    "cobalt": {
        "n": RequestKind.NODES,
        "nodecount": RequestKind.NODES,
        "q": RequestKind.PARTITION,
        "A": RequestKind.ACCOUNT,
        "t": RequestKind.WALLTIME,
        "time": RequestKind.WALLTIME,
    },
    # In Moab, -N is the job name; in CEA's Bridge, -N counts nodes and -T seconds.
    "msub": {
        "N": RequestKind.NODES,
        "q": RequestKind.PARTITION,
        "A": RequestKind.ACCOUNT,
        "walltime": RequestKind.WALLTIME,
        "T": RequestKind.WALLTIME,
    },
    "flux": {
        "N": RequestKind.NODES,
        "nodes": RequestKind.NODES,
        "q": RequestKind.PARTITION,
        "queue": RequestKind.PARTITION,
        "B": RequestKind.ACCOUNT,
        "bank": RequestKind.ACCOUNT,
        "t": RequestKind.WALLTIME,
        "time-limit": RequestKind.WALLTIME,
    },
    "dsub": {
        "N": RequestKind.NODES,
        "q": RequestKind.PARTITION,
        "A": RequestKind.ACCOUNT,
    },
}
"""For each queue, the directives used for these requests, without dashes."""


def lsf_seconds(text: str) -> int:
    """Parse an LSF time limit, [hours:]minutes, to seconds; 0 if it is not a time.

    >>> lsf_seconds("2:00"), lsf_seconds("90"), lsf_seconds("long")
    (7200, 5400, 0)
    """
    if not re.fullmatch(r"(\d+:)?\d+", text):
        return 0
    hours, _, minutes = text.rpartition(":")
    return (int(hours or 0) * 60 + int(minutes)) * 60


def grid_seconds(text: str) -> int:
    """Parse a time limit for Grid Engine or Fujitsu's queue to seconds; 0 if it is not a time.

    The time limit is [[days:]hours:]minutes:seconds, or only seconds.

    >>> grid_seconds("10:00:00:00"), grid_seconds("75:40:00"), grid_seconds("3600")
    (864000, 272400, 3600)
    """
    if not re.fullmatch(r"(\d+:){0,3}\d+", text):
        return 0
    parts = reversed(text.split(":"))
    return sum(int(part) * unit for part, unit in zip(parts, _SECONDS_OF, strict=False))


_SECONDS_OF = (1, 60, 3600, 86_400)
"""Seconds per unit for each part of a time limit, from the last (seconds) to the first (days)."""


def oar_seconds(text: str) -> int:
    """Parse an OAR time limit, hours[:minutes[:seconds]], to seconds; 0 if it is not a time.

    >>> oar_seconds("2"), oar_seconds("1:30"), oar_seconds("0:45:00")
    (7200, 5400, 2700)
    """
    time = text.strip('"')
    if not re.fullmatch(r"\d+(:\d+){0,2}", time):
        return 0
    parts = [int(part) for part in time.split(":")]
    hours, minutes, seconds = (*parts, 0, 0)[:3]
    return (hours * 60 + minutes) * 60 + seconds


def flux_seconds(text: str) -> int:
    """Convert a Flux time limit to seconds; return 0 if it cannot be parsed.

    The time limit is a number with a unit, or a number of minutes without one.

    >>> flux_seconds("2h"), flux_seconds("90m"), flux_seconds("30")
    (7200, 5400, 1800)
    """
    match = re.fullmatch(r"(\d+)([smhd]?)", text)
    if match is None:
        return 0
    return int(match[1]) * _SECONDS_OF_UNIT[match[2]]


_SECONDS_OF_UNIT = {"s": 1, "": 60, "m": 60, "h": 3600, "d": 86_400}

_TIME_READERS: Mapping[str, Callable[[str], int]] = {
    "lsf": lsf_seconds,
    "sge": grid_seconds,
    "pjm": grid_seconds,
    "oar": oar_seconds,
    "msub": grid_seconds,
    "flux": flux_seconds,
}
"""Functions used to read time limits, for queues that do not write them as Slurm does."""


def walltime_seconds(queue: str, text: str) -> int:
    """Convert a time limit, as this queue writes it, to seconds; 0 if it is missing or not a time.

    >>> walltime_seconds("lsf", "2:00"), walltime_seconds("slurm", "2:00")
    (7200, 120)
    """
    read = _TIME_READERS.get(queue, clock_seconds)
    return read(text)
