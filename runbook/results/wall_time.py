"""Accounts for the wall time in a run: productive steps, interruptions, device-hours and cost.

- productive: steps that count, each once, without the wait for data
- lost work: steps repeated after a restart from an earlier checkpoint
- detection: from a job's last step or event until its end was noticed
- restart: from then to the first step of the next job
- save stall: time without steps while a checkpoint was written
"""

import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise

from runbook.core import quantities
from runbook.core.table import Row, Table
from runbook.plan_file.fewer_replicas import REPLICAS_CHANGED
from runbook.results.devices_in_use import device_seconds
from runbook.results.expected_loss import LEFT_EVENT
from runbook.results.history import Event, History, Step, ValidationLoss, by_segment, events_named
from runbook.results.messages import ResultMessage
from runbook.results.metrics import Summary

ENDINGS = ("saved", "stopped", "failed", "finished")
"""Names of events a job may write after the last step."""


@dataclass(frozen=True)
class Interruption:
    """A job that ended before training was finished, with the time and steps lost."""

    job: str
    step: int
    """The last iteration in the job that ended."""
    cause: str
    detection_seconds: float
    restart_seconds: float
    lost_steps: int
    went_on_from: str = ""
    """Where the next job loaded its state from: `shared` (a checkpoint), `near own` or `near
    partner`.
    """


@dataclass(frozen=True)
class WallTime:
    """Breakdown of the wall time over all jobs in a run. The parts add up to the wall time."""

    wall_seconds: float
    parts: Mapping[str, float]
    """Seconds in each part by name. The productive time is last."""
    jobs: int
    steps: int
    lost_steps: int
    missing_steps: int
    interruptions: tuple[Interruption, ...]
    waiting_seconds: float = 0.0
    """Seconds from submission to start, summed over all jobs. Start-up and restarts include them.

    No device is allocated to the run during this time.
    """
    productive_device_seconds: float | None = None
    """Device-seconds in productive steps, not counting the time spent waiting for data.

    If the value is None, every device in the job counts for the whole productive time.
    """
    devices_of_job: int = 0
    """Number of devices in the job, if it continued with fewer for a while.

    0 means that all devices trained all the time.
    """

    @property
    def goodput(self) -> float | None:
        """Return the ratio of productive time to wall time, or None if no time has passed."""
        if self.wall_seconds <= 0:
            return None
        return self.parts["productive"] / self.wall_seconds


def account_wall_time(
    history: History, validation: Sequence[ValidationLoss] = (), events: Sequence[Event] = ()
) -> WallTime | None:
    """Return the breakdown of the wall time, or None if no step was completed."""
    steps = sorted(
        (*history.steps, *history.repeated), key=lambda step: (step.segment, step.iteration)
    )
    if not steps:
        return None
    first_step_begin = steps[0].time - steps[0].seconds
    submitted = [event.time for event in events_named(events, "submitted")]
    started = [event.time for event in events_named(events, "started")]
    begin = min([first_step_begin, *submitted, *started])
    end = max([step.time for step in steps] + [_moment(event) for event in events])
    wall_seconds = end - begin
    interruptions = _interruptions(steps, events)
    parts = {"start-up": max(0.0, first_step_begin - begin)}
    parts |= _lost_seconds(history, validation, events, interruptions)
    productive = sum(step.seconds for step in history.steps) - parts[quantities.WAITING_FOR_DATA]
    parts["other"] = max(0.0, wall_seconds - productive - sum(parts.values()))
    parts["productive"] = productive
    missing = history.absent_up_to(history.steps[-1].iteration, history.steps[0].iteration)
    queue_seconds = [_queue_seconds(moment, submitted, started) for moment in submitted]
    return WallTime(
        wall_seconds=wall_seconds,
        parts=parts,
        jobs=max(len(submitted), history.num_segments),
        steps=len(history.steps),
        lost_steps=len(history.repeated),
        missing_steps=len(missing),
        interruptions=interruptions,
        waiting_seconds=sum(queue_seconds) + sum(_chain_waits(events)),
        productive_device_seconds=device_seconds(history.steps),
        devices_of_job=_devices_of_job(history, events),
    )


def _devices_of_job(history: History, events: Sequence[Event]) -> int:
    """Return how many devices the job was allocated if the number of replicas changed, or else 0.

    The steps alone do not show this number if the job never ran with all replicas.
    """
    changes = events_named(events, REPLICAS_CHANGED)
    if not changes:
        return 0
    numbers = [step.world_size for step in history.steps]
    for change in changes:
        if change.replicas and change.world_size:
            ranks_per_replica = change.world_size // change.replicas
            numbers.append(change.planned_replicas * ranks_per_replica)

    return max(numbers)


def _moment(event: Event) -> float:
    """Return the time when an event happened, which may be hours before it was written."""
    if event.name == LEFT_EVENT:
        return -math.inf
    return _ended_at(event) if event.name == "ended" else event.time


def _lost_seconds(
    history: History,
    validation: Sequence[ValidationLoss],
    events: Sequence[Event],
    interruptions: Sequence[Interruption],
) -> dict[str, float]:
    """Return the seconds after the start-up without productive training, by cause."""
    saves = events_named(events, "saved")
    near = events_named(events, "near_saved")
    return {
        "detection": sum(interruption.detection_seconds for interruption in interruptions),
        "restart": sum(interruption.restart_seconds for interruption in interruptions),
        "lost work": sum(step.seconds for step in history.repeated),
        "save stall": sum(save.stalled_seconds for save in [*saves, *near]),
        "evaluation": sum(evaluation.seconds for evaluation in validation),
        quantities.WAITING_FOR_DATA: sum(step.data_wait_seconds for step in history.steps),
    }


def wall_time_table(account: WallTime, title: str = "Where the time went") -> Table:
    """Return a table with seconds and share for every part of the wall time."""
    wall_seconds = account.wall_seconds
    rows = []
    for name, seconds in [("wall time", wall_seconds), *account.parts.items()]:
        share = 100 * seconds / wall_seconds if wall_seconds else None
        rows.append({"part": name, "seconds (s)": round(seconds, 2), "share (%)": share})

    return Table(rows, title, source="metrics.jsonl, validation.jsonl, events.jsonl")


def interruptions_table(account: WallTime, title: str = "Interruptions") -> Table:
    """Return a table showing where each interruption occurred, why, and what it cost."""
    rows = []
    for interruption in account.interruptions:
        rows.append(
            {
                "job": interruption.job,
                "after step": interruption.step,
                "cause": interruption.cause,
                quantities.DETECTION_SECONDS: round(interruption.detection_seconds, 2),
                quantities.RESTART_SECONDS: round(interruption.restart_seconds, 2),
                "steps lost": interruption.lost_steps,
                quantities.RESUMED_FROM: interruption.went_on_from,
            }
        )

    return Table(rows, title, source="events.jsonl, metrics.jsonl")


def stalls_table(
    validation: Sequence[ValidationLoss], events: Sequence[Event], *, wall_seconds: float
) -> Table:
    """Return a table with how often and how long checkpoints and evaluations paused training."""
    saves = [event for event in events_named(events, "saved") if event.seconds is not None]
    save_seconds = [event.stalled_seconds for event in saves]
    evaluation_seconds = [evaluation.seconds for evaluation in validation]
    rows = [
        _stall_row("checkpoint", save_seconds, wall_seconds),
        _stall_row("evaluation", evaluation_seconds, wall_seconds),
    ]
    return Table(rows, "Stalls", source="events.jsonl, validation.jsonl")


def _stall_row(name: str, seconds: Sequence[float], wall_seconds: float) -> Row:
    total_seconds = sum(seconds)
    return {
        "stall": name,
        "count": len(seconds),
        "median (s)": statistics.median(seconds) if seconds else None,
        "longest (s)": max(seconds, default=None),
        "all (s)": total_seconds,
        quantities.SHARE_OF_WALL_TIME: 100 * total_seconds / wall_seconds if wall_seconds else None,
    }


def _interruptions(steps: Sequence[Step], events: Sequence[Event]) -> tuple[Interruption, ...]:
    """Return an interruption for each gap between two jobs that trained."""
    segments = by_segment(steps)
    return tuple(
        _interruption(before[-1], after[0], events) for before, after in pairwise(segments)
    )


def _interruption(last: Step, following: Step, events: Sequence[Event]) -> Interruption:
    """Return the interruption between the last step in a job and the first step in the next job."""
    resumed_at = following.time - following.seconds
    trainer_events = []
    for event in events:
        if event.name in ENDINGS and last.time <= event.time <= resumed_at:
            trainer_events.append(event)

    last_sign = max([last.time, *(event.time for event in trainer_events)])
    end = _find_end(events, last.time, resumed_at)
    if end is None:
        noticed_at = last_sign
        cause = _trainer_reason(trainer_events)
    else:
        noticed_at = min(max(last_sign, _ended_at(end)), resumed_at)
        cause = end.failure or end.why or end.state

    return Interruption(
        job=_job_at(events, last.time),
        step=last.iteration,
        cause=cause,
        detection_seconds=noticed_at - last_sign,
        restart_seconds=max(0.0, resumed_at - noticed_at),
        lost_steps=max(0, last.iteration - following.iteration + 1),
        went_on_from=_last_source(events, last.time, following.time),
    )


def _job_at(events: Sequence[Event], moment: float) -> str:
    """Return the newest job submitted by this moment, or an empty string."""
    jobs = [event.job for event in events_named(events, "submitted") if event.time <= moment]
    return jobs[-1] if jobs else ""


def _last_source(events: Sequence[Event], start: float, end: float) -> str:
    """Return where the last resume in this period loaded its state from, or an empty string."""
    sources = []
    for event in events_named(events, "resumed"):
        if start <= event.time <= end:
            sources.append(event.source)

    return sources[-1] if sources else ""


def _find_end(events: Sequence[Event], last_step_at: float, resumed_at: float) -> Event | None:
    """Return the event `ended` between two steps, or None if nobody noticed that the job ended."""
    for event in sorted(events_named(events, "ended"), key=_ended_at):
        if last_step_at - 1 <= _ended_at(event) <= resumed_at:
            return event

    return None


def _queue_seconds(
    submitted_at: float, submitted: Sequence[float], started: Sequence[float]
) -> float:
    """Return the seconds between submitting a job and its start.

    Return 0 if the next job was submitted before this job started.
    """
    later = (moment for moment in submitted if moment > submitted_at)
    next_submitted_at = min(later, default=float("inf"))
    starts = (moment for moment in started if submitted_at <= moment <= next_submitted_at)
    return min(starts, default=submitted_at) - submitted_at


def _chain_waits(events: Sequence[Event]) -> list[float]:
    """Return, for each job in a chain, the seconds from its end to the start of the next job.

    The jobs share a folder, and the user submitted only the first job.
    """
    waits = []
    for before, after in pairwise(events_named(events, "attempt_began")):
        if before.job != after.job or before.id == after.id:
            continue
        ends = []
        for event in events_named(events, "ended"):
            if before.time <= _ended_at(event) <= after.time:
                # A job that waits before it ends still holds its nodes.
                ends.append(min(_ended_at(event) + event.waits, after.time))

        if ends:
            waits.append(after.time - max(ends))

    return waits


def _trainer_reason(events: Sequence[Event]) -> str:
    """Return the reason for ending given by the trainer itself.

    It is used if nobody was watching the job.
    """
    ends = events_named(events, "stopped") or events_named(events, "failed")
    if not ends:
        return "not noted"
    end = ends[0]
    reason = end.signal or end.reason
    if reason:
        return f"{end.name} ({reason}), while nobody was watching"
    return f"{end.name}, while nobody was watching"


def _ended_at(event: Event) -> float:
    return event.time if event.at is None else event.at


@dataclass(frozen=True)
class Rates:
    """Price and power per device. A field is None if no value is stated."""

    price_per_device_hour: float | None = None
    currency: str = ""
    watts_per_device: float | None = None
    """Watts per device, either measured or from the datasheet, as `watts_source` states."""
    watts_source: str = ""
    held_devices: float = 1.0
    """Number of allocated devices per training device; more than 1 if a job has spare nodes."""


def cost_table(summary: Summary, account: WallTime, rates: Rates) -> Table:
    """Return a table with the device-hours, energy and cost up to now.

    The values cover the wall time except the time spent waiting for jobs to start.
    """
    devices = account.devices_of_job or summary.world_size
    held_seconds = account.wall_seconds - account.waiting_seconds
    held_hours = held_seconds * devices * rates.held_devices / 3600
    productive_seconds = account.productive_device_seconds
    if productive_seconds is None:
        productive_seconds = account.parts["productive"] * devices
    productive_hours = productive_seconds / 3600
    held_rule = (
        f"wall time without waiting for jobs to begin, x {devices * rates.held_devices:g} devices"
    )
    productive_rule = "without restarts, saves, evaluations and waiting"
    rows = [
        _cost_row("device-hours", held_hours, "h", held_rule),
        _cost_row(quantities.PRODUCTIVE_DEVICE_HOURS, productive_hours, "h", productive_rule),
        *_energy_and_money(held_hours, rates),
    ]
    return Table(rows, "What it cost", source="metrics.jsonl, events.jsonl")


def projection_table(
    summary: Summary,
    *,
    target_tokens: int,
    goodput: float | None,
    rates: Rates,
) -> Table:
    """Return a table with the time and cost to train on this many tokens at the same speed.

    Without `goodput`, the table shows the best case.
    """
    tokens_per_second = summary.tokens_per_second
    days = None
    device_hours = None
    if tokens_per_second:
        days = target_tokens / tokens_per_second / (goodput or 1.0) / 86400
        device_hours = days * 24 * summary.world_size

    rows = [
        _cost_row("tokens", target_tokens, "tokens", ""),
        _cost_row("speed", tokens_per_second, "tokens/s", "median after warm-up"),
        _cost_row("time", days, "days", ""),
        _cost_row("device-hours", device_hours, "h", f"{summary.world_size} devices"),
        *_energy_and_money(device_hours, rates),
    ]
    if goodput:
        note = ResultMessage.WITH_GOODPUT.fill(goodput=goodput)
    else:
        note = ResultMessage.BEST_CASE.fill()

    return Table(rows, "To train on a number of tokens", (note,), source="metrics.jsonl")


def _energy_and_money(device_hours: float | None, rates: Rates) -> list[Row]:
    energy_kwh = None
    energy_rule = "not measured"
    if device_hours is not None and rates.watts_per_device:
        energy_kwh = device_hours * rates.watts_per_device / 1000
        energy_rule = f"{rates.watts_per_device:g} W per device, {rates.watts_source}"

    money = None
    price_rule = ResultMessage.NO_PRICE.fill()
    if device_hours is not None and rates.price_per_device_hour:
        money = device_hours * rates.price_per_device_hour
        price_rule = ResultMessage.PRICE.fill(price=rates.price_per_device_hour)

    return [
        _cost_row("energy", energy_kwh, "kWh", energy_rule),
        _cost_row("cost", money, rates.currency or "currency", price_rule),
    ]


def _cost_row(
    name: str,
    value: float | None,
    unit: str,
    how: str,
) -> Row:
    return {
        "what": name,
        "value": value,
        "unit": unit,
        "how": how,
    }
