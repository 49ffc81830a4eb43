"""One small training that a drill breaks: launched, watched and resumed by the same calls as in notebook 04."""

from __future__ import annotations

import contextlib
import json
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psutil

from runbook import params
from runbook.drills.bench import FAULTS, Bench, environment, write_tokens
from runbook.errors import JobError
from runbook.phases import campaign as campaigns
from runbook.phases import jobs
from runbook.phases.campaign import Campaign
from runbook.phases.tail import read_lines
from runbook.schedulers import get_scheduler
from runbook.schedulers.base import JobFolder, JobStatus, State, latest_job_folder
from runbook.schedulers.files import read_started
from runbook.schedulers.processes import wait_until

PHASE = "04-training"
WAIT_SECONDS = 120.0


class Case:
    """A run folder of its own inside the bench."""

    def __init__(self, bench: Bench, name: str, *words: str) -> None:
        self.bench, self.name, self.words = bench, name, words
        self.campaign = self.open()
        self.folder = self.campaign.folder
        prefix = self.folder / self.campaign.spec["data"]["train"][0]["prefix"]
        if not prefix.with_name(prefix.name + ".idx").exists():
            write_tokens(prefix)

    def open(self) -> Campaign:
        """The run as a kernel that was started anew finds it."""
        words = [*self.words, f"as={self.name}"]
        settings = params.load("drill", set_words=words, project=self.bench.root)
        return campaigns.open_campaign(settings, PHASE)

    # --- what is done -------------------------------------------------------------------------------------------------

    def launch(self, faults: str = "") -> JobFolder:
        """Submit the next job, with these faults in it."""
        with environment({FAULTS: faults or None}):
            jobs.launch(self.campaign)
        folder = latest_job_folder(self.folder, PHASE)
        assert folder is not None
        return folder

    def one_job(self, faults: str = "") -> JobStatus:
        """One job to its end; nothing is started after it."""
        self.launch(faults)
        return jobs.follow(self.campaign)

    def train(self, faults: str = "") -> str:
        """Jobs until the training is done or a person is asked; what that person is told."""
        with environment({FAULTS: faults or None}):
            try:
                jobs.launch(self.campaign)
                jobs.watch(self.campaign)
            except JobError as error:
                return str(error)
        return ""

    @contextlib.contextmanager
    def meanwhile(self, when: Callable[[], bool], act: Callable[[], None]) -> Iterator[list[float]]:
        """While the body goes on: as soon as something is true, act; yields where the time of acting is noted."""
        acted: list[float] = []

        def wait_and_act() -> None:
            if wait_until(when, WAIT_SECONDS, interval=0.01):
                acted.append(time.time())
                act()

        thread = threading.Thread(target=wait_and_act, daemon=True)
        thread.start()
        try:
            yield acted
        finally:
            thread.join(1)

    def change_plan(self, change: Callable[[dict[str, Any]], None]) -> None:
        """Give the trainer other orders than the plan's, as somebody does who edits plan.json."""
        path = self.folder / "plan.json"
        content = json.loads(path.read_text())
        change(content["phases"][PHASE])
        path.write_text(json.dumps(content))

    # --- what is seen -------------------------------------------------------------------------------------------------

    def rows(self) -> list[dict[str, Any]]:
        """Every step of every job."""
        return read_lines(self.folder / self.campaign.spec["log"]["metrics"])

    def events(self, *names: str) -> list[dict[str, Any]]:
        """The run's events, those of these names."""
        found = read_lines(self.folder / self.campaign.spec["log"]["events"])
        return [one for one in found if not names or one.get("event") in names]

    def losses(self) -> dict[int, float]:
        """Loss by iteration; of one done twice the last counts."""
        return {int(row["iteration"]): row["loss"] for row in self.rows()}

    def samples(self) -> dict[int, int]:
        """Samples consumed after each iteration."""
        return {int(row["iteration"]): int(row["consumed_samples"]) for row in self.rows()}

    def is_at(self, step: int) -> Callable[[], bool]:
        """Whether the newest step is at least this one."""
        return lambda: bool(rows := self.rows()) and rows[-1]["iteration"] >= step

    def job(self) -> JobFolder:
        """The newest job."""
        folder = latest_job_folder(self.folder, PHASE)
        assert folder is not None
        return folder

    def status(self) -> JobStatus:
        """How the newest job stands."""
        return get_scheduler(self.campaign.settings.site).state(self.job())

    def job_names(self) -> list[str]:
        """Every job that was submitted."""
        return sorted(path.parent.name for path in self.folder.glob("jobs/*/job.json"))

    def said(self, job: JobFolder | None = None) -> str:
        """All that a job wrote."""
        folder = job or self.job()
        parts = [path.read_text(errors="replace") for path in (folder.out, folder.err) if path.exists()]
        return "\n".join(parts)

    def rank(self, rank: int) -> psutil.Process:
        """The process of a rank of the newest job."""
        path = self.job().path / "ranks" / f"{rank}.json"
        assert wait_until(path.exists, WAIT_SECONDS), f"{path} was not written"
        return psutil.Process(int(json.loads(path.read_text())["pid"]))

    def script(self) -> psutil.Process:
        """The process of the newest job's script."""
        started = read_started(self.job())
        assert started is not None
        return psutil.Process(started.identity.pid)

    def checkpoints(self) -> list[int]:
        """Iterations of the checkpoints that are there."""
        root = self.folder / self.campaign.spec["checkpoint"]["folder"]
        return sorted(int(path.name[5:]) for path in root.glob("iter_*") if path.name[5:].isdigit())

    def tracker(self) -> Path:
        """The file that names the newest checkpoint."""
        folder = str(self.campaign.spec["checkpoint"]["folder"])
        return self.folder / folder / "latest_checkpointed_iteration.txt"

    def parts(self) -> list[str]:
        """What killed saves left behind."""
        return sorted(path.name for path in self.tracker().parent.glob("*.part"))

    def steps_lost(self) -> int:
        """Most steps that were done again after one restart."""
        lost, newest = 0, 0
        for row in self.rows():
            lost = max(lost, newest - int(row["iteration"]) + 1)
            newest = int(row["iteration"])
        return lost

    def done(self) -> bool:
        """Whether the training came to its end."""
        return jobs.is_done(self.campaign)


def ended_in(status: JobStatus, *states: State) -> bool:
    """Whether a job ended in one of these states."""
    return status.state in states
