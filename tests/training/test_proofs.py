"""A smoke test loads its own checkpoint again and measures the network."""

from __future__ import annotations

import pytest

from . import specs

pytestmark = pytest.mark.training


@pytest.mark.parametrize(
    ("engine", "layout"),
    [
        ("megatron-core", {"copies": 2}),
        ("megatron-core", {"tensor": 2}),
        ("megatron-core", {"pipeline": 2}),
        ("deepspeed", {"copies": 2, "zero_stage": 1}),
    ],
)
def test_the_checkpoint_is_loaded_again_over_spoiled_weights(zygote, run, engine, layout):
    content = specs.spec(iterations=2, engine=engine, **layout)
    content["phase"] = "03-smoke-test"
    job = zygote.train(run, content, phase="03-smoke-test")
    assert job.code == 0, job.err[-3000:]
    events = {event["event"]: event for event in job.events()}
    reloaded = events["reloaded"]
    assert (reloaded["iteration"], reloaded["saved_iteration"]) == (2, 2)
    assert reloaded["folder"] == events["saved"]["folder"]
    assert reloaded["loss_between"] != reloaded["loss_before"]
    assert reloaded["loss_after"] == reloaded["loss_before"]
    assert events["network"]["ranks"] == 2
    assert events["network"]["bytes_per_second"] > 0
    assert list(events)[-1] == "finished"
    assert [line["iteration"] for line in job.metrics] == [1, 2]


def test_a_full_run_proves_nothing_at_its_end(zygote, run):
    job = zygote.train(run, specs.spec(iterations=1))
    assert {"network", "reloaded"} & {event["event"] for event in job.events()} == set()
