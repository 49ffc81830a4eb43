"""The figures of a run, one function each: units on every axis, a reference line, colours that survive print."""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import Any

from runbook.analysis.drawing import (
    BLUE,
    GREEN,
    GREY,
    MOST_POINTS,
    ORANGE,
    SKY,
    VERMILION,
    as_svg,
    columns,
    drawing,
    save,
    thin,
    time_unit,
)
from runbook.analysis.history import Evaluation, History, Step, events_named
from runbook.analysis.metrics import find_spikes, measured
from runbook.analysis.step_parts import parts_of
from runbook.analysis.table import Waterfall
from runbook.units import show_duration

__all__ = [
    "as_svg",
    "goodput_figure",
    "loss_figure",
    "save",
    "step_time_figure",
    "throughput_figure",
    "timeline_figure",
]

_PARTS = {
    "computing": (SKY, ""),
    "communication": (GREEN, "..."),
    "optimizer": (BLUE, "\\\\\\"),
    "other": (GREY, ""),
    "waiting for data": (ORANGE, "///"),
}
"""Colour and hatch of each part of a step, from the bottom up."""


def loss_figure(
    history: History,
    validation: Sequence[Evaluation] = (),
    *,
    padded_vocabulary: int = 0,
    title: str = "Loss",
) -> Any:
    """Training loss by iteration, with restarts, evaluations, spikes' repeats, and ln(vocabulary) where it began."""
    with drawing(title) as (figure, axes):
        points = history.losses
        many = len(points) > 60
        axes.plot(*columns(thin(points)), color=BLUE, linewidth=1.2, marker="" if many else ".", label="training loss")
        replaced = [(step.iteration, step.loss) for step in history.repeated if step.loss is not None]
        if replaced:
            axes.plot(
                *columns(thin(replaced)),
                color=SKY,
                linestyle="",
                marker="x",
                markersize=4,
                label="replaced by a restart",
            )
        if validation:
            places = [(one.iteration, one.loss) for one in validation]
            axes.plot(
                *columns(places), color=VERMILION, linestyle="--", marker="D", markersize=4, label="validation loss"
            )
        for number, first in enumerate(history.restarts):
            axes.axvline(first - 0.5, color=GREY, linestyle=":", label="restart" if number == 0 else None)
        if padded_vocabulary:
            start = math.log(padded_vocabulary)
            axes.axhline(start, color=GREEN, linestyle="-.", linewidth=1, label=f"ln {padded_vocabulary} = {start:.2f}")
        jumps = [(spike.iteration, spike.loss) for spike in find_spikes(points)]
        if jumps:
            look: dict[str, Any] = {"color": VERMILION, "linestyle": "", "marker": "v", "markersize": 6}
            axes.plot(*columns(jumps), **look, label="spike")
        without = [step.iteration for step in history.steps if step.loss is None or not math.isfinite(step.loss)]
        without = without[:: -(-len(without) // MOST_POINTS) or 1]
        if without:
            axes.plot(
                without, [0.02] * len(without), transform=axes.get_xaxis_transform(), color=ORANGE, linestyle="",
                marker="^", markersize=4, label="no loss (skipped or NaN)",
            )  # fmt: skip
        axes.set_xlabel("iteration")
        axes.set_ylabel("loss (nat/token)")
        axes.legend(loc="upper right", frameon=True, edgecolor="none", framealpha=0.9)
        return figure


def throughput_figure(
    history: History, *, sequence_length: int, planned_tokens_per_second: float | None = None, title: str = "Throughput"
) -> Any:
    """Tokens per second of every step over time, its median, and what the plan said."""
    with drawing(title) as (figure, axes):
        timed = [step for step in history.steps if step.seconds > 0]
        unit, scale = time_unit(timed[-1].time - timed[0].time if timed else 0)
        begin = timed[0].time - timed[0].seconds if timed else 0.0
        rates = [((step.time - begin) / scale, step.global_batch * sequence_length / step.seconds) for step in timed]
        axes.plot(*columns(thin(rates)), color=BLUE, linestyle="", marker=".", markersize=4, label="one step")
        used = [step.global_batch * sequence_length / step.seconds for step in measured(history)]
        if used:
            middle = statistics.median(used)
            axes.axhline(middle, color=BLUE, linewidth=1.2, label=f"median after warm-up: {middle:,.0f}")
        if planned_tokens_per_second:
            label = f"planned: {planned_tokens_per_second:,.0f}"
            axes.axhline(planned_tokens_per_second, color=VERMILION, linestyle="--", label=label)
        for before, after in pairwise(timed):
            if after.segment != before.segment:
                axes.axvline((after.time - after.seconds - begin) / scale, color=GREY, linestyle=":")
        axes.set_ylim(bottom=0)
        axes.set_xlabel(f"time since the first step began ({unit})")
        axes.set_ylabel("throughput (tokens/s)")
        axes.legend(loc="lower right")
        return figure


def step_time_figure(
    history: History, *, planned_seconds: float | None = None, title: str = "What a step is made of"
) -> Any:
    """Seconds of every step, split into the parts the trainer tells, with the median and the plan's line."""
    with drawing(title) as (figure, axes):
        steps = _some(history.steps)
        places = [step.iteration for step in steps]
        split = [parts_of(step) for step in steps]
        below = [0.0] * len(steps)
        for name, (colour, hatch) in _PARTS.items():
            values = [one[name] for one in split]
            if not any(values):
                continue
            above = [low + value for low, value in zip(below, values, strict=True)]
            look: dict[str, Any] = {"color": colour, "label": name, "linewidth": 0.3, "edgecolor": "black"}
            # Thousands of bars would take seconds to draw and megabytes to keep as SVG; a filled curve does neither.
            if len(steps) > 150:
                axes.fill_between(places, below, above, step="mid", **look)
            else:
                axes.bar(places, values, bottom=below, hatch=hatch, **look)
            below = above
        used = [step.seconds for step in measured(history)]
        if used:
            middle = statistics.median(used)
            axes.axhline(middle, color="black", linewidth=1.2, label=f"median after warm-up: {middle:.3g} s")
        if planned_seconds:
            axes.axhline(planned_seconds, color=VERMILION, linestyle="--", label=f"planned: {planned_seconds:.3g} s")
        axes.set_xlabel("iteration")
        axes.set_ylabel("step time (s)")
        axes.set_ylim(top=1.45 * max((*below, planned_seconds or 0.0, 0.0)) or 1.0)
        axes.legend(loc="upper right", ncols=3, fontsize=8)
        return figure


def goodput_figure(parts: Waterfall, title: str = "Where the wall time went") -> Any:
    """A waterfall from the wall time down to the steps that count."""
    with drawing(title) as (figure, axes):
        unit, scale = time_unit(parts.wall_seconds)
        *lost, kept = parts.parts()
        named = [*((name, seconds) for name, seconds in lost if seconds > 0), kept]
        left = parts.wall_seconds
        axes.barh(0, parts.wall_seconds / scale, color=GREY, label="all")
        for row, (_, seconds) in enumerate(named, start=1):
            last = row == len(named)
            start = 0.0 if last else left - seconds
            colour, hatch = (BLUE, "") if last else (ORANGE, "///")
            axes.barh(
                row, seconds / scale, left=start / scale, color=colour, hatch=hatch, edgecolor="black", linewidth=0.3
            )
            left -= seconds
        labels = [("wall time", parts.wall_seconds), *named]
        share = parts.wall_seconds or 1.0
        axes.set_yticks(range(len(labels)))
        axes.set_yticklabels([f"{name}: {show_duration(value)} ({value / share:.1%})" for name, value in labels])
        axes.invert_yaxis()
        axes.axvline(parts.wall_seconds / scale, color=GREEN, linestyle="-.", linewidth=1)
        axes.set_xlabel(f"time ({unit})")
        return figure


def timeline_figure(
    history: History,
    validation: Sequence[Evaluation] = (),
    events: Sequence[Mapping[str, Any]] = (),
    *,
    planned_seconds: float | None = None,
    title: str = "What happened when",
) -> Any:
    """Segments of training, waiting for data, evaluations and saves on one axis of time, and the planned end."""
    with drawing(title, height=2.6) as (figure, axes):
        steps = sorted((*history.steps, *history.repeated), key=lambda step: step.time)
        begin = steps[0].time - steps[0].seconds if steps else 0.0
        unit, scale = time_unit(steps[-1].time - begin if steps else 0.0)
        segments: dict[int, list[Step]] = {}
        for step in steps:
            segments.setdefault(step.segment, []).append(step)
        saves = [(float(event["time"]), float(event.get("seconds", 0))) for event in events_named(events, "saved")]
        rows = {
            "training": [(part[0].time - part[0].seconds, part[-1].time) for part in segments.values()],
            "waiting for data": [(step.time - step.seconds, step.time - step.seconds + step.data_wait_seconds)
                                 for step in _waiting(steps)],
            "evaluation": [(one.time - one.seconds, one.time) for one in validation],
            "saving": [(time - seconds, time) for time, seconds in saves],
        }  # fmt: skip
        for place, ((name, spans), colour) in enumerate(
            zip(rows.items(), (BLUE, ORANGE, VERMILION, GREEN), strict=True)
        ):
            bars = [((start - begin) / scale, (end - start) / scale) for start, end in spans]
            axes.broken_barh(bars, (place - 0.35, 0.7), color=colour, label=name)
        if planned_seconds:
            axes.axvline(planned_seconds / scale, color=VERMILION, linestyle="--", label="planned end")
            axes.annotate("planned end", (planned_seconds / scale, 3.4), xytext=(3, 0), textcoords="offset points",
                          fontsize=8, annotation_clip=False)  # fmt: skip
        axes.set_yticks(range(len(rows)))
        axes.set_yticklabels(list(rows))
        axes.invert_yaxis()
        axes.set_xlabel(f"time since the first step began ({unit})")
        return figure


def _some(steps: Sequence[Step]) -> Sequence[Step]:
    """Every step, or of each stretch of a long run the one that took longest."""
    stretch = -(-len(steps) // MOST_POINTS)
    if stretch <= 1:
        return steps
    parts = [steps[start : start + stretch] for start in range(0, len(steps), stretch)]
    return [max(part, key=lambda step: step.seconds) for part in parts]


def _waiting(steps: Sequence[Step]) -> Sequence[Step]:
    """The steps that waited for data; of very many the ones that waited longest."""
    waited = [step for step in steps if step.data_wait_seconds > 0]
    return sorted(waited, key=lambda step: -step.data_wait_seconds)[:MOST_POINTS]
