"""What computes a training: versions, the trainer's own files, machines.

For the header of replay.jsonl.
"""

import functools
import hashlib
import importlib.metadata
import platform
from pathlib import Path

import torch

from runbook import plan_file, training
from runbook.plan_file.replay_file import MarkKey, ReplayLine
from runbook.training.ranks import on_gpu

PACKAGES = ("torch", "megatron-core", "transformer-engine", "triton", "numpy")
"""Whose versions decide the bits of a step."""


def versions() -> dict[str, str]:
    """Return the versions of Python and of the packages that compute; those that are installed."""
    version_of = {"python": platform.python_version()}
    for package in PACKAGES:
        try:
            version_of[package] = importlib.metadata.version(package)
        except importlib.metadata.PackageNotFoundError:
            continue

    return version_of


@functools.cache
def hash_of_code() -> str:
    """Return a sha256 of the trainer's own files, whichever commit they are of."""
    digest = hashlib.sha256()
    for package in (training, plan_file):
        folder = Path(package.__file__ or "").parent
        for path in sorted(folder.rglob("*.py")):
            digest.update(str(path.relative_to(folder)).encode() + b"\0" + path.read_bytes())

    return digest.hexdigest()


def machine() -> str:
    """Return what this rank computes on, as far as it decides the bits of a result."""
    if on_gpu():
        return str(torch.cuda.get_device_name())
    threads = torch.get_num_threads()
    return f"{processor()}, {threads} thread{'s' if threads > 1 else ''}"


def processor() -> str:
    """Return the name of the processor; on a system that does not tell, its architecture."""
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        lines = []

    names = []
    for line in lines:
        if line.startswith("model name"):
            names.append(line.partition(":")[2].strip())

    return names[0] if names else platform.machine()


def header(ranks: list[tuple[list[MarkKey], str, str]], *, is_bitwise: bool) -> ReplayLine:
    """Return the line that begins a segment.

    `ranks`: of each the keys of its marks, host and machine.
    """
    kinds: list[list[MarkKey]] = []
    for keys, _, _ in ranks:
        if keys not in kinds:
            kinds.append(keys)

    return {
        "versions": versions(),
        "code": hash_of_code(),
        "bitwise": is_bitwise,
        "threads": torch.get_num_threads(),
        "hosts": [host for _, host, _ in ranks],
        "machines": [name for _, _, name in ranks],
        "places": kinds,
        "places_of_rank": [kinds.index(keys) for keys, _, _ in ranks],
    }
