"""`python -m runbook.packed_environment ensure|remove MANIFEST FOLDER`: the copy on this node.

A job starts it once on each node. `ensure` writes one line of JSON to its output, and words for
people to its errors. It ends with 0 if the node has a Python (its copy, or the shared one), and
with 2 where it must not run: docs/local-environment.md.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from runbook.packed_environment.manifest import ManifestError, read_manifest
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
    """Return the message for the job's log."""
    if result.state is CopyState.UNPACKED:
        return (
            f"the Python environment was unpacked to {result.folder} in {result.seconds:.1f} s "
            f"({result.files:,} files, {result.read_bytes / 1e9:.2f} GB read)"
        )

    if result.state is CopyState.PRESENT:
        return f"the Python environment is there: {result.folder} ({result.seconds:.1f} s)"
    reason = f"no copy of the Python environment ({result.problem}): {result.detail}"
    if result.state is CopyState.SHARED:
        return f"{reason}. This node uses the shared one, which has not changed: {result.folder}"
    return (
        f"{reason}. The shared environment is not the one that was packed, "
        "so this node would run other code than the rest. "
        "Submit the training again: that packs the environment again."
    )


def _remove(manifest: Path, folder: str) -> int:
    """Remove the copy of a manifest.

    Where there is neither, there is nothing to do.
    """
    try:
        packed = read_manifest(manifest)
        if packed is None:
            return 0
        forget_failures(packed)
        copy = copies_folder(folder) / packed.name
    except (CopyError, ManifestError):
        return 0

    if not remove_copy(copy):
        sys.stderr.write(f"runbook: {copy} stays: another job uses it\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
