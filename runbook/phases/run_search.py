"""Searches for the best training layouts (`runbook plan --search`)."""

import shlex
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from runbook.core.checks import counted
from runbook.core.table import UNKNOWN
from runbook.core.units import show_bytes, show_duration
from runbook.display import Table
from runbook.phases.messages import PhaseMessage
from runbook.phases.run_plan import load_named
from runbook.planning.choice import Choice, full_choice
from runbook.planning.layout_search import RankedLayout, Search, growth, layout_words, search
from runbook.planning.schedule import duration


@dataclass(frozen=True)
class RunSearch:
    """Every training layout that fits the nodes, best first.

    The result also contains the best layouts on increasing numbers of nodes.
    """

    run: str
    choice: Choice
    tokens: float
    found: Search
    growth: tuple[RankedLayout | str, ...]
    """For each doubling of the nodes, the best layout or the reason why no layout fits."""
    set_words: tuple[str, ...] = ()
    """The values given with --set."""

    def as_dict(self) -> dict[str, object]:
        """Return the result for --json."""
        growth_steps: list[dict[str, Any]] = []
        for step in self.growth:
            if isinstance(step, str):
                growth_steps.append({"reason": step})
            else:
                growth_steps.append(step.as_dict())

        return {
            "run": self.run,
            "device": self.choice.site.hardware.device,
            "nodes": self.choice.nodes,
            "tokens": self.tokens,
            "global_batch": self.choice.global_batch,
            "looked_at": self.found.looked_at,
            "did_not_fit": self.found.did_not_fit,
            "broke_a_rule": self.found.broke_a_rule,
            "reason": self.found.reason or None,
            "currency": self.choice.site.currency or None,
            "layouts": [layout.as_dict() for layout in self.found.ranked],
            "growth": growth_steps,
        }

    def as_text(self) -> str:
        """Return the best layouts and the growth for a terminal."""
        found_layouts = self.found
        choice = self.choice
        nodes = counted(choice.nodes, "node")
        head = (
            f"{self.run}: {found_layouts.looked_at:,} layouts over {nodes} of "
            f"{choice.site.hardware.device}; "
            f"{found_layouts.did_not_fit:,} do not fit in memory, "
            f"{found_layouts.broke_a_rule:,} break a rule"
        )
        if found_layouts.reason:
            return f"{head}\nNo layout: {found_layouts.reason}."
        row = partial(_layout_row, currency=choice.site.currency or "")
        best = Table([*map(row, found_layouts.ranked[:10])], "Best layouts")
        layouts = []
        reasons = []
        for step in self.growth:
            if isinstance(step, str):
                reasons.append(step)
            else:
                layouts.append(row(step))

        site_nodes = choice.site.hardware.nodes
        if site_nodes:
            reasons.append(
                PhaseMessage.SITE_HAS_NODES.fill(
                    site=choice.site.site,
                    nodes=counted(site_nodes, "node"),
                    devices=f"{site_nodes * choice.devices_per_node:,}",
                )
            )

        grown = Table(layouts, "Best layout on more nodes, with the same global batch", reasons)
        return "\n\n".join([head, best.as_text(), self._best_words(), grown.as_text()])

    def _best_words(self) -> str:
        """Return how to use the best layout."""
        words = [*self.set_words, *layout_words(self.found.ranked[0])]
        options = " ".join(f"--set {shlex.quote(word)}" for word in words)
        return PhaseMessage.USE_BEST_LAYOUT.fill(run=self.run, options=options)


def search_run(run: str, set_words: Sequence[str]) -> RunSearch:
    """Search the layouts for training a run."""
    settings = load_named(run, set_words)
    choice = full_choice(settings)
    tokens = float(duration(choice).tokens)
    found_layouts = search(choice, tokens)
    larger: tuple[RankedLayout | str, ...] = ()
    if found_layouts.looked_at:
        larger = tuple(growth(choice, tokens))
    return RunSearch(
        settings.name,
        choice,
        tokens,
        found_layouts,
        larger,
        tuple(set_words),
    )


def _layout_row(ranked: RankedLayout, currency: str) -> dict[str, str]:
    layout = ranked.layout
    choice = ranked.choice
    training_time = UNKNOWN
    if ranked.days is not None:
        training_time = show_duration(86400 * ranked.days)
    cost = UNKNOWN
    if ranked.cost is not None:
        cost = f"{ranked.cost:,.0f} {currency}".strip()
    return {
        "GPUs": f"{layout.world_size:,}",
        "tensor": str(layout.tensor),
        "pipeline": str(layout.pipeline),
        "virtual": str(layout.virtual_pipeline),
        "replicas": str(layout.data),
        "micro": str(choice.micro_batch),
        "recompute": choice.training.recompute,
        "ZeRO": str(layout.zero_stage),
        "memory": show_bytes(ranked.memory_bytes),
        "a step": show_duration(ranked.seconds_per_step),
        "MFU": f"{ranked.mfu:.1%}",
        "training": training_time,
        "cost": cost,
        PhaseMessage.NODES_IN_MULTIPLES.fill(): str(choice.node_multiple),
    }
