"""Facts about the file systems used in a training run."""

import os
import statistics
import sysconfig
import tempfile
import time
from pathlib import Path

from runbook.node_checks.answers import Facts
from runbook.node_checks.mounts import mount_of

OPENED_FILES = 60


def look_at_mounts(folders: list[Path]) -> Facts:
    """Return type, options, size and mode of the file system under each folder."""
    roles = {
        "HOME": Path("~").expanduser(),
        "temporary folder": Path(tempfile.gettempdir()),
        "/tmp": Path("/tmp"),
        "/var/tmp": Path("/var/tmp"),
        "/dev/shm": Path("/dev/shm"),
        "/dev": Path("/dev"),
        "/proc": Path("/proc"),
        "/sys": Path("/sys"),
        "packages": Path(sysconfig.get_paths()["platlib"]),
        "/": Path("/"),
    }
    for number, folder in enumerate(folders):
        roles[f"shared folder {number}"] = folder

    facts: Facts = {}
    for role, folder in roles.items():
        facts |= _facts_of(role, folder)
    return facts


def _facts_of(role: str, folder: Path) -> Facts:
    try:
        mount = mount_of(folder)
        status = os.statvfs(folder)
        mode = folder.stat().st_mode
    except OSError as error:
        return {f"{role}: type": f"({error.strerror})"}
    options = sorted(mount.options.split(","))
    return {
        f"{role}: type": mount.kind,
        f"{role}: options": " ".join(options),
        f"{role}: bytes": str(status.f_blocks * status.f_frsize),
        f"{role}: mode": oct(mode & 0o7777),
    }


def look_at_opening_files() -> Facts:
    """Return the median milliseconds to open a file in a Python package for the second time."""
    names: list[Path] = []
    for path in Path(sysconfig.get_paths()["purelib"]).glob("*/*.py"):
        names.append(path)
        if len(names) == OPENED_FILES:
            break

    seconds = []
    for path in names:
        path.read_bytes()
        start = time.perf_counter()
        with path.open("rb"):
            seconds.append(time.perf_counter() - start)
    return {"milliseconds": 1000 * statistics.median(seconds) if seconds else 0.0}
