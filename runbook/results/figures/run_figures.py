"""Figures of a run: loss, throughput, step time, wall time, and comparisons with other runs and published results."""

import math
import statistics
from collections.abc import Mapping, Sequence
from itertools import accumulate, cycle, pairwise
from typing import Any

from runbook.core.curves import Points, thin
from runbook.core.table import Row, Table
from runbook.core.units import show_duration
from runbook.results.figures.drawing import (
    BLUE,
    GREEN,
    GREY,
    ORANGE,
    SERIES,
    SKY,
    VERMILION,
    drawing,
)
from runbook.results.history import Event, History, Step, ValidationLoss, by_segment, events_named
from runbook.results.metrics import find_spikes, measured, parts_of
from runbook.results.wall_time import WallTime

_PARTS = {
    "computing": (SKY, ""),
    "communication": (GREEN, "..."),
    "optimizer": (BLUE, "\\\\\\"),
    "other": (GREY, ""),
    "waiting for data": (ORANGE, "///"),
}
"""Colour and hatch of each part of a step, from the bottom up."""
MOST_POINTS = 4000
"""Points of one curve that are drawn: more cannot be distinguished in print, and would make a huge SVG."""


def _columns(points: Points) -> tuple[list[float], list[float]]:
    """The curve as a list of places and one of values, thinned."""
    kept = thin(points, MOST_POINTS)
    return [x for x, _ in kept], [y for _, y in kept]


def _time_unit(seconds: float) -> tuple[str, float]:
    """The unit in which so many seconds are read, and how many seconds it has.

    >>> _time_unit(90), _time_unit(7200), _time_unit(90_000)
    (('s', 1.0), ('min', 60.0), ('h', 3600.0))
    """
    if seconds < 300:
        return ("s", 1.0)
    if seconds < 4 * 3600:
        return ("min", 60.0)
    return ("h", 3600.0)


def loss_figure(
    history: History,
    validation: Sequence[ValidationLoss] = (),
    *,
    vocabulary: int = 0,
    title: str = "Loss",
) -> Any:
    """Training loss by iteration, with restarts, evaluations, spikes' repeats, and ln(vocabulary) where it began."""
    with drawing(title) as (figure, axes):
        points = history.losses
        many = len(points) > 60
        axes.plot(
            *_columns(points),
            color=BLUE,
            linewidth=1.2,
            marker="" if many else ".",
            label="training loss",
        )
        replaced = [
            (step.iteration, step.loss) for step in history.repeated if step.loss is not None
        ]
        if replaced:
            axes.plot(
                *_columns(replaced), "x", color=SKY, markersize=4, label="replaced by a restart"
            )
        if validation:
            places = [(one.iteration, one.loss) for one in validation]
            axes.plot(
                *_columns(places), "D--", color=VERMILION, markersize=4, label="validation loss"
            )
        for number, first in enumerate(history.restarts):
            axes.axvline(
                first - 0.5, color=GREY, linestyle=":", label="restart" if number == 0 else None
            )
        if vocabulary:
            start = math.log(vocabulary)
            axes.axhline(
                start,
                color=GREEN,
                linestyle="-.",
                linewidth=1,
                label=f"ln {vocabulary} = {start:.2f}",
            )
        jumps = [(spike.since, spike.value) for spike in find_spikes(points, history.grad_norms)]
        if jumps:
            axes.plot(*_columns(jumps), "v", color=VERMILION, markersize=6, label="spike")
        without = [
            step.iteration
            for step in history.steps
            if step.loss is None or not math.isfinite(step.loss)
        ]
        without = without[:: -(-len(without) // MOST_POINTS) or 1]
        if without:
            look: dict[str, Any] = {
                "color": ORANGE,
                "markersize": 4,
                "label": "no loss (skipped or NaN)",
            }
            axes.plot(
                without, [0.02] * len(without), "^", transform=axes.get_xaxis_transform(), **look
            )
        axes.set(xlabel="iteration", ylabel="loss (nat/token)")
        axes.legend(loc="upper right", frameon=True, edgecolor="none", framealpha=0.9)
        return figure


def throughput_figure(
    history: History,
    *,
    sequence_length: int,
    planned_tokens_per_second: float | None = None,
    title: str = "Throughput",
) -> Any:
    """Tokens per second of every step over time, its median, and what the plan said."""
    with drawing(title) as (figure, axes):
        timed = [step for step in history.steps if step.seconds > 0]
        unit, scale = _time_unit(timed[-1].time - timed[0].time if timed else 0)
        begin = timed[0].time - timed[0].seconds if timed else 0.0
        rates = [
            ((step.time - begin) / scale, step.global_batch * sequence_length / step.seconds)
            for step in timed
        ]
        axes.plot(*_columns(rates), ".", color=BLUE, markersize=4, label="one step")
        used = [step.global_batch * sequence_length / step.seconds for step in measured(history)]
        _levels(axes, used, planned_tokens_per_second, BLUE, "{:,.0f}")
        for before, after in pairwise(timed):
            if after.segment != before.segment:
                axes.axvline(
                    (after.time - after.seconds - begin) / scale, color=GREY, linestyle=":"
                )
        axes.set(
            xlabel=f"time since the first step began ({unit})",
            ylabel="throughput (tokens/s)",
            ylim=(0, None),
        )
        axes.legend(loc="lower right")
        return figure


def _levels(
    axes: Any, values: Sequence[float], planned: float | None, colour: str, form: str
) -> None:
    """Lines at the median of the measured values and at the plan's, as far as there are any."""
    if values:
        middle = statistics.median(values)
        axes.axhline(
            middle,
            color=colour,
            linewidth=1.2,
            label=f"median after warm-up: {form.format(middle)}",
        )
    if planned:
        axes.axhline(
            planned, color=VERMILION, linestyle="--", label=f"planned: {form.format(planned)}"
        )


def step_time_figure(history: History, *, planned_seconds: float | None = None) -> Any:
    """Seconds of every step, split into the parts the trainer tells, with the median and the plan's line."""
    with drawing("What a step is made of") as (figure, axes):
        steps = _some(history.steps)
        places = [step.iteration for step in steps]
        split = [parts_of(step) for step in steps]
        below = [0.0] * len(steps)
        for name, (colour, hatch) in _PARTS.items():
            values = [one[name] for one in split]
            if not any(values):
                continue
            above = [low + value for low, value in zip(below, values, strict=True)]
            look: dict[str, Any] = {
                "color": colour,
                "label": name,
                "linewidth": 0.3,
                "edgecolor": "black",
            }
            # Thousands of bars would take seconds to draw and megabytes to keep as SVG; a filled curve does neither.
            if len(steps) > 150:
                axes.fill_between(places, below, above, step="mid", **look)
            else:
                axes.bar(places, values, bottom=below, hatch=hatch, **look)
            below = above
        _levels(
            axes, [step.seconds for step in measured(history)], planned_seconds, "black", "{:.3g} s"
        )
        axes.set(xlabel="iteration", ylabel="step time (s)")
        axes.set_ylim(top=1.45 * max((*below, planned_seconds or 0.0, 0.0)) or 1.0)
        axes.legend(loc="upper right", ncols=3, fontsize=8)
        return figure


def goodput_figure(account: WallTime, title: str = "Where the wall time went") -> Any:
    """A waterfall from the wall time down to the steps that count."""
    unit, scale = _time_unit(account.wall_seconds)
    *lost, kept = account.parts.items()
    named = [*((name, seconds) for name, seconds in lost if seconds > 0), kept]
    whole = account.wall_seconds
    left = [whole - below for below in accumulate(seconds for _, seconds in named)]
    bars = [
        ("wall time", 0.0, whole),
        *((name, start, seconds) for (name, seconds), start in zip(named, left, strict=True)),
    ]
    labels = [
        f"{name}: {show_duration(seconds)} ({seconds / (whole or 1.0):.1%})"
        for name, _, seconds in bars
    ]
    scaled = [(start / scale, seconds / scale) for _, start, seconds in bars]
    return waterfall(title, labels, scaled, f"time ({unit})")


def waterfall(
    title: str, labels: Sequence[str], bars: Sequence[tuple[float, float]], axis: str
) -> Any:
    """Bars by their start and length, one a row; those between the first and the last are what was lost."""
    with drawing(title, height=max(3.4, 1.2 + 0.3 * len(bars))) as (figure, axes):
        for row, (left, length) in enumerate(bars):
            lost = 0 < row < len(bars) - 1
            look = {"color": ORANGE, "hatch": "///"} if lost else {"color": BLUE if row else GREY}
            axes.barh(row, length, left=left, edgecolor="black", linewidth=0.3, **look)
        axes.set_yticks(range(len(bars)), labels=labels)
        axes.invert_yaxis()
        axes.axvline(bars[0][1], color=GREEN, linestyle="-.", linewidth=1)
        axes.set_xlabel(axis)
        return figure


def timeline_figure(
    history: History,
    validation: Sequence[ValidationLoss] = (),
    events: Sequence[Event] = (),
    *,
    planned_seconds: float | None = None,
) -> Any:
    """Segments of training, waiting for data, evaluations and saves on one axis of time, and the planned end."""
    with drawing("What happened when", height=2.6) as (figure, axes):
        steps = sorted((*history.steps, *history.repeated), key=lambda step: step.time)
        begin = steps[0].time - steps[0].seconds if steps else 0.0
        unit, scale = _time_unit(steps[-1].time - begin if steps else 0.0)
        rows = {
            "training": [
                (part[0].time - part[0].seconds, part[-1].time) for part in by_segment(steps)
            ],
            "waiting for data": _waiting(steps),
            "evaluation": [(one.time - one.seconds, one.time) for one in validation],
            "saving": [
                (one.time - (one.seconds or 0.0), one.time) for one in events_named(events, "saved")
            ],
        }
        colours = (BLUE, ORANGE, VERMILION, GREEN)
        for place, ((name, spans), colour) in enumerate(zip(rows.items(), colours, strict=True)):
            bars = [((start - begin) / scale, (end - start) / scale) for start, end in spans]
            axes.broken_barh(bars, (place - 0.35, 0.7), color=colour, label=name)
        if planned_seconds:
            axes.axvline(
                planned_seconds / scale, color=VERMILION, linestyle="--", label="planned end"
            )
            axes.annotate(
                "planned end",
                (planned_seconds / scale, 3.4),
                xytext=(3, 0),
                textcoords="offset points",
                fontsize=8,
                annotation_clip=False,
            )
        axes.set_yticks(range(len(rows)), labels=list(rows))
        axes.invert_yaxis()
        axes.set_xlabel(f"time since the first step began ({unit})")
        return figure


def _some(steps: Sequence[Step]) -> list[Step]:
    """Every step, or of each stretch of a long run the one that took longest."""
    stretch = -(-len(steps) // MOST_POINTS) or 1
    parts = [steps[start : start + stretch] for start in range(0, len(steps), stretch)]
    return [max(part, key=lambda step: step.seconds) for part in parts]


def _waiting(steps: Sequence[Step]) -> list[tuple[float, float]]:
    """Begin and end of each wait for data; of very many the longest."""
    waited = sorted(
        (step for step in steps if step.data_wait_seconds > 0),
        key=lambda step: -step.data_wait_seconds,
    )
    begins = ((step.time - step.seconds, step.data_wait_seconds) for step in waited[:MOST_POINTS])
    return [(begin, begin + seconds) for begin, seconds in begins]


def _row_name(row: Row) -> str:
    size = f" ({row['parameters']})" if row["model"] == "this run" else ""
    return f"{row['model']}{size}\n{row['devices']} x {row['device']}, {row['precision']}"


def published_figure(table: Table) -> Any:
    """Tokens per second and device of this run and of the published rows of `published_table`, on a log scale."""
    column = "speed (tokens/s/device)"
    rows = [row for row in table.rows if row[column]]
    with drawing("Speed beside published results", height=1.4 + 0.38 * len(rows)) as (figure, axes):
        for place, row in enumerate(rows):
            own = row["model"] == "this run"
            same = row["comparable"] == "yes"
            if own:
                colour = BLUE
            elif same:
                colour = GREEN
            else:
                colour = GREY
            look = {
                "color": colour,
                "markersize": 7,
                "markerfacecolor": colour if own or same else "white",
            }
            axes.plot(row[column], place, "D" if own else "o", **look)
            mfu = f", MFU {row['MFU (%)']:.1f} %" if row["MFU (%)"] else ""
            axes.text(row[column] * 1.3, place, f"{row[column]:,.0f}{mfu}", va="center", fontsize=8)
        if rows and rows[0]["model"] == "this run":
            axes.axvline(rows[0][column], color=BLUE, linestyle="--", linewidth=1)
        axes.set_yticks(range(len(rows)), labels=[_row_name(row) for row in rows], fontsize=8)
        axes.set_ylim(len(rows) - 0.4, -0.6)
        axes.set_xscale("log")
        if rows:
            axes.set_xlim(
                min(row[column] for row in rows) / 2, 30 * max(row[column] for row in rows)
            )
        axes.set_xlabel("tokens per second and device (log scale); hollow: context, not comparable")
        return figure


def comparison_figure(histories: Mapping[str, History], title: str = "Loss of each run") -> Any:
    """The loss curves of several runs over each other, by tokens seen and by time trained."""
    from matplotlib.ticker import EngFormatter, MaxNLocator

    with drawing(title, panels=2) as (figure, (by_tokens, by_hours)):
        unit, scale = _time_unit(
            max((sum(step.seconds for step in one.steps) for one in histories.values()), default=0)
        )
        for (name, history), (colour, line) in zip(histories.items(), cycle(SERIES)):
            steps = [
                step for step in history.steps if step.loss is not None and math.isfinite(step.loss)
            ]
            losses = [step.loss or 0.0 for step in steps]
            tokens = [float(step.consumed_tokens) for step in steps]
            hours = accumulate(step.seconds / scale for step in steps)
            for axes, places in ((by_tokens, tokens), (by_hours, hours)):
                axes.plot(
                    *_columns(list(zip(places, losses, strict=True))),
                    color=colour,
                    linestyle=line,
                    label=name,
                )
        by_tokens.xaxis.set_major_locator(MaxNLocator(5))
        by_tokens.xaxis.set_major_formatter(EngFormatter())
        by_tokens.set(xlabel="tokens seen (tokens)", ylabel="loss (nat/token)")
        by_hours.set_xlabel(f"time in steps ({unit})")
        by_hours.legend()
        return figure


def scaling_figure(table: Table) -> Any:
    """Speed by number of devices of a `scaling_table`, with the ideal line."""
    with drawing("Scaling") as (figure, axes):
        devices = [row["devices"] for row in table.rows]
        speeds = [row["speed (samples/s)"] for row in table.rows]
        axes.plot(devices, speeds, color=BLUE, marker="o", label="measured")
        if devices:
            ideal = [speeds[0] * count / devices[0] for count in devices]
            axes.plot(
                devices,
                ideal,
                "-.",
                color=GREEN,
                label="ideal: as many times the speed as the devices",
            )
        for row, place in zip(table.rows, zip(devices, speeds, strict=True), strict=True):
            near = {"xytext": (4, -12), "textcoords": "offset points", "fontsize": 8}
            axes.annotate(f"{row['efficiency (%)']:.1f} %", place, **near)
        axes.set(xlabel="devices", ylabel="speed (samples/s)", ylim=(0, None))
        axes.legend()
        return figure


def mfu_figure(table: Table) -> Any:
    """MFU (and HFU where it is all that was published) of this run and of the rows of `published_table`."""
    rows = [row for row in table.rows if row["MFU (%)"] or row["HFU (%)"]]
    own = next((row for row in rows if row["model"] == "this run"), None)
    with drawing("MFU beside published results", height=1.6 + 0.38 * max(1, len(rows))) as (
        figure,
        axes,
    ):
        for place, row in enumerate(rows):
            share = row["MFU (%)"] or row["HFU (%)"]
            hardware = not row["MFU (%)"]
            if row is own:
                colour = BLUE
            elif row["comparable"] == "yes":
                colour = GREEN
            else:
                colour = GREY
            axes.barh(
                place,
                share,
                color=colour,
                hatch="///" if hardware else "",
                edgecolor="black",
                linewidth=0.3,
            )
            axes.text(
                share + 1,
                place,
                f"{share:.1f} % {'HFU' if hardware else 'MFU'}",
                va="center",
                fontsize=8,
            )
        if own is not None:
            axes.axvline(own["MFU (%)"] or own["HFU (%)"], color=BLUE, linestyle="--", linewidth=1)
        else:
            text = "this run: no peak is known for its device, so it has no MFU"
            axes.text(0.99, 0.02, text, ha="right", transform=axes.transAxes, fontsize=8)
        axes.set_yticks(range(len(rows)), labels=[_row_name(row) for row in rows], fontsize=8)
        axes.set_ylim(max(1, len(rows)) - 0.4, -0.6)
        axes.set(
            xlim=(0, 100),
            xlabel="share of the device's dense peak (%); hatched: HFU, recomputed work counted",
        )
        return figure
