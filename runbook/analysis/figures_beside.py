"""Figures that set a run beside others: published speeds and MFU, other runs' curves, other numbers of devices."""

from __future__ import annotations

import math
from collections.abc import Mapping
from itertools import accumulate
from typing import Any

from runbook.analysis.drawing import BLUE, GREEN, GREY, SERIES, STYLE, columns, drawing, thin, time_unit
from runbook.analysis.history import History
from runbook.analysis.table import Table


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
    from matplotlib.ticker import EngFormatter, MaxNLocator

    with mpl.rc_context(STYLE):
        figure = Figure(figsize=(7.2, 3.4), layout="constrained")
        FigureCanvasAgg(figure)
        figure.suptitle(title, x=0.01, ha="left", fontweight="bold")
        by_tokens, by_hours = figure.subplots(1, 2, sharey=True)
        unit, scale = time_unit(max((sum(step.seconds for step in one.steps) for one in histories.values()), default=0))
        for place, (name, history) in enumerate(histories.items()):
            steps = [step for step in history.steps if step.loss is not None and math.isfinite(step.loss)]
            hours = list(accumulate(step.seconds / scale for step in steps))
            colour, line = SERIES[place % len(SERIES)]
            losses = [step.loss or 0.0 for step in steps]
            tokens = [float(step.consumed_tokens) for step in steps]
            for axes, places in ((by_tokens, tokens), (by_hours, hours)):
                curve = thin(list(zip(places, losses, strict=True)))
                axes.plot(*columns(curve), color=colour, linestyle=line, label=name)
        by_tokens.xaxis.set_major_locator(MaxNLocator(5))
        by_tokens.xaxis.set_major_formatter(EngFormatter())
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


def mfu_figure(table: Table, title: str = "MFU beside published results") -> Any:
    """MFU (and HFU where it is all that was published) of this run and of the rows of `published_table`."""
    rows = [row for row in table.rows if row["MFU (%)"] or row["HFU (%)"]]
    own = next((row for row in rows if row["model"] == "this run"), None)
    with drawing(title, height=1.6 + 0.38 * max(1, len(rows))) as (figure, axes):
        for place, row in enumerate(rows):
            mine, share = row is own, row["MFU (%)"] or row["HFU (%)"]
            hardware = not row["MFU (%)"]
            colour = BLUE if mine else GREEN if row["comparable"] == "yes" else GREY
            axes.barh(place, share, color=colour, hatch="///" if hardware else "", edgecolor="black", linewidth=0.3)
            text = f"{share:.1f} % {'HFU' if hardware else 'MFU'}"
            axes.text(share + 1, place, text, va="center", fontsize=8)
        if own is not None:
            axes.axvline(own["MFU (%)"] or own["HFU (%)"], color=BLUE, linestyle="--", linewidth=1)
        else:
            axes.text(0.99, 0.02, "this run: no peak is known for its device, so it has no MFU", ha="right",
                      transform=axes.transAxes, fontsize=8)  # fmt: skip
        axes.set_yticks(range(len(rows)))
        axes.set_yticklabels([_row_name(row) for row in rows], fontsize=8)
        axes.set_ylim(max(1, len(rows)) - 0.4, -0.6)
        axes.set_xlim(0, 100)
        axes.set_xlabel("share of the device's dense peak (%); hatched: HFU, recomputed work counted")
        return figure
