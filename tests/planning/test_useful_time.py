"""The cost of faults: the simulated times add up, and Llama 3's failure rates give its share."""

from __future__ import annotations

import json
import math
import random
from dataclasses import replace
from pathlib import Path

import pytest
from suite.messages import says

from runbook.core.checks import Check
from runbook.planning import make_plan
from runbook.planning.cost.fault_simulation import (
    CORRUPTION,
    FAULT_KINDS,
    GPU,
    HANG,
    NODE,
    SOFTWARE,
    CampaignParts,
    FaultKind,
    FollowUp,
    NearParts,
    PoissonFaults,
    Policy,
    expected,
    simulate,
    with_interval,
)
from runbook.planning.make_plan import parse_plan
from runbook.planning.messages import PlanningMessage
from runbook.planning.unattended import jobs_with_failures
from runbook.planning.useful_time import (
    CRASH_SECONDS,
    LOST_NODE_SECONDS,
    detection_seconds,
    fault_costs,
    useful_time,
)

from .conftest import TWO_CORES, build

PARTS = CampaignParts(
    step=10, steps_between_saves=10, save_stall=5, save_lag=25, start=60, resume=20, nodes=8
)

NEAR = NearParts(steps_between=2, stall=1, lag=4, resume=5, has_partner=True)


class GivenFaults:
    """Failures at the given times, in seconds."""

    def __init__(self, *failures: tuple[float, FaultKind]) -> None:
        self._failures = list(failures)

    def after(self, held: float, _step: int, _training_from: float) -> tuple[float, FaultKind]:
        while self._failures and self._failures[0][0] <= held:
            self._failures.pop(0)
        return self._failures[0] if self._failures else (math.inf, SOFTWARE)

    def quiet_until(self, held: float) -> float:
        return held


def sums_of(account) -> dict[str, float]:
    return {name: value for name, value in vars(account).items() if name != "failures"}


def parts_of(account) -> float:
    return (
        account.productive
        + account.starts
        + account.detection
        + account.lost_steps
        + account.saves
        + account.waiting
        + account.fewer_nodes
    )


def test_a_failure_costs_noticing_a_start_and_the_steps_since_the_last_whole_save():
    # Training starts at 60. Saves begin at 160 and 265 and are complete at 185 and 290. The run
    # fails in the 25th step.
    faults = GivenFaults((315.0, HANG))
    account = simulate(PARTS, Policy(detection={HANG.name: 40}), 1000, faults)
    (failure,) = account.failures
    assert (failure.began_at, failure.reached, failure.started) == (0, 24, True)
    assert account.detection == 40
    assert account.starts == 60 + 80
    assert account.lost_steps == pytest.approx(45)
    assert account.steps == 20 + 54
    assert parts_of(account) == pytest.approx(account.held) == 1000


def test_a_save_that_is_not_whole_does_not_count():
    account = simulate(PARTS, Policy(), 1000, GivenFaults((280.0, SOFTWARE)))
    assert account.lost_steps > 100
    whole = simulate(PARTS, Policy(), 1000, GivenFaults((290.0, SOFTWARE)))
    assert whole.lost_steps < 30


def test_a_job_saves_before_its_limit_and_the_next_one_loses_no_step():
    parts = replace(PARTS, walltime=600)
    account = simulate(parts, Policy(queue=3600), 3000, GivenFaults())
    # Each job trains for 550 s including its start, and takes 25 s more for its last save.
    assert account.jobs == 6
    assert account.queued == 5 * 3600
    assert account.lost_steps < account.jobs * 2 * parts.step
    assert parts_of(account) == pytest.approx(account.held)


class OneByOne(PoissonFaults):
    """The same failures as in `PoissonFaults`, for a simulation that processes every job."""

    attempts = 0

    def after(self, held: float, step: int, training_from: float) -> tuple[float, FaultKind]:
        self.attempts += 1
        return super().after(held, step, training_from)

    def quiet_until(self, held: float) -> float:
        return held


class AtOnce(OneByOne):
    def quiet_until(self, held: float) -> float:
        return PoissonFaults.quiet_until(self, held)


@pytest.mark.parametrize("spares", [0, 2])
def test_jobs_between_two_failures_are_counted_at_once_and_change_no_account(spares):
    parts = replace(PARTS, walltime=3600)
    policy = Policy(spares=spares, detection={HANG.name: 40}, queue=60)
    every_job = OneByOne(5e6, random.Random(7))
    account = simulate(parts, policy, 4e7, every_job)
    skipped = AtOnce(5e6, random.Random(7))
    quick = simulate(parts, policy, 4e7, skipped)
    assert len(account.failures) > 3
    assert quick.failures == account.failures
    assert sums_of(quick) == pytest.approx(sums_of(account))
    assert every_job.attempts > 100 * skipped.attempts


@pytest.mark.parametrize("near", [None, NEAR])
def test_an_attempt_that_began_with_the_end_of_a_job_is_not_counted_as_one_job(near):
    parts = replace(PARTS, walltime=3600, near=near)
    policy = Policy(spares=2, queue=60)

    class LateFailure(GivenFaults):
        """A failure so late in a job that no further step fits into it."""

        quiet = False

        def quiet_until(self, held: float) -> float:
            if not self.quiet:
                return held
            return self._failures[0][0] if self._failures else math.inf

    account = simulate(parts, policy, 4e6, LateFailure((3500.0, SOFTWARE)))
    faults = LateFailure((3500.0, SOFTWARE))
    faults.quiet = True
    quick = simulate(parts, policy, 4e6, faults)
    assert sums_of(quick) == pytest.approx(sums_of(account))


def test_spares_answer_lost_nodes_in_the_allocation_until_none_is_left():
    faults = [(1000.0 * number, GPU) for number in range(1, 4)]
    account = simulate(PARTS, Policy(spares=2, queue=7200), 5000, GivenFaults(*faults))
    assert (account.jobs, account.queued) == (2, 7200)
    alone = simulate(PARTS, Policy(queue=7200), 5000, GivenFaults(*faults))
    assert (alone.jobs, alone.queued) == (4, 3 * 7200)
    assert account.useful(8, 2) == pytest.approx(alone.useful(8, 0) * 8 / 10)


def test_a_lost_node_is_answered_with_fewer_nodes_whose_steps_take_longer():
    """Eight nodes may become six: once a node is lost, steps take 8/6 as long until the job ends."""
    faults = [(1000.0, GPU)]
    policy = Policy(queue=7200, fewer_nodes=(6, 4))
    fewer = simulate(PARTS, policy, 5000, GivenFaults(*faults))
    undisturbed = simulate(PARTS, policy, 5000, GivenFaults())
    assert (fewer.jobs, fewer.queued) == (1, 0)
    assert undisturbed.fewer_nodes == 0
    steps_before = 90
    steps_after = fewer.steps - steps_before
    assert fewer.fewer_nodes == pytest.approx(steps_after * PARTS.step * (8 / 6 - 1), rel=0.05)
    assert fewer.productive == pytest.approx(fewer.steps * PARTS.step)
    assert parts_of(fewer) == pytest.approx(5000)


def test_too_few_nodes_end_the_job_and_the_next_one_has_all():
    """Two lost nodes leave six, and three leave five, of which a layout could use only four."""
    faults = [(1000.0, GPU), (2000.0, GPU), (3000.0, GPU)]
    policy = Policy(queue=7200, fewer_nodes=(6,))
    account = simulate(PARTS, policy, 9000, GivenFaults(*faults))
    assert (account.jobs, account.queued) == (2, 7200)
    seconds_with_six = account.fewer_nodes / (8 / 6 - 1) * 8 / 6
    assert 1000 < seconds_with_six < 2000


def test_a_new_job_has_all_nodes_although_the_last_failure_left_no_time_for_a_step():
    """Half the nodes are lost minutes before a one-hour job ends."""
    parts = replace(PARTS, walltime=3600)
    faults = [(3480.0, GPU)]
    fewer = simulate(parts, Policy(fewer_nodes=(4,)), 9000, GivenFaults(*faults))
    with_spare = simulate(parts, Policy(spares=1), 9000, GivenFaults(*faults))
    assert fewer.fewer_nodes == 0
    assert fewer.steps == pytest.approx(with_spare.steps, rel=0.02)
    assert parts_of(fewer) == pytest.approx(fewer.held)


def test_longer_steps_that_are_lost_with_the_allocation_count_as_lost():
    """The job continues from copies with fewer nodes until a later failure requires a new job."""
    parts = replace(PARTS, near=NEAR, steps_between_saves=1000)
    faults = [(500.0, GPU), (1500.0, SOFTWARE), (2500.0, GPU)]
    account = simulate(parts, Policy(fewer_nodes=(7,)), 4000, GivenFaults(*faults))
    assert account.jobs == 2
    assert account.fewer_nodes == pytest.approx(0, abs=1e-6)
    assert parts_of(account) == pytest.approx(account.held)


def test_a_spare_node_comes_before_fewer_nodes():
    policy = Policy(spares=1, fewer_nodes=(6,))
    one = simulate(PARTS, policy, 5000, GivenFaults((1000.0, GPU)))
    two = simulate(PARTS, policy, 5000, GivenFaults((1000.0, GPU), (2000.0, GPU)))
    assert one.fewer_nodes == 0
    assert two.fewer_nodes > 0
    assert two.jobs == 1


def test_copies_of_all_ranks_do_not_fit_to_fewer_ones():
    parts = replace(PARTS, near=NEAR)
    policy = Policy(fewer_nodes=(6,))
    lost = simulate(parts, policy, 5000, GivenFaults((1000.0, GPU)))
    crashed = simulate(parts, policy, 5000, GivenFaults((1000.0, SOFTWARE)))
    assert (lost.near_restarts, crashed.near_restarts) == (0, 1)


def test_what_the_rules_leave_to_a_person_waits_for_one():
    policy = Policy(spares=1, person=3600, follow=lambda failures: FollowUp(goes_on=False))
    account = simulate(PARTS, policy, 2000, GivenFaults((1000.0, SOFTWARE)))
    assert (account.stops, account.for_person, account.jobs) == (1, 3600, 2)


def test_a_campaign_ends_with_its_last_step():
    account = simulate(PARTS, Policy(), math.inf, GivenFaults(), steps=100)
    assert account.steps == 100
    assert account.held == pytest.approx(60 + 1000 + 9 * 5)


def test_failures_come_at_the_rate_and_in_the_shares_that_were_published():
    faults = PoissonFaults(100.0, random.Random(0))
    held = 0.0
    kinds = []
    while held < 1_000_000:
        held, kind = faults.after(held, 0, held)
        kinds.append(kind)
    assert len(kinds) == pytest.approx(10_000, rel=0.05)
    assert kinds.count(GPU) / len(kinds) == pytest.approx(262 / 419, abs=0.02)
    assert sum(kind.count for kind in FAULT_KINDS) == 419


WITH_COPIES = replace(PARTS, save_stall=0, save_lag=0, near=NEAR)
"""A step takes 10.5 s with its half of a copy, so a ten-step cycle takes 105 s."""


def test_a_failure_takes_back_to_the_newest_copies_in_the_same_allocation():
    # Training starts at 60 and fails in the 18th step. Copies of 16 steps were complete at 60 + 168
    # + 4.
    faults = [(60 + 17.5 * 10.5, GPU)]
    account = simulate(WITH_COPIES, Policy(spares=1), 2000, GivenFaults(*faults))
    assert account.near_restarts == 1
    assert account.lost_steps == pytest.approx(1.5 * 10.5, abs=10.5)
    assert account.starts == 60 + (60 + 5), "copies are read faster than the checkpoint"
    without = simulate(
        replace(WITH_COPIES, near=None), Policy(spares=1), 2000, GivenFaults(*faults)
    )
    assert without.lost_steps > 70
    assert parts_of(account) == pytest.approx(account.held)


def test_copies_that_are_on_their_way_do_not_count():
    faults = GivenFaults((60 + 14 * 10.5 + 3, SOFTWARE))
    account = simulate(WITH_COPIES, Policy(spares=1), 60 + 14 * 10.5 + 3.5, faults)
    assert account.steps == 12


@pytest.mark.parametrize(
    ("kind", "policy", "near"),
    [
        (SOFTWARE, Policy(), NEAR),
        (GPU, Policy(spares=1), replace(NEAR, has_partner=False)),
        (CORRUPTION, Policy(spares=1), NEAR),
    ],
    ids=["a new job gets other nodes", "no partner", "the copies may be wrong"],
)
def test_copies_that_cannot_be_used_cost_the_steps_since_the_checkpoint(kind, policy, near):
    parts = replace(WITH_COPIES, near=near)
    account = simulate(parts, policy, 60 + 18 * 10.5, GivenFaults((60 + 17.5 * 10.5, kind)))
    assert (account.near_restarts, account.steps) == (0, 10)


def test_a_campaign_that_goes_on_behind_a_save_ends_with_its_last_step():
    parts = replace(PARTS, near=NEAR)
    faults = GivenFaults((60 + 17.5 * 10.5, SOFTWARE))
    account = simulate(parts, Policy(spares=1), 1e6, faults, steps=21)
    assert (account.steps, account.jobs, account.near_restarts) == (21, 1, 1)


def test_steps_behind_copies_are_lost_with_the_allocation():
    """The third failure requires a new job, which starts again from the checkpoint of step 10."""
    first = 60 + 17.5 * 10.5
    second = first + 60 + 5 + 1
    faults = GivenFaults((first, SOFTWARE), (second, GPU))
    account = simulate(WITH_COPIES, Policy(spares=1), second + 1, faults)
    assert (account.steps, account.jobs) == (16, 1), "the spare takes the place of the lost node"
    faults = GivenFaults((first, SOFTWARE), (second, GPU), (second + 2, GPU))
    account = simulate(WITH_COPIES, Policy(spares=1), second + 60, faults)
    assert (account.steps, account.jobs) == (10, 2)
    assert parts_of(account) == pytest.approx(account.held)


def test_llama_3s_rate_gives_over_ninety_percent():
    """The authors state over 90 % (arXiv 2407.21783, 3.3.4): 419 stops in 54 days, with restarts of
    minutes.
    """
    devices = 16_384
    step = 6 * 405e9 * 16.8e6 / (devices * 400e12)
    parts = CampaignParts(
        step=step,
        steps_between_saves=round(600 / step),
        save_stall=1,
        save_lag=60,
        start=300,
        resume=60,
        nodes=devices // 8,
    )
    policy = Policy(detection=detection_seconds(600, step))
    time = expected(parts, policy, 54 * 86400, 50_677 / devices * 3600)
    assert 0.90 < time.low < time.median < time.high < 0.95
    assert time.failures == pytest.approx(419 * time.days / 54, rel=0.03)
    seldom = expected(with_interval(parts, 3600), policy, 54 * 86400, 50_677 / devices * 3600)
    assert seldom.median < time.median - 0.05


def test_hangs_are_noticed_by_the_watchdogs_limits():
    seconds = detection_seconds(600.0, 10.0)
    assert (seconds[HANG.name], seconds[GPU.name]) == (360.0, CRASH_SECONDS)
    assert max(seconds.values()) == 360.0 > LOST_NODE_SECONDS
    assert detection_seconds(600.0, 200.0)[HANG.name] == 600.0
    assert (seconds[NODE.name], seconds[SOFTWARE.name]) == (300.0, 5.0)


QUEUED = {"scheduler": "slurm"}
AZURE = {
    "training": {"framework": "megatron-lm", "global_batch": 512, "micro_batch": 1},
    "parallel": {"tensor": 8, "pipeline": 16, "sequence": True},
    "jobs": {"training": {"nodes": 16}},
}


def test_a_plan_knows_what_faults_cost_and_what_it_assumed():
    plan = make_plan(build(AZURE, model="175b", device="H100-SXM", site={}))
    costs = fault_costs(plan)
    assert costs is not None
    assert costs.parts.nodes == 16
    assert costs.parts.steps_between_saves == plan.phases["04-training"].checkpoint.interval
    speeds = [
        says(text, PlanningMessage.SPEED_OF_SAVES, gigabytes=16.0) for text in costs.assumptions
    ]
    assert any(speeds)
    time = useful_time(plan)
    assert time is not None
    assert time.low <= time.median <= time.high < 1
    assert time.days > costs.training_seconds / 86400


def test_spare_nodes_are_held_and_count_in_the_plan():
    jobs = {"jobs": {"training": {"nodes": 16, "spares": 2}}}
    plan = make_plan(build({**AZURE, **jobs}, model="175b", device="H100-SXM", site=QUEUED))
    assert parse_plan(json.dumps(plan.as_dict()), Path("plan.json")).endurance.spares == 2
    time = useful_time(plan)
    assert time is not None
    assert time.median == pytest.approx(time.of_training_nodes * 16 / 18)
    assert (
        "spares"
        not in make_plan(build(AZURE, model="175b", device="H100-SXM", site=QUEUED)).as_dict()[
            "endurance"
        ]
    )


def test_a_training_shorter_than_its_start_has_no_expectation():
    trial = {**AZURE, "training": {**AZURE["training"], "iterations": 4, "warmup_iterations": 1}}
    plan = make_plan(build(trial, model="175b", device="H100-SXM", site={}))
    costs = fault_costs(plan)
    assert costs is not None and costs.training_seconds < costs.parts.start
    assert useful_time(plan) is None


def test_a_plan_for_cpus_has_no_rate_of_failures():
    assert useful_time(make_plan(build(), TWO_CORES)) is None


def test_a_chain_is_compared_with_the_jobs_that_failures_take():
    parts = replace(PARTS, start=0.0, resume=0.0, save_stall=0.0, save_lag=0.0, walltime=3600.0)
    every_step = replace(parts, steps_between_saves=1, step=1.0)
    account = simulate(every_step, Policy(), 1e7, PoissonFaults(7200.0, random.Random(1)))
    assert account.jobs == pytest.approx(jobs_with_failures(round(1e7 / 3600), 0.5), rel=0.03)
    chain = {"walltime": "1-00:00:00", "nodes": 16}
    words = {**AZURE, "training": {**AZURE["training"], "iterations": 100_000}}

    def verdict(jobs: int) -> Check:
        asked = {"jobs": {"training": {**chain, "chain": jobs}}}
        plan = make_plan(build({**words, **asked}, model="175b", device="H100-SXM", site=QUEUED))
        return next(check for check in plan.checks if check.name.endswith("chain"))

    plan = make_plan(
        build({**words, "jobs": {"training": chain}}, model="175b", device="H100-SXM", site=QUEUED)
    )
    jobs = plan.endurance.jobs
    assert jobs is not None
    assert verdict(jobs).verdict == "warn"
    assert says(
        verdict(jobs).value,
        PlanningMessage.CHAIN_WITH_FAILURES,
        without_failure=f"{jobs} jobs",
    )
    assert verdict(2 * jobs).verdict == "pass"


def test_copies_in_node_memory_are_in_the_plans_useful_time():
    jobs = {"jobs": {"training": {"nodes": 16, "spares": 2}}}
    own = {**AZURE, **jobs, "training": {**AZURE["training"], "framework": "runbook"}}
    plan = make_plan(build(own, model="175b", device="H100-SXM", site=QUEUED))
    near = {**own, "training": {**own["training"], "near_interval": 5}}
    with_copies = make_plan(build(near, model="175b", device="H100-SXM", site=QUEUED))
    costs = fault_costs(with_copies)
    assert costs is not None and costs.parts.near is not None
    assert costs.parts.near.has_partner
    assert any(says(text, PlanningMessage.NEAR_COPIES, interval=5) for text in costs.assumptions)
    assert fault_costs(plan).parts.near is None
    useful = [useful_time(made).median for made in (plan, with_copies)]
    assert useful[0] != useful[1]
