"""The versions, trainer source files and machines that `runbook replay` compares.

They are written to the header of replay.jsonl.
"""

import functools
import hashlib
import importlib.metadata
import json
import platform
import socket
from dataclasses import dataclass
from pathlib import Path

import torch

from runbook import plan_file, training
from runbook.plan_file.replay_file import MarkKey, ReplayLine
from runbook.training.ranks import on_gpu

PACKAGES = ("torch", "megatron-core", "transformer-engine", "triton", "numpy")
"""Packages whose versions affect the bits in the results."""


def versions() -> dict[str, str]:
    """Return the versions of Python and the installed packages in `PACKAGES`."""
    version_of = {"python": platform.python_version()}
    for package in PACKAGES:
        try:
            version_of[package] = importlib.metadata.version(package)
        except importlib.metadata.PackageNotFoundError:
            continue

    return version_of


@functools.cache
def hash_of_code() -> str:
    """Return a sha256 over the trainer source files, which does not depend on the commit."""
    digest = hashlib.sha256()
    for package in (training, plan_file):
        folder = Path(package.__file__ or "").parent
        for path in sorted(folder.rglob("*.py")):
            digest.update(str(path.relative_to(folder)).encode() + b"\0" + path.read_bytes())

    return digest.hexdigest()


def machine() -> str:
    """Return the hardware properties on this rank that affect the bits in a result."""
    if on_gpu():
        return str(torch.cuda.get_device_name())
    threads = torch.get_num_threads()
    return f"{processor()}, {threads} thread{'s' if threads > 1 else ''}"


def processor() -> str:
    """Return the processor name, or the architecture if the name is not known."""
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        lines = []

    names = []
    for line in lines:
        if line.startswith("model name"):
            names.append(line.partition(":")[2].strip())

    return names[0] if names else platform.machine()


@dataclass(frozen=True)
class RankCircumstances:
    """The circumstances on a rank, and which program version it runs."""

    keys: list[MarkKey]
    host: str
    machine: str
    program: str
    """Hash over versions and code, since nodes may have different installations."""

    @classmethod
    def now(cls, keys: list[MarkKey]) -> "RankCircumstances":
        """Return the circumstances on this rank."""
        text = json.dumps([versions(), hash_of_code()], sort_keys=True)
        program = hashlib.blake2b(text.encode(), digest_size=4).hexdigest()
        return cls(keys, socket.gethostname(), machine(), program)


def header(
    ranks: list[RankCircumstances],
    *,
    is_bitwise: bool,
    watched: dict[str, list[str]],
) -> ReplayLine:
    """Return the first line a segment writes to replay.jsonl."""
    kinds: list[list[MarkKey]] = []
    for rank in ranks:
        if rank.keys not in kinds:
            kinds.append(rank.keys)

    return {
        "versions": versions(),
        "code": hash_of_code(),
        "bitwise": is_bitwise,
        "watched": watched,
        "threads": torch.get_num_threads(),
        "hosts": [rank.host for rank in ranks],
        "machines": [rank.machine for rank in ranks],
        "programs": [rank.program for rank in ranks],
        "places": kinds,
        "places_of_rank": [kinds.index(rank.keys) for rank in ranks],
    }
