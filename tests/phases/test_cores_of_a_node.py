"""The probe for CPU cores: a short disturbance must not look like a slow core."""

import os

import pytest

from runbook.node_checks import cores

USUAL_SECONDS = 0.003
SLOW_SECONDS = 0.009


@pytest.fixture(autouse=True)
def _three_cores_without_pauses(monkeypatch):
    monkeypatch.setattr(cores, "SECOND_LOOK_PAUSE", 0.0)
    monkeypatch.setattr(os, "sched_getaffinity", lambda process: {0, 1, 2})
    monkeypatch.setattr(os, "sched_setaffinity", lambda process, allowed: None)


def test_a_core_that_was_disturbed_once_is_not_slow(monkeypatch):
    looks = {0: [USUAL_SECONDS], 1: [SLOW_SECONDS, SLOW_SECONDS, USUAL_SECONDS], 2: [USUAL_SECONDS]}
    monkeypatch.setattr(cores, "_loop_seconds", lambda core: looks[core].pop(0))
    assert cores.look_at_cores()["slowest_seconds"] == USUAL_SECONDS


def test_a_core_that_stays_slow_is_named(monkeypatch):
    times = {0: USUAL_SECONDS, 1: USUAL_SECONDS, 2: SLOW_SECONDS}
    looked_at = []

    def loop_seconds(core):
        looked_at.append(core)
        return times[core]

    monkeypatch.setattr(cores, "_loop_seconds", loop_seconds)
    facts = cores.look_at_cores()
    assert (facts["slowest_core"], facts["slowest_seconds"]) == (2, SLOW_SECONDS)
    assert looked_at == [0, 1, 2] + [2] * cores.SECOND_LOOKS
