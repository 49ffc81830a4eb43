"""The data phase as pictures: how long documents are, where the tokens come from, how fast text became tokens."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from typing import Any

from runbook.analysis.drawing import BLUE, GREEN, GREY, VERMILION, drawing

SHOWN_SOURCES = 12


def length_figure(lengths: Sequence[int], sequence_length: int) -> Any:
    """Documents by their tokens, in steps of two; the line is the model's sequence length."""
    with drawing("How long documents are") as (figure, axes):
        first = next((place for place, count in enumerate(lengths) if count), 0)
        shown = list(range(first, len(lengths)))
        axes.bar(shown, [lengths[place] for place in shown], width=1.0, align="edge", color=BLUE, edgecolor="white")
        ticks = range(first, len(lengths) + 1, max(1, -(-len(shown) // 10)))
        axes.set_xticks(list(ticks), [f"{2**place:,}" for place in ticks])
        if sequence_length > 0:
            place = sequence_length.bit_length() - 1 + (sequence_length / 2 ** (sequence_length.bit_length() - 1) - 1)
            axes.axvline(place, color=VERMILION, linestyle="--", label=f"one sequence: {sequence_length:,} tokens")
            figure.legend(loc="outside lower center")
        axes.set_xlabel("tokens in the document, each bar up to twice the one before")
        axes.set_ylabel("documents")
    return figure


def source_figure(tokens: Mapping[str, int]) -> Any:
    """Tokens of each source, largest first; the line is what each would have were they equal."""
    ordered = sorted(tokens.items(), key=lambda one: -one[1])
    rest = sum(count for _, count in ordered[SHOWN_SOURCES:])
    shown = ordered[:SHOWN_SOURCES] + ([(f"{len(ordered) - SHOWN_SOURCES} more", rest)] if rest else [])
    whole = sum(tokens.values()) or 1
    with drawing("Tokens of each source", height=1.2 + 0.3 * len(shown)) as (figure, axes):
        bars = axes.barh([name for name, _ in shown], [count / 1e6 for _, count in shown], color=GREEN)
        axes.bar_label(bars, [f" {count / whole:.1%}" for _, count in shown])
        axes.axvline(whole / len(ordered) / 1e6, color=GREY, linestyle="--")
        axes.annotate(
            " equal shares", (whole / len(ordered) / 1e6, len(shown) - 0.5), ha="left", va="bottom", color=GREY
        )
        axes.margins(x=0.12)
        axes.set_xlabel("tokens (millions)")
        axes.invert_yaxis()
    return figure


def speed_figure(speed: Sequence[Sequence[float]], planned: float) -> Any:
    """MB of text a second along the way, whole (line) and of late (points); the plan's rate beside it."""
    moments = [(seconds, size) for seconds, size in speed if seconds > 0]
    with drawing("How fast text became tokens") as (figure, axes):
        axes.plot(
            [seconds for seconds, _ in moments],
            [size / seconds / 1e6 for seconds, size in moments],
            color=BLUE,
            label="since the start",
        )
        late = [
            (after[0], (after[1] - before[1]) / (after[0] - before[0]) / 1e6)
            for before, after in itertools.pairwise(moments)
            if after[0] > before[0]
        ]
        axes.plot([x for x, _ in late], [y for _, y in late], ".", color=GREEN, label="between two reports")
        axes.axhline(planned, color=VERMILION, linestyle="--", label=f"plan: {planned:,.0f} MB/s on these workers")
        axes.set_xlabel("time since the start (s)")
        axes.set_ylabel("text (MB/s)")
        axes.set_ylim(bottom=0)
        figure.legend(loc="outside lower center", ncols=3)
    return figure
