"""Figures for a run: loss, throughput, step time, wall time, and comparisons with other results."""

import math
import statistics
from collections.abc import Mapping, Sequence
from itertools import accumulate, cycle, pairwise
from typing import Any

from runbook.core import quantities
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
from runbook.results.messages import ResultMessage
from runbook.results.metrics import find_spikes, measured, parts_of
from runbook.results.published_results import THIS_RUN
from runbook.results.wall_time import WallTime

_PARTS = {
    "computing": (SKY, ""),
    "communication": (GREEN, "..."),
    "optimizer": (BLUE, "\\\\\\"),
    "other": (GREY, ""),
    quantities.WAITING_FOR_DATA: (ORANGE, "///"),
}
"""Colour and hatch for each part of a step, from bottom to top."""
MOST_POINTS = 4000
"""Maximum number of points drawn for a curve.

More points would look the same and make the SVG huge.
"""


def _columns(points: Points) -> tuple[list[float], list[float]]:
    """Return a curve, reduced to fewer points, as a list of positions and a list of values."""
    thinned = thin(points, MOST_POINTS)
    return [x for x, _ in thinned], [y for _, y in thinned]


def _time_unit(seconds: float) -> tuple[str, float]:
    """Return the most readable unit for a duration, and its length in seconds.

    >>> _time_unit(90), _time_unit(7200), _time_unit(90_000)
    (('s', 1.0), ('min', 60.0), ('h', 3600.0))
    """
    if seconds < 300:
        return ("s", 1.0)
    if seconds < 4 * 3600:
        return ("min", 60.0)
    return ("h", 3600.0)


def _has_loss(step: Step) -> bool:
    return step.loss is not None and math.isfinite(step.loss)


def loss_figure(
    history: History,
    validation: Sequence[ValidationLoss] = (),
    *,
    vocabulary: int = 0,
    title: str = "Loss",
) -> Any:
    """Draw the training loss by iteration.

    The figure also shows restarts, evaluations, spikes, repeated steps, steps without a loss, and
    ln(vocabulary size), the loss of an untrained model.
    """
    with drawing(title) as (figure, axes):
        points = history.losses
        axes.plot(
            *_columns(points),
            color=BLUE,
            linewidth=1.2,
            marker="" if len(points) > 60 else ".",
            label="training loss",
        )
        _draw_replaced(axes, history)
        if validation:
            evaluations = [(evaluation.iteration, evaluation.loss) for evaluation in validation]
            style = {"color": VERMILION, "markersize": 4, "label": "validation loss"}
            axes.plot(*_columns(evaluations), "D--", **style)

        for number, first in enumerate(history.restarts):
            label = "restart" if number == 0 else None
            axes.axvline(
                first - 0.5,
                color=GREY,
                linestyle=":",
                label=label,
            )

        if vocabulary:
            first_loss = math.log(vocabulary)
            label = ResultMessage.FIRST_LOSS_OF_VOCABULARY.fill(
                vocabulary=vocabulary, loss=first_loss
            )
            axes.axhline(
                first_loss,
                color=GREEN,
                linestyle="-.",
                linewidth=1,
                label=label,
            )

        spikes = find_spikes(points, history.grad_norms, history.alarm_settings)
        if spikes:
            spike_points = [(spike.since, spike.value) for spike in spikes]
            axes.plot(
                *_columns(spike_points),
                "v",
                color=VERMILION,
                markersize=6,
                label="spike",
            )

        _draw_lost(axes, history)
        axes.set(xlabel="iteration", ylabel="loss (nat/token)")
        axes.legend(
            loc="upper right",
            frameon=True,
            edgecolor="none",
            framealpha=0.9,
        )
        return figure


def _draw_replaced(axes: Any, history: History) -> None:
    """Draw the losses from steps repeated after a restart."""
    points = []
    for step in history.repeated:
        if step.loss is not None:
            points.append((step.iteration, step.loss))

    if points:
        style = {"color": SKY, "markersize": 4, "label": ResultMessage.REPLACED_LOSS.fill()}
        axes.plot(*_columns(points), "x", **style)


def _draw_lost(axes: Any, history: History) -> None:
    """Mark steps without a finite loss at the bottom of the axes."""
    iterations = [step.iteration for step in history.steps if not _has_loss(step)]
    if not iterations:
        return
    stride = -(-len(iterations) // MOST_POINTS)
    iterations = iterations[::stride]
    style = {"color": ORANGE, "markersize": 4, "label": ResultMessage.NO_LOSS.fill()}
    heights = [0.02] * len(iterations)
    axes.plot(
        iterations,
        heights,
        "^",
        transform=axes.get_xaxis_transform(),
        **style,
    )


def throughput_figure(
    history: History,
    *,
    sequence_length: int,
    planned_tokens_per_second: float | None = None,
    title: str = "Throughput",
) -> Any:
    """Draw the tokens per second in every step over time, the median, and the planned rate."""

    def tokens_per_second(step: Step) -> float:
        return step.global_batch * sequence_length / step.seconds

    with drawing(title) as (figure, axes):
        timed = [step for step in history.steps if step.seconds > 0]
        begin = 0.0
        elapsed_seconds = 0.0
        if timed:
            begin = timed[0].time - timed[0].seconds
            elapsed_seconds = timed[-1].time - timed[0].time

        unit, scale = _time_unit(elapsed_seconds)
        rates = [((step.time - begin) / scale, tokens_per_second(step)) for step in timed]
        axes.plot(
            *_columns(rates),
            ".",
            color=BLUE,
            markersize=4,
            label="one step",
        )
        measured_rates = [tokens_per_second(step) for step in measured(history)]
        _levels(
            axes,
            measured_rates,
            planned_tokens_per_second,
            BLUE,
            "{:,.0f}",
        )
        for before, after in pairwise(timed):
            if after.segment != before.segment:
                resumed_at = (after.time - after.seconds - begin) / scale
                axes.axvline(resumed_at, color=GREY, linestyle=":")

        axes.set(
            xlabel=ResultMessage.ELAPSED_AXIS.fill(unit=unit),
            ylabel=quantities.THROUGHPUT,
            ylim=(0, None),
        )
        axes.legend(loc="lower right")
        return figure


def _levels(
    axes: Any,
    values: Sequence[float],
    planned: float | None,
    colour: str,
    form: str,
) -> None:
    """Draw a line at the median of the measured values and, if known, at the planned value."""
    if values:
        median = statistics.median(values)
        label = f"median after warm-up: {form.format(median)}"
        axes.axhline(
            median,
            color=colour,
            linewidth=1.2,
            label=label,
        )

    if planned:
        label = ResultMessage.PLANNED_LINE.fill(value=form.format(planned))
        axes.axhline(
            planned,
            color=VERMILION,
            linestyle="--",
            label=label,
        )


MOST_BARS = 60
"""With more steps than this, a filled curve is drawn instead of a bar for each step."""


def step_time_figure(history: History, *, planned_seconds: float | None = None) -> Any:
    """Draw the time for every step by part, with lines at the median and the planned value."""
    with drawing("Parts of a step") as (figure, axes):
        steps = _some(history.steps)
        places = [step.iteration for step in steps]
        split = [parts_of(step) for step in steps]
        below = [0.0] * len(steps)
        for name, (colour, hatch) in _PARTS.items():
            values = [parts[name] for parts in split]
            if not any(values):
                continue
            above = [low + value for low, value in zip(below, values, strict=True)]
            look: dict[str, Any] = {
                "color": colour,
                "label": name,
                "linewidth": 0.3,
                "edgecolor": "black",
            }
            # Bars for 140 steps make the SVG half a megabyte large, which is too much for a mailed
            # report. A filled curve has the same outline.
            if len(steps) > MOST_BARS:
                axes.fill_between(
                    places,
                    below,
                    above,
                    step="mid",
                    **look,
                )
            else:
                axes.bar(
                    places,
                    values,
                    bottom=below,
                    hatch=hatch,
                    **look,
                )

            below = above

        _levels(
            axes,
            [step.seconds for step in measured(history)],
            planned_seconds,
            "black",
            "{:.3g} s",
        )
        axes.set(xlabel="iteration", ylabel="step time (s)")
        axes.set_ylim(top=1.45 * max((*below, planned_seconds or 0.0, 0.0)) or 1.0)
        axes.legend(
            loc="upper right",
            ncols=3,
            fontsize=8,
        )
        return figure


def goodput_figure(account: WallTime, title: str = "Where the wall time went") -> Any:
    """Draw a waterfall chart from the wall time down to the productive time."""
    wall_seconds = account.wall_seconds
    unit, scale = _time_unit(wall_seconds)
    bars = [("wall time", 0.0, wall_seconds)]
    *losses, productive = account.parts.items()
    lost_parts = [(name, seconds) for name, seconds in losses if seconds > 0]
    seconds_so_far = 0.0
    for name, seconds in (*lost_parts, productive):
        seconds_so_far += seconds
        remaining = wall_seconds - seconds_so_far
        bars.append((name, remaining, seconds))

    labels = []
    for name, _, seconds in bars:
        labels.append(f"{name}: {show_duration(seconds)} ({seconds / (wall_seconds or 1.0):.1%})")

    scaled = [(start / scale, seconds / scale) for _, start, seconds in bars]
    return waterfall(title, labels, scaled, f"time ({unit})")


def waterfall(
    title: str,
    labels: Sequence[str],
    bars: Sequence[tuple[float, float]],
    axis: str,
) -> Any:
    """Draw one bar per row. Each bar is given as (start, length).

    All bars except the first and the last are lost time.
    """
    with drawing(title, height=max(3.4, 1.2 + 0.3 * len(bars))) as (figure, axes):
        for row, (bar_start, length) in enumerate(bars):
            style = {"color": BLUE}
            if row == 0:
                style = {"color": GREY}
            elif row < len(bars) - 1:
                style = {"color": ORANGE, "hatch": "///"}

            axes.barh(
                row,
                length,
                left=bar_start,
                edgecolor="black",
                linewidth=0.3,
                **style,
            )

        axes.set_yticks(range(len(bars)), labels=labels)
        axes.invert_yaxis()
        axes.axvline(
            bars[0][1],
            color=GREEN,
            linestyle="-.",
            linewidth=1,
        )
        axes.set_xlabel(axis)
        return figure


def timeline_figure(
    history: History,
    validation: Sequence[ValidationLoss] = (),
    events: Sequence[Event] = (),
    *,
    planned_seconds: float | None = None,
) -> Any:
    """Draw on a time axis when the run trained, waited for data, evaluated and saved.

    A line marks the planned end.
    """
    with drawing("What happened when", height=2.6) as (figure, axes):
        steps = sorted((*history.steps, *history.repeated), key=lambda step: step.time)
        begin = 0.0
        elapsed_seconds = 0.0
        if steps:
            begin = steps[0].time - steps[0].seconds
            elapsed_seconds = steps[-1].time - begin

        unit, scale = _time_unit(elapsed_seconds)
        rows = (
            ("training", BLUE, _training_spans(steps)),
            (quantities.WAITING_FOR_DATA, ORANGE, _waiting(steps)),
            ("evaluation", VERMILION, _evaluation_spans(validation)),
            ("saving", GREEN, _save_spans(events)),
        )
        for row, (name, colour, spans) in enumerate(rows):
            bars = [((start - begin) / scale, (end - start) / scale) for start, end in spans]
            axes.broken_barh(bars, (row - 0.35, 0.7), color=colour, label=name)

        if planned_seconds:
            _draw_planned_end(axes, planned_seconds / scale)
        axes.set_yticks(range(len(rows)), labels=[name for name, _, _ in rows])
        axes.invert_yaxis()
        axes.set_xlabel(ResultMessage.ELAPSED_AXIS.fill(unit=unit))
        return figure


def _draw_planned_end(axes: Any, position: float) -> None:
    axes.axvline(
        position,
        color=VERMILION,
        linestyle="--",
        label="planned end",
    )
    axes.annotate(
        "planned end",
        (position, 3.4),
        xytext=(3, 0),
        textcoords="offset points",
        fontsize=8,
        annotation_clip=False,
    )


def _training_spans(steps: Sequence[Step]) -> list[tuple[float, float]]:
    """Return the start and end of each segment."""
    segments = by_segment(steps)
    return [(segment[0].time - segment[0].seconds, segment[-1].time) for segment in segments]


def _evaluation_spans(validation: Sequence[ValidationLoss]) -> list[tuple[float, float]]:
    return [(evaluation.time - evaluation.seconds, evaluation.time) for evaluation in validation]


def _save_spans(events: Sequence[Event]) -> list[tuple[float, float]]:
    saves = events_named(events, "saved")
    return [(save.time - (save.seconds or 0.0), save.time) for save in saves]


def _some(steps: Sequence[Step]) -> list[Step]:
    """Return all steps or, for a long run, the slowest in each group of consecutive steps."""
    stretch = -(-len(steps) // MOST_POINTS) or 1
    parts = [steps[start : start + stretch] for start in range(0, len(steps), stretch)]
    return [max(part, key=lambda step: step.seconds) for part in parts]


def _waiting(steps: Sequence[Step]) -> list[tuple[float, float]]:
    """Return start and end for each wait for data, or for the longest ones if there are many."""
    waited = sorted(
        (step for step in steps if step.data_wait_seconds > 0),
        key=lambda step: -step.data_wait_seconds,
    )
    begins = ((step.time - step.seconds, step.data_wait_seconds) for step in waited[:MOST_POINTS])
    return [(begin, begin + seconds) for begin, seconds in begins]


def _row_name(row: Row) -> str:
    size = f" ({row['parameters']})" if _is_this_run(row) else ""
    return f"{row['model']}{size}\n{row['devices']} x {row['device']}, {row['precision']}"


def published_figure(table: Table) -> Any:
    """Draw the tokens per second per device for the rows of `published_table`, on a log scale."""
    column = "speed (tokens/s/device)"
    rows = [result for result in table.rows if result[column]]
    title = "Speed next to published results"
    with drawing(title, height=1.4 + 0.38 * len(rows)) as (figure, axes):
        for row_number, result in enumerate(rows):
            speed = result[column]
            _draw_marker(axes, result, speed, row_number)
            if result[quantities.MFU]:
                mfu = f", MFU {result['MFU (%)']:.1f} %"
            else:
                mfu = ""

            axes.text(
                speed * 1.3,
                row_number,
                f"{speed:,.0f}{mfu}",
                va="center",
                fontsize=8,
            )

        if rows and _is_this_run(rows[0]):
            axes.axvline(
                rows[0][column],
                color=BLUE,
                linestyle="--",
                linewidth=1,
            )

        axes.set_yticks(range(len(rows)), labels=[_row_name(result) for result in rows], fontsize=8)
        axes.set_ylim(len(rows) - 0.4, -0.6)
        axes.set_xscale("log")
        if rows:
            speeds = [result[column] for result in rows]
            axes.set_xlim(min(speeds) / 2, 30 * max(speeds))

        axes.set_xlabel(ResultMessage.PUBLISHED_AXIS.fill())
        return figure


def _draw_marker(
    axes: Any,
    row: Row,
    speed: float,
    row_number: int,
) -> None:
    """Draw this run as a diamond, and a published result as a circle (hollow if not comparable)."""
    colour = _row_colour(row)
    fill = "white" if colour == GREY else colour
    marker = "D" if _is_this_run(row) else "o"
    style = {"color": colour, "markersize": 7, "markerfacecolor": fill}
    axes.plot(speed, row_number, marker, **style)


def _is_this_run(row: Row) -> bool:
    return bool(row["model"] == THIS_RUN)


def _row_colour(row: Row) -> str:
    """Return blue for this run, green for comparable results and grey for context."""
    if _is_this_run(row):
        return BLUE
    return GREEN if row["comparable"] == "yes" else GREY


def comparison_figure(histories: Mapping[str, History], title: str = "Loss of each run") -> Any:
    """Draw the loss curves for multiple runs in one figure, by tokens seen and by training time."""
    from matplotlib.ticker import EngFormatter, MaxNLocator

    with drawing(title, panels=2) as (figure, (by_tokens, by_hours)):
        run_seconds = []
        for history in histories.values():
            run_seconds.append(sum(step.seconds for step in history.steps))

        unit, scale = _time_unit(max(run_seconds, default=0))
        for (name, history), (colour, line) in zip(histories.items(), cycle(SERIES)):
            steps = [step for step in history.steps if _has_loss(step)]
            losses = [step.loss or 0.0 for step in steps]
            tokens = [float(step.consumed_tokens) for step in steps]
            times = list(accumulate(step.seconds / scale for step in steps))
            style = {"color": colour, "linestyle": line, "label": name}
            by_tokens.plot(*_columns(list(zip(tokens, losses, strict=True))), **style)
            by_hours.plot(*_columns(list(zip(times, losses, strict=True))), **style)

        by_tokens.xaxis.set_major_locator(MaxNLocator(5))
        by_tokens.xaxis.set_major_formatter(EngFormatter())
        by_tokens.set(xlabel="tokens seen (tokens)", ylabel="loss (nat/token)")
        by_hours.set_xlabel(ResultMessage.STEP_TIME_AXIS.fill(unit=unit))
        by_hours.legend()
        return figure


def scaling_figure(table: Table) -> Any:
    """Draw the speed over the number of devices from a `scaling_table`, with the ideal line."""
    with drawing("Scaling") as (figure, axes):
        devices = [row["devices"] for row in table.rows]
        speeds = [row["speed (samples/s)"] for row in table.rows]
        axes.plot(
            devices,
            speeds,
            color=BLUE,
            marker="o",
            label="measured",
        )
        if devices:
            ideal = [speeds[0] * count / devices[0] for count in devices]
            axes.plot(
                devices,
                ideal,
                "-.",
                color=GREEN,
                label="ideal: speed proportional to the number of devices",
            )

        for row, point in zip(table.rows, zip(devices, speeds, strict=True), strict=True):
            near = {"xytext": (4, -12), "textcoords": "offset points", "fontsize": 8}
            axes.annotate(f"{row['efficiency (%)']:.1f} %", point, **near)

        axes.set(
            xlabel="devices",
            ylabel="speed (samples/s)",
            ylim=(0, None),
        )
        axes.legend()
        return figure


def mfu_figure(table: Table) -> Any:
    """Draw the MFU for each row in `published_table`, or the HFU if no MFU was published."""
    rows = [row for row in table.rows if row[quantities.MFU] or row[quantities.HFU]]
    title = "MFU next to published results"
    with drawing(title, height=1.6 + 0.38 * max(1, len(rows))) as (figure, axes):
        for row_number, row in enumerate(rows):
            _draw_share(axes, row, row_number)
        shares = []
        for row in rows:
            if _is_this_run(row):
                shares.append(row[quantities.MFU] or row[quantities.HFU])

        if shares:
            axes.axvline(
                shares[0],
                color=BLUE,
                linestyle="--",
                linewidth=1,
            )
        else:
            text = ResultMessage.RUN_WITHOUT_PEAK.fill()
            axes.text(
                0.99,
                0.02,
                text,
                ha="right",
                transform=axes.transAxes,
                fontsize=8,
            )

        axes.set_yticks(range(len(rows)), labels=[_row_name(row) for row in rows], fontsize=8)
        axes.set_ylim(max(1, len(rows)) - 0.4, -0.6)
        axes.set(
            xlim=(0, 100),
            xlabel=ResultMessage.SHARE_AXIS.fill(),
        )
        return figure


def _draw_share(axes: Any, row: Row, row_number: int) -> None:
    """Draw the MFU in a row as a bar, or the HFU as a hatched bar."""
    is_hardware = not row[quantities.MFU]
    share = row[quantities.HFU] if is_hardware else row[quantities.MFU]
    name = "HFU" if is_hardware else "MFU"
    axes.barh(
        row_number,
        share,
        color=_row_colour(row),
        hatch="///" if is_hardware else "",
        edgecolor="black",
        linewidth=0.3,
    )
    axes.text(
        share + 1,
        row_number,
        f"{share:.1f} % {name}",
        va="center",
        fontsize=8,
    )
