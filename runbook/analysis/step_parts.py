"""What a step is made of, and how long training stood still for checkpoints and evaluations."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from typing import Any

from runbook.analysis.history import Evaluation, History, Step, events_named
from runbook.analysis.metrics import measured
from runbook.analysis.table import Table

PARTS = ("waiting for data", "computing", "communication", "optimizer", "other")


def parts_of(step: Step) -> dict[str, float]:
    """Seconds of a step by part; they add up to its time. What the trainer did not tell is `other`.

    `communication` is what the engine measures apart; where it does not, it is inside computing.
    """
    wait = min(step.data_wait_seconds, step.seconds)
    whole = max(0.0, step.forward_backward_seconds - wait)  # waiting for a batch happens inside it
    apart = min(step.communication_seconds, whole)
    rest = max(0.0, step.seconds - wait - whole)
    optimizer = min(step.optimizer_seconds, rest)
    found = (wait, whole - apart, apart, optimizer, rest - optimizer)
    return dict(zip(PARTS, found, strict=True))


def step_parts_table(history: History) -> Table:
    """Median and spread of each part over the measured steps, and its share of the step time."""
    steps = measured(history)
    source = history.source or "metrics.jsonl"
    if not steps:
        return Table("What a step is made of", (), source, ("no step was timed",))
    split = [parts_of(step) for step in steps]
    total = sum(step.seconds for step in steps)
    rows = []
    for name in PARTS:
        seconds = [one[name] for one in split]
        rows.append(
            {
                "part": name,
                "median (s/iteration)": statistics.median(seconds),
                "longest (s/iteration)": max(seconds),
                "share of step time (%)": 100 * sum(seconds) / total if total else None,
            }
        )
    told = any(step.forward_backward_seconds for step in steps)
    notes = (f"{len(steps)} measured steps", "communication that the engine does not measure apart is in computing")
    if not told:
        notes = (
            f"{len(steps)} measured steps",
            "this trainer told no parts but the waiting for data: the rest is other",
        )
    return Table("What a step is made of", tuple(rows), source, notes)


def stalls_table(
    validation: Sequence[Evaluation], events: Sequence[Mapping[str, Any]], *, wall_seconds: float
) -> Table:
    """How often and how long no step was made because a checkpoint was written or an evaluation ran."""
    saves = [float(event["seconds"]) for event in events_named(events, "saved") if "seconds" in event]
    rows = tuple(
        {
            "stall": name,
            "count": len(seconds),
            "median (s)": statistics.median(seconds) if seconds else None,
            "longest (s)": max(seconds, default=None),
            "all (s)": sum(seconds),
            "share of wall time (%)": 100 * sum(seconds) / wall_seconds if wall_seconds else None,
        }
        for name, seconds in (("checkpoint", saves), ("evaluation", [one.seconds for one in validation]))
    )
    return Table("Stalls", rows, "events.jsonl, validation.jsonl")
