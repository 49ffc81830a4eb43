"""Figures of a rehearsal: memory over the course of a step, and the pipeline's schedule with a lane for each stage."""

from collections import defaultdict
from collections.abc import Sequence
from typing import Any

from runbook.plan_file.rehearsed_work import BACKWARD, FORWARD, OPTIMIZER
from runbook.planning.cost.replay import COMMUNICATION, Replay
from runbook.results.figures.drawing import BLUE, GREEN, GREY, ORANGE, SKY, VERMILION, drawing

GIB = 2**30
_STATES = (("weights", BLUE), ("gradients", SKY), ("optimizer", GREEN))
_COLOURS = {FORWARD: (BLUE, SKY), BACKWARD: (GREEN, "#7CCDB2"), COMMUNICATION: (ORANGE,) * 2, OPTIMIZER: (GREY,) * 2}
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
                    min(now, low + stage["parts"].get(part, 0) / GIB) for low, now in zip(below, sizes, strict=True)
                ]
                axes.fill_between(places, below, above, color=colour, label=part, linewidth=0)
                below = above
            axes.fill_between(places, below, sizes, color=ORANGE, label="activations", linewidth=0)
            axes.plot(places, sizes, color="black", linewidth=0.8)
            axes.axhline(stage["planned_bytes"] / GIB, color=VERMILION, linestyle="--", label="peak by the plan")
            if limit_bytes:
                axes.axhline(limit_bytes / GIB, color=GREY, linestyle="-.", label="limit of the device")
            computed = sum(moment != OPTIMIZER for moment, _ in stage["timeline"]) * 100 / max(1, len(sizes))
            axes.axvline(computed, color="black", linestyle=":", linewidth=0.8)
            axes.annotate("optimizer begins ", (computed, 0.5), xycoords=("data", "axes fraction"), ha="right", size=7)
            peak = stage["peak_bytes"] / GIB
            axes.set_title(f"stage {stage['stage']}: {peak:.1f} GiB in {stage['peak_moment']}", fontsize=9)
            axes.set_xlim(0, 100)
            axes.set_xlabel(f"allocations of a step of {stage['microbatches']} micro-batches (%)")
        panels[0].set_ylabel("memory (GiB)")
        panels[0].set_ylim(bottom=0)
        for unused in panels[len(stages) :]:
            unused.set_visible(False)
        figure.legend(*panels[0].get_legend_handles_labels(), loc="outside lower center", ncols=3)
    return figure


def schedule_figure(replay: Replay) -> Any:
    """What each stage does when; of a long step its beginning and its end."""
    from matplotlib.patches import Patch

    stages, first = len(replay.stages), replay.stages[0]
    whole, chunks = max(event.end for event in replay.events), len(first.forward)
    one = sum(each.whole() for each in (*first.forward, *first.backward))
    window = one * max(FEWEST, WINDOW / min(chunks, 2) * stages)
    windows = [(0.0, whole)] if whole < 2 * window else [(0.0, window), (whole - window, whole)]
    title, height = f"What each of {stages} stages does in a step", 1.7 + 0.24 * stages
    with drawing(title, height, panels=len(windows)) as (figure, panels):
        figure.set_figwidth(7.2 if len(windows) == 1 else 11)
        for axes, (begin, end) in zip(panels if len(windows) > 1 else [panels], windows, strict=True):
            bars: defaultdict[tuple[str, int, int], list[tuple[float, float]]] = defaultdict(list)
            for event in replay.events:
                if event.end > begin and event.start < end:
                    turn = (event.microbatch if chunks == 1 else event.chunk) % 2
                    bars[event.kind, turn, event.stage].append((event.start, event.end - event.start))
            dots = sum(map(len, bars.values())) > MOST_SHAPES
            for (kind, turn, stage), spans in bars.items():
                axes.broken_barh(spans, (stage - 0.42, 0.84), color=_COLOURS[kind][turn], linewidth=0, rasterized=dots)
            planned = replay.planned_seconds / (1 + replay.waiting_share)
            line = axes.axvline(planned, color=VERMILION, linestyle="--", label="end by the plan")
            axes.set(xlim=(begin, end), xlabel="time since the step began (s)")
            axes.set(ylim=(stages - 0.4, -0.6), yticks=range(stages))
            axes.grid(visible=False)
        figure.axes[0].set_ylabel("stage")
        handles = [line, *(Patch(color=colours[0], label=kind) for kind, colours in _COLOURS.items())]
        handles.append(Patch(facecolor="white", edgecolor=GREY, label="waiting"))
        text = f"{replay.microbatches} micro-batches; {replay.text}"
        figure.legend(handles=handles, loc="outside lower center", ncols=6, title=text)
    return figure
