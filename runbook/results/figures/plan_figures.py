"""Figures of the plan, a rehearsal and the data phase: memory, step time, schedule, layout, documents, sources."""

import itertools
from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import Any

from runbook.plan_file.rehearsed_work import BACKWARD, FORWARD, OPTIMIZER
from runbook.plan_file.schema import PhasePlan
from runbook.planning.cost.replay import COMMUNICATION, Replay, Seconds, StageTimes
from runbook.planning.plan import Plan
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

GIB = 2**30
MEMORY_PARTS = (
    ("weights", "weights", BLUE, ""),
    ("gradients", "gradients", SKY, "//"),
    ("optimizer", "optimizer states", GREEN, ".."),
    ("activations", "activations", ORANGE, "\\\\"),
    ("logits", "logits", VERMILION, "xx"),
    ("passing", "gradients on their way", GREY, "oo"),
)
"""Key, words, colour and hatching: the parts are told apart in print and without colour too."""


def memory_figure(plan: Plan, phases: Mapping[str, str]) -> Any:
    """Bars of what fills one rank of the fullest stage of each phase, and the line of what there is."""
    with drawing("Memory of one rank of the fullest stage", height=1.2 + 0.6 * len(phases)) as (
        figure,
        axes,
    ):
        for place, (phase, words) in enumerate(phases.items()):
            memory = plan.memory[phase]
            left = 0.0
            for key, name, colour, hatch in MEMORY_PARTS:
                width = getattr(memory.fullest_stage, key) / GIB
                label = name if not place else None
                axes.barh(
                    words,
                    width,
                    left=left,
                    color=colour,
                    hatch=hatch,
                    edgecolor="white",
                    label=label,
                )
                left += width
        limit = max(plan.memory[phase].limit_bytes for phase in phases)
        if limit and all(plan.memory[phase].limit_of == "device" for phase in phases):
            axes.axvline(
                limit / GIB, color=GREY, linestyle="--", label=f"a device has {limit / GIB:.0f} GiB"
            )
        axes.set_xlabel("memory (GiB)")
        axes.invert_yaxis()
        figure.legend(loc="outside lower center", ncols=3)
    return figure


def step_figure(parts: Mapping[str, float], words: Mapping[str, str]) -> Any:
    """Bars of the parts of one step, longest first; their shares stand beside them."""
    ordered = sorted(parts.items(), key=lambda one: -one[1])
    whole = sum(parts.values())
    with drawing("Where the time of a step goes", height=1.2 + 0.3 * len(ordered)) as (
        figure,
        axes,
    ):
        bars = axes.barh(
            [words.get(name, name) for name, _ in ordered],
            [value for _, value in ordered],
            color=BLUE,
        )
        axes.bar_label(bars, [f" {value / whole:.1%}" for _, value in ordered])
        axes.axvline(whole, color=GREY, linestyle="--")
        axes.annotate(
            f"the whole step: {whole:.3g} s", (whole, len(ordered) - 1), ha="right", va="center"
        )
        axes.set_xlabel("time (s)")
        axes.invert_yaxis()
    return figure


SHOWN_SOURCES = 12


def length_figure(lengths: Sequence[int], sequence_length: int) -> Any:
    """Documents by their tokens, in steps of two; the line is the model's sequence length."""
    with drawing("How long documents are") as (figure, axes):
        first = next((place for place, count in enumerate(lengths) if count), 0)
        shown = list(range(first, len(lengths)))
        axes.bar(
            shown,
            [lengths[place] for place in shown],
            width=1.0,
            align="edge",
            color=BLUE,
            edgecolor="white",
        )
        ticks = range(first, len(lengths) + 1, max(1, -(-len(shown) // 10)))
        axes.set_xticks(list(ticks), [f"{2**place:,}" for place in ticks])
        if sequence_length > 0:
            place = (
                sequence_length.bit_length()
                - 1
                + (sequence_length / 2 ** (sequence_length.bit_length() - 1) - 1)
            )
            axes.axvline(
                place,
                color=VERMILION,
                linestyle="--",
                label=f"one sequence: {sequence_length:,} tokens",
            )
            figure.legend(loc="outside lower center")
        axes.set(
            xlabel="tokens in the document, each bar up to twice the one before", ylabel="documents"
        )
    return figure


def source_figure(tokens: Mapping[str, int]) -> Any:
    """Tokens of each source, largest first; the line is what each would have were they equal."""
    ordered = sorted(tokens.items(), key=lambda one: -one[1])
    rest = sum(count for _, count in ordered[SHOWN_SOURCES:])
    shown = ordered[:SHOWN_SOURCES] + (
        [(f"{len(ordered) - SHOWN_SOURCES} more", rest)] if rest else []
    )
    whole = sum(tokens.values()) or 1
    with drawing("Tokens of each source", height=1.2 + 0.3 * len(shown)) as (figure, axes):
        bars = axes.barh(
            [name for name, _ in shown], [count / 1e6 for _, count in shown], color=GREEN
        )
        axes.bar_label(bars, [f" {count / whole:.1%}" for _, count in shown])
        axes.axvline(whole / len(ordered) / 1e6, color=GREY, linestyle="--")
        axes.annotate(
            " equal shares",
            (whole / len(ordered) / 1e6, len(shown) - 0.5),
            ha="left",
            va="bottom",
            color=GREY,
        )
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
"""By event; of forward and backward in turn, so that neighbours are told apart."""
WINDOW = 1.5
"""Beginning and end that are shown of a longer step, in passes of a micro-batch through all stages."""
FEWEST = 5
MOST_SHAPES = 4000
"""More are drawn as dots: as shapes they make an SVG of megabytes."""


def memory_course_figure(stages: Sequence[Any], limit_bytes: int) -> Any:
    """Memory of these stages (`Stage` as JSON) over one step: states below, activations on top of them."""
    with drawing("Memory over one step", height=3.8, panels=2) as (figure, panels):
        for axes, stage in zip(panels, stages, strict=False):
            sizes = [size / GIB for _, size in stage["timeline"]]
            places = [100 * place / max(1, len(sizes) - 1) for place in range(len(sizes))]
            below = [0.0] * len(sizes)
            for part, colour in _STATES:
                above = [
                    min(now, low + stage["parts"].get(part, 0) / GIB)
                    for low, now in zip(below, sizes, strict=True)
                ]
                axes.fill_between(places, below, above, color=colour, label=part, linewidth=0)
                below = above
            axes.fill_between(places, below, sizes, color=ORANGE, label="activations", linewidth=0)
            axes.plot(places, sizes, color="black", linewidth=0.8)
            axes.axhline(
                stage["planned_bytes"] / GIB,
                color=VERMILION,
                linestyle="--",
                label="peak by the plan",
            )
            if limit_bytes:
                axes.axhline(
                    limit_bytes / GIB, color=GREY, linestyle="-.", label="limit of the device"
                )
            computed = (
                sum(moment != OPTIMIZER for moment, _ in stage["timeline"])
                * 100
                / max(1, len(sizes))
            )
            axes.axvline(computed, color="black", linestyle=":", linewidth=0.8)
            axes.annotate(
                "optimizer begins ",
                (computed, 0.5),
                xycoords=("data", "axes fraction"),
                ha="right",
                size=7,
            )
            peak = stage["peak_bytes"] / GIB
            axes.set_title(
                f"stage {stage['stage']}: {peak:.1f} GiB in {stage['peak_moment']}", fontsize=9
            )
            axes.set(
                xlim=(0, 100),
                xlabel=f"allocations of a step of {stage['microbatches']} micro-batches (%)",
            )
        panels[0].set(ylabel="memory (GiB)", ylim=(0, None))
        for unused in panels[len(stages) :]:
            unused.set_visible(False)
        figure.legend(*panels[0].get_legend_handles_labels(), loc="outside lower center", ncols=3)
    return figure


def schedule_figure(replay: Replay, source: str = "") -> Any:
    """What each stage does when; of a long step its beginning and its end. `source`: where its seconds come from."""
    from matplotlib.patches import Patch

    stages = len(replay.stages)
    first = replay.stages[0]
    whole = max(event.end for event in replay.events)
    chunks = len(first.forward)
    one = sum(each.whole() for each in (*first.forward, *first.backward))
    window = one * max(FEWEST, WINDOW / min(chunks, 2) * stages)
    windows = [(0.0, whole)] if whole < 2 * window else [(0.0, window), (whole - window, whole)]
    title = f"What each of {stages} stages does in a step"
    height = 1.7 + 0.24 * stages
    with drawing(title, height, panels=len(windows)) as (figure, panels):
        figure.set_figwidth(7.2 if len(windows) == 1 else 11)
        for axes, (begin, end) in zip(
            panels if len(windows) > 1 else [panels], windows, strict=True
        ):
            bars: defaultdict[tuple[str, int, int], list[tuple[float, float]]] = defaultdict(list)
            for event in replay.events:
                if event.end > begin and event.start < end:
                    turn = (event.microbatch if chunks == 1 else event.chunk) % 2
                    bars[event.kind, turn, event.stage].append(
                        (event.start, event.end - event.start)
                    )
            dots = sum(map(len, bars.values())) > MOST_SHAPES
            for (kind, turn, stage), spans in bars.items():
                axes.broken_barh(
                    spans,
                    (stage - 0.42, 0.84),
                    color=_COLOURS[kind][turn],
                    linewidth=0,
                    rasterized=dots,
                )
            planned = replay.planned_seconds / (1 + replay.waiting_share)
            if source:
                lines = []
            else:
                lines = [
                    axes.axvline(planned, color=VERMILION, linestyle="--", label="end by the plan")
                ]
            axes.set(xlim=(begin, end), xlabel="time since the step began (s)")
            axes.set(ylim=(stages - 0.4, -0.6), yticks=range(stages))
            axes.grid(visible=False)
        figure.axes[0].set_ylabel("stage")
        handles = [
            *lines,
            *(Patch(color=colours[0], label=kind) for kind, colours in _COLOURS.items()),
        ]
        handles.append(Patch(facecolor="white", edgecolor=GREY, label="waiting"))
        text = f"{replay.microbatches} micro-batches; {source or replay.text}"
        figure.legend(handles=handles, loc="outside lower center", ncols=6, title=text)
    return figure


MOST_COLUMNS = 32
MOST_STAGES = 24
MOST_STEPS = 400
"""What is drawn of a large layout, and the points of a curve."""


def device_figure(phase: PhasePlan, devices_per_node: int) -> Any:
    """One cell a device with its rank: stages below each other, tensor and context ranks and copies side by side.

    Ranks are counted as Megatron does: tensor first, then context, data, pipeline.
    """
    cut = phase.parallel
    colours = (BLUE, GREEN, ORANGE, SKY, VERMILION, GREY)
    copy = cut.tensor * cut.context
    columns = min(copy * cut.data, max(copy, MOST_COLUMNS))
    stages = min(cut.pipeline, MOST_STAGES)
    layers = cut.stage_layers(phase.model.layers)
    with drawing("Which device holds what", height=1.5 + 0.26 * stages) as (_, axes):
        for stage in range(stages):
            for column in range(columns):
                rank = stage * copy * cut.data + column
                colour = colours[column // copy % len(colours)]
                axes.barh(stage, 1, 0.9, column, color=colour, edgecolor="white", alpha=0.5)
                if columns <= MOST_COLUMNS:
                    axes.text(column + 0.5, stage, str(rank), ha="center", va="center", size=6)
            if devices_per_node < columns:
                axes.vlines(
                    range(0, columns + 1, devices_per_node),
                    stage - 0.45,
                    stage + 0.45,
                    color="black",
                    lw=0.8,
                )
        ends = list(itertools.accumulate(layers[:stages]))
        names = [
            f"stage {stage}: layers {end - layers[stage] + 1}-{end}"
            for stage, end in enumerate(ends)
        ]
        axes.set_yticks(range(stages), names)
        copies = range(columns // copy)
        axes.set_xticks(
            [(place + 0.5) * copy for place in copies], [f"copy {place + 1}" for place in copies]
        )
        axes.grid(visible=False)
        axes.set(xlim=(0, columns), ylim=(stages - 0.4, -0.6))
        if columns < copy * cut.data:
            rest = f" The first {columns // copy} of {cut.data:,} copies are drawn."
        else:
            rest = ""
        axes.set_xlabel(
            f"Each cell is a device with its rank; {cut.tensor} tensor ranks share every layer of a stage.{rest}\n"
            + (
                "Lines part the nodes."
                if devices_per_node < columns
                else f"A node has {devices_per_node} devices."
            )
        )
    return axes.figure


def planned_pipeline_figure(phase: PhasePlan, parts: dict[str, float], seconds: float) -> Any:
    """The step as planned on the schedule of all stages, each alike; a rehearsal counts each stage for itself."""
    count = phase.batch.num_microbatches
    chunks = phase.parallel.virtual_pipeline
    ends = sum(parts.get(name, 0.0) for name in ("optimizer", "data"))
    working = (
        sum(parts.values())
        - ends
        - sum(parts.get(name, 0.0) for name in ("bubble", "pipeline", "waiting"))
    )
    one = working / count / chunks
    times = StageTimes(
        (Seconds(one / 3),) * chunks,
        (Seconds(2 * one / 3),) * chunks,
        Seconds(),
        Seconds(matrices=ends),
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
            drawn = sorted(
                {max(1, round(place * steps / MOST_STEPS)) for place in range(MOST_STEPS + 1)}
            )
            rates = [phase.learning_rate.at(phase.batch.samples_after(step)) for step in drawn]
            shares = [100 * step / steps for step in drawn]
            axes.plot(
                shares, rates, color=colour, linestyle=style, label=f"{words}: {steps:,} steps"
            )
        axes.set(xlabel="steps of the phase (%)", ylabel="learning rate", ylim=(0, None))
        figure.legend(loc="outside lower center", ncols=2)
    return figure
