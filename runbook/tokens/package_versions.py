"""Versions of installed packages, by the names of their folders."""

import functools
import re
import sys
from contextlib import suppress
from importlib.util import find_spec
from pathlib import Path

_ENDING = ".dist-info"


@functools.cache
def package_version(package: str) -> str:
    """Return the version of an installed package; empty if it is not installed.

    `importlib.metadata` reads a package's whole description, with the parser of e-mails: 20 ms of a
    start. It is asked only where a package can be imported and no folder has its name.
    """
    name = _normal(package)
    for folder in sys.path:
        versions = _versions_in(folder)
        if name in versions:
            return versions[name]

    return _described_version(package) if _can_be_imported(package) else ""


@functools.cache
def _versions_in(folder: str) -> dict[str, str]:
    """Return the packages that are installed in a folder of sys.path, and their versions."""
    versions = {}
    with suppress(OSError):
        for path in Path(folder).glob(f"*-*{_ENDING}"):
            package, _, version = path.name.removesuffix(_ENDING).partition("-")
            versions[_normal(package)] = version

    return versions


def _can_be_imported(package: str) -> bool:
    try:
        return find_spec(package) is not None
    except ImportError:
        return False


def _described_version(package: str) -> str:
    """Return the version that the metadata of a package states, wherever they are."""
    from importlib.metadata import PackageNotFoundError, version

    try:
        return version(package)
    except PackageNotFoundError:
        return ""


def _normal(package: str) -> str:
    """Return a package's name as one that can be compared.

    >>> _normal("Backports.zstd")
    'backports_zstd'
    """
    return re.sub(r"[-_.]+", "_", package).lower()
