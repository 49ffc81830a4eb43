from __future__ import annotations

import matplotlib as mpl
import pytest

from runbook.core import quantities
from runbook.results.figures import run_figures
from runbook.results.figures import run_figures as figures_beside
from runbook.results.figures.drawing import as_svg, save
from runbook.results.history import ValidationLoss
from runbook.results.messages import ResultMessage
from runbook.results.metrics import COLUMNS, summarize
from runbook.results.run_tables import published_table
from runbook.results.wall_time import account_wall_time


@pytest.fixture
def drawn(make):
    records = [
        make.step(n, segment=int(n > 50), **({"loss": None} if n == 7 else {}))
        for n in range(1, 61)
    ]
    records += [make.step(n, segment=2) for n in range(55, 201)]
    history = make.history(records)
    validation = [ValidationLoss(100, 5.0, 148.4, 32, 2.0, 1200.0)]
    table = published_table(
        summarize(history, sequence_length=128),
        parameters=7_000_000,
        device="cpu",
        precision="bf16",
        peak=None,
    )
    return {
        "loss": run_figures.loss_figure(history, validation, vocabulary=50257),
        "throughput": run_figures.throughput_figure(
            history, sequence_length=128, planned_tokens_per_second=600
        ),
        "step": run_figures.step_time_figure(history, planned_seconds=1.5),
        "goodput": run_figures.goodput_figure(account_wall_time(history, validation)),
        "published": figures_beside.published_figure(table),
        "timeline": run_figures.timeline_figure(history, validation, make.saved(100)),
    }


def test_every_axis_has_a_unit_and_every_figure_a_title(drawn):
    labels = {
        name: (figure.axes[0].get_xlabel(), figure.axes[0].get_ylabel())
        for name, figure in drawn.items()
    }
    elapsed = ResultMessage.ELAPSED_AXIS.fill(unit="min")
    assert labels == {
        "loss": ("iteration", "loss (nat/token)"),
        "throughput": (elapsed, quantities.THROUGHPUT),
        "step": ("iteration", COLUMNS["seconds"]),
        "goodput": ("time (min)", ""),
        "published": (
            ResultMessage.PUBLISHED_AXIS.fill(),
            "",
        ),
        "timeline": (elapsed, ""),
    }
    assert all(figure.axes[0].get_title(loc="left") for figure in drawn.values())


def test_reference_lines_are_named(drawn):
    texts = {
        name: [text.get_text() for text in drawn[name].axes[0].get_legend().get_texts()]
        for name in ("loss", "throughput", "step")
    }
    assert texts["loss"] == [
        "training loss",
        ResultMessage.REPLACED_LOSS.fill(),
        "validation loss",
        "restart",
        ResultMessage.FIRST_LOSS_OF_VOCABULARY.fill(vocabulary=50257, loss=10.82),
        ResultMessage.NO_LOSS.fill(),
    ]
    assert "planned: 600" in texts["throughput"]
    assert ResultMessage.PLANNED_LINE.fill(value="1.5 s") in texts["step"]


def test_the_same_figure_gives_the_same_svg(drawn):
    first, second = (as_svg(drawn["loss"]) for _ in range(2))
    assert first == second
    assert first.startswith("<svg ")


def test_drawing_leaves_the_settings_of_others_alone(history):
    before = dict(mpl.rcParams)
    as_svg(run_figures.loss_figure(history))
    assert dict(mpl.rcParams) == before


def test_figures_of_almost_nothing_are_drawn(make, tmp_path):
    one = make.history([make.step(1, loss=None)])
    for figure in (
        run_figures.loss_figure(one),
        run_figures.throughput_figure(one, sequence_length=128),
        run_figures.step_time_figure(one),
        run_figures.goodput_figure(account_wall_time(one)),
    ):
        save(figure, tmp_path / "one.png")
        assert (tmp_path / "one.png").stat().st_size > 1000


def test_a_long_run_is_drawn_with_few_points_and_keeps_its_spike(make):
    records = [
        make.step(n, loss=3.0 + 0.001 * (n % 5) if n != 7001 else 8.0) for n in range(1, 20_001)
    ]
    history = make.history(records)
    figure = run_figures.loss_figure(history)
    curve = figure.axes[0].get_lines()[0]
    assert len(curve.get_xdata()) <= 4002
    assert 8.0 in curve.get_ydata()
    texts = (as_svg(one) for one in (figure, run_figures.step_time_figure(history)))
    assert all(len(text) < 1_500_000 for text in texts)


@pytest.mark.parametrize(("num_steps", "has_bars"), [(60, True), (61, False)])
def test_the_parts_of_many_steps_are_filled_curves(make, num_steps, has_bars):
    """Bars for 140 steps would take half a megabyte of the three that a mail may have."""
    history = make.history([make.step(n) for n in range(1, num_steps + 1)])
    axes = run_figures.step_time_figure(history).axes[0]
    assert bool(axes.patches) is has_bars
    assert bool(axes.collections) is not has_bars
