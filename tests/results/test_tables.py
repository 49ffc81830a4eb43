from __future__ import annotations

from dataclasses import replace

import pytest

from runbook.core import quantities
from runbook.planning.cost.cpu import PROCESS_BYTES
from runbook.results.messages import ResultMessage
from runbook.results.metrics import summarize
from runbook.results.plan_versus_actual import actual_numbers, plan_versus_actual, planned_numbers
from runbook.results.published_results import nearest, peak_tflops, published_results, same_device
from runbook.results.run_tables import (
    numbers_table,
    published_table,
    speed_table,
)
from runbook.results.wall_time import account_wall_time, wall_time_table


@pytest.fixture
def summary(history):
    return summarize(history, sequence_length=128)


def test_every_table_becomes_a_frame_and_csv(summary, history, spec):
    tables = [
        numbers_table(summary),
        wall_time_table(account_wall_time(history)),
        speed_table(summary, spec.model.shape, device="cpu", precision="bf16", peak=None),
        published_table(summary, parameters=7_274_368, device="cpu", precision="bf16", peak=None),
        plan_versus_actual({"processes": spec.parallel.world_size}, actual_numbers(summary)),
    ]
    for table in tables:
        frame = table.to_frame()
        assert list(frame.columns) == table.columns
        assert len(frame) == len(table) > 0
        assert table.source
        assert table.to_csv().count("\n") == len(table) + 1


def test_plan_versus_actual_keeps_what_only_one_side_knows(spec, summary):
    planned = {
        "iterations": spec.duration.iterations,
        quantities.STEP_TIME: 1.6,
        "checkpoint (B)": 5,
    }
    rows = {row["what"]: row for row in plan_versus_actual(planned, actual_numbers(summary)).rows}
    assert rows[quantities.STEP_TIME]["ratio"] == pytest.approx(1.25)
    assert rows["checkpoint (B)"] == {
        "what": "checkpoint (B)",
        "planned": 5,
        "actual": None,
        "ratio": None,
        "remark": "not measured",
    }
    assert rows[quantities.THROUGHPUT]["remark"] == "not planned"
    assert rows["iterations"]["ratio"] == 1.0


def test_plan_json_is_read_under_the_names_of_the_results(plan, summary):
    smoke = "03-smoke-test"
    speed = replace(
        plan.time[smoke], seconds_per_iteration=1.6, tokens_per_second=640.0, seconds=160.0
    )
    stages = (10**9, 2 * 10**9)
    memory = replace(plan.memory[smoke], limit_of="node", least_by_stage=stages)
    plan = replace(plan, time={smoke: speed}, memory={smoke: memory})
    planned = planned_numbers(plan, "03-smoke-test")
    rows = {row["what"]: row for row in plan_versus_actual(planned, actual_numbers(summary)).rows}
    assert rows[quantities.STEP_TIME]["ratio"] == pytest.approx(1.25)
    assert rows[quantities.PROCESS_MEMORY]["planned"] == 1.5e9 + PROCESS_BYTES
    assert rows[quantities.FIRST_LOSS]["ratio"] == pytest.approx(1.0, abs=1e-4)


def test_cpu_run_is_set_beside_published_results_as_context_only(summary):
    rows = published_table(
        summary, parameters=7_274_368, device="cpu", precision="bf16", peak=None
    ).rows
    assert rows[0]["model"] == "this run"
    assert {row["comparable"] for row in rows[1:]} == {ResultMessage.CONTEXT_ONLY.fill()}
    assert all(row[quantities.RATIO_TO_PUBLISHED] is None for row in rows)
    assert all(row[quantities.MFU] is None for row in rows[:1])


def test_same_device_and_size_is_compared_by_tokens(summary):
    table = published_table(
        summary, parameters=124_000_000, device="A100-80GB", precision="bf16", peak=312.0
    )
    best = table.rows[1]
    assert (best["model"], best["device"], best["comparable"]) == (
        "MPT 125M",
        "A100-SXM4-80GB",
        "yes",
    )
    assert best[quantities.RATIO_TO_PUBLISHED] == pytest.approx(256 / 141737)
    assert "published_results.csv line" in best["source"]


def test_another_size_on_the_same_device_is_not_compared(summary):
    table = published_table(
        summary, parameters=3_000_000_000_000, device="H100-SXM", precision="bf16", peak=989.4
    )
    assert table.rows[1]["comparable"] == ResultMessage.OTHER_SIZE.fill()


def test_our_own_convention_reproduces_itself_and_hardware_flops_get_no_mfu(summary, spec):
    rows = {
        row["convention"]: row
        for row in speed_table(
            summary, spec.model.shape, device="x", precision="bf16", peak=1.0
        ).rows
    }
    assert rows["megatron-deepspeed-f4"][quantities.MFU] is None
    assert rows["megatron-deepspeed-f4"][quantities.HFU] > rows["megatron-full"][quantities.MFU]
    assert rows["megatron-full"][quantities.PRINTED_SPEED] == 0.25
    assert rows["palm"][quantities.PRINTED_SPEED] is None


def test_unknown_peak_is_not_guessed(summary, spec):
    table = speed_table(
        summary,
        spec.model.shape,
        device="TPU-9",
        precision="bf16",
        peak=peak_tflops("TPU-9", "bf16"),
    )
    assert {row[quantities.MFU] for row in table.rows} == {None}
    assert table.notes == (ResultMessage.NO_PEAK.fill(device="TPU-9", precision="bf16"),)


@pytest.mark.parametrize(
    ("device", "precision", "peak"),
    [
        ("A100-40GB", "bf16", 312.0),
        ("H100-SXM", "fp8", 1978.9),
        ("MI250X-GCD", "bf16", 191.5),
        ("V100-SXM2", "bf16", None),
        ("H200", "bf16", 989.4),
        ("GB200", "bf16", 2500.0),
    ],
)
def test_peaks_are_those_of_one_device(device, precision, peak):
    assert peak_tflops(device, precision) == peak


def test_a_device_of_the_published_table_finds_its_peak():
    assert peak_tflops("A100-SXM4-40GB (Polaris)", "bf16") == 312.0
    aurora_tile = "PVC Max 1550 tile (Aurora)"
    assert peak_tflops(aurora_tile, "bf16") == 298.2
    assert not same_device("H100-SXM5-96GB-HBM2e-500W", "H100-SXM5-80GB")


def test_published_table_is_read_whole():
    rows = published_results()
    assert len(rows) == 127
    lumi = next(row for row in rows if row.tflops_per_device == 65.67)
    assert (lumi.accelerator, lumi.tokens_per_second_per_device) == ("MI250X-GCD", 603.0)
    assert all(row.source and row.confidence for row in rows)


def test_nearest_prefers_the_device_then_the_size():
    first = nearest(13e9, device="MI250X-GCD", precision="fp16", sequence_length=2048)[0]
    assert (first.accelerator, first.model) == ("MI250X-GCD", "GPT-3 13B")
