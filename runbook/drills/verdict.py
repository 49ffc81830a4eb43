"""How a drill ended: its rules, each held or broken, and the few numbers that every drill tells."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any


@dataclass
class Ending:
    """Gathered while a drill goes on."""

    fault: str
    """What was done to the training."""
    action: str = ""
    """What the runbook did about it."""
    detected_after_s: float | None = None
    """From the fault to its being known; None where nothing is to be detected."""
    steps_lost: int | None = None
    """Most steps that had to be done again after one fault."""
    final_loss_equal: bool | None = None
    """Whether every loss equals the undisturbed run's, bit by bit; None where the drill trains nothing to its end."""
    told: list[str] = field(default_factory=list)
    broken: list[str] = field(default_factory=list)
    extra: dict[str, Any] = field(default_factory=dict)

    def rule(self, holds: object, text: str) -> None:
        """One thing that the table of drills demands."""
        (self.told if holds else self.broken).append(text)


@dataclass(frozen=True)
class Verdict:
    """A drill's end as a machine reads it."""

    name: str
    verdict: str
    detail: str
    fault: str
    detected_after_s: float | None
    action: str
    steps_lost: int | None
    final_loss_equal: bool | None
    seconds: float
    extra: dict[str, Any] = field(default_factory=dict)

    def as_dict(self) -> dict[str, Any]:
        """For JSON; what a drill tells beyond the common keys stands beside them."""
        common = {key: value for key, value in vars(self).items() if key != "extra"}
        return common | self.extra


def judge(name: str, ending: Ending, orphans: list[str], seconds: float) -> Verdict:
    """The verdict: pass where every rule held and no process was left.

    >>> judge("x", Ending("nothing", told=["all is well"]), [], 1.0).detail
    'all is well; no process left'
    """
    ending.rule(not orphans, "no process left" if not orphans else f"processes left: {', '.join(orphans)}")
    passed = not ending.broken
    detail = "; ".join(ending.told) if passed else f"broken: {'; '.join(ending.broken)}"
    after = ending.detected_after_s
    return Verdict(
        name=name,
        verdict="pass" if passed else "fail",
        detail=detail,
        fault=ending.fault,
        detected_after_s=None if after is None else round(after, 2),
        action=ending.action,
        steps_lost=ending.steps_lost,
        final_loss_equal=ending.final_loss_equal,
        seconds=round(seconds, 1),
        extra=ending.extra,
    )
