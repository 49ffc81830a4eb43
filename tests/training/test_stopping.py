"""Why a training ends on a step that is not wanted: one sentence for each policy, also for one that is not known."""

from dataclasses import replace
from types import SimpleNamespace

import pytest
from suite.messages import containing, says

from runbook.training.health.bad_steps import BadStep, BadStepPolicy
from runbook.training.messages import TrainingMessage

BAD = BadStep(7, "the loss", float("nan"), 48, 55)


def ended_by(policy: str, **state: int) -> str:
    limits = SimpleNamespace(nan_policy=policy, spike_policy="note", nan_limit=3)
    policies = BadStepPolicy(SimpleNamespace(limits=limits))
    for name, value in state.items():
        setattr(policies, name, value)
    return str(policies.error(BAD))


@pytest.mark.parametrize(
    ("policy", "state", "reason"),
    [
        ("stop", {}, "training.nan_policy is stop; skip leaves such a step out"),
        ("skip", {"in_a_row": 4}, "4 such steps in a row are more than training.nan_limit 3"),
        ("rollback", {}, "there is no checkpoint to go back to"),
        ("rollback", {"rollbacks": 4}, "3 rollbacks are all that training.nan_limit 3 allows"),
        ("a new one", {}, "training.nan_policy is a new one; skip leaves such a step out"),
    ],
)
def test_each_policy_says_why_the_training_ends(policy, state, reason):
    text = ended_by(policy, **state)
    assert reason in text
    assert says(
        text,
        TrainingMessage.BAD_VALUE,
        fault=containing("the loss"),
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
    assert "training.spike_policy is note" in str(policies.error(spike))
