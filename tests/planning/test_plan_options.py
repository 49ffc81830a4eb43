"""Trainer options: at their defaults, they do not change the text and fingerprints in a plan. If
they are set, the plan contains them.
"""

import dataclasses

import pytest
from suite.messages import check_about, containing, refuses

from runbook.core.errors import ParamsError, PlanError
from runbook.frameworks import training_arguments
from runbook.frameworks.messages import FrameworkMessage
from runbook.params import load
from runbook.plan_file.alarms import AlarmSettings
from runbook.plan_file.batch import Batch, Ramp
from runbook.plan_file.phase_names import FULL
from runbook.plan_file.rules.codes import RuleCode
from runbook.planning import make_plan
from runbook.planning.choice import full_choice
from runbook.planning.cost.iteration import StepModel
from runbook.planning.cost.memory import StageMemory
from runbook.planning.cost.step_inputs import modelled_device, setup_for
from runbook.planning.near_copy_memory import check_near_copies
from runbook.planning.rule_codes import PlanCode
from runbook.tools.speed.published_rows import read_row

from .conftest import TWO_CORES, build

HELD = {
    ("aws-pile-175b", "03-smoke-test"): "1eb88bb13d1c3edb",
    ("aws-pile-175b", "04-training"): "2dfcbaa738034234",
    ("azure-175b", "04-training"): "99df70fdb656d8b7",
    ("lumi-13b", "04-training"): "e1da147bb65c5075",
    ("polaris-25b", "04-training"): "c7b068a24eee6b4c",
    ("slurm-oscar", "04-training"): "efe45fa9ca8962d5",
}
"""Prefixes of trainer fingerprints at 1c4b9ea, 2026-11-21: checkpoints from that day still resume.

The training runs on AWS and Polaris have new fingerprints since 2026-11-22: their run files now
have their documents' schedules and betas. Neither saves anything."""


@pytest.mark.parametrize(("run", "phase"), HELD)
def test_fingerprints_of_earlier_plans_hold(run, phase):
    spec = make_plan(load(run), None).as_dict()["phases"][phase]
    assert spec["fingerprint"].startswith(HELD[run, phase])


def specs(**training):
    training = {"iterations": 20, "global_batch": 8, "micro_batch": 1, **training}
    return make_plan(build({"training": training}), TWO_CORES).as_dict()["phases"]


def test_options_that_are_set_are_orders():
    options = {
        "loss_scale_hysteresis": 3,
        "static_loss_scale": 128,
        "min_loss_scale": 2,
        "nan_policy": "rollback",
        "nan_limit": 5,
        "keep_every": 10,
        "async_save": True,
        "exit_interval": 7,
        "resume_changed": True,
        "rampup_start": 2,
        "rampup_increment": 2,
        "rampup_samples": 30,
    }
    plain = specs()
    changed = specs(**options)
    full = changed["04-training"]
    smoke = changed["03-smoke-test"]
    assert full["precision"] == plain["04-training"]["precision"] | {
        "hysteresis": 3,
        "static_loss_scale": 128.0,
        "minimum_loss_scale": 2.0,
    }
    assert full["batch"]["ramp"] == {"start": 2, "increment": 2, "samples": 30}
    limits = {"nan_policy": "rollback", "nan_limit": 5}
    assert full["limits"] == plain["04-training"]["limits"] | limits | {"exit_interval": 7}
    saving = {"keep_every": 10, "asynchronous": True, "resume_changed": True}
    assert full["checkpoint"] == plain["04-training"]["checkpoint"] | saving
    assert (
        smoke["checkpoint"] == plain["03-smoke-test"]["checkpoint"] and "ramp" not in smoke["batch"]
    )
    assert full["fingerprint"] != plain["04-training"]["fingerprint"]


TUNING = {
    "overlap_gradients": True,
    "overlap_weights": True,
    "recompute_num_layers": 2,
    "gc_interval": 50,
    "broadcast_batches": True,
}


def test_how_a_step_is_carried_out_is_written_where_chosen_and_leaves_the_fingerprint():
    plain = specs()["04-training"]
    tuned = specs(**TUNING)["04-training"]
    assert "tuning" not in plain and "first_stage_layers" not in plain["parallel"]
    assert tuned["tuning"] == TUNING and tuned["fingerprint"] == plain["fingerprint"]


def test_options_beside_the_losses_leave_the_fingerprint():
    changed = specs(nan_policy="skip", keep_every=5, async_save=True, exit_interval=3)[
        "04-training"
    ]
    assert changed["fingerprint"] == specs()["04-training"]["fingerprint"]


def test_alarms_begin_where_the_run_file_says_and_in_a_smoke_test_at_once():
    plain = specs()
    later = specs(alarms_after=100)
    assert later["04-training"]["log"] == plain["04-training"]["log"] | {"alarms_after": 100}
    assert later["04-training"]["fingerprint"] == plain["04-training"]["fingerprint"]
    assert later["03-smoke-test"]["log"] == plain["03-smoke-test"]["log"]
    phase = make_plan(
        build({"training": {"alarms_after": 100, "iterations": 20}}), TWO_CORES
    ).phases[FULL]
    assert phase.log.alarms == AlarmSettings(alarms_after=100)


def test_replay_leaves_the_fingerprint_and_is_refused_where_it_cannot_be_done():
    plain = specs()["04-training"]
    replayed = specs(replay_interval=50)["04-training"]
    assert replayed["limits"] == plain["limits"] | {"replay_interval": 50}
    assert replayed["fingerprint"] == plain["fingerprint"]
    refused = {
        RuleCode.REPLAY_WITH_DEEPSPEED: {"engine": "deepspeed"},
        RuleCode.REPLAY_REPEATABLE: {"cuda_graphs": True},
    }
    for code, values in refused.items():
        run = build({"training": {"replay_interval": 50, "iterations": 20, **values}})
        with pytest.raises(PlanError) as caught:
            make_plan(run, TWO_CORES)
        assert code in {check.code for check in caught.value.checks}


@pytest.mark.parametrize(("interval", "verdict"), [(1, "warn"), (50, "pass")])
def test_the_plan_says_what_replay_costs(interval, verdict):
    run = build({"training": {"replay_interval": interval, "iterations": 20, "global_batch": 8}})
    checks = {check.code: check for check in make_plan(run, TWO_CORES).checks}
    assert checks[PlanCode.REPLAY_COST].verdict == verdict


def test_near_copies_leave_the_fingerprint_and_are_written_only_where_chosen():
    plain = specs()["04-training"]
    near = specs(near_interval=5)["04-training"]
    assert near["checkpoint"] == plain["checkpoint"] | {"near_interval": 5}
    assert near["fingerprint"] == plain["fingerprint"]
    assert "near_interval" not in specs(near_interval=5)["03-smoke-test"]["checkpoint"]


@pytest.mark.parametrize(
    ("nodes", "gib", "verdict"),
    [(1, 512, "pass"), (2, 512, "warn"), (2, 256, "fail"), (2, 0, "warn")],
)
def test_the_node_must_have_the_memory_for_near_copies(nodes, gib, verdict):
    # 8 devices with 16 GB of weights and optimizer each: 2 copies, and twice that with a partner.
    choice = full_choice(
        build({"training": {"near_interval": 5}, "jobs": {"training": {"nodes": nodes}}})
    )
    stage = StageMemory(0, 2 * 10**9, 0, 14 * 10**9, 0, 0, 0)
    choice = dataclasses.replace(choice, devices_per_node=8).on_nodes(nodes)
    (check,) = check_near_copies(choice, [stage], gib * 2**30)
    assert (check.code, check.verdict) == (PlanCode.NEAR_ROOM, verdict)


def test_a_ramp_counts_its_samples():
    ramp = {"rampup_start": 2, "rampup_increment": 2, "rampup_samples": 30}
    by_steps = specs(**ramp, warmup_iterations=6)["04-training"]
    # 5 steps with 2 sequences, 3 with 4 and 2 with 6 are 34 samples; 10 steps with 8 follow.
    assert by_steps["duration"]["samples"] == 34 + 80
    assert by_steps["learning_rate"]["warmup_samples"] == 5 * 2 + 4
    by_samples = specs(**ramp, iterations=0, samples=120)["04-training"]
    assert by_samples["duration"]["iterations"] == 20 and by_samples["duration"]["samples"] == 114


@pytest.mark.parametrize(
    ("values", "sound"),
    [
        ((2, 2, 30, 8), True),
        ((0, 0, 0, 8), True),
        ((0, 2, 0, 8), False),
        ((3, 2, 30, 8), False),
        ((2, 0, 9, 8), False),
    ],
)
def test_a_ramp_that_does_not_end_at_the_batch_is_none(values, sound):
    start, increment, samples, full = values
    assert Batch(1, full, full, Ramp(start, increment, samples)).ramp_is_sound is sound


def test_a_ramp_that_does_not_divide_is_refused(broken):
    ramp = {"micro_batch": 2, "rampup_start": 3, "rampup_increment": 1, "rampup_samples": 9}
    checks = broken({"training": ramp})
    check_about(checks, RuleCode.BATCH_RAMP_DIVIDES, start=3, increment=1, group=4)


def test_keys_of_our_own_trainer_are_told_of_where_another_trains():
    settings = load("azure-175b", set_words=("training.nan_policy=skip",))
    checks = make_plan(settings, None).checks
    check = check_about(
        checks,
        PlanCode.FRAMEWORK_IGNORES_KEYS,
        FULL,
        ignored=containing("training.nan_policy"),
        framework="megatron-lm",
    )
    assert check.verdict == "warn"


def test_a_ramp_is_rendered_in_megatrons_own_words():
    words = (
        "training.rampup_start=32",
        "training.rampup_increment=32",
        "training.rampup_samples=5000000",
    )
    settings = load("azure-175b", set_words=words)
    spec = make_plan(settings, None).phases["04-training"]
    line = " ".join(training_arguments(settings, spec))
    ramp = "--rampup-batch-size 32 32 5000000"
    assert ramp in line and "--train-samples" in line


def stages(**sections):
    """Return memory and weights for each stage of the 13B model, with 4 stages on an H100 node."""
    parallel = {"tensor": 2, "pipeline": 4, **sections.pop("parallel", {})}
    training = {"global_batch": 64, "micro_batch": 1, **sections}
    settings = build({"parallel": parallel, "training": training}, device="H100-SXM", model="13b")
    plan = make_plan(settings, TWO_CORES)
    return plan.memory["04-training"], plan.parameters["04-training"].per_rank_by_stage


def test_stages_of_other_lengths_are_counted_as_they_are():
    _, even = stages()
    _, uneven = stages(parallel={"first_stage_layers": 10, "last_stage_layers": 6})
    layer = even[1] // 10
    assert [after - before for after, before in zip(uneven, even, strict=True)] == [
        0,
        2 * layer,
        2 * layer,
        -4 * layer,
    ]


@pytest.mark.parametrize(
    ("method", "number", "inputs", "kept"),
    [("uniform", 1, 10, 1), ("uniform", 5, 2, 5), ("block", 4, 4, 7)],
)
def test_layers_computed_again_are_counted_by_hand(method, number, inputs, kept):
    memory, _ = stages(recompute="full", recompute_method=method, recompute_num_layers=number)
    one_input = 2 * 2048 * 5120  # bf16: 2 bytes x tokens x hidden
    layer = (
        one_input // 2 * (8 + 24 / 2)
    )  # Korthikanti: 34 s b h, 24 of which are divided over 2 tensor ranks; 2 need dropout
    in_flight = 4  # micro-batches on the first stage
    whole = kept - 1 if method == "block" else 0
    expected = inputs * in_flight * one_input + (whole * in_flight + kept - whole) * layer
    assert memory.fullest_stage.activations == pytest.approx(expected)


@pytest.mark.parametrize(
    ("run", "words", "rendered"),
    [
        (
            "azure-175b",
            [
                "training.overlap_gradients=true",
                "training.overlap_weights=true",
                "training.gc_interval=50",
            ],
            "--overlap-grad-reduce --overlap-param-gather --manual-gc --manual-gc-interval 50",
        ),
        (
            "azure-175b",
            ["parallel.pipeline=4", "parallel.last_stage_layers=21"],
            "--decoder-last-pipeline-num-layers 21",
        ),
        ("azure-175b", ["training.overlap_pipeline=never"], "--no-overlap-p2p-communication"),
        (
            "azure-175b",
            ["training.precision=bf16", "training.fp8=delayed", "training.overlap_tensor=true"],
            "--tp-comm-overlap --fp8-format hybrid --fp8-recipe delayed",
        ),
        (
            "azure-175b",
            ["training.precision=bf16", "training.reduce_in_bf16=true", "training.loss_fusion=te"],
            "--grad-reduce-in-bf16 --cross-entropy-loss-fusion --cross-entropy-fusion-impl te",
        ),
        (
            "azure-175b",
            ["training.loss_fusion=native", "training.cuda_graphs=true"],
            "--cross-entropy-loss-fusion --enable-cuda-graph",
        ),
        (
            "azure-175b",
            ["training.cuda_graphs=true", "training.broadcast_batches=true"],
            "--enable-cuda-graph",
        ),
        (
            "aws-pile-175b",
            ["training.overlap_gradients=true"],
            "model.optim.overlap_grad_sync=True",
        ),
        (
            "aws-pile-175b",
            ["training.fuse_gradients=never"],
            "model.gradient_accumulation_fusion=False",
        ),
    ],
)
def test_a_tuning_is_rendered_in_the_words_of_each_framework(run, words, rendered):
    settings = load(run, set_words=words)
    line = " ".join(training_arguments(settings, make_plan(settings, None).phases["04-training"]))
    assert rendered in line


def test_eight_bits_are_another_training_planned_faster_and_larger_and_refused_on_a_cpu(broken):
    def plan(**training):
        return make_plan(
            build(
                {
                    # Large enough that no step waits for the host, because 8 bits do not make the
                    # host faster.
                    "training": {"global_batch": 64, "micro_batch": 4, **training},
                    "parallel": {"tensor": 8},
                },
                device="H100-SXM",
                model="13b",
            ),
            TWO_CORES,
        )

    half = plan()
    eighth = plan(fp8="tensorwise")
    assert eighth.phases["04-training"].precision.fp8 == "tensorwise"
    assert eighth.phases["04-training"].fingerprint != half.phases["04-training"].fingerprint
    fast, slow = (one.time["04-training"].seconds_per_iteration for one in (eighth, half))
    assert fast < 0.9 * slow
    more = eighth.memory["04-training"].least_bytes - half.memory["04-training"].least_bytes
    assert more == pytest.approx(2 * half.parameters["04-training"].per_rank_by_stage[0])
    checks = broken({"training": {"fp8": "delayed"}})
    check_about(checks, PlanCode.TRANSFORMER_ENGINE, wanted="training.fp8=delayed", device="cpu")


def test_kernels_of_the_own_trainer_are_refused_for_other_programs():
    settings = load("aws-pile-175b", set_words=["training.kernels=plain"])
    with refuses(ParamsError, FrameworkMessage.KERNELS_OF_OUR_TRAINER, kernels="plain"):
        training_arguments(settings, make_plan(settings).phases["04-training"])


@pytest.mark.parametrize("run", ["aws-pile-175b", "local"])
@pytest.mark.parametrize("words", ["training.reduce_in_bf16=true", "training.loss_fusion=te"])
def test_options_of_megatron_lm_alone_are_refused_elsewhere(run: str, words: str) -> None:
    settings = load(run, set_words=[words])
    key = words.partition("=")[0]
    with refuses(ParamsError, FrameworkMessage.ONLY_MEGATRON_LM_HAS_IT, key=key):
        training_arguments(settings, make_plan(settings, TWO_CORES).phases["04-training"])


def test_a_fused_loss_and_gradients_in_bf16_are_planned_faster() -> None:
    def step(**training: object) -> StepModel:
        sections = {
            "training": {"framework": "megatron-lm", "global_batch": 64, **training},
            "jobs": {"training": {"nodes": 2}},
        }
        choice = full_choice(build(sections, device="H100-SXM", model="13b"))
        return StepModel(setup_for(choice, modelled_device(choice)))

    plain = step().step()
    fused = step(loss_fusion="te").step()
    half = step(reduce_in_bf16=True).step()
    assert fused.output < plain.output
    assert half.data < plain.data
    assert step(reduce_in_bf16=True, precision="fp16").step() == step(precision="fp16").step()


def test_nemo_of_2023_is_planned_with_the_loss_that_a_published_row_of_it_has() -> None:
    """NeMo 23.04 (AWS document) calls the Megatron loss, and current NeMo a fused loss."""
    settings = load("aws-pile-175b")
    choice = full_choice(settings)
    columns = {"model": "GPT-3 175B", "accelerator": "A100", "n_accel": "128", "software": "NeMo"}
    of_2023 = read_row(1, columns | {"date": "2023-04"})
    of_2024 = read_row(1, columns | {"date": "2024-12"})
    assert setup_for(choice, modelled_device(choice)).fused_loss == of_2023.fused_loss
    assert (of_2023.fused_loss, of_2024.fused_loss) == (False, True)


def test_a_tuning_that_a_framework_does_not_have_is_refused():
    for words in ("training.gc_interval=50", "training.broadcast_batches=true"):
        settings = load("aws-pile-175b", set_words=[words])
        key, _, value = words.replace("true", "True").partition("=")
        unknown = FrameworkMessage.OPTION_UNKNOWN_TO_FRAMEWORK
        with refuses(ParamsError, unknown, key=key, value=value, framework="nemo"):
            training_arguments(settings, make_plan(settings, None).phases["04-training"])


def test_a_broadcast_of_the_batches_is_planned_as_a_message_of_16_bytes_a_token():
    def step(broadcasts):
        training = {"global_batch": 64, "micro_batch": 2, "broadcast_batches": broadcasts}
        settings = build(
            {"training": training, "parallel": {"tensor": 8}}, device="H100-SXM", model="13b"
        )
        choice = full_choice(settings)
        return StepModel(setup_for(choice, modelled_device(choice))), choice.num_microbatches

    (model, _), (sent, microbatches) = step(False), step(True)
    more = microbatches * sent.collective(16 * 2 * 2048, 8, span=8)
    assert sent.step().tensor - model.step().tensor == pytest.approx(more) and more > 0
    assert sent.step().seconds > model.step().seconds


@pytest.mark.parametrize("precision", ["fp16", "fp32"])
def test_gradients_are_summed_in_bf16_only_where_a_run_trains_in_it(broken, precision):
    checks = broken({"training": {"reduce_in_bf16": True, "precision": precision}})
    check_about(checks, PlanCode.SUMS_IN_BF16, precision=precision)
