"""Both engines train alike: the same losses and gradient norms with every ZeRO stage and layout."""

import itertools
from pathlib import Path

import pytest

from runbook.plan_file import deepspeed
from runbook.plan_file.schema import parse

from . import specs
from .test_layouts import MODERN, prepared

pytestmark = pytest.mark.training

ITERATIONS = 20


def combinations():
    """Yield every allowed combination of engine, ZeRO stage and layout on at most four processes."""
    stages = [
        ("megatron-core", 0),
        ("megatron-core", 1),
        *(("deepspeed", stage) for stage in range(4)),
    ]
    for (engine, stage), tensor, pipeline, copies in itertools.product(
        stages, (1, 2), (1, 2), (1, 2)
    ):
        if tensor * pipeline * copies <= 4 and not (stage > 1 and pipeline > 1):
            yield {
                "engine": engine,
                "zero_stage": stage,
                "tensor": tensor,
                "pipeline": pipeline,
                "copies": copies,
            }


def named(engine, zero_stage, tensor, pipeline, copies):
    return f"{engine} zero {zero_stage} tp{tensor} pp{pipeline} dp{copies}"


ALL = {named(**options): options for options in combinations()}

TESTED = [
    "megatron-core zero 1 tp1 pp2 dp2",
    "deepspeed zero 0 tp1 pp1 dp1",
    "deepspeed zero 0 tp2 pp1 dp2",
    "deepspeed zero 1 tp2 pp1 dp1",
    "deepspeed zero 2 tp1 pp1 dp2",
    "deepspeed zero 3 tp1 pp1 dp2",
    "deepspeed zero 0 tp1 pp2 dp2",
    "deepspeed zero 1 tp2 pp2 dp1",
]
"""The combinations that run in every test run. All of them were run by hand (docs/engines.md)."""


@pytest.fixture(scope="module")
def expected(zygote, tmp_path_factory, corpus):
    """Return the metrics of megatron-core in one process."""
    job = zygote.train(
        prepared(tmp_path_factory.mktemp("one"), corpus), specs.spec(iterations=ITERATIONS)
    )
    assert job.code == 0, job.err
    return job.metrics


def agree(metrics, expected, digits=4):
    assert len(metrics) == len(expected)
    for ours, theirs in zip(metrics, expected, strict=True):
        for key in ("loss", "grad_norm"):
            assert ours[key] == pytest.approx(theirs[key], rel=0.5 * 10 ** (1 - digits)), (
                key,
                ours,
                theirs,
            )


@pytest.mark.parametrize("combination", TESTED)
@pytest.mark.rotate(2)
def test_losses_and_gradient_norms_agree(combination, zygote, run, expected):
    job = zygote.train(run, specs.spec(iterations=ITERATIONS, **ALL[combination]))
    assert job.code == 0, job.err
    agree(job.metrics, expected)
    assert job.metrics[-1]["learning_rate"] == expected[-1]["learning_rate"]


@pytest.mark.parametrize(
    "layout", [{"zero_stage": 3, "copies": 2}, {"zero_stage": 1, "pipeline": 2}], ids=str
)
def test_rotary_gated_grouped_and_untied_models_agree_too(
    layout, zygote, run, tmp_path_factory, corpus
):
    one = zygote.train(
        prepared(tmp_path_factory.mktemp("one"), corpus),
        specs.spec(model=MODERN, iterations=4, recompute="full"),
    )
    job = zygote.train(
        run, specs.spec(engine="deepspeed", model=MODERN, iterations=4, recompute="full", **layout)
    )
    assert job.code == 0, job.err
    agree(job.metrics, one.metrics)


@pytest.mark.parametrize(
    "layout",
    [{"zero_stage": 0, "tensor": 2}, {"zero_stage": 2, "copies": 2}, {"pipeline": 2}],
    ids=str,
)
@pytest.mark.rotate(3)
def test_bf16_follows_megatron(layout, zygote, run, tmp_path_factory, corpus):
    one = zygote.train(
        prepared(tmp_path_factory.mktemp("one"), corpus), specs.spec(precision="bf16")
    )
    job = zygote.train(run, specs.spec(engine="deepspeed", precision="bf16", **layout))
    assert job.losses() == pytest.approx(one.losses(), rel=1e-3)
    norms = [[line["grad_norm"] for line in metrics] for metrics in (job.metrics, one.metrics)]
    assert norms[0] == pytest.approx(norms[1], rel=2e-2)


BF16 = {"bf16": {"enabled": True, "check_grad_overflow": True}}
SETTINGS = [
    ({"precision": "fp32", "zero_stage": 0}, {}),
    ({"precision": "bf16", "zero_stage": 3}, BF16),
    (
        {"precision": "bf16", "zero_stage": 1, "pipeline": 2, "optimizer": {"clip_gradient": 0.0}},
        {**BF16, "pipeline": {"pipe_partitioned": False, "grad_partitioned": False}},
    ),
    (
        {"precision": "fp16", "zero_stage": 2, "micro": 2},
        {
            "fp16": {
                "enabled": True,
                "loss_scale": 0,
                "loss_scale_window": 1000,
                "hysteresis": 2,
                "min_loss_scale": 1,
                "initial_scale_power": 16,
            },
        },
    ),
]


@pytest.mark.parametrize(("options", "more"), SETTINGS, ids=str)
def test_a_plan_without_a_configuration_gets_the_one_the_planner_makes(options, more):
    phase = parse(specs.spec(engine="deepspeed", **options), Path())
    assert not phase.deepspeed
    made = deepspeed.own_config(phase)
    assert made == {
        "train_batch_size": 8,
        "train_micro_batch_size_per_gpu": options.get("micro", 1),
        "steps_per_print": 1,
        "zero_optimization": {"stage": options["zero_stage"], "reduce_bucket_size": 500_000_000},
        "prescale_gradients": options["zero_stage"] == 0,
        "gradient_clipping": 0.0 if "optimizer" in options else 1.0,
        "wall_clock_breakdown": False,
        **more,
    }
    assert [type(value) for value in made.get("fp16", {}).values()].count(int) == 5 * (
        "fp16" in made
    )
