"""A result card: how something ended, on one screen.

Card(title, verdict, facts, spark="", sample=None, next_step="")      show_card(card)
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from html import escape
from typing import Any

from runbook.display.place import colour_is_wanted, mime_bundle, show
from runbook.display.table import show_value, width
from runbook.display.verdict import COLOURS, symbol_of, verdict_html, verdict_text

SAMPLE_WIDTH = 92
"""Characters of a line of sample text on a terminal."""


@dataclass(frozen=True)
class Card:
    """What a person wants to know when they come back."""

    title: str
    verdict: str
    facts: Mapping[str, Any] = field(default_factory=dict)
    """Names with their units, and values."""
    spark: str = ""
    """A sparkline of the loss, drawn by `sparkline`."""
    sample: tuple[str, str] | None = None
    """Text the model wrote before and after training."""
    next_step: str = ""
    """Where to look or what to do next."""

    def as_text(self, colour: bool = False) -> str:
        """For terminal and log.

        >>> print(Card("local", "pass", {"loss (nat)": 3.5}, "█▁").as_text())
        local: ✓ pass
          loss (nat)  3.5
          loss curve  █▁
        """
        facts = {**self.facts, **({"loss curve": self.spark} if self.spark else {})}
        wide = max((width(name) for name in facts), default=0)
        lines = [f"{self.title}: {verdict_text(self.verdict, colour)}"]
        lines += [f"  {name}{' ' * (wide - width(name))}  {show_value(value)}" for name, value in facts.items()]
        if self.sample:
            for when, text in zip(("before", "after"), self.sample, strict=True):
                lines += [f"  text {when} training:", *_indented(text)]
        return "\n".join([*lines, *([f"  {self.next_step}"] if self.next_step else [])])

    def as_html(self) -> str:
        """For a notebook and its report."""
        facts = {**self.facts, **({"loss curve": self.spark} if self.spark else {})}
        rows = "".join(
            f'<tr><td style="padding:.1em 1em .1em 0;opacity:.75">{escape(name)}</td>'
            f"<td>{escape(show_value(value))}</td></tr>"
            for name, value in facts.items()
        )
        samples = zip(("before", "after"), self.sample or (), strict=False)
        texts = "".join(
            f'<div style="margin-top:.5em;opacity:.75">Text {when} training</div>'
            f'<blockquote style="margin:.2em 0 0;white-space:pre-wrap">{escape(text)}</blockquote>'
            for when, text in samples
        )
        colour = COLOURS.get(symbol_of(self.verdict), "currentColor")
        step = f'<div style="margin-top:.5em">{escape(self.next_step)}</div>' if self.next_step else ""
        return (
            f'<div style="border:1px solid rgba(128,128,128,.4);border-left:.5em solid {colour};border-radius:.4em;'
            f'padding:.6em 1em;max-width:60em"><div style="font-size:115%;font-weight:600">{escape(self.title)} '
            f'{verdict_html(self.verdict)}</div><table style="border-collapse:collapse">{rows}</table>'
            f"{texts}{step}</div>"
        )

    def _repr_mimebundle_(self, **kwargs: Any) -> dict[str, str]:
        return mime_bundle(self)


def show_card(card: Card) -> None:
    """Show the card; in colour on a terminal."""
    if colour_is_wanted():
        print(card.as_text(colour=True), flush=True)
    else:
        show(card)


def _indented(text: str) -> list[str]:
    import textwrap

    lines = [line for part in text.splitlines() for line in textwrap.wrap(part, SAMPLE_WIDTH) or [""]]
    return [f"    {line}" for line in lines]
