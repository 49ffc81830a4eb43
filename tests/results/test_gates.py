from __future__ import annotations

from dataclasses import replace

import pytest
from suite.messages import says

from runbook.results.gates import (
    REMEDIES,
    Gate,
    learning_check,
    resume_check,
    smallest_fall_of,
    smoke_gate,
    steps_check,
)
from runbook.results.history import Event
from runbook.results.messages import ResultMessage

RELOADED = Event(
    "reloaded",
    iteration=100,
    saved_iteration=100,
    folder="smoke/checkpoints/iter_0000100",
    seconds=3.0,
    loss_before=4.0,
    loss_between=3.99,
    loss_after=4.0,
)
NETWORK = Event("network", ranks=16, seconds=0.001, bytes_per_second=60e9)


def verdicts(checks):
    return {check.name: check.verdict for check in checks}


def failing(checks):
    return {check.name: check.value for check in checks if check.verdict == "fail"}


@pytest.fixture
def good(make, spec, history):
    whole = (make.started, *make.saved(100), RELOADED, NETWORK)

    def gate(steps=history, events=whole, band=(1.0, 3.0), **changes):
        changes.setdefault("network_bytes_per_second", 200e9)
        return smoke_gate(steps, (), events, spec, seconds_band=band, **changes)

    return gate


def test_a_good_run_passes_every_check(good):
    assert set(verdicts(good()).values()) == {"pass"}


def test_first_loss_off_by_more_than_three_tenths_fails(good, make):
    checks = good(make.history([make.step(n, loss=11.3 - 0.01 * n) for n in range(1, 101)]))
    assert failing(checks) == {
        Gate.FIRST_LOSS: ResultMessage.FIRST_LOSS_OFF.fill(loss=11.29, where="", difference=0.465)
    }


def test_loss_that_rises_fails(good, make):
    checks = good(make.history([make.step(n, loss=10.8 + 0.001 * n) for n in range(1, 101)]))
    assert list(failing(checks)) == ["loss falls"]


@pytest.mark.parametrize("norm", [float("inf"), float("nan"), 0.0, None])
def test_gradient_norm_that_is_no_number_fails(good, make, norm):
    records = [make.step(n) for n in range(1, 101)]
    records[6]["grad_norm"] = norm
    value = failing(good(make.history(records)))[Gate.GRADIENT_NORMS]
    assert says(value, ResultMessage.BAD_GRADIENT_NORMS, bad_iterations="7")


def test_a_rank_too_few_fails(good, make):
    events = (replace(make.started, world_size=1), *make.saved(100), RELOADED)
    assert failing(good(events=events)) == {
        Gate.ALL_RANKS: ResultMessage.WORLD_SIZES.fill(world_sizes="1, 2")
    }


def test_no_checkpoint_of_the_last_step_fails(good, make):
    assert failing(good(events=(make.started, *make.saved(50), RELOADED))) == {
        Gate.CHECKPOINT_SAVED: ResultMessage.SAVED_AT.fill(iterations=50)
    }


def test_a_job_cut_short_fails(good, make):
    checks = good(
        make.history([make.step(n) for n in range(1, 81)]),
        (make.started, *make.saved(80), RELOADED),
    )
    assert failing(checks) == {
        Gate.ALL_ITERATIONS: ResultMessage.ITERATIONS_DONE.fill(done=80, planned=100)
    }


def test_a_step_out_of_the_band_is_a_warning_and_no_band_is_unknown(good):
    assert verdicts(good(band=(0.5, 1.5)))["step time"] == "warn"
    assert verdicts(good(band=(3.0, 4.0)))["step time"] == "warn"
    assert verdicts(good(band=None))["step time"] == "unknown"


def test_skipped_step_fails_in_bf16_and_warns_under_a_loss_scale(good, make):
    records = [
        make.step(n, **({"skipped": 1, "loss": None} if n == 3 else {})) for n in range(1, 101)
    ]
    assert failing(good(make.history(records))) == {
        Gate.SKIPPED_STEPS: ResultMessage.SKIPPED_AND_NAN_STEPS.fill(skipped=1, nan=0)
    }
    scaled = [record | {"loss_scale": 65536.0} for record in records]
    assert verdicts(good(make.history(scaled)))[Gate.SKIPPED_STEPS] == "warn"


def test_a_checkpoint_that_is_not_loaded_again_fails(good, make):
    whole = (make.started, *make.saved(100), NETWORK)
    assert failing(good(events=whole)) == {
        Gate.CHECKPOINT_RELOADED: ResultMessage.NEVER_LOADED.fill()
    }
    resumed = Event("resumed", iteration=100)
    assert verdicts(good(events=(*whole, resumed)))["checkpoint reloaded"] == "pass"
    assert "checkpoint reloaded" in failing(good(events=(*whole, replace(resumed, iteration=60))))


@pytest.mark.parametrize(
    ("change", "value"),
    [
        ({"loss_after": 4.2}, "loss 4 saved, 3.99 after one more step, 4.2 loaded, off by +0.2"),
        ({"loss_after": 3.99}, "loss 4 saved, 3.99 after one more step, 3.99 loaded, off by -0.01"),
        ({"iteration": 50}, "iteration 50 was loaded, 100 was saved last"),
    ],
)
def test_a_checkpoint_that_gives_another_model_fails(good, make, change, value):
    events = (make.started, *make.saved(100), replace(RELOADED, **change), NETWORK)
    assert failing(good(events=events)) == {"checkpoint reloaded": value}


def test_network_is_held_against_the_adapters(good, make):
    whole = (make.started, *make.saved(100), RELOADED)

    def network(speed, **promise):
        return verdicts(good(events=(*whole, replace(NETWORK, bytes_per_second=speed)), **promise))[
            "network bandwidth"
        ]

    assert [network(speed) for speed in (60e9, 20e9, 5e9)] == ["pass", "warn", "fail"]
    assert network(5e9, network_bytes_per_second=0.0) == "unknown"
    assert network(5e9, network_bytes_per_second=None) == "pass"
    alone = good(events=(*whole, replace(NETWORK, ranks=1, bytes_per_second=0.0)))
    assert verdicts(alone)["network bandwidth"] == "pass"
    assert (
        verdicts(good(events=whole, network_bytes_per_second=None))["network bandwidth"]
        == "unknown"
    )


def test_network_is_judged_by_a_quarter_and_a_twentieth_of_the_adapters(good, make):
    whole = (make.started, *make.saved(100), RELOADED)

    def network(share):
        measured = replace(NETWORK, bytes_per_second=share * 100e9)
        checks = good(events=(*whole, measured), network_bytes_per_second=100e9)
        return verdicts(checks)["network bandwidth"]

    shares = (0.26, 0.24, 0.06, 0.04)
    assert [network(share) for share in shares] == ["pass", "warn", "warn", "fail"]


@pytest.mark.parametrize(("last_loss", "verdict"), [(6.95, "pass"), (7.05, "fail")])
def test_learning_needs_three_tenths_of_the_first_two_losses_of_a_hundred(make, last_loss, verdict):
    records = [make.step(n, loss=10.0 if n <= 2 else last_loss) for n in range(1, 101)]
    learned, _ = learning_check(make.history(records))
    assert (learned.name, learned.verdict) == ("model learned", verdict)


@pytest.mark.parametrize(
    ("tokens", "vocabulary", "fall"),
    [
        (99_999, 50_257, 0.0),
        (100_000, 50_257, 0.30),
        (100_000, 8_192, 0.30),
        (100_000, 8_191, 0.15),
    ],
)
def test_a_small_vocabulary_or_a_short_training_needs_a_smaller_fall(tokens, vocabulary, fall):
    assert smallest_fall_of(tokens, vocabulary) == fall


@pytest.mark.parametrize(("first_high", "verdict"), [(90, "fail"), (91, "warn")])
def test_ten_losses_after_a_spike_are_enough_to_call_it_divergence(make, first_high, verdict):
    records = []
    for n in range(1, 101):
        loss = 3.0 + 0.001 * (n % 3) if n < first_high else 7.0
        records.append(make.step(n, loss=loss))
    assert learning_check(make.history(records))[1].verdict == verdict


def test_learning_needs_the_fall_that_is_asked_for(history):
    assert verdicts(learning_check(history)) == {
        Gate.MODEL_LEARNED: "pass",
        Gate.NO_DIVERGENCE: "pass",
    }
    strict = learning_check(history, smallest_fall=0.7)
    assert failing(strict)["model learned"].endswith("% lower")


def test_divergence_is_told_with_its_iteration(make):
    records = [
        make.step(n, loss=3.0 + 0.001 * (n % 3) if n < 60 else 7.0 + n / 100) for n in range(1, 101)
    ]
    value = failing(learning_check(make.history(records)))[Gate.NO_DIVERGENCE]
    assert value == ResultMessage.SPIKES.fill(count=1) + ResultMessage.NOT_RECOVERED.fill(
        lasting=60
    )


def test_a_spike_at_the_very_end_only_warns(make):
    records = [make.step(n, loss=3.0 + 0.001 * (n % 3) if n < 97 else 7.0) for n in range(1, 101)]
    found = learning_check(make.history(records))[1]
    not_recovered = ResultMessage.NOT_RECOVERED.fill(lasting=97)
    assert (found.verdict, found.value) == (
        "warn",
        ResultMessage.SPIKES.fill(count=1) + not_recovered,
    )


def test_what_does_not_pass_has_a_remedy(good, make, history):
    bad = [
        make.step(n, loss=12.0, grad_norm=0.0, world_size=1, seconds=9.0, nan=1)
        for n in range(1, 90)
    ]
    checks = [*good(make.history(bad), ()), *learning_check(make.history(bad))]
    assert [check.name for check in checks if check.verdict != "pass" and not check.remedy] == []
    assert all(not check.remedy for check in good())


def test_clean_stop_and_resume_passes(make):
    records = [make.step(n, segment=int(n > 50)) for n in range(1, 101)]
    events = [*make.saved(50), Event("stopped", iteration=50), Event("resumed", iteration=50)]
    assert set(verdicts(resume_check(make.history(records), events)).values()) == {"pass"}


def test_repeated_steps_are_a_fault_after_a_stop_and_a_remark_after_a_kill(make):
    records = [make.step(n) for n in range(1, 61)] + [
        make.step(n, segment=1) for n in range(51, 101)
    ]
    events = [*make.saved(50), Event("resumed", iteration=50)]
    assert verdicts(resume_check(make.history(records), events))[Gate.NO_STEP_TWICE] == "warn"
    events.append(Event("stopped", iteration=60))
    assert failing(resume_check(make.history(records), events)) == {
        Gate.NO_STEP_TWICE: ResultMessage.STEPS_REPEATED.fill(count=10)
        + ResultMessage.FIRST_REPEATED.fill(repeated=51)
    }


def test_a_kill_at_the_step_where_a_later_job_stopped_is_no_fault(make):
    records = [
        *(make.step(n) for n in range(1, 51)),
        *(make.step(n, segment=1) for n in range(1, 51)),
        *(make.step(n, segment=2) for n in range(51, 101)),
    ]
    events = [
        Event("started", segment=0),
        Event("started", segment=1),
        *make.saved(50),
        Event("stopped", iteration=50),
        Event("started", segment=2),
        Event("resumed", iteration=50),
    ]
    assert verdicts(resume_check(make.history(records), events))[Gate.NO_STEP_TWICE] == "warn"


def test_jump_of_the_loss_over_the_seam_fails(make):
    records = [
        make.step(n, loss=4.0 if n <= 50 else 6.0, segment=int(n > 50)) for n in range(1, 101)
    ]
    assert failing(resume_check(make.history(records), make.saved(50))) == {
        Gate.LOSS_OVER_SEAM: "50.0%"
    }


def test_a_noisy_loss_may_change_over_a_seam_as_much_as_before_it(make):
    noise = [4.0, 5.5, 4.6, 6.1, 5.2, 4.1, 6.4]

    def losses(after):
        return [
            make.step(n, loss=after if n == 51 else noise[n % 7], segment=int(n > 50))
            for n in range(1, 101)
        ]

    name = "loss continues across the seam"
    assert verdicts(resume_check(make.history(losses(6.4)), make.saved(50)))[name] == "pass"
    assert verdicts(resume_check(make.history(losses(9.0)), make.saved(50)))[name] == "fail"


def test_steps_that_are_gone_are_named_whether_the_run_was_resumed_or_not(make):
    whole = [make.step(n, segment=int(n > 40)) for n in range(1, 49)]
    for rows, missing in (
        (whole[40:], "1 to 40"),
        ([], "1 to 48"),
        (whole[:8] + whole[9:], "9"),
    ):
        found = steps_check(make.history(rows), 48)
        assert (found.name, found.verdict) == (Gate.NO_STEP_MISSING, "fail")
        assert found.value == ResultMessage.STEPS_MISSING.fill(missing=missing)
        assert found.remedy == REMEDIES[Gate.NO_STEP_MISSING]
    assert steps_check(make.history(whole), 48).verdict == "pass"


def test_a_run_without_restart_has_no_seam_to_check(history):
    assert resume_check(history, []) == []


@pytest.mark.parametrize("first_zero", [1, 3])
def test_losses_of_exactly_zero_are_not_learning(first_zero, make):
    records = [make.step(n, loss=0.0 if n >= first_zero else 4.0) for n in range(1, 6)]
    assert verdicts(learning_check(make.history(records))) == {Gate.LOSS_ABOVE_ZERO: "fail"}
