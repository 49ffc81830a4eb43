"""The control plane with two hundred stand-in ranks. benchmarks/control_plane.py measures ten
thousand.
"""

import pytest

from benchmarks import control_plane
from runbook.training.health import heartbeat


@pytest.fixture(scope="module")
def measured():
    uptime = heartbeat.uptime
    heartbeat.uptime = control_plane.CLOCK
    try:
        yield {ranks: control_plane.measure(ranks) for ranks in (8, 200)}
    finally:
        heartbeat.uptime = uptime


def test_operations_do_not_grow_with_the_ranks(measured):
    few = measured[8]
    many = measured[200]
    assert many["heartbeats"]["operations_per_second"] == {"run": 0, "machine": 0}
    assert many["operations_per_second"] <= few["operations_per_second"] < 12
    assert many["start"]["operations"]["run"] / 200 <= few["start"]["operations"]["run"] / 8 < 12
    assert many["hang"]["operations"] == {"run": 0, "machine": 0}


def test_a_step_costs_the_times_of_at_most_128_ranks(measured):
    assert measured[200]["steps"]["bytes_per_step"]["rank_times.jsonl"] < 128 * 8 + 100
    assert measured[200]["steps"]["reduction_bytes_per_step"] < 8 * (5 + 2 * 128)


def test_rank_0_has_processor_time_left_for_its_training(measured):
    assert measured[200]["rank_0_core_share"] < 0.05
