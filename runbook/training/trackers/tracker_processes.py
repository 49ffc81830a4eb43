"""Tracker processes, which the rank that writes metrics.jsonl starts and ends."""

import os
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import runbook
from runbook.plan_file.schema import PhasePlan
from runbook.training.messages import TrainingMessage
from runbook.training.trackers.services import FOLDER

CLOSE_SECONDS = 10.0
"""Seconds the trainer waits for the last numbers.

A slower tracker sends the last numbers while the job ends.
"""


class TrackerProcesses:
    """The trackers of a training run. They never delay a step or raise an error."""

    def __init__(self, say: Callable[[str], None]) -> None:
        self._say = say
        self._running: dict[str, subprocess.Popen[bytes]] = {}

    def start(self, spec: PhasePlan) -> None:
        """Start the trackers named in `training.trackers`."""
        for name in spec.log.trackers:
            try:
                self._running[name] = _start(name, spec)
            except OSError as error:
                self._say(f"training.trackers: {name} was not started, training continues: {error}")
            else:
                self._say(
                    TrainingMessage.TRACKER_FOLLOWS.fill(tracker=name, log=f"{FOLDER}/{name}.log")
                )

    def check(self) -> None:
        """Report a tracker if the process for it has ended before the training.

        The check takes microseconds.
        """
        for name, process in list(self._running.items()):
            if process.poll() is not None:
                self._report(name, f"ended with exit code {process.returncode}")

    def close(self) -> None:
        """Let each tracker send the last numbers, and wait for them briefly."""
        for process in self._running.values():
            if process.stdin is not None:
                # Nothing is ever written to this pipe.
                process.stdin.close()

        end = time.monotonic() + CLOSE_SECONDS
        for name, process in list(self._running.items()):
            try:
                code = process.wait(max(0.0, end - time.monotonic()))
            except subprocess.TimeoutExpired:
                # The process is not killed, because it ends on its own after follower.END_SECONDS.
                self._say(TrainingMessage.TRACKER_STILL_SENDS.fill(tracker=name))
            else:
                if code:
                    self._report(name, f"ended with exit code {code}")

    def _report(self, name: str, problem: str) -> None:
        del self._running[name]
        self._say(f"training.trackers: {name} {problem}. Training is not affected; see its log.")


def _start(name: str, spec: PhasePlan) -> subprocess.Popen[bytes]:
    """Start a tracker. Raise `OSError` if that fails."""
    folder = spec.path(FOLDER)
    folder.mkdir(parents=True, exist_ok=True)
    package = str(Path(runbook.__file__).parents[1])
    paths = (package, os.environ.get("PYTHONPATH", ""))
    plan = str(spec.path("plan.json").resolve())
    with (folder / f"{name}.log").open("ab") as log:
        return subprocess.Popen(
            [sys.executable, "-m", "runbook.training.trackers", name, plan, spec.phase],
            stdin=subprocess.PIPE,
            stdout=log,
            stderr=log,
            env=os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, paths))},
        )
