"""Figures of the layout: which device holds what, the order of a pipeline's work, and the learning rate."""

import itertools
from typing import Any

from runbook.plan_file.schema import PhasePlan
from runbook.planning.cost.replay import Replay, Seconds, StageTimes
from runbook.results.figures.drawing import BLUE, GREEN, GREY, ORANGE, SERIES, SKY, VERMILION, drawing
from runbook.results.figures.plan_figures import schedule_figure

MOST_COLUMNS, MOST_STAGES, MOST_STEPS = 32, 24, 400
"""What is drawn of a large layout, and the points of a curve."""


def device_figure(phase: PhasePlan, devices_per_node: int) -> Any:
    """One cell a device with its rank: stages below each other, tensor and context ranks and copies side by side.

    Ranks are counted as Megatron does: tensor first, then context, data, pipeline.
    """
    cut, colours = phase.parallel, (BLUE, GREEN, ORANGE, SKY, VERMILION, GREY)
    copy = cut.tensor * cut.context
    columns, stages = min(copy * cut.data, max(copy, MOST_COLUMNS)), min(cut.pipeline, MOST_STAGES)
    layers = cut.stage_layers(phase.model.layers)
    with drawing("Which device holds what", height=1.5 + 0.26 * stages) as (_, axes):
        for stage in range(stages):
            for column in range(columns):
                rank, colour = stage * copy * cut.data + column, colours[column // copy % len(colours)]
                axes.barh(stage, 1, 0.9, column, color=colour, edgecolor="white", alpha=0.5)
                if columns <= MOST_COLUMNS:
                    axes.text(column + 0.5, stage, str(rank), ha="center", va="center", size=6)
            if devices_per_node < columns:
                axes.vlines(range(0, columns + 1, devices_per_node), stage - 0.45, stage + 0.45, color="black", lw=0.8)
        ends = list(itertools.accumulate(layers[:stages]))
        names = [f"stage {stage}: layers {end - layers[stage] + 1}-{end}" for stage, end in enumerate(ends)]
        axes.set_yticks(range(stages), names)
        copies = range(columns // copy)
        axes.set_xticks([(place + 0.5) * copy for place in copies], [f"copy {place + 1}" for place in copies])
        axes.grid(visible=False)
        axes.set(xlim=(0, columns), ylim=(stages - 0.4, -0.6))
        rest = f" The first {columns // copy} of {cut.data:,} copies are drawn." if columns < copy * cut.data else ""
        axes.set_xlabel(
            f"Each cell is a device with its rank; {cut.tensor} tensor ranks share every layer of a stage.{rest}\n"
            + ("Lines part the nodes." if devices_per_node < columns else f"A node has {devices_per_node} devices.")
        )
    return axes.figure


def planned_pipeline_figure(phase: PhasePlan, parts: dict[str, float], seconds: float) -> Any:
    """The step as planned on the schedule of all stages, each alike; a rehearsal counts each stage for itself."""
    count, chunks = phase.batch.num_microbatches, phase.parallel.virtual_pipeline
    ends = sum(parts.get(name, 0.0) for name in ("optimizer", "data"))
    working = sum(parts.values()) - ends - sum(parts.get(name, 0.0) for name in ("bubble", "pipeline", "waiting"))
    one = working / count / chunks
    times = StageTimes(
        (Seconds(one / 3),) * chunks, (Seconds(2 * one / 3),) * chunks, Seconds(), Seconds(matrices=ends)
    )
    send = parts.get("pipeline", 0.0) / count / chunks / 2
    waiting = parts.get("waiting", 0.0) / max(1e-9, sum(parts.values()) - parts.get("waiting", 0.0))
    replay = Replay(count, send, False, waiting, seconds, parts, (times,) * phase.parallel.pipeline)
    return schedule_figure(replay, "the plan's seconds, every stage alike")


def rate_figure(phases: dict[str, PhasePlan]) -> Any:
    """The learning rate of each phase over its steps: warm-up, then its schedule."""
    with drawing("Learning rate", height=2.8) as (figure, axes):
        for (words, phase), (colour, style) in zip(phases.items(), SERIES, strict=False):
            steps = phase.duration.iterations
            drawn = sorted({max(1, round(place * steps / MOST_STEPS)) for place in range(MOST_STEPS + 1)})
            rates = [phase.learning_rate.at(phase.batch.samples_after(step)) for step in drawn]
            shares = [100 * step / steps for step in drawn]
            axes.plot(shares, rates, color=colour, linestyle=style, label=f"{words}: {steps:,} steps")
        axes.set_xlabel("steps of the phase (%)")
        axes.set_ylabel("learning rate")
        axes.set_ylim(bottom=0)
        figure.legend(loc="outside lower center", ncols=2)
    return figure
