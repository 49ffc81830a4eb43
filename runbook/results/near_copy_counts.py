"""Counts copies in node memory, based on the events in a training run."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from runbook.core.checks import counted
from runbook.plan_file.resume_sources import NEAR_OWN, is_from_partner
from runbook.results.history import Event, events_named
from runbook.results.messages import ResultMessage


@dataclass(frozen=True)
class NearCopyCounts:
    """How often a training run wrote copies to node memory, and read them."""

    iteration: int
    """Iteration at which the newest copies in the latest report were written. There is a report at
    each save to the shared file system.
    """
    copies: int
    left_out: int
    """Number of copies skipped because the previous copies were still being sent."""
    stall_seconds: float
    """Mean time that a copy paused training."""
    own_starts: int
    """Number of starts where every node read only its own copies."""
    partner_starts: int
    """Number of starts where a node also read copies from another node."""

    def as_text(self) -> str:
        """Return the line about copies that `runbook status` shows."""
        starts = self.own_starts + self.partner_starts
        text = ResultMessage.COPIES_WRITTEN.fill(
            copies=self.copies,
            iteration=self.iteration,
            seconds=self.stall_seconds,
            starts=counted(starts, "start"),
        )
        if self.partner_starts:
            text += ResultMessage.STARTS_FROM_PARTNERS.fill(number=self.partner_starts)
        if self.left_out:
            text += ResultMessage.COPIES_LEFT_OUT.fill(number=self.left_out)
        return text


def near_copies(events: Iterable[Event]) -> NearCopyCounts | None:
    """Return the counts from the events in a training run, or None if no copies were kept."""
    events = list(events)
    saves = events_named(events, "near_saved")
    sources = [event.source for event in events_named(events, "resumed")]
    own_starts = sources.count(NEAR_OWN)
    partner_starts = sum(map(is_from_partner, sources))
    if not saves and not own_starts and not partner_starts:
        return None
    copies = sum(event.copies for event in saves)
    stall_seconds = sum(event.stalled_seconds for event in saves)
    return NearCopyCounts(
        iteration=max((event.iteration or 0 for event in saves), default=0),
        copies=copies,
        left_out=sum(event.left_out for event in saves),
        stall_seconds=stall_seconds / copies if copies else 0.0,
        own_starts=own_starts,
        partner_starts=partner_starts,
    )
