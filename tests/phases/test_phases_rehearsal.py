"""On a cluster, a layout is rehearsed before its first job.

Only the trainer's own process is faked here.
"""

from __future__ import annotations

import json
import sys
import time
from dataclasses import fields, replace
from types import SimpleNamespace

import pytest
from suite.messages import containing, has_rule, problem_of, refuses, says
from toy_run import events, launch_jobs, open_run

from runbook.core import shell
from runbook.core.errors import RecordError
from runbook.jobs.job_folder import JobState
from runbook.params.messages import ParamsMessage
from runbook.params.problems import InvalidParams
from runbook.phases import rehearsal
from runbook.phases.job_control import rehearsal_gate as layout_rehearsal
from runbook.phases.messages import PhaseMessage
from runbook.phases.p00_plan import phase as plan
from runbook.phases.p03_smoke_test import phase as smoke_test
from runbook.plan_file.identity import layout_inputs
from runbook.tools.redact import redacted_copy

SMOKE = "03-smoke-test"
FULL = "04-training"
CLUSTER = (
    *("site=azure", "jobs.stage=/shared", "parallel.pipeline=2", "training.smoke.pipeline=2"),
    *("training.smoke.global_batch=16", "training.global_batch=32"),
)
NAME = "training.rehearsal_waived_by=A. Person"
TOO_LARGE = PhaseMessage.STAGE_DOES_NOT_FIT.fill(
    stage=1, rank=4, peak_bytes=120, limit=75.2, device="H100-SXM"
)


class FakeTrainer:
    """Answers like `python -m runbook.training.rehearsal`."""

    def __init__(self) -> None:
        self.ranks: list[str] = []
        self.peak = 2**30
        self.exit_code = 0
        self.err = ""

    def run(self, words, **_):
        self.ranks.append(words[-1])
        lines = [json.dumps(self.counted(int(rank))) for rank in words[-1].split(",")]
        return SimpleNamespace(exit_code=self.exit_code, out="\n".join(lines), err=self.err)

    def counted(self, rank):
        kinds = {
            one.name: one.type
            for one in fields(rehearsal.Stage)
            if not one.name.startswith("planned")
        }
        numbers = [name for name, kind in kinds.items() if kind in (int, float, "int", "float")]
        own = {"rank": rank, "stage": int(rank > 0), "peak_bytes": self.peak * (2 if rank else 1)}
        lists = {
            "collectives": [],
            "largest": [],
            "timeline": [],
            "work": [],
            "synchronizations": {},
            "moments": {},
        }
        return (
            dict.fromkeys(numbers, 1)
            | lists
            | {"peak_moment": "optimizer", "parts": {"weights": 1}}
            | own
        )


@pytest.fixture
def trainer(monkeypatch):
    fake = FakeTrainer()
    door = SimpleNamespace(
        run=fake.run, how_it_ended=shell.how_it_ended, last_lines=shell.last_lines
    )
    monkeypatch.setattr(rehearsal, "shell", door)
    return fake


def verdict(open_phase):
    return open_phase.session.verdict("rehearsal")


def recorded(open_phase):
    return next(check for check in open_phase.session.finish().checks if check.name == "rehearsal")


def test_a_layout_is_rehearsed_before_its_first_job_and_never_again(runs, queue, trainer):
    launch_jobs(open_run(SMOKE, *CLUSTER, runs=runs))
    assert [sorted(trainer.ranks), queue.calls] == [["0", "4"], ["submit 03-smoke-test"]]
    queue.states["03-smoke-test"] = JobState.FAILED
    later = open_run(SMOKE, *CLUSTER, runs=runs)  # as another process would
    launch_jobs(later)
    assert [len(trainer.ranks), len(queue.calls), verdict(later)] == [2, 2, "pass"]
    fullest = PhaseMessage.FULLEST_STAGE.fill(stage=1, gibibytes="2 of 75.2")
    assert recorded(later).value == fullest
    launch_jobs(open_run(FULL, *CLUSTER, runs=runs))  # with another batch, and thus another layout
    assert len(trainer.ranks) == 4
    assert len(list((later.folder / "rehearsals").iterdir())) == 2


def test_values_that_the_site_requires_are_asked_for_before_a_layout_is_rehearsed(
    runs, queue, trainer
):
    without_stage = [word for word in CLUSTER if not word.startswith("jobs.stage")]
    with pytest.raises(InvalidParams) as error:
        launch_jobs(open_run(SMOKE, *without_stage, runs=runs))
    problem = problem_of(error.value, "jobs.stage")
    assert has_rule(problem, ParamsMessage.REQUIRED_VALUE, meaning=containing("a folder on"))
    assert problem.where == ParamsMessage.REQUIRED_BY.fill(site="azure")
    assert [trainer.ranks, queue.calls] == [[], []]


def test_a_layout_is_what_memory_and_messages_depend_on(runs, queue):
    phase = open_run(FULL, runs=runs).phase_plan
    longer = replace(phase.model.shape, sequence_length=7)
    same = replace(phase, seed=7, duration=replace(phase.duration, iterations=9))
    assert layout_inputs(same) == layout_inputs(phase)
    for other in (
        replace(phase, batch=replace(phase.batch, micro=7)),
        replace(phase, parallel=replace(phase.parallel, tensor=7)),
        replace(phase, precision=replace(phase.precision, format="fp16")),
        replace(phase, engine="deepspeed"),
        replace(phase, tuning=replace(phase.tuning, overlap_gradients=True)),
        replace(phase, model=replace(phase.model, shape=longer)),
    ):
        assert layout_inputs(other) != layout_inputs(phase)


def test_a_job_that_does_not_fit_is_refused_with_stage_bytes_and_remedy(runs, queue, trainer):
    trainer.peak = 60 * 2**30
    rule = PhaseMessage.EVERY_STAGE_FITS.fill()
    remedies = (
        "raise parallel.tensor or parallel.pipeline",
        "lower training.micro_batch",
        "set training.recompute",
        "--set training.rehearsal_waived_by=NAME",
    )
    failed = PhaseMessage.CHECKS_FAILED.of(
        number_of_failures=1,
        number_of_checks=1,
        failures=containing(f"rehearsal: {TOO_LARGE} (rule: {rule}: ", *remedies),
    )
    with refuses(RecordError, failed):
        launch_jobs(open_run(SMOKE, *CLUSTER, runs=runs))
    assert queue.calls == []


def test_a_name_lets_what_does_not_fit_be_submitted_and_is_recorded(runs, queue, trainer):
    trainer.peak = 60 * 2**30
    with pytest.raises(RecordError):
        launch_jobs(open_run(SMOKE, *CLUSTER, runs=runs))
    waived = open_run(SMOKE, *CLUSTER, NAME, runs=runs)
    launch_jobs(waived)
    assert [len(trainer.ranks), queue.calls] == [2, ["submit 03-smoke-test"]]
    assert recorded(waived).verdict == "warn"
    assert recorded(waived).value.startswith("stage 1 (rank 4) does not fit: it needs 120 GiB")
    assert waived.session.results["rehearsal_waived_by"] == "A. Person"
    assert "gate_waived" in events(waived)


def test_with_a_name_nothing_is_rehearsed(runs, queue, trainer):
    open_phase = open_run(SMOKE, *CLUSTER, NAME, runs=runs)
    smoke_test.launch(open_phase)
    assert [trainer.ranks, len(queue.calls)] == [[], 1]
    assert recorded(open_phase).value.startswith("not done; waived by A. Person (account ")
    assert redacted_copy.private_words(open_phase.folder)["A. Person"] == "user"
    (open_phase.folder / "events.jsonl").unlink()  # so that the redactor finds no name there
    assert redacted_copy.private_words(open_phase.folder)["A. Person"] == "user"


def test_a_rehearsal_that_fails_refuses_the_job_in_its_own_words_and_is_done_again(
    runs, queue, trainer
):
    trainer.exit_code = 1
    trainer.err = "RuntimeError: mat1 and mat2 shapes cannot be multiplied"
    for _ in range(2):
        before = len(trainer.ranks)
        with refuses(
            RecordError,
            PhaseMessage.CHECKS_FAILED,
            failures=containing("exit code 1. Its last output:\nRuntimeError: mat1"),
        ):
            launch_jobs(open_run(SMOKE, *CLUSTER, runs=runs))
        assert len(trainer.ranks) > before
    assert queue.calls == []


def test_where_one_stage_fails_nobody_waits_for_the_others(runs, queue, trainer, monkeypatch):
    started = []

    def run(words, **options):
        if words[-1] == "0":
            started[:] = [time.monotonic()]
            return SimpleNamespace(exit_code=1, out="", err="RuntimeError: wrong shape")
        return shell.run([sys.executable, "-c", "import time; time.sleep(600)"], **options)

    monkeypatch.setattr(rehearsal.shell, "run", run)
    monkeypatch.setattr(rehearsal.os, "cpu_count", lambda: 2)
    with refuses(
        RecordError, PhaseMessage.CHECKS_FAILED, failures=containing("RuntimeError: wrong shape")
    ):
        launch_jobs(open_run(SMOKE, *CLUSTER, runs=runs))
    assert time.monotonic() - started[0] < 300


def test_a_documents_framework_is_only_warned_of(runs, queue, trainer):
    trainer.peak = 60 * 2**30
    open_phase = open_run(SMOKE, *CLUSTER, "training.framework=megatron-lm", runs=runs)
    launch_jobs(open_phase)
    assert (recorded(open_phase).verdict, len(queue.calls)) == ("warn", 1)
    said = "only a warning: our own trainer is rehearsed with this layout, but megatron-lm will run"
    assert recorded(open_phase).rule.startswith(said)


@pytest.mark.parametrize("exit_code", [3, -9])
def test_software_that_cannot_rehearse_says_nothing_against_the_job(
    runs, queue, trainer, exit_code
):
    trainer.exit_code = exit_code
    trainer.err = "the software here cannot rehearse: torch 2.6 has no devices"
    open_phase = open_run(SMOKE, *CLUSTER, runs=runs)
    launch_jobs(open_phase)
    assert (recorded(open_phase).verdict, len(queue.calls)) == ("unknown", 1)
    assert recorded(open_phase).value.startswith(f"not rehearsed: exit code {exit_code}")
    assert recorded(open_phase).value.endswith("torch 2.6 has no devices")


def test_without_a_trainer_here_and_without_a_queue_for_checks_it_is_said(
    runs, queue, trainer, monkeypatch, capsys
):
    for module in (rehearsal, layout_rehearsal):
        monkeypatch.setattr(module, "has_trainer", lambda: False)
    words = (*CLUSTER, "jobs.environment.partition=")
    plan.show_rehearsal(open_run("00-plan", *words, runs=runs))
    assert says(capsys.readouterr().out, PhaseMessage.REHEARSED_BY_JOB, phase="04-training")
    open_phase = open_run(SMOKE, *words, runs=runs)
    launch_jobs(open_phase)
    assert (recorded(open_phase).verdict, len(queue.calls), trainer.ranks) == ("unknown", 1, [])
    assert says(recorded(open_phase).value, PhaseMessage.TRAINER_NOT_INSTALLED)


def test_the_plans_notebook_shows_what_was_counted_and_refuses_nothing(
    runs, queue, trainer, capsys
):
    trainer.peak = 60 * 2**30
    open_phase = open_run("00-plan", *CLUSTER, runs=runs)
    plan.show_rehearsal(open_phase)
    said = capsys.readouterr().out
    assert says(said, PhaseMessage.MEMORY_OF_DEVICE, device=containing("H100-SXM"))
    assert TOO_LARGE in said
    assert verdict(open_phase) == "warn"
    plan.show_rehearsal(open_phase)
    assert len(trainer.ranks) == 2


def test_a_site_without_a_queue_rehearses_nothing(runs, queue, trainer, capsys):
    plan.show_rehearsal(open_run("00-plan", runs=runs))
    launch_jobs(open_run(SMOKE, runs=runs))
    assert trainer.ranks == []
    assert says(
        capsys.readouterr().out, PhaseMessage.NO_QUEUE_TO_REHEARSE, site="local", name="local"
    )
