"""The schedule wsd (warm-up, stable, decay) has Megatron's rates and options, and changes no plan
that does not choose it.
"""

import pytest
from suite.messages import refuses

from runbook import params
from runbook.core.errors import ParamsError
from runbook.frameworks import training_arguments
from runbook.frameworks.messages import FrameworkMessage
from runbook.frameworks.schedules import SCHEDULE_NAMES, schedule_reader
from runbook.phases.run_plan import load_plan
from runbook.plan_file.identity import differences, recipe
from runbook.plan_file.json_records import as_json
from runbook.plan_file.learning_rate import LearningRate
from runbook.plan_file.phase_names import FULL
from runbook.results.curve_forecast import decay_begins

scheduler = pytest.importorskip("megatron.core.optimizer_param_scheduler")
WSD = ("training.schedule=wsd", "training.wsd_decay_fraction=0.2")


class OneGroup:
    """An optimizer with the attributes that megatron-core's scheduler needs."""

    def __init__(self) -> None:
        self.param_groups = [{"lr": 0.0, "weight_decay": 0.0}]


def megatron_rates(rate: LearningRate, batch: int, steps: int) -> list[float]:
    optimizer = OneGroup()
    own = scheduler.OptimizerParamScheduler(
        optimizer,
        init_lr=0.0,
        max_lr=rate.peak,
        min_lr=rate.minimum,
        lr_warmup_steps=rate.warmup_samples,
        lr_decay_steps=rate.decay_samples,
        lr_decay_style="WSD",
        start_wd=0.1,
        end_wd=0.1,
        wd_incr_steps=rate.decay_samples,
        wd_incr_style="constant",
        wsd_decay_steps=rate.wsd_decay_samples,
        lr_wsd_decay_style=rate.wsd_decay_style,
    )
    rates = []
    for _ in range(steps):
        own.step(batch)
        rates.append(optimizer.param_groups[0]["lr"])
    return rates


@pytest.mark.parametrize("style", ["exponential", "linear", "cosine"])
@pytest.mark.parametrize("warmup", [0, 40])
def test_its_rates_are_those_of_megatron_core(style, warmup):
    rate = LearningRate(
        peak=1e-3,
        minimum=1e-4,
        schedule="wsd",
        warmup_samples=warmup,
        decay_samples=400,
        wsd_decay_samples=80,
        wsd_decay_style=style,
    )
    ours = [rate.at(4 * step) for step in range(1, 121)]
    assert ours == pytest.approx(megatron_rates(rate, 4, 120), rel=1e-9)


def test_the_last_share_of_the_training_decays():
    _, plan = load_plan("local", WSD)
    rate = plan.phases[FULL].learning_rate
    samples = plan.phases[FULL].duration.samples
    assert rate.wsd_decay_samples == 0.2 * samples
    assert rate.at(int(0.8 * samples)) == rate.peak
    assert rate.at(samples) == rate.minimum
    assert decay_begins(rate, samples) == pytest.approx(0.8)


def test_another_schedule_leaves_no_trace_of_it_in_the_plan():
    _, plan = load_plan("local", ())
    assert not [key for key in as_json(plan.phases[FULL].learning_rate) if key.startswith("wsd")]


def test_a_longer_training_goes_on_from_the_stable_part():
    _, short = load_plan("local", WSD)
    _, longer = load_plan("local", (*WSD, "training.iterations=200"))
    rate = longer.phases[FULL].learning_rate
    same_warmup = (*WSD, "training.iterations=200", "training.warmup_iterations=10")
    _, longer = load_plan("local", same_warmup)
    serious, harmless = differences(recipe(short.phases[FULL]), recipe(longer.phases[FULL]))
    assert serious == []
    assert any("wsd_decay_samples" in difference for difference in harmless)
    stable_until = short.phases[FULL].learning_rate.falls_from
    assert rate.at(stable_until) == short.phases[FULL].learning_rate.at(stable_until)


def test_megatron_lm_is_given_its_own_options():
    settings, plan = load_plan("azure-175b", (*WSD, "training.wsd_decay_style=linear"))
    arguments = training_arguments(settings, plan.phases[FULL])
    text = " ".join(str(argument) for argument in arguments)
    assert "--lr-decay-style WSD" in text
    assert "--lr-wsd-decay-style linear" in text
    assert "--lr-wsd-decay-" in text


@pytest.mark.parametrize("framework", ["megatron-deepspeed", "nemo"])
def test_programs_without_it_refuse_it(framework):
    run = {"megatron-deepspeed": "lumi-13b", "nemo": "aws-pile-175b"}[framework]
    words = [*WSD, f"training.framework={framework}"]
    settings = params.load(run, set_words=words)
    _, plan = load_plan(run, words)
    with refuses(
        ParamsError,
        FrameworkMessage.NO_SUCH_SCHEDULE,
        schedule="wsd",
        framework=framework,
        schedules="cosine, linear, constant",
        frameworks="runbook or megatron-lm",
    ):
        training_arguments(settings, plan.phases[FULL])


@pytest.mark.parametrize("framework", SCHEDULE_NAMES)
def test_a_framework_reads_each_schedule_by_the_name_that_it_writes(framework):
    read = schedule_reader(framework)
    for schedule, name in SCHEDULE_NAMES[framework].items():
        assert read(name) == schedule
