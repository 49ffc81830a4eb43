"""Batch ramp-up, loss scales, frequent saves and frequent stops, each compared with a plain
computation.
"""

import re

import pytest
from suite.messages import containing, says

from runbook.plan_file.messages import AlarmMessage
from runbook.plan_file.rules.codes import RuleCode
from runbook.training.messages import TrainingMessage

from . import specs

pytestmark = pytest.mark.training

RAMP = {"start": 2, "increment": 2, "samples": 12}


def ramped(iterations, copies=1):
    """Return a plan with a batch ramp and its batch sizes, worked out by hand.

    The sizes are 2 2 | 4 | 6 | 8 8 ..., in stages of 4 samples.
    """
    sizes = ([2, 2, 4, 6] + [8] * iterations)[:iterations]
    content = specs.spec(iterations=iterations, copies=copies)
    content["batch"]["ramp"] = RAMP
    content["duration"]["samples"] = sum(sizes)
    return content, sizes


def test_a_ramp_takes_the_batches_of_megatrons_rule(zygote, run, tmp_path_factory, corpus):
    content, sizes = ramped(6)
    job = zygote.train(run, content)
    assert job.code == 0, job.err
    assert [line["global_batch"] for line in job.metrics] == sizes
    assert [line["consumed_samples"] for line in job.metrics] == [
        sum(sizes[: n + 1]) for n in range(6)
    ]
    lines = [line for line in job.out.splitlines() if " iteration " in line]
    printed = [re.findall(r"global batch size: +(\d+) \|", line) for line in lines]
    assert printed == [[str(size)] for size in sizes]
    both = tmp_path_factory.mktemp("both")
    (both / "data").symlink_to(corpus)
    content, _ = ramped(6, copies=2)
    assert zygote.train(both, content).losses() == pytest.approx(job.losses(), rel=1e-5)


def test_a_ramp_that_does_not_fit_is_refused(zygote, run):
    content, _ = ramped(6)
    content["batch"]["ramp"] = {"start": 3, "increment": 2, "samples": 12}
    job = zygote.train(run, content)
    assert job.code == 2
    rule = RuleCode.BATCH_RAMP.message
    assert says(
        job.err,
        f"{rule.value}: {rule.rule}",
        start=3,
        increment=2,
        global_batch=8,
        samples=12,
    )


def fp16(zygote, run, **precision):
    content = specs.spec(precision="fp16", iterations=6)
    content["precision"] |= {"loss_scale_window": 1000, **precision}
    job = zygote.train(run, content, patch="training.poison:fp16")
    assert job.code == 0, job.err
    return job


def test_a_static_loss_scale_stays_and_fp16_follows_fp32(zygote, run, tmp_path_factory, corpus):
    folder = tmp_path_factory.mktemp("full")
    (folder / "data").symlink_to(corpus)
    full = zygote.train(folder, specs.spec(iterations=6)).losses()
    job = fp16(zygote, run, static_loss_scale=128.0)
    assert [line["loss_scale"] for line in job.metrics] == [128.0] * 6
    losses = [line["loss"] for line in job.metrics]
    assert losses == pytest.approx(full, abs=0.02)
    assert losses != full  # one of them may be rounded to the same value


@pytest.mark.parametrize("hysteresis", [1, 3])
def test_the_dynamic_scale_falls_after_as_many_overflows_as_hysteresis_says(
    hysteresis, zygote, run
):
    job = fp16(zygote, run, initial_loss_scale=2.0**40, hysteresis=hysteresis)
    expected = []
    scale = 2.0**40
    left = hysteresis
    for _ in range(6):
        left -= 1
        scale = scale / 2 if left <= 0 else scale
        expected.append(scale)
    assert [line["loss_scale"] for line in job.metrics] == expected
    assert [line["skipped"] for line in job.metrics] == [1] * 6
    assert all(line["grad_norm"] is None for line in job.metrics)


def test_the_dynamic_scale_grows_after_a_window_without_overflow(zygote, run):
    job = fp16(zygote, run, initial_loss_scale=64.0, loss_scale_window=2)
    assert [line["loss_scale"] for line in job.metrics] == [64.0, 128.0, 128.0, 256.0, 256.0, 512.0]


def test_a_collapsed_loss_scale_stops_the_training(zygote, run):
    content = specs.spec(precision="fp16", iterations=6)
    content["precision"] |= {
        "initial_loss_scale": 2.0**40,
        "minimum_loss_scale": 2.0**38,
        "hysteresis": 1,
    }
    job = zygote.train(run, content, patch="training.poison:fp16")
    assert job.code == 1
    assert says(
        job.err,
        TrainingMessage.BAD_VALUE,
        fault=TrainingMessage.GRADIENT_OVERFLOWS.fill(),
        bad=2.0**38,
        iteration=3,
        first_sample=16,
        last_sample=23,
    )
    assert job.events("bad_step")[0]["samples"] == list(range(16, 24))


def test_an_exit_interval_saves_and_stops_again_and_again(zygote, run):
    content = specs.spec(iterations=5, limits={"exit_interval": 2})
    codes = [zygote.train(run, content).code for _ in range(3)]
    assert codes == [75, 75, 0]
    lines = specs.metrics(run)
    assert [line["iteration"] for line in lines] == [1, 2, 3, 4, 5]
    assert [line["segment"] for line in lines] == [0, 0, 1, 1, 2]


@pytest.mark.parametrize("engine", ["megatron-core", "deepspeed"])
def test_speed_is_held_against_both_peaks_and_told_by_rank_and_part(engine, zygote, run):
    every = 2 if engine == "deepspeed" else 1
    content = specs.spec(engine=engine, copies=2, iterations=10, log={"peak_tflops": 2.0})
    job = zygote.train(run, content, patch="training.hanging:thinned" if every == 2 else "")
    assert job.code == 0, job.err
    times = specs.metrics(run, "rank_times.jsonl")
    assert [(line["iteration"], line["steps"]) for line in times] == [
        (n, every) for n in range(every, 11, every)
    ]
    assert all(len(line["seconds"]) == 2 and min(line["seconds"]) > 0 for line in times)
    for line in job.metrics:
        assert line["mfu"] == pytest.approx(line["tflops_per_device"] / 2.0)
        assert line["mfu_measured"] > 0
        parts = line["forward_backward_seconds"] + line["optimizer_seconds"]
        assert (
            0
            < line["communication_seconds"]
            < line["forward_backward_seconds"]
            < parts
            <= line["seconds"]
        )


def test_no_clipping_takes_the_gradient_as_it_is(zygote, run):
    job = zygote.train(run, specs.spec(iterations=3, optimizer={"clip_gradient": 0.0}))
    assert job.code == 0, job.err
    assert all(line["grad_norm"] > 0 for line in job.metrics)


NAN = {"RUNBOOK_FAULTS": "nan:step=5"}


class TestBadSteps:
    def content(self, policy, **options):
        limits = {"nan_policy": policy}
        return specs.spec(
            iterations=8, copies=2, checkpoint={"interval": 2}, limits=limits, **options
        )

    def test_stop_writes_the_samples_and_saves_nothing(self, zygote, run):
        job = zygote.train(run, self.content("stop"), extra=NAN)
        assert job.code == 1
        assert says(
            job.err,
            TrainingMessage.BAD_VALUE,
            fault=containing("the loss"),
            bad="nan",
            iteration=5,
            first_sample=32,
            last_sample=39,
        )
        (event,) = job.events("bad_step")
        assert (event["action"], event["samples"], event["what"]) == (
            "stop",
            list(range(32, 40)),
            "the loss",
        )
        assert (run / "checkpoints" / "latest_checkpointed_iteration.txt").read_text() == "4\n"
        again = zygote.train(run, None, world_size=2)
        assert again.code == 0 and again.metrics[-1]["iteration"] == 8

    def test_skip_and_rollback_leave_the_same_samples_out(
        self, zygote, run, tmp_path_factory, corpus
    ):
        skipped = zygote.train(run, self.content("skip"), extra=NAN)
        assert skipped.code == 0, skipped.err
        assert skipped.metrics[4]["loss"] is None and skipped.metrics[4]["skipped"] == 1
        folder = tmp_path_factory.mktemp("rollback")
        (folder / "data").symlink_to(corpus)
        back = zygote.train(folder, self.content("rollback"), extra=NAN)
        assert back.code == 0, back.err
        assert [event["action"] for event in back.events("bad_step")] == ["rollback"]
        assert back.events("rolled_back")[0]["iteration"] == 4
        lines = [(line["iteration"], line["segment"], line["loss"]) for line in back.metrics]
        assert [line[:2] for line in lines] == [(n, 0) for n in (1, 2, 3, 4, 5)] + [
            (n, 1) for n in (5, 6, 7, 8)
        ]
        assert [line[2] for line in lines[5:]] == [line["loss"] for line in skipped.metrics[4:]]
        resumed = zygote.train(folder, self.content("rollback", fingerprint="f" * 64))
        assert resumed.code == 0

    def test_a_kill_after_a_rollback_does_not_bring_its_samples_back(self, zygote, run):
        content = specs.spec(
            iterations=8, checkpoint={"interval": 4}, limits={"nan_policy": "rollback"}
        )
        job = zygote.train(run, content, extra={"RUNBOOK_FAULTS": "nan:step=6;kill:step=7"})
        assert job.codes == [-9] and job.metrics[-1]["iteration"] == 6
        again = zygote.train(run, None, world_size=1)
        assert again.code == 0, again.err
        lines = [
            (line["iteration"], line["loss"] is None)
            for line in again.metrics
            if line["segment"] == 2
        ]
        assert lines == [(5, False), (6, True), (7, False), (8, False)]

    def test_rollback_without_a_checkpoint_stops(self, zygote, run):
        job = zygote.train(run, self.content("rollback"), extra={"RUNBOOK_FAULTS": "nan:step=1"})
        assert job.code == 1
        reason = TrainingMessage.NOTHING_TO_GO_BACK_TO.fill()
        assert says(job.err, TrainingMessage.BAD_VALUE, iteration=1, reason=reason)

    def test_skipping_for_ever_stops(self, zygote, run):
        job = zygote.train(run, self.content("skip"), extra={"RUNBOOK_FAULTS": "nan"})
        assert job.code == 1
        reason = TrainingMessage.TOO_MANY_BAD_STEPS.fill(in_a_row=4, limit=3)
        assert says(job.err, TrainingMessage.BAD_VALUE, reason=reason)
        assert [event["action"] for event in job.events("bad_step")] == ["skip"] * 3 + ["stop"]

    def test_a_spike_is_noted_or_skipped_or_rolled_back(
        self, zygote, run, tmp_path_factory, corpus
    ):
        """After a skip or a rollback, the steps equal those of a run that left out the same batch.

        That run left the batch out because of a NaN.
        """
        jobs = {}
        for policy, fault in (
            ("note", "spike"),
            ("skip", "spike"),
            ("rollback", "spike"),
            ("", "nan"),
            ("skip after the alarms begin", "spike"),
        ):
            limits = {"nan_policy": "skip"} if fault == "nan" else {}
            log = {}
            if policy == "skip after the alarms begin":
                limits = {"spike_policy": "skip"}
                log = {"alarms_after": 7}
            elif policy:
                limits = {"spike_policy": policy}
            content = specs.spec(iterations=8, checkpoint={"interval": 4}, limits=limits, log=log)
            folder = tmp_path_factory.mktemp("spike")
            (folder / "data").symlink_to(corpus)
            jobs[policy] = zygote.train(
                folder, content, extra={"RUNBOOK_FAULTS": f"{fault}:step=6,factor=3"}
            )
            assert jobs[policy].code == 0, jobs[policy].err
        actions = {
            policy: [event["action"] for event in job.events("bad_step")]
            for policy, job in jobs.items()
        }
        assert actions == {
            "note": [],
            "skip": ["skip"],
            "rollback": ["rollback"],
            "": ["skip"],
            "skip after the alarms begin": [],
        }
        assert jobs["skip after the alarms begin"].events("alarm") == []
        losses = {policy: [line["loss"] for line in job.metrics] for policy, job in jobs.items()}
        assert losses["skip"][6:] == losses["rollback"][-2:] == losses[""][6:] != losses["note"][6:]
        assert jobs["rollback"].events("rolled_back")[0]["iteration"] == 4
        for policy in ("note", "skip", "rollback"):
            alarms = jobs[policy].events("alarm")
            assert len(alarms) == 1, alarms
            alarm = alarms[0]
            assert (alarm["kind"], alarm["since"]) == ("spike", 6)
            assert says(
                alarm["evidence"],
                AlarmMessage.AFTER_RECORDS,
                metric="loss",
                value=alarm["value"],
                finding=containing(AlarmMessage.JUMPED.fill()),
            )
            assert says(
                jobs[policy].out,
                TrainingMessage.ALARM,
                kind="spike",
                iteration=6,
                evidence=alarm["evidence"],
            )
        assert jobs[""].events("alarm")[0]["kind"] == "NaN"

    def test_a_spike_that_no_skipped_batch_ends_stops(self, zygote, run):
        content = specs.spec(iterations=8, limits={"spike_policy": "skip", "nan_limit": 1})
        job = zygote.train(run, content, extra={"RUNBOOK_FAULTS": "spike:step=5;spike:step=6"})
        assert job.code == 1
        reason = TrainingMessage.TOO_MANY_BAD_STEPS.fill(in_a_row=2, limit=1)
        assert says(
            job.err,
            TrainingMessage.BAD_VALUE,
            fault=TrainingMessage.LOSS_JUMPED.fill(),
            iteration=6,
            reason=reason,
        )

    def test_a_gradient_that_is_no_number_changes_no_weight(
        self, zygote, run, tmp_path_factory, corpus
    ):
        content = specs.spec(iterations=5, limits={"nan_policy": "skip"})
        job = zygote.train(run, content, patch="training.poison:gradient")
        assert job.code == 0, job.err
        folder = tmp_path_factory.mktemp("loss")
        (folder / "data").symlink_to(corpus)
        other = zygote.train(folder, content, extra={"RUNBOOK_FAULTS": "nan:step=3"})
        ours, theirs = ([line["loss"] for line in one.metrics] for one in (job, other))
        assert ours[:2] == theirs[:2] and ours[3:] == theirs[3:] and ours[2] and theirs[2] is None
        (event,) = job.events("bad_step")
        assert (event["what"], event["value"], event["iteration"]) == (
            TrainingMessage.GRADIENT_NORM.fill(),
            "nan",
            3,
        )
