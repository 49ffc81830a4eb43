"""Names for groups of facts, as they appear in the answer from a node."""

from enum import StrEnum

PREFIX = "facts: "
"""Prefix for the name of the part in which a group of facts is written."""


class FactGroup(StrEnum):
    """A group of facts one function collects within its own time limit."""

    SYSTEM = "system"
    LIMITS = "limits"
    KERNEL_SETTINGS = "kernel settings"
    NETWORK = "network"
    ENVIRONMENT = "environment"
    PROGRAMS = "programs"
    PACKAGES = "packages"
    DEVICES = "devices"
    FOLDERS = "folders"

    @property
    def part(self) -> str:
        """Return the name of the part of the answer."""
        return PREFIX + self.value
