"""A note about a recent failure on a node, for other ranks of the same job on that node.

Without the note, each rank would try again, and would compare tens of thousands of files on the
shared file system.
"""

from __future__ import annotations

import contextlib
import json
import os
import time
from collections.abc import Iterator
from pathlib import Path

from runbook.packed_environment.copy_lock import PAUSE_SECONDS, lock_file, try_alone

FAILURE_SECONDS = 600.0
"""After one rank has failed, other ranks in the job do not retry for this long."""
VERDICT_SECONDS = 600.0
"""Longest wait for the rank that checks the shared environment for changes."""
_PROBLEM = "problem"
_DETAIL = "detail"
_SHARED_IS_UNCHANGED = "shared_is_unchanged"


class FailureNote:
    """The file `<name>.failed` next to the path to a copy."""

    def __init__(self, file: Path) -> None:
        self.file = file

    def failure(self) -> tuple[str, str] | None:
        """Return the problem and the details, or None if no rank in this job has failed."""
        facts = self._read()
        if _PROBLEM in facts and _DETAIL in facts:
            return str(facts[_PROBLEM]), str(facts[_DETAIL])
        return None

    def write_failure(self, problem: str, detail: str) -> None:
        """Record why there is no copy."""
        self._write({_PROBLEM: problem, _DETAIL: detail})

    def shared_is_unchanged(self) -> bool | None:
        """Return whether another rank found the environment unchanged, or None if none noted that."""
        verdict = self._read().get(_SHARED_IS_UNCHANGED)
        return verdict if isinstance(verdict, bool) else None

    def write_verdict(self, shared_is_unchanged: bool) -> None:
        """Record whether the shared environment has stayed unchanged since it was packed."""
        self._write({**self._read(), _SHARED_IS_UNCHANGED: shared_is_unchanged})

    def remove(self) -> None:
        """Remove the note. At worst, two ranks then check the shared environment."""
        self.file.unlink(missing_ok=True)
        lock_file(self.file).unlink(missing_ok=True)

    @contextlib.contextmanager
    def one_at_a_time(self) -> Iterator[None]:
        """Let one rank at a time check the shared environment, while the others wait."""
        with contextlib.ExitStack() as stack:
            # If the lock cannot be created, for example because the disk is full, each rank checks
            # by itself
            with contextlib.suppress(OSError):
                stream = stack.enter_context(lock_file(self.file).open("a"))
                began = time.monotonic()
                while not try_alone(stream) and time.monotonic() - began < VERDICT_SECONDS:
                    time.sleep(PAUSE_SECONDS)
            yield

    def _read(self) -> dict[str, object]:
        try:
            age = time.time() - self.file.stat().st_mtime
            facts = json.loads(self.file.read_text())
        except (OSError, ValueError):
            return {}

        is_of_this_job = isinstance(facts, dict) and facts.get("job") == _job()
        return facts if is_of_this_job and age < FAILURE_SECONDS else {}

    def _write(self, facts: dict[str, object]) -> None:
        part = self.file.with_name(f"{self.file.name}.{os.getpid()}")
        # If the disk is full, each of the other ranks checks by itself
        try:
            part.write_text(json.dumps({**facts, "job": _job()}))
            part.replace(self.file)
        except OSError:
            with contextlib.suppress(OSError):
                part.unlink(missing_ok=True)


def _job() -> str:
    return os.environ.get("RUNBOOK_JOB", "")
