"""Finds libraries that torch loads only because of LD_LIBRARY_PATH, in place of others."""

import filecmp
import os
import re
from collections.abc import Mapping
from pathlib import Path

from runbook.node_checks.answers import Facts

VARIABLE = "LD_LIBRARY_PATH"
_VERSION_IN_NAME = re.compile(r"\.so\.(\d+(?:\.\d+){2,})$")
_VERSION_OF_WHEEL = re.compile(r"^nvidia_[a-z_]+_cu\d+-([\d.]+)\.dist-info$")
_VERSIONS_INSIDE = {
    "libstdc++": re.compile(rb"\0GLIBCXX_(\d+(?:\.\d+)+)(?=\0)"),
    "libnccl": re.compile(rb"NCCL version (\d+(?:\.\d+)+)"),
}
"""Matches the version inside a library. libstdc++ contains the names of all versions up to its own.
"""


def folders_with(libraries: Mapping[str, str]) -> list[str]:
    """Return the folders in LD_LIBRARY_PATH that a process loaded any of these libraries from.

    `libraries` maps library names to files.
    """
    files = set(libraries.values())
    folders = []
    for folder in os.environ.get(VARIABLE, "").split(":"):
        if folder and _has_one_of(Path(folder), files):
            folders.append(folder)

    return folders


def _has_one_of(folder: Path, files: set[str]) -> bool:
    try:
        paths = [path for path in folder.iterdir() if ".so" in path.name]
    except OSError:
        return False

    return any(os.path.realpath(path) in files for path in paths)


def substitutions(
    loaded: Mapping[str, str],
    without_variable: Mapping[str, str],
) -> dict[str, Facts]:
    """Return the libraries replaced because of LD_LIBRARY_PATH, each with both versions."""
    changed: dict[str, Facts] = {}
    for name, path in loaded.items():
        other_path = without_variable.get(name, path)
        if other_path == path or _are_equal(path, other_path):
            continue
        changed[name] = {
            "path": path,
            "version": library_version(path),
            "other_path": other_path,
            "other_version": library_version(other_path),
        }

    return changed


def _are_equal(path: str, other_path: str) -> bool:
    try:
        return filecmp.cmp(path, other_path, shallow=False)
    except OSError:
        return False


def library_version(path: str) -> str:
    """Return the version of a library file, or an empty string if unknown.

    >>> library_version("/usr/local/cuda/lib64/libcudart.so.12.4.127")
    '12.4.127'
    """
    file = Path(path)
    pattern = _VERSIONS_INSIDE.get(file.name.partition(".")[0])
    if pattern is not None:
        version = _version_inside(file, pattern)
        if version:
            return version

    in_name = _VERSION_IN_NAME.search(file.name)
    if in_name:
        return in_name[1]
    return _version_of_wheel(file)


def _version_inside(file: Path, pattern: re.Pattern[bytes]) -> str:
    try:
        content = file.read_bytes()
    except OSError:
        return ""

    versions = [match.decode() for match in pattern.findall(content)]
    return max(versions, key=numbers, default="")


def _version_of_wheel(file: Path) -> str:
    """Return the version of the wheel that installed a file such as nvidia/nccl/lib/libnccl.so.2."""
    if len(file.parts) < 4 or file.parts[-4] != "nvidia":
        return ""
    site_packages = file.parents[3]
    for folder in site_packages.glob(f"nvidia_{file.parts[-3]}_cu*.dist-info"):
        match = _VERSION_OF_WHEEL.match(folder.name)
        if match:
            return match[1]

    return ""


def numbers(version: str) -> list[int]:
    """Return the numbers in a version as a list, which is used to compare versions.

    >>> numbers("3.4.30") > numbers("3.4.9")
    True
    """
    return [int(part) for part in version.split(".")]
