"""The numbers next to the figures, each with its file and line."""

from __future__ import annotations

import dataclasses

import pytest
from suite.messages import says

from runbook.core import quantities
from runbook.plan_file.alarms import AlarmSettings
from runbook.plan_file.messages import AlarmMessage
from runbook.results.figures import run_figures
from runbook.results.figures import run_figures as figures_beside
from runbook.results.history import ValidationLoss
from runbook.results.messages import ResultMessage
from runbook.results.metrics import summarize
from runbook.results.run_tables import loss_table, numbers_table, published_table, throughput_table


@pytest.fixture
def spiky(make):
    records = [make.step(n, loss=5.0 + 0.001 * (n % 3) if n != 60 else 12.0) for n in range(1, 81)]
    records += [make.step(n, segment=1, loss=4.0 - 0.001 * n, line=0) for n in range(71, 121)]
    return make.history(records)


def test_each_number_of_the_loss_is_found_again_in_its_file(spiky):
    rows = {row["what"]: row for row in loss_table(spiky, vocabulary=50257)}
    assert (rows["first"]["source"], rows["first"]["loss (nat/token)"]) == (
        "metrics.jsonl:1",
        5.001,
    )
    assert (rows["spike"]["iteration"], rows["spike"]["source"]) == (60, "metrics.jsonl:60")
    assert says(
        rows["spike"]["remark"],
        AlarmMessage.AFTER_RECORDS,
        metric="loss",
        value=12,
        finding=AlarmMessage.JUMPED.fill(),
        num_before=40,
        usual=5.001,
    )
    assert (rows["restart"]["iteration"], rows["restart"]["source"]) == (71, "metrics.jsonl:81")
    assert (rows["last"]["iteration"], rows["last"]["source"]) == (120, "metrics.jsonl:130")
    assert rows["ln(vocabulary)"]["loss (nat/token)"] == pytest.approx(10.8249, abs=1e-4)


def test_a_spike_and_a_restart_are_marked_in_the_figure(spiky):
    axes = run_figures.loss_figure(spiky).axes[0]
    texts = [text.get_text() for text in axes.get_legend().get_texts()]
    assert {"spike", "restart", ResultMessage.REPLACED_LOSS.fill()} <= set(texts)


def test_a_spike_before_the_alarms_begin_is_in_no_table_and_no_figure(spiky):
    history = dataclasses.replace(spiky, alarm_settings=AlarmSettings(alarms_after=60))
    assert "spike" not in {row["what"] for row in loss_table(history)}
    assert summarize(spiky, sequence_length=128).spikes
    assert not summarize(history, sequence_length=128).spikes
    axes = run_figures.loss_figure(history).axes[0]
    assert "spike" not in {text.get_text() for text in axes.get_legend().get_texts()}


def test_throughput_of_each_segment(spiky):
    rows = throughput_table(spiky, sequence_length=128, planned=1024.0).rows
    assert [
        (row["segment"], row[quantities.THROUGHPUT], row[quantities.PERCENT_OF_PLAN])
        for row in rows
    ] == [
        (0, 512.0, 50.0),
        (1, 512.0, 50.0),
    ]
    assert rows[1]["source"] == "metrics.jsonl:86-130"


def test_timeline_shows_the_planned_end(make, history):
    validation = [ValidationLoss(50, 5.0, 148.4, 32, 2.0, 1100.0)]
    axes = run_figures.timeline_figure(
        history, validation, make.saved(50), planned_seconds=100.0
    ).axes[0]
    assert "planned end" in [text.get_text() for text in axes.texts]


def test_numbers_name_their_lines(history):
    rows = {
        row["what"]: row["source"]
        for row in numbers_table(summarize(history, sequence_length=128), history=history)
    }
    assert (rows["first loss"], rows["last loss"]) == ("metrics.jsonl:1", "metrics.jsonl:100")
    assert rows["step time"] == "metrics.jsonl:1-100"


def test_mfu_is_drawn_beside_the_published_and_not_made_up_for_a_cpu(history):
    summary = summarize(history, sequence_length=2048)
    on_gpu = published_table(
        summary, parameters=13_000_000_000, device="H100-SXM", precision="bf16", peak=989.4
    )
    axes = figures_beside.mfu_figure(on_gpu).axes[0]
    assert axes.get_yticklabels()[0].get_text().startswith("this run")
    assert axes.get_xlabel() == ResultMessage.SHARE_AXIS.fill()
    on_cpu = published_table(
        summary, parameters=7_000_000, device="cpu", precision="bf16", peak=None
    )
    texts = [text.get_text() for text in figures_beside.mfu_figure(on_cpu).axes[0].texts]
    assert ResultMessage.RUN_WITHOUT_PEAK.fill() in texts
