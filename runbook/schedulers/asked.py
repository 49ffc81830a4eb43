"""What a job asks of its queue, read from the first lines of its script, and what a queue's limits say to that."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from runbook.units import show_duration

_LINE = re.compile(r"#(SBATCH|PBS)\s+(.*)")


@dataclass(frozen=True)
class Asked:
    """The part of a job's directives that queues limit; 0 and empty where the script does not say."""

    partition: str = ""
    account: str = ""
    qos: str = ""
    nodes: int = 0
    seconds: int = 0
    others: Mapping[str, str] = field(default_factory=dict)
    """Every directive, by its name without dashes."""


@dataclass(frozen=True)
class Limits:
    """What one partition or queue accepts; 0 and empty: no limit."""

    name: str
    state: str = "UP"
    default: bool = False
    max_seconds: int = 0
    max_nodes: int = 0
    min_nodes: int = 0
    total_nodes: int = 0
    accounts: tuple[str, ...] = ()
    """Only these are allowed."""
    denied_accounts: tuple[str, ...] = ()
    words: str = ""
    """The queue's own line about it."""


def asked_of(script: str) -> Asked:
    r"""What the lines #SBATCH and #PBS of a script ask for.

    >>> asked_of("#!/bin/bash\n#SBATCH --partition=short\n#SBATCH --time=01:00:00\n#SBATCH --exclusive\n").seconds
    3600
    >>> asked_of("#PBS -q prod\n#PBS -l select=8:system=polaris\n#PBS -l walltime=00:30:00\n").nodes
    8
    """
    found: dict[str, str] = {}
    for line in script.splitlines():
        match = _LINE.fullmatch(line.rstrip())
        if match is None:
            if line and not line.startswith("#"):
                break
            continue
        words = match[2].strip()
        if match[1] == "SBATCH":
            name, _, value = words.lstrip("-").partition("=")
        else:
            letter, _, value = words.lstrip("-").partition(" ")
            name, value = value.partition("=")[::2] if letter == "l" else (letter, value)
        found[name.strip()] = value.strip()
    nodes = found.get("nodes") or found.get("select", "").partition(":")[0]
    return Asked(
        partition=found.get("partition") or found.get("q", ""),
        account=found.get("account") or found.get("A", ""),
        qos=found.get("qos", ""),
        nodes=int(nodes) if nodes.isdigit() else 0,
        seconds=clock_seconds(found.get("time") or found.get("walltime", "")),
        others=found,
    )


def clock_seconds(text: str) -> int:
    """Seconds of a scheduler's time limit; 0 where there is none or it is not a time.

    >>> [clock_seconds(text) for text in ("00:05:00", "2-00:00:00", "30", "5:00", "1-2", "UNLIMITED", "")]
    [300, 172800, 1800, 300, 93600, 0, 0]
    """
    match = re.fullmatch(r"(?:(\d+)-)?(\d+)(?::(\d+))?(?::(\d+))?", text)
    if match is None:
        return 0
    days, *parts = (int(part) if part else None for part in match.groups())
    first, second, third = parts
    if days is not None:  # days-hours[:minutes[:seconds]]
        return days * 86400 + (first or 0) * 3600 + (second or 0) * 60 + (third or 0)
    if third is not None:
        return (first or 0) * 3600 + (second or 0) * 60 + third
    return (first or 0) * 60 + (second or 0)  # minutes[:seconds]


def faults(asked: Asked, queues: Sequence[Limits]) -> list[str]:
    """Why a queue would refuse a job or let it wait for ever: what is asked, what is allowed, in the queue's words."""
    by_name = {one.name: one for one in queues}
    names = [name for name in asked.partition.split(",") if name]
    unknown = [name for name in names if name not in by_name]
    if unknown:
        return [f"there is no partition {', '.join(unknown)}; there are {', '.join(by_name) or 'none'}"]
    chosen = [by_name[name] for name in names] or [one for one in queues if one.default]
    each = [_faults_of(asked, one) for one in chosen]
    return [] if not each or not all(each) else [fault for one in each for fault in one]


def _faults_of(asked: Asked, one: Limits) -> list[str]:
    said = f" (the queue says: {one.words})" if one.words else ""
    found = []
    if one.state in ("INACTIVE", "DRAIN"):
        found.append(f"partition {one.name} is {one.state} and takes no jobs{said}")
    if one.max_seconds and asked.seconds > one.max_seconds:
        found.append(
            f"a walltime of {show_duration(asked.seconds)} is over the limit of partition {one.name}, "
            f"{show_duration(one.max_seconds)}{said}"
        )
    if one.max_nodes and asked.nodes > one.max_nodes:
        found.append(f"{asked.nodes} nodes are more than partition {one.name} gives a job, {one.max_nodes}{said}")
    elif one.total_nodes and asked.nodes > one.total_nodes:
        found.append(f"{asked.nodes} nodes are more than partition {one.name} has, {one.total_nodes}{said}")
    if one.min_nodes and 0 < asked.nodes < one.min_nodes:
        found.append(f"{asked.nodes} nodes are fewer than partition {one.name} takes, {one.min_nodes}{said}")
    if one.accounts and asked.account not in one.accounts:
        account = f"account {asked.account} is" if asked.account else "no account is given, which is"
        found.append(f"{account} none that partition {one.name} allows: {', '.join(one.accounts)}{said}")
    if asked.account and asked.account in one.denied_accounts:
        found.append(f"account {asked.account} is denied by partition {one.name}{said}")
    return found
