from __future__ import annotations

import pytest

from runbook.results.history import ValidationLoss
from runbook.results.metrics import find_spikes, measured, recovery, summarize


def test_warm_up_is_left_out_of_each_segment(make):
    records = [
        make.step(n, seconds=9.0 if n in (1, 41) else 2.0, segment=int(n > 40))
        for n in range(1, 101)
    ]
    used = measured(make.history(records))
    assert [step.iteration for step in used][:2] == [5, 6]
    assert {1, 41} & {step.iteration for step in used} == set()
    assert summarize(make.history(records), sequence_length=128).seconds_per_iteration == 2.0


def test_skipped_steps_do_not_count_as_speed(make):
    records = [
        make.step(n, **({"seconds": 500.0, "skipped": 1} if n > 10 else {})) for n in range(1, 41)
    ]
    assert summarize(make.history(records), sequence_length=128).seconds_per_iteration == 2.0


def test_throughput_is_batch_times_length_over_median_seconds(history):
    found = summarize(history, sequence_length=128)
    assert (found.samples_per_second, found.tokens_per_second) == (4.0, 512.0)
    assert found.tokens_per_second_per_device == 256.0
    assert (found.seconds_low, found.seconds_high) == (2.0, 2.0)
    assert found.data_wait_share == pytest.approx(0.25)


def test_loss_numbers(history):
    found = summarize(
        history, sequence_length=128, validation=[ValidationLoss(100, 4.4, 81.5, 32, 2.0, 0.0)]
    )
    assert found.first_loss == pytest.approx(10.8258, abs=1e-4)
    assert found.relative_fall == pytest.approx(1 - 2.718281828**-0.99, abs=1e-6)
    assert found.validation_loss == 4.4


def test_nothing_is_measured_of_an_empty_history(make):
    found = summarize(make.history([]), sequence_length=128)
    assert found.seconds_per_iteration is None
    assert found.tokens_per_second is None
    assert found.first_loss is None


def test_single_step_is_its_own_median(make):
    assert summarize(make.history([make.step(1)]), sequence_length=128).seconds_per_iteration == 2.0


def test_spike_that_does_not_come_back_is_told_once():
    curve = [(n, 3.0 + 0.01 * (n % 2) if n < 50 else 6.0) for n in range(1, 100)]
    (spike,) = find_spikes(curve)
    assert (spike.since, recovery(spike, curve)) == (50, None)


def test_falling_curve_has_no_spikes():
    assert find_spikes([(n, 10.8 - 0.05 * n) for n in range(1, 150)]) == ()
