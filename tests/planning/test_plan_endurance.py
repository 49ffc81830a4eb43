"""Saves, failures, consecutive jobs and energy: the documents' figures, each in a single unit."""

from __future__ import annotations

import math
from typing import Any

import pytest

from runbook.params.schema.site import QueueLimit
from runbook.planning.choice import full_choice
from runbook.planning.cost.checkpoint_size import checkpoint_bytes
from runbook.planning.cost.failure_rate import seconds_between_failures
from runbook.planning.cost.long_training import LongTraining, estimate_long_training, jobs_in_a_row
from runbook.planning.cost.save_interval import added_share, daly
from runbook.planning.cost.time_and_money import estimate
from runbook.planning.messages import PlanningMessage

from .conftest import TWO_CORES, build

TIERS = {"AMLFS 40": 19.2, "AMLFS 125": 64.0, "AMLFS 250": 128.0, "AMLFS 500": 256.0}
AZURE = {
    "training": {
        "framework": "megatron-lm",
        "global_batch": 512,
        "micro_batch": 1,
        "save_interval": 100,
    },
    "parallel": {"tensor": 8, "pipeline": 16, "sequence": True},
}


def found(
    sections: dict[str, Any], nodes: int = 16, site: dict[str, Any] | None = None, **job: Any
) -> LongTraining:
    sections = {**sections, "jobs": {"training": {"nodes": nodes, **job}}}
    settings = build(sections, model="175b", device="H100-SXM", site=site or {})
    choice = full_choice(settings)
    time = estimate(choice, None)
    size = checkpoint_bytes(174_615_846_912, choice.training.precision)
    return estimate_long_training(choice, settings.run.jobs.training, size, time)


def test_azures_write_times_in_one_unit() -> None:
    """Azure's document divides GiB by GB/s, so 2.445 TB take a little longer than it states."""
    saves = found(AZURE, site={"write_bandwidth": TIERS}).saves
    assert [round(save.write_seconds / 60, 3) for save in saves] == [2.122, 0.637, 0.318, 0.159]


def test_the_best_interval_grows_shorter_with_the_devices() -> None:
    tier = {"write_bandwidth": {"AMLFS 40": 19.2}}
    (small,), (large,) = found(AZURE, 16, tier).saves, found(AZURE, 128, tier).saves
    assert small.best_interval_seconds == pytest.approx(5.27 * 3600, rel=0.01)
    assert large.best_interval_seconds == pytest.approx(1.85 * 3600, rel=0.01)
    assert (small.added_share, large.added_share) == (
        pytest.approx(0.0134, abs=1e-3),
        pytest.approx(0.038, abs=1e-3),
    )


def test_saving_too_often_costs_more_than_failures() -> None:
    """Saving every 100 steps on 128 nodes, as Azure's script does, takes almost a third of the
    time.
    """
    (save,) = found(AZURE, 128, {"write_bandwidth": {"AMLFS 40": 19.2}}).saves
    assert save.added_share_as_chosen is not None
    assert 0.25 < save.added_share_as_chosen < 0.60
    assert save.best_interval_seconds is not None
    assert save.best_interval_seconds > 3600


def test_no_interval_loses_less_than_the_best() -> None:
    write = 130.0
    between = seconds_between_failures(1024)
    best = added_share(write, daly(write, between), between)
    for factor in (0.3, 0.7, 1.5, 4):
        assert best < added_share(write, factor * math.sqrt(2 * write * between), between)


def test_a_write_longer_than_failures_are_apart_has_an_answer() -> None:
    assert daly(100, 10) == 10


def test_jobs_in_a_row_follow_from_the_queues_limit() -> None:
    queue = {"queues": {"gpu": QueueLimit(max_walltime="48:00:00")}}
    sections = {**AZURE, "training": {**AZURE["training"], "iterations": 286_102}}
    limited = found(sections, 16, queue, partition="gpu")
    assert limited.walltime_seconds == 48 * 3600
    assert limited.jobs is not None
    assert 25 < limited.jobs < 40
    assert found(sections, 16, queue, partition="gpu", walltime="24:00:00").jobs == pytest.approx(
        2 * limited.jobs, abs=1
    )
    assert found(sections, 16).jobs is None
    assert jobs_in_a_row(100, 10, 10) is None


def test_energy_only_where_the_power_is_known() -> None:
    known = found(AZURE)
    assert known.energy_kwh is not None
    assert known.energy_basis == PlanningMessage.POWER.fill(watts=700)
    choice = full_choice(build())
    time = estimate(choice, TWO_CORES)
    here = estimate_long_training(choice, build().run.jobs.training, 10**8, time)
    assert (here.energy_kwh, here.energy_basis) == (
        None,
        PlanningMessage.POWER_NOT_KNOWN.fill(device="cpu"),
    )
    assert here.hours_between_failures is None
    assert here.saves == ()
