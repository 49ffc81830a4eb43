"""Draws a ladder: the loss of each rung over compute, and the forecast for the run."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from runbook.forecast.interval_rules import INTERVAL
from runbook.results.figures.drawing import BLUE, GREEN, VERMILION, drawing


@dataclass(frozen=True)
class LadderPoint:
    """A training run in the ladder, as a point in the figure."""

    flops: float
    loss: float


@dataclass(frozen=True)
class ForecastPoint:
    """The forecast for the run, and the loss the run reached, if the run was trained."""

    flops: float
    loss: float
    low: float
    high: float
    reached: float | None = None


def ladder_figure(rungs: Sequence[LadderPoint], forecast: ForecastPoint | None, run: str) -> Any:
    """Draw the rung losses over compute, the forecast with its interval, and the actual loss."""
    with drawing(f"Loss by compute: the ladder of {run}") as (figure, axes):
        axes.set_xscale("log")
        axes.set_xlabel("training FLOPs")
        axes.set_ylabel("loss on held-out text (nats)")
        compute = [rung.flops for rung in rungs]
        losses = [rung.loss for rung in rungs]
        axes.plot(
            compute,
            losses,
            color=BLUE,
            marker="o",
            linestyle="none",
            label="rungs",
        )
        if forecast is not None:
            below = forecast.loss - forecast.low
            above = forecast.high - forecast.loss
            axes.errorbar(
                [forecast.flops],
                [forecast.loss],
                yerr=[[below], [above]],
                color=VERMILION,
                marker="D",
                capsize=4,
                linestyle="none",
                label=f"forecast, {INTERVAL}",
            )
            if forecast.reached is not None:
                axes.plot(
                    [forecast.flops],
                    [forecast.reached],
                    color=GREEN,
                    marker="x",
                    markersize=9,
                    linestyle="none",
                    label="reached",
                )

        axes.legend()

    return figure
