"""The plan as pictures: what fills the memory of each pipeline stage, and where the time of a step goes."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from runbook.analysis.drawing import BLUE, GREEN, GREY, ORANGE, SKY, VERMILION, drawing

GIB = 2**30
MEMORY_PARTS = (
    ("weights", "weights", BLUE, ""),
    ("gradients", "gradients", SKY, "//"),
    ("optimizer", "optimizer states", GREEN, ".."),
    ("activations", "activations", ORANGE, "\\\\"),
    ("logits", "logits", VERMILION, "xx"),
)
"""Key, words, colour and hatching: the parts are told apart in print and without colour too."""


def memory_figure(plan: Mapping[str, Any], phases: Mapping[str, str]) -> Any:
    """Bars of what fills one rank of the fullest stage of each phase, and the line of what there is."""
    with drawing("Memory of one rank of the fullest stage", height=1.2 + 0.6 * len(phases)) as (figure, axes):
        for place, (phase, words) in enumerate(phases.items()):
            found, left = plan["memory"][phase], 0.0
            for key, name, colour, hatch in MEMORY_PARTS:
                width = found["fullest_stage"][key] / GIB
                label = name if not place else None
                axes.barh(words, width, left=left, color=colour, hatch=hatch, edgecolor="white", label=label)
                left += width
        limit = max(plan["memory"][phase]["limit_bytes"] for phase in phases)
        if limit and all(plan["memory"][phase]["limit_of"] == "device" for phase in phases):
            axes.axvline(limit / GIB, color=GREY, linestyle="--", label=f"a device has {limit / GIB:.0f} GiB")
        axes.set_xlabel("memory (GiB)")
        axes.invert_yaxis()
        figure.legend(loc="outside lower center", ncols=3)
    return figure


def step_figure(parts: Mapping[str, float], words: Mapping[str, str]) -> Any:
    """Bars of the parts of one step, longest first; their shares stand beside them."""
    ordered = sorted(parts.items(), key=lambda one: -one[1])
    whole = sum(parts.values())
    with drawing("Where the time of a step goes", height=1.2 + 0.3 * len(ordered)) as (figure, axes):
        bars = axes.barh([words.get(name, name) for name, _ in ordered], [value for _, value in ordered], color=BLUE)
        axes.bar_label(bars, [f" {value / whole:.1%}" for _, value in ordered])
        axes.axvline(whole, color=GREY, linestyle="--")
        axes.annotate(f"the whole step: {whole:.3g} s", (whole, len(ordered) - 1), ha="right", va="center")
        axes.set_xlabel("time (s)")
        axes.invert_yaxis()
    return figure
