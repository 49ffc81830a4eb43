"""The facts of a running job's picture, a person's wish that it stops, and values chosen by hand."""

from __future__ import annotations

import json
import os

import pytest
from toy_run import FakeScheduler, open_run

from runbook import params
from runbook.errors import ParamsError
from runbook.phases import choosing, jobs, stopping, watching
from runbook.schedulers.base import JobStatus, State

ROW = {"iteration": 2, "loss": 9.5, "seconds": 0.5, "tokens_per_second": 8191.6, "tflops_per_device": 0.05}


def write_rows(campaign, *rows) -> None:
    path = campaign.folder / campaign.spec["log"]["metrics"]
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))


def test_the_picture_of_a_running_job_says_all_that_its_files_know(runs, queue):
    campaign = open_run("04-training", runs=runs)
    picture = watching.picture_of(campaign.settings, campaign.spec, campaign.folder)
    waiting = picture.facts(JobStatus(State.PENDING, "77", None, "Priority, 3rd of 12"))
    assert (waiting["state"], waiting["queue"]) == ("pending", "Priority, 3rd of 12")
    write_rows(campaign, {**ROW, "iteration": 1, "loss": 10.5}, {**ROW, "memory_bytes": 2**30})
    facts = picture.facts(JobStatus(State.RUNNING, "77", None, ""))
    assert (facts["done"], facts["loss"], facts["tokens/s"], facts["memory"]) == (2, 9.5, 8192, "1.00 GiB")
    assert (facts["losses"], facts["left"], facts["queue"]) == ("█▁", "2.00 s", None)
    assert "MFU" in facts
    ended = picture.facts(JobStatus(State.DONE, "77", 0, "", started=100.0, ended=160.0))
    assert (ended["left"], ended["in use"], ended["ran"]) == (None, None, "1 min")
    assert picture.curve() == ("loss", [(1, 10.5), (2, 9.5)])


def test_mfu_names_its_peak_or_says_that_none_is_known():
    spec = {"duration": {"iterations": 4}}
    assert watching.training_facts([ROW], spec, 0.2, True)["MFU"] == "25.0% of 0.2 TFLOP/s"
    assert watching.training_facts([ROW], spec, None, True)["MFU"] == "not known: no peak of this device"


def test_gpus_are_asked_where_the_job_runs_here(monkeypatch, tmp_path):
    """A made-up nvidia-smi, for there is no GPU here."""
    program = tmp_path / "nvidia-smi"
    program.write_text("#!/bin/sh\necho '98, 40536'\n")
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    assert watching.gpus_in_use(watching.ask_gpus) == ["GPU 0 98 %, 40536 MiB"]


def test_a_gentle_stop_asks_every_living_job_once_and_nothing_resumes_it(runs, queue: FakeScheduler):
    campaign = open_run("04-training", runs=runs)
    assert stopping.stop_gently(campaign.folder, queue) == "No job of this run is running; none was stopped."
    jobs.launch(campaign)
    folder = jobs._latest(campaign)
    assert not stopping.was_asked(folder)
    said = stopping.stop_gently(campaign.folder, queue)
    assert said == "04-training: asked to save and stop; it ends with exit code 75 when it has saved"
    assert queue.calls[-1] == "SIGTERM 04-training"
    assert stopping.was_asked(folder)
    before = len(queue.calls)
    with pytest.raises(Exception, match="ended as stopped"):
        jobs.watch(campaign)
    assert [call for call in queue.calls[before:] if call.startswith("submit")] == []
    jobs.launch(campaign)
    assert queue.calls[-1] == "submit 04-training-2", "launching again is a person's wish to go on"


KEYS = ("model", "training.micro_batch", "training.global_batch", "parallel.tensor")


def test_a_choice_that_breaks_a_rule_is_told_at_the_field_that_was_changed():
    assert choosing.consider("local", {}, KEYS).errors == {}
    wrong = choosing.consider("local", {"training.micro_batch": "3"}, KEYS)
    assert list(wrong.errors) == ["training.micro_batch"]
    assert "the global batch divides by micro-batch x data copies" in wrong.errors["training.micro_batch"]
    both = choosing.consider("local", {"training.micro_batch": "x", "model": "nope"}, KEYS).errors
    assert set(both) == {"training.micro_batch", "model"}
    elsewhere = choosing.consider("local", {"training.seed": "x"}, KEYS).errors
    assert list(elsewhere) == [""]
    assert elsewhere[""].startswith("training.seed: ")


def test_every_key_of_the_schema_is_a_field_with_its_help():
    found = choosing.fields(params.load("local"))
    names = [field.key for group in found.values() for field in group]
    assert sorted([*names, "run"]) == sorted(params.all_keys())
    assert [field.key for field in found[""]][:3] == ["site", "model", "data.dataset"]
    assert all(field.help for group in found.values() for field in group)


@pytest.mark.parametrize("run", ["local", "lumi-13b", "azure-175b"])
def test_a_written_run_file_means_the_same_as_the_run_with_its_changes(run, tmp_path):
    settings = params.load(run, set_words=["training.seed=7"])
    path = tmp_path / "chosen.yaml"
    path.write_text(choosing.file_text(settings, "chosen"))
    again = params.check(str(path), project=settings.project)
    assert again.value("training.seed") == 7
    left_out = {"run"}
    assert {k: v for k, v in again.values().items() if k not in left_out} == {
        k: v for k, v in settings.values().items() if k not in left_out
    }


def test_a_name_that_is_none_and_a_file_of_another_person_are_refused():
    with pytest.raises(ParamsError, match="cannot be a run's name"):
        choosing.write("local", "a/b", {})
    with pytest.raises(ParamsError, match=r"local\.yaml exists already and was not written by this form"):
        choosing.write("local", "local", {})


def test_a_measured_bandwidth_inside_one_node_is_no_open_question():
    from runbook.phases.smoke_test import inside_a_node
    from runbook.plan import Check

    measured = Check("network bandwidth", "unknown", "1.89 GB/s over 2 ranks", "the site does not say")
    assert inside_a_node(measured).verdict == "pass"
    assert inside_a_node(Check("network bandwidth", "unknown", "not measured", "a sum")).verdict == "unknown"
    assert inside_a_node(Check("network bandwidth", "fail", "1 GB/s", "at least")).verdict == "fail"
