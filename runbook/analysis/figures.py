"""The figures of a run, one function each: units on every axis, a reference line, colours that survive print."""

from __future__ import annotations

import io
import math
import statistics
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import accumulate, pairwise
from pathlib import Path
from typing import Any

from runbook.analysis.history import Evaluation, History, Step, events_named
from runbook.analysis.metrics import Goodput, measured
from runbook.analysis.table import Table
from runbook.units import show_duration

# Okabe and Ito's palette: told apart under all common colour blindness; line style or marker tells them apart in print.
BLUE, ORANGE, GREEN, VERMILION, SKY, GREY = "#0072B2", "#E69F00", "#009E73", "#D55E00", "#56B4E9", "#666666"
_SERIES = ((BLUE, "-"), (VERMILION, "--"), (GREEN, "-."), (ORANGE, ":"), (SKY, "-"), (GREY, "--"))
_STYLE: Any = {
    "font.size": 9,
    "axes.grid": True,
    "axes.axisbelow": True,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "grid.color": "#dddddd",
    "grid.linewidth": 0.6,
    "legend.frameon": False,
    "figure.dpi": 100,
    "svg.hashsalt": "runbook",
}


@dataclass(frozen=True)
class Svg:
    """SVG text that a notebook shows as a picture."""

    text: str

    def _repr_svg_(self) -> str:
        return self.text


def as_svg(figure: Any) -> Svg:
    """The figure as SVG for a notebook; the same figure gives the same text."""
    import matplotlib as mpl

    out = io.StringIO()
    with mpl.rc_context(_STYLE):
        figure.savefig(out, format="svg", metadata={"Date": None})
    return Svg(out.getvalue())


def save(figure: Any, path: Path) -> None:
    """Write the figure in the format its name ends with (.svg, .png, .pdf)."""
    import matplotlib as mpl

    with mpl.rc_context(_STYLE):
        figure.savefig(path, metadata={"Date": None} if path.suffix == ".svg" else None, dpi=150)


@contextmanager
def drawing(title: str, height: float = 3.4) -> Iterator[tuple[Any, Any]]:
    """A figure with one axes, in our style, without touching pyplot or the caller's settings."""
    import matplotlib as mpl
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    with mpl.rc_context(_STYLE):
        figure = Figure(figsize=(7.2, height), layout="constrained")
        FigureCanvasAgg(figure)
        axes = figure.add_subplot()
        axes.set_title(title, loc="left", fontweight="bold")
        yield figure, axes


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
        axes.plot(*_columns(points), color=BLUE, linewidth=1.2, marker="" if many else ".", label="training loss")
        replaced = [(step.iteration, step.loss) for step in history.repeated if step.loss is not None]
        if replaced:
            axes.plot(
                *_columns(replaced), color=SKY, linestyle="", marker="x", markersize=4, label="replaced by a restart"
            )
        if validation:
            places = [(one.iteration, one.loss) for one in validation]
            axes.plot(
                *_columns(places), color=VERMILION, linestyle="--", marker="D", markersize=4, label="validation loss"
            )
        for number, first in enumerate(history.restarts):
            axes.axvline(first - 0.5, color=GREY, linestyle=":", label="restart" if number == 0 else None)
        if padded_vocabulary:
            start = math.log(padded_vocabulary)
            axes.axhline(start, color=GREEN, linestyle="-.", linewidth=1, label=f"ln {padded_vocabulary} = {start:.2f}")
        without = [step.iteration for step in history.steps if step.loss is None or not math.isfinite(step.loss)]
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
        unit, scale = _time_unit(timed[-1].time - timed[0].time if timed else 0)
        begin = timed[0].time - timed[0].seconds if timed else 0.0
        rates = [((step.time - begin) / scale, step.global_batch * sequence_length / step.seconds) for step in timed]
        axes.plot(*_columns(rates), color=BLUE, linestyle="", marker=".", markersize=4, label="one step")
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
    """Seconds of every step, split into waiting for data and the rest, with the plan's line."""
    with drawing(title) as (figure, axes):
        steps: Sequence[Step] = history.steps
        places = [step.iteration for step in steps]
        wait = [step.data_wait_seconds for step in steps]
        work = [max(0.0, step.seconds - step.data_wait_seconds) for step in steps]
        whole = [first + second for first, second in zip(work, wait, strict=True)]
        # Thousands of single bars would take seconds to draw and megabytes to keep as SVG; a filled curve does neither.
        waiting: dict[str, Any] = {"color": ORANGE, "label": "waiting for data", "linewidth": 0.3, "edgecolor": "black"}
        working: dict[str, Any] = {
            "color": SKY,
            "label": "computing, communicating",
            "linewidth": 0.3,
            "edgecolor": BLUE,
        }
        if len(steps) > 150:
            axes.fill_between(places, work, step="mid", **working)
            axes.fill_between(places, work, whole, step="mid", **waiting)
        else:
            axes.bar(places, work, **working)
            axes.bar(places, wait, bottom=work, hatch="///", **waiting)
        used = [step.seconds for step in measured(history)]
        if used:
            middle = statistics.median(used)
            axes.axhline(middle, color=BLUE, linewidth=1.2, label=f"median after warm-up: {middle:.3g} s")
        if planned_seconds:
            axes.axhline(planned_seconds, color=VERMILION, linestyle="--", label=f"planned: {planned_seconds:.3g} s")
        axes.set_xlabel("iteration")
        axes.set_ylabel("step time (s)")
        axes.set_ylim(top=1.35 * max((step.seconds for step in steps), default=1.0))
        axes.legend(loc="upper right", ncols=2)
        return figure


def goodput_figure(parts: Goodput, title: str = "Where the wall time went") -> Any:
    """A waterfall from the wall time down to the steps that count."""
    with drawing(title) as (figure, axes):
        unit, scale = _time_unit(parts.wall_seconds)
        named = [(name, seconds) for name, seconds in parts.parts() if seconds > 0 or name == "training"]
        left = parts.wall_seconds
        axes.barh(0, parts.wall_seconds / scale, color=GREY, label="all")
        for row, (name, seconds) in enumerate(named, start=1):
            last = name == "training"
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
    title: str = "What happened when",
) -> Any:
    """Segments of training, waiting for data, evaluations and saves on one axis of time."""
    with drawing(title, height=2.6) as (figure, axes):
        steps = sorted((*history.steps, *history.repeated), key=lambda step: step.time)
        begin = steps[0].time - steps[0].seconds if steps else 0.0
        unit, scale = _time_unit(steps[-1].time - begin if steps else 0.0)
        segments: dict[int, list[Step]] = {}
        for step in steps:
            segments.setdefault(step.segment, []).append(step)
        saves = [(float(event["time"]), float(event.get("seconds", 0))) for event in events_named(events, "saved")]
        rows = {
            "training": [(part[0].time - part[0].seconds, part[-1].time) for part in segments.values()],
            "waiting for data": [(step.time - step.seconds, step.time - step.seconds + step.data_wait_seconds)
                                 for step in steps if step.data_wait_seconds > 0],
            "evaluation": [(one.time - one.seconds, one.time) for one in validation],
            "saving": [(time - seconds, time) for time, seconds in saves],
        }  # fmt: skip
        for place, ((name, spans), colour) in enumerate(
            zip(rows.items(), (BLUE, ORANGE, VERMILION, GREEN), strict=True)
        ):
            bars = [((start - begin) / scale, (end - start) / scale) for start, end in spans]
            axes.broken_barh(bars, (place - 0.35, 0.7), color=colour, label=name)
        axes.set_yticks(range(len(rows)))
        axes.set_yticklabels(list(rows))
        axes.invert_yaxis()
        axes.set_xlabel(f"time since the first step began ({unit})")
        return figure


def published_figure(table: Table, title: str = "Speed beside published results") -> Any:
    """Tokens per second and device of this run and of the published rows of `published_table`, on a log scale."""
    column = "speed (tokens/s/device)"
    rows = [row for row in table.rows if row[column]]
    with drawing(title, height=1.4 + 0.38 * len(rows)) as (figure, axes):
        for place, row in enumerate(rows):
            own, same = row["model"] == "this run", row["comparable"] == "yes"
            colour = BLUE if own else GREEN if same else GREY
            axes.plot(
                row[column], place, marker="D" if own else "o", color=colour, linestyle="", markersize=7,
                markerfacecolor=colour if own or same else "white",
            )  # fmt: skip
            mfu = f", MFU {row['MFU (%)']:.1f} %" if row["MFU (%)"] else ""
            axes.text(row[column] * 1.3, place, f"{row[column]:,.0f}{mfu}", va="center", fontsize=8)
        if rows and rows[0]["model"] == "this run":
            axes.axvline(rows[0][column], color=BLUE, linestyle="--", linewidth=1)
        axes.set_yticks(range(len(rows)))
        axes.set_yticklabels([_row_name(row) for row in rows], fontsize=8)
        axes.set_ylim(len(rows) - 0.4, -0.6)
        axes.set_xscale("log")
        if rows:
            axes.set_xlim(min(row[column] for row in rows) / 2, 30 * max(row[column] for row in rows))
        axes.set_xlabel("tokens per second and device (log scale); hollow: context, not comparable")
        return figure


def comparison_figure(histories: Mapping[str, History], title: str = "Loss of each run") -> Any:
    """The loss curves of several runs over each other, by tokens seen and by time trained."""
    import matplotlib as mpl
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    with mpl.rc_context(_STYLE):
        figure = Figure(figsize=(7.2, 3.4), layout="constrained")
        FigureCanvasAgg(figure)
        figure.suptitle(title, x=0.01, ha="left", fontweight="bold")
        by_tokens, by_hours = figure.subplots(1, 2, sharey=True)
        unit, scale = _time_unit(
            max((sum(step.seconds for step in one.steps) for one in histories.values()), default=0)
        )
        for place, (name, history) in enumerate(histories.items()):
            steps = [step for step in history.steps if step.loss is not None and math.isfinite(step.loss)]
            hours = list(accumulate(step.seconds / scale for step in steps))
            colour, line = _SERIES[place % len(_SERIES)]
            losses = [step.loss for step in steps]
            by_tokens.plot([step.consumed_tokens for step in steps], losses, color=colour, linestyle=line, label=name)
            by_hours.plot(hours, losses, color=colour, linestyle=line, label=name)
        by_tokens.set_xlabel("tokens seen (tokens)")
        by_tokens.set_ylabel("loss (nat/token)")
        by_hours.set_xlabel(f"time in steps ({unit})")
        by_hours.legend()
        return figure


def scaling_figure(table: Table, title: str = "Scaling") -> Any:
    """Speed by number of devices of a `scaling_table`, with the ideal line."""
    with drawing(title) as (figure, axes):
        devices = [row["devices"] for row in table.rows]
        speeds = [row["speed (samples/s)"] for row in table.rows]
        axes.plot(devices, speeds, color=BLUE, marker="o", label="measured")
        if devices:
            ideal = [speeds[0] * count / devices[0] for count in devices]
            axes.plot(
                devices, ideal, color=GREEN, linestyle="-.", label="ideal: as many times the speed as the devices"
            )
        for row in table.rows:
            axes.annotate(
                f"{row['efficiency (%)']:.1f} %", (row["devices"], row["speed (samples/s)"]), xytext=(4, -12),
                textcoords="offset points", fontsize=8,
            )  # fmt: skip
        axes.set_ylim(bottom=0)
        axes.set_xlabel("devices")
        axes.set_ylabel("speed (samples/s)")
        axes.legend()
        return figure


def _row_name(row: dict[str, Any]) -> str:
    size = f" ({row['parameters']})" if row["model"] == "this run" else ""
    return f"{row['model']}{size}\n{row['devices']} x {row['device']}, {row['precision']}"


def _columns(points: Sequence[tuple[float, float]]) -> tuple[list[float], list[float]]:
    return [x for x, _ in points], [y for _, y in points]


def _time_unit(seconds: float) -> tuple[str, float]:
    return ("s", 1.0) if seconds < 300 else ("min", 60.0) if seconds < 4 * 3600 else ("h", 3600.0)
