"""A ladder's rungs are derived from the run by one rule, fit the budget, and forecast the run
honestly.
"""

import csv
import json
import math
import re
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import pytest
from click.testing import CliRunner
from suite.messages import containing, refuses, says

from runbook.cli.ladder import ladder as ladder_command
from runbook.core.errors import DataError, ParamsError
from runbook.core.units import show_device_hours, show_duration
from runbook.forecast.interval_rules import (
    EVALUATION_SPREAD,
    FAR_WIDENING,
    FARTHEST_RATIO,
    NORMAL_QUANTILE,
    SHORT_WIDENING,
    UNSTABLE_WIDENING,
)
from runbook.forecast.messages import ForecastMessage
from runbook.phases.ladder import budget as budgets
from runbook.phases.ladder import climb as climbing
from runbook.phases.ladder.budget import LadderBudget, fit_rungs_left, pace_of
from runbook.phases.ladder.climb import (
    FinishedRung,
    climb,
    rung_folder,
    share_tokens,
)
from runbook.phases.ladder.ladder_plan import (
    LADDER_FILE,
    Ladder,
    PlannedRung,
    family_of,
    family_values,
    plan_ladder,
    read_ladder,
    starts_seconds,
    write_ladder,
)
from runbook.phases.ladder.run_forecast import forecast_run
from runbook.phases.ladder.rungs import (
    COMPUTE_BETWEEN_RUNGS,
    FEWEST_STEPS,
    HELD_OUT_TOKENS,
    LEAST_BETWEEN_RUNGS,
    MOST_EVALUATED,
    MOST_NOISE,
    Family,
    design_rungs,
    gradient_noise,
    rungs_above,
    short_rungs,
)
from runbook.phases.ladder.service import LadderRequest, find_ladder
from runbook.phases.messages import PhaseMessage
from runbook.phases.phase_steps import TOKENIZE
from runbook.phases.run_plan import load_plan
from runbook.plan_file.phase_names import FULL
from runbook.runs.run_folder import RUNS_VARIABLE
from runbook.runs.step import write_mark
from runbook.runs.this_machine import measure_core_flops

BENCHMARKS = Path(__file__).parents[2] / "benchmarks" / "forecast"
SMALL_BATCH = ("training.iterations=1600", "training.global_batch=2", "training.micro_batch=1")


def family(run: str, words: tuple[str, ...] = ()) -> Family:
    settings, plan = load_plan(run, words)
    return family_of(settings, plan)


@pytest.fixture(scope="module")
def local() -> Family:
    return family("local", SMALL_BATCH)


@pytest.fixture(scope="module")
def lumi() -> Family:
    return family("lumi-13b")


def test_compute_grows_by_the_same_factor_from_rung_to_rung(local, lumi):
    for own in (local, lumi):
        rungs = design_rungs(own, 5, own.flops / 4)
        for smaller, larger in pairwise(rungs):
            assert larger.flops / smaller.flops == pytest.approx(COMPUTE_BETWEEN_RUNGS, rel=0.02)
        assert rungs[-1].flops == pytest.approx(own.flops / 4, rel=0.02)


def test_only_the_rungs_that_decide_the_forecast_need_many_steps(local):
    rungs = design_rungs(local, 5, local.flops / 4)
    assert rungs[0].iterations < FEWEST_STEPS < rungs[3].iterations
    assert short_rungs(rungs) == []

    below = [replace(rung, iterations=FEWEST_STEPS - 1) for rung in rungs]
    assert [rung.number for rung in short_rungs(below)] == [4, 5]


def test_five_rungs_have_the_tokens_per_parameter_of_the_run(local, lumi):
    for one, tolerance in ((local, 0.2), (lumi, 0.2)):
        for rung in design_rungs(one, 5, one.flops / 64 if one is lumi else one.flops / 4):
            own = one.tokens / one.parameters
            assert rung.tokens / rung.parameters == pytest.approx(own, rel=tolerance)


def test_rungs_beyond_the_fifth_tell_size_from_tokens(local):
    rungs = design_rungs(local, 8, local.flops / 4)
    ratios = [rung.tokens / rung.parameters for rung in rungs]
    assert len(rungs) == 8
    assert max(ratios) / min(ratios) > 3


def test_rates_and_batches_follow_the_size(lumi):
    for rung in design_rungs(lumi, 5, lumi.flops / 1000):
        size = rung.parameters / lumi.parameters
        assert rung.learning_rate == pytest.approx(lumi.rate.peak * size ** (-1 / 3))
        assert rung.min_learning_rate / rung.learning_rate == pytest.approx(
            lumi.rate.minimum / lumi.rate.peak
        )
        assert rung.global_batch == pytest.approx(lumi.global_batch * size ** (2 / 3), rel=0.06)
        assert rung.global_batch % lumi.devices == 0
        assert rung.global_batch % (rung.micro_batch * lumi.devices) == 0


def test_a_batch_too_coarse_to_follow_the_size_stays_as_it_is(local):
    assert {rung.global_batch for rung in design_rungs(local, 5, local.flops / 4)} == {2}


def test_rungs_with_the_batch_of_the_run_have_its_learning_rates(local):
    for rung in design_rungs(local, 5, local.flops / 4):
        assert rung.learning_rate == local.rate.peak
        assert rung.min_learning_rate == local.rate.minimum


def test_rungs_are_evaluated_on_the_same_sequences_as_the_run():
    own = family("local", (*SMALL_BATCH, "training.eval_iterations=20"))
    assert own.evaluated_samples == 20 * 2
    for rung in design_rungs(own, 5, own.flops / 4):
        assert rung.evaluated_samples == own.evaluated_samples


def test_a_long_evaluation_is_cut_for_all_rungs_alike(local):
    own = replace(local, evaluated_samples=10**6)
    rungs = design_rungs(own, 5, own.flops / 4)
    evaluated = {rung.evaluated_samples for rung in rungs}
    assert len(evaluated) == 1
    tokens = evaluated.pop() * own.shape.sequence_length
    assert tokens == pytest.approx(rungs[-1].tokens * MOST_EVALUATED, rel=0.01)


def test_rungs_of_a_run_without_evaluation_are_evaluated_on_many_tokens():
    own = family("local", (*SMALL_BATCH, "training.eval_interval=0"))
    assert own.evaluated_samples == 0
    for rung in design_rungs(own, 5, own.flops / 4):
        assert rung.evaluated_samples * own.shape.sequence_length == HELD_OUT_TOKENS


@pytest.mark.parametrize("count", [4, 9])
def test_other_numbers_of_rungs_are_refused(local, count):
    with refuses(ParamsError, PhaseMessage.NUMBER_OF_RUNGS, fewest_rungs=5, most_rungs=8):
        design_rungs(local, count, local.flops / 4)


def test_a_run_without_room_below_is_refused(local):
    with refuses(ParamsError, PhaseMessage.BUDGET_TOO_SMALL_FOR_RUNGS):
        design_rungs(local, 5, local.flops / 64)


def test_rungs_come_closer_where_the_smallest_would_be_too_narrow(local):
    rungs = design_rungs(local, 5, local.flops / 16)
    ratio = rungs[1].flops / rungs[0].flops
    assert 1.25 < ratio < 1.8
    assert min(rung.hidden for rung in rungs) >= 32


@pytest.mark.parametrize("run", ["local", "lumi-13b", "azure-175b"])
def test_the_words_of_a_rung_make_the_plan_it_says(run):
    own = family(run)
    rung = design_rungs(own, 5, own.flops / 256 if own.parameters > 1e9 else own.flops / 4)[2]
    _, plan = load_plan(run, rung.words())
    phase = plan.phases[FULL]
    assert phase.model.parameters == rung.parameters
    assert phase.duration.tokens == rung.tokens
    assert phase.batch.global_ == rung.global_batch
    assert phase.learning_rate.peak == pytest.approx(rung.learning_rate, rel=1e-5)
    share = phase.learning_rate.warmup_samples / phase.duration.samples
    assert share == pytest.approx(
        own.rate.warmup_samples / own.samples, abs=0.5 / rung.iterations + 0.02
    )
    assert phase.parallel.tensor == phase.parallel.pipeline == 1


def test_a_ladder_fits_its_budget():
    ladder = plan_ladder("local", SMALL_BATCH, budget_seconds=240)
    assert ladder.seconds == pytest.approx(240, rel=0.1)
    larger = plan_ladder("local", SMALL_BATCH, budget_seconds=36_000)
    assert larger.rungs[-1].rung.flops == pytest.approx(larger.flops / 4, rel=0.02)
    with refuses(
        ParamsError,
        PhaseMessage.BUDGET_USED_BY_STARTS,
        hours=show_device_hours(30 * 2 / 3600),
        count=5,
        start_seconds=starts_seconds(5),
        devices=2,
    ):
        plan_ladder("local", SMALL_BATCH, budget_seconds=30)


def test_a_ladder_on_an_unmeasured_cpu_reports_that_its_times_are_estimates():
    local_ladder = plan_ladder("local", SMALL_BATCH)
    cluster_ladder = plan_ladder("lumi-13b", ["training.framework=runbook"])
    assert PhaseMessage.LADDER_TIMES_NOT_MEASURED.fill() in local_ladder.notes
    assert PhaseMessage.LADDER_TIMES_NOT_MEASURED.fill() not in cluster_ladder.notes


def test_times_follow_the_measured_speed_of_a_core():
    words = [*SMALL_BATCH, "training.precision=bf16"]
    planned = plan_ladder("local", words, budget_seconds=420)
    slow_core = plan_ladder("local", words, budget_seconds=420, measure_core=lambda settings: 95e9)
    assert slow_core.seconds == pytest.approx(420, rel=0.1)
    assert slow_core.rungs[-1].rung.flops < 0.6 * planned.rungs[-1].rung.flops
    assert PhaseMessage.LADDER_TIMES_BY_A_CORE.fill(gflops=95) in slow_core.notes


def test_a_core_is_timed_by_a_real_product():
    settings, _ = load_plan("local", SMALL_BATCH)
    assert measure_core_flops(settings) > 1e9
    cluster, _ = load_plan("lumi-13b", ())
    assert measure_core_flops(cluster) == 0


def test_an_environment_without_torch_times_no_core(tmp_path):
    settings, _ = load_plan("local", SMALL_BATCH)
    bare_python = tmp_path / "python"
    bare_python.write_text("#!/bin/sh\nexit 1\n")
    bare_python.chmod(0o755)
    site = settings.site.model_copy(update={"python": str(bare_python)})
    assert measure_core_flops(replace(settings, site=site)) == 0


def test_the_time_left_follows_the_pace_of_the_trained_rungs():
    rungs = plan_ladder("local", SMALL_BATCH).rungs
    assert pace_of([]).seconds_left(rungs) is None
    assert pace_of(rungs).seconds_left(rungs) is None
    pace = pace_of([timed(rungs[0], 2.0)])
    planned_left = seconds_of(rungs[1:])
    assert pace.seconds_left(rungs[1:]) == pytest.approx(2 * planned_left)
    without_time = replace(rungs[1], seconds=None)
    assert pace.seconds_left([without_time]) is None


def seconds_of(rungs: tuple[PlannedRung, ...]) -> float:
    """Return the planned time of some rungs, including start-up."""
    return sum(rung.seconds + rung.start_seconds for rung in rungs)


def timed(planned: PlannedRung, pace: float) -> PlannedRung:
    """Return a trained rung that took `pace` times its planned time."""
    return replace(planned, measured_seconds=pace * seconds_of((planned,)))


def test_rungs_left_become_smaller_if_they_would_not_end_in_time(local):
    ladder = plan_ladder("local", SMALL_BATCH)
    pace = 1.5
    planned_left = pace * seconds_of(ladder.rungs[1:])
    assert fit_rungs_left(ladder, local, 1, 1.001 * planned_left, pace) == ladder

    fitted = fit_rungs_left(ladder, local, 1, 0.85 * planned_left, pace)
    assert fitted.rungs[0] == ladder.rungs[0]
    assert [rung.name for rung in fitted.rungs] == [rung.name for rung in ladder.rungs]
    assert [rung.rung.number for rung in fitted.rungs] == [1, 2, 3, 4, 5]
    left = pace * seconds_of(fitted.rungs[1:])
    assert 0.88 * 0.85 * planned_left < left < 0.85 * planned_left
    factors = [above.rung.flops / below.rung.flops for below, above in pairwise(fitted.rungs)]
    assert max(factors) / min(factors) < 1.05
    # Tokens per parameter, rate and batch are the same as in the run.
    for planned in fitted.rungs[1:]:
        rung = planned.rung
        of_the_run = local.tokens / local.parameters
        assert rung.tokens / rung.parameters == pytest.approx(of_the_run, rel=0.2)
        assert (rung.learning_rate, rung.global_batch) == (local.rate.peak, local.global_batch)


def test_smaller_rungs_grow_again_if_the_pace_allows_but_never_beyond_the_plan(local):
    ladder = plan_ladder("local", SMALL_BATCH)
    slow = 0.85 * seconds_of(ladder.rungs[1:])
    smaller = fit_rungs_left(ladder, local, 1, slow, 1.0)
    assert smaller.planned_flops == ladder.rungs[-1].rung.flops
    assert smaller.rungs[-1].rung.flops < 0.9 * smaller.planned_flops

    grown = fit_rungs_left(smaller, local, 2, 1e6, 1.0)
    assert grown.rungs[:2] == smaller.rungs[:2]
    assert grown.rungs[-1].rung.flops > 1.05 * smaller.rungs[-1].rung.flops
    assert grown.rungs[-1].rung.flops < 1.02 * smaller.planned_flops
    assert fit_rungs_left(ladder, local, 2, 1e6, 1.0) == ladder


def test_rungs_left_never_come_too_close_to_each_other(local):
    ladder = plan_ladder("local", SMALL_BATCH)
    fitted = fit_rungs_left(ladder, local, 1, 1.0, 1.0)
    for below, above in pairwise(fitted.rungs):
        factor = above.rung.flops / below.rung.flops
        assert factor == pytest.approx(LEAST_BETWEEN_RUNGS, rel=0.05)


def test_rungs_that_are_not_one_line_of_compute_stay_as_planned(local):
    ladder = plan_ladder("local", SMALL_BATCH, count=7)
    assert fit_rungs_left(ladder, local, 1, 1.0, 1.0) == ladder
    assert fit_rungs_left(ladder, local, 0, 1.0, 1.0) == ladder
    assert fit_rungs_left(ladder, local, 7, 1.0, 1.0) == ladder


def test_smaller_rungs_keep_the_rule_by_which_rates_and_batches_follow_the_size(lumi):
    trained = design_rungs(lumi, 5, lumi.flops / 1000)[:3]
    rungs = rungs_above(lumi, trained, 2, 1.5)
    assert [rung.number for rung in rungs] == [4, 5]
    for below, above in pairwise([trained[-1], *rungs]):
        assert above.learning_rate < below.learning_rate
        assert above.global_batch > below.global_batch


def test_the_slower_of_the_newest_and_all_rungs_sets_the_pace():
    rungs = plan_ladder("local", SMALL_BATCH).rungs
    assert pace_of(rungs).slowest == 1.0
    trained = [timed(rungs[0], 1.2), timed(rungs[1], 1.6)]
    assert pace_of(trained).slowest == pytest.approx(1.6)
    trained.append(timed(rungs[2], 1.0))
    assert 1.1 < pace_of(trained).slowest < 1.6


class SimulatedRungs:
    """Rungs that take a multiple of their planned time on a simulated clock, and train nothing."""

    def __init__(self, monkeypatch, pace: float) -> None:
        self.pace = pace
        self.now = 1000.0
        self.done: dict[str, FinishedRung] = {}
        self.interrupted_at = ""
        monkeypatch.setattr(climbing, "time", self)
        monkeypatch.setattr(budgets, "time", self)
        monkeypatch.setattr(climbing, "read_rung", self.read)

    def monotonic(self) -> float:
        return self.now

    def train(self, ladder, planned, say) -> None:
        if planned.name in self.done:
            return
        seconds = self.pace * seconds_of((planned,))
        if planned.name == self.interrupted_at:
            self.interrupted_at = ""
            self.now += seconds / 2
            raise KeyboardInterrupt
        self.now += seconds
        self.done[planned.name] = FinishedRung(planned, None, 1, 1, 1, 1.0, loss=5.0)

    def read(self, folder, planned) -> FinishedRung | None:
        return self.done.get(planned.name)

    def climb(self, ladder: Ladder, family: Family | None, folder, seconds: float | None):
        settings, _ = load_plan("local", SMALL_BATCH)
        budget = LadderBudget(seconds, ladder.spent_seconds, self.now)
        lines: list[str] = []
        trained, finished = climb(
            ladder, family, settings, budget, folder, self.train, lines.append
        )
        return trained, finished, lines


@pytest.mark.parametrize("pace", [0.7, 1.0, 1.3])
def test_a_ladder_ends_within_its_budget_at_any_usual_pace(local, tmp_path, monkeypatch, pace):
    monkeypatch.setenv(RUNS_VARIABLE, str(tmp_path))
    ladder = plan_ladder("local", SMALL_BATCH, budget_seconds=230)
    rungs = SimulatedRungs(monkeypatch, pace)
    trained, finished, _ = rungs.climb(ladder, local, tmp_path, 230.0)
    assert len(finished) == 5
    assert rungs.now - 1000 <= 1.02 * 230
    assert (trained.rungs == ladder.rungs) is False
    assert read_ladder(tmp_path) == trained
    if pace > 1:
        assert trained.rungs[-1].rung.flops < 0.9 * ladder.rungs[-1].rung.flops
        assert rungs.now - 1000 > 0.8 * 230
    else:
        assert [one.rung for one in trained.rungs] == [one.rung for one in ladder.rungs]


def test_a_ladder_far_beyond_its_budget_says_by_how_much(local, tmp_path, monkeypatch):
    monkeypatch.setenv(RUNS_VARIABLE, str(tmp_path))
    ladder = plan_ladder("local", SMALL_BATCH, budget_seconds=600)
    rungs = SimulatedRungs(monkeypatch, 10.0)
    trained, _, lines = rungs.climb(ladder, local, tmp_path, 600.0)
    left = 10 * seconds_of(trained.rungs[1:])
    over = left - (600 - 10 * seconds_of(trained.rungs[:1]))
    assert says(lines[5], PhaseMessage.LADDER_OVER_BUDGET, time=show_duration(over))


def test_rungs_stay_as_planned_without_a_budget_or_if_the_run_has_changed(
    local, tmp_path, monkeypatch
):
    monkeypatch.setenv(RUNS_VARIABLE, str(tmp_path))
    ladder = plan_ladder("local", SMALL_BATCH)
    for number, (family_or_none, seconds) in enumerate(((local, None), (None, 10.0))):
        rungs = SimulatedRungs(monkeypatch, 3.0)
        folder = tmp_path / str(number)
        folder.mkdir()
        trained, _, _ = rungs.climb(ladder, family_or_none, folder, seconds)
        assert [one.rung for one in trained.rungs] == [one.rung for one in ladder.rungs]


def test_an_interrupted_ladder_goes_on_with_the_time_it_has_used(local, tmp_path, monkeypatch):
    monkeypatch.setenv(RUNS_VARIABLE, str(tmp_path))
    ladder = write_ladder(plan_ladder("local", SMALL_BATCH, budget_seconds=600), tmp_path)
    rungs = SimulatedRungs(monkeypatch, 1.0)
    rungs.interrupted_at = ladder.rungs[2].name
    with pytest.raises(KeyboardInterrupt):
        rungs.climb(ladder, local, tmp_path, 600.0)
    kept = read_ladder(tmp_path)
    assert kept.spent_seconds == pytest.approx(rungs.now - 1000)
    half = seconds_of(ladder.rungs[2:3]) / 2
    assert kept.rungs[2].measured_seconds == pytest.approx(half)

    trained, finished, _ = rungs.climb(kept, local, tmp_path, 600.0)
    assert len(finished) == 5
    assert trained.rungs[2].measured_seconds == pytest.approx(3 * half)
    assert trained.spent_seconds == pytest.approx(rungs.now - 1000)


def test_the_time_of_a_rung_that_a_killed_call_began_is_not_known(local, tmp_path, monkeypatch):
    monkeypatch.setenv(RUNS_VARIABLE, str(tmp_path))
    ladder = plan_ladder("local", SMALL_BATCH, budget_seconds=600)
    settings, _ = load_plan("local", SMALL_BATCH)
    begun = rung_folder(ladder, settings, ladder.rungs[0])
    begun.mkdir()
    (begun / "plan.json").write_text("{}")
    rungs = SimulatedRungs(monkeypatch, 0.1)
    trained, _, _ = rungs.climb(ladder, local, tmp_path, 600.0)
    assert trained.rungs[0].measured_seconds is None
    assert trained.rungs[1].measured_seconds == pytest.approx(0.1 * seconds_of(ladder.rungs[1:2]))


def test_a_ladder_of_an_earlier_version_has_no_measured_times(tmp_path):
    ladder = write_ladder(plan_ladder("local", SMALL_BATCH), tmp_path)
    record = json.loads((tmp_path / LADDER_FILE).read_text())
    for key in ("spent_seconds", "planned_flops"):
        record.pop(key)
    for rung in record["rungs"]:
        rung.pop("measured_seconds")
    (tmp_path / LADDER_FILE).write_text(json.dumps(record))
    assert read_ladder(tmp_path) == ladder


def test_a_budget_counts_the_time_of_earlier_calls():
    budget = LadderBudget(seconds=600.0, spent_before=100.0)
    assert 490 < budget.left <= 500
    assert LadderBudget(seconds=None).left is None


def test_a_ladder_that_was_begun_keeps_its_rungs(tmp_path):
    ladder = plan_ladder("local", SMALL_BATCH)
    written = write_ladder(ladder, tmp_path)
    assert read_ladder(tmp_path) == written
    assert written.rungs == ladder.rungs
    assert (tmp_path / LADDER_FILE).exists()
    assert read_ladder(tmp_path / "elsewhere") is None


def test_a_ladder_that_was_begun_goes_on_with_its_budget_and_refuses_another(tmp_path, monkeypatch):
    monkeypatch.setenv(RUNS_VARIABLE, str(tmp_path))
    request = LadderRequest("local", SMALL_BATCH, minutes=10)
    planned = find_ladder(request)
    planned.folder.mkdir()
    write_ladder(planned.ladder, planned.folder)
    assert find_ladder(request).ladder.rungs == planned.ladder.rungs
    assert find_ladder(replace(request, minutes=0)).ladder.rungs == planned.ladder.rungs
    with refuses(
        ParamsError,
        PhaseMessage.LADDER_WITH_ANOTHER_BUDGET,
        folder_name=planned.folder.name,
        designed_for=containing(show_device_hours(10 * 2 / 60)),
        requested=show_device_hours(20 * 2 / 60),
    ):
        find_ladder(replace(request, minutes=20))
    write_ladder(replace(planned.ladder, budget_device_hours=None), planned.folder)
    assert find_ladder(replace(request, minutes=20)).ladder.rungs == planned.ladder.rungs


def test_rungs_share_the_token_files_of_the_first(tmp_path, monkeypatch):
    monkeypatch.setenv(RUNS_VARIABLE, str(tmp_path))
    settings, _ = load_plan("local", SMALL_BATCH)
    ladder = plan_ladder("local", SMALL_BATCH)
    first, second = (rung_folder(ladder, settings, rung) for rung in ladder.rungs[:2])
    (first / "data").mkdir(parents=True)
    tokens = first / "data" / "corpus_text_document.bin"
    tokens.write_bytes(b"tokens")
    share_tokens(settings, ladder, second)
    assert not second.exists()
    write_mark(first, TOKENIZE, 1, "f" * 16, [tokens])
    share_tokens(settings, ladder, second)
    assert (second / "data" / tokens.name).stat().st_ino == tokens.stat().st_ino
    share_tokens(settings, ladder, second)
    share_tokens(settings, ladder, first)


def test_a_folder_that_as_made_is_no_run_for_a_ladder(tmp_path, monkeypatch):
    monkeypatch.setenv(RUNS_VARIABLE, str(tmp_path))
    folder = tmp_path / "local--quick"
    folder.mkdir()
    settings, _ = load_plan("local", ("as=quick",))
    (folder / "run.yaml").write_text(settings.as_yaml())
    with refuses(
        ParamsError, PhaseMessage.LADDER_OF_A_NAMED_SET, folder_name="local--quick", run="local"
    ):
        find_ladder(LadderRequest("local--quick"))


# --- the forecast ---------------------------------------------------------------------------------------------------


def law(parameters: float, tokens: float) -> float:
    return 2.0 + 90 * parameters**-0.3 + 60 * tokens**-0.3


def climbed(family: Family, count: int = 5) -> tuple[Ladder, list[FinishedRung]]:
    settings, plan = load_plan("local", SMALL_BATCH)
    rungs = design_rungs(family, count, family.flops / 4)
    ladder = Ladder(
        run="local",
        name="ladder",
        set_words=SMALL_BATCH,
        family=family_values(settings, plan),
        parameters=family.parameters,
        tokens=family.tokens,
        flops=family.flops,
        rungs=tuple(PlannedRung(rung, f"ladder-{rung.number}") for rung in rungs),
    )
    finished = [
        FinishedRung(
            planned=planned,
            folder=None,
            parameters=planned.rung.parameters,
            parameters_no_embed=planned.rung.parameters_no_embed,
            tokens=planned.rung.tokens,
            flops=planned.rung.flops,
            loss=law(planned.rung.parameters, planned.rung.tokens),
        )
        for planned in ladder.rungs
    ]
    return ladder, finished


def half_width(forecast) -> float:
    return math.log(forecast.high / forecast.low) / 2


def test_a_loss_that_follows_a_law_is_forecast(local):
    ladder, finished = climbed(local)
    forecast = forecast_run(ladder, finished, local, ladder.family, 0.3)
    assert forecast.loss == pytest.approx(law(local.parameters, local.tokens), rel=0.01)
    assert forecast.low < forecast.loss < forecast.high
    assert forecast.rungs == 5
    assert forecast.best is None
    assert any(says(warning, PhaseMessage.RUNGS_OF_ONE_SHAPE) for warning in forecast.warnings)


def test_a_ladder_of_an_earlier_version_lacks_keys_and_is_of_the_same_recipe(local):
    ladder, finished = climbed(local)
    plain = forecast_run(ladder, finished, local, ladder.family, 0.3)
    older = replace(
        ladder,
        family={key: ladder.family[key] for key in ladder.family if key != "training.adam_epsilon"},
    )
    assert len(older.family) == len(ladder.family) - 1
    assert forecast_run(older, finished, local, ladder.family, 0.3) == plain
    other = {**ladder.family, "training.adam_epsilon": 1e-6}
    assert half_width(forecast_run(ladder, finished, local, other, 0.3)) > half_width(plain)


def test_a_rung_far_from_its_neighbours_is_named_and_widens_the_interval(local):
    ladder, finished = climbed(local)
    plain = forecast_run(ladder, finished, local, ladder.family, 0.3)
    off = replace(finished[2], loss=finished[2].loss * 1.06)
    off_the_line = [*finished[:2], off, *finished[3:]]
    forecast = forecast_run(ladder, off_the_line, local, ladder.family, 0.3)
    assert half_width(forecast) > 3.9 * half_width(plain)
    assert any(warning.startswith("rung 3 ended far") for warning in forecast.warnings)


def test_rungs_of_few_steps_widen_the_interval(local):
    ladder, finished = climbed(local)
    values = dict(ladder.family)
    usual = forecast_run(ladder, finished, local, values, 0.5)
    short = replace(finished[-1].planned.rung, iterations=FEWEST_STEPS - 1)
    last = replace(finished[-1], planned=replace(finished[-1].planned, rung=short))
    doubted = forecast_run(ladder, [*finished[:-1], last], local, values, 0.5)
    assert half_width(doubted) == pytest.approx(SHORT_WIDENING * half_width(usual))
    assert any(
        says(warning, PhaseMessage.RUNGS_OF_FEW_STEPS, numbers="5", widening=SHORT_WIDENING)
        for warning in doubted.warnings
    )


def test_rungs_evaluated_on_other_tokens_than_the_run_add_the_difference_of_texts(local):
    ladder, finished = climbed(local)
    plain = forecast_run(ladder, finished, local, ladder.family, 0.3)
    more = replace(local, evaluated_samples=4 * local.evaluated_samples)
    forecast = forecast_run(ladder, finished, more, ladder.family, 0.3)
    tokens = local.evaluated_samples * local.shape.sequence_length
    error = NORMAL_QUANTILE * EVALUATION_SPREAD * math.sqrt(1 / tokens - 1 / (4 * tokens))
    assert forecast.loss == plain.loss
    assert forecast.high - forecast.loss == pytest.approx(
        math.hypot(plain.high - plain.loss, error)
    )
    assert forecast.loss - forecast.low == pytest.approx(math.hypot(plain.loss - plain.low, error))
    facts = {"rungs": f"{tokens:,}", "run": 4 * tokens, "error": error}
    assert any(
        says(text, PhaseMessage.RUNGS_EVALUATED_ON_OTHER_TOKENS, **facts)
        for text in forecast.warnings
    )
    assert not any(
        says(text, PhaseMessage.RUNGS_EVALUATED_ON_OTHER_TOKENS) for text in plain.warnings
    )


def test_the_rung_whose_evaluation_differs_more_from_the_runs_counts(local):
    ladder, finished = climbed(local)
    short = replace(
        finished[-2].planned.rung, eval_iterations=finished[-1].planned.rung.eval_iterations // 2
    )
    fourth = replace(finished[-2], planned=replace(finished[-2].planned, rung=short))
    forecast = forecast_run(
        ladder, [*finished[:-2], fourth, finished[-1]], local, ladder.family, 0.3
    )
    tokens = local.evaluated_samples * local.shape.sequence_length
    error = NORMAL_QUANTILE * EVALUATION_SPREAD * math.sqrt(2 / tokens - 1 / tokens)
    facts = {"rungs": f"{tokens // 2:,} and {tokens:,}", "run": tokens, "error": error}
    assert any(
        says(text, PhaseMessage.RUNGS_EVALUATED_ON_OTHER_TOKENS, **facts)
        for text in forecast.warnings
    )


def test_a_nearly_unstable_run_is_named_and_widens_the_interval(local):
    ladder, finished = climbed(local)
    plain = forecast_run(ladder, finished, local, ladder.family, 0.3)
    fast = replace(local, rate=replace(local.rate, peak=2 * local.rate.peak))
    doubted = forecast_run(ladder, finished, fast, ladder.family, 0.3)
    assert half_width(doubted) == pytest.approx(UNSTABLE_WIDENING * half_width(plain))
    facts = {"rate": 2 * local.rate.peak, "batch_tokens": 512, "width": 256}
    assert any(
        says(warning, PhaseMessage.RUN_NEARLY_UNSTABLE, **facts) for warning in doubted.warnings
    )
    assert not any(says(text, PhaseMessage.RUN_NEARLY_UNSTABLE) for text in plain.warnings)


def test_the_runs_that_ended_far_above_their_ladders_are_the_nearly_unstable_ones():
    noisy = set()
    for table in ("ladders_corpus", "ladders_blind"):
        with (BENCHMARKS / f"{table}.csv").open(newline="") as file:
            runs = [row for row in csv.DictReader(file) if row["part"] == "target"]
        for run in runs:
            steps, width, rate = re.fullmatch(
                r"(\d+) steps of \d+; \d+ x (\d+); learning rate ([\d.]+)", run["extra"]
            ).groups()
            noise = gradient_noise(float(rate), int(width), int(run["tokens"]) / int(steps))
            if noise > MOST_NOISE:
                noisy.add(run["series"])
    assert noisy == {
        "2400x2-8x320-seed37",
        "1600x2-6x256-seed29-rate3e-3",
        "1600x4-6x256-seed209-rate3e-3 run rate",
        "2400x2-8x320-seed210 run rate",
    }


def test_seven_rungs_forecast_other_sizes_and_the_best_one(local):
    ladder, finished = climbed(local, 7)
    forecast = forecast_run(ladder, finished, local, ladder.family, 0.3)
    assert [size.parameters / local.parameters for size in forecast.same_compute] == [
        0.25,
        0.5,
        1,
        2,
        4,
    ]
    assert forecast.best is not None
    assert forecast.best.loss <= min(size.loss for size in forecast.same_compute) + 1e-3
    assert forecast.best.parameters * forecast.best.tokens == pytest.approx(
        local.parameters * local.tokens
    )


def test_a_changed_schedule_is_said_and_widens_the_interval(local):
    ladder, finished = climbed(local)
    plain = forecast_run(ladder, finished, local, ladder.family, 0.3)
    other = ladder.family | {"training.schedule": "linear"}
    changed = forecast_run(ladder, finished, local, other, 0.3)
    assert half_width(changed) == pytest.approx(2 * half_width(plain))
    difference = {"key": "training.schedule", "rungs": "cosine", "run": "linear"}
    reason = {"differences": PhaseMessage.RECIPE_DIFFERENCE.fill(**difference), "widening": 2}
    texts = [PhaseMessage.ANOTHER_RECIPE.fill(**reason)]
    assert [text for text in changed.warnings if text not in plain.warnings] == texts


def test_other_text_is_refused(local):
    ladder, finished = climbed(local)
    with refuses(
        DataError, PhaseMessage.RUNGS_OF_OTHER_TEXT, differences=containing("data.tokenizer")
    ):
        forecast_run(ladder, finished, local, ladder.family | {"data.tokenizer": "mine.model"}, 0.3)


def test_repeated_text_is_said_then_widens_then_is_refused(local):
    ladder, finished = climbed(local)
    widths = [
        half_width(forecast_run(ladder, finished, local, ladder.family, epochs))
        for epochs in (0.9, 2.0, 8.0)
    ]
    assert widths[1] == pytest.approx(widths[0])
    assert widths[2] == pytest.approx(2 * widths[0])
    twice = forecast_run(ladder, finished, local, ladder.family, 2.0)
    assert any("2.0 times" in warning for warning in twice.warnings)
    with refuses(DataError, PhaseMessage.TEXT_READ_TOO_OFTEN, epochs=20.0):
        forecast_run(ladder, finished, local, ladder.family, 20.0)


def test_too_few_rungs_are_refused(local):
    ladder, finished = climbed(local)
    with refuses(DataError, ForecastMessage.TOO_FEW_FINISHED_RUNS, fewest_runs=5):
        forecast_run(ladder, finished[:4], local, ladder.family, 0.3)


def test_a_target_far_beyond_the_rungs_widens_the_interval(local):
    ladder, finished = climbed(local)
    far = replace(local, samples=local.samples * 1000)
    forecast = forecast_run(ladder, finished, far, ladder.family, 0.3)
    limits = {"farthest_ratio": FARTHEST_RATIO, "widening": FAR_WIDENING}
    (warning,) = [
        text for text in forecast.warnings if says(text, ForecastMessage.FAR_TARGET, **limits)
    ]
    (ratio,) = re.findall(r"([0-9,]+) times the compute", warning)
    largest = max(rung.flops for rung in finished)
    assert int(ratio.replace(",", "")) == round(far.flops / largest)


def test_plan_shows_rungs_and_cost_and_writes_nothing(tmp_path):
    # The run is so long that no rung is limited by it, even on a core with fast matrix products.
    long_run = (*SMALL_BATCH, "training.iterations=16000")
    words = [part for word in long_run for part in ("--set", word)]
    arguments = ["local", "--plan", "--json", "--minutes", "4", "--runs", str(tmp_path)]
    result = CliRunner().invoke(ladder_command, [*arguments, *words])
    assert result.exit_code == 0, result.output
    facts = json.loads(result.output)
    assert len(facts["rungs"]) == 5
    assert facts["seconds"] == pytest.approx(240, rel=0.1)
    assert facts["forecast"] is None
    assert list(tmp_path.iterdir()) == []
