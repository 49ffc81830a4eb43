"""Sends the metrics from the files in a run to a tracker.

Each line is sent only once, even after restarts.
"""

import fcntl
import hashlib
import json
import logging
import math
import os
import signal
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, field
from pathlib import Path
from threading import Event, Thread

from runbook.plan_file.schema import PhasePlan
from runbook.training.messages import TrainingMessage
from runbook.training.trackers.services import FOLDER, Service, TrackedPoint

LOG = logging.getLogger(__name__)

LOOK_SECONDS = 1.0
"""Time between two checks of the files."""
LONGEST_WAIT_SECONDS = 60.0
"""Longest time between two attempts after a tracker has failed."""
END_SECONDS = 120
"""Seconds for sending the last numbers after the trainer has closed standard input or ended."""
LAST_TRIES_SECONDS = 90.0
"""At the end, a failed tracker is retried for this many of the `END_SECONDS`.

Before the process ends, it reports the lines it could not send.
"""
LONGEST_LAST_WAIT_SECONDS = 10.0
NO_NUMBERS = frozenset({"iteration", "time"})
READ_BYTES = 2**20
"""Bytes read from a file at a time (about 2,000 steps). A long file is sent in parts."""


@dataclass
class SentSoFar:
    """How much has been sent to a tracker, as stored in `trackers/NAME.json`."""

    run: str = ""
    """The id the tracker uses for the run; empty until it has assigned one."""
    first_line: str = ""
    """Checksum of the first line in metrics.jsonl.

    With `--redo`, training starts a new file.
    """
    read: dict[str, int] = field(default_factory=dict)
    """How many bytes were sent, by file."""


def end_with(descriptor: int) -> Event:
    """Return an event to be set when the trainer closes this pipe.

    If the tracker hangs, the process ends `END_SECONDS` later.
    """
    ended = Event()

    def wait() -> None:
        # Use os.read: at exit, Python would wait for the lock on a buffered stream.
        while os.read(descriptor, 1):
            pass
        ended.set()
        # Ends this process even if a library holds the GIL.
        signal.alarm(END_SECONDS)

    Thread(target=wait, daemon=True).start()
    return ended


class Follower:
    """Sends a training run to a tracker."""

    def __init__(
        self,
        spec: PhasePlan,
        name: str,
        make_service: Callable[[], Service],
        ended: Event,
    ) -> None:
        self._make_service = make_service
        self._files = (spec.path(spec.log.metrics), spec.path(spec.log.validation))
        self._place = spec.path(FOLDER) / f"{name}.json"
        self._ended = ended
        self._open = False
        self.progress = SentSoFar()

    def run(self) -> int:
        """Follow the run to the end, and return the exit code."""
        with self._place.with_suffix(".lock").open("w") as lock:
            # The previous job may still be sending its last numbers.
            fcntl.flock(lock, fcntl.LOCK_EX)
            # The service is created only while the lock is held, because MLflow creates its
            # database here.
            service = self._make_service()
            self.progress = read_progress(self._place, first_line_of(self._files[0]))
            return self._follow(service)

    def _follow(self, service: Service) -> int:
        wait = LOOK_SECONDS
        gives_up_at = math.inf
        while True:
            is_ended = self._ended.is_set()
            if is_ended and gives_up_at == math.inf:
                gives_up_at = time.monotonic() + LAST_TRIES_SECONDS
                wait = LOOK_SECONDS

            try:
                is_more = self._send(service)
                if is_ended and not is_more:
                    service.close()
                    return 0

                wait = LOOK_SECONDS
            except Exception:
                # A library may raise any exception. Lines in a failed call do not count as sent.
                is_more = False
                if is_ended and time.monotonic() + wait > gives_up_at:
                    LOG.exception("not sent")
                    self._say_unsent()
                    return 1

                LOG.exception("not sent; trying again in %.0f s", wait)

            if not is_more:
                self._pause(wait)
                wait = min(
                    2 * wait, LONGEST_LAST_WAIT_SECONDS if is_ended else LONGEST_WAIT_SECONDS
                )

    def _pause(self, seconds: float) -> None:
        """Wait, but at most until training ends."""
        if self._ended.is_set():
            time.sleep(seconds)
        else:
            self._ended.wait(seconds)

    def _say_unsent(self) -> None:
        """Report how much of the files has not yet been sent to the tracker."""
        for path in self._files:
            size = path.stat().st_size if path.exists() else 0
            sent = self.progress.read.get(path.name, 0)
            if sent < size:
                LOG.error(
                    TrainingMessage.TRACKER_NEVER_TOOK.fill(
                        unsent=size - sent, size=size, file=path.name
                    )
                )

    def _send(self, service: Service) -> bool:
        """Send the next lines, and return whether there may be more lines."""
        if not self._open:
            self.progress.run = service.open(self.progress.run)
            self._open = True
            self._keep()

        is_more = False
        for path in self._files:
            start = self.progress.read.get(path.name, 0)
            lines = read_lines(path, start)
            if not lines:
                continue
            service.log([point for line in lines if (point := point_of(line, path.stem))])
            self.progress.read[path.name] = start + sum(map(len, lines))
            self._keep()
            is_more = True

        return is_more

    def _keep(self) -> None:
        self.progress.first_line = first_line_of(self._files[0])
        part = self._place.with_name(self._place.name + ".part")
        part.write_text(json.dumps(asdict(self.progress)), encoding="utf-8")
        part.replace(self._place)


def read_progress(path: Path, first_line: str) -> SentSoFar:
    """Return the progress for a tracker, if it belongs to metrics that start with this line."""
    try:
        progress = SentSoFar(**json.loads(path.read_text(encoding="utf-8")))
    except (OSError, ValueError, TypeError):
        return SentSoFar()

    if progress.first_line != first_line:
        return SentSoFar()
    return progress


def first_line_of(path: Path) -> str:
    """Return the checksum of the first line, or an empty string if that line is incomplete."""
    try:
        with path.open("rb") as stream:
            line = stream.readline()
    except OSError:
        return ""

    if line.endswith(b"\n"):
        return hashlib.sha256(line).hexdigest()
    return ""


def read_lines(path: Path, start: int) -> list[bytes]:
    """Return complete lines starting at a position, up to about `READ_BYTES`."""
    try:
        with path.open("rb") as stream:
            stream.seek(start)
            lines = stream.readlines(READ_BYTES)
    except OSError:
        return []

    return [line for line in lines if line.endswith(b"\n")]


def point_of(line: bytes, file: str) -> TrackedPoint | None:
    """Return the finite numbers in a line, or None if a killed process left the line incomplete."""
    try:
        record = json.loads(line)
        prefix = "" if file == "metrics" else f"{file}_"
        values = dict(_numbers(record, prefix))
        return TrackedPoint(int(record["iteration"]), float(record["time"]), values)
    except (ValueError, KeyError, TypeError, AttributeError):
        return None


def _numbers(record: dict[str, object], prefix: str) -> Iterator[tuple[str, float]]:
    for key, value in record.items():
        if isinstance(value, int | float) and math.isfinite(value) and key not in NO_NUMBERS:
            yield f"{prefix}{key}", float(value)
