"""Why training ends at a bad step: one sentence for each policy, including an unknown one."""

from dataclasses import replace
from types import SimpleNamespace

import pytest
from suite.messages import assert_about

from runbook.plan_file.errors import TrainingError
from runbook.training.health import bad_steps
from runbook.training.health.bad_steps import BadStep, BadStepPolicy
from runbook.training.messages import TrainingMessage

BAD = BadStep(7, TrainingMessage.LOSS.fill(), float("nan"), 48, 55)


def ended_by(policy: str, **state: int) -> TrainingError:
    limits = SimpleNamespace(nan_policy=policy, spike_policy="note", nan_limit=3)
    policies = BadStepPolicy(SimpleNamespace(limits=limits))
    for name, value in state.items():
        setattr(policies, name, value)
    return policies.error(BAD)


@pytest.mark.parametrize(
    ("policy", "state", "reason"),
    [
        ("stop", {}, TrainingMessage.POLICY_STOPS.of(key="nan_policy", policy="stop")),
        ("skip", {"in_a_row": 4}, TrainingMessage.TOO_MANY_BAD_STEPS.of(in_a_row=4, limit=3)),
        ("rollback", {}, TrainingMessage.NOTHING_TO_GO_BACK_TO.of()),
        ("rollback", {"rollbacks": 4}, TrainingMessage.NO_MORE_ROLLBACKS.of(rollbacks=3, limit=3)),
        ("a new one", {}, TrainingMessage.POLICY_STOPS.of(key="nan_policy", policy="a new one")),
    ],
)
def test_each_policy_says_why_the_training_ends(policy, state, reason):
    assert_about(
        ended_by(policy, **state),
        TrainingMessage.BAD_VALUE,
        reason=reason,
        fault=TrainingMessage.LOSS.fill(),
        bad="nan",
        iteration=7,
        first_sample=48,
        last_sample=55,
    )


def test_a_policy_that_is_not_known_ends_the_training():
    limits = SimpleNamespace(nan_policy="a new one", spike_policy="note", nan_limit=3)
    policies = BadStepPolicy(SimpleNamespace(limits=limits))
    assert policies.action(BAD, has_checkpoint=True) == "stop"
    spike = replace(BAD, key="spike_policy")
    reason = policies.error(spike).values["reason"]
    assert reason == TrainingMessage.POLICY_STOPS.of(key="spike_policy", policy="note")


@pytest.mark.parametrize(
    ("policy", "withholds", "answers", "rolls_back"),
    [
        ("note", False, False, False),
        ("skip", True, False, False),
        ("rollback", False, True, True),
        ("a new one", False, True, False),
    ],
)
def test_a_spike_is_withheld_answered_or_only_noted(policy, withholds, answers, rolls_back):
    limits = SimpleNamespace(nan_policy="stop", spike_policy=policy, nan_limit=3)
    assert bad_steps.withholds_jumps(limits) is withholds
    assert bad_steps.answers_spikes(limits) is answers
    assert bad_steps.may_roll_back(limits) is rolls_back
