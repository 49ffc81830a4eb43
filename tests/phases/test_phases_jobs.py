"""A long job is submitted once, found again, resumed where it stopped, and never mixed with another."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest
from toy_run import events, open_run, write_metrics

from runbook.errors import HeldError, JobError
from runbook.phases import begun, jobs, steps, training
from runbook.phases.campaign import HOLDER_VARIABLE, phase_fingerprint
from runbook.phases.status import refuse_while_a_job_runs
from runbook.schedulers.base import State
from runbook.schedulers.lock import hold

PHASE = "04-training"


@pytest.fixture
def campaign(runs, queue):
    return open_run(PHASE, runs=runs)


def job_names(campaign) -> list[str]:
    return sorted(path.name for path in (campaign.folder / "jobs").glob("*"))


def test_a_job_is_submitted_with_its_script_and_an_event(campaign, queue, capsys):
    jobs.launch(campaign)
    assert queue.calls == ["submit 04-training"]
    assert events(campaign) == ["begun", "submitted"]
    assert (campaign.folder / "jobs/04-training/job.sh").read_text().startswith("#!")
    assert "Not done yet: submitted jobs/04-training as fake-04-training." in capsys.readouterr().out


def test_launching_again_finds_the_running_job(campaign, queue, capsys):
    jobs.launch(campaign)
    jobs.launch(open_run(PHASE, runs=campaign.folder.parent))
    assert queue.calls == ["submit 04-training"]
    assert "of 04-training is running; it is watched, not started again." in capsys.readouterr().out


def test_a_job_that_finished_while_nobody_watched_is_not_started_again(campaign, queue, capsys):
    jobs.launch(campaign)
    write_metrics(campaign, 6)
    queue.states["04-training"] = State.DONE
    jobs.launch(campaign)
    jobs.watch(campaign)
    assert queue.calls == ["submit 04-training"]
    assert jobs.is_done(campaign)
    assert "finished while nobody watched; nothing is started again" in capsys.readouterr().out
    jobs.launch(campaign)
    jobs.watch(campaign)
    assert capsys.readouterr().out.count("done, verified") == 2


@pytest.mark.parametrize("state", [State.FAILED, State.CANCELLED, State.STOPPED, State.LOST])
def test_a_job_that_ended_early_is_followed_by_another_over_the_same_files(campaign, queue, state):
    jobs.launch(campaign)
    metrics = write_metrics(campaign, 3)
    queue.states["04-training"] = state
    jobs.launch(campaign)
    assert queue.calls == ["submit 04-training", "submit 04-training-2"]
    assert events(campaign) == ["begun", "submitted", "submitted"]
    assert metrics.exists()


def test_a_job_that_runs_with_other_values_is_neither_watched_nor_moved_from_under(campaign, queue):
    """Its outputs would be taken for those of the new values."""
    jobs.launch(campaign)
    metrics = write_metrics(campaign, 3)
    (campaign.folder / "run.yaml").unlink()
    other = open_run(PHASE, "training.iterations=9", runs=campaign.folder.parent)
    told = r"jobs/04-training is running \(told so\) with other parameters or data than these\. .*runbook cancel local"
    with pytest.raises(JobError, match=told):
        jobs.launch(other)
    assert metrics.exists()
    assert queue.calls == ["submit 04-training"]
    with pytest.raises(JobError, match=r"what it works on is not moved away\. Wait until it has ended, or end it: run"):
        refuse_while_a_job_runs(campaign.folder, queue)
    queue.states["04-training"] = State.CANCELLED
    refuse_while_a_job_runs(campaign.folder, queue)


def test_outputs_of_other_values_are_set_aside_and_nothing_is_lost(campaign, queue, capsys):
    jobs.launch(campaign)
    metrics = write_metrics(campaign, 6)
    written = metrics.read_bytes()
    (campaign.folder / "checkpoints" / "iter_0000006").mkdir(parents=True)
    queue.states["04-training"] = State.DONE
    (campaign.folder / "run.yaml").unlink()
    jobs.launch(open_run(PHASE, "training.seed=9", runs=campaign.folder.parent))
    (history,) = (campaign.folder / "history").iterdir()
    assert (history / "metrics.jsonl").read_bytes() == written
    assert (history / "checkpoints" / "iter_0000006").is_dir()
    assert not metrics.exists()
    assert f"were moved to history/{history.name}." in capsys.readouterr().out
    assert events(campaign) == ["begun", "submitted", "begun", "submitted"]


def saved_at(campaign, iteration: int) -> None:
    (campaign.folder / "checkpoints" / f"iter_{iteration:07d}").mkdir(parents=True)


def replanned(campaign, queue, *words: str):
    """Launch what somebody changed after the first jobs, and give the run's history folders."""
    queue.states["04-training"] = State.STOPPED
    (campaign.folder / "run.yaml").unlink()
    jobs.launch(open_run(PHASE, *words, runs=campaign.folder.parent))
    return list((campaign.folder / "history").glob("*"))


def test_a_longer_training_goes_on_from_its_checkpoint_and_says_what_becomes_of_the_rate(campaign, queue, capsys):
    jobs.launch(campaign)
    metrics = write_metrics(campaign, 6)
    saved_at(campaign, 6)
    assert replanned(campaign, queue, "training.iterations=12", "training.warmup_iterations=2") == []
    assert metrics.exists()
    assert events(campaign) == ["begun", "submitted", "replanned", "submitted"]
    told = capsys.readouterr().out
    assert "The training goes on from its checkpoint of iteration 6: iterations 6 -> 12. The learning rate" in told
    assert "0.000825 in the next step, where the old plan had 0.00015." in told
    assert "training.decay_samples=48 would keep the old rate. To begin anew instead: runbook run with --redo" in told
    jobs.launch(open_run(PHASE, "training.iterations=12", runs=campaign.folder.parent))
    assert len(queue.calls) == 2


def test_a_rate_that_does_not_depend_on_the_length_is_said_to_be_undisturbed(runs, queue, capsys):
    words = ("training.decay_iterations=6",)
    campaign = open_run(PHASE, *words, runs=runs)
    jobs.launch(campaign)
    saved_at(campaign, 4)
    assert replanned(campaign, queue, *words, "training.iterations=12") == []
    assert "does not depend on the length: the losses are those of one undisturbed training." in capsys.readouterr().out


@pytest.mark.parametrize(
    ("word", "told"),
    [
        ("parallel.tensor=2", "of iteration 4: tensor 1 -> 2, data 2 -> 1."),
        ("parallel.pipeline=2", "of iteration 4: pipeline 1 -> 2, data 2 -> 1."),
        ("training.micro_batch=2", "of iteration 4: micro-batch 4 -> 2."),
        ("training.engine=deepspeed", "the weights are taken up, and Adam begins anew."),
    ],
)
def test_another_cut_goes_on_too(campaign, queue, capsys, word, told):
    jobs.launch(campaign)
    saved_at(campaign, 4)
    assert replanned(campaign, queue, word) == []
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
def test_another_training_or_a_shorter_one_begins_anew_with_the_old_kept(campaign, queue, word):
    jobs.launch(campaign)
    saved_at(campaign, 4)
    (history,) = replanned(campaign, queue, word)
    assert (history / "checkpoints" / "iter_0000004").is_dir()
    assert events(campaign)[-2:] == ["begun", "submitted"]


def test_a_training_that_an_older_program_began_can_be_prolonged_once_it_was_resumed(campaign, queue):
    jobs.launch(campaign)
    saved_at(campaign, 4)
    started = begun.started_path(campaign.folder, PHASE)
    started.write_text(started.read_text().partition("\n")[0])  # as it was written then
    queue.states["04-training"] = State.STOPPED
    jobs.launch(campaign)
    queue.states["04-training-2"] = State.STOPPED
    assert replanned(campaign, queue, "training.iterations=12") == []


def test_a_smoke_test_is_never_prolonged(runs, queue):
    smoke = open_run("03-smoke-test", runs=runs)
    jobs.launch(smoke)
    (smoke.folder / "smoke" / "checkpoints" / "iter_0000012").mkdir(parents=True)
    queue.states["03-smoke-test"] = State.STOPPED
    (smoke.folder / "run.yaml").unlink()
    jobs.launch(open_run("03-smoke-test", "training.smoke.iterations=20", runs=runs))
    assert len(list((smoke.folder / "history").iterdir())) == 1


def test_what_is_set_aside_twice_in_a_second_lies_in_two_places(tmp_path, monkeypatch):
    monkeypatch.setattr("time.strftime", lambda *_: "20251121T060000Z")
    for number in (1, 2, 3):
        (tmp_path / "smoke").mkdir(exist_ok=True)
        (tmp_path / "smoke" / "metrics.jsonl").write_text(str(number))
        moved = jobs.set_aside(tmp_path, "03-smoke-test", [tmp_path / "smoke" / "metrics.jsonl", tmp_path / "none"])
        assert moved is not None
        assert (moved / "smoke--metrics.jsonl").read_text() == str(number)
    assert len(list((tmp_path / "history").iterdir())) == 3
    assert jobs.set_aside(tmp_path, "03-smoke-test", [tmp_path / "none"]) is None


def test_a_stopped_job_is_resumed_as_long_as_each_job_makes_a_step(campaign, queue, capsys, monkeypatch):
    """Six jobs of one step each come to the end; the same number without a step does not."""
    queue.after_submit = State.STOPPED
    done = iter(range(1, 7))

    def follow(campaign, enough=None):
        rows = next(done, 6)
        write_metrics(campaign, rows)
        name = job_names(campaign)[-1]
        return replace(
            queue.state(jobs.JobFolder(campaign.folder / "jobs" / name)),
            state=State.DONE if rows == 6 else State.STOPPED,
        )

    monkeypatch.setattr(jobs, "follow", follow)
    jobs.launch(campaign)
    jobs.watch(campaign)
    assert len(queue.calls) == 6
    assert jobs.is_done(campaign)
    assert capsys.readouterr().out.count("The job ended as stopped (told so); it goes on as jobs/04-training-") == 5


def test_a_job_that_stops_again_and_again_without_a_step_is_not_resumed_for_ever(campaign, queue):
    queue.after_submit = State.LOST
    jobs.launch(campaign)
    with pytest.raises(JobError, match=r"04-training ended as lost \(told so\)"):
        jobs.watch(campaign)
    assert len(queue.calls) == 1 + campaign.settings.job(PHASE).restarts


def test_a_failed_job_is_told_in_its_own_last_words(campaign, queue):
    queue.after_submit = State.FAILED
    jobs.launch(campaign)
    folder = campaign.folder / "jobs" / "04-training"
    (folder / "err").write_text("".join(f"line {n}\n" for n in range(100)) + "RuntimeError: no such thing\n")
    (folder / "out").write_text("said\n")
    with pytest.raises(JobError) as error:
        jobs.watch(campaign)
    text = str(error.value)
    assert text.startswith("04-training ended as failed (told so). Its last words:\n")
    assert "  RuntimeError: no such thing\n  said\n" in text
    assert f"The whole log: {folder / 'err'} and {folder / 'out'}." in text
    assert "line 1\n" not in text
    assert len(queue.calls) == 1


def test_watching_before_launching_says_what_to_do(campaign):
    with pytest.raises(JobError, match="04-training has no job: run the cell that launches it first"):
        jobs.watch(campaign)


def test_a_job_that_ended_by_itself_before_it_was_asked_to_stop_is_no_error(campaign, queue, monkeypatch):
    jobs.launch(campaign)

    def too_late(folder, signal_name):
        queue.states["04-training"] = State.DONE
        raise JobError("only a running job can be sent SIGTERM")

    monkeypatch.setattr(queue, "signal", too_late)
    assert jobs.stop_gently(campaign).state is State.DONE


def test_a_signal_that_cannot_be_sent_to_a_running_job_is_an_error(campaign, queue, monkeypatch):
    jobs.launch(campaign)

    def elsewhere(folder, signal_name):
        raise JobError("runs on another host")

    monkeypatch.setattr(queue, "signal", elsewhere)
    with pytest.raises(JobError, match="another host"):
        jobs.stop_gently(campaign)


def test_the_rehearsed_stop_happens_once(runs, queue, capsys):
    campaign = open_run(PHASE, "training.rehearse_stop=3", runs=runs)
    jobs.launch(campaign)
    write_metrics(campaign, 3)
    queue.after_submit = State.DONE
    training.rehearse_stop(campaign)
    assert queue.calls == ["submit 04-training", "SIGTERM 04-training", "submit 04-training-2"]
    assert "Stopped before the first step, exit code 75; goes on as jobs/04-training-2." in capsys.readouterr().out
    jobs.append_event(campaign, "stopped", iteration=3, signal="SIGTERM")
    training.rehearse_stop(campaign)
    assert len(queue.calls) == 3
    assert "already stopped and resumed; it is not done twice" in capsys.readouterr().out


def test_no_stop_is_rehearsed_where_none_was_asked_for(campaign, queue, capsys):
    training.rehearse_stop(campaign)
    assert queue.calls == []
    assert "training.rehearse_stop is 0: no stop is rehearsed." in capsys.readouterr().out


def test_a_job_that_was_faster_than_the_rehearsal_is_left_done(runs, queue, capsys):
    campaign = open_run(PHASE, "training.rehearse_stop=3", runs=runs)
    jobs.launch(campaign)
    write_metrics(campaign, 6)
    queue.states["04-training"] = State.DONE
    training.rehearse_stop(campaign)
    assert queue.calls == ["submit 04-training"]
    assert "The job finished before it could be stopped at iteration 3." in capsys.readouterr().out


def test_a_resume_from_the_checkpoint_of_another_training_does_not_pass(campaign):
    own = {"event": "resumed", "folder": "checkpoints/iter_0000003", "same_fingerprint": True}
    assert training.own_checkpoints(campaign, [{"event": "started"}]) == []
    assert [check.verdict for check in training.own_checkpoints(campaign, [own])] == ["pass"]
    (check,) = training.own_checkpoints(campaign, [own, own | {"same_fingerprint": False}])
    assert (check.verdict, check.value) == ("fail", "checkpoints/iter_0000003: of another training")
    assert check.rule.endswith("if not: runbook run local --redo training begins anew")


def test_while_somebody_else_works_on_the_run_nothing_is_submitted(campaign, queue, monkeypatch):
    with hold(campaign.folder, "runbook run local"):
        with pytest.raises(HeldError, match="runbook run local, since"):
            jobs.launch(campaign)
        assert queue.calls == []
        monkeypatch.setenv(HOLDER_VARIABLE, str(campaign.folder))
        jobs.launch(campaign)
    assert queue.calls == ["submit 04-training"]


def test_a_phase_is_not_opened_by_hand_while_runbook_run_works_on_it(campaign, runs, monkeypatch):
    """Its record would be set aside under the notebook that writes it."""
    record = campaign.folder / "records" / "04-training.json"
    before = record.read_bytes()
    with hold(campaign.folder, "runbook run local"):
        with pytest.raises(HeldError, match=r"runbook run local, since .* Wait until it has ended, or end it"):
            open_run(PHASE, runs=runs)
        assert record.read_bytes() == before
        monkeypatch.setenv(HOLDER_VARIABLE, str(campaign.folder))
        open_run(PHASE, runs=runs)


def test_the_outputs_of_a_training_are_its_metrics_and_its_newest_checkpoint(campaign):
    write_metrics(campaign, 2)
    for number in (10, 20):
        folder = campaign.folder / "checkpoints" / f"iter_00000{number}"
        (folder / "deep").mkdir(parents=True)
        (folder / "deep" / "weights").write_text("w")
    names = [path.relative_to(campaign.folder).as_posix() for path in jobs.training_outputs(campaign)]
    assert names == ["metrics.jsonl", "checkpoints/iter_0000020/deep/weights"]


def test_training_waits_for_the_smoke_test_and_the_token_files_of_these_values(campaign, capsys):
    assert training.gate_check(campaign).verdict == "fail"
    assert training.gate_check(campaign).rule.endswith("run 03-smoke-test.ipynb first")
    assert training.data_check(campaign).value == "not made"
    gate = campaign.folder / "smoke" / "gate.json"
    gate.parent.mkdir(exist_ok=True)
    gate.write_text(json.dumps({"verdict": "pass", "fingerprint": "of other values"}))
    assert training.gate_check(campaign).value == "done with other parameters"
    digest = phase_fingerprint(campaign.settings, campaign.plan, campaign.folder, "03-smoke-test")
    for verdict in ("pass", "fail"):
        gate.write_text(json.dumps({"verdict": verdict, "fingerprint": digest}))
        assert training.gate_check(campaign).verdict == verdict
    steps.write_mark(campaign.folder, "02-data--tokenize", 1, "abc", [gate])
    assert (training.data_check(campaign).verdict, training.data_check(campaign).value) == ("pass", "1 files")
    gate.write_text("changed")
    assert training.data_check(campaign).verdict == "fail"
    assert training.data_check(campaign).value.startswith("smoke/gate.json has 7 bytes instead of ")
