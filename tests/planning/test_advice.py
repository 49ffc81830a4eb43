"""Questions that an expert would ask about a plan that breaks no rule: each leads to a warning with
a remedy, and usual plans have no warnings.
"""

from types import SimpleNamespace

import pytest

from runbook.params import load
from runbook.planning import make_plan
from runbook.planning.advice import _jobs
from runbook.planning.messages import PlanningMessage
from runbook.planning.plan_tables import summary_table
from runbook.planning.rule_codes import PlanCode

RUN = "azure-175b"
LLAMA = (
    *("model=llama-3-8b", "training.iterations=238418", "training.decay_iterations=0"),
    *("training.warmup_fraction=0", "training.warmup_iterations=2000", "parallel.tensor=1"),
    *("parallel.pipeline=1", "parallel.sequence=false", "training.learning_rate=3e-4"),
    *("training.min_learning_rate=3e-5", "training.precision=bf16", "training.save_interval=1000"),
    *("training.eval_interval=1000", "training.framework=runbook", "training.recompute=full"),
)


def warned(*words, run=RUN):
    plan = make_plan(load(run, set_words=[*LLAMA, *words]))
    return {
        check.name.partition(": ")[2]: check
        for check in plan.checks
        if check.verdict == "warn" and check.name.startswith("04-training: ")
    }


@pytest.mark.parametrize("phase", ["03-smoke-test", "04-training"])
@pytest.mark.parametrize(("walltime", "is_warned"), [("1", True), ("60", True), ("1h", False)])
def test_a_job_that_ends_before_its_first_step_is_warned_of(phase, walltime, is_warned):
    key = {"03-smoke-test": "jobs.smoke", "04-training": "jobs.training"}[phase]
    plan = make_plan(load("azure-175b", set_words=[f"{key}.walltime={walltime}"]))
    warnings = [check for check in plan.checks if check.code is PlanCode.TIME_LIMIT]
    assert [check.name.partition(":")[0] for check in warnings] == [phase] * is_warned
    for warning in warnings:
        assert (warning.verdict, warning.keys) == ("warn", (f"{key}.walltime",))
        assert warning.values["job_key"] == key


def test_a_usual_plan_is_not_warned_of():
    assert {check.rule for check in warned().values()} <= {PlanningMessage.READ_ONCE_RULE.fill()}


@pytest.mark.parametrize(
    ("word", "name", "value", "remedy"),
    [
        ("training.save_interval=1", "time for saves", "GiB every", "training.save_interval to"),
        (
            "training.eval_interval=12",
            "time for evaluations",
            "28%",
            "training.eval_interval to 34",
        ),
        ("training.warmup_iterations=4", "length of the warm-up", "4 of 238,418", "about 238"),
        # The limits are three times the GPT-3 rate and 100 warm-up steps.
        ("training.warmup_iterations=80", "length of the warm-up", "80 of 238,418", "about 238"),
        ("training.learning_rate=3.7e-4", "size of the learning rate", "times GPT-3", "1.1e-04"),
        ("training.learning_rate=6e-4", "size of the learning rate", "5.3 times GPT-3", "1.1e-04"),
        ("jobs.training.walltime=01:00:00", "jobs in a row", "of at most 1 h", "walltime"),
    ],
)
def test_what_an_expert_would_ask_is_a_warning(word, name, value, remedy):
    check = warned(word)[name]
    assert value in check.value, check.value
    assert remedy in check.remedy, check.remedy
    assert name not in warned(), "the usual value is not warned of"


@pytest.mark.parametrize(("rate", "is_warned"), [(0.1, False), (0.11, True)])
def test_a_rate_that_no_model_tolerates_is_a_warning_for_a_small_model_too(rate, is_warned):
    plan = make_plan(load("local", set_words=[f"training.learning_rate={rate}"]))
    names = [check.name for check in plan.checks if check.verdict == "warn"]
    assert ("04-training: size of the learning rate" in names) is is_warned


@pytest.mark.parametrize(("jobs", "num_warnings"), [(None, 0), (30, 0), (31, 1)])
def test_thirty_jobs_in_a_row_are_not_warned_of(jobs, num_warnings):
    choice = SimpleNamespace(phase="04-training", keys=SimpleNamespace(job="jobs.training"))
    endurance = SimpleNamespace(jobs=jobs, walltime_seconds=3600.0)
    assert len(list(_jobs(choice, SimpleNamespace(endurance=endurance)))) == num_warnings


def test_the_smoke_test_in_short_includes_its_start():
    rows = {row["what"]: row for row in summary_table(make_plan(load(RUN))).rows}
    row = rows["smoke test"]
    assert row["plan"] == PlanningMessage.SMOKE_TEST_TIME.fill(duration="2 min")
    assert row["note"] == PlanningMessage.START_AND_STEPS.fill(start_up="2 min", steps="0.46 s")
