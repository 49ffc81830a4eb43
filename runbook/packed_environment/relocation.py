"""Adapts the paths in a moved environment: links, first lines in scripts, and pyvenv.cfg."""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from pathlib import Path, PurePosixPath

from runbook.packed_environment.contents import PackedEntry, PackedSource
from runbook.packed_environment.manifest import BASE, ENVIRONMENT

CONFIG = "pyvenv.cfg"
LIBRARY_FOLDER = "libpython"
"""Folder with only the shared library for the interpreter, used in LD_LIBRARY_PATH.

A program built with a shared library searches for the library where it was installed.
"""
LONGEST_SCRIPT = 1_000_000
"""Largest script in bytes. Larger files in bin/ are programs."""

_DIRECT = re.compile(rb"#!\s*\S*/(python[0-9.]*)([^\S\n][^\n]*)?\n")
"""Matches the first line in a script: the interpreter, with options."""
_THROUGH_SHELL = re.compile(
    rb"#!/bin/sh\n'''exec' \"?[^\n\"]*?/(python[0-9.]*)\"?( [^\n]*?)? \"\$0\" \"\$@\"\n' '''\n"
)
"""Matches the first lines that pip writes if the interpreter path is too long for one line."""


def place_in_archive(path: str, sources: Sequence[PackedSource]) -> PurePosixPath | None:
    """Return where an absolute path is in the archive, or None if it is not packed."""
    for source in sorted(sources, key=lambda source: len(str(source.folder)), reverse=True):
        folder = os.path.realpath(source.folder)
        if path != folder and not path.startswith(f"{folder}/"):
            continue
        below = PurePosixPath(path).relative_to(folder)
        for root in source.roots:
            if below.is_relative_to(root or "."):
                return PurePosixPath(source.name) / below

    return None


def moved_link(entry: PackedEntry, sources: Sequence[PackedSource]) -> str:
    """Return the target to use for a link in the archive.

    A link that stays inside its packed folder is kept. A link to another packed folder becomes
    relative, and any other link becomes absolute.
    """
    link = entry.file.readlink()
    direct = os.path.normpath(entry.file.parent.resolve() / link)
    folder = os.path.realpath(entry.source.folder)
    if not link.is_absolute() and direct.startswith(f"{folder}/"):
        return str(link)
    target = os.path.realpath(entry.file)
    place = place_in_archive(target, sources)
    if place is None:
        return target
    return os.path.relpath(place, PurePosixPath(entry.place).parent)


def moved_script(content: bytes) -> bytes | None:
    r"""Change a script to start the Python next to it. Return None if it does not start Python.

    >>> print(moved_script(b"#!/old/venv/bin/python3.11\nimport sys\n").splitlines()[1].decode())
    '''exec' "$(dirname -- "$(realpath -- "$0")")/python3.11" "$0" "$@"
    """
    match = _THROUGH_SHELL.match(content) or _DIRECT.match(content)
    if match is None:
        return None
    python = match[1].decode()
    options = (match[2] or b"").decode().rstrip()
    head = (
        "#!/bin/sh\n"
        f'\'\'\'exec\' "$(dirname -- "$(realpath -- "$0")")/{python}"{options} "$0" "$@"\n'
        "' '''\n"
    )
    return head.encode() + content[match.end() :]


def moved_config(text: str, copy: Path) -> str:
    r"""Return the text for pyvenv.cfg in a copy with a packed installation.

    >>> print(moved_config("home = /old/bin\nversion = 3.11.7\ncommand = x\n", Path("/tmp/copy")))
    home = /tmp/copy/base/bin
    version = 3.11.7
    <BLANKLINE>
    """
    lines = []
    for line in text.splitlines():
        key = line.partition("=")[0].strip().lower()
        if key == "home":
            lines.append(f"home = {copy / BASE / 'bin'}")
        elif key not in ("executable", "command"):  # They name the original environment
            lines.append(line)

    return "\n".join(lines) + "\n"


def link_library(content: Path) -> None:
    """If the interpreter has a shared library, link to it from a separate folder."""
    for part in (BASE, ENVIRONMENT):
        libraries = sorted((content / part / "lib").glob("libpython*.so*"))
        for library in libraries:
            link = content / LIBRARY_FOLDER / library.name
            link.parent.mkdir(exist_ok=True)
            link.symlink_to(Path("..") / part / "lib" / library.name)

        if libraries:
            return


def write_moved_config(content: Path, copy: Path) -> None:
    """Adapt the environment in `content`, to let it find the installation once it is in `copy`."""
    config = content / ENVIRONMENT / CONFIG
    if config.exists() and (content / BASE).is_dir():
        config.write_text(moved_config(config.read_text(encoding="utf-8"), copy), encoding="utf-8")
