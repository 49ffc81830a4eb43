"""Versions of installed packages, each looked up once: a look reads a package's whole description."""

import functools
from importlib.metadata import PackageNotFoundError, version


@functools.cache
def package_version(package: str) -> str:
    """Return the version of an installed package; empty if it is not installed."""
    try:
        return version(package)
    except PackageNotFoundError:
        return ""
