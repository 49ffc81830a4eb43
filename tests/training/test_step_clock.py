"""Timing the parts of a step on a GPU: real training in which the clock gets events from a
simulated stream.
"""

import os
import warnings

import pytest

with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # megatron-core warns when it is imported
    from runbook.training.engines.engine import COMPUTE, StepClock

from . import specs

pytestmark = pytest.mark.training
COPY = 0.25
FORWARD = 1.0
REDUCTION = 0.5
OPTIMIZER = 0.125
"""Seconds of work in the stream. Forward and backward passes take twice as long on rank 1 as on
rank 0.
"""


class Stream:
    """The stream gets its work without delay, and has finished it when the host waits."""

    queued = passed = 0.0


class Event:
    """A CUDA event, which cannot be read before the stream has passed it."""

    def record(self):
        self.at = Stream.queued

    def elapsed_time(self, end):
        assert max(self.at, end.at) <= Stream.passed, (
            "not ready: the stream has not passed both events"
        )
        return 1000 * (end.at - self.at)


def on_a_gpu():
    """Add stream work to the work on the CPU, and look for slow ranks in windows of one step."""
    import torch

    from runbook.plan_file import slow_ranks
    from runbook.training import batch_reader
    from runbook.training.engines import engine, megatron_engine

    def queue(module, name, seconds):
        function = getattr(module, name)

        def with_work(*arguments, **options):
            answer = function(*arguments, **options)
            Stream.queued += seconds
            return answer

        setattr(module, name, with_work)

    engine.StepClock = lambda _: StepClock(Event)
    queue(batch_reader.ReadAhead, "_wait_for_batch", COPY)
    queue(megatron_engine, "_forward_loss", FORWARD * (1 + int(os.environ["RANK"])))
    queue(megatron_engine, "finalize_model_grads", REDUCTION)
    queue(megatron_engine.MegatronEngine, "update", OPTIMIZER)
    copy_to_host = torch.Tensor.tolist

    def wait_and_copy(tensor):
        Stream.passed = Stream.queued
        return copy_to_host(tensor)

    torch.Tensor.tolist = wait_and_copy
    slow_ranks.WINDOW_STEPS = 1
    slow_ranks.WINDOW_SECONDS = 0.0


def test_on_a_gpu_parts_and_rank_times_are_those_of_its_stream_read_without_a_wait_of_their_own(
    zygote, run
):
    content = specs.spec(copies=2, iterations=6, evaluation={"interval": 2, "iterations": 1})
    job = zygote.train(run, content, patch="training.test_step_clock:on_a_gpu")
    assert job.code == 0, job.err[-2000:]
    count = content["batch"]["num_microbatches"]
    slow = count * (COPY + 2 * FORWARD)  # on the rank that writes the metrics
    for line in job.metrics:
        assert line["data_wait_seconds"] == pytest.approx(count * COPY)
        assert line["communication_seconds"] == pytest.approx(REDUCTION)
        assert line["forward_backward_seconds"] == pytest.approx(slow + REDUCTION)
    late = [
        line.get("optimizer_seconds") for line in job.metrics
    ]  # each line has that of the previous step
    assert late == [None, *[pytest.approx(OPTIMIZER)] * 5]
    times = [
        (line["iteration"], line["steps"], line["seconds"])
        for line in specs.metrics(run, "rank_times.jsonl")
    ]
    assert times == [(n, 1, pytest.approx([slow - count * FORWARD, slow])) for n in range(2, 7)]
    [event] = job.events("alarm")
    assert (event["kind"], event["rank"], event["value"]) == ("slow rank", 1, pytest.approx(slow))


def test_a_part_within_the_same_part_is_counted_once_and_what_was_forgotten_never():
    clock = StepClock(Event)
    with clock.during(COMPUTE):
        for part in (COMPUTE, "evaluation"):
            with clock.during(part):
                Stream.queued += 1.0
    clock.forget("evaluation")
    with pytest.raises(AssertionError, match="not ready"):
        clock.take()
    with clock.during(COMPUTE):
        Stream.queued += 3.0
    Stream.passed = Stream.queued
    assert clock.take() == {COMPUTE: pytest.approx(3.0)} and clock.take() == {}
