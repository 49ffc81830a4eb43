"""The planned time: a value with its source, or the reason why there is none."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
from suite.messages import says

from runbook.plan_file.json_records import as_json
from runbook.planning import Calibration, Calibrations, Check, Machine, make_plan
from runbook.planning.choice import Choice, full_choice, smoke_choice
from runbook.planning.cost.calibration import LIKE, calibrate, read_calibration
from runbook.planning.cost.cpu import CORE_FLOPS, WIDENED, cpu_step
from runbook.planning.cost.flops import flops
from runbook.planning.cost.step_time import modelled_step
from runbook.planning.cost.time_and_money import Speed, estimate, evaluation_batches
from runbook.planning.messages import PlanningMessage

from .conftest import TWO_CORES, build, hardware

CPU_PRECISION = PlanningMessage.CPU_PRECISION.fill()
OLD = Machine(cores=2, flags=frozenset({"avx2"}), memory_bytes=24 * 2**30)


def speed(
    sections: dict[str, Any] | None = None,
    machine: Machine | None = TWO_CORES,
    *,
    smoke: bool = False,
    **others: Any,
) -> Speed:
    choice = (smoke_choice if smoke else full_choice)(build(sections, **others))
    return estimate(choice, machine)


def test_smoke_test_takes_about_40_seconds_on_two_cores() -> None:
    """An idle machine took 3.26 s per step with a micro-batch of 2.

    The model is 12 x 512 in bf16, with 48 sequences of 1024 tokens.
    """
    found = speed({"training": {"eval_interval": 0}}, smoke=True)
    assert found.seconds == pytest.approx(41.6, rel=0.02)
    assert found.seconds == pytest.approx(12 * (found.seconds_per_iteration or 0), rel=1e-3)
    assert found.basis == PlanningMessage.CPU_BASIS.fill(
        cores="2 cores", gflops=380.0, path="bf16", share=0.65
    )


def test_cpu_without_bf16_units_is_nearly_as_fast_as_in_fp32(
    verdicts: Callable[..., dict[str, Check]],
) -> None:
    """The trainer widens bf16 values to float32 on a processor without bf16 units."""
    check = verdicts(machine=OLD)[CPU_PRECISION]
    comparison = PlanningMessage.TIMES_AS_LONG.fill(times=1.1)
    assert check.value == PlanningMessage.CPU_PRODUCTS.fill(path=WIDENED, comparison=comparison)
    assert check.verdict == "pass"
    fp32 = {"training": {"precision": "fp32"}}
    assert (
        1
        < (speed(machine=OLD, smoke=True).seconds or 0)
        / (speed(fp32, OLD, smoke=True).seconds or 0)
        < 1.1
    )
    assert (speed(fp32, OLD, smoke=True).seconds or 0) < 300
    assert CPU_PRECISION not in verdicts(fp32, machine=OLD)


def test_cpu_with_avx512_alone_is_warned_of_before_bf16(
    verdicts: Callable[..., dict[str, Check]],
) -> None:
    check = verdicts(machine=replace(TWO_CORES, flags=frozenset({"avx512f"})))[CPU_PRECISION]
    assert check.verdict == "warn"
    assert says(check.value, PlanningMessage.TIMES_AS_LONG, times=2.6)
    assert check.remedy == PlanningMessage.SET_FP32.fill()


@pytest.mark.parametrize(
    ("flags", "path"),
    [
        ({"avx512f", "avx512_bf16"}, "bf16"),
        ({"amx_bf16"}, "bf16"),
        ({"avx512f"}, "bf16 in float32 by AVX-512"),
        ({"avx2"}, "bf16 in float32"),
    ],
)
def test_the_path_of_bf16_follows_the_cpus_flags(flags: set[str], path: str) -> None:
    found = speed(machine=replace(TWO_CORES, flags=frozenset(flags)))
    assert f"({path}, measured)" in found.basis


def test_what_is_not_known_stays_empty(verdicts: Callable[..., dict[str, Check]]) -> None:
    nowhere = speed(machine=None)
    assert (nowhere.seconds, nowhere.tokens_per_second, nowhere.cost) == (None, None, None)
    assert nowhere.basis == PlanningMessage.CORES_NOT_KNOWN.fill()
    no_flags = speed(machine=Machine(cores=4))
    assert no_flags.seconds is None
    assert no_flags.basis == PlanningMessage.CPU_NOT_KNOWN.fill(precision="bf16")
    assert verdicts(machine=Machine(cores=4))[CPU_PRECISION].verdict == "unknown"
    site = {"hardware": {"device": "NewChip", "devices_per_node": 8}}
    basis = PlanningMessage.NO_PEAK_OF_DEVICE.fill(precision="bf16", device="NewChip")
    assert speed(site=site).basis == basis


def test_known_accelerators_are_modelled_part_by_part() -> None:
    sections = {
        "training": {
            "global_batch": 64,
            "micro_batch": 2,
            "eval_interval": 0,
            "framework": "megatron-lm",
        }
    }
    found = speed(sections, device="H100-SXM", model="13b")
    assert found.basis == PlanningMessage.MODELLED.fill(
        device="H100-SXM5", peak=989.4, precision="bf16"
    )
    deepspeed = {"engine": "deepspeed", "framework": "runbook"}
    zero_3 = sections | {"parallel": {"zero_stage": 3}}
    zero_3["training"] = sections["training"] | deepspeed
    assert speed(zero_3, device="H100-SXM", model="13b").basis.endswith("on one H200")
    # 1.3B on one H100 was measured at 0.56 of the peak.
    assert 0.40 * 989.4 < (found.tflops_per_device or 0) < 0.58 * 989.4
    assert found.tflops_convention == "megatron-full"


def test_unknown_accelerators_run_at_a_stated_share_of_the_sites_peak() -> None:
    site = {
        "hardware": hardware("H100-SXM").model_copy(
            update={"device": "NewChip", "peak_tflops": {"bf16": 1000.0}}
        )
    }
    found = speed({"training": {"global_batch": 16, "eval_interval": 0}}, model="375m", site=site)
    assert found.basis == PlanningMessage.ASSUMED_SHARE.fill(
        share=0.35, peak=1000.0, device="NewChip", precision="bf16"
    )
    assert found.tflops_per_device == pytest.approx(350, rel=1e-3)


def test_a_smoke_test_calibrates_the_steps_that_are_like_its_own() -> None:
    choice = full_choice(build())
    plain, *_ = modelled_step(choice, TWO_CORES)
    one = measured(choice, factor=1.25)
    slower = estimate(choice, TWO_CORES, one)
    assert slower.seconds_per_iteration == pytest.approx(1.25 * (plain or 0), rel=1e-3)
    assert slower.basis.endswith(
        ", times 1.25 as measured by the smoke test of earlier on 2026-11-21"
    )
    older = replace(one, factor=3.0, measured="2026-11-20T00:00:00Z")
    assert Calibrations("this", (one, older)).holds_for(choice) == one
    assert Calibrations("another", (one,)).holds_for(choice) is None
    for other in (
        {"engine": "deepspeed"},
        {"precision": "fp32"},
        {"operations": one.operations * LIKE * 1.1},
    ):
        assert Calibrations("this", (replace(one, **other),)).holds_for(choice) is None
    for times, is_like in ((29, True), (31, False), (1 / 29, True), (1 / 31, False)):
        other_run = replace(one, operations=one.operations * times)
        found = Calibrations("this", (other_run,)).holds_for(choice)
        assert (found is not None) == is_like, times


def measured(choice: Choice, factor: float) -> Calibration:
    operations = flops(choice.shape, choice.global_batch)
    return Calibration(
        factor,
        factor,
        1.0,
        4,
        "this",
        "megatron-core",
        "bf16",
        operations,
        "earlier",
        "2026-11-21T10:00:00Z",
    )


def test_the_factor_is_the_median_of_what_was_measured() -> None:
    assert calibrate([9.0, 2.0, 2.2, 2.1], 1.0) == 2.1
    assert calibrate([9.0, 2.0, 2.2], 1.0) is None
    assert calibrate([9.0, 2.0, 2.2, float("nan")], 1.0) is None
    assert calibrate([9.0, 2.0, 2.2, 2.1], 0.0) is None


def test_a_calibration_is_read_back_or_refused() -> None:
    one = measured(full_choice(build()), factor=0.8)
    assert read_calibration(as_json(one)) == one
    for broken in ({}, {**as_json(one), "factor": 0}, {**as_json(one), "factor": "much"}):
        assert read_calibration(broken) is None


def test_a_plan_says_which_measurement_corrected_it() -> None:
    settings = build()
    one = measured(full_choice(settings), factor=2.0)
    plain = make_plan(settings, TWO_CORES)
    slower = make_plan(settings, TWO_CORES, Calibrations("this", (one,)))
    times = [plan.as_dict()["time"]["04-training"]["seconds"] for plan in (plain, slower)]
    assert times[1] == pytest.approx(2 * times[0], rel=1e-3)
    assert plain.as_dict()["calibration"] == {"03-smoke-test": None, "04-training": None}
    assert slower.as_dict()["calibration"]["04-training"] == as_json(one)


def test_tokens_a_second_follow_from_the_step() -> None:
    found = speed()
    assert found.tokens_per_second == pytest.approx(
        8 * 128 / (found.seconds_per_iteration or 0), rel=1e-3
    )


def on_cpu(
    sections: dict[str, Any] | None = None, machine: Machine = TWO_CORES
) -> dict[str, float]:
    choice = full_choice(build(sections))
    step, _ = cpu_step(choice, machine)
    assert step is not None
    return {**step, "all": sum(step.values())}


def test_each_part_of_a_cpus_step_follows_its_own_cause() -> None:
    """The batch, the cores, the precision and the stages change the step time as expected."""
    plain = on_cpu()
    assert plain["products"] == pytest.approx(
        flops(full_choice(build()).shape, 8, "megatron-causal") / (2 * CORE_FLOPS["bf16"])
    )
    assert plain["all"] == pytest.approx(
        sum(seconds for name, seconds in plain.items() if name != "all")
    )
    twice = on_cpu(
        {"training": {"global_batch": 16, "micro_batch": 2 * full_choice(build()).micro_batch}}
    )
    ratios = {
        name: twice[name] / plain[name]
        for name in ("products", "loss", "elements", "weights", "calls")
    }
    assert ratios == pytest.approx(
        {"products": 2, "loss": 2, "elements": 2, "weights": 1, "calls": 1}
    )
    more = on_cpu({"training": {"global_batch": 16}})
    assert more["calls"] == 2 * plain["calls"]
    four = on_cpu(machine=replace(TWO_CORES, cores=4))
    assert (four["products"], four["elements"]) == pytest.approx(
        (plain["products"] / 2, plain["elements"] / 2)
    )
    full = on_cpu({"training": {"recompute": "full"}})
    assert full["products"] == pytest.approx(4 / 3 * plain["products"])
    assert full["loss"] == plain["loss"]
    piped = on_cpu(
        {"parallel": {"pipeline": 2}}
    )  # one replica and two micro-batches: a bubble of a quarter
    assert piped["products"] == pytest.approx(1.25 * plain["products"])
    assert piped["weights"] < plain["weights"]
    assert on_cpu({"parallel": {"tensor": 2}})["elements"] > plain["elements"]


def test_evaluations_are_counted() -> None:
    sections = {"training": {"eval_interval": 30, "eval_iterations": 4}}
    for choose, batches in ((full_choice, 12), (smoke_choice, 1)):
        choice = choose(build(sections))
        assert evaluation_batches(choice) == batches
    with_them = speed(sections)
    without = speed({"training": {"eval_interval": 0}})
    assert (with_them.seconds or 0) == pytest.approx(
        (without.seconds or 0) * (1 + 12 / 3 / 100), rel=1e-3
    )


def test_cost_needs_a_price() -> None:
    assert speed().cost is None
    priced = speed(site={"price_per_device_hour": 3.0})
    assert priced.cost == pytest.approx(3 * (priced.device_hours or 0), rel=1e-3)
    assert priced.device_hours == pytest.approx(2 * (priced.seconds or 0) / 3600, rel=1e-3)


def test_time_in_the_plan_is_plain_values() -> None:
    time = make_plan(build(), TWO_CORES).as_dict()["time"]
    assert set(time) == {"03-smoke-test", "04-training"}
    assert time["04-training"]["seconds"] == speed().seconds
