"""One worker at a time on a run: a lock file that says who holds it and outlives no dead process.

The lock is the file's existence under its name, made by a hard link (or, where the file system has none, by exclusive
creation): atomic on local and on network file systems, without flock, which many clusters do not mount. Only the death
of a holder can be known on the holder's own machine, so only there is a lock taken over: by its process being gone, or
by the machine having been started anew. The one who may take over is decided by a second link that is named after the
dead holder's lock; it is looked at again under that right, so two takers never both win.
"""

from __future__ import annotations

import contextlib
import getpass
import json
import os
import re
import secrets
import shlex
import sys
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path

from runbook.errors import HeldError
from runbook.render.folder import write_whole
from runbook.schedulers import processes
from runbook.schedulers.processes import Identity, Standing
from runbook.units import show_duration

LOCK_NAME = "lock.json"
HOLDER_VARIABLE = "RUNBOOK_HOLDER"
"""Says that a parent process holds the run's lock; a job outlives that parent and must not inherit it."""
WRITING_SECONDS = 5.0
"""Where there are no hard links a lock can be seen half-written, for so long at most."""


@dataclass(frozen=True)
class Holder:
    """Who holds a lock, since when, for what."""

    token: str
    what: str
    command: str
    user: str
    since: float
    process: Identity

    def describe(self) -> str:
        """In words, for the one who has to wait."""
        since = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(self.since))
        age = max(0.0, time.time() - self.since)
        return (
            f"process {self.process.pid} of {self.user} on {self.process.host}, {self.what}, since {since} "
            f"({show_duration(age)}): {self.command}"
        )


@contextlib.contextmanager
def hold(run_folder: Path, what: str) -> Iterator[str]:
    """Hold a run while something changes its files.

    Yields a sentence about the dead holder whose lock was taken over, or an empty text. Raises `HeldError` that
    says who holds the run, since when, on which host and for what.
    """
    with hold_file(run_folder / LOCK_NAME, what) as taken_over:
        yield taken_over


@contextlib.contextmanager
def hold_file(path: Path, what: str, *, wait_seconds: float = 0.0) -> Iterator[str]:
    """As `hold`, with any lock file; waits up to `wait_seconds` for a holder that lives."""
    path = path.absolute()
    own = _ourselves(what)
    end = time.monotonic() + wait_seconds
    while True:
        try:
            taken_over = _acquire(path, own)
            break
        except HeldError:
            if time.monotonic() >= end:
                raise
            time.sleep(0.05)
    try:
        yield taken_over
    finally:
        holder = _read(path)
        if isinstance(holder, Holder) and holder.token == own.token:
            path.unlink()


def holder_of(run_folder: Path) -> Holder | None:
    """Who holds a run now; None if nobody that lives does, as far as can be known from here."""
    holder = _read(run_folder.absolute() / LOCK_NAME)
    return holder if isinstance(holder, Holder) and not _dead(holder) else None


def may_be_held(run_folder: Path) -> bool:
    """Whether a run has a lock whose holder is not known to be dead; one that cannot be read counts."""
    holder = _read(run_folder.absolute() / LOCK_NAME)
    return holder is not None and not (isinstance(holder, Holder) and _dead(holder))


def _acquire(path: Path, own: Holder) -> str:
    """Make the lock ours, and say whose dead lock it was if it was one."""
    for _ in range(25):  # each further turn is because somebody else was faster
        holder = _read(path)
        if holder is None:
            if _create(path, own):
                return ""
            continue
        if not isinstance(holder, Holder):
            if not processes.wait_until(lambda: not isinstance(_read(path), str), _writing_seconds(path)):
                raise HeldError(_unreadable(path, holder))
            continue
        if not _dead(holder):
            raise HeldError(_held(path, holder))
        if _take_over(path, holder, own):
            return f"The lock of a dead process was taken over: {holder.describe()}."
    raise HeldError(f"{path} is being taken over by others again and again. Try again when they have ended.")


def _take_over(path: Path, dead: Holder, own: Holder) -> bool:
    """Replace a dead holder's lock by ours; False if somebody else did that first."""
    right = path.with_name(f"{path.name}.{dead.token}")
    if not _create(right, own):
        claimant = _read(right)
        if isinstance(claimant, Holder) and _dead(claimant):
            # It died between claiming and replacing. Whoever wins the right to its right may go on in its place.
            return _take_over(right, claimant, own) and _replace(path, dead, own, right)
        time.sleep(0.02)
        return False
    return _replace(path, dead, own, right)


def _replace(path: Path, dead: Holder, own: Holder, right: Path) -> bool:
    """With the only right to do so in hand: put our lock in the dead one's place, if it is still there."""
    try:
        current = _read(path)
        if not isinstance(current, Holder) or current.token != dead.token:
            return False
        part = _write_part(path, own)
        part.replace(path)
        return True
    finally:
        right.unlink(missing_ok=True)


def _create(path: Path, own: Holder) -> bool:
    """Make the file with its whole content, only if there is none of that name."""
    part = _write_part(path, own)
    try:
        os.link(part, path)
        return True
    except FileExistsError:
        # A network file system may have made the link and lost its answer.
        return part.stat().st_nlink == 2
    except OSError:  # no hard links here
        return _create_exclusively(path, part.read_text(encoding="utf-8"))
    finally:
        part.unlink(missing_ok=True)


def _create_exclusively(path: Path, text: str) -> bool:
    try:
        with path.open("x", encoding="utf-8") as stream:
            stream.write(text)
    except FileExistsError:
        return False
    return True


def _write_part(path: Path, own: Holder) -> Path:
    part = path.with_name(f"{path.name}.{secrets.token_hex(6)}.part")
    write_whole(part, json.dumps(asdict(own), indent=2) + "\n")
    return part


def _writing_seconds(path: Path) -> float:
    """How long a lock that cannot be read may still be in the making."""
    try:
        return WRITING_SECONDS - abs(time.time() - path.stat().st_mtime)
    except FileNotFoundError:
        return 0.1


def _read(path: Path) -> Holder | str | None:
    """The holder, None where there is no lock, or a text about a lock that cannot be read."""
    try:
        text = path.read_text(encoding="utf-8", errors="replace")
    except FileNotFoundError:
        return None
    try:
        content = json.loads(text)
        if not re.fullmatch(r"[0-9a-f]{16}", content["token"]):  # it becomes part of a file name
            raise ValueError(f"token {content['token']!r}")
        return Holder(
            token=str(content["token"]),
            what=str(content["what"]),
            command=str(content["command"]),
            user=str(content["user"]),
            since=float(content["since"]),
            process=Identity.from_dict(content["process"]),
        )
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        return f"{type(error).__name__}: {error}"


def _dead(holder: Holder) -> bool:
    return processes.standing(holder.process) in (Standing.DEAD, Standing.REBOOTED)


def _ourselves(what: str) -> Holder:
    process = processes.identify(os.getpid())
    assert process is not None, "we run, so we are found"
    return Holder(secrets.token_hex(8), what, shlex.join(sys.argv), _user(), time.time(), process)


def _user() -> str:
    try:
        return getpass.getuser()
    except (KeyError, OSError):  # a container's user may have no name
        return str(os.getuid())


def _held(path: Path, holder: Holder) -> str:
    text = f"{path.parent} is held by {holder.describe()}. Wait until it has ended, or end it."
    if processes.standing(holder.process) is Standing.ELSEWHERE:
        text += f" Whether it still runs cannot be seen from {processes.host_name()}: if it does not, remove {path}."
    return text


def _unreadable(path: Path, problem: str) -> str:
    return (
        f"{path} is not a lock of ours ({problem}). If nobody works on {path.parent}, remove that file and try again."
    )
