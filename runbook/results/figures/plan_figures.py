"""Figures for the plan, a dry run and the data phase: memory, step time, schedule, layout, data."""

import itertools
from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import Any

from runbook.core.units import GIB
from runbook.plan_file.rehearsed_work import BACKWARD, FORWARD, OPTIMIZER
from runbook.plan_file.schema import PhasePlan
from runbook.planning.cost.counted_step import COMMUNICATION, Replay, Seconds, StageTimes
from runbook.planning.make_plan import Plan
from runbook.results.figures.drawing import (
    BLUE,
    GREEN,
    GREY,
    ORANGE,
    PURPLE,
    SERIES,
    SKY,
    VERMILION,
    drawing,
)
from runbook.results.messages import ResultMessage

MEMORY_PARTS = (
    ("weights", "weights", BLUE, ""),
    ("gradients", "gradients", SKY, "//"),
    ("optimizer", "optimizer states", GREEN, ".."),
    ("activations", "activations", ORANGE, "\\\\"),
    ("logits", "logits", VERMILION, "xx"),
    ("passing", "gradients in transit", GREY, "oo"),
    ("buffers", "buffers", PURPLE, "--"),
)
"""Key, label, colour and hatching of each part.

The hatching distinguishes the parts in print without colour.
"""


def memory_figure(plan: Plan, phases: Mapping[str, str]) -> Any:
    """Draw the memory per rank in the fullest stage, for each phase, and a line at the capacity."""
    with drawing("Memory of one rank of the fullest stage", height=1.2 + 0.6 * len(phases)) as (
        figure,
        axes,
    ):
        for row, (phase, name) in enumerate(phases.items()):
            memory = plan.memory[phase]
            bar_start = 0.0
            for key, part_name, colour, hatch in MEMORY_PARTS:
                width = getattr(memory.fullest_stage, key) / GIB
                label = part_name if not row else None
                axes.barh(
                    name,
                    width,
                    left=bar_start,
                    color=colour,
                    hatch=hatch,
                    edgecolor="white",
                    label=label,
                )
                bar_start += width

        limit = max(plan.memory[phase].limit_bytes for phase in phases)
        if limit and all(plan.memory[phase].limit_of == "device" for phase in phases):
            axes.axvline(
                limit / GIB,
                color=GREY,
                linestyle="--",
                label=f"a device has {limit / GIB:.0f} GiB",
            )

        axes.set_xlabel("memory (GiB)")
        axes.invert_yaxis()
        figure.legend(loc="outside lower center", ncols=3)

    return figure


def step_figure(parts: Mapping[str, float], part_names: Mapping[str, str]) -> Any:
    """Draw the parts of a step as bars labelled with their shares, longest first."""
    ordered = sorted(parts.items(), key=lambda part: -part[1])
    names = [part_names.get(name, name) for name, _ in ordered]
    seconds = [value for _, value in ordered]
    step_seconds = sum(parts.values())
    height = 1.2 + 0.3 * len(ordered)
    with drawing("Where the time of a step goes", height=height) as (figure, axes):
        bars = axes.barh(names, seconds, color=BLUE)
        axes.bar_label(bars, [f" {value / step_seconds:.1%}" for value in seconds])
        axes.axvline(step_seconds, color=GREY, linestyle="--")
        position = (step_seconds, len(ordered) - 1)
        text = f"the whole step: {step_seconds:.3g} s"
        axes.annotate(text, position, ha="right", va="center")
        axes.set_xlabel("time (s)")
        axes.invert_yaxis()

    return figure


SHOWN_SOURCES = 12


def length_figure(lengths: Sequence[int], sequence_length: int) -> Any:
    """Draw the number of documents by length in tokens, in powers of two.

    A line marks the sequence length used by the model.
    """
    with drawing("How long documents are") as (figure, axes):
        first = next((power for power, count in enumerate(lengths) if count), 0)
        places = list(range(first, len(lengths)))
        counts = [lengths[power] for power in places]
        axes.bar(
            places,
            counts,
            width=1.0,
            align="edge",
            color=BLUE,
            edgecolor="white",
        )
        ticks = range(first, len(lengths) + 1, max(1, -(-len(places) // 10)))
        axes.set_xticks(list(ticks), [f"{2**power:,}" for power in ticks])
        if sequence_length > 0:
            # Within a bar, the axis is treated as linear from one power of two to the next.
            power = sequence_length.bit_length() - 1
            position = power + (sequence_length / 2**power - 1)
            label = f"one sequence: {sequence_length:,} tokens"
            axes.axvline(
                position,
                color=VERMILION,
                linestyle="--",
                label=label,
            )
            figure.legend(loc="outside lower center")

        axes.set(
            xlabel=(
                "tokens per document; each bar covers up to twice the length of the previous bar"
            ),
            ylabel="documents",
        )

    return figure


def source_figure(tokens: Mapping[str, int]) -> Any:
    """Draw the number of tokens from each source, largest first.

    A line marks how many tokens each source would have if all sources were equally large.
    """
    ordered = sorted(tokens.items(), key=lambda source: -source[1])
    drawn = ordered[:SHOWN_SOURCES]
    other_tokens = sum(count for _, count in ordered[SHOWN_SOURCES:])
    if other_tokens:
        drawn.append((f"{len(ordered) - SHOWN_SOURCES} more", other_tokens))
    all_tokens = sum(tokens.values()) or 1
    names = [name for name, _ in drawn]
    millions = [count / 1e6 for _, count in drawn]
    with drawing("Tokens per source", height=1.5 + 0.3 * len(drawn)) as (figure, axes):
        bars = axes.barh(names, millions, color=GREEN)
        axes.bar_label(
            bars,
            [f"{count / all_tokens:.1%}" for _, count in drawn],
            padding=4,
            bbox={"facecolor": "white", "edgecolor": "none", "pad": 1},
        )
        equal_share = all_tokens / len(ordered) / 1e6
        axes.axvline(
            equal_share,
            color=VERMILION,
            linestyle="--",
            label=f"equal shares: {equal_share:.2f} million",
        )
        figure.legend(loc="outside lower center")
        axes.margins(x=0.12)
        axes.set_xlabel("tokens (millions)")
        axes.invert_yaxis()

    return figure


_STATES = (("weights", BLUE), ("gradients", SKY), ("optimizer", GREEN))
_COLOURS = {
    FORWARD: (BLUE, SKY),
    BACKWARD: (GREEN, "#7CCDB2"),
    COMMUNICATION: (ORANGE,) * 2,
    OPTIMIZER: (GREY,) * 2,
}
"""Colours by type of event.

Forward and backward passes alternate between two colours each, to distinguish neighbours.
"""
WINDOW = 1.5
"""For a long step, only this much is drawn at the beginning and at the end, in passes through all
stages.
"""
FEWEST = 5
MOST_SHAPES = 4000
"""If a figure has more shapes than this, dots are drawn instead, to keep the SVG from growing to
several megabytes.
"""


def memory_course_figure(stages: Sequence[Any], limit_bytes: int) -> Any:
    """Draw the memory used by stages (`Stage` as JSON) over one step: states, then activations."""
    with drawing("Memory over one step", height=3.8, panels=2) as (figure, panels):
        for axes, stage in zip(panels, stages, strict=False):
            _draw_memory_course(axes, stage)
            planned_peak = stage["planned_bytes"] / GIB
            axes.axhline(
                planned_peak,
                color=VERMILION,
                linestyle="--",
                label="planned peak",
            )
            if limit_bytes:
                limit = limit_bytes / GIB
                axes.axhline(
                    limit,
                    color=GREY,
                    linestyle="-.",
                    label="device limit",
                )

            _mark_optimizer(axes, stage["timeline"])
            peak = stage["peak_bytes"] / GIB
            title = f"stage {stage['stage']}: {peak:.1f} GiB in {stage['peak_moment']}"
            axes.set_title(title, fontsize=9)
            axes.set(
                xlim=(0, 100),
                xlabel=f"allocations of a step of {stage['microbatches']} micro-batches (%)",
            )

        panels[0].set(ylabel="memory (GiB)", ylim=(0, None))
        for unused in panels[len(stages) :]:
            unused.set_visible(False)
        figure.legend(*panels[0].get_legend_handles_labels(), loc="outside lower center", ncols=3)

    return figure


def _draw_memory_course(axes: Any, stage: Any) -> None:
    """Draw the states on a stage as a stack, with activations on top."""
    sizes = [size / GIB for _, size in stage["timeline"]]
    positions = [100 * index / max(1, len(sizes) - 1) for index in range(len(sizes))]
    below = [0.0] * len(sizes)
    for part, colour in _STATES:
        part_size = stage["parts"].get(part, 0) / GIB
        above = [min(size, low + part_size) for low, size in zip(below, sizes, strict=True)]
        axes.fill_between(
            positions,
            below,
            above,
            color=colour,
            label=part,
            linewidth=0,
        )
        below = above

    axes.fill_between(
        positions,
        below,
        sizes,
        color=ORANGE,
        label="activations",
        linewidth=0,
    )
    axes.plot(positions, sizes, color="black", linewidth=0.8)


def _mark_optimizer(axes: Any, timeline: Sequence[Any]) -> None:
    """Mark where the optimizer starts on the axis, which is in % of the allocations."""
    num_before = sum(moment != OPTIMIZER for moment, _ in timeline)
    position = num_before * 100 / max(1, len(timeline))
    axes.axvline(
        position,
        color="black",
        linestyle=":",
        linewidth=0.8,
    )
    axes.annotate(
        "optimizer begins ",
        (position, 0.5),
        xycoords=("data", "axes fraction"),
        ha="right",
        size=7,
    )


def schedule_figure(replay: Replay, source: str = "") -> Any:
    """Draw what each stage does over time; for a long step, only the beginning and the end.

    `source` says where the times come from if they do not come from the replay.
    """
    stages = len(replay.stages)
    windows = _schedule_windows(replay)
    title = f"What each of {stages} stages does in a step"
    height = 1.7 + 0.24 * stages
    with drawing(title, height, panels=len(windows)) as (figure, _):
        figure.set_figwidth(7.2 if len(windows) == 1 else 11)
        lines: list[Any] = []
        for axes, window in zip(figure.axes, windows, strict=True):
            _draw_events(axes, replay, window)
            if not source:
                planned_end = replay.planned_seconds / (1 + replay.waiting_share)
                style = {"color": VERMILION, "linestyle": "--", "label": "planned end"}
                lines = [axes.axvline(planned_end, **style)]

            axes.set(xlim=window, xlabel="time since the step began (s)")
            axes.set(ylim=(stages - 0.4, -0.6), yticks=range(stages))
            axes.grid(visible=False)

        figure.axes[0].set_ylabel("stage")
        handles = [*lines, *_kind_handles()]
        text = f"{replay.microbatches} micro-batches; {source or replay.text}"
        figure.legend(
            handles=handles,
            loc="outside lower center",
            ncols=6,
            title=text,
        )

    return figure


def _schedule_windows(replay: Replay) -> list[tuple[float, float]]:
    """Return start and end, in seconds, for each part of the step to draw."""
    first = replay.stages[0]
    step_seconds = max(event.end for event in replay.events)
    chunks = len(first.forward)
    microbatch_seconds = sum(chunk.whole() for chunk in (*first.forward, *first.backward))
    num_microbatches = max(FEWEST, WINDOW / min(chunks, 2) * len(replay.stages))
    window_seconds = microbatch_seconds * num_microbatches
    if step_seconds < 2 * window_seconds:
        return [(0.0, step_seconds)]
    return [(0.0, window_seconds), (step_seconds - window_seconds, step_seconds)]


def _draw_events(axes: Any, replay: Replay, window: tuple[float, float]) -> None:
    """Draw the events that fall into a window, each as a bar."""
    begin, end = window
    chunks = len(replay.stages[0].forward)
    bars: defaultdict[tuple[str, int, int], list[tuple[float, float]]] = defaultdict(list)
    for event in replay.events:
        if event.end > begin and event.start < end:
            neighbour = event.microbatch if chunks == 1 else event.chunk
            span = (event.start, event.end - event.start)
            bars[event.kind, neighbour % 2, event.stage].append(span)

    num_shapes = sum(map(len, bars.values()))
    for (kind, parity, stage), spans in bars.items():
        axes.broken_barh(
            spans,
            (stage - 0.42, 0.84),
            color=_COLOURS[kind][parity],
            linewidth=0,
            rasterized=num_shapes > MOST_SHAPES,
        )


def _kind_handles() -> list[Any]:
    """Return the legend entries for the event types."""
    from matplotlib.patches import Patch

    handles = [Patch(color=colours[0], label=kind) for kind, colours in _COLOURS.items()]
    handles.append(
        Patch(
            facecolor="white",
            edgecolor=GREY,
            label="waiting",
        )
    )
    return handles


MOST_COLUMNS = 32
MOST_STAGES = 24
MOST_STEPS = 400
"""Maximum number of devices in a layout, or points on a curve, that are drawn."""


def device_figure(phase: PhasePlan, devices_per_node: int) -> Any:
    """Draw a cell for each device, with the rank in it.

    Stages are stacked vertically; tensor ranks, context ranks and replicas are side by side. Ranks
    are numbered as in Megatron: first along the tensor dimension, then context, data and pipeline.
    """
    cut = phase.parallel
    colours = (BLUE, GREEN, ORANGE, SKY, VERMILION, GREY)
    copy = cut.tensor * cut.context
    columns = min(copy * cut.data, max(copy, MOST_COLUMNS))
    stages = min(cut.pipeline, MOST_STAGES)
    layers = cut.stage_layers(phase.model.shape.layers)
    with drawing("Which device holds what", height=1.5 + 0.26 * stages) as (_, axes):
        for stage in range(stages):
            for column in range(columns):
                rank = stage * copy * cut.data + column
                colour = colours[column // copy % len(colours)]
                axes.barh(
                    stage,
                    1,
                    0.9,
                    column,
                    color=colour,
                    edgecolor="white",
                    alpha=0.5,
                )
                if columns <= MOST_COLUMNS:
                    axes.text(
                        column + 0.5,
                        stage,
                        str(rank),
                        ha="center",
                        va="center",
                        size=6,
                    )

            if devices_per_node < columns:
                axes.vlines(
                    range(0, columns + 1, devices_per_node),
                    stage - 0.45,
                    stage + 0.45,
                    color="black",
                    lw=0.8,
                )

        ends = list(itertools.accumulate(layers[:stages]))
        names = []
        for stage, end in enumerate(ends):
            first = end - layers[stage] + 1
            name = ResultMessage.LAYERS_OF_STAGE.fill(stage=stage, first=first, last=end)
            names.append(name)

        axes.set_yticks(range(stages), names)
        copies = range(columns // copy)
        axes.set_xticks(
            [(replica + 0.5) * copy for replica in copies],
            [f"replica {replica + 1}" for replica in copies],
        )
        axes.grid(visible=False)
        axes.set(xlim=(0, columns), ylim=(stages - 0.4, -0.6))
        if columns < copy * cut.data:
            drawn = " " + ResultMessage.FIRST_COPIES_DRAWN.fill(
                drawn=columns // copy, replicas=cut.data
            )
        else:
            drawn = ""

        if devices_per_node < columns:
            nodes = "Lines separate the nodes."
        else:
            nodes = f"A node has {devices_per_node} devices."

        tensor_ranks = ""
        if cut.tensor > 1:
            tensor_ranks = f"; {cut.tensor} tensor ranks share every layer of a stage"
        axes.set_xlabel(f"Each cell is a device with its rank{tensor_ranks}.{drawn}\n{nodes}")

    return axes.figure


def planned_pipeline_figure(phase: PhasePlan, parts: dict[str, float], seconds: float) -> Any:
    """Draw the planned step as a schedule for all stages, as if all stages had equal work.

    `parts` are the planned seconds for each part of the step. A dry run, by contrast, counts each
    stage separately.
    """
    num_microbatches = phase.batch.num_microbatches
    chunks = phase.parallel.virtual_pipeline
    step_seconds = sum(parts.values())
    end_seconds = sum(parts.get(name, 0.0) for name in ("optimizer", "data"))
    idle_seconds = sum(parts.get(name, 0.0) for name in ("bubble", "pipeline", "waiting"))
    working_seconds = step_seconds - end_seconds - idle_seconds
    chunk_seconds = working_seconds / num_microbatches / chunks
    # A backward pass has twice as many operations as a forward pass.
    stage_times = StageTimes(
        (Seconds(chunk_seconds / 3),) * chunks,
        (Seconds(2 * chunk_seconds / 3),) * chunks,
        Seconds(),
        Seconds(matrices=end_seconds),
    )
    # For each chunk, a micro-batch is sent once forward and once backward.
    send_seconds = parts.get("pipeline", 0.0) / num_microbatches / chunks / 2
    waiting_seconds = parts.get("waiting", 0.0)
    waiting_share = waiting_seconds / max(1e-9, step_seconds - waiting_seconds)
    replay = Replay(
        num_microbatches,
        send_seconds,
        False,
        waiting_share,
        seconds,
        parts,
        (stage_times,) * phase.parallel.pipeline,
    )
    return schedule_figure(replay, ResultMessage.PLANNED_SECONDS.fill())


def rate_figure(phases: dict[str, PhasePlan]) -> Any:
    """Draw the learning rate over the steps in each phase, including the warm-up."""
    with drawing("Learning rate", height=2.8) as (figure, axes):
        for (name, phase), (colour, line) in zip(phases.items(), SERIES, strict=False):
            num_steps = phase.duration.iterations
            points = range(MOST_STEPS + 1)
            steps = sorted({max(1, round(point * num_steps / MOST_STEPS)) for point in points})
            rates = [phase.learning_rate.at(phase.batch.samples_after(step)) for step in steps]
            shares = [100 * step / num_steps for step in steps]
            label = f"{name}: {num_steps:,} steps"
            axes.plot(
                shares,
                rates,
                color=colour,
                linestyle=line,
                label=label,
            )

        axes.set(
            xlabel="steps of the phase (%)",
            ylabel="learning rate",
            ylim=(0, None),
        )
        figure.legend(loc="outside lower center", ncols=2)

    return figure
