"""Chooses the Python versions that `make pythons` tests."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from find_python import version_text

Version = tuple[int, int]


def chosen_versions(
    wish: str, others: Sequence[Version], commit: Callable[[], str]
) -> list[Version]:
    """Return the versions that `wish` names: "all", "rotate" (one, determined by the commit) or
    "3.12". The same commit always selects the same version, so that a failure can be reproduced.
    Raise ValueError for an unsupported version.
    """
    if wish == "all":
        return list(others)
    if wish == "rotate":
        return [others[int(commit().strip()[:8], 16) % len(others)]]
    major, _, minor = wish.partition(".")
    version = (int(major), int(minor))
    if version not in others:
        known = ", ".join(map(version_text, others))
        raise ValueError(f"PYTHONS={wish}: choose all, rotate or one of {known}")
    return [version]


def summary(own: Version, others: Sequence[Version], chosen: Sequence[Version]) -> str:
    """Return a line that says which Pythons are tested and which are not."""
    skipped = [version for version in others if version not in chosen]
    parts = [
        f"Pythons run: {', '.join(map(version_text, chosen))}",
        f"compared with {version_text(own)}",
        f"not run: {', '.join(map(version_text, skipped)) or 'none'}",
    ]
    return "; ".join(parts)
