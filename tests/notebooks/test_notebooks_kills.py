"""A run that is killed at any moment, cancelled, or given a foreign checkpoint ends in the same way
when it is run again."""

from __future__ import annotations

import json
import os
import random
import shutil
import subprocess
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from suite.messages import containing, says, says_only
from toy_project import PHASES, Ended, Toy, json_of, kernels_below, kill, losses, tree, wait_until

from runbook.core.files import read_lines
from runbook.core.messages import CoreMessage
from runbook.core.processes import process_tree
from runbook.core.shell import how_it_ended
from runbook.phases.messages import PhaseMessage
from runbook.plan_file.diagnostics import Statement
from runbook.records.manifest import verify_run
from runbook.records.messages import RecordMessage
from runbook.runs.messages import RunMessage
from runbook.runs.step import StepState
from runbook.training.messages import TrainingMessage

pytestmark = [pytest.mark.notebooks, pytest.mark.rotate(3, turn=1)]


class Campaign:
    """One run that is disturbed repeatedly."""

    def __init__(self, toy: Toy, runs: Path) -> None:
        self.toy = toy
        self.runs = runs
        self.folder = runs / "local"
        self.seed = int.from_bytes(os.urandom(4), "big")
        self.random = random.Random(self.seed)
        self.said: list[str] = []

    def start(self) -> subprocess.Popen[str]:
        return self.toy.start("runbook", "run", "local", "--runs", self.runs)

    def killed_at_a_random_moment(self, longest: float) -> None:
        """Kill only the command: its kernel must notice this on its own, and its job must continue."""
        process = self.start()
        seconds = self.random.uniform(0.3, longest)
        time.sleep(seconds)
        assert process.poll() is None, process.communicate()
        kill(process)
        self.said.append(f"killed after {seconds:.2f} s (seed {self.seed})")

    def opened_anew(self, phase: str, before: str) -> bool:
        """Return whether a new record was opened for a notebook; `before` is when the last record
        was opened.
        """
        path = self.folder / "records" / f"{phase}.json"
        return path.exists() and json_of(path)["started"] != before

    def started(self, phase: str) -> str:
        path = self.folder / "records" / f"{phase}.json"
        return json_of(path)["started"] if path.exists() else ""

    def without_its_kernel(self, phase: str) -> Ended:
        """Kill the kernel of one phase. The command must report it."""
        before = self.started(phase)
        process = self.start()
        wait_until(lambda: self.opened_anew(phase, before), 400, f"{phase} is opened")
        for kernel in kernels_below(process):
            kernel.kill()
        text, _ = process.communicate(timeout=600)
        return Ended(process.returncode, text, 0)

    def job_ids(self) -> dict[str, str]:
        return {
            path.parent.name: json_of(path)["job_id"]
            for path in self.folder.glob("jobs/*/job.json")
        }

    def rows(self) -> list[dict[str, Any]]:
        return read_lines(self.folder / "metrics.jsonl")

    def all_at_once(self) -> str:
        """Kill the command, its kernel and its job together, as when a machine goes down.

        Return the lock that they leave behind.
        """
        process = self.start()
        wait_until(lambda: len(self.rows()) >= 2, 400, "two steps are done")
        kernels = kernels_below(process)
        lock = (self.folder / "lock.json").read_text()
        kill(process)
        for victim in [*kernels, *process_tree(self.job_ids()["04-training"])]:
            victim.kill()
        return lock

    def cancelled(self) -> tuple[Ended, Ended]:
        """Resume the run until its planned stop, let it resume again, and then cancel it."""
        process = self.start()
        wait_until(
            (self.folder / "jobs/04-training-3/started").exists, 400, "the rehearsed stop is over"
        )
        cancel = self.toy.call("runbook", "cancel", "local", "--runs", self.runs)
        text, _ = process.communicate(timeout=600)
        return cancel, Ended(process.returncode, text, 0)

    def with_a_foreign_checkpoint(self) -> tuple[Ended, bool]:
        """Put the smoke test checkpoint where the training checkpoint belongs.

        Return whether it was left unchanged.
        """
        own = self.folder / "checkpoints"
        foreign = self.folder / "smoke" / "checkpoints"
        own.rename(self.runs / "own")
        shutil.copytree(foreign, own)
        ended = self.toy.run(self.runs)
        untouched = tree(own) == tree(foreign)
        shutil.rmtree(own)
        (self.runs / "own").rename(own)
        return ended, untouched


@pytest.fixture(scope="module")
def killed(toy: Toy, campaign, tmp_path_factory) -> SimpleNamespace:
    """Apply all disturbances to one run, one after the other, and then let it finish."""
    run = Campaign(toy, tmp_path_factory.mktemp("killed"))
    for _ in range(2):
        run.killed_at_a_random_moment(5)
    without_kernel = run.without_its_kernel("03-smoke-test")
    after_kernel = json_of(run.folder / "records/03-smoke-test.json")
    lock = run.all_at_once()
    cancel, cancelled = run.cancelled()
    refused, untouched = run.with_a_foreign_checkpoint()
    finished = toy.run(run.runs)
    deadline = time.monotonic() + 300
    while toy.processes() and time.monotonic() < deadline:
        time.sleep(0.2)
    return SimpleNamespace(
        folder=run.folder,
        said=run.said,
        without_kernel=without_kernel,
        after_kernel=after_kernel,
        lock=lock,
        cancel=cancel,
        cancelled=cancelled,
        refused=refused,
        untouched=untouched,
        finished=finished,
        left=[process.cmdline() for process in toy.processes()],
        jobs=run.job_ids(),
    )


def test_after_every_disturbance_it_comes_to_its_end(killed):
    assert killed.finished.code == 0, (killed.said, killed.finished)
    for phase in PHASES:
        twin = json_of(killed.folder / "records" / f"{phase}.json")
        assert (twin["state"], twin["verdict"] in ("pass", "warn")) == ("done", True), (
            killed.said,
            twin,
        )
    assert verify_run(killed.folder) == []


def test_its_losses_are_those_of_the_undisturbed_campaign(killed, campaign):
    assert losses(killed.folder) == losses(campaign.folder), killed.said
    assert losses(killed.folder, "smoke/metrics.jsonl") == losses(
        campaign.folder, "smoke/metrics.jsonl"
    ), killed.said


def test_its_tokens_are_those_of_the_undisturbed_campaign(killed, campaign):
    for name in ("corpus_text_document.bin", "corpus_text_document.idx"):
        assert (killed.folder / "data" / name).read_bytes() == (
            campaign.folder / "data" / name
        ).read_bytes()


def test_nothing_runs_on_that_nobody_watches(killed):
    assert killed.left == []


def test_no_job_was_started_twice(killed):
    """Expect one smoke test, and one new training job each time the previous job was ended."""
    assert sorted(killed.jobs) == [
        "03-smoke-test",
        "04-training",
        *(f"04-training-{n}" for n in range(2, 6)),
    ]


def test_a_dead_kernel_is_told_and_recorded(killed):
    assert killed.without_kernel.code == 138, killed.without_kernel
    text = killed.without_kernel.text
    assert says(text, PhaseMessage.PHASE_ENDED, phase="03-smoke-test", state="kernel-died")
    how = containing(how_it_ended(-9))
    assert says(
        text,
        PhaseMessage.PHASE_FAILED,
        message=containing(RecordMessage.KERNEL_DIED.of(how=how)),
    )
    assert (killed.after_kernel["state"], killed.after_kernel["verdict"]) == ("kernel-died", "fail")


def test_the_lock_of_the_dead_is_taken_over_and_told(killed):
    dead = json.loads(killed.lock)["process"]["pid"]
    holder = CoreMessage.LOCK_HOLDER.of(pid=dead, purpose="runbook run local")
    first_line = killed.cancelled.text.splitlines()[0]
    assert says_only(first_line, CoreMessage.LOCK_TAKEN_OVER, holder=holder), killed.cancelled


def test_a_training_that_vanished_goes_on_as_a_new_job(killed):
    not_done = str(StepState.NOT_DONE)
    assert says(
        killed.cancelled.text, PhaseMessage.PHASE_RUNS, phase="04-training", missing=not_done
    )
    events = [
        one for one in read_lines(killed.folder / "events.jsonl") if one["phase"] == "04-training"
    ]
    assert [one["event"] for one in events].count("begun") == 1


def test_cancel_ends_the_job_and_the_command_says_so(killed):
    assert killed.cancel.code == 0
    first_line = killed.cancel.text.splitlines()[0]
    assert says_only(
        first_line, RunMessage.JOB_CANCELLED, job_name="04-training-3", state="cancelled"
    )
    assert killed.cancelled.code == 1
    assert says(
        killed.cancelled.text,
        PhaseMessage.PHASE_FAILED,
        message=containing("JobError: ", job_failed("cancelled")),
    )
    assert "Traceback" not in killed.cancelled.text


def test_a_checkpoint_of_another_model_is_refused_and_left_as_it_is(killed):
    assert killed.refused.code == 1, killed.refused
    text = killed.refused.text
    assert says(
        text, PhaseMessage.PHASE_FAILED, message=containing("JobError: ", job_failed("failed"))
    )
    assert says(
        text,
        TrainingMessage.CHECKPOINT_OF_ANOTHER_MODEL,
        folder=containing("iter_0000008"),
        difference=containing(" (plan: "),
    )
    assert killed.untouched


def job_failed(state: str) -> Statement:
    """Return the message about a training job that ended in this state, with its last output."""
    ended = PhaseMessage.JOB_ENDED.of(name="04-training", state=state)
    return PhaseMessage.JOB_FAILED.of(ended=containing(ended))
