"""Messages about a packed environment, one per row; `{name}` stands for a value."""

from __future__ import annotations

from runbook.plan_file.diagnostics import Message


class CopyMessage(Message):
    """Messages about the copy of a packed environment on a node."""

    ARCHIVE_GONE = "{path} does not exist"
    COPY_IN_USE = "{copy} is not removed, because another job uses it"
    COPY_NOT_FINISHED = "another process did not finish {copy} within {seconds:g} s"
    COPY_NOT_READY = (
        "other processes use {copy}, which is not ready (it was removed or replaced), and did "
        "not end within {seconds:g} s"
    )
    DAMAGED_ARCHIVE = (
        "{path} has the sha256 {actual}..., but {packed}... was packed. Pack again: runbook pack "
        "RUN --again"
    )
    DISK_IS_FULL = "the disk of {part} is full: {errors}"
    DOES_NOT_RUN = "{program} does not run from its copy (exit code {exit_code}): {errors}"
    FOLDER_IS_A_LINK = "{root} is a link: remove it"
    FOLDER_NOT_MADE = "{root} cannot be created: {reason}"
    FOLDER_OF_SOMEBODY_ELSE = "{root} belongs to another user"
    FOLDER_WITHOUT_PROGRAMS = "{point} is mounted noexec: no program starts from {root}"
    INTERPRETER_OF_THE_SYSTEM = (
        "{executable} is the system's own Python, which every node has already. Set the site's "
        "`python` to the interpreter of a virtual or conda environment."
    )
    NOT_PACKED_YET = (
        "{path} does not exist: the job was submitted before the environment was packed"
    )
    NO_COPY = "no copy of the Python environment ({problem}): {detail}"
    NO_PROGRAM = "this node has no program {programs}"
    NO_ROOM_FOR_BYTES = "{root} has {free} free, but the environment needs {needed}"
    NO_ROOM_FOR_FILES = "{root} has room for {free:,} files, but the environment has {needed:,}"
    PATH_NOT_ABSOLUTE = (
        "{folder} is not an absolute path on this node, because a variable in it is not set"
    )
    PRESENT = "the Python environment is already there: {folder} ({seconds:.1f} s)"
    REFUSED = (
        "{reason}. The shared environment differs from the one that was packed, so this node "
        "would run different code from the other nodes. Submit the training again: that packs the "
        "environment again."
    )
    SHARED = "{reason}. This node uses the shared environment, which has not changed: {folder}"
    SHARED_FOLDER = "{root} is on {kind} at {point}, which other nodes use too"
    UNPACKED = (
        "the Python environment was unpacked to {folder} in {seconds:.1f} s ({files:,} files, "
        "{gigabytes:.2f} GB read)"
    )
