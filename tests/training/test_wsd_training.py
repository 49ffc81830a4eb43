"""Training with the schedule wsd (warm-up, stable, decay): the recorded rates match the formula."""

import pytest

from . import specs

pytestmark = pytest.mark.training

PEAK = 1e-3
MINIMUM = 1e-4
BATCH = 8
WARMUP_STEPS = 2
STABLE_UNTIL = 6
STEPS = 10


def expected_rate(step):
    """Compute the rate in a step by hand. Exponential decay in Megatron repeatedly halves the
    distance, and ends at the minimum.
    """
    if step <= WARMUP_STEPS:
        return PEAK * step / WARMUP_STEPS
    if step <= STABLE_UNTIL:
        return PEAK
    done = (step - STABLE_UNTIL) / (STEPS - STABLE_UNTIL)
    return MINIMUM + (2 * 0.5**done - 1) * (PEAK - MINIMUM)


def test_the_recorded_rates_warm_up_stay_and_decay(zygote, run):
    schedule = {
        "schedule": "wsd",
        "minimum": MINIMUM,
        "wsd_decay_samples": (STEPS - STABLE_UNTIL) * BATCH,
        "wsd_decay_style": "exponential",
    }
    content = specs.spec(
        iterations=STEPS,
        global_batch=BATCH,
        warmup=WARMUP_STEPS * BATCH,
        peak=PEAK,
        learning_rate=schedule,
        model={"layers": 2},
    )
    job = zygote.train(run, content)
    assert job.code == 0, job.err
    rates = [line["learning_rate"] for line in job.metrics]
    assert rates == pytest.approx([expected_rate(step) for step in range(1, STEPS + 1)])
    assert rates[STABLE_UNTIL - 1] == PEAK > rates[STABLE_UNTIL]
    assert job.metrics[-1]["loss"] < job.metrics[0]["loss"]
