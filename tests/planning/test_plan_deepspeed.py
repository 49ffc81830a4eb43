"""DeepSpeed's configuration in plan.json: only present for our DeepSpeed engine, and consistent
with the other values.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from runbook.frameworks.megatron import deepspeed_file
from runbook.params import Settings
from runbook.planning import make_plan

FP16 = {
    "precision": "fp16",
    "initial_loss_scale": 4096,
    "loss_scale_window": 500,
    "loss_scale_hysteresis": 3,
}


@pytest.mark.parametrize(
    ("training", "parallel", "device", "expected"),
    [
        ({"precision": "fp32"}, {"zero_stage": 0}, "cpu", {"prescale_gradients": True}),
        (
            {"precision": "bf16"},
            {"zero_stage": 3},
            "cpu",
            {"bf16": {"enabled": True, "check_grad_overflow": True}},
        ),
        (
            {"precision": "bf16"},
            {"zero_stage": 1, "pipeline": 2},
            "cpu",
            {"pipeline": {"pipe_partitioned": False, "grad_partitioned": False}},
        ),
        (
            {**FP16, "global_batch": 16},
            {"zero_stage": 2},
            "H100-SXM",
            {
                "fp16": {
                    "enabled": True,
                    "loss_scale": 0,
                    "loss_scale_window": 500,
                    "hysteresis": 3,
                    "min_loss_scale": 1,
                    "initial_scale_power": 12,
                },
            },
        ),
    ],
)
def test_the_configuration_follows_from_the_orders(
    settings: Callable[..., Settings],
    training: Any,
    parallel: Any,
    device: str,
    expected: dict[str, Any],
) -> None:
    made = settings(
        {"training": {"engine": "deepspeed", **training}, "parallel": parallel}, device=device
    )
    plan = make_plan(made, None)
    phases = plan.as_dict()["phases"]
    for spec in phases.values():
        content = spec["deepspeed"]
        assert content["train_batch_size"] == spec["batch"]["global"]
        assert content["train_micro_batch_size_per_gpu"] == spec["batch"]["micro"]
        zero = {"stage": parallel["zero_stage"], "reduce_bucket_size": spec["model"]["parameters"]}
        assert content["zero_optimization"] == zero, (
            "a bucket takes its memory, however few gradients there are"
        )
    full = phases["04-training"]
    assert {key: full["deepspeed"][key] for key in expected} == expected
    assert deepspeed_file(made, plan.phases["04-training"]).startswith('{\n  "train_batch_size": ')


def test_other_engines_have_none_and_keep_their_fingerprints(
    settings: Callable[..., Settings],
) -> None:
    plans = [
        make_plan(settings({"training": {"engine": engine}}), None).as_dict()["phases"][
            "04-training"
        ]
        for engine in ("megatron-core", "deepspeed")
    ]
    assert "deepspeed" not in plans[0]
    assert plans[0]["fingerprint"] == plans[1]["fingerprint"]
