"""Identifies the Python installation on a node: programs on the PATH, and package source files."""

import contextlib
import importlib.util
import os
import shutil
import struct
import subprocess
import sys
import time
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from runbook.node_checks.answers import OWN_PACKAGE, Facts, ProgramEnd
from runbook.node_checks.program_output import run_program

PROGRAMS = ("python", "python3")
"""Names used by scripts and extension builds to call Python."""
PROGRAMS_SECONDS = 20.0
"""Time limit for all programs together. It is shorter than the limit for the check."""
PRINT_PREFIX = "import sys; print(sys.prefix); print(sys.version.split()[0])"
SOURCES_SECONDS = 20.0
"""After this time, no further package is read. Nodes are compared only by packages read in time.

A cold file server needs about a millisecond for each file, and torch has 3,000 files.
"""
SOURCE_SUFFIXES = (".py", ".so")
"""Suffixes of package files: sources, and extensions compiled at installation."""
LIBRARY_SUFFIX = ".so"
ELF_MAGIC = b"\x7fELF\x02\x01"
"""Begins a 64-bit little-endian file in the Executable and Linkable Format (elf(5))."""
_SECTION_HEADERS = struct.Struct("<40xQ10xHH")
"""In the header of such a file: where the section headers begin, the bytes of each, their number."""
INSTALLED = frozenset(("site-packages", "dist-packages"))
"""Folders only an installer writes to."""


@dataclass(frozen=True)
class ProgramAnswer:
    """What a Python interpreter reported about itself. The texts are empty if it did not answer."""

    ended: ProgramEnd
    prefix: str = ""
    version: str = ""


@dataclass(frozen=True)
class SourceFolder:
    """The folder with the source files for a package, relative to the top-level import name."""

    package: str
    """The package name in `packages.PACKAGES`."""
    import_name: str
    below: str = ""


SOURCE_FOLDERS = (
    SourceFolder(OWN_PACKAGE, "runbook"),
    SourceFolder("megatron-core", "megatron", "core"),
    SourceFolder("deepspeed", "deepspeed"),
    SourceFolder("transformer-engine", "transformer_engine"),
    SourceFolder("flash-attn", "flash_attn"),
    SourceFolder("apex", "apex"),
    SourceFolder("nemo-toolkit", "nemo"),
    SourceFolder("triton", "triton"),
    SourceFolder("torch", "torch"),
)


def look_at_sources() -> Facts:
    """Return the folder, a checksum of the source files and the cut libraries for each package.

    Two checkouts may have the same version but different files. The checksum covers names and sizes
    and, outside the folders that installers use, also contents. Packages missing or not reached in
    time are left out.
    """
    deadline = time.monotonic() + SOURCES_SECONDS
    facts: Facts = {}
    for source in SOURCE_FOLDERS:
        folder = _folder_of(source)
        if folder is None:
            continue
        sources = _read_sources(folder, deadline)
        if sources is None:
            break
        facts[source.package] = {
            "folder": str(folder),
            "checksum": sources.checksum,
            "cut_libraries": sources.cut_libraries,
        }

    return facts


def _folder_of(source: SourceFolder) -> Path | None:
    """Return the folder that Python would import a package from, but do not import it."""
    try:
        spec = importlib.util.find_spec(source.import_name)
    except (ImportError, ValueError):
        return None

    if spec is None:
        return None
    # A namespace package may have several folders. Use the first folder that contains the
    # subpackage.
    for location in spec.submodule_search_locations or ():
        folder = Path(location, source.below)
        if folder.is_dir():
            return folder

    return None


@dataclass(frozen=True)
class FolderSources:
    """The summary of a package's files."""

    checksum: str
    cut_libraries: list[str]
    """Paths of libraries that are shorter than their own header states, relative to the folder."""


def _read_sources(folder: Path, deadline: float) -> FolderSources | None:
    """Read the Python files and compiled extensions below a folder.

    Return None if the deadline passes before the last file is read.
    """
    reads_contents = not INSTALLED & set(folder.parts)
    checksum = 0
    cut_libraries = []
    for path in _source_files(folder):
        if time.monotonic() > deadline:
            return None
        # A link may lead nowhere, and a file may disappear while the folder is read.
        with contextlib.suppress(OSError):
            size = path.stat().st_size
            # Two builds from the same source contain different paths.
            is_compared = reads_contents and path.suffix == ".py"
            content = path.read_bytes() if is_compared else b""
            name = str(path.relative_to(folder))
            checksum = zlib.crc32(f"{name} {size}\n".encode(), checksum)
            checksum = zlib.crc32(content, checksum)
            if path.suffix == LIBRARY_SUFFIX and size < stated_bytes(path):
                cut_libraries.append(name)

    return FolderSources(f"{checksum:08x}", cut_libraries)


def stated_bytes(library: Path) -> int:
    """Return how long a library is at least, according to its own header.

    The section headers are at the end of the file, so a copy that was cut short lacks them. Stripped
    libraries have a header that is right for them. The result is 1 for an empty file, and 0 for a
    file of another format.
    """
    with library.open("rb") as stream:
        head = stream.read(64)

    if not head:
        return 1
    if not head.startswith(ELF_MAGIC) or len(head) < 64:
        return 0
    offset, bytes_of_each, count = _SECTION_HEADERS.unpack_from(head)
    return int(offset) + int(bytes_of_each) * int(count)


def _source_files(folder: Path) -> Iterator[Path]:
    """Yield the files with SOURCE_SUFFIXES below a folder, in the same order on every node.

    Python never imports a file with a name that begins with a dot. Editors and notebooks use such
    names for locks and copies.
    """
    for parent, names, files in os.walk(folder):
        names[:] = sorted(name for name in names if not name.startswith("."))
        for name in sorted(files):
            if name.endswith(SOURCE_SUFFIXES) and not name.startswith("."):
                yield Path(parent, name)


def look_at_programs() -> Facts:
    """Return this interpreter, and the first `python` and `python3` on PATH.

    `own_place` is the position on the PATH of the folder with this interpreter, starting at 0. It
    is None if the folder is not on the PATH.
    """
    own_folder = str(Path(sys.executable).parent)
    folders = os.get_exec_path()
    deadline = time.monotonic() + PROGRAMS_SECONDS
    programs = {}
    for name in PROGRAMS:
        path = shutil.which(name)
        if path is not None:
            answer = _ask_program(path, deadline)
            programs[name] = _program_facts(path, answer, own_folder, folders)

    return {
        "executable": sys.executable,
        "prefix": sys.prefix,
        "own_place": _place_on_path(own_folder, folders),
        "programs": programs,
    }


def _program_facts(
    path: str,
    answer: ProgramAnswer,
    own_folder: str,
    folders: list[str],
) -> Facts:
    folder = str(Path(path).parent)
    return {
        "path": path,
        "place": _place_on_path(folder, folders),
        "version": answer.version,
        "ended": answer.ended.value,
        "is_own": folder == own_folder or answer.prefix == sys.prefix,
    }


def _place_on_path(folder: str, folders: list[str]) -> int | None:
    return folders.index(folder) if folder in folders else None


def _ask_program(path: str, deadline: float) -> ProgramAnswer:
    """Return the prefix and version of an interpreter, or how it failed."""
    seconds = deadline - time.monotonic()
    if seconds <= 0:
        return ProgramAnswer(ProgramEnd.HUNG)
    try:
        # Python 2 has no -I.
        ended = run_program([path, "-E", "-s", "-c", PRINT_PREFIX], seconds)
    except subprocess.TimeoutExpired:
        return ProgramAnswer(ProgramEnd.HUNG)
    except OSError:
        return ProgramAnswer(ProgramEnd.FAILED)

    lines = ended.stdout.splitlines()
    if ended.returncode or len(lines) != 2:
        return ProgramAnswer(ProgramEnd.FAILED)
    return ProgramAnswer(ProgramEnd.WELL, lines[0], lines[1])
