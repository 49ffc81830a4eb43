"""Finds the versions of installed packages, using only folder names."""

import functools
import re
import sys
from contextlib import suppress
from importlib.util import find_spec
from pathlib import Path

_ENDING = ".dist-info"


@functools.cache
def package_version(package: str) -> str:
    """Return the version of an installed package, or an empty string if it is not installed.

    `importlib.metadata` parses the whole package description with the e-mail parser, which adds 20
    ms to every start-up. The parser is used only for a package that can be imported but has no
    folder named after it.
    """
    name = _normal(package)
    for folder in sys.path:
        versions = _versions_in(folder)
        if name in versions:
            return versions[name]

    return _described_version(package) if _can_be_imported(package) else ""


@functools.cache
def _versions_in(folder: str) -> dict[str, str]:
    """Return the packages installed in a folder on sys.path, with their versions."""
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
    """Return the version in the package metadata, wherever that is stored."""
    from importlib.metadata import PackageNotFoundError, version

    try:
        return version(package)
    except PackageNotFoundError:
        return ""


def _normal(package: str) -> str:
    """Normalize a package name.

    >>> _normal("Backports.zstd")
    'backports_zstd'
    """
    return re.sub(r"[-_.]+", "_", package).lower()
