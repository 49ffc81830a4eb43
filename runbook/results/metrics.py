"""Computes metrics for a run: step time by part, throughput, loss spikes, slow steps."""

import math
import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from runbook.core import quantities
from runbook.core.table import Row, Table, pandas
from runbook.core.units import GIB, show_duration
from runbook.plan_file.alarms import (
    NO_SETTINGS,
    Alarm,
    AlarmSettings,
    LossWatch,
    MetricWatch,
)
from runbook.results.devices_in_use import usual_devices
from runbook.results.history import (
    Event,
    History,
    RankTimes,
    Step,
    ValidationLoss,
    by_segment,
    events_named,
)
from runbook.results.messages import ResultMessage

WARM_UP_RULE = (
    "skipped iterations and the first tenth of each segment (1 to 10 iterations) are left out"
)


@dataclass(frozen=True)
class Summary:
    """Results from a phase. A result is None if it is not in the run's files."""

    iterations: int
    first_iteration: int
    last_iteration: int
    measured_iterations: int
    """Number of iterations the medians are computed from, without the warm-up."""
    segments: int
    repeated_iterations: int
    world_size: int
    global_batch: int
    sequence_length: int
    seconds_per_iteration: float | None
    """Median step time."""
    seconds_low: float | None
    """10th percentile of the step time."""
    seconds_high: float | None
    """90th percentile of the step time."""
    samples_per_second: float | None
    tokens_per_second: float | None
    """Total over all devices: global batch x sequence length / median seconds."""
    tokens_per_second_per_device: float | None
    tflops_per_device: float | None
    """Median TFLOP/s per device, as computed by the trainer."""
    tflops_convention: str
    data_wait_share: float | None
    """Share of the measured step time spent waiting for data."""
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
    """Loss in the last evaluation."""


def measured(history: History) -> list[Step]:
    """Return the steps used to compute medians.

    These are the steps on the usual number of devices, without warm-up and skipped steps. If no
    such step remains, return every timed step.
    """
    steady_steps = []
    for segment_steps in by_segment(history.steps):
        num_warm_up = min(10, max(1, len(segment_steps) // 10))
        for step in segment_steps[num_warm_up:]:
            if step.seconds > 0 and not step.skipped:
                steady_steps.append(step)

    timed_steps = steady_steps or [step for step in history.steps if step.seconds > 0]
    # A median over steps on 16 nodes and steps on 8 nodes would be meaningless.
    devices = usual_devices(timed_steps)
    return [step for step in timed_steps if step.world_size == devices]


@dataclass(frozen=True)
class _Timing:
    """Step time and throughput over the measured steps. Values are None if no step was measured."""

    seconds_median: float | None
    seconds_low: float | None
    seconds_high: float | None
    samples_per_second: float | None
    tokens_per_second: float | None
    data_wait_share: float | None


def summarize(
    history: History, *, sequence_length: int, validation: Sequence[ValidationLoss] = ()
) -> Summary:
    """Compute and return the results from the history, the sequence length and the evaluations."""
    steps = history.steps
    measured_steps = measured(history)
    global_batch = measured_steps[-1].global_batch if measured_steps else 0
    world_size = measured_steps[-1].world_size if measured_steps else 0
    timing = _summarize_timing(measured_steps, global_batch, sequence_length)
    losses = [loss for _, loss in history.losses]
    iterations = [step.iteration for step in steps] or [0]
    return Summary(
        iterations=len(steps),
        first_iteration=iterations[0],
        last_iteration=iterations[-1],
        measured_iterations=len(measured_steps),
        segments=history.num_segments,
        repeated_iterations=len(history.repeated),
        world_size=world_size,
        global_batch=global_batch,
        sequence_length=sequence_length,
        seconds_per_iteration=timing.seconds_median,
        seconds_low=timing.seconds_low,
        seconds_high=timing.seconds_high,
        samples_per_second=timing.samples_per_second,
        tokens_per_second=timing.tokens_per_second,
        tokens_per_second_per_device=_per_device(timing.tokens_per_second, world_size),
        tflops_per_device=_median_tflops(measured_steps),
        tflops_convention=measured_steps[-1].tflops_convention if measured_steps else "",
        data_wait_share=timing.data_wait_share,
        memory_bytes=max((step.memory_bytes for step in steps), default=0),
        first_loss=losses[0] if losses else None,
        last_loss=losses[-1] if losses else None,
        relative_fall=_relative_fall(losses),
        lowest_loss=min(losses, default=None),
        spikes=find_spikes(history.losses, history.grad_norms, history.alarm_settings),
        skipped=sum(step.skipped for step in steps),
        nan=sum(step.nan for step in steps),
        largest_grad_norm=max(history.grad_norms.values(), default=None),
        consumed_tokens=steps[-1].consumed_tokens if steps else 0,
        validation_loss=validation[-1].loss if validation else None,
    )


def _summarize_timing(
    measured_steps: Sequence[Step], global_batch: int, sequence_length: int
) -> _Timing:
    """Return step time, spread, throughput and the wait for data."""
    if not measured_steps:
        return _Timing(
            None,
            None,
            None,
            None,
            None,
            None,
        )

    seconds = [step.seconds for step in measured_steps]
    median = statistics.median(seconds)
    # `quantiles` needs two values. If there is only one value, use it twice, to make every quantile
    # equal to this value.
    values = seconds * 2 if len(seconds) == 1 else seconds
    deciles = statistics.quantiles(values, n=10, method="inclusive")
    if median and global_batch:
        samples_per_second = global_batch / median
    else:
        samples_per_second = None

    tokens_per_second = None
    if samples_per_second:
        tokens_per_second = samples_per_second * sequence_length
    data_wait_seconds = sum(step.data_wait_seconds for step in measured_steps)
    return _Timing(
        seconds_median=median,
        seconds_low=deciles[0],
        seconds_high=deciles[-1],
        samples_per_second=samples_per_second,
        tokens_per_second=tokens_per_second,
        data_wait_share=data_wait_seconds / sum(seconds),
    )


def _per_device(tokens_per_second: float | None, world_size: int) -> float | None:
    if not tokens_per_second or not world_size:
        return None
    return tokens_per_second / world_size


def _median_tflops(steps: Sequence[Step]) -> float | None:
    """Return the median TFLOP/s recorded by the trainer, or None if none were recorded."""
    tflops = []
    for step in steps:
        if step.tflops_per_device is not None:
            tflops.append(step.tflops_per_device)

    return statistics.median(tflops) if tflops else None


def _relative_fall(losses: Sequence[float]) -> float | None:
    """Return how far the loss fell from first to last, as a share of the first loss."""
    if not losses or not losses[0]:
        return None
    return 1 - losses[-1] / losses[0]


def find_spikes(
    losses: Sequence[tuple[int, float]],
    grad_norms: Mapping[int, float] = {},
    settings: AlarmSettings = NO_SETTINGS,
) -> tuple[Alarm, ...]:
    """Return all spikes in a loss curve, each once.

    Gradient norms (by iteration) show whether a jump is merely due to a batch with unusual text.

    >>> curve = [(n, 3.0 + 0.01 * (n % 3)) for n in range(1, 60)]
    >>> curve[40] = (41, 7.5)
    >>> [(spike.since, spike.value, spike.usual) for spike in find_spikes(curve)]
    [(41, 7.5, 3.01)]
    """
    watch = LossWatch()
    spikes = []
    for iteration, loss in losses:
        if not settings.looks_at(iteration):
            continue
        grad_norm = grad_norms.get(iteration, math.nan)
        for alarm in watch.look(iteration, loss, grad_norm):
            if alarm.kind == "spike":
                spikes.append(alarm)

    return tuple(spikes)


def recovery(spike: Alarm, losses: Sequence[tuple[int, float]]) -> int | None:
    """Return the first iteration after a spike at which the loss is within 2 % of the usual loss.

    Return None if the loss did not recover.
    """
    highest = 1.02 * spike.usual
    for iteration, loss in losses:
        if iteration > spike.since and loss <= highest:
            return iteration

    return None


class EvaluatedLoss(Protocol):
    """A loss on held-out text."""

    @property
    def iteration(self) -> int | None:
        """Return the iteration after which the loss was computed, or None if it is unknown."""

    @property
    def loss(self) -> float:
        """Return the loss in nat/token."""


def find_alarms(
    steps: Iterable[object],
    evaluations: Iterable[EvaluatedLoss] = (),
    settings: AlarmSettings = NO_SETTINGS,
) -> list[Alarm]:
    """Apply the rules the trainer uses during training, and return the alarms.

    `steps` are steps from our own runs, or records from any log.
    """
    watch = MetricWatch(settings)
    alarms: list[Alarm] = []
    for step in steps:
        alarms.extend(watch.look(step))
    for evaluation in evaluations:
        name = getattr(evaluation, "name", "validation")
        alarms.extend(watch.look_at_evaluation(evaluation.iteration, evaluation.loss, name))

    return alarms


PARTS = (quantities.WAITING_FOR_DATA, "computing", "communication", "optimizer", "other")


def parts_of(step: Step) -> dict[str, float]:
    """Return the seconds by part for a step. They add up to the step time.

    Time the trainer did not measure is in `other`. If the engine does not measure `communication`
    separately, that time is in `computing`.
    """
    data_wait = min(step.data_wait_seconds, step.seconds)
    # The forward-backward time in the trainer includes the wait for a batch.
    forward_backward = max(0.0, step.forward_backward_seconds - data_wait)
    communication = min(step.communication_seconds, forward_backward)
    after_backward = max(0.0, step.seconds - data_wait - forward_backward)
    optimizer = min(step.optimizer_seconds, after_backward)
    return {
        quantities.WAITING_FOR_DATA: data_wait,
        "computing": forward_backward - communication,
        "communication": communication,
        "optimizer": optimizer,
        "other": after_backward - optimizer,
    }


def step_parts_table(history: History) -> Table:
    """Return a table with the median, maximum and share for each part of the measured steps."""
    title = "Parts of a step"
    steps = measured(history)
    if not steps:
        return Table((), title, ("no step was timed",), source=history.source)
    parts_by_step = [parts_of(step) for step in steps]
    total_seconds = sum(step.seconds for step in steps)
    rows = []
    for name in PARTS:
        seconds = [parts[name] for parts in parts_by_step]
        rows.append(
            {
                "part": name,
                "median (s/iteration)": statistics.median(seconds),
                "longest (s/iteration)": max(seconds),
                quantities.SHARE_OF_STEP_TIME: 100 * sum(seconds) / total_seconds,
            }
        )

    note = ResultMessage.NO_PARTS.fill()
    if any(step.forward_backward_seconds for step in steps):
        note = ResultMessage.SOME_COMMUNICATION_APART.fill()
    return Table(rows, title, (f"{len(steps)} measured steps", note), source=history.source)


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
    "tokens_per_second": quantities.THROUGHPUT,
    "tflops_per_device": quantities.SPEED,
    "memory_bytes": "memory (GiB)",
    "consumed_tokens": "tokens seen (tokens)",
    "global_batch": "global batch (sequences)",
    "world_size": "devices",
    "skipped": "skipped",
    "nan": "NaN",
    "segment": "segment",
    "time": "ended (UTC)",
}
"""Data frame columns for the history, by the name of the field in a step."""
REASON_RULE = (
    "a step's time runs from the end of the previous step to its own end; its reason is the "
    "longest recorded stall, if the recorded stalls are at least half of the time beyond the "
    "median step"
)


def history_frame(history: History) -> Any:
    """Return a pandas DataFrame with one row per step over all restarts, indexed by iteration.

    If two jobs ran the same step, the later result is used. Missing values are NaN.
    """
    columns = {}
    for field, column in COLUMNS.items():
        columns[column] = [getattr(step, field) for step in history.steps]
    iterations = [step.iteration for step in history.steps]
    frame = pandas().DataFrame(columns, index=pandas().Index(iterations, name="iteration"))
    # None is replaced by NaN to make the columns numeric.
    optional_columns = [COLUMNS[field] for field in ("loss", "grad_norm", "tflops_per_device")]
    frame[optional_columns] = frame[optional_columns].astype(float)
    frame["memory (GiB)"] /= GIB
    frame["ended (UTC)"] = pandas().to_datetime(frame["ended (UTC)"], unit="s", utc=True)
    return frame


@dataclass(frozen=True)
class _Stall:
    """A recorded delay, used to explain a long step."""

    reason: str
    seconds: float
    """Seconds beyond the usual delay in a step."""
    evidence: str


@dataclass(frozen=True)
class _TimedStep:
    """A step, the previous step (None for the first), and the time between their ends."""

    step: Step
    before: Step | None
    elapsed_seconds: float


def slow_steps_table(
    history: History,
    validation: Sequence[ValidationLoss] = (),
    events: Sequence[Event] = (),
    *,
    count: int = 10,
) -> Table:
    """Return the steps that took longest, each with the reason and the evidence.

    The reason is start, restart, save, evaluation, data wait or slow rank, or unknown if the
    records do not explain the step.
    """
    measured_steps = measured(history)
    usual_seconds = _median_or_zero([step.seconds for step in measured_steps])
    usual_wait = _median_or_zero([step.data_wait_seconds for step in measured_steps])
    usual_lag = _median_or_zero([_lag(times.seconds) for times in history.rank_times])
    rank_times_by_step = _rank_times_by_step(history)
    timed_steps = _time_steps(history)
    slowest_first = sorted(timed_steps, key=lambda timed: -timed.elapsed_seconds)
    rows = []
    for timed in slowest_first[:count]:
        step = timed.step
        if timed.before is None:
            stalls = [_start_stall(step, usual_seconds)]
        else:
            stalls = _stalls_before(step, timed.before, validation, events)

        stalls.append(_data_stall(step, usual_wait))
        rank_times = rank_times_by_step.get((step.segment, step.iteration))
        if rank_times is not None:
            stalls.append(_rank_stall(rank_times, usual_lag))
        rows.append(_slow_step_row(timed, stalls, usual_seconds))

    notes = (f"median step: {usual_seconds:.4g} s", REASON_RULE)
    title = f"The {len(rows)} slowest of {len(timed_steps)} steps"
    source = "metrics.jsonl, rank_times.jsonl, validation.jsonl, events.jsonl"
    return Table(rows, title, notes, source=source)


def _median_or_zero(values: Sequence[float]) -> float:
    return statistics.median(values) if values else 0.0


def _time_steps(history: History) -> list[_TimedStep]:
    """Return all steps in the order in which they ran, including repeated ones."""
    steps = sorted(
        (*history.steps, *history.repeated), key=lambda step: (step.segment, step.iteration)
    )
    timed_steps = []
    before: Step | None = None
    for step in steps:
        timed_steps.append(_TimedStep(step, before, _elapsed_seconds(step, before)))
        before = step

    return timed_steps


def _rank_times_by_step(history: History) -> dict[tuple[int, int], RankTimes]:
    """Return rank times by segment and iteration.

    A record covers all iterations it averages.
    """
    by_step = {}
    for rank_times in history.rank_times:
        for steps_back in range(rank_times.steps):
            by_step[rank_times.segment, rank_times.iteration - steps_back] = rank_times

    return by_step


def _slow_step_row(timed: _TimedStep, stalls: Sequence[_Stall], usual_seconds: float) -> Row:
    """Return the row for a step in the table of slow steps. The reason is the longest stall."""
    over_seconds = timed.elapsed_seconds - usual_seconds
    longest = max(stalls, key=lambda stall: (stall.seconds, stall.reason))
    explained_seconds = sum(max(stall.seconds, 0.0) for stall in stalls)
    is_explained = longest.seconds > 0 and explained_seconds >= over_seconds / 2
    worth_telling = max(0.1 * over_seconds, 0.0)
    evidence = [stall.evidence for stall in stalls if stall.seconds > worth_telling]
    return {
        "iteration": timed.step.iteration,
        "took (s)": timed.elapsed_seconds,
        "step time (s)": timed.step.seconds,
        "over the median (s)": over_seconds,
        "reason": longest.reason if is_explained else "unknown",
        "evidence": "; ".join(evidence) or "nothing in the records explains it",
    }


def _elapsed_seconds(step: Step, before: Step | None) -> float:
    """Return the seconds since the previous step ended.

    The result is at least the measured step time, since clocks on two machines may differ.
    """
    if before is None or not before.time:
        return step.seconds
    return max(step.seconds, step.time - before.time)


def _lag(seconds: Sequence[float]) -> float:
    """Return the lag of the slowest rank behind the median rank, or behind the faster of two."""
    return max(seconds) - statistics.median_low(seconds)


def _start_stall(step: Step, usual_seconds: float) -> _Stall:
    evidence = "first step of the run: memory is allocated, kernels are loaded"
    return _Stall("start", step.seconds - usual_seconds, evidence)


def _data_stall(step: Step, usual_wait: float) -> _Stall:
    evidence = f"{step.data_wait_seconds:.3g} s without data"
    return _Stall("data wait", step.data_wait_seconds - usual_wait, evidence)


def _rank_stall(rank_times: RankTimes, usual_lag: float) -> _Stall:
    """Return the stall caused by the slowest rank, minus the usual lag."""
    slowest_seconds = max(rank_times.seconds)
    slowest_rank = rank_times.seconds.index(slowest_seconds)
    lag = _lag(rank_times.seconds)
    evidence = (
        f"rank {slowest_rank} computed {slowest_seconds:.3g} s, "
        f"{lag:.3g} s longer than the median rank"
    )
    return _Stall("slow rank", lag - usual_lag, evidence)


def _stalls_before(
    step: Step,
    before: Step,
    validation: Sequence[ValidationLoss],
    events: Sequence[Event],
) -> list[_Stall]:
    """Return the stalls from the end of the previous step to the end of this one."""
    events_between = [event for event in events if before.time <= event.time <= step.time]
    if before.segment != step.segment:
        return [_restart_stall(step, before, events_between)]
    stalls = []
    saves = events_named(events_between, "saved")
    if saves:
        seconds = sum(event.stalled_seconds for event in saves)
        evidence = f"{seconds:.3g} s to save iteration {saves[-1].iteration}"
        stalls.append(_Stall("save", seconds, evidence))

    evaluations = []
    for evaluation in validation:
        if before.time <= evaluation.time <= step.time:
            evaluations.append(evaluation)

    if evaluations:
        seconds = sum(evaluation.seconds for evaluation in evaluations)
        evidence = f"{seconds:.3g} s to evaluate iteration {evaluations[-1].iteration}"
        stalls.append(_Stall("evaluation", seconds, evidence))

    return stalls


def _restart_stall(step: Step, before: Step, events_between: Sequence[Event]) -> _Stall:
    """Return the gap between two jobs as a stall, with the checkpoint folder if it was recorded."""
    loads = [event for event in events_between if event.name in ("resumed", "rolled_back")]
    where = ""
    if loads and loads[-1].folder:
        where = f" from {loads[-1].folder}"
    gap_seconds = step.time - step.seconds - before.time
    duration = show_duration(max(gap_seconds, 0.0))
    evidence = f"continued{where} {duration} after iteration {before.iteration}"
    return _Stall("restart", gap_seconds, evidence)
