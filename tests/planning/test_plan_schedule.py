"""Length and learning rate in samples, whichever unit they were given in."""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from suite.messages import check_about

from runbook.plan_file.learning_rate import LearningRate
from runbook.plan_file.phase_names import FULL, SMOKE
from runbook.planning import Check
from runbook.planning.choice import full_choice, smoke_choice
from runbook.planning.messages import PlanningMessage
from runbook.planning.rule_codes import PlanCode
from runbook.planning.schedule import Duration, duration, learning_rate

from .conftest import build

BATCH = 8
SEQUENCE = 128


def computed(training: dict[str, Any], *, smoke: bool = False) -> tuple[Duration, LearningRate]:
    choice = (smoke_choice if smoke else full_choice)(
        build({"training": {"iterations": 0, **training}})
    )
    length = duration(choice)
    return length, learning_rate(choice, length)


@pytest.mark.parametrize(
    "asked",
    [
        {"iterations": 100},
        {"samples": 800},
        {"samples": 807},
        {"tokens": 102_400},
        {"tokens": "102.5K"},
    ],
)
def test_three_ways_of_asking_give_one_length(asked: dict[str, Any]) -> None:
    length, _ = computed(asked)
    assert length == Duration(iterations=100, samples=800, tokens=102_400)


def test_lumi_length_comes_out() -> None:
    """300 B tokens at sequence length 2048 are 292,968,750 samples (as computed in the script), or
    286,102 whole steps with 1024 samples.
    """
    choice = full_choice(
        build(
            {
                "training": {
                    "iterations": 0,
                    "tokens": "300B",
                    "global_batch": 1024,
                    "micro_batch": 2,
                }
            },
            model="13b",
        )
    )
    assert 300_000_000_000 // choice.sequence_length == 146_484_375
    assert duration(choice).iterations == 146_484_375 // 1024


@pytest.mark.parametrize(
    ("warmup", "samples"),
    [
        ({"warmup_iterations": 3}, 24),
        ({"warmup_iterations": 0, "warmup_samples": 20}, 20),
        ({"warmup_iterations": 0, "warmup_tokens": 2560}, 20),
        ({"warmup_iterations": 0, "warmup_fraction": 0.05}, 40),
        ({"warmup_iterations": 0}, 0),
    ],
)
def test_warmup_is_counted_in_samples(warmup: dict[str, Any], samples: int) -> None:
    _, rate = computed({"iterations": 100, **warmup})
    assert rate.warmup_samples == samples


@pytest.mark.parametrize(
    ("decay", "samples"),
    [
        ({}, 800),
        ({"decay_iterations": 50}, 400),
        ({"decay_samples": 900}, 900),
        ({"decay_tokens": "12.8K"}, 100),
    ],
)
def test_decay_is_counted_in_samples_and_is_the_run_where_nothing_is_said(
    decay: dict[str, Any], samples: int
) -> None:
    _, rate = computed({"iterations": 100, **decay})
    assert rate.decay_samples == samples


def test_smoke_test_reaches_its_peak_and_stays_there() -> None:
    length, rate = computed({"iterations": 100, "schedule": "linear"}, smoke=True)
    assert length == Duration(iterations=12, samples=48, tokens=48 * 1024)
    assert rate.warmup_samples == 12
    assert rate.at(12) == rate.peak == 6e-4
    assert rate.at(length.samples) > 0.99 * rate.peak


REFUSALS = [
    (
        {"iterations": 0},
        "04-training: length given once: none given. Rule: exactly one of training.iterations, training.samples, "
        "training.tokens. Set one of them and leave the others at 0.",
    ),
    (
        {"samples": 9},
        "04-training: length given once: training.iterations=100 and training.samples=9.",
    ),
    (
        {"iterations": 0, "samples": 7},
        "04-training: length: 0 steps x 8 sequences = 0 samples = 0 tokens. Rule: a training run has at least one whole "
        "step. Raise training.iterations, or lower training.global_batch.",
    ),
    (
        {"warmup_fraction": 0.1},
        "04-training: warm-up given once: training.warmup_iterations=3 and training.warmup_fraction=0.1. Rule: at most "
        "one of training.warmup_iterations, training.warmup_samples, training.warmup_tokens, training.warmup_fraction.",
    ),
    (
        {"decay_iterations": 5, "decay_tokens": 5},
        "04-training: decay given once: training.decay_iterations=5 and training.decay_tokens=5.",
    ),
    (
        {"min_learning_rate": 1e-2},
        "learning rates: peak 0.0006, minimum 0.01. Rule: the minimum is not above the peak. Lower "
        "training.min_learning_rate (a tenth of the peak is usual).",
    ),
    (
        {"warmup_iterations": 100},
        "04-training: warm-up: 800 samples of 800, decay over 800. Rule: the warm-up is shorter than the decay. Lower "
        "training.warmup_iterations, or decay over more samples.",
    ),
]


@pytest.mark.parametrize(("training", "text"), REFUSALS)
def test_a_broken_rule_says_values_rule_and_remedy(
    refusal: Callable[..., str], training: dict[str, Any], text: str
) -> None:
    assert text in refusal({"training": training})


def test_samples_that_fill_no_step_are_told(verdicts: Callable[..., dict[str, Check]]) -> None:
    found = verdicts({"training": {"iterations": 0, "samples": 807}})
    check_about(
        found.values(),
        PlanCode.LENGTH,
        FULL,
        iterations=100,
        batch=8,
        samples=800,
        tokens=102_400,
        left_over=PlanningMessage.LEFT_OVER.fill(samples=7),
    )


def test_azure_decay_over_430000_steps_is_told(verdicts: Callable[..., dict[str, Check]]) -> None:
    """With 1500 iterations and lr-decay-iters 430000, the rate hardly changes."""
    found = verdicts(
        {"training": {"iterations": 1500, "decay_iterations": 430_000, "warmup_iterations": 430}}
    )
    check = check_about(
        found.values(),
        PlanCode.DECAY_WITHIN_RUN,
        FULL,
        decay_samples=3_440_000,
        samples=12_000,
        peak=0.0006,
    )
    assert check.verdict == "warn"
    assert check.values["last_rate"] == pytest.approx(6e-4, rel=1e-3)


def test_warmup_longer_than_the_run_is_told(verdicts: Callable[..., dict[str, Check]]) -> None:
    found = verdicts({"training": {"warmup_iterations": 200, "decay_iterations": 1000}})
    assert found["04-training: warm-up"].verdict == "warn"
    smoke = verdicts({"training": {"smoke": {"warmup_iterations": 12}}})
    assert smoke["03-smoke-test: warm-up"].verdict == "warn"


def test_a_rehearsed_stop_after_the_end_only_warns(
    verdicts: Callable[..., dict[str, Check]],
) -> None:
    """A shorter run of the same file still starts, as with `--set training.iterations=10`."""
    checks = verdicts({"training": {"rehearse_stop": 100}}).values()
    check = check_about(checks, PlanCode.PLANNED_STOP, FULL, stop=100, steps=100)
    assert check.verdict == "warn"


def test_fp16_that_skips_every_step_of_a_smoke_test_is_refused(
    broken: Callable[..., tuple[Check, ...]],
) -> None:
    """A loss scale of 2^32 is halved 16 times before a step counts, but a smoke test has 12 steps."""
    training = {
        "framework": "megatron-lm",
        "precision": "fp16",
        "initial_loss_scale": 2.0**32,
        "micro_batch": 1,
    }
    checks = broken({"training": training}, device="H100-SXM")
    check_about(
        checks,
        PlanCode.STEPS_SKIPPED,
        SMOKE,
        skipped=16,
        steps=12,
        initial=2.0**32,
        iterations_key="training.smoke.iterations",
    )


schedules = st.builds(
    LearningRate,
    peak=st.floats(1e-5, 1e-2),
    minimum=st.just(1e-6),
    schedule=st.sampled_from(["cosine", "linear", "constant"]),
    warmup_samples=st.integers(0, 500),
    decay_samples=st.integers(501, 5000),
)


@given(schedules)
def test_rate_climbs_to_the_peak_and_never_rises_again(rate: LearningRate) -> None:
    assert rate.at(rate.warmup_samples) == pytest.approx(rate.peak)
    climb = [rate.at(sample) for sample in range(0, rate.warmup_samples + 1, 50)]
    fall = [rate.at(sample) for sample in range(rate.warmup_samples, 6000, 100)]
    assert climb == sorted(climb)
    assert all(later <= earlier * (1 + 1e-12) for earlier, later in pairwise(fall))
    assert fall[-1] == (rate.peak if rate.schedule == "constant" else rate.minimum)


@given(st.integers(1, 10_000), st.integers(1, 10_000))
def test_no_way_of_asking_trains_longer_than_asked(samples: int, batch_seed: int) -> None:
    length, _ = computed({"samples": samples})
    assert samples - BATCH < length.samples <= samples
    assert length.tokens == length.samples * SEQUENCE
