from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from lumi_table import ROUNDING, StatedRow, gpt, judged_table, lumi_rows
from write_pages import lumi_page

from runbook.core import quantities
from runbook.planning.cost.flops import flops, tflops_per_device
from runbook.results.messages import ResultMessage
from runbook.results.metrics import summarize
from runbook.results.run_tables import ThroughputRow, results_table, scaling_table
from runbook.results.wall_time import Rates, account_wall_time, cost_table, projection_table

COLUMN = "T (TFLOP/s per device)"


def test_lumi_rows_are_reproduced_within_the_rounding_of_their_samples():
    rows = judged_table(lumi_rows()).rows
    assert len(rows) == 8
    for row, given in zip(rows, lumi_rows(), strict=True):
        if row[COLUMN] is None:
            continue
        band = row[COLUMN] * ROUNDING / given.row.samples_per_second + 0.005
        assert abs(row[COLUMN] - given.tflops) <= band
        assert abs(row[quantities.PERCENT_OF_PEAK] - given.percent) <= 100 * band / 191.5 + 0.005
    assert [round(row[COLUMN], 2) for row in rows[:6]] == [11.94, 11.94, 74.89, 65.68, 72.02, 62.71]


def test_lumi_rows_that_cannot_be_right_and_those_never_measured_are_marked():
    verdicts = [row["verdict"] for row in judged_table(lumi_rows()).rows]
    assert verdicts == [
        "cannot be right: PP x TP x DP = 8, but there are 16 devices; TP 2 would use all of them, and would explain "
        "11.94 TFLOP/s (vocabulary padded to 50432)",
        "printed twice: the same as row 1",
        "cannot be right: weights, gradients and optimizer need 65.8 GiB of a device's 64 GiB "
        "(the speed itself is consistent)",
        "ok within the rounding of samples/s (+-0.007 TFLOP/s)",
        "ok",
        "ok",
        "never measured",
        "never measured",
    ]


def test_lumi_percentages_are_hardware_flops_and_the_models_are_three_quarters():
    row = judged_table(lumi_rows()).rows[4]
    assert row[quantities.MFU] / row[quantities.PERCENT_OF_PEAK] == pytest.approx(0.7535, abs=1e-3)


def test_our_own_runs_fill_the_same_table_without_stated_figures():
    cut = replace(lumi_rows()[0].row.parallel, pipeline=1, tensor=1, data=8, world_size=8)
    own = ThroughputRow("125M", gpt(12, 768, 12), cut, 8, samples_per_second=250.0)
    (row,) = results_table([own], device="A100-80GB", precision="bf16", source="metrics.jsonl").rows
    assert row["verdict"] == "ok"
    assert row[COLUMN] == pytest.approx(
        tflops_per_device(own.shape, 250.0, 8, "megatron-deepspeed-f4")
    )


def test_a_stated_speed_that_does_not_follow_is_said():
    (own, *_) = lumi_rows()
    wrong = StatedRow(
        replace(own.row, parallel=replace(own.row.parallel, tensor=2), samples_per_second=250.0),
        99.0,
        50.0,
    )
    assert judged_table([wrong]).rows[0]["verdict"].startswith("stated 99.0, recomputed ")


def test_the_page_of_the_lumi_table_is_what_the_tool_writes():
    page = Path(__file__).parents[2] / "docs" / "lumi-table.md"
    assert page.read_text() == lumi_page(), "run python tools/write_pages.py"


def test_published_flops_are_reproduced_by_their_conventions():
    bloom = gpt(70, 14336, 112, tensor=4, vocabulary=250880)
    assert tflops_per_device(bloom, 2048 / 105.22, 384, "megatron-deepspeed-f4") == pytest.approx(
        149.015, abs=0.02
    )
    nemo = gpt(96, 12288, 96, tensor=4)
    assert flops(nemo, 1 / 2048, "megatron-full") * 866 / 1e12 == pytest.approx(932, abs=1.5)


def test_scaling_of_the_lumi_document():
    zero1 = [("1 node", 8, 2.686), ("2 nodes", 16, 4.711)]
    zero2 = [("1 node", 8, 2.686), ("2 nodes", 16, 5.166)]
    assert round(scaling_table(zero1).rows[1]["efficiency (%)"], 1) == 87.7
    assert round(scaling_table(zero2).rows[1]["efficiency (%)"], 1) == 96.2
    assert scaling_table([]).notes == (ResultMessage.NO_POINT.fill(),)


def test_projection_needs_a_price_for_a_cost_and_says_what_it_leaves_out(history):
    summary = summarize(history, sequence_length=128)
    best = projection_table(summary, target_tokens=44_236_800, goodput=None, rates=Rates())
    assert {row["what"]: row["value"] for row in best.rows}["time"] == pytest.approx(1.0)
    found = {row["what"]: row["value"] for row in best.rows}
    assert list(found) == ["tokens", "speed", "time", "device-hours", "energy", "cost"]
    assert (found["energy"], found["cost"]) == (None, None)
    assert best.rows[-1]["how"] == ResultMessage.NO_PRICE.fill()
    assert best.notes == (ResultMessage.BEST_CASE.fill(),)
    rates = Rates(2.0, "EUR", 500.0, "data sheet")
    real = {
        row["what"]: row
        for row in projection_table(summary, target_tokens=44_236_800, goodput=0.5, rates=rates)
    }
    assert real["cost"] == {
        "what": "cost",
        "value": pytest.approx(192.0),
        "unit": "EUR",
        "how": ResultMessage.PRICE.fill(price=2.0),
    }
    assert (real["energy"]["value"], real["energy"]["unit"]) == (pytest.approx(48.0), "kWh")


def test_what_a_run_cost_is_its_wall_time_on_all_devices(history):
    table = cost_table(
        summarize(history, sequence_length=128),
        account_wall_time(history),
        Rates(3.0, "EUR", 400.0, "measured"),
    )
    found = {row["what"]: row["value"] for row in table}
    hours = 2 * 200 / 3600
    assert found["device-hours"] == pytest.approx(hours)
    assert found[quantities.PRODUCTIVE_DEVICE_HOURS] == pytest.approx(0.75 * hours)
    assert (found["energy"], found["cost"]) == (
        pytest.approx(0.4 * hours),
        pytest.approx(3 * hours),
    )
