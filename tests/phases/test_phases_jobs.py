"""A long job is submitted once, found again, resumed where it stopped, and never confused with
another.
"""

from __future__ import annotations

import json
import os
from dataclasses import replace
from pathlib import Path

import pytest
from suite.messages import containing, refuses, says
from toy_run import (
    events,
    launch_jobs,
    make_ready,
    open_run,
    watch_jobs,
    write_gate,
    write_metrics,
)

from runbook.cli.program import cli
from runbook.core.errors import HeldError, JobError, RecordError
from runbook.core.files import write_text
from runbook.core.locks import HOLDER_VARIABLE, hold
from runbook.core.messages import CoreMessage
from runbook.jobs.job_folder import JobState
from runbook.jobs.messages import JobMessage
from runbook.jobs.watcher_wait import begin_wait, read_wait
from runbook.next_job.decisions import RECOVERY_SECONDS
from runbook.phases import finished_training, runner
from runbook.phases.job_control import readiness
from runbook.phases.job_control import training_jobs as jobs
from runbook.phases.messages import PhaseMessage
from runbook.phases.p03_smoke_test import phase as smoke_test
from runbook.phases.p04_training import phase as training
from runbook.phases.p05_analysis import phase as analysis
from runbook.phases.p06_evaluation import phase as evaluation
from runbook.phases.phase_steps import RESULTS, VARIANTS, phase_step, train_step
from runbook.phases.training_outputs import move_to_history, training_outputs
from runbook.phases.training_results import read_results
from runbook.records.done_marks import mark_path
from runbook.records.engine.execute import Outcome
from runbook.results.history import Event, History, Step
from runbook.runs import status, step
from runbook.runs.messages import RunMessage
from runbook.runs.status import cancel_jobs, refuse_while_a_job_runs, stop_jobs
from runbook.runs.step import ChangedOutputError, StepState, StepStatus, write_mark

PHASE = "04-training"
HOLDER = CoreMessage.LOCK_HOLDER.of(pid=os.getpid(), purpose="runbook run local")


@pytest.fixture
def open_phase(runs, queue):
    return open_run(PHASE, runs=runs)


def job_names(open_phase) -> list[str]:
    return sorted(path.name for path in (open_phase.folder / "jobs").glob("*"))


def test_a_job_is_submitted_with_its_script_and_an_event(open_phase, queue, capsys):
    launch_jobs(open_phase)
    assert queue.calls == ["submit 04-training"]
    assert events(open_phase) == ["begun", "submitted"]
    assert (open_phase.folder / "jobs/04-training/job.sh").read_text().startswith("#!")
    submitted = {"folder_name": "04-training", "job_id": "fake-04-training"}
    missing = StepState.NOT_DONE.capitalize()
    said = capsys.readouterr().out
    assert says(said, PhaseMessage.JOB_SUBMITTED, missing=missing, **submitted)


def test_launching_again_finds_the_running_job(open_phase, queue, capsys):
    launch_jobs(open_phase)
    launch_jobs(open_run(PHASE, runs=open_phase.folder.parent))
    assert queue.calls == ["submit 04-training"]
    assert says(
        capsys.readouterr().out,
        PhaseMessage.JOB_WATCHED,
        job_id="fake-04-training",
        folder_name="04-training",
        state="running",
    )


def test_a_job_that_finished_while_nobody_watched_is_not_started_again(open_phase, queue, capsys):
    launch_jobs(open_phase)
    write_metrics(open_phase, 6)
    queue.states["04-training"] = JobState.DONE
    launch_jobs(open_phase)
    watch_jobs(open_phase)
    assert queue.calls == ["submit 04-training"]
    assert not train_step(open_phase.run, PHASE).why_not_done()
    assert says(
        capsys.readouterr().out, PhaseMessage.JOB_FINISHED_UNWATCHED, job_id="fake-04-training"
    )
    launch_jobs(open_phase)
    watch_jobs(open_phase)
    out = capsys.readouterr().out
    assert says(out, PhaseMessage.NOTHING_TO_LAUNCH, phase=PHASE)
    assert says(out, PhaseMessage.NOTHING_TO_WATCH, phase=PHASE)


@pytest.mark.parametrize(
    "state", [JobState.FAILED, JobState.CANCELLED, JobState.STOPPED, JobState.LOST]
)
def test_a_job_that_ended_early_is_followed_by_another_over_the_same_files(
    open_phase, queue, state
):
    launch_jobs(open_phase)
    metrics = write_metrics(open_phase, 3)
    queue.states["04-training"] = state
    launch_jobs(open_phase)
    assert queue.calls == ["submit 04-training", "submit 04-training-2"]
    assert events(open_phase) == ["begun", "submitted", "submitted"]
    assert metrics.exists()


@pytest.mark.parametrize("state", [JobState.RUNNING, JobState.UNKNOWN, JobState.CANCELLED])
def test_a_run_that_is_interrupted_ends_with_the_jobs_that_continue(
    open_phase, queue, state, monkeypatch, capsys
):
    """A user who pressed Ctrl-C would otherwise believe that the training has ended too."""
    launch_jobs(open_phase)
    queue.states["04-training"] = state
    interrupted = Outcome(
        "interrupted", 130, "", open_phase.folder / "records" / "04-training.ipynb"
    )
    monkeypatch.setattr(runner, "run_phases", lambda request, say: (interrupted, open_phase.folder))
    monkeypatch.setattr(status, "scheduler_of", lambda folder: queue)
    assert cli.main(["run", "local"], standalone_mode=False) == 130
    continues = RunMessage.JOB_CONTINUES.fill(
        job_name="04-training", state=state, reason="told so", folder_name="local"
    )
    assert capsys.readouterr().out.endswith(f"{continues}\n") != (state is JobState.CANCELLED)


def test_a_job_that_runs_with_other_values_is_neither_watched_nor_moved_from_under(
    open_phase, queue
):
    """If such a job were watched, its outputs would be mistaken for results of the new values."""
    launch_jobs(open_phase)
    metrics = write_metrics(open_phase, 3)
    (open_phase.folder / "run.yaml").unlink()
    other = open_run(PHASE, "training.iterations=9", runs=open_phase.folder.parent)
    told = PhaseMessage.JOB_WITH_OTHER_PARAMETERS.of(
        latest=containing("jobs/04-training"),
        state="running",
        reason="told so",
        settings_name="local",
    )
    with refuses(JobError, told):
        launch_jobs(other)
    assert metrics.exists()
    assert queue.calls == ["submit 04-training"]
    at_work = RunMessage.JOB_AT_WORK.of(
        job=containing("jobs/04-training"), state="running", reason="told so", folder_name="local"
    )
    with refuses(JobError, at_work):
        refuse_while_a_job_runs(open_phase.folder, queue)
    queue.states["04-training"] = JobState.CANCELLED
    refuse_while_a_job_runs(open_phase.folder, queue)


def test_outputs_of_other_values_are_set_aside_and_nothing_is_lost(open_phase, queue, capsys):
    launch_jobs(open_phase)
    metrics = write_metrics(open_phase, 6)
    written = metrics.read_bytes()
    (open_phase.folder / "checkpoints" / "iter_0000006").mkdir(parents=True)
    queue.states["04-training"] = JobState.DONE
    (open_phase.folder / "run.yaml").unlink()
    launch_jobs(open_run(PHASE, "training.seed=9", runs=open_phase.folder.parent))
    (history,) = (open_phase.folder / "history").iterdir()
    assert (history / "metrics.jsonl").read_bytes() == written
    assert (history / "checkpoints" / "iter_0000006").is_dir()
    assert not metrics.exists()
    assert says(
        capsys.readouterr().out, PhaseMessage.OUTPUTS_SET_ASIDE, folder=f"history/{history.name}"
    )
    assert events(open_phase) == ["begun", "submitted", "begun", "submitted"]


def saved_at(open_phase, iteration: int) -> None:
    (open_phase.folder / "checkpoints" / f"iter_{iteration:07d}").mkdir(parents=True)


def replanned(open_phase, queue, *words: str):
    """Launch the changed run after the first jobs. Return the run's history folders."""
    queue.states["04-training"] = JobState.STOPPED
    (open_phase.folder / "run.yaml").unlink()
    launch_jobs(open_run(PHASE, *words, runs=open_phase.folder.parent))
    return list((open_phase.folder / "history").glob("*"))


def test_a_longer_training_goes_on_from_its_checkpoint_and_says_what_becomes_of_the_rate(
    open_phase, queue, capsys
):
    launch_jobs(open_phase)
    metrics = write_metrics(open_phase, 6)
    saved_at(open_phase, 6)
    assert (
        replanned(open_phase, queue, "training.iterations=12", "training.warmup_iterations=2") == []
    )
    assert metrics.exists()
    assert events(open_phase) == ["begun", "submitted", "replanned", "submitted"]
    told = capsys.readouterr().out
    assert says(
        told,
        PhaseMessage.TRAINING_GOES_ON,
        saved=6,
        changes="iterations 6 -> 12",
    )
    assert says(
        told,
        PhaseMessage.RATE_FOLLOWS_NEW_LENGTH,
        new=0.000825,
        old=0.00015,
        iterations=12,
        decay_samples=48,
    )
    assert says(told, PhaseMessage.BEGIN_TRAINING_ANEW)
    launch_jobs(open_run(PHASE, "training.iterations=12", runs=open_phase.folder.parent))
    assert len(queue.calls) == 2


def test_a_rate_that_does_not_depend_on_the_length_is_said_to_be_undisturbed(runs, queue, capsys):
    words = ("training.decay_iterations=6",)
    open_phase = open_run(PHASE, *words, runs=runs)
    launch_jobs(open_phase)
    saved_at(open_phase, 4)
    assert replanned(open_phase, queue, *words, "training.iterations=12") == []
    assert says(capsys.readouterr().out, PhaseMessage.RATE_INDEPENDENT_OF_LENGTH)


@pytest.mark.parametrize(
    ("word", "told"),
    [
        ("parallel.tensor=2", "at iteration 4: tensor 1 -> 2, data 2 -> 1."),
        ("parallel.pipeline=2", "at iteration 4: pipeline 1 -> 2, data 2 -> 1."),
        ("training.micro_batch=2", "at iteration 4: micro-batch 4 -> 2."),
        ("training.engine=deepspeed", PhaseMessage.OPTIMIZER_BEGINS_ANEW.fill()),
    ],
)
def test_another_cut_goes_on_too(open_phase, queue, capsys, word, told):
    launch_jobs(open_phase)
    saved_at(open_phase, 4)
    assert replanned(open_phase, queue, word) == []
    assert told in capsys.readouterr().out


@pytest.mark.parametrize(
    "word",
    [
        "training.learning_rate=1e-3",
        "training.iterations=4",  # nothing is left to train
        "training.warmup_iterations=3",
        "training.global_batch=16",
        "data.split=900,50,50",
    ],
)
def test_another_training_or_a_shorter_one_begins_anew_with_the_old_kept(open_phase, queue, word):
    launch_jobs(open_phase)
    saved_at(open_phase, 4)
    (history,) = replanned(open_phase, queue, word)
    assert (history / "checkpoints" / "iter_0000004").is_dir()
    assert events(open_phase)[-2:] == ["begun", "submitted"]


def test_a_training_that_an_older_program_began_can_be_prolonged_once_it_was_resumed(
    open_phase, queue
):
    launch_jobs(open_phase)
    saved_at(open_phase, 4)
    started = train_step(open_phase.run, PHASE).started_path
    started.write_text(started.read_text().partition("\n")[0])  # as it was written at the time
    queue.states["04-training"] = JobState.STOPPED
    launch_jobs(open_phase)
    queue.states["04-training-2"] = JobState.STOPPED
    assert replanned(open_phase, queue, "training.iterations=12") == []


def test_a_smoke_test_is_never_prolonged(runs, queue):
    smoke = open_run("03-smoke-test", runs=runs)
    launch_jobs(smoke)
    (smoke.folder / "smoke" / "checkpoints" / "iter_0000012").mkdir(parents=True)
    queue.states["03-smoke-test"] = JobState.STOPPED
    (smoke.folder / "run.yaml").unlink()
    launch_jobs(open_run("03-smoke-test", "training.smoke.iterations=20", runs=runs))
    assert len(list((smoke.folder / "history").iterdir())) == 1


def test_what_is_set_aside_twice_in_a_second_lies_in_two_places(tmp_path, monkeypatch):
    monkeypatch.setattr("time.strftime", lambda *_: "20251121T060000Z")
    for number in (1, 2, 3):
        (tmp_path / "smoke").mkdir(exist_ok=True)
        (tmp_path / "smoke" / "metrics.jsonl").write_text(str(number))
        moved = move_to_history(
            tmp_path, "03-smoke-test", [tmp_path / "smoke" / "metrics.jsonl", tmp_path / "none"]
        )
        assert moved is not None
        assert (moved / "smoke--metrics.jsonl").read_text() == str(number)
    assert len(list((tmp_path / "history").iterdir())) == 3
    assert move_to_history(tmp_path, "03-smoke-test", [tmp_path / "none"]) is None


def test_a_stopped_job_is_resumed_as_long_as_each_job_makes_a_step(
    open_phase, queue, capsys, monkeypatch
):
    """Six jobs with one step each finish the training. Six jobs without a step do not."""
    queue.after_submit = JobState.STOPPED
    done = iter(range(1, 7))

    def follow(open_phase, enough=None):
        rows = next(done, 6)
        write_metrics(open_phase, rows)
        name = job_names(open_phase)[-1]
        return replace(
            queue.state(jobs.JobFolder(open_phase.folder / "jobs" / name)),
            state=JobState.DONE if rows == 6 else JobState.STOPPED,
        )

    monkeypatch.setattr(jobs, "follow", follow)
    launch_jobs(open_phase)
    watch_jobs(open_phase)
    assert len(queue.calls) == 6
    assert not train_step(open_phase.run, PHASE).why_not_done()
    assert (
        capsys.readouterr().out.count(
            PhaseMessage.JOB_GOES_ON.fill(
                state="stopped", reason="told so", folder_name="04-training-"
            ).removesuffix(".")
        )
        == 5
    )


def test_a_job_that_stops_again_and_again_without_a_step_is_not_resumed_for_ever(open_phase, queue):
    queue.after_submit = JobState.LOST
    launch_jobs(open_phase)
    lost = PhaseMessage.JOB_ENDED.fill(name="04-training", state="lost", reason="told so")
    with refuses(JobError, PhaseMessage.JOB_FAILED, ended=containing(lost)):
        watch_jobs(open_phase)
    assert len(queue.calls) == 1 + open_phase.settings.job(PHASE).restarts


def test_the_cluster_is_given_time_where_a_node_did_not_answer_the_starter(
    open_phase, queue, capsys, monkeypatch
):
    queue.after_submit = JobState.FAILED
    waits = []

    def wait(seconds):
        waits.append(seconds)
        queue.after_submit = JobState.DONE

    monkeypatch.setattr(jobs, "LOOK_SECONDS", 1.5 * RECOVERY_SECONDS)
    monkeypatch.setattr(jobs.time, "sleep", wait)
    monkeypatch.setattr(jobs.time, "monotonic", lambda: sum(waits))
    launch_jobs(open_phase)
    meet_a_lost_node(open_phase)
    write_metrics(open_phase, 6)
    watch_jobs(open_phase)
    assert waits == [jobs.LOOK_SECONDS]
    assert says(
        capsys.readouterr().out,
        PhaseMessage.JOB_WAITS_TO_GO_ON,
        why=containing("node out of reach"),
        wait="2 min",
    )


def meet_a_lost_node(open_phase):
    (open_phase.folder / "jobs" / "04-training" / "err").write_text(
        "srun: error: Application launch failed: Communication connection failure\n"
    )


@pytest.mark.parametrize("end", [cancel_jobs, stop_jobs])
def test_a_cancel_during_the_wait_for_a_lost_node_is_the_end(open_phase, queue, monkeypatch, end):
    queue.after_submit = JobState.FAILED
    lines = []

    def cancel(seconds):
        lines.append(end(open_phase.folder, queue))

    monkeypatch.setattr(jobs.time, "sleep", cancel)
    launch_jobs(open_phase)
    meet_a_lost_node(open_phase)
    why = PhaseMessage.NOT_STARTED_AGAIN.fill(why=PhaseMessage.END_ASKED_DURING_WAIT.fill())
    with refuses(JobError, PhaseMessage.JOB_FAILED, why=why):
        watch_jobs(open_phase)
    assert lines == [RunMessage.NO_JOB_FOLLOWS.fill(job_name="04-training")]
    assert [call for call in queue.calls if call.startswith("submit")] == ["submit 04-training"]
    assert not jobs.newest_job(open_phase.training).watcher_waits.exists()


@pytest.mark.parametrize("end", [cancel_jobs, stop_jobs])
def test_a_watcher_that_was_killed_during_its_wait_is_not_asked(open_phase, queue, end):
    launch_jobs(open_phase)
    queue.states["04-training"] = JobState.FAILED
    job = jobs.newest_job(open_phase.training)
    begin_wait(job, 120)
    wait = json.loads(job.watcher_waits.read_text())
    assert read_wait(job).process.pid == wait["process"]["pid"]
    wait["process"]["start"] -= 1  # a different process with the same process ID
    job.watcher_waits.write_text(json.dumps(wait))
    assert end(open_phase.folder, queue).startswith("No job of this run is running")
    assert not job.watcher_waits.exists()
    assert not job.stop_requested.exists()


def test_a_watcher_on_another_machine_counts_until_its_wait_is_over(open_phase):
    launch_jobs(open_phase)
    job = jobs.newest_job(open_phase.training)
    begin_wait(job, 120)
    wait = json.loads(job.watcher_waits.read_text())
    wait["process"] |= {"host": "login2", "boot_id": "another"}
    job.watcher_waits.write_text(json.dumps(wait))
    assert read_wait(job).process.host == "login2"
    job.watcher_waits.write_text(json.dumps(wait | {"until": wait["until"] - 300}))
    assert read_wait(job) is None


def test_a_failed_job_is_told_in_its_own_last_words(open_phase, queue):
    queue.after_submit = JobState.FAILED
    launch_jobs(open_phase)
    folder = open_phase.folder / "jobs" / "04-training"
    error_line = "RuntimeError: no such thing"
    (folder / "err").write_text("".join(f"line {n}\n" for n in range(100)) + f"{error_line}\n")
    (folder / "out").write_text("said\n")
    with pytest.raises(JobError) as error:
        watch_jobs(open_phase)
    text = str(error.value)
    ended = PhaseMessage.JOB_ENDED.fill(name="04-training", state="failed", reason="told so")
    assert text.startswith(f"{ended}\n")
    assert f"  {error_line}\n  said\n" in text
    assert says(text, PhaseMessage.JOB_FAILED, err=folder / "err", out=folder / "out")
    assert "line 1\n" not in text
    assert len(queue.calls) == 1


def test_nothing_is_submitted_where_the_check_above_failed_or_was_left_out(runs, queue, capsys):
    """A user of JupyterLab can run a cell even if the cell above it failed."""
    open_phase = open_run(PHASE, runs=runs, ready=False)
    with refuses(RecordError, PhaseMessage.CHECKS_FAILED, number_of_failures=2, number_of_checks=2):
        training.check_ready(open_phase)
    told = PhaseMessage.NOTHING_SUBMITTED.of(
        phase="04-training",
        reasons=containing(
            "smoke test: not done",
            "; token files: not made (rule: the token files of 02-data exist",
        ),
    )
    with refuses(JobError, told):
        training.launch(open_phase)
    assert (queue.calls, job_names(open_phase), events(open_phase)) == ([], [], [])
    make_ready(open_phase)
    training.launch(open_phase)
    assert queue.calls == ["submit 04-training"]


def test_a_smoke_test_is_not_submitted_without_token_files(runs, queue):
    open_phase = open_run("03-smoke-test", runs=runs, ready=False)
    with refuses(
        JobError,
        PhaseMessage.NOTHING_SUBMITTED,
        phase="03-smoke-test",
        reasons=containing("token files: not made"),
    ):
        smoke_test.launch(open_phase)
    assert queue.calls == []


def test_a_person_who_gives_their_name_may_submit_without_a_smoke_test(runs, queue):
    open_phase = open_run(PHASE, "training.smoke.waived_by=A. Person", runs=runs)
    write_gate(open_phase, "fail")
    training.launch(open_phase)
    assert queue.calls == ["submit 04-training"]
    assert events(open_phase) == ["gate_waived", "begun", "forecasts_sealed", "submitted"]


def test_a_job_is_not_resumed_where_the_smoke_test_failed_meanwhile(open_phase, queue):
    launch_jobs(open_phase)
    queue.states["04-training"] = JobState.STOPPED
    write_gate(open_phase, "fail")
    with refuses(JobError, PhaseMessage.NOTHING_SUBMITTED, reasons=containing("smoke test: fail")):
        training.watch(open_phase)
    assert queue.calls == ["submit 04-training"]


def test_token_files_that_passed_are_not_read_again_for_the_launch(open_phase, queue, monkeypatch):
    """Token files may be terabytes in size, so only their sizes are compared before a launch."""
    training.check_ready(open_phase)
    monkeypatch.setattr(step, "sha256_of", lambda path: pytest.fail(f"{path} is read"))
    training.launch(open_phase)
    queue.states["04-training"] = JobState.STOPPED
    (open_phase.folder / "data" / "tokens").write_text("cut")
    with refuses(
        JobError,
        PhaseMessage.NOTHING_SUBMITTED,
        reasons=containing("data/tokens has 3 bytes instead of 4"),
    ):
        training.launch(open_phase)


def test_a_phase_is_not_finished_while_its_job_runs_nor_before_its_training_is_done(
    open_phase, queue
):
    with refuses(
        RecordError, PhaseMessage.TRAINING_NOT_FINISHED, phase="04-training", missing="not done yet"
    ):
        training.finish(open_phase)
    launch_jobs(open_phase)
    told = PhaseMessage.JOB_NOT_FINISHED.of(
        phase="04-training", job_name="04-training", state="running", reason="told so"
    )
    with refuses(JobError, told):
        training.finish(open_phase)
    assert not mark_path(open_phase.folder, PHASE).exists()
    queue.states["04-training"] = JobState.DONE
    write_metrics(open_phase, 6)
    watch_jobs(open_phase)
    training.finish(open_phase)
    assert mark_path(open_phase.folder, PHASE).exists()


@pytest.mark.parametrize("later", [analysis, evaluation])
def test_no_later_phase_ends_while_the_training_runs(open_phase, queue, later):
    """Its record would show half of a training as the result, and mark the phase done."""
    launch_jobs(open_phase)
    write_metrics(open_phase, 3)
    opened = open_run(later.PHASE, runs=open_phase.folder.parent)
    told = PhaseMessage.TRAINING_STILL_RUNS.of(
        phase=later.PHASE,
        job_name="04-training",
        state="running",
        reason="told so",
        settings_name="local",
    )
    with refuses(JobError, told):
        later.finish(opened)
    assert not mark_path(opened.folder, later.PHASE).exists()


def test_the_last_cell_alone_records_the_finished_training_and_not_what_was_shown_of_half(
    open_phase, queue
):
    """All cells were run at iteration 3 of 6, and later only the last one, which had refused."""
    smoke = open_run("03-smoke-test", runs=open_phase.folder.parent)
    write_metrics(smoke, 6)
    write_metrics(open_phase, 3)
    opened = open_run("05-analysis", runs=open_phase.folder.parent)
    analysis.show_numbers(opened)
    analysis.show_plan_versus_actual(opened)
    write_metrics(open_phase, 6)
    train_step(open_phase.run, PHASE).mark_done()
    write_text(opened.folder / VARIANTS, "")
    analysis.finish(opened)
    assert opened.session.finish().results[f"{PHASE}: iterations"] == 6
    rows = [line.split(",") for line in (opened.folder / RESULTS).read_text().splitlines()]
    assert [PHASE, "iterations", "6"] in [row[:3] for row in rows]


def test_results_of_an_unfinished_training_are_called_so(open_phase, queue):
    launch_jobs(open_phase)
    write_metrics(open_phase, 3)
    queue.states["04-training"] = JobState.CANCELLED
    results = read_results(open_phase.folder, open_phase.plan, PHASE)
    so_far = finished_training.results_so_far(open_phase.run, results)
    assert says(
        so_far,
        PhaseMessage.RESULTS_SO_FAR,
        phase=PHASE,
        last=3,
        planned="6 iterations",
        missing="not done yet",
    )
    check = finished_training.finished_check(open_phase.run, results)
    assert (check.verdict, check.value) == ("warn", "3 of 6 iterations")
    write_metrics(open_phase, 6)
    train_step(open_phase.run, PHASE).mark_done()
    results = read_results(open_phase.folder, open_phase.plan, PHASE)
    assert finished_training.results_so_far(open_phase.run, results) == ""
    check = finished_training.finished_check(open_phase.run, results)
    assert (check.verdict, check.value) == ("pass", "6 of 6 iterations")


def test_watching_before_launching_says_what_to_do(open_phase):
    with refuses(JobError, PhaseMessage.NO_JOB_YET, phase="04-training"):
        watch_jobs(open_phase)


def test_a_job_that_ended_by_itself_before_it_was_asked_to_stop_is_no_error(
    open_phase, queue, monkeypatch
):
    launch_jobs(open_phase)

    def too_late(folder):
        queue.states["04-training"] = JobState.DONE
        raise JobError("only a running job can be stopped")

    monkeypatch.setattr(queue, "request_stop", too_late)
    assert jobs.stop_gently(open_phase.training).state is JobState.DONE


def test_a_signal_that_cannot_be_sent_to_a_running_job_is_an_error(open_phase, queue, monkeypatch):
    launch_jobs(open_phase)

    def elsewhere(folder):
        raise JobError(JobMessage.RUNS_ELSEWHERE, folder=folder.path, where="n2")

    monkeypatch.setattr(queue, "request_stop", elsewhere)
    with refuses(JobError, JobMessage.RUNS_ELSEWHERE, folder=containing("04-training")):
        jobs.stop_gently(open_phase.training)


def test_the_rehearsed_stop_happens_once(runs, queue, capsys):
    open_phase = open_run(PHASE, "training.rehearse_stop=3", runs=runs)
    launch_jobs(open_phase)
    write_metrics(open_phase, 3)
    queue.after_submit = JobState.DONE
    training.rehearse_stop(open_phase)
    assert queue.calls == ["submit 04-training", "SIGTERM 04-training", "submit 04-training-2"]
    assert says(
        capsys.readouterr().out,
        PhaseMessage.STOPPED_AND_RESUMED,
        where="before the first step",
        folder_name="04-training-2",
    )
    rows = [
        json.loads(line) for line in (open_phase.folder / "events.jsonl").read_text().splitlines()
    ]
    assert [
        (row["job"], row["why"], row["planned"]) for row in rows if row["event"] == "ended"
    ] == [("04-training", PhaseMessage.PLANNED_STOP.fill(at=3), True)]
    open_phase.training.append_event("stopped", iteration=3, signal="SIGTERM")
    training.rehearse_stop(open_phase)
    assert len(queue.calls) == 3
    assert says(capsys.readouterr().out, PhaseMessage.STOP_REHEARSED_ALREADY)


def test_no_stop_is_rehearsed_where_none_was_asked_for(open_phase, queue, capsys):
    training.rehearse_stop(open_phase)
    assert queue.calls == []
    assert says(capsys.readouterr().out, PhaseMessage.NO_STOP_REHEARSED)


def test_a_job_that_was_faster_than_the_rehearsal_is_left_done(runs, queue, capsys):
    open_phase = open_run(PHASE, "training.rehearse_stop=3", runs=runs)
    launch_jobs(open_phase)
    write_metrics(open_phase, 6)
    queue.states["04-training"] = JobState.DONE
    training.rehearse_stop(open_phase)
    assert queue.calls == ["submit 04-training"]
    assert says(capsys.readouterr().out, PhaseMessage.FINISHED_BEFORE_THE_STOP, at=3)


def test_a_training_that_nobody_stopped_is_not_said_to_be_resumed(runs, queue, capsys):
    """A user can interrupt the cell that rehearses the stop, and go on to the next cell."""
    open_phase = open_run(PHASE, "training.rehearse_stop=3", runs=runs)
    launch_jobs(open_phase)
    write_metrics(open_phase, 6)
    queue.states["04-training"] = JobState.DONE
    watch_jobs(open_phase)
    assert not train_step(open_phase.run, PHASE).why_not_done()
    capsys.readouterr()
    training.rehearse_stop(open_phase)
    assert says(capsys.readouterr().out, PhaseMessage.FINISHED_BEFORE_THE_STOP, at=3)


@pytest.mark.parametrize(
    ("stop", "segments", "verdicts"),
    [
        (3, (0, 0, 0, 0, 0, 0), ["warn"]),
        (3, (0, 0, 0, 1, 1, 1), []),
        (0, (0, 0, 0, 0, 0, 0), []),
    ],
    ids=["not stopped", "something stopped it, and it was resumed", "no stop is planned"],
)
def test_a_planned_stop_that_did_not_happen_is_warned_of(runs, stop, segments, verdicts):
    planned = open_run(PHASE, f"training.rehearse_stop={stop}", runs=runs).training
    steps = [Step(number, 1.0, segment=segment) for number, segment in enumerate(segments, 1)]
    checks = training.planned_stop_check(planned, History(tuple(steps)))
    assert [check.verdict for check in checks] == verdicts
    assert all(check.value == PhaseMessage.NEVER_STOPPED.fill() for check in checks)


def test_a_resume_from_the_checkpoint_of_another_training_does_not_pass(open_phase):
    own = Event("resumed", folder="checkpoints/iter_0000003", same_fingerprint=True)
    assert training.own_checkpoints("local", [Event("started")]) == []
    assert [check.verdict for check in training.own_checkpoints("local", [own])] == ["pass"]
    (check,) = training.own_checkpoints("local", [own, replace(own, same_fingerprint=False)])
    assert (check.verdict, check.value) == (
        "fail",
        PhaseMessage.CHECKPOINTS_OF_ANOTHER_TRAINING.fill(foreign="checkpoints/iter_0000003"),
    )
    assert check.rule.endswith("if not, runbook run local --redo training starts over")


def test_while_somebody_else_works_on_the_run_nothing_is_submitted(open_phase, queue, monkeypatch):
    with hold(open_phase.folder, "runbook run local"):
        with refuses(HeldError, CoreMessage.LOCK_HELD, holder=HOLDER):
            launch_jobs(open_phase)
        assert queue.calls == []
        monkeypatch.setenv(HOLDER_VARIABLE, str(open_phase.folder))
        launch_jobs(open_phase)
    assert queue.calls == ["submit 04-training"]


def test_a_phase_is_not_opened_by_hand_while_runbook_run_works_on_it(open_phase, runs, monkeypatch):
    """Opening the phase would move its record away from the notebook that writes it."""
    record = open_phase.folder / "records" / "04-training.json"
    before = record.read_bytes()
    with hold(open_phase.folder, "runbook run local"):
        with refuses(HeldError, CoreMessage.LOCK_HELD, holder=HOLDER):
            open_run(PHASE, runs=runs)
        assert record.read_bytes() == before
        monkeypatch.setenv(HOLDER_VARIABLE, str(open_phase.folder))
        open_run(PHASE, runs=runs)


def test_the_outputs_of_a_training_are_its_metrics_and_its_newest_checkpoint(open_phase):
    write_metrics(open_phase, 2)
    for name in ("iter_0000010", "iter_0000020", "iter_0000030.part", "iter_0000010.old.part"):
        folder = open_phase.folder / "checkpoints" / name
        (folder / "deep").mkdir(parents=True)
        (folder / "deep" / "weights").write_text("w")
    names = [
        path.relative_to(open_phase.folder).as_posix()
        for path in training_outputs(open_phase.folder, open_phase.phase_plan)
    ]
    assert names == ["metrics.jsonl", "checkpoints/iter_0000020/deep/weights"]


def finish_training(open_phase, queue) -> Path:
    """Finish a watched training run, and return its newest checkpoint."""
    launch_jobs(open_phase)
    write_metrics(open_phase, 6)
    (open_phase.folder / "samples.jsonl").write_text('{"iteration": 6, "text": "a"}\n')
    weights = open_phase.folder / "checkpoints" / "iter_0000006" / "weights"
    weights.parent.mkdir(parents=True)
    weights.write_text("right")
    queue.states["04-training"] = JobState.DONE
    watch_jobs(open_phase)
    return weights


def forge(path: Path) -> None:
    """Change a file without changing its size."""
    text = path.read_text()
    path.write_text(text[:-3] + "0" + text[-2:])


@pytest.mark.parametrize(
    "name", ["metrics.jsonl", "samples.jsonl", "checkpoints/iter_0000006/weights"]
)
@pytest.mark.parametrize("act", [launch_jobs, watch_jobs])
def test_a_changed_output_of_a_finished_training_never_becomes_its_record(
    act, name, open_phase, queue
):
    finish_training(open_phase, queue)
    mark = mark_path(open_phase.folder, "04-training--train")
    before = mark.read_bytes()
    forge(open_phase.folder / name)
    changed = RunMessage.STEP_OUTPUT_CHANGED.of(
        step="04-training--train",
        fault=RunMessage.OUTPUT_CHANGED.fill(file=name),
        remedy=PhaseMessage.DO_PHASE_AGAIN.fill(run="local", phase="04-training"),
    )
    with refuses(ChangedOutputError, changed) as error:
        act(open_phase)
    assert error.value.status == StepStatus(StepState.OUTPUT_CHANGED, name)
    assert mark.read_bytes() == before
    assert queue.calls == ["submit 04-training"]


def test_deleted_weights_of_a_finished_training_are_named_and_not_left_out_of_its_record(
    open_phase, queue
):
    weights = finish_training(open_phase, queue)
    weights.unlink()
    with pytest.raises(ChangedOutputError) as error:
        launch_jobs(open_phase)
    assert error.value.status.state is StepState.OUTPUT_MISSING


@pytest.mark.parametrize("phase", ["04-training", "05-analysis", "06-evaluation"])
def test_no_phase_is_opened_over_changed_results_and_its_record_stays(
    phase, open_phase, queue, runs
):
    finish_training(open_phase, queue)
    record = open_phase.folder / "records" / f"{phase}.json"
    record.write_text(record.read_text() if record.exists() else "{}")
    before = record.read_bytes()
    forge(open_phase.folder / "metrics.jsonl")
    with pytest.raises(ChangedOutputError):
        open_run(phase, runs=runs, ready=False)
    assert record.read_bytes() == before


def test_a_training_is_not_prolonged_from_changed_weights(open_phase, queue, runs):
    weights = finish_training(open_phase, queue)
    longer = "training.iterations=9"
    (open_phase.folder / "run.yaml").unlink()
    forge(weights)
    prolonged = open_run(PHASE, longer, runs=runs)
    with pytest.raises(ChangedOutputError):
        launch_jobs(prolonged)
    weights.write_text("right")
    launch_jobs(prolonged)
    assert queue.calls == ["submit 04-training", "submit 04-training-2"]


def test_a_gate_that_was_changed_after_the_smoke_test_opens_nothing(open_phase):
    gate = write_gate(open_phase, "fail")
    write_mark(open_phase.folder, "03-smoke-test", 1, "abc", [gate])
    write_gate(open_phase, "pass")
    assert readiness.gate_check(open_phase.run).verdict == "fail"


def test_training_waits_for_the_smoke_test_and_the_token_files_of_these_values(runs):
    open_phase = open_run(PHASE, runs=runs, ready=False)
    assert readiness.gate_check(open_phase.run).verdict == "fail"
    assert readiness.gate_check(open_phase.run).rule.endswith("run 03-smoke-test.ipynb first")
    assert readiness.data_check(open_phase.training).value == "not made"
    gate = open_phase.folder / "smoke" / "gate.json"
    gate.parent.mkdir(exist_ok=True)
    gate.write_text(json.dumps({"verdict": "pass", "fingerprint": "of other values"}))
    assert (
        readiness.gate_check(open_phase.run).value == PhaseMessage.GATE_OF_OTHER_PARAMETERS.fill()
    )
    digest = phase_step(open_phase.run, "03-smoke-test").fingerprint
    for verdict in ("pass", "fail"):
        gate.write_text(json.dumps({"verdict": verdict, "fingerprint": digest}))
        assert readiness.gate_check(open_phase.run).verdict == verdict
    write_mark(open_phase.folder, "02-data--tokenize", 1, "abc", [gate])
    assert (
        readiness.data_check(open_phase.training).verdict,
        readiness.data_check(open_phase.training).value,
    ) == (
        "pass",
        "1 file",
    )
    gate.write_text("changed")
    assert readiness.data_check(open_phase.training).verdict == "fail"
    assert readiness.data_check(open_phase.training).value.startswith(
        "smoke/gate.json has 7 bytes instead of "
    )


def test_a_training_whose_metrics_are_gone_fails_for_that_and_is_not_said_to_learn_nothing(
    open_phase,
):
    path = write_metrics(open_phase, 48)
    lines = path.read_text().splitlines(keepends=True)
    path.write_text("".join(lines[40:]))
    with refuses(
        RecordError,
        PhaseMessage.CHECKS_FAILED,
        number_of_failures=1,
        failures=containing("no step is missing: missing: steps 1 to 40 ("),
    ):
        training.judge(open_phase)
