"""The Python versions that this project supports, and where they are on this machine.

`python find_python.py` ends with an error under an unsupported Python, and lists the supported ones
and where they were found. Python 3.6 and newer can run this file, because the message is for people
with an unsupported Python.
"""

import os
import subprocess
import sys
from pathlib import Path

SUPPORTED = ((3, 11), (3, 12), (3, 13))
"""Supported versions, as in `requires-python` in pyproject.toml. 3.14 is untested."""


def version_text(version: "tuple[int, ...]") -> str:
    """Return (3, 12) as "3.12"."""
    return ".".join(map(str, version))


def find_interpreters() -> "dict[tuple[int, int], str]":
    """Return the path to a working interpreter for each supported version found here."""
    found = {}
    for version in SUPPORTED:
        for path in _candidates(version):
            actual_version, executable = _ask(path)
            if actual_version == version:
                found[version] = executable
                break
    return found


def _candidates(version: "tuple[int, int]") -> "list[Path]":
    name = "python" + version_text(version)
    folders = [Path(folder) for folder in os.environ.get("PATH", "").split(os.pathsep) if folder]
    # The pyenv commands on PATH fail unless the version is selected, so the pyenv folders are
    # searched as well.
    pyenv = Path(os.environ.get("PYENV_ROOT", Path.home() / ".pyenv"))
    folders += sorted(pyenv.glob("versions/" + version_text(version) + ".*/bin"))
    return [folder / name for folder in folders if os.access(str(folder / name), os.X_OK)]


def _ask(path: Path) -> "tuple[tuple[int, ...], str]":
    """Return the version of an interpreter and its real path.

    The version is empty if the interpreter does not start.
    """
    program = "import sys; print(*sys.version_info[:2]); print(sys.executable)"
    try:
        output = subprocess.check_output([str(path), "-c", program], stderr=subprocess.DEVNULL)
    except (OSError, subprocess.CalledProcessError):
        return (), str(path)
    version, executable = output.decode().splitlines()
    return tuple(int(number) for number in version.split()), executable


def refusal(version: "tuple[int, ...]", found: "dict[tuple[int, int], str]") -> str:
    """Return why this Python cannot be used and what to type instead.

    The text is empty if this Python is supported.
    """
    if version[:2] in SUPPORTED:
        return ""
    first = ", ".join(map(version_text, SUPPORTED[:-1]))
    works = first + " and " + version_text(SUPPORTED[-1]) + " work"
    sentences = ["This is Python " + version_text(version) + "; " + works + "."]
    if found:
        places = ", ".join(version_text(one) + " (" + path + ")" for one, path in found.items())
        # Suggest the oldest one, because every test runs on it. Only the trainer tests run on newer
        # versions.
        sentences += ["Found here: " + places + ".", "Type: make setup PYTHON=" + found[min(found)]]
    else:
        sentences += [
            "None of them was found on PATH or in pyenv's folder.",
            "Install one, and type: make setup PYTHON=/path/to/python3.12",
        ]
    return " ".join(sentences)


if __name__ == "__main__":
    own = sys.version_info[:3]
    sys.exit(own[:2] not in SUPPORTED and refusal(own, find_interpreters()))
