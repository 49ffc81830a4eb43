"""`python -m runbook.packed_environment ensure|remove MANIFEST FOLDER`: manage the copy on a node.

A job starts it once on each node. `ensure` writes one JSON line to standard output, and text for
people to standard error. It exits with 0 if the node has a Python (its copy, or the shared one),
and with 2 if the node must not run; see docs/local-environment.md.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from runbook.packed_environment.manifest import ManifestError, read_manifest
from runbook.packed_environment.messages import CopyMessage
from runbook.packed_environment.node_copy import (
    CopyError,
    CopyResult,
    CopyState,
    copies_folder,
    ensure_copy,
    forget_failures,
    remove_copy,
)

REFUSED = 2


def main() -> int:
    """Run the command given on the command line."""
    parser = argparse.ArgumentParser(
        prog="python -m runbook.packed_environment", description=__doc__
    )
    parser.add_argument("command", choices=("ensure", "remove"))
    parser.add_argument("manifest", type=Path)
    parser.add_argument("folder", help="a folder on this node's own disk")
    asked = parser.parse_args()
    if asked.command == "remove":
        return _remove(asked.manifest, asked.folder)
    result = ensure_copy(asked.manifest, asked.folder)
    sys.stdout.write(f"{result.as_line()}\n")
    sys.stderr.write(f"runbook: {result.node}: {describe(result)}\n")
    return REFUSED if result.state is CopyState.REFUSED else 0


def describe(result: CopyResult) -> str:
    """Return the message for the job log."""
    if result.state is CopyState.UNPACKED:
        return CopyMessage.UNPACKED.fill(
            folder=result.folder,
            seconds=result.seconds,
            files=result.files,
            gigabytes=result.read_bytes / 1e9,
        )

    if result.state is CopyState.PRESENT:
        return CopyMessage.PRESENT.fill(folder=result.folder, seconds=result.seconds)
    reason = CopyMessage.NO_COPY.fill(problem=result.problem, detail=result.detail)
    if result.state is CopyState.SHARED:
        return CopyMessage.SHARED.fill(reason=reason, folder=result.folder)
    return CopyMessage.REFUSED.fill(reason=reason)


def _remove(manifest: Path, folder: str) -> int:
    """Remove the copy for a manifest, and the failure note, if they exist."""
    try:
        packed = read_manifest(manifest)
        if packed is None:
            return 0
        forget_failures(packed)
        copy = copies_folder(folder) / packed.name
    except (CopyError, ManifestError):
        return 0

    if not remove_copy(copy):
        sys.stderr.write(f"runbook: {CopyMessage.COPY_IN_USE.fill(copy=copy)}\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
