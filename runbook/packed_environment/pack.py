"""Packs an environment on a login node, and packs it again if files have changed."""

from __future__ import annotations

import tarfile
import time
from collections.abc import Callable
from pathlib import Path

from runbook.packed_environment import archive, contents
from runbook.packed_environment.archive import PackError
from runbook.packed_environment.interpreter import Interpreter, InterpreterError
from runbook.packed_environment.manifest import (
    ENVIRONMENT,
    MANIFEST_NAME,
    NAME_DIGITS,
    SCHEMA,
    EnvironmentManifest,
)
from runbook.packed_environment.messages import CopyMessage

KEPT_ARCHIVES = 2
"""Number of archives to keep; the oldest are removed first.

A queued job still reads the archive that was newest when it was submitted.
"""


def find_sources(interpreter: Interpreter, package: Path) -> list[contents.PackedSource]:
    """Return the sources to pack. Raise `PackError` if packing is pointless."""
    if not interpreter.is_virtual and interpreter.base_is_on_nodes:
        raise PackError(CopyMessage.INTERPRETER_OF_THE_SYSTEM, executable=interpreter.executable)

    try:
        return contents.sources_of(interpreter, package)
    except ValueError as error:
        raise InterpreterError(
            f"{interpreter.executable}: its library or program is outside "
            f"{interpreter.base_prefix}: {error}"
        ) from error


def python_in(environment: Path, version: str) -> str:
    """Return the path to the interpreter in the archive."""
    minor = ".".join(version.split(".")[:2])
    for name in (f"python{minor}", "python3", "python"):
        if (environment / "bin" / name).exists():
            return f"{ENVIRONMENT}/bin/{name}"

    raise PackError(f"{environment}/bin has no interpreter: neither python{minor} nor python3.")


def pack(
    interpreter: Interpreter,
    package: Path,
    folder: Path,
    compression: str,
    report: Callable[[int, int], None],
) -> EnvironmentManifest:
    """Write the archive, and then the manifest, to a folder. Return the manifest.

    `report` is called with the number of packed entries and the total.
    """
    began = time.time()
    sources = find_sources(interpreter, package)
    python = python_in(Path(interpreter.prefix), interpreter.version)
    by_source = [list(contents.list_entries([source])) for source in sources]
    entries = []
    for listed in by_source:
        for entry in listed:
            entries.append(entry)

    parts = []
    for source, listed in zip(sources, by_source, strict=True):
        parts.append(contents.part_of(source, listed))
    folder.mkdir(parents=True, exist_ok=True)
    part_file = folder / f"packing{archive.SUFFIXES[compression]}.part"
    try:
        archive.write_archive(
            part_file,
            entries,
            sources,
            compression,
            lambda done: report(done, len(entries)),
        )
        sha256 = archive.checksum(part_file)
        name = f"environment-{sha256[:NAME_DIGITS]}{archive.SUFFIXES[compression]}"
        part_file.replace(folder / name)
    except (OSError, tarfile.TarError) as error:
        raise PackError(f"the environment could not be packed: {error}") from error
    finally:
        part_file.unlink(missing_ok=True)

    manifest = EnvironmentManifest(
        schema=SCHEMA,
        archive=str((folder / name).absolute()),
        sha256=sha256,
        archive_bytes=(folder / name).stat().st_size,
        disk_bytes=sum(entry.disk_bytes for entry in entries),
        files=len(entries),
        compression=compression,
        fingerprint=contents.fingerprint_of_parts([part.fingerprint for part in parts]),
        python=python,
        python_version=interpreter.version,
        interpreter=interpreter.executable,
        parts=tuple(parts),
        outside=interpreter.outside(_packed_folders(sources)),
        uncompiled=contents.count_uncompiled(entries),
        packed_at=began,
        seconds=round(time.time() - began, 1),
    )
    write_manifest(folder, manifest)
    remove_old_archives(folder, name)
    return manifest


def _packed_folders(sources: list[contents.PackedSource]) -> list[str]:
    """Return the folders to pack, including a package imported from a clone."""
    return [str(source.folder) for source in sources]


def write_manifest(folder: Path, manifest: EnvironmentManifest) -> None:
    """Write the manifest under a temporary name, and rename it."""
    part = folder / f"{MANIFEST_NAME}.part"
    part.write_text(manifest.as_text(), encoding="utf-8")
    part.replace(folder / MANIFEST_NAME)


def remove_old_archives(folder: Path, newest: str) -> None:
    """Remove all archives except the newest `KEPT_ARCHIVES`."""
    archives = []
    for suffix in archive.SUFFIXES.values():
        archives += [path for path in folder.glob(f"environment-*{suffix}") if path.name != newest]
    archives.sort(key=lambda path: path.stat().st_mtime, reverse=True)
    for path in archives[KEPT_ARCHIVES - 1 :]:
        path.unlink(missing_ok=True)
