"""Warnings about unusual saves, warm-up, learning rate or jobs in a plan that breaks no rule.

They are only warnings, since such a setting may be intended. Each warning names the rule, its
source, and the remedy.
"""

import math
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise

from runbook.core.checks import Check, counted
from runbook.core.units import DAY_SECONDS, show_bytes, show_count, show_duration
from runbook.planning.choice import Choice
from runbook.planning.cost.checkpoint_size import Storage
from runbook.planning.cost.cpu import FORWARD_SHARE
from runbook.planning.cost.long_training import LongTraining
from runbook.planning.cost.time_and_money import Speed
from runbook.planning.schedule import duration, learning_rate
from runbook.planning.sizes import whole

GPT3_LEARNING_RATES = (
    (125e6, 6.0e-4),
    (350e6, 3.0e-4),
    (760e6, 2.5e-4),
    (1.3e9, 2.0e-4),
    (2.7e9, 1.6e-4),
    (6.7e9, 1.2e-4),
    (13e9, 1.0e-4),
    (175e9, 0.6e-4),
)
"""Parameter counts and peak learning rates for the GPT-3 models.

Source: Brown et al. 2020, arXiv:2005.14165, table 2.1.
"""
HIGH_RATE_FACTOR = 3.0
"""A learning rate above this multiple of the GPT-3 rate causes a warning.

Llama 3 8B was trained at 2.6 times GPT-3's rate (3e-4, arXiv:2407.21783), which causes no warning.
"""
SMALL_MODEL = 1e9
"""Below this number of parameters, the learning rate is not compared with GPT-3's: small models
tolerate rates many times as high.
"""
HIGHEST_RATE = 0.1
"""A higher learning rate causes a warning for every size.

With rates near 0.1, even models of 10M parameters need normalized queries and keys, and a penalty
on large logits, to train stably (Wortsman et al., arXiv:2309.14322).
"""
FEWEST_WARMUP_STEPS = 100
"""Fewer warm-up steps than this cause a warning. GPT-3 warmed up over 375 M tokens, 0.1 % of the
training.

Megatron-LM examples warm up over 0.1 to 1 % of the training.
"""
LONG_TRAINING_STEPS = 10_000
MOST_OVERHEAD = 0.10
"""Warn if saves or evaluations take more than this share of the step time.

Llama 3 and BLOOM report less than 5 % for all overhead.
"""
FEWEST_STEPS_TO_EVALUATE = 1_000
"""Evaluations are not checked in runs with fewer steps than this.

Such a run only tests the speed or the setup, and the evaluations cost little.
"""
MOST_JOBS = 30
"""More consecutive jobs than this cause a warning. Each job has to wait in the queue and start up.

BLOOM trained for 3.5 months in 20 h jobs, with a dedicated allocation.
"""
FEWEST_SECONDS_BETWEEN_SAVES = 300.0
"""A shorter interval between saves is accepted only if Daly's interval is also shorter.

With this interval, a failure costs at most five minutes of a training run that takes at least a day.
"""


@dataclass(frozen=True)
class PlannedCosts:
    """The planned numbers the warnings are based on."""

    storage: Storage
    speed: Speed
    endurance: LongTraining


def advise(choice: Choice, costs: PlannedCosts) -> Iterator[Check]:
    """Yield a warning for each unusual setting."""
    if duration(choice).iterations:
        yield from _saves(choice, costs)
        yield from _evaluations(choice)
        yield from _warm_up(choice)
        yield from _rate(choice)
        yield from _jobs(choice, costs)


def _warning(
    choice: Choice,
    name: str,
    value: str,
    rule: str,
    remedy: str,
) -> Check:
    return Check(
        f"{choice.phase}: {name}",
        "warn",
        value,
        rule,
        remedy,
    )


def _saves(choice: Choice, costs: PlannedCosts) -> Iterator[Check]:
    """Warn about saves that take too much time, or that are far more frequent than needed."""
    interval = costs.endurance.interval_seconds
    step = costs.speed.seconds_per_iteration
    if not interval or not step or not costs.storage.num_checkpoints:
        return
    size = show_bytes(costs.storage.checkpoint_bytes)
    value = f"{size} every {show_duration(interval)} (training.save_interval={choice.training.save_interval})"
    fastest = min(costs.endurance.saves, key=lambda save: save.write_seconds, default=None)
    if fastest is not None and fastest.write_seconds > MOST_OVERHEAD * interval:
        interval_seconds = fastest.best_interval_seconds or fastest.write_seconds / MOST_OVERHEAD
        yield _warning(
            choice,
            "time for saves",
            f"{value}; a save takes at least {show_duration(fastest.write_seconds)} ({fastest.tier})",
            f"saves take at most {MOST_OVERHEAD:.0%} of the steps' time",
            f"Set training.save_interval to about {max(1, math.ceil(interval_seconds / step)):,}.",
        )
        return

    is_long = (costs.speed.seconds or 0.0) >= DAY_SECONDS
    best = fastest.best_interval_seconds if fastest else None
    least_seconds = min(FEWEST_SECONDS_BETWEEN_SAVES, best or FEWEST_SECONDS_BETWEEN_SAVES)
    if is_long and interval < least_seconds:
        yield _warning(
            choice,
            "time for saves",
            f"{value}, {show_bytes(costs.storage.checkpoint_bytes / interval)}/s on average",
            "in a training run of a day or more, saves are at least "
            f"{show_duration(least_seconds)} apart: a failure loses no more time than that",
            f"Set training.save_interval to {math.ceil(least_seconds / step):,} or more.",
        )


def _evaluations(choice: Choice) -> Iterator[Check]:
    training = choice.training
    if not (training.eval_interval and training.eval_iterations) or choice.on_cpu:
        return
    share = training.eval_iterations * FORWARD_SHARE / training.eval_interval
    if share <= MOST_OVERHEAD or duration(choice).iterations < FEWEST_STEPS_TO_EVALUATE:
        return
    fewest_steps = math.ceil(training.eval_iterations * FORWARD_SHARE / MOST_OVERHEAD)
    yield _warning(
        choice,
        "time for evaluations",
        f"{training.eval_iterations:,} x a global batch every {counted(training.eval_interval, 'step')}: "
        f"{share:.0%} of the steps' time",
        f"evaluations take at most {MOST_OVERHEAD:.0%} of the steps' time (a batch costs {FORWARD_SHARE:.2g} of a step)",
        f"Set training.eval_interval to {fewest_steps:,} or more, or lower training.eval_iterations.",
    )


def _warm_up(choice: Choice) -> Iterator[Check]:
    length = duration(choice)
    rate = learning_rate(choice, length)
    samples_per_step = length.samples / length.iterations
    steps = rate.warmup_samples / samples_per_step
    if length.iterations < LONG_TRAINING_STEPS or steps >= FEWEST_WARMUP_STEPS:
        return
    usual = max(FEWEST_WARMUP_STEPS, round(length.iterations / 1000))
    yield _warning(
        choice,
        "length of the warm-up",
        f"{steps:,.0f} of {length.iterations:,} steps",
        f"a training run of {LONG_TRAINING_STEPS:,} steps or more warms up over "
        f"{FEWEST_WARMUP_STEPS} steps or more (GPT-3: 0.1 % of its tokens, arXiv:2005.14165)",
        f"Set {choice.keys.warmup_iterations} to about {usual:,}.",
    )


def gpt3_learning_rate(parameters: float) -> float:
    """Return GPT-3's peak learning rate for a model of this size.

    The rate is interpolated linearly on logarithmic axes between the two nearest models.

    >>> [float(f"{gpt3_learning_rate(size):.2g}") for size in (125e6, 8e9, 175e9, 1e12)]
    [0.0006, 0.00011, 6e-05, 6e-05]
    """
    table = GPT3_LEARNING_RATES
    if parameters <= table[0][0]:
        return table[0][1]
    for (low, low_rate), (high, high_rate) in pairwise(table):
        if parameters <= high:
            part = math.log(parameters / low) / math.log(high / low)
            return math.exp(math.log(low_rate) + part * math.log(high_rate / low_rate))

    return table[-1][1]


def _rate(choice: Choice) -> Iterator[Check]:
    parameters = whole(choice.shape).total
    usual = gpt3_learning_rate(parameters)
    peak = choice.training.learning_rate
    highest = HIGHEST_RATE if parameters < SMALL_MODEL else HIGH_RATE_FACTOR * usual
    if peak <= highest:
        return
    if parameters < SMALL_MODEL:
        rule = f"the peak of a small model is at most {HIGHEST_RATE:g} (arXiv:2309.14322)"
    else:
        rule = (
            f"the peak is at most {HIGH_RATE_FACTOR:g} times GPT-3's for this size "
            "(arXiv:2005.14165, table 2.1)"
        )
    yield _warning(
        choice,
        "size of the learning rate",
        f"training.learning_rate={peak:g} for {show_count(parameters)} parameters, {peak / usual:.2g} times GPT-3's",
        rule,
        f"Set training.learning_rate to about {usual:.1e}, and training.min_learning_rate to a tenth of it.",
    )


def _jobs(choice: Choice, costs: PlannedCosts) -> Iterator[Check]:
    jobs = costs.endurance.jobs
    if jobs is None or jobs <= MOST_JOBS:
        return
    limit = show_duration(costs.endurance.walltime_seconds)
    yield _warning(
        choice,
        "jobs in a row",
        f"{jobs:,} jobs of at most {limit}",
        f"at most {MOST_JOBS} jobs in a row: each waits in the queue, starts and loads a "
        "checkpoint",
        f"Raise {choice.keys.job}.walltime, use a partition with a longer limit, or more "
        f"{choice.keys.job}.nodes.",
    )
