"""Reports limits, memory, software and tools on a node, as seen by processes in the job."""

import os
import platform
import re
import resource
import shutil
import subprocess
import sys
import sysconfig
import tempfile
from pathlib import Path

from runbook.node_checks.answers import Facts
from runbook.node_checks.control_groups import memory_left, memory_limit, task_limit
from runbook.node_checks.mounts import mount_of
from runbook.node_checks.packages import PACKAGES, installed_version, replaced_packages
from runbook.node_checks.program_output import run_program
from runbook.node_checks.written_files import write_error

PORT_RANGE = Path("/proc/sys/net/ipv4/ip_local_port_range")
SHARED_MEMORY = Path("/dev/shm")
DEFAULT_SCRATCH = Path("/tmp")
"""The folder used by programs if TMPDIR is not set. Some programs always use it (CUDA MPS, X11,
SSH).
"""
TOOL_SECONDS = 20


def look_at_software() -> Facts:
    """Return the versions of Python and each package, with None for a missing package.

    Also return the folder for packages, and whether libraries there cannot be loaded.
    """
    installed = {name: installed_version(name) for name in PACKAGES}
    packages_folder = sysconfig.get_paths()["platlib"]
    return {
        "packages_folder": packages_folder,
        "refuses_libraries": mount_of(Path(packages_folder)).is_without_programs,
        "python": platform.python_version(),
        "executable": sys.executable,
        "kernel": platform.release(),
        "packages": installed,
        "replaced": replaced_packages(),
    }


def look_at_limits() -> Facts:
    """Return the limits on this process, with None for unlimited."""
    return {
        "memlock": _limit(resource.RLIMIT_MEMLOCK),
        "nofile": _limit(resource.RLIMIT_NOFILE),
        "nofile_hard": _hard_limit(resource.RLIMIT_NOFILE),
        "nproc": _limit(resource.RLIMIT_NPROC),
        "tasks": task_limit(),
        "stack": _limit(resource.RLIMIT_STACK),
        "file_size": _limit(resource.RLIMIT_FSIZE),
        "cpu_seconds": _limit(resource.RLIMIT_CPU),
        "address_space": _limit(resource.RLIMIT_AS),
        "data": _limit(resource.RLIMIT_DATA),
        "ports": _count_ports(),
    }


def _count_ports() -> int | None:
    """Return the number of ephemeral ports that the kernel can choose from.

    Return None if the kernel does not report the range.
    """
    try:
        first, last = PORT_RANGE.read_text().split()
    except (OSError, ValueError):
        return None

    return int(last) - int(first) + 1


def _limit(kind: int) -> int | None:
    soft = resource.getrlimit(kind)[0]
    return None if soft == resource.RLIM_INFINITY else soft


def _hard_limit(kind: int) -> int | None:
    hard = resource.getrlimit(kind)[1]
    return None if hard == resource.RLIM_INFINITY else hard


def look_at_memory() -> Facts:
    """Return the sizes in bytes: main memory, control group limit and /dev/shm.

    `limit` and `left` are None if the process has no limit.
    """
    shared = os.statvfs(SHARED_MEMORY)
    return {
        "total": _memory_bytes("MemTotal"),
        "available": _memory_bytes("MemAvailable"),
        "limit": memory_limit(),
        "left": memory_left(),
        "shm_total": shared.f_blocks * shared.f_frsize,
        "shm_free": shared.f_bavail * shared.f_frsize,
        "shm_error": write_error(SHARED_MEMORY),
    }


def _memory_bytes(name: str) -> int:
    match = re.search(rf"^{name}:\s+(\d+) kB", Path("/proc/meminfo").read_text(), re.MULTILINE)
    return int(match[1]) * 1024 if match else 0


def look_at_scratch() -> Facts:
    """Return the folder for temporary files on this node, and how many bytes are free there.

    Raise an error if the folder is not writable.
    """
    folder = Path(tempfile.gettempdir())
    with tempfile.NamedTemporaryFile(dir=folder) as stream:
        stream.write(b"x" * 65536)
        stream.flush()
        os.fsync(stream.fileno())

    status = os.statvfs(folder)
    asked = os.environ.get("TMPDIR", "")
    return {
        "folder": str(folder),
        "asked": asked,
        "asked_error": write_error(Path(asked)) if asked else "",
        "default_error": write_error(DEFAULT_SCRATCH),
        "free": status.f_bavail * status.f_frsize,
        "free_inodes": status.f_favail if status.f_files else None,
    }


def look_at_tools() -> Facts:
    """Return the versions of nvcc and the GPU driver. The version of a missing tool is ''."""
    return {"nvcc": _nvcc_version(), "driver": _driver_version()}


def _nvcc_version() -> str:
    nvcc = shutil.which("nvcc")
    if nvcc is None:
        return ""
    try:
        ended = run_program([nvcc, "--version"], TOOL_SECONDS)
    except (OSError, subprocess.TimeoutExpired):
        return ""

    match = re.search(r"release (\d+\.\d+)", ended.stdout)
    return match[1] if match else ""


def _driver_version() -> str:
    try:
        text = Path("/proc/driver/nvidia/version").read_text()
    except OSError:
        return ""

    match = re.search(r"\b(\d{3}\.\d+(?:\.\d+)?)\b", text)
    return match[1] if match else ""
