"""Runs the jobs one after the other, each with its own deadline, while the next ones import."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
import queue
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from benchmarks.gpu_stages.job import Job
from benchmarks.gpu_stages.results import Results

AHEAD = 4
"""The number of processes that import while one measures. An import takes 10 to 15 s; a row takes
about as long.
"""
EXIT_SECONDS = 10.0
"""Seconds that a process may take to exit after it reports that it is done, before it is killed."""
RESERVE_SECONDS = 4.0
"""Seconds of the overall deadline that are reserved for writing the file and printing the table."""


class WorkerProcess:
    """The process for one job, in a separate session."""

    def __init__(self, job: Job, folder: Path, number: int) -> None:
        self.job = job
        self.import_seconds: float | None = None
        description = folder / f"job-{number}.json"
        description.write_text(json.dumps(dataclasses.asdict(job)), encoding="utf-8")
        self._log_path = folder / f"job-{number}.log"
        self._rows: queue.Queue[str | None] = queue.Queue()
        with self._log_path.open("wb") as log:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "benchmarks.gpu_stages.worker", str(description)],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                text=True,
                start_new_session=True,
                env={**os.environ, **job.environment},
            )
        self._reader = threading.Thread(target=self._read_rows, daemon=True)
        self._reader.start()

    def _read_rows(self) -> None:
        assert self._process.stdout
        for line in self._process.stdout:
            self._rows.put(line)
        self._rows.put(None)

    def measure(self, seconds: float, results: Results) -> tuple[str, str]:
        """Let the process measure and record its rows.

        Return its state and the reason if it failed.
        """
        ends = time.monotonic() + seconds
        assert self._process.stdin
        with contextlib.suppress(BrokenPipeError):
            self._process.stdin.write("go\n")
            self._process.stdin.flush()
        while True:
            try:
                line = self._rows.get(timeout=max(0.0, ends - time.monotonic()))
            except queue.Empty:
                return "timeout", f"not done in {seconds:.0f} s"
            if line is None:
                code = self._process.wait()
                return "failed", f"the process ended with exit code {code}: {self._last_line()}"
            row = json.loads(line)
            if "ready" in row:
                self.import_seconds = row["ready"]
            elif "done" in row:
                return ("done", "") if row["done"] else ("failed", row["failed"])
            else:
                results.add_row(self.job.stage, self.job.name, row)

    def end(self, *, patience: float = 0.0) -> None:
        """End the process and all its children."""
        if patience:
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._process.wait(patience)
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()
        self._close_pipes()

    def _close_pipes(self) -> None:
        """Close both pipes. The reader ends once the other end is closed everywhere."""
        assert self._process.stdin and self._process.stdout
        with contextlib.suppress(BrokenPipeError):
            self._process.stdin.close()
        self._reader.join(EXIT_SECONDS)
        if not self._reader.is_alive():
            self._process.stdout.close()

    def log(self) -> bytes:
        """Return what the process wrote to standard error."""
        return self._log_path.read_bytes()

    def _last_line(self) -> str:
        lines = self.log().decode(errors="replace").strip().splitlines()
        return lines[-1][:300] if lines else ""


class Runner:
    """Runs jobs in order until all are done or the overall deadline has passed."""

    def __init__(self, jobs: Sequence[Job], results: Results, ends: float) -> None:
        self.jobs = jobs
        self.results = results
        self.ends = ends
        self._workers: dict[int, WorkerProcess] = {}

    def run(self) -> None:
        """Run every job, or record why it did not run."""
        with tempfile.TemporaryDirectory(prefix="gpu-benchmark-") as folder:
            try:
                for number in range(len(self.jobs)):
                    self._start_ahead(number, Path(folder))
                    self._run_job(number)
            finally:
                for worker in self._workers.values():
                    worker.end()

    def _start_ahead(self, number: int, folder: Path) -> None:
        last = min(len(self.jobs), number + 1 + AHEAD)
        for upcoming in range(number, last):
            if upcoming not in self._workers and not self._refusal(self.jobs[upcoming]):
                self._workers[upcoming] = WorkerProcess(self.jobs[upcoming], folder, upcoming)

    def _seconds_left(self) -> float:
        return self.ends - RESERVE_SECONDS - time.monotonic()

    def _refusal(self, job: Job) -> str:
        """Return why the job cannot run now, or an empty string if it can."""
        left = self._seconds_left()
        if left < job.least_seconds:
            return f"{max(0.0, left):.0f} s left, and it needs about {job.least_seconds:.0f} s"
        environment = self.results.content["environment"]
        probe = environment.get(job.needs, {})
        if probe.get("works") is False and not self.results.content["rehearsal"]:
            return f"{job.needs} does not work here: {probe.get('reason', '')}"[:300]
        return ""

    def _run_job(self, number: int) -> None:
        job = self.jobs[number]
        worker = self._workers.pop(number, None)
        refusal = self._refusal(job)
        if refusal or worker is None:
            if worker is not None:
                worker.end()
            self._record(job, "not run", refusal or "there was no time to start it", 0.0, None)
            return
        begun = time.monotonic()
        seconds = min(job.seconds, self._seconds_left())
        state, reason = worker.measure(seconds, self.results)
        worker.end(patience=EXIT_SECONDS if state == "done" else 0.0)
        self.results.add_log(f"{job.stage} {job.name}: {state} {reason}", worker.log())
        self._record(job, state, reason, time.monotonic() - begun, worker.import_seconds)

    def _record(
        self, job: Job, state: str, reason: str, seconds: float, imported: float | None
    ) -> None:
        fields: dict[str, Any] = {"stage": job.stage, "job": job.name, "state": state}
        fields |= {"reason": reason, "seconds": round(seconds, 1), "import_seconds": imported}
        self.results.add_job(**fields)
        line = f"{job.stage:12} {job.name:28} {state:8} {seconds:6.1f} s  {reason[:150]}"
        print(line.rstrip(), flush=True)
