"""The facts that the picture of a running job shows, a request to stop the job, and values that a
user set by hand."""

from __future__ import annotations

import json
import os
import re
from types import SimpleNamespace

import pytest
from IPython.core.interactiveshell import InteractiveShell
from suite.messages import containing, refuses, says
from toy_run import FakeScheduler, launch_jobs, open_run, watch_jobs

from benchmarks import notebooks_overhead
from runbook import params
from runbook.core.errors import JobError, ParamsError
from runbook.jobs.job_folder import JobState, JobStatus
from runbook.params.editing import without_sums
from runbook.phases.job_control import live_view
from runbook.phases.job_control import training_jobs as jobs
from runbook.phases.messages import PhaseMessage
from runbook.phases.p00_plan import phase as plan
from runbook.planning.rule_codes import PlanCode
from runbook.records.logbook import make_entry
from runbook.runs import status
from runbook.runs.messages import RunMessage

ROW = {
    "iteration": 2,
    "loss": 9.5,
    "seconds": 0.5,
    "tokens_per_second": 8191.6,
    "tflops_per_device": 0.05,
}


def write_rows(open_phase, *rows) -> None:
    path = open_phase.folder / open_phase.phase_plan.log.metrics
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))


def test_the_picture_of_a_running_job_says_all_that_its_files_know(runs, queue):
    open_phase = open_run("04-training", runs=runs)
    picture = live_view.LiveView(open_phase.training)
    reason = "Priority, 3rd of 12"
    waiting = picture.facts(JobStatus(JobState.PENDING, "77", None, reason))
    assert (waiting["state"], waiting["queue"]) == ("pending", reason)
    write_rows(open_phase, {**ROW, "iteration": 1, "loss": 10.5}, {**ROW, "memory_bytes": 2**30})
    facts = picture.facts(JobStatus(JobState.RUNNING, "77", None, ""))
    assert (facts["done"], facts["loss"], facts["tokens/s"], facts["memory"]) == (
        2,
        9.5,
        8192,
        "1.00 GiB",
    )
    assert (facts["losses"], facts["left"], facts["queue"]) == ("█▁", "2.00 s", None)
    assert "MFU" not in facts, "no peak of a CPU is guessed, and a line says nothing about it"
    ended = picture.facts(JobStatus(JobState.DONE, "77", 0, "", started=100.0, ended=160.0))
    assert (ended["left"], ended["in use"], ended["ran"]) == (None, None, "1 min")
    assert picture.curve() == ("loss", [(1, 10.5), (2, 9.5)])


def write_events(open_phase, *events) -> None:
    path = open_phase.folder / open_phase.phase_plan.log.events
    path.parent.mkdir(parents=True, exist_ok=True)
    rows = [{"time": 0.0, "phase": "04-training", **event} for event in events]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))


def test_a_job_that_is_still_starting_is_not_shown_with_the_speed_of_the_job_before(runs, queue):
    open_phase = open_run("04-training", runs=runs)
    picture = live_view.LiveView(open_phase.training)
    second = JobStatus(JobState.RUNNING, "78", None, "")
    first_start = [
        {"event": "submitted", "id": "77"},
        {"event": "started", "segment": 0},
    ]
    write_rows(open_phase, {**ROW, "segment": 0})
    write_events(open_phase, *first_start)
    assert picture.facts(JobStatus(JobState.RUNNING, "77", None, ""))["tokens/s"] == 8192

    queued = [*first_start, {"event": "submitted", "id": "78"}]
    write_events(open_phase, *queued)
    first = picture.facts(JobStatus(JobState.RUNNING, "77", None, ""))
    assert first["tokens/s"] == 8192, "the next job of a chain only waits"

    starting = picture.facts(second)
    state = PhaseMessage.RUNNING_WITHOUT_STEP.fill(iteration=2)
    shown = [starting[name] for name in ("state", "tokens/s", "left", "memory")]
    assert (shown, starting["done"]) == ([state, None, None, None], 2)

    write_events(open_phase, *queued, {"event": "started", "segment": 1})
    assert picture.facts(second)["state"] == state, "it has loaded, and makes its first step"
    write_rows(open_phase, {**ROW, "segment": 0}, {**ROW, "iteration": 3, "segment": 1})
    assert picture.facts(second)["tokens/s"] == 8192


def test_an_interrupted_view_says_that_the_job_goes_on_and_shows_no_traceback(runs, queue, capsys):
    picture = live_view.LiveView(open_run("04-training", runs=runs).training)
    states = iter([JobStatus(JobState.RUNNING, "77", None, "")])

    def state() -> JobStatus:
        running = next(states, None)
        if running is None:
            raise KeyboardInterrupt
        return running

    with pytest.raises(KeyboardInterrupt) as interrupted:
        picture.follow(state)
    assert "The view has ended, but not the job" in capsys.readouterr().out
    shell = InteractiveShell()
    shell.user_ns["error"] = interrupted.value
    shell.run_cell("raise error")
    assert capsys.readouterr().out.split() == ["KeyboardInterrupt"]


def test_the_benchmark_of_watching_looks_at_a_run_without_a_record(runs, queue):
    """The benchmark notebooks_overhead.py calls the live view. `--part look` needs a finished
    run."""
    open_phase = open_run("04-training", runs=runs)
    write_rows(open_phase, {**ROW, "iteration": 1, "loss": 10.5}, ROW)
    picture = notebooks_overhead.view_of(open_phase.folder)
    running = JobStatus(JobState.RUNNING, "77", None, "")
    measured = notebooks_overhead.seconds_of_a_look(picture, lambda: running, times=2)
    assert 0 < measured["cpu_seconds_of_a_look"] < 1
    assert picture.curve() == ("loss", [(1, 10.5), (2, 9.5)])


def test_mfu_names_its_peak_and_is_left_out_where_none_is_known():
    spec = SimpleNamespace(duration=SimpleNamespace(iterations=4))
    assert live_view.training_facts([ROW], spec, 0.2, True)["MFU"] == PhaseMessage.MFU_OF_PEAK.fill(
        mfu=0.25, peak=0.2
    )
    assert "MFU" not in live_view.training_facts([ROW], spec, None, True)


def test_gpus_are_asked_where_the_job_runs_here(monkeypatch, tmp_path):
    """Use a stub of nvidia-smi, because this machine may have no GPU."""
    program = tmp_path / "nvidia-smi"
    program.write_text("#!/bin/sh\necho '98, 40536'\n")
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    assert live_view.gpus_in_use(live_view.ask_gpus) == [
        PhaseMessage.GPU_IN_USE.fill(number=0, use=98, memory=40536)
    ]


def test_a_job_on_the_cpu_is_shown_beside_no_gpu_of_the_machine(runs, queue, monkeypatch):
    monkeypatch.setattr(live_view, "ask_gpus", lambda: "98, 40536")
    open_phase = open_run("04-training", runs=runs)
    picture = live_view.LiveView(open_phase.training)
    assert "GPU" not in str(picture.facts(JobStatus(JobState.RUNNING, "77", None, ""))["in use"])


def test_a_gentle_stop_asks_every_living_job_once_and_nothing_resumes_it(
    runs, queue: FakeScheduler
):
    open_phase = open_run("04-training", runs=runs)
    assert status.stop_jobs(open_phase.folder, queue) == RunMessage.NOTHING_STOPPED.fill()
    launch_jobs(open_phase)
    folder = jobs.newest_job(open_phase.training)
    assert not folder.stop_requested.exists()
    said = status.stop_jobs(open_phase.folder, queue)
    assert said == RunMessage.ASKED_TO_STOP.fill(job_name="04-training")
    assert queue.calls[-1] == "SIGTERM 04-training"
    assert folder.stop_requested.exists()
    before = len(queue.calls)
    ended = PhaseMessage.JOB_ENDED.fill(name="04-training", state="stopped", reason="told so")
    with refuses(JobError, PhaseMessage.JOB_FAILED, ended=containing(ended)):
        watch_jobs(open_phase)
    assert [call for call in queue.calls[before:] if call.startswith("submit")] == []
    launch_jobs(open_phase)
    assert queue.calls[-1] == "submit 04-training-2", "launching again is a person's wish to go on"


def test_status_and_04_say_since_when_fewer_replicas_train(runs, queue, monkeypatch):
    open_phase = open_run("04-training", runs=runs)
    change = {"iteration": 4, "replicas": 1, "planned_replicas": 2, "world_size": 1}
    open_phase.training.append_event("replicas_changed", **change, num_microbatches=8)
    name = open_phase.settings.name
    monkeypatch.setattr(status, "scheduler_of", lambda folder: queue)
    assert says(
        status.status_of_one(name, runs),
        RunMessage.FEWER_REPLICAS,
        replicas=1,
        planned_replicas=2,
        iteration=4,
    )
    assert status.facts_of_one(name, runs)["fewer_replicas"] == change
    entry = live_view.LiveView(open_phase.training).last_events()[-1]
    event = {"event": "replicas_changed", "time": 0, **change, "num_microbatches": 8}
    assert str(make_entry(event).text) in entry
    numbers = re.findall(r"\d+", str(make_entry(event).text))
    assert numbers == ["5", "1", "2", "1", "8"]
    back = {**change, "iteration": 8, "replicas": 2, "world_size": 2}
    open_phase.training.append_event("replicas_changed", **back, num_microbatches=4)
    assert status.facts_of_one(name, runs)["fewer_replicas"] is None


KEYS = ("model", "training.micro_batch", "training.global_batch", "parallel.tensor")


def test_a_choice_that_breaks_a_rule_is_told_at_the_field_that_was_changed():
    assert plan.consider_changes("local", {}, KEYS).errors == {}
    wrong = plan.consider_changes("local", {"training.micro_batch": "3"}, KEYS)
    assert list(wrong.errors) == ["training.micro_batch"]
    assert PlanCode.BATCH_DIVIDES.message.rule in wrong.errors["training.micro_batch"]
    both = plan.consider_changes(
        "local", {"training.micro_batch": "x", "model": "nope"}, KEYS
    ).errors
    assert set(both) == {"training.micro_batch", "model"}
    elsewhere = plan.consider_changes("local", {"training.seed": "x"}, KEYS).errors
    assert list(elsewhere) == [""]
    assert elsewhere[""].startswith("training.seed: ")


def test_every_key_of_the_schema_is_a_field_with_its_help():
    found = plan.form_fields(params.load("local"))
    names = [field.key for group in found.values() for field in group]
    assert sorted([*names, "run"]) == sorted(params.all_keys())
    assert [field.key for field in found[""]][:3] == ["site", "model", "data.dataset"]
    assert all(field.help for group in found.values() for field in group)


@pytest.mark.parametrize("run", ["local", "lumi-13b", "azure-175b"])
def test_a_written_run_file_means_the_same_as_the_run_with_its_changes(run, tmp_path):
    settings = params.load(run, set_words=["training.seed=7"])
    path = tmp_path / "chosen.yaml"
    path.write_text(plan.file_text(settings, "chosen"))
    again = params.load(str(path), project=settings.project, portable=True)
    assert again.value("training.seed") == 7
    left_out = {"run"}
    assert {k: v for k, v in again.values().items() if k not in left_out} == {
        k: v for k, v in settings.values().items() if k not in left_out
    }


def by_hand() -> params.Settings:
    """Return the settings of a run as its parameters cell may have set them."""
    given = {
        "training": {"iterations": 30, "micro_batch": 2},
        "jobs": {"training": {"walltime": "00:20:00"}},
    }
    return params.load("local", overrides=given)


def test_the_form_begins_with_what_the_parameters_cell_says_and_keeps_it():
    settings = by_hand()
    run = str(plan.run_file_of(settings))
    given = plan.values_over_file(run, settings)
    assert given == {
        "training": {"iterations": 30, "micro_batch": 2},
        "jobs": {"training": {"walltime": "00:20:00"}},
    }
    keys = (
        "training.iterations",
        "training.micro_batch",
        "training.seed",
        "jobs.training.walltime",
    )
    answer = plan.consider_changes(run, {"training.seed": "7"}, keys, given)
    assert dict(answer.values) == dict(zip(keys, ("30", "2", "7", "00:20:00"), strict=True))
    tokens = plan.consider_changes(run, {"training.tokens": "1000000"}, keys, given)
    assert (tokens.errors, tokens.values["training.iterations"]) == ({}, "0"), (
        "another length instead"
    )
    shown = {
        field.key: field.value for group in plan.form_fields(settings).values() for field in group
    }
    assert (shown["training.micro_batch"], shown["jobs.training.walltime"]) == ("2", "00:20:00")
    assert shown["jobs.smoke.walltime"] == "00:30:00", "as it stands in the run file"


def test_a_written_run_file_keeps_the_comments_of_the_runs_own():
    settings = by_hand()
    own = without_sums(plan.run_file_of(settings).read_text(), "local.yaml").splitlines()
    head, *text = plan.file_text(settings, "chosen").splitlines()
    assert head.startswith(plan.MADE_BY)
    assert len(own) == len(text)
    differing = [new.strip() for old, new in zip(own, text, strict=True) if old != new]
    assert [line.partition("  #")[0] for line in differing] == [
        "run: chosen",
        "iterations: 30",
        "micro_batch: 2",
        'walltime: "00:20:00"',
    ]
    comments = [line.partition("#")[2] for line in own if "#" in line]
    assert [line.partition("#")[2] for line in text if "#" in line] == comments


def test_a_name_that_is_none_and_a_file_of_another_person_are_refused():
    with refuses(ParamsError, PhaseMessage.NOT_A_RUN_NAME):
        plan.write_run_file("local", "a/b", {})
    with refuses(ParamsError, PhaseMessage.RUN_FILE_EXISTS, path_name="local.yaml"):
        plan.write_run_file("local", "local", {})
