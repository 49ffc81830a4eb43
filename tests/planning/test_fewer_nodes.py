"""A training run that has lost nodes: the numbers of nodes that it can continue on, and what
changes then.
"""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from suite.messages import says

from runbook import params
from runbook.core.errors import PlanError
from runbook.params.settings import with_placeholders
from runbook.plan_file import trainer_requirements
from runbook.plan_file.errors import RefusedError
from runbook.plan_file.fewer_replicas import (
    REPLICAS_CHANGED,
    allowed_nodes,
    plan_of_attempt,
    replicas_change,
)
from runbook.plan_file.messages import PlanFileMessage
from runbook.planning import make_plan
from runbook.planning.fewer_nodes import MIN_NODES
from runbook.planning.make_plan import parse_plan
from runbook.planning.messages import PlanningMessage
from runbook.planning.useful_time import fault_costs

FULL = "04-training"
WORDS = (
    "training.framework=runbook",
    "jobs.training.nodes=64",
    "parallel.tensor=8",
    "parallel.pipeline=4",
)
"""16 replicas of 4 nodes each. The global batch is 512."""


def planned(*words):
    settings = params.load("azure-175b", set_words=[*WORDS, *words])
    return make_plan(with_placeholders(settings))


def check_of(plan):
    (check,) = (check for check in plan.checks if check.name == f"{FULL}: fewer nodes")
    return check


@pytest.fixture(scope="module")
def phase():
    return planned("jobs.training.min_nodes=8", "model=13b").phases[FULL]


def test_only_numbers_of_replicas_by_which_the_batch_divides_are_allowed(phase):
    assert phase.parallel.data == 16
    assert phase.limits.fewer_replicas == (8, 4, 2)
    assert allowed_nodes(phase, 8) == [64, 32, 16, 8]


def test_what_failures_cost_knows_the_fewer_nodes():
    costs = fault_costs(planned("jobs.training.min_nodes=8", "model=13b"))
    assert costs is not None
    assert costs.fewer_nodes == (32, 16, 8)
    without = fault_costs(planned("model=13b"))
    assert without is not None
    assert without.fewer_nodes == ()
    assert len(without.assumptions) == len(costs.assumptions) - 1


def test_what_failures_cost_counts_the_nodes_of_a_job_that_uses_few_of_their_devices():
    plan = planned(
        "model=1.3b",
        "parallel.tensor=1",
        "parallel.pipeline=1",
        "parallel.sequence=false",
        "jobs.training.nodes=16",
        "jobs.training.min_nodes=8",
        "jobs.training.devices_per_node=1",
    )
    costs = fault_costs(plan)
    assert costs is not None
    assert costs.parts.nodes == 16
    assert costs.fewer_nodes == (8,)
    assert parse_plan(json.dumps(plan.as_dict()), Path("plan.json")).endurance.devices_per_node == 1


def test_interleaved_stages_need_whole_groups_of_micro_batches():
    words = ("model=13b", "training.global_batch=192", "jobs.training.min_nodes=4")
    assert planned(*words).phases[FULL].limits.fewer_replicas == (12, 8, 6, 4, 3, 2, 1)
    interleaved = planned(*words, "parallel.virtual_pipeline=2").phases[FULL]
    assert interleaved.limits.fewer_replicas == (12, 8, 6, 4, 3, 2, 1)
    odd = planned(
        "model=13b",
        "training.global_batch=96",
        "jobs.training.nodes=32",
        "jobs.training.min_nodes=4",
        "parallel.virtual_pipeline=2",
    ).phases[FULL]
    assert odd.limits.fewer_replicas == (6, 4, 3, 2, 1)


def test_what_does_not_fit_into_memory_is_left_out():
    """With fewer replicas, each one keeps a larger shard of the optimizer states."""
    plan = planned("model=175b", "jobs.training.min_nodes=4", "training.recompute=full")
    assert plan.phases[FULL].limits.fewer_replicas == (8, 4, 2)


def test_an_attempt_keeps_the_global_batch_by_more_micro_batches(phase):
    attempt = plan_of_attempt(phase, 8 * 32)
    assert (attempt.parallel.data, attempt.parallel.world_size) == (8, 256)
    assert attempt.batch.num_microbatches == 2 * phase.batch.num_microbatches
    assert attempt.batch.global_ == phase.batch.global_
    assert attempt.planned_replicas == 16
    trainer_requirements.check(attempt, 256, fp16=True)
    assert plan_of_attempt(phase, 512) is phase


@pytest.mark.parametrize("world_size", [3 * 32, 4 * 32 + 1, 1024])
def test_other_numbers_of_ranks_are_refused(phase, world_size):
    attempt = plan_of_attempt(phase, world_size)
    with pytest.raises(RefusedError) as caught:
        trainer_requirements.check(attempt, world_size, fp16=True)
    assert caught.value.message is PlanFileMessage.CANNOT_BE_TRAINED
    started = {"world_size": world_size, "ranks": 512}
    assert says(str(caught.value), PlanFileMessage.RANKS_STARTED, **started)


def test_a_start_says_when_the_number_of_replicas_changes(phase):
    attempt = plan_of_attempt(phase, 8 * 32)
    lost = replicas_change(attempt, [])
    assert (lost.replicas, lost.planned_replicas) == (8, 16)
    events = [{"event": REPLICAS_CHANGED, "replicas": 8}]
    assert replicas_change(attempt, events) is None, "once"
    assert replicas_change(phase, events).replicas == 16, "the next job has all nodes"
    assert replicas_change(phase, []) is None
    assert replicas_change(phase, [*events, {"event": "begun"}]) is None, "another training"


def test_the_plan_says_what_each_number_means():
    check = check_of(planned("model=13b", "jobs.training.min_nodes=8"))
    assert check.verdict == "pass"
    assert says(
        check.value,
        PlanningMessage.FEWER_NODES,
        nodes=32,
        planned_nodes=64,
        replicas="8 replicas",
        num_microbatches=64,
        planned_microbatches=32,
        factor=2.0,
    )


@pytest.mark.parametrize(
    ("words", "reason"),
    [
        (
            ["training.framework=megatron-lm"],
            PlanningMessage.MIN_NODES_OF_FRAMEWORK.of(framework="megatron-lm"),
        ),
        (
            ["jobs.training.min_nodes=64"],
            PlanningMessage.MIN_NODES_TOO_LARGE.of(nodes="64 nodes", key=MIN_NODES),
        ),
        (
            ["jobs.training.min_nodes=33"],
            PlanningMessage.NO_NUMBER_OF_NODES.of(key=MIN_NODES, min_nodes=33, most=63),
        ),
    ],
)
def test_what_cannot_go_on_with_fewer_nodes_is_refused_by_name(words, reason):
    with pytest.raises(PlanError) as caught:
        planned("model=13b", "jobs.training.min_nodes=8", *words)
    assert says(str(caught.value), reason.message, **reason.values)
