"""Lists the packages of a training, with the folders from which Python imports them."""

import sys
from importlib.metadata import distributions
from pathlib import Path

PACKAGES = (
    "torch",
    "megatron-core",
    "deepspeed",
    "numpy",
    "triton",
    "transformer-engine",
    "flash-attn",
    "apex",
    "nemo-toolkit",
    "tensorboard",
)
"""Packages that must have the same version on all nodes.

It is not a fault if a package is missing on all nodes.
"""


def replaced_packages() -> dict[str, str]:
    """Return the packages of this environment that Python imports from a folder outside of it.

    PYTHONPATH and a home folder's own packages (`pip install --user`) precede the environment. A
    package of the system that an environment replaces on purpose is not among them.
    """
    environment = Path(sys.prefix).resolve()
    replaced = {}
    for name in PACKAGES:
        installed = list(distributions(name=name))
        folders = [Path(str(each.locate_file(""))).resolve() for each in installed]
        is_inside = [folder.is_relative_to(environment) for folder in folders]
        if not installed or is_inside[0] or not any(is_inside):
            continue
        own = installed[is_inside.index(True)]
        if own.version != installed[0].version:
            replaced[name] = f"{installed[0].version} in {folders[0]} replaces {own.version}"

    return replaced


def installed_version(name: str) -> str | None:
    """Return the version of a package that Python would import, or None if it is missing."""
    return next((distribution.version for distribution in distributions(name=name)), None)
