"""Metrics of a run: step time and its parts, throughput, loss spikes, slow ranks, slow steps, steps one by one."""

import math
import statistics
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

from runbook.core.table import Table, pandas
from runbook.core.units import show_duration
from runbook.plan_file.alarms import Alarm, LossWatch, MetricWatch
from runbook.results.history import Event, History, Step, ValidationLoss, by_segment, events_named

WARM_UP_RULE = "skipped iterations and the first tenth of each segment (at least 1, at most 10 iterations) are left out"


@dataclass(frozen=True)
class Summary:
    """The numbers of one phase; None where the run does not tell."""

    iterations: int
    first_iteration: int
    last_iteration: int
    measured_iterations: int
    """Iterations behind the medians, after the warm-up was left out."""
    segments: int
    repeated_iterations: int
    world_size: int
    global_batch: int
    sequence_length: int
    seconds_per_iteration: float | None
    """Median."""
    seconds_low: float | None
    """10th percentile."""
    seconds_high: float | None
    """90th percentile."""
    samples_per_second: float | None
    tokens_per_second: float | None
    """Of all devices together: global batch x sequence length / median seconds."""
    tokens_per_second_per_device: float | None
    tflops_per_device: float | None
    """As the trainer computed it, median."""
    tflops_convention: str
    data_wait_share: float | None
    """Part of the measured step time spent waiting for data."""
    memory_bytes: int
    first_loss: float | None
    last_loss: float | None
    relative_fall: float | None
    lowest_loss: float | None
    spikes: tuple[Alarm, ...]
    skipped: int
    nan: int
    largest_grad_norm: float | None
    consumed_tokens: int
    validation_loss: float | None
    """The last evaluation's."""


def measured(history: History) -> list[Step]:
    """The steps behind the medians: warm-up and skipped steps left out; all steps where nothing would remain."""
    kept = [
        step
        for steps in by_segment(history.steps)
        for step in steps[min(10, max(1, len(steps) // 10)) :]
        if not step.skipped and step.seconds > 0
    ]
    return kept or [step for step in history.steps if step.seconds > 0]


def summarize(
    history: History, *, sequence_length: int, validation: Sequence[ValidationLoss] = ()
) -> Summary:
    """All numbers of a history that need nothing but itself and the length of a sequence."""
    steps = history.steps
    used = measured(history)
    seconds = [step.seconds for step in used]
    middle = statistics.median(seconds) if seconds else None
    # quantiles needs two values, and one value twice has itself as every quantile
    if used:
        tenths = statistics.quantiles(
            seconds * 2 if len(seconds) == 1 else seconds, n=10, method="inclusive"
        )
    else:
        tenths = []
    batch, world = (used[-1].global_batch, used[-1].world_size) if used else (0, 0)
    samples = batch / middle if middle and batch else None
    tokens = samples * sequence_length if samples else None
    tflops = [step.tflops_per_device for step in used if step.tflops_per_device is not None]
    losses = [loss for _, loss in history.losses]
    norms = [
        step.grad_norm
        for step in steps
        if step.grad_norm is not None and math.isfinite(step.grad_norm)
    ]
    return Summary(
        iterations=len(steps),
        first_iteration=steps[0].iteration if steps else 0,
        last_iteration=steps[-1].iteration if steps else 0,
        measured_iterations=len(used),
        segments=history.num_segments,
        repeated_iterations=len(history.repeated),
        world_size=world,
        global_batch=batch,
        sequence_length=sequence_length,
        seconds_per_iteration=middle,
        seconds_low=tenths[0] if tenths else None,
        seconds_high=tenths[-1] if tenths else None,
        samples_per_second=samples,
        tokens_per_second=tokens,
        tokens_per_second_per_device=tokens / world if tokens and world else None,
        tflops_per_device=statistics.median(tflops) if tflops else None,
        tflops_convention=next((step.tflops_convention for step in reversed(used)), ""),
        data_wait_share=sum(step.data_wait_seconds for step in used) / sum(seconds)
        if seconds
        else None,
        memory_bytes=max((step.memory_bytes for step in steps), default=0),
        first_loss=losses[0] if losses else None,
        last_loss=losses[-1] if losses else None,
        relative_fall=1 - losses[-1] / losses[0] if losses and losses[0] else None,
        lowest_loss=min(losses, default=None),
        spikes=find_spikes(history.losses, history.grad_norms),
        skipped=sum(step.skipped for step in steps),
        nan=sum(step.nan for step in steps),
        largest_grad_norm=max(norms, default=None),
        consumed_tokens=steps[-1].consumed_tokens if steps else 0,
        validation_loss=validation[-1].loss if validation else None,
    )


def find_spikes(
    losses: Sequence[tuple[int, float]], grad_norms: Mapping[int, float] = {}
) -> tuple[Alarm, ...]:
    """The spikes of a loss curve, each once; gradient norms by iteration tell a jump from a batch of odd text.

    >>> curve = [(n, 3.0 + 0.01 * (n % 3)) for n in range(1, 60)]
    >>> curve[40] = (41, 7.5)
    >>> [(spike.since, spike.value, spike.usual) for spike in find_spikes(curve)]
    [(41, 7.5, 3.01)]
    """
    watch = LossWatch()
    alarms = (
        alarm
        for iteration, loss in losses
        for alarm in watch.look(iteration, loss, grad_norms.get(iteration, math.nan))
    )
    return tuple(alarm for alarm in alarms if alarm.kind == "spike")


def recovery(spike: Alarm, losses: Sequence[tuple[int, float]]) -> int | None:
    """First iteration at which the curve was back within 2 % of where it was; None where it did not come back."""
    return next(
        (at for at, loss in losses if at > spike.since and loss <= 1.02 * spike.usual), None
    )


def find_alarms(steps: Iterable[object]) -> list[Alarm]:
    """What went wrong, by the rules that the trainer applies while it runs; steps as any log tells them."""
    watch = MetricWatch()
    return [alarm for step in steps for alarm in watch.look(step)]


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
    return dict(zip(PARTS, (wait, whole - apart, apart, optimizer, rest - optimizer), strict=True))


def step_parts_table(history: History) -> Table:
    """Median and spread of each part over the measured steps, and its share of the step time."""
    title = "What a step is made of"
    steps = measured(history)
    if not steps:
        return Table((), title, ("no step was timed",), source=history.source)
    split = [parts_of(step) for step in steps]
    total = sum(step.seconds for step in steps)
    seconds_of = {name: [parts[name] for parts in split] for name in PARTS}
    rows = [
        {
            "part": name,
            "median (s/iteration)": statistics.median(seconds),
            "longest (s/iteration)": max(seconds),
            "share of step time (%)": 100 * sum(seconds) / total if total else None,
        }
        for name, seconds in seconds_of.items()
    ]
    note = "this trainer told no parts but the waiting for data: the rest is other"
    if any(step.forward_backward_seconds for step in steps):
        note = "communication that the engine does not measure apart is in computing"
    return Table(rows, title, (f"{len(steps)} measured steps", note), source=history.source)


SLOWER = 0.10
STRAGGLER_RULE = "a rank is a straggler when its median is more than 10 % above the median rank's"


def straggler_table(history: History, *, count: int = 8) -> Table:
    """The slowest ranks first; no row where there is nothing to compare, and a note that says why.

    Steps of the last world size only: after a restart on fewer devices a rank's number means another device.
    """
    warm = {(step.segment, step.iteration) for step in measured(history)}
    times = [
        one
        for one in history.rank_times
        if len(one.seconds) > 1 and (one.segment, one.iteration) in warm
    ]
    if not times:
        return Table(
            (), "Ranks", ("one rank, or no time of each rank was written",), source=history.source
        )
    last = [one for one in times if len(one.seconds) == len(times[-1].seconds)]
    medians = [
        statistics.median(seconds) for seconds in zip(*(one.seconds for one in last), strict=True)
    ]
    middle = statistics.median(medians)
    slowest = Counter[int]()
    for one in last:
        slowest[one.seconds.index(max(one.seconds))] += one.steps
    num_steps = slowest.total()
    rows = []
    for rank, seconds in sorted(enumerate(medians), key=lambda one: -one[1]):
        relative = seconds / middle if middle else 1.0
        rows.append(
            {
                "rank": rank,
                "own time (s/iteration)": seconds,
                "over the median rank's (%)": 100 * (relative - 1),
                "slowest of all (% of steps)": 100 * slowest[rank] / num_steps,
                "straggler": "yes" if relative > 1 + SLOWER else "no",
            }
        )
    found = sum(row["straggler"] == "yes" for row in rows)
    shown = rows[:count]
    notes = (
        STRAGGLER_RULE,
        f"{found} of {len(rows)} ranks are stragglers; the {len(shown)} slowest are shown",
    )
    return Table(shown, "Ranks", notes, source=history.source)


GIB = 2**30
COLUMNS = {
    "loss": "loss (nat/token)",
    "grad_norm": "gradient norm",
    "learning_rate": "learning rate",
    "loss_scale": "loss scale",
    "seconds": "step time (s)",
    "data_wait_seconds": "waiting for data (s)",
    "forward_backward_seconds": "forward and backward (s)",
    "communication_seconds": "communication (s)",
    "optimizer_seconds": "optimizer (s)",
    "tokens_per_second": "throughput (tokens/s)",
    "tflops_per_device": "speed (TFLOP/s/device)",
    "memory_bytes": "memory (GiB)",
    "consumed_tokens": "tokens seen (tokens)",
    "global_batch": "global batch (sequences)",
    "world_size": "devices",
    "skipped": "skipped",
    "nan": "NaN",
    "segment": "segment",
    "time": "ended (UTC)",
}
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
    history: History,
    validation: Sequence[ValidationLoss] = (),
    events: Sequence[Event] = (),
    *,
    count: int = 10,
) -> Table:
    """The steps that took longest with what came before them, each with its reason and the evidence for it.

    A reason is start, restart, save, evaluation, data wait, slow rank, or unknown where the records do not explain it.
    """
    usual = measured(history)
    median = statistics.median(step.seconds for step in usual) if usual else 0.0
    usual_wait = statistics.median(step.data_wait_seconds for step in usual) if usual else 0.0
    ranks = {
        (one.segment, one.iteration - n): one
        for one in history.rank_times
        for n in range(one.steps)
    }
    usual_lag = statistics.median([_lag(one.seconds) for one in history.rank_times] or [0.0])
    every = sorted(
        (*history.steps, *history.repeated), key=lambda step: (step.segment, step.iteration)
    )
    timed = [
        (_took(step, before), step, before) for before, step in pairwise((None, *every)) if step
    ]
    rows = []
    for took, step, before in sorted(timed, key=lambda one: -one[0])[:count]:
        causes = _stalls_before(step, before, validation, events) if before else {}
        if before is None:
            causes["start"] = (
                step.seconds - median,
                "first step of the run: memory is reserved, kernels are loaded",
            )
        causes["data wait"] = (
            step.data_wait_seconds - usual_wait,
            f"{step.data_wait_seconds:.3g} s without data",
        )
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
        return {
            "restart": (
                gap,
                f"went on{where} {show_duration(max(gap, 0.0))} after iteration {before.iteration}",
            )
        }
    causes = {}
    if saved := events_named(since, "saved"):
        seconds = sum(event.stalled_seconds for event in saved)
        causes["save"] = (seconds, f"{seconds:.3g} s to save iteration {saved[-1].iteration}")
    if evaluated := [one for one in validation if before.time <= one.time <= step.time]:
        seconds = sum(one.seconds for one in evaluated)
        causes["evaluation"] = (
            seconds,
            f"{seconds:.3g} s to evaluate iteration {evaluated[-1].iteration}",
        )
    return causes
