"""The numbers beside the figures: each row says in which file and line it stands."""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence
from typing import Any

from runbook.analysis.history import Evaluation, History, Step, events_named
from runbook.analysis.metrics import find_spikes, measured
from runbook.analysis.table import Table


def at(history: History, step: Step | None) -> str:
    """File and line of a step.

    >>> from runbook.analysis.history import join
    >>> history = join(['{"iteration": 1, "seconds": 2.0}'], "metrics.jsonl")
    >>> at(history, history.steps[0])
    'metrics.jsonl:1'
    """
    return f"{history.source or 'metrics.jsonl'}:{step.line}" if step is not None else history.source


def loss_table(history: History, validation: Sequence[Evaluation] = (), *, padded_vocabulary: int = 0) -> Table:
    """What a person reads off the loss curve: where it begins and ends, its lowest point, restarts, spikes."""
    steps = {step.iteration: step for step in history.steps}
    losses = history.losses
    rows: list[dict[str, Any]] = []
    if padded_vocabulary:
        rows.append(_row("ln(vocabulary)", None, math.log(padded_vocabulary), "an untrained model", "plan.json"))
    for what, found in _ends(losses):
        rows.append(_row(what, found[0], found[1], "", at(history, steps.get(found[0]))))
    for first in history.restarts:
        step = steps.get(first)
        rows.append(_row("restart", first, step.loss if step else None, "first step of the job", at(history, step)))
    for spike in find_spikes(losses):
        back = f"back at iteration {spike.recovered_at}" if spike.recovered_at else "it did not come back"
        remark = f"{spike.before:.4g} before it; {back}"
        rows.append(_row("spike", spike.iteration, spike.loss, remark, at(history, steps.get(spike.iteration))))
    without = [step for step in history.steps if step.loss is None or not math.isfinite(step.loss)]
    if without:
        rows.append(_row("no loss", without[0].iteration, None, f"{len(without)} steps", at(history, without[0])))
    if validation:
        last = validation[-1]
        rows.append(_row("validation", last.iteration, last.loss, f"{len(validation)} evaluations", "validation.jsonl"))
    return Table("Loss in numbers", tuple(rows), history.source or "metrics.jsonl")


def _ends(losses: Sequence[tuple[int, float]]) -> list[tuple[str, tuple[int, float]]]:
    if not losses:
        return []
    return [("first", losses[0]), ("lowest", min(losses, key=lambda one: one[1])), ("last", losses[-1])]


def _row(what: str, iteration: int | None, loss: float | None, remark: str, source: str) -> dict[str, Any]:
    return {"what": what, "iteration": iteration, "loss (nat/token)": loss, "remark": remark, "source": source}


def throughput_table(history: History, *, sequence_length: int, planned: float | None = None) -> Table:
    """Speed of each segment: a slope or a slow restart shows as a row that differs."""
    rows = []
    used = measured(history)
    for segment in sorted({step.segment for step in used}):
        steps = [step for step in used if step.segment == segment]
        rates = [step.global_batch * sequence_length / step.seconds for step in steps]
        middle = statistics.median(rates)
        rows.append(
            {
                "segment": segment,
                "iterations": f"{steps[0].iteration} to {steps[-1].iteration}",
                "throughput (tokens/s)": middle,
                "slowest step (tokens/s)": min(rates),
                "fastest step (tokens/s)": max(rates),
                "of the plan (%)": 100 * middle / planned if planned else None,
                "source": f"{history.source or 'metrics.jsonl'}:{steps[0].line}-{steps[-1].line}",
            }
        )
    return Table("Throughput in numbers", tuple(rows), history.source or "metrics.jsonl", ("medians after warm-up",))


def timeline_table(
    history: History, validation: Sequence[Evaluation] = (), events: Sequence[Mapping[str, Any]] = ()
) -> Table:
    """How often and how long each kind of thing happened."""
    saves = [float(event.get("seconds", 0)) for event in events_named(events, "saved")]
    steps = (*history.steps, *history.repeated)
    kinds = (
        ("training", [step.seconds for step in steps], history.source or "metrics.jsonl"),
        ("waiting for data", [s.data_wait_seconds for s in steps if s.data_wait_seconds > 0], history.source),
        ("evaluation", [one.seconds for one in validation], "validation.jsonl"),
        ("saving", saves, "events.jsonl"),
    )
    rows = tuple(
        {
            "what": what,
            "times": len(seconds),
            "all (s)": sum(seconds),
            "longest (s)": max(seconds, default=None),
            "source": source,
        }
        for what, seconds, source in kinds
    )
    return Table("What happened when, in numbers", rows, "metrics.jsonl, validation.jsonl, events.jsonl")
