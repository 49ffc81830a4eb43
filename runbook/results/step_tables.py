"""Steps of a run one by one: as a DataFrame, and the slowest of them with what the run recorded about each."""

import statistics
from collections.abc import Sequence
from itertools import pairwise
from typing import Any

from runbook.core.table import Table, pandas
from runbook.core.units import show_duration
from runbook.results.history import Event, History, Step, ValidationLoss, events_named
from runbook.results.metrics import measured

GIB = 2**30
COLUMNS = {
    "loss": "loss (nat/token)", "grad_norm": "gradient norm", "learning_rate": "learning rate",
    "loss_scale": "loss scale", "seconds": "step time (s)", "data_wait_seconds": "waiting for data (s)",
    "forward_backward_seconds": "forward and backward (s)", "communication_seconds": "communication (s)",
    "optimizer_seconds": "optimizer (s)", "tokens_per_second": "throughput (tokens/s)",
    "tflops_per_device": "speed (TFLOP/s/device)", "memory_bytes": "memory (GiB)",
    "consumed_tokens": "tokens seen (tokens)", "global_batch": "global batch (sequences)", "world_size": "devices",
    "skipped": "skipped", "nan": "NaN", "segment": "segment", "time": "ended (UTC)",
}  # fmt: skip
"""Columns of the history by the field of a step that they hold."""
REASON_RULE = (
    "a step took from the end of the step before to its own end; its reason is the longest stall that was recorded, "
    "where the recorded ones are at least half of the time over the median step"
)


def history_frame(history: History) -> Any:
    """One row a step over all restarts, as a pandas DataFrame with the iteration as its index.

    Where two jobs made the same step, the later one counts. A value that the trainer did not have is NaN.
    """
    frame = pandas().DataFrame(
        {name: [getattr(step, field) for step in history.steps] for field, name in COLUMNS.items()},
        index=pandas().Index([step.iteration for step in history.steps], name="iteration"),
    )
    numbers = [COLUMNS[field] for field in ("loss", "grad_norm", "tflops_per_device")]
    frame[numbers] = frame[numbers].astype(float)
    frame["memory (GiB)"] /= GIB
    frame["ended (UTC)"] = pandas().to_datetime(frame["ended (UTC)"], unit="s", utc=True)
    return frame


def slow_steps_table(
    history: History, validation: Sequence[ValidationLoss] = (), events: Sequence[Event] = (), *, count: int = 10
) -> Table:
    """The steps that took longest with what came before them, each with its reason and the evidence for it.

    A reason is start, restart, save, evaluation, data wait, slow rank, or unknown where the records do not explain it.
    """
    usual = measured(history)
    median = statistics.median(step.seconds for step in usual) if usual else 0.0
    usual_wait = statistics.median(step.data_wait_seconds for step in usual) if usual else 0.0
    ranks = {(one.segment, one.iteration - n): one for one in history.rank_times for n in range(one.steps)}
    usual_lag = statistics.median([_lag(one.seconds) for one in history.rank_times] or [0.0])
    every = sorted((*history.steps, *history.repeated), key=lambda step: (step.segment, step.iteration))
    timed = [(_took(step, before), step, before) for before, step in pairwise((None, *every)) if step]
    rows = []
    for took, step, before in sorted(timed, key=lambda one: -one[0])[:count]:
        causes = _stalls_before(step, before, validation, events) if before else {}
        if before is None:
            causes["start"] = (step.seconds - median, "first step of the run: memory is reserved, kernels are loaded")
        causes["data wait"] = (step.data_wait_seconds - usual_wait, f"{step.data_wait_seconds:.3g} s without data")
        if times := ranks.get((step.segment, step.iteration)):
            slowest = max(times.seconds)
            words = f"rank {times.seconds.index(slowest)} computed {slowest:.3g} s, {_lag(times.seconds):.3g} s longer"
            causes["slow rank"] = (_lag(times.seconds) - usual_lag, f"{words} than the median rank")
        over = took - median
        seconds, reason = max((seconds, name) for name, (seconds, _) in causes.items())
        explained = sum(max(seconds, 0.0) for seconds, _ in causes.values())
        evidence = [words for seconds, words in causes.values() if seconds > max(0.1 * over, 0.0)]
        rows.append(
            {
                "iteration": step.iteration,
                "took (s)": took,
                "step time (s)": step.seconds,
                "over the median (s)": over,
                "reason": reason if seconds > 0 and explained >= over / 2 else "unknown",
                "evidence": "; ".join(evidence) or "nothing that was recorded explains it",
            }
        )
    notes = (f"median step: {median:.4g} s", REASON_RULE)
    source = "metrics.jsonl, rank_times.jsonl, validation.jsonl, events.jsonl"
    return Table(rows, f"The {len(rows)} slowest of {len(every)} steps", notes, source=source)


def _took(step: Step, before: Step | None) -> float:
    """Seconds since the step before ended; at least the step's own, as clocks of two machines may differ."""
    return max(step.seconds, step.time - before.time) if before and before.time else step.seconds


def _lag(seconds: Sequence[float]) -> float:
    """Seconds of the slowest rank over the median rank, of two over the other."""
    return max(seconds) - statistics.median_low(seconds)


def _stalls_before(
    step: Step, before: Step, validation: Sequence[ValidationLoss], events: Sequence[Event]
) -> dict[str, tuple[float, str]]:
    """Seconds and words by cause, of what was recorded between the step before and this one."""
    since = [event for event in events if before.time <= event.time <= step.time]
    if before.segment != step.segment:
        resumed = [event for event in since if event.name in ("resumed", "rolled_back")]
        where = f" from {resumed[-1].folder}" if resumed and resumed[-1].folder else ""
        gap = step.time - step.seconds - before.time
        return {"restart": (gap, f"went on{where} {show_duration(max(gap, 0.0))} after iteration {before.iteration}")}
    causes = {}
    if saved := events_named(since, "saved"):
        seconds = sum(event.stalled_seconds for event in saved)
        causes["save"] = (seconds, f"{seconds:.3g} s to save iteration {saved[-1].iteration}")
    if evaluated := [one for one in validation if before.time <= one.time <= step.time]:
        seconds = sum(one.seconds for one in evaluated)
        causes["evaluation"] = (seconds, f"{seconds:.3g} s to evaluate iteration {evaluated[-1].iteration}")
    return causes
