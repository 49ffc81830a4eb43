"""Metrics of a run: step time and its parts, throughput, loss spikes, slow ranks."""

import math
import statistics
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from runbook.core.table import Table
from runbook.plan_file.alarms import Alarm, LossWatch, MetricWatch
from runbook.results.history import History, Step, ValidationLoss, by_segment

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


def summarize(history: History, *, sequence_length: int, validation: Sequence[ValidationLoss] = ()) -> Summary:
    """All numbers of a history that need nothing but itself and the length of a sequence."""
    steps, used = history.steps, measured(history)
    seconds = [step.seconds for step in used]
    middle = statistics.median(seconds) if seconds else None
    # quantiles needs two values, and one value twice has itself as every quantile
    tenths = (
        statistics.quantiles(seconds * 2 if len(seconds) == 1 else seconds, n=10, method="inclusive") if used else []
    )
    batch, world = (used[-1].global_batch, used[-1].world_size) if used else (0, 0)
    samples = batch / middle if middle and batch else None
    tokens = samples * sequence_length if samples else None
    tflops = [step.tflops_per_device for step in used if step.tflops_per_device is not None]
    losses = [loss for _, loss in history.losses]
    norms = [step.grad_norm for step in steps if step.grad_norm is not None and math.isfinite(step.grad_norm)]
    return Summary(
        iterations=len(steps), first_iteration=steps[0].iteration if steps else 0,
        last_iteration=steps[-1].iteration if steps else 0, measured_iterations=len(used),
        segments=history.num_segments, repeated_iterations=len(history.repeated), world_size=world,
        global_batch=batch, sequence_length=sequence_length, seconds_per_iteration=middle,
        seconds_low=tenths[0] if tenths else None, seconds_high=tenths[-1] if tenths else None,
        samples_per_second=samples, tokens_per_second=tokens,
        tokens_per_second_per_device=tokens / world if tokens and world else None,
        tflops_per_device=statistics.median(tflops) if tflops else None,
        tflops_convention=next((step.tflops_convention for step in reversed(used)), ""),
        data_wait_share=sum(step.data_wait_seconds for step in used) / sum(seconds) if seconds else None,
        memory_bytes=max((step.memory_bytes for step in steps), default=0),
        first_loss=losses[0] if losses else None, last_loss=losses[-1] if losses else None,
        relative_fall=1 - losses[-1] / losses[0] if losses and losses[0] else None,
        lowest_loss=min(losses, default=None), spikes=find_spikes(history.losses),
        skipped=sum(step.skipped for step in steps), nan=sum(step.nan for step in steps),
        largest_grad_norm=max(norms, default=None), consumed_tokens=steps[-1].consumed_tokens if steps else 0,
        validation_loss=validation[-1].loss if validation else None,
    )  # fmt: skip


def find_spikes(losses: Sequence[tuple[int, float]]) -> tuple[Alarm, ...]:
    """The spikes of a loss curve, each once.

    >>> curve = [(n, 3.0 + 0.01 * (n % 3)) for n in range(1, 60)]
    >>> curve[40] = (41, 7.5)
    >>> [(spike.since, spike.value, spike.usual) for spike in find_spikes(curve)]
    [(41, 7.5, 3.01)]
    """
    watch = LossWatch()
    return tuple(alarm for point in losses for alarm in watch.look(*point) if alarm.kind == "spike")


def recovery(spike: Alarm, losses: Sequence[tuple[int, float]]) -> int | None:
    """First iteration at which the curve was back within 2 % of where it was; None where it did not come back."""
    return next((at for at, loss in losses if at > spike.since and loss <= 1.02 * spike.usual), None)


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
    title, steps = "What a step is made of", measured(history)
    if not steps:
        return Table((), title, ("no step was timed",), source=history.source)
    split = [parts_of(step) for step in steps]
    total = sum(step.seconds for step in steps)
    rows = []
    for name in PARTS:
        seconds = [parts[name] for parts in split]
        rows.append(
            {
                "part": name,
                "median (s/iteration)": statistics.median(seconds),
                "longest (s/iteration)": max(seconds),
                "share of step time (%)": 100 * sum(seconds) / total if total else None,
            }
        )
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
    times = [one for one in history.rank_times if len(one.seconds) > 1 and (one.segment, one.iteration) in warm]
    if not times:
        return Table((), "Ranks", ("one rank, or no time of each rank was written",), source=history.source)
    last = [one for one in times if len(one.seconds) == len(times[-1].seconds)]
    medians = [statistics.median(seconds) for seconds in zip(*(one.seconds for one in last), strict=True)]
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
    found, shown = sum(row["straggler"] == "yes" for row in rows), rows[:count]
    notes = (STRAGGLER_RULE, f"{found} of {len(rows)} ranks are stragglers; the {len(shown)} slowest are shown")
    return Table(shown, "Ranks", notes, source=history.source)
