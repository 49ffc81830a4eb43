"""Facts about programs on PATH, installed packages, and devices on a node."""

import shutil
import subprocess
from importlib.metadata import distributions
from pathlib import Path

from runbook.node_checks.answers import Facts
from runbook.node_checks.program_output import run_program

PROGRAMS = (
    "python3",
    "gcc",
    "g++",
    "cc",
    "c++",
    "ld",
    "make",
    "ninja",
    "nvcc",
    "hipcc",
    "mpiexec",
    "srun",
    "nvidia-smi",
    "rocm-smi",
    "git",
    "tar",
)
ASKED = ("gcc", "g++", "ld", "ninja", "nvcc", "hipcc")
"""Programs that compile extensions and kernels. Each one is started once."""
PROGRAM_SECONDS = 8
DEVICES = (
    "nvidia*",
    "kfd",
    "dri/*",
    "infiniband/*",
    "fuse",
    "gdrdrv",
    "xpmem",
    "knem",
    "cxi*",
    "net/tun",
)
MODULES = (
    *("nvidia", "nvidia_uvm", "nvidia_peermem", "gdrdrv", "amdgpu"),
    *("mlx5_core", "ib_uverbs", "rdma_cm", "lustre", "fuse", "xpmem", "knem", "cxi_core"),
)
"""Drivers for accelerators, fabrics and file systems."""


def look_at_all_programs() -> Facts:
    """Return the path and size of each program on PATH, and the version of each compiler."""
    facts: Facts = {}
    for name in PROGRAMS:
        path = shutil.which(name)
        if path is None:
            facts[name] = "(not on PATH)"
            continue
        facts[name] = f"{path}, {Path(path).stat().st_size} bytes"
        if name in ASKED:
            facts[f"{name} --version"] = version_line(path)
    return facts


def version_line(path: str) -> str:
    """Return the first line a program prints as its version, or why it does not start."""
    try:
        ended = run_program([path, "--version"], PROGRAM_SECONDS)
    except subprocess.TimeoutExpired:
        return "(no answer)"
    except OSError as error:
        return f"(does not start: {error.strerror})"
    return ended.stdout.strip().partition("\n")[0] or f"(exit code {ended.returncode})"


def look_at_packages() -> Facts:
    """Return the version of every installed Python package."""
    return {str(each.metadata["Name"]): each.version for each in distributions()}


def look_at_all_devices() -> Facts:
    """Return the device files and drivers for accelerators and fabrics."""
    facts: Facts = {}
    for pattern in DEVICES:
        for path in sorted(Path("/dev").glob(pattern)):
            facts[str(path)] = oct(path.stat().st_mode & 0o777)
    for name in MODULES:
        folder = Path("/sys/module", name)
        if folder.is_dir():
            version = folder / "version"
            facts[f"driver {name}"] = version.read_text().strip() if version.exists() else "loaded"
    return facts
