"""Determines which files to pack, their paths in the archive, and a fingerprint."""

from __future__ import annotations

import hashlib
import os
import stat
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

from runbook.packed_environment.interpreter import Interpreter
from runbook.packed_environment.manifest import BASE, ENVIRONMENT, PACKAGE, PackedPart

BLOCK = 4096
COMPILED = "__pycache__"
CONDA_FOLDERS = frozenset({"pkgs", "envs", "conda-bld"})
"""Folders in a conda installation that its base environment does not use, such as caches."""
UNUSED_LIBRARY = frozenset({"test", "idlelib", "site-packages"})
"""Folders in the standard library that training never imports.

Packages in the installation are included only if the environment uses them.
"""


@dataclass(frozen=True)
class PackedSource:
    """A folder that is packed, as a whole or in part."""

    name: str
    """The folder path in the archive."""
    folder: Path
    roots: tuple[str, ...] = ("",)
    """Files and folders to pack, relative to the source folder.

    An empty path stands for the whole folder.
    """
    excluded: frozenset[str] = frozenset()
    """Paths in the source folder that are left out."""


@dataclass(frozen=True)
class PackedEntry:
    """A file, link or folder that is packed."""

    source: PackedSource
    path: str
    """The path relative to the source folder."""
    status: os.stat_result

    @property
    def place(self) -> str:
        """Return the path in the archive."""
        return str(PurePosixPath(self.source.name) / self.path)

    @property
    def file(self) -> Path:
        """Return the current path to the file."""
        return self.source.folder / self.path

    @property
    def is_compiled(self) -> bool:
        """Return whether the file is a module that Python has compiled."""
        return COMPILED in PurePosixPath(self.path).parts

    @property
    def disk_bytes(self) -> int:
        """Return the bytes the entry uses on disk."""
        if stat.S_ISREG(self.status.st_mode):
            return -(-self.status.st_size // BLOCK) * BLOCK
        return BLOCK if stat.S_ISDIR(self.status.st_mode) else 0


def sources_of(interpreter: Interpreter, package: Path) -> list[PackedSource]:
    """Return the folders that must be packed to let the interpreter run elsewhere.

    `package` is the folder with the package `runbook`.
    """
    environment = Path(interpreter.prefix)
    sources = [PackedSource(ENVIRONMENT, environment, excluded=_unused_of_conda(environment))]
    if interpreter.is_virtual and not interpreter.base_is_on_nodes:
        sources.insert(0, _base_source(interpreter))
    sources.append(PackedSource(PACKAGE, package, ("runbook",)))
    return sources


def _unused_of_conda(prefix: Path) -> frozenset[str]:
    return CONDA_FOLDERS if (prefix / "conda-meta").is_dir() else frozenset()


def _base_source(interpreter: Interpreter) -> PackedSource:
    """Return the whole installation if its packages are used, or else only what Python needs."""
    base = Path(interpreter.base_prefix).resolve()
    if interpreter.sees_base_packages:
        return PackedSource(BASE, base, excluded=_unused_of_conda(base))
    library = Path(interpreter.standard_library).resolve().relative_to(base)
    program = Path(interpreter.base_executable).relative_to(base)
    roots = [str(program), str(library)]
    headers = Path(interpreter.headers).resolve()
    # Torch and Triton compile against these headers
    if headers.is_dir() and headers.is_relative_to(base):
        roots.append(str(headers.relative_to(base)))
    roots += [str(path.relative_to(base)) for path in sorted(base.glob("lib/libpython*.so*"))]
    excluded = frozenset(str(library / name) for name in UNUSED_LIBRARY)
    return PackedSource(BASE, base, tuple(roots), excluded)


def part_of(source: PackedSource, entries: Sequence[PackedEntry]) -> PackedPart:
    """Return the part in the manifest for a source with these entries."""
    return PackedPart(
        name=source.name,
        folder=str(source.folder),
        roots=source.roots,
        excluded=tuple(sorted(source.excluded)),
        files=len(entries),
        fingerprint=fingerprint(entries),
    )


def source_of_part(part: PackedPart) -> PackedSource:
    """Return the source for a part listed in a manifest."""
    return PackedSource(part.name, Path(part.folder), part.roots, frozenset(part.excluded))


def list_entries(sources: Iterable[PackedSource]) -> Iterator[PackedEntry]:
    """Yield every entry to pack, in archive order."""
    for source in sources:
        for root in source.roots:
            if root:
                yield from _parents(source, root)
            yield from _walk(source, root)


def _parents(source: PackedSource, root: str) -> Iterator[PackedEntry]:
    """Yield the folders above a root, and the root itself."""
    for parent in [*reversed(PurePosixPath(root).parents), PurePosixPath(root)]:
        if str(parent) != ".":
            yield PackedEntry(source, str(parent), (source.folder / parent).lstat())


def _walk(source: PackedSource, folder: str) -> Iterator[PackedEntry]:
    """Yield the entries in a folder and its subfolders, sorted by name."""
    absolute = source.folder / folder
    if not absolute.is_dir():
        return
    with os.scandir(absolute) as scan:
        children = sorted(scan, key=lambda child: child.name)
    for child in children:
        path = f"{folder}/{child.name}" if folder else child.name
        if path in source.excluded:
            continue
        entry = PackedEntry(source, path, child.stat(follow_symlinks=False))
        yield entry
        if stat.S_ISDIR(entry.status.st_mode):
            yield from _walk(source, path)


def fingerprint(entries: Iterable[PackedEntry]) -> str:
    """Return a checksum over names, sizes, times and links. It changes if any file changes.

    Compiled files are left out, because Python writes them while jobs are running.
    """
    digest = hashlib.sha256()
    for entry in entries:
        if entry.is_compiled or stat.S_ISDIR(entry.status.st_mode):
            continue
        facts = [entry.place, str(entry.status.st_size), str(entry.status.st_mtime_ns)]
        if stat.S_ISLNK(entry.status.st_mode):
            facts[1:] = [str(entry.file.readlink())]
        digest.update("\0".join([*facts, "\n"]).encode("utf-8", "surrogateescape"))

    return digest.hexdigest()


def fingerprint_of_parts(fingerprints: Sequence[str]) -> str:
    """Return a fingerprint for the whole environment."""
    return hashlib.sha256("\n".join(fingerprints).encode()).hexdigest()


def current_fingerprint(sources: Sequence[PackedSource]) -> str:
    """Return a fingerprint for the current files.

    The status of each file has to be read for this.
    """
    return fingerprint_of_parts([fingerprint(list_entries([source])) for source in sources])


def count_uncompiled(entries: Sequence[PackedEntry]) -> int:
    """Count the modules without a compiled file.

    Each node would have to compile those it imports.
    """
    compiled = set()
    for entry in entries:
        if entry.is_compiled:
            path = PurePosixPath(entry.place)
            compiled.add(f"{path.parent.parent}/{path.name.partition('.')[0]}")

    count = 0
    for entry in entries:
        path = PurePosixPath(entry.place)
        if path.suffix == ".py" and str(path.with_suffix("")) not in compiled:
            count += 1

    return count
