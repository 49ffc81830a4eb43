"""Planned step times are corrected by measured steps, as far as they are alike."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path

import pytest

from benchmarks import predict_after_measurement as benchmark
from runbook.params.project import project_root
from runbook.plan_file.json_records import as_json
from runbook.planning import Calibration, Calibrations
from runbook.planning.choice import Choice, full_choice
from runbook.planning.cost.calibration import read_calibration
from runbook.planning.cost.flops import flops
from runbook.planning.cost.measured_steps import (
    CAUSES,
    DEFAULT,
    PARTS,
    PLACES,
    MeasuredStep,
    StepProfile,
    correction,
)
from runbook.planning.cost.step_time import planned_profile
from runbook.planning.cost.time_and_money import estimate
from runbook.planning.messages import PlanningMessage

from .conftest import TWO_CORES, build

ROOT = project_root(Path(__file__))
SLOWER = math.log(1.5)


def step(doublings: float = 0.0, *, nodes: float = 0.0, **shares: float) -> StepProfile:
    """Return a step of matrix products and these parts, so many doublings from the others."""
    causes = {**shares, "products": 1 - sum(shares.values()), "nodes": nodes}
    return StepProfile(
        tuple(causes.get(cause, 0.0) for cause in CAUSES), (doublings, *[0.0] * (PLACES - 1))
    )


def test_the_measured_step_itself_takes_what_was_measured() -> None:
    found = correction(step(), [MeasuredStep(step(), SLOWER)])
    assert found.factor == pytest.approx(1.5, rel=0.03)
    assert found.low < found.factor < found.high
    assert found.measurements == 1


def test_other_steps_are_corrected_less_and_are_less_certain() -> None:
    measured = [MeasuredStep(step(), SLOWER)]
    near, far, unlike = (
        correction(one, measured) for one in (step(1), step(20), step(20, data=0.6))
    )
    assert 1.5 > near.factor > far.factor > unlike.factor > 1.05
    widths = [one.high / one.low for one in (near, far, unlike)]
    assert widths == sorted(widths)


def test_the_part_that_is_slow_is_found_from_two_measurements() -> None:
    """Pure products are as planned, and steps with tensor parallelism are slower."""
    measured = [
        MeasuredStep(step(0), 0.0),
        MeasuredStep(step(9, tensor=0.4), SLOWER),
    ]
    factors = [correction(one, measured).factor for one in (step(20), step(20, tensor=0.6))]
    assert factors[1] > 1.4
    assert 1.0 <= factors[0] < 1.1


def test_a_large_error_makes_other_steps_less_certain() -> None:
    widths = []
    for slower in (0.02, 1.0):
        found = correction(step(20), [MeasuredStep(step(), slower)])
        widths.append(found.high / found.low)
    assert math.log(widths[1]) > 2.4 * math.log(widths[0])


def test_many_measurements_are_used_up_to_the_most_alike() -> None:
    steps = [MeasuredStep(step(number), SLOWER) for number in range(60)]
    found = correction(step(), steps)
    assert found.measurements == 24
    assert found.factor == pytest.approx(1.5, rel=0.02)


def test_the_page_names_the_errors_after_measurements() -> None:
    """Each number is what `python -m benchmarks.predict_after_measurement` prints."""
    page = (ROOT / "docs/measurements/predicted-speed.md").read_text()
    steps = benchmark.known_steps()
    for count in benchmark.COUNTS:
        for name, judged in benchmark.by_kind(benchmark.judge(steps, count)).items():
            figures = benchmark.figures(judged)
            cells = " | ".join(f"{figure:.1%}".replace("%", " %") for figure in figures)
            rows = len({one.known.row.name for one in judged})
            assert f"| {count} | {name} | {rows} | {cells} |" in page, name
            plain, plain_ninth, median, ninth, coverage, _ = figures
            if count:
                assert (median, ninth) < (plain, plain_ninth)
            if count and name == "all":
                assert 0.72 < coverage < 0.90
    for scale, judged in benchmark.judge_scales(steps).items():
        figures = benchmark.figures(judged)
        cells = " | ".join(f"{figure:.1%}".replace("%", " %") for figure in figures)
        rows = len({one.known.row.name for one in judged})
        assert f"| 1 on {scale} | all | {rows} | {cells} |" in page, scale
        assert 0.72 < figures[4] < 0.90, "a smoke test on few nodes must not promise too much"


def test_a_measurement_on_one_node_says_less_about_many() -> None:
    measured = [MeasuredStep(step(), SLOWER)]
    few, many = (correction(step(5, nodes=nodes), measured) for nodes in (0.0, 7.0))
    assert few.factor == pytest.approx(many.factor)
    assert math.log(many.high / many.low) > 1.2 * math.log(few.high / few.low)


def on_gpus(tensor: int, replicas: int) -> Choice:
    sections = {
        "training": {"framework": "megatron-lm", "global_batch": 64, "micro_batch": 1},
        "parallel": {"tensor": tensor},
        "jobs": {"training": {"nodes": tensor * replicas // 8}},
    }
    return full_choice(build(sections, device="H100-SXM", model="13b"))


def smoke_test(choice: Choice, factor: float) -> Calibration:
    return Calibration(
        factor,
        factor,
        1.0,
        4,
        "this",
        choice.program,
        choice.training.precision,
        flops(choice.shape, choice.global_batch),
        "earlier",
        "2026-11-21T10:00:00Z",
        profile=planned_profile(choice),
    )


def test_a_smoke_test_corrects_its_own_layout_most() -> None:
    choice = on_gpus(tensor=2, replicas=4)
    other = on_gpus(tensor=8, replicas=4)
    one = smoke_test(choice, 1.5)
    assert Calibrations("this", (one,)).holds_for(other) == one
    ratios = []
    for planned in (choice, other):
        plain = estimate(planned, None).seconds_per_iteration or 0.0
        found = estimate(planned, None, one)
        ratios.append((found.seconds_per_iteration or 0.0) / plain)
        expected = correction(
            planned_profile(planned) or step(),
            [MeasuredStep(one.profile or step(), math.log(1.5))],
        )
        assert found.basis.endswith(
            PlanningMessage.CORRECTED_FOR_LAYOUT.fill(
                factor=expected.factor,
                low=expected.low,
                high=expected.high,
                count=1,
                smoke_test=1.5,
                run="earlier",
                measured="2026-11-21",
            )
        )
    assert 1.45 < ratios[0] < 1.5
    assert 1.2 < ratios[1] < ratios[0]


def test_all_smoke_tests_of_a_machine_count() -> None:
    """The second one shows that tensor parallelism is slow. The plan of a run keeps both."""
    choice = on_gpus(tensor=8, replicas=4)
    as_planned = smoke_test(on_gpus(tensor=1, replicas=8), 1.0)
    slow = replace(smoke_test(on_gpus(tensor=4, replicas=4), 1.6), measured="2026-11-22T10:00:00Z")
    alone = Calibrations("this", (as_planned,)).holds_for(choice)
    both = Calibrations("this", (as_planned, slow)).holds_for(choice)
    elsewhere = replace(slow, machine="another")
    without = Calibrations("this", (as_planned, elsewhere)).holds_for(choice)
    assert alone is not None
    assert both is not None
    assert without == alone
    step_of_run = planned_profile(choice)
    assert alone.factor_for(step_of_run) == pytest.approx(1.0)
    assert both.factor_for(step_of_run) > 1.3
    assert both.others == (as_planned,)
    assert read_calibration(as_json(both)) == both
    again = Calibrations("this", (both, both)).holds_for(choice)
    assert again == both
    toy = replace(as_planned, operations=as_planned.operations / 1000)
    stored = replace(both, others=(*both.others, toy))
    assert Calibrations("this", (both, stored)).holds_for(choice) == both, "a toy is not like it"
    broken = as_json(both)
    broken["others"][0]["factor"] = 0.0
    assert read_calibration(broken) is None


def test_a_calibration_without_a_profile_is_a_plain_factor() -> None:
    """Older files and steps on a CPU have none."""
    choice = on_gpus(tensor=2, replicas=4)
    old = replace(smoke_test(choice, 1.5), profile=None)
    assert old.factor_for(planned_profile(choice)) == 1.5
    assert "profile" not in as_json(old)
    on_cpu = full_choice(build())
    assert planned_profile(on_cpu) is None
    assert smoke_test(choice, 1.5).factor_for(planned_profile(on_cpu)) == 1.5
    assert estimate(on_cpu, TWO_CORES).seconds is not None


def test_a_profile_is_read_back_or_refused() -> None:
    one = smoke_test(on_gpus(tensor=2, replicas=4), 1.5)
    content = as_json(one)
    assert read_calibration(content) == one
    for broken in ({"shares": [1.0], "place": [0.0]}, {"shares": []}, "much"):
        assert read_calibration({**content, "profile": broken}) is None
    shares = [math.nan, *content["profile"]["shares"][1:]]
    assert (
        read_calibration({**content, "profile": {**content["profile"], "shares": shares}}) is None
    )


def test_each_spread_changes_a_correction() -> None:
    mixed = dict.fromkeys((part for part in PARTS if part != "products"), 0.1)
    measured = [MeasuredStep(step(nodes=1, **mixed), SLOWER)]
    usual = correction(step(2, nodes=4, **mixed), measured)
    for name in vars(DEFAULT):
        changed = replace(DEFAULT, **{name: min(0.95, 1.5 * getattr(DEFAULT, name))})
        assert correction(step(2, nodes=4, **mixed), measured, changed) != usual, name


def test_a_plan_hides_tensor_parallel_communication_only_if_the_run_does() -> None:
    """Megatron-LM overlaps it with matrix products only with --tp-comm-overlap."""
    sections = {
        "training": {"framework": "megatron-lm", "global_batch": 64, "micro_batch": 1},
        "parallel": {"tensor": 8, "sequence": True},
    }
    parts = []
    for overlaps in (True, False):
        training = {**sections["training"], "overlap_tensor": overlaps}
        settings = build({**sections, "training": training}, device="H100-SXM", model="13b")
        parts.append(estimate(full_choice(settings), None).parts or {})
    assert parts[1]["tensor"] > 2.5 * parts[0]["tensor"] > 0
    assert parts[1]["matrices"] == parts[0]["matrices"]
