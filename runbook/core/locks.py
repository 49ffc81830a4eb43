"""Lock files, which let only one process at a time work on a run and name that process.

A lock is held as long as its file exists. The file is created by a hard link (or by exclusive
creation if the file system has no hard links). Both are atomic on local and network file systems,
and neither needs flock, which many clusters do not support. Only the machine on which the holder
ran can tell that the holder is dead. So only that machine takes over a lock, if the process has
ended or the machine was rebooted. To take over, a process creates a second link with the token of
the dead holder in its name, then reads the lock again. Only one process can create that link.
"""

import contextlib
import json
import os
import secrets
import shlex
import sys
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated

from pydantic import Field

from runbook.core import processes
from runbook.core.errors import HeldError, JobError
from runbook.core.files import read_json_record, write_text
from runbook.core.messages import CoreMessage
from runbook.core.processes import Identity, Standing
from runbook.core.units import show_duration
from runbook.plan_file.diagnostics import Statement

LOCK_NAME = "lock.json"
HOLDER_VARIABLE = "RUNBOOK_HOLDER"
"""Environment variable set by `runbook run`, which holds the lock for the notebooks that it
executes.

A job outlives these notebooks and does not inherit the variable.
"""
# Without hard links, other processes may see a half-written lock, but for no longer than this.
WRITING_SECONDS = 5.0


@dataclass(frozen=True)
class Holder:
    """The process that holds a lock, and when and why it acquired the lock."""

    # Becomes part of a file name.
    token: Annotated[str, Field(pattern=r"^[0-9a-f]{16}$")]
    what: str
    command: str
    user: str
    since: float
    process: Identity

    def describe(self) -> Statement:
        """Return a description for the user who has to wait."""
        return CoreMessage.LOCK_HOLDER.of(
            pid=self.process.pid,
            user=self.user,
            host=self.process.host,
            purpose=self.what,
            since=time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(self.since)),
            age=show_duration(max(0.0, time.time() - self.since)),
            command=self.command,
        )


def hold(run_folder: Path, purpose: str) -> contextlib.AbstractContextManager[str]:
    """Lock a run while its files are changed.

    Yield a sentence about the previous holder if its lock was taken over, or else ''.
    If the run is locked, raise `HeldError` with the holder, the time, the host and the purpose.
    """
    return hold_file(run_folder / LOCK_NAME, purpose)


@contextlib.contextmanager
def hold_file(path: Path, purpose: str, *, wait_seconds: float = 0.0) -> Iterator[str]:
    """Hold a lock file in the same way as `hold`.

    Wait up to `wait_seconds` for a live holder.
    """
    path = path.absolute()
    process = processes.identify(os.getpid())
    assert process is not None, "This process is running, so its identity is always found"
    new_holder = Holder(
        secrets.token_hex(8),
        purpose,
        shlex.join(sys.argv),
        processes.user_name(),
        time.time(),
        process,
    )
    end = time.monotonic() + wait_seconds
    while True:
        try:
            taken_over = _acquire(path, new_holder)
            break
        except HeldError:
            if time.monotonic() >= end:
                raise
            time.sleep(0.05)

    try:
        yield taken_over
    finally:
        holder = _read(path)
        if isinstance(holder, Holder) and holder.token == new_holder.token:
            path.unlink()


def may_be_held(run_folder: Path) -> bool:
    """Return whether a run has a lock whose holder is not known to be dead.

    An unreadable lock counts as held.
    """
    holder = _read(run_folder.absolute() / LOCK_NAME)
    return holder is not None and not (isinstance(holder, Holder) and _dead(holder))


def _acquire(path: Path, new_holder: Holder) -> str:
    """Acquire the lock. If the lock was taken over from a dead holder, report that holder."""
    # Another attempt is needed only if a different process was faster.
    for _ in range(25):
        holder = _read(path)
        if holder is None:
            if _create(path, new_holder):
                return ""
        elif isinstance(holder, HeldError):
            if not processes.wait_until(
                lambda: not isinstance(_read(path), HeldError), _writing_seconds(path)
            ):
                raise holder
        elif not _dead(holder):
            advice = ""
            if processes.standing(holder.process) is Standing.ELSEWHERE:
                host = processes.host_name()
                advice = CoreMessage.HOLDER_ELSEWHERE.fill(host=host, path=path)

            raise HeldError(
                CoreMessage.LOCK_HELD, folder=path.parent, holder=holder.describe(), advice=advice
            )
        elif _take_over(path, holder, new_holder):
            return CoreMessage.LOCK_TAKEN_OVER.fill(holder=holder.describe())

    raise HeldError(CoreMessage.LOCK_TAKEN_AGAIN, path=path)


def _take_over(path: Path, dead: Holder, new_holder: Holder) -> bool:
    """Replace a lock left by a dead holder. Return False if another process did so first."""
    right = path.with_name(f"{path.name}.{dead.token}")
    if not _create(right, new_holder):
        claimant = _read(right)
        # A process may die after it has claimed a dead holder's lock and before it has replaced the
        # lock. The claim is itself a lock, so the next process can take over the claim and
        # continue.
        if not (
            isinstance(claimant, Holder)
            and _dead(claimant)
            and _take_over(right, claimant, new_holder)
        ):
            time.sleep(0.02)
            return False

    try:
        current = _read(path)
        if not isinstance(current, Holder) or current.token != dead.token:
            return False
        _write_part(path, new_holder).replace(path)
        return True
    finally:
        right.unlink(missing_ok=True)


def _create(path: Path, holder: Holder) -> bool:
    """Create the file with its complete content, unless a file with that name exists."""
    part = _write_part(path, holder)
    try:
        os.link(part, path)
        return True
    except FileExistsError:
        # On a network file system, the link may exist although the reply from the server was lost.
        return part.stat().st_nlink == 2
    except OSError:  # This file system has no hard links.
        with contextlib.suppress(FileExistsError), path.open("x", encoding="utf-8") as stream:
            stream.write(part.read_text(encoding="utf-8"))
            return True

        return False
    finally:
        part.unlink(missing_ok=True)


def _write_part(path: Path, holder: Holder) -> Path:
    part = path.with_name(f"{path.name}.{secrets.token_hex(6)}.part")
    write_text(part, json.dumps(asdict(holder), indent=2) + "\n", error=JobError)
    return part


def _writing_seconds(path: Path) -> float:
    """Return for how many more seconds an unreadable lock may still be incomplete."""
    try:
        return WRITING_SECONDS - abs(time.time() - path.stat().st_mtime)
    except FileNotFoundError:
        return 0.1


def _read(path: Path) -> Holder | HeldError | None:
    """Return the holder, None if there is no lock, or the error if the lock cannot be read."""
    remedy = f"If no process is using {path.parent}, remove that file and try again."
    try:
        return read_json_record(
            path,
            Holder,
            "a lock file of runbook",
            remedy,
            HeldError,
        )
    except HeldError as error:
        return error


def _dead(holder: Holder) -> bool:
    return processes.standing(holder.process) in (Standing.DEAD, Standing.REBOOTED)
