"""What a history amounts to: step time, throughput, loss, spikes, and where the wall time went."""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

from runbook.analysis.history import Evaluation, History, Step, events_named

WARM_UP_RULE = "skipped iterations and the first tenth of each segment (at least 1, at most 10 iterations) are left out"
SPIKE_RULE = "loss above the median of the 20 before it by more than 8 times their median deviation and by 5 %"


ENDINGS = ("saved", "stopped", "failed", "finished")
"""Events that a segment writes after its last step; `started` and `resumed` belong to the next one."""


@dataclass(frozen=True)
class Spike:
    """A loss that jumped out of the curve."""

    iteration: int
    loss: float
    before: float
    """Median loss before it."""
    recovered_at: int | None
    """First iteration back within 2 % of that median; None: it did not come back."""


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
    missing_iterations: int
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
    spikes: tuple[Spike, ...]
    skipped: int
    nan: int
    largest_grad_norm: float | None
    consumed_tokens: int
    validation_loss: float | None
    """The last evaluation's."""
    rule: str = WARM_UP_RULE


def measured(history: History) -> list[Step]:
    """The steps behind the medians: warm-up and skipped steps left out; all steps where nothing would remain."""
    by_segment: dict[int, list[Step]] = {}
    for step in history.steps:
        by_segment.setdefault(step.segment, []).append(step)
    kept = [
        step
        for steps in by_segment.values()
        for step in steps[min(10, max(1, len(steps) // 10)) :]
        if not step.skipped and step.seconds > 0
    ]
    return kept or [step for step in history.steps if step.seconds > 0]


def percentile(values: Sequence[float], share: float) -> float:
    """The value below which `share` of the values lie, interpolated.

    >>> percentile([1.0, 2.0, 3.0, 4.0, 5.0], 0.5), percentile([2.0], 0.9)
    (3.0, 2.0)
    """
    ordered = sorted(values)
    place = share * (len(ordered) - 1)
    low = math.floor(place)
    high = min(low + 1, len(ordered) - 1)
    return ordered[low] + (ordered[high] - ordered[low]) * (place - low)


def summarize(history: History, *, sequence_length: int, validation: Sequence[Evaluation] = ()) -> Summary:
    """All numbers of a history that need nothing but itself and the length of a sequence."""
    steps, used = history.steps, measured(history)
    seconds = [step.seconds for step in used]
    middle = statistics.median(seconds) if seconds else None
    batch, world = (used[-1].global_batch, used[-1].world_size) if used else (0, 0)
    samples = batch / middle if middle and batch else None
    tokens = samples * sequence_length if samples else None
    tflops = [step.tflops_per_device for step in used if step.tflops_per_device is not None]
    losses = [loss for _, loss in history.losses]
    norms = [step.grad_norm for step in steps if step.grad_norm is not None and math.isfinite(step.grad_norm)]
    return Summary(
        iterations=len(steps),
        first_iteration=steps[0].iteration if steps else 0,
        last_iteration=steps[-1].iteration if steps else 0,
        measured_iterations=len(used),
        segments=history.num_segments,
        repeated_iterations=len(history.repeated),
        missing_iterations=len(history.missing_iterations),
        world_size=world,
        global_batch=batch,
        sequence_length=sequence_length,
        seconds_per_iteration=middle,
        seconds_low=percentile(seconds, 0.1) if seconds else None,
        seconds_high=percentile(seconds, 0.9) if seconds else None,
        samples_per_second=samples,
        tokens_per_second=tokens,
        tokens_per_second_per_device=tokens / world if tokens and world else None,
        tflops_per_device=statistics.median(tflops) if tflops else None,
        tflops_convention=next((step.tflops_convention for step in reversed(used)), ""),
        data_wait_share=sum(step.data_wait_seconds for step in used) / sum(seconds) if seconds else None,
        memory_bytes=max((step.memory_bytes for step in steps), default=0),
        first_loss=losses[0] if losses else None,
        last_loss=losses[-1] if losses else None,
        relative_fall=1 - losses[-1] / losses[0] if losses and losses[0] else None,
        lowest_loss=min((loss for loss in losses if math.isfinite(loss)), default=None),
        spikes=find_spikes(history.losses),
        skipped=sum(step.skipped for step in steps),
        nan=sum(step.nan for step in steps),
        largest_grad_norm=max(norms, default=None),
        consumed_tokens=steps[-1].consumed_tokens if steps else 0,
        validation_loss=validation[-1].loss if validation else None,
    )


def find_spikes(losses: Sequence[tuple[int, float]], window: int = 20) -> tuple[Spike, ...]:
    """Jumps of the loss by `SPIKE_RULE`, each told once, with the iteration at which the curve was back.

    >>> curve = [(n, 3.0 + 0.01 * (n % 3)) for n in range(1, 60)]
    >>> curve[40] = (41, 7.5)
    >>> find_spikes(curve)
    (Spike(iteration=41, loss=7.5, before=3.01, recovered_at=42),)
    """
    found: list[Spike] = []
    place = window
    while place < len(losses):
        iteration, loss = losses[place]
        before = [loss for _, loss in losses[place - window : place]]
        if loss <= 1.05 * min(before) and loss >= 0:  # the median is no lower: the usual case, in a tenth of the time
            place += 1
            continue
        middle = statistics.median(before)
        deviation = statistics.median(abs(loss - middle) for loss in before)
        if not loss > middle + max(8 * deviation, 0.05 * abs(middle)):
            place += 1
            continue
        back = next((at for at in range(place + 1, len(losses)) if losses[at][1] <= 1.02 * middle), None)
        found.append(Spike(iteration, loss, middle, None if back is None else losses[back][0]))
        if back is None:
            break
        place = back + window if back + window < len(losses) else len(losses)
    return tuple(found)


@dataclass(frozen=True)
class Goodput:
    """Wall time of a phase, cut into parts; what no part explains is `other_seconds`."""

    wall_seconds: float
    training_seconds: float
    """Steps that count, without waiting for data."""
    data_wait_seconds: float
    evaluation_seconds: float
    save_seconds: float
    repeated_seconds: float
    """Steps done again because a restart went back to a checkpoint."""
    restart_seconds: float
    """From the last sign of life of a segment to the first step of the next."""
    startup_seconds: float
    """From the start of the first segment to the start of its first step."""
    other_seconds: float

    @property
    def share(self) -> float | None:
        """Training seconds / wall seconds: what is called goodput or effective training time."""
        return self.training_seconds / self.wall_seconds if self.wall_seconds > 0 else None

    def parts(self) -> list[tuple[str, float]]:
        """(name, seconds) of every part, in the order of a waterfall from wall time down to training."""
        return [
            ("start-up", self.startup_seconds),
            ("restarts", self.restart_seconds),
            ("repeated steps", self.repeated_seconds),
            ("saving checkpoints", self.save_seconds),
            ("evaluation", self.evaluation_seconds),
            ("waiting for data", self.data_wait_seconds),
            ("other", self.other_seconds),
            ("training", self.training_seconds),
        ]


def goodput(
    history: History, validation: Iterable[Evaluation] = (), events: Sequence[Mapping[str, Any]] = ()
) -> Goodput:
    """Where the wall time went; parts that no file tells are 0 and end up in `other_seconds`."""
    everything = sorted((*history.steps, *history.repeated), key=lambda step: step.time)
    if not everything:
        return Goodput(0, 0, 0, 0, 0, 0, 0, 0, 0)
    stamps = [float(event["time"]) for event in events if "time" in event]
    endings = [float(event["time"]) for name in ENDINGS for event in events_named(events, name) if "time" in event]
    first_step_began = everything[0].time - everything[0].seconds
    begin = min([first_step_began, *(float(e["time"]) for e in events_named(events, "started"))])
    end = max([everything[-1].time, *stamps])
    wait = sum(step.data_wait_seconds for step in history.steps)
    parts = {
        "training_seconds": sum(step.seconds for step in history.steps) - wait,
        "data_wait_seconds": wait,
        "evaluation_seconds": sum(one.seconds for one in validation),
        "save_seconds": sum(float(event.get("seconds", 0)) for event in events_named(events, "saved")),
        "repeated_seconds": sum(step.seconds for step in history.repeated),
        "restart_seconds": _restart_seconds(everything, endings),
        "startup_seconds": max(0.0, first_step_began - begin),
    }
    wall = end - begin
    return Goodput(wall_seconds=wall, other_seconds=max(0.0, wall - sum(parts.values())), **parts)


def _restart_seconds(steps: Sequence[Step], endings: Sequence[float]) -> float:
    """Gaps between segments; what a segment still wrote after its last step (a save, a stop) is not part of the gap."""
    total = 0.0
    for before, after in pairwise(steps):
        if after.segment == before.segment:
            continue
        began = after.time - after.seconds
        last_sign = max([before.time, *(stamp for stamp in endings if before.time <= stamp <= began)])
        total += max(0.0, began - last_sign)
    return total
