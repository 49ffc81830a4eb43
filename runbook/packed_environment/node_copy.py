"""Creates, checks and removes the copy of a packed environment on a node, using a lock.

Every process that runs from a copy holds a shared lock on the file next to the copy. python.sh
takes the lock, and Python inherits it. A process that creates or removes a copy holds the lock
exclusively, so a copy that is in use is never removed, even if a process dies.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import shutil
import socket
import stat
import subprocess
import time
from dataclasses import asdict, dataclass
from pathlib import Path

from runbook.node_checks.mounts import mount_of
from runbook.packed_environment import archive, contents
from runbook.packed_environment.archive import ProgramFailed
from runbook.packed_environment.copy_lock import LockTimeout, try_lock, wait_for_copy
from runbook.packed_environment.failure_note import FailureNote
from runbook.packed_environment.manifest import (
    BASE,
    ENVIRONMENT,
    EnvironmentManifest,
    ManifestError,
    read_manifest,
)
from runbook.packed_environment.messages import CopyMessage
from runbook.packed_environment.relocation import LIBRARY_FOLDER, link_library, write_moved_config
from runbook.plan_file.diagnostics import Message
from runbook.plan_file.errors import CodedError
from runbook.plan_file.text_enum import StrEnum

READY = "ready"
"""File in a copy that is written last. It contains the archive checksum."""
ROOT_NAME = "runbook-environment"
UNUSED_SECONDS = 86_400.0
"""Copies of other environments are removed after being unused for this long."""
MEMORY_FOLDER = "/dev/shm"
"""Folder in memory, used for notes if the folder for copies is unusable on a node."""
MARGIN = 1.02
"""Factor on the required space, for file system metadata."""
DISK_FULL_SIGNS = ("No space left", "Wrote only", "quota exceeded")
"""Error texts that GNU tar 1.34 prints for a full disk, in the C locale."""
PROBE = (
    "import os, sys; print(os.path.realpath(sys.prefix)); print(os.path.realpath(sys.base_prefix))"
)
PROBE_SECONDS = 120.0


class CopyState(StrEnum):
    """Python used on a node."""

    UNPACKED = "unpacked"
    PRESENT = "present"
    SHARED = "shared"
    """There is no copy, but the shared environment has not changed since it was packed."""
    REFUSED = "refused"
    """There is no copy, and the shared environment has changed, so it differs from the copies.
    """


class CopyProblem(StrEnum):
    """The reason why a node has no copy."""

    NO_ARCHIVE = "no archive"
    DAMAGED = "damaged archive"
    NO_FOLDER = "no folder"
    SHARED_FOLDER = "shared folder"
    NO_PROGRAMS = "folder without programs"
    NO_ROOM = "no room"
    DISK_FULL = "disk full"
    MISSING_PROGRAM = "missing program"
    NOT_UNPACKED = "not unpacked"
    DOES_NOT_RUN = "does not run"
    LOCKED = "locked by others"


class CopyError(CodedError):
    """No copy can be created on this node."""

    def __init__(self, problem: CopyProblem, message: Message | str, /, **values: object) -> None:
        super().__init__(message, **values)
        self.problem = problem


@dataclass(frozen=True)
class CopyResult:
    """The result on a node, which is written as a JSON line."""

    node: str
    state: CopyState
    folder: str
    """Folder from which Python runs."""
    seconds: float
    """Seconds until this Python was ready, including the wait for another process."""
    files: int = 0
    read_bytes: int = 0
    problem: str = ""
    detail: str = ""

    def as_line(self) -> str:
        """Return the line, without a newline at the end."""
        return json.dumps(asdict(self))


def ensure_copy(manifest_path: Path, folder: str) -> CopyResult:
    """Create the copy if it is missing, and report which Python this node uses."""
    began = time.monotonic()
    node = os.environ.get("SLURMD_NODENAME") or socket.gethostname()

    def result(state: CopyState, place: object, **facts: object) -> CopyResult:
        seconds = round(time.monotonic() - began, 2)
        return CopyResult(node, state, str(place), seconds, **facts)  # type: ignore[arg-type]

    manifest = None
    try:
        manifest = _require_manifest(manifest_path)
        copy, is_new = _ensure(manifest, folder)
    except (CopyError, OSError) as error:
        problem = getattr(error, "problem", CopyProblem.NOT_UNPACKED)
        facts: dict[str, object] = {"problem": str(problem), "detail": str(error)}
        if manifest is not None and _shared_is_unchanged_on_node(manifest, folder):
            return result(CopyState.SHARED, manifest.interpreter, **facts)
        return result(CopyState.REFUSED, "", **facts)

    if is_new:
        facts = {"files": manifest.files, "read_bytes": manifest.archive_bytes}
        return result(CopyState.UNPACKED, copy, **facts)

    return result(CopyState.PRESENT, copy, files=manifest.files)


def _require_manifest(path: Path) -> EnvironmentManifest:
    try:
        manifest = read_manifest(path)
    except (ManifestError, OSError) as error:
        raise CopyError(CopyProblem.NO_ARCHIVE, str(error)) from error

    if manifest is None:
        raise CopyError(
            CopyProblem.NO_ARCHIVE,
            CopyMessage.NOT_PACKED_YET,
            path=path,
        )

    return manifest


def shared_is_unchanged(manifest: EnvironmentManifest) -> bool:
    """Return whether the shared environment still has the files that were packed.

    This reads the status of each file, so it is done only if there is no copy.
    """
    for part in manifest.parts:
        source = contents.source_of_part(part)
        try:
            if contents.fingerprint(contents.list_entries([source])) != part.fingerprint:
                return False
        except OSError:
            return False

    return True


def _shared_is_unchanged_on_node(manifest: EnvironmentManifest, folder: str) -> bool:
    """Return whether the shared environment is unchanged.

    Another rank on this node may have noted this already. If not, compare the files and note the
    result.
    """
    note = _failure_note(manifest, folder)
    if note is None:
        return shared_is_unchanged(manifest)

    with note.one_at_a_time():
        is_unchanged = note.shared_is_unchanged()
        if is_unchanged is None:
            is_unchanged = shared_is_unchanged(manifest)
            note.write_verdict(is_unchanged)

    return is_unchanged


def copies_folder(folder: str) -> Path:
    """Return the folder where this user keeps copies. The path in `folder` may contain variables."""
    expanded = os.path.expandvars(folder)
    if not expanded.startswith("/"):
        raise CopyError(
            CopyProblem.NO_FOLDER,
            CopyMessage.PATH_NOT_ABSOLUTE,
            folder=folder,
        )

    return Path(expanded) / f"{ROOT_NAME}-{os.getuid()}"


def _ensure(manifest: EnvironmentManifest, folder: str) -> tuple[Path, bool]:
    """Return the copy, and whether it is new."""
    root = copies_folder(folder)
    _make_root(root)
    copy = root / manifest.name
    with contextlib.ExitStack() as stack:
        try:
            is_ready = wait_for_copy(copy, lambda: _is_ready(copy, manifest), stack)
        except LockTimeout as error:
            raise CopyError(CopyProblem.LOCKED, str(error)) from error

        if is_ready:
            os.utime(copy / READY)
            return copy, False

        note = _note_of(copy)
        failure = note.failure()
        if failure is not None:
            problem, detail = failure
            raise CopyError(CopyProblem(problem), detail)

        note.remove()
        try:
            _remove_unused(root, copy)
            _require_programs(manifest)
            _require_room(root, manifest)
            _unpack(manifest, copy)
        except CopyError as error:
            note.write_failure(error.problem, str(error))
            raise

    return copy, True


def _is_ready(copy: Path, manifest: EnvironmentManifest) -> bool:
    """Return whether a copy is complete and comes from the archive in the manifest."""
    try:
        return (copy / READY).read_text().strip() == manifest.sha256
    except FileNotFoundError:
        return False


def _make_root(root: Path) -> None:
    _require_own_folder(root)
    mount = mount_of(root.resolve())
    if mount.is_shared:
        raise CopyError(
            CopyProblem.SHARED_FOLDER,
            CopyMessage.SHARED_FOLDER,
            root=root,
            kind=mount.kind,
            point=mount.point,
        )

    if mount.is_without_programs:
        raise CopyError(
            CopyProblem.NO_PROGRAMS,
            CopyMessage.FOLDER_WITHOUT_PROGRAMS,
            point=mount.point,
            root=root,
        )


def _require_own_folder(root: Path) -> None:
    """Create a folder only this user can access. Raise `CopyError` if that fails."""
    user = os.getuid()
    try:
        root.mkdir(
            mode=0o700,
            parents=True,
            exist_ok=True,
        )
        status = root.lstat()
    except OSError as error:
        raise CopyError(
            CopyProblem.NO_FOLDER,
            CopyMessage.FOLDER_NOT_MADE,
            root=root,
            reason=error.strerror,
        ) from error

    # In /tmp, anybody can create a link with this name that points to another folder
    if stat.S_ISLNK(status.st_mode):
        raise CopyError(CopyProblem.NO_FOLDER, CopyMessage.FOLDER_IS_A_LINK, root=root)
    if status.st_uid != user or not os.access(root, os.W_OK):
        raise CopyError(CopyProblem.NO_FOLDER, CopyMessage.FOLDER_OF_SOMEBODY_ELSE, root=root)


def _failure_note(manifest: EnvironmentManifest, folder: str) -> FailureNote | None:
    """Return the failure note on this node, which is next to the copy, or else in memory.

    Return None if this user can write to neither folder.
    """
    for place in (folder, MEMORY_FOLDER):
        with contextlib.suppress(CopyError):
            root = copies_folder(place)
            _require_own_folder(root)
            if not mount_of(root.resolve()).is_shared:
                return _note_of(root / manifest.name)

    return None


def forget_failures(manifest: EnvironmentManifest) -> None:
    """Remove the note in memory on this node. `remove_copy` removes the note next to the copy."""
    root = copies_folder(MEMORY_FOLDER)
    with contextlib.suppress(OSError):
        if not root.is_symlink():
            _note_of(root / manifest.name).remove()
            root.rmdir()  # Succeeds only if the folder is empty


def _note_of(copy: Path) -> FailureNote:
    return FailureNote(copy.with_name(f"{copy.name}.failed"))


def _require_programs(manifest: EnvironmentManifest) -> None:
    needed = ["tar", "flock"]
    if manifest.compression == archive.ZSTD:
        needed.append("zstd")
    missing = [program for program in needed if shutil.which(program) is None]
    if missing:
        raise CopyError(
            CopyProblem.MISSING_PROGRAM,
            CopyMessage.NO_PROGRAM,
            programs=" and no ".join(missing),
        )


def _require_room(root: Path, manifest: EnvironmentManifest) -> None:
    status = os.statvfs(root)
    free = status.f_bavail * status.f_frsize
    needed = int(manifest.disk_bytes * MARGIN)
    if free < needed:
        raise CopyError(
            CopyProblem.NO_ROOM,
            CopyMessage.NO_ROOM_FOR_BYTES,
            root=root,
            free=_gigabytes(free),
            needed=_gigabytes(needed),
        )

    if status.f_files and status.f_favail < manifest.files:
        raise CopyError(
            CopyProblem.NO_ROOM,
            CopyMessage.NO_ROOM_FOR_FILES,
            root=root,
            free=status.f_favail,
            needed=manifest.files,
        )


def _gigabytes(count: int) -> str:
    return f"{count / 1e9:.2f} GB"


def _unpack(manifest: EnvironmentManifest, copy: Path) -> None:
    """Unpack the archive next to the copy path, verify and rename it, and try to run Python."""
    path = Path(manifest.archive)
    part = copy.with_name(f"{copy.name}.part")
    _remove_tree(part)
    _remove_tree(copy)
    try:
        part.mkdir()
        _extract_checked(manifest, path, part)
        write_moved_config(part, copy)
        link_library(part)
        part.rename(copy)
        _probe(manifest, copy)
        (copy / READY).write_text(manifest.sha256 + "\n")
    except OSError as error:
        _remove_tree(part)
        _remove_tree(copy)
        raise CopyError(CopyProblem.NOT_UNPACKED, f"{path}: {error}") from error
    except CopyError:
        _remove_tree(part)
        _remove_tree(copy)
        raise


def _extract_checked(manifest: EnvironmentManifest, path: Path, part: Path) -> None:
    stderr_text = ""
    try:
        sha256 = archive.extract(path, part, manifest.compression)
    except FileNotFoundError as error:
        raise CopyError(
            CopyProblem.NO_ARCHIVE, CopyMessage.ARCHIVE_GONE, path=error.filename
        ) from error
    except ProgramFailed as failed:
        stderr_text = str(failed)
        sha256 = failed.sha256

    if sha256 != manifest.sha256:
        raise CopyError(
            CopyProblem.DAMAGED,
            CopyMessage.DAMAGED_ARCHIVE,
            path=path,
            actual=sha256[:12],
            packed=manifest.sha256[:12],
        )

    if any(sign in stderr_text for sign in DISK_FULL_SIGNS):
        raise CopyError(
            CopyProblem.DISK_FULL, CopyMessage.DISK_IS_FULL, part=part, errors=stderr_text
        )
    if stderr_text:
        raise CopyError(CopyProblem.NOT_UNPACKED, f"{path}: {stderr_text}")


def _probe(manifest: EnvironmentManifest, copy: Path) -> None:
    """Check that the interpreter in the copy starts and uses the environment in the copy."""
    environment = {}
    for name, value in os.environ.items():
        if name not in ("PYTHONHOME", "PYTHONPATH", "__PYVENV_LAUNCHER__"):
            environment[name] = value

    if (copy / LIBRARY_FOLDER).is_dir():
        folders = [str(copy / LIBRARY_FOLDER), environment.get("LD_LIBRARY_PATH", "")]
        environment["LD_LIBRARY_PATH"] = ":".join(filter(None, folders))

    command = [str(copy / manifest.python), "-c", PROBE]
    try:
        ended = subprocess.run(
            command,
            capture_output=True,
            text=True,
            check=False,
            timeout=PROBE_SECONDS,
            env=environment,
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise CopyError(CopyProblem.DOES_NOT_RUN, f"{command[0]}: {error}") from error

    expected = [os.path.realpath(copy / ENVIRONMENT)]
    if (copy / BASE).is_dir():
        expected.append(os.path.realpath(copy / BASE))
    prefixes = ended.stdout.splitlines()
    if ended.returncode or prefixes[: len(expected)] != expected:
        stderr_text = (ended.stderr.strip().splitlines() or prefixes or ["it printed nothing"])[-1]
        raise CopyError(
            CopyProblem.DOES_NOT_RUN,
            CopyMessage.DOES_NOT_RUN,
            program=command[0],
            exit_code=ended.returncode,
            errors=stderr_text,
        )


def _remove_tree(folder: Path) -> None:
    shutil.rmtree(folder, ignore_errors=True)


_COPY_NAME = re.compile(r"[0-9a-f]{16}")


def _remove_unused(root: Path, wanted: Path) -> None:
    """Remove copies of other environments that are incomplete or have been unused for a day."""
    for path in root.iterdir():
        is_other = _COPY_NAME.fullmatch(path.name) is not None and path != wanted
        if is_other and path.is_dir() and _age(path / READY) > UNUSED_SECONDS:
            remove_copy(path)


def _age(path: Path) -> float:
    """Return the seconds since a copy was created or last used. An incomplete copy counts as old."""
    try:
        return time.time() - path.stat().st_mtime
    except FileNotFoundError:
        return float("inf")


def remove_copy(copy: Path) -> bool:
    """Remove a copy unless it is in use. Return whether it has been removed."""
    # A link is never one of our folders (see _require_own_folder)
    if copy.parent.is_symlink() or not copy.parent.is_dir():
        return True
    with contextlib.ExitStack() as stack:
        if not try_lock(copy, stack):
            return False
        (copy / READY).unlink(missing_ok=True)
        _remove_tree(copy)
        _remove_tree(copy.with_name(f"{copy.name}.part"))
        _note_of(copy).remove()

        # Keep the lock file. If it were removed, a waiting process would get the lock on a deleted
        # file.
    return True
