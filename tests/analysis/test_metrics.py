from __future__ import annotations

import pytest

from runbook.analysis.history import Evaluation
from runbook.analysis.metrics import find_spikes, goodput, measured, summarize


def test_warm_up_is_left_out_of_each_segment(make):
    records = [make.step(n, seconds=9.0 if n in (1, 41) else 2.0, segment=int(n > 40)) for n in range(1, 101)]
    used = measured(make.history(records))
    assert [step.iteration for step in used][:2] == [5, 6]
    assert {1, 41} & {step.iteration for step in used} == set()
    assert summarize(make.history(records), sequence_length=128).seconds_per_iteration == 2.0


def test_skipped_steps_do_not_count_as_speed(make):
    records = [make.step(n, **({"seconds": 500.0, "skipped": 1} if n > 10 else {})) for n in range(1, 41)]
    assert summarize(make.history(records), sequence_length=128).seconds_per_iteration == 2.0


def test_throughput_is_batch_times_length_over_median_seconds(history):
    found = summarize(history, sequence_length=128)
    assert (found.samples_per_second, found.tokens_per_second) == (4.0, 512.0)
    assert found.tokens_per_second_per_device == 256.0
    assert (found.seconds_low, found.seconds_high) == (2.0, 2.0)
    assert found.data_wait_share == pytest.approx(0.25)


def test_loss_numbers(history):
    found = summarize(history, sequence_length=128, validation=[Evaluation(100, 4.4, 81.5, 32, 2.0, 0.0)])
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
    assert (spike.iteration, spike.recovered_at) == (50, None)


def test_falling_curve_has_no_spikes():
    assert find_spikes([(n, 10.8 - 0.05 * n) for n in range(1, 150)]) == ()


def test_goodput_parts_add_up_to_the_wall_time(make):
    first = [make.step(n) for n in range(1, 61)]
    again = [make.step(n, segment=1, time=1200.0 + 2.0 * (n - 50)) for n in range(51, 101)]
    events = [make.started, *make.saved(50), {"event": "finished", "time": 1310.0}]
    validation = [Evaluation(100, 4.4, 81.5, 32, 3.0, 1303.0)]
    parts = goodput(make.history(first + again), validation, events)
    assert parts.wall_seconds == 320.0
    assert (parts.startup_seconds, parts.restart_seconds, parts.repeated_seconds) == (10.0, 80.0, 20.0)
    assert (parts.training_seconds, parts.data_wait_seconds) == (150.0, 50.0)
    assert (parts.save_seconds, parts.evaluation_seconds, parts.other_seconds) == (1.0, 3.0, 6.0)
    assert sum(seconds for _, seconds in parts.parts()) == pytest.approx(parts.wall_seconds)
    assert parts.share == pytest.approx(150 / 320)


def test_save_after_the_last_step_is_not_part_of_the_restart_gap(make):
    records = [make.step(1, time=1002.0), make.step(2, segment=1, time=1020.0)]
    events = [{"event": "saved", "iteration": 1, "seconds": 3.0, "time": 1005.0}]
    assert goodput(make.history(records), (), events).restart_seconds == 13.0
