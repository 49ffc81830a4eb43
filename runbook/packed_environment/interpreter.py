"""Facts an interpreter reports about itself, and the folders in its environment."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

QUESTION = """
import json, os, sys, sysconfig
facts = {
    "executable": sys.executable,
    "prefix": sys.prefix,
    "base_prefix": sys.base_prefix,
    "base_executable": os.path.realpath(sys.executable),
    "version": "%d.%d.%d" % sys.version_info[:3],
    "standard_library": sysconfig.get_path("stdlib"),
    "headers": sysconfig.get_path("include"),
    "search_path": [os.path.abspath(entry) for entry in sys.path if entry],
}
print("runbook " + json.dumps(facts))
"""
"""A program the interpreter runs to describe itself. It prints one line."""

ANSWER = "runbook "
"""The prefix for that line. It is needed because set-up commands at a site may print other lines.
"""

SYSTEM_PREFIXES = ("/usr", "/bin")
"""An interpreter with one of these prefixes belongs to the system on the node, and is not packed.
"""


class InterpreterError(Exception):
    """An interpreter reports no facts, or there are no files at the paths it reports."""


@dataclass(frozen=True)
class Interpreter:
    """An interpreter and its environment."""

    executable: str
    prefix: str
    """Environment folder: a virtual environment, a conda environment, or an installation."""
    base_prefix: str
    """Folder with the installation a virtual environment is based on, or else the same folder."""
    base_executable: str
    """The executable file, with all links resolved."""
    version: str
    standard_library: str
    headers: str
    search_path: tuple[str, ...]

    @property
    def is_virtual(self) -> bool:
        """Return whether the environment is based on an installation elsewhere."""
        return self.prefix != self.base_prefix

    @property
    def base_is_on_nodes(self) -> bool:
        """Return whether the installation belongs to the system on each node."""
        return _is_below_any(self.base_prefix, SYSTEM_PREFIXES)

    @property
    def sees_base_packages(self) -> bool:
        """Return whether packages in the installation can be imported (--system-site-packages)."""
        base_packages = f"{self.standard_library}/site-packages"
        return self.is_virtual and base_packages in self.search_path

    def outside(self, packed: Sequence[str]) -> tuple[str, ...]:
        """Return the folders in the search path that are not packed."""
        folders = []
        for entry in self.search_path:
            is_folder = Path(entry).is_dir()
            is_packed = _is_below_any(entry, packed)
            is_on_nodes = self.base_is_on_nodes and _is_below_any(entry, (self.base_prefix,))
            if is_folder and not is_packed and not is_on_nodes:
                folders.append(entry)

        return tuple(folders)


def parse_answer(text: str) -> Interpreter:
    """Parse the answer from an interpreter to `QUESTION`."""
    answers = [line for line in text.splitlines() if line.startswith(ANSWER)]
    if not answers:
        raise InterpreterError("the interpreter gave no answer")
    facts = json.loads(answers[-1].removeprefix(ANSWER))
    search_path = tuple(facts.pop("search_path"))
    return Interpreter(**facts, search_path=search_path)


def _is_below_any(path: str, folders: Sequence[str]) -> bool:
    return any(path == folder or path.startswith(f"{folder.rstrip('/')}/") for folder in folders)
