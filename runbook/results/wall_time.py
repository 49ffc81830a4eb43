"""Wall time of a run: productive steps, interruptions, goodput, device-hours and cost.

productive      steps that count, each once, without waiting for data
lost work       steps that were done again after a restart went back to a checkpoint
detection       from a job's last sign of life to its end being known
restart         from there to the first step of the next job
save stall      time in which no step was made because a checkpoint was written
"""

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise

from runbook.core.table import Table
from runbook.results.history import Event, History, Step, ValidationLoss, by_segment, events_named
from runbook.results.metrics import Summary

ENDINGS = ("saved", "stopped", "failed", "finished")
"""Events that a job still writes after its last step."""


@dataclass(frozen=True)
class Interruption:
    """The end of one job before the training's end, and what came of it."""

    job: str
    step: int
    """The last step it had done."""
    cause: str
    detection_seconds: float
    restart_seconds: float
    lost_steps: int


@dataclass(frozen=True)
class WallTime:
    """Where the wall time of a logical run went; the parts add up to it."""

    wall_seconds: float
    parts: Mapping[str, float]
    """Seconds by name, from wall time down to what was productive."""
    jobs: int
    steps: int
    lost_steps: int
    missing_steps: int
    interruptions: tuple[Interruption, ...]
    waiting_seconds: float = 0.0
    """From a job's submission until it began, of start-up and restarts: no device was held in it."""

    @property
    def goodput(self) -> float | None:
        """Productive step time / wall time."""
        return self.parts["productive"] / self.wall_seconds if self.wall_seconds > 0 else None


def account_wall_time(
    history: History, validation: Sequence[ValidationLoss] = (), events: Sequence[Event] = ()
) -> WallTime | None:
    """The account of a run; None where no step was made."""
    steps = sorted(
        (*history.steps, *history.repeated), key=lambda step: (step.segment, step.iteration)
    )
    if not steps:
        return None
    first = steps[0].time - steps[0].seconds
    submitted = [event.time for event in events_named(events, "submitted")]
    started = [event.time for event in events_named(events, "started")]
    begin = min([first, *submitted, *started])
    end = max([step.time for step in steps] + [event.time for event in events])
    interruptions = _interruptions(steps, events)
    wait = sum(step.data_wait_seconds for step in history.steps)
    parts = {
        "start-up": max(0.0, first - begin),
        "detection": sum(one.detection_seconds for one in interruptions),
        "restart": sum(one.restart_seconds for one in interruptions),
        "lost work": sum(step.seconds for step in history.repeated),
        "save stall": sum(event.stalled_seconds for event in events_named(events, "saved")),
        "evaluation": sum(one.seconds for one in validation),
        "waiting for data": wait,
    }
    productive = sum(step.seconds for step in history.steps) - wait
    other = max(0.0, end - begin - productive - sum(parts.values()))
    return WallTime(
        wall_seconds=end - begin,
        parts={**parts, "other": other, "productive": productive},
        jobs=max(len(submitted), history.num_segments),
        steps=len(history.steps),
        lost_steps=len(history.repeated),
        missing_steps=len(
            history.absent_up_to(history.steps[-1].iteration, history.steps[0].iteration)
        ),
        interruptions=interruptions,
        waiting_seconds=sum(_queue_seconds(at, submitted, started) for at in submitted),
    )


def wall_time_table(account: WallTime, title: str = "Where the time went") -> Table:
    """Seconds and share of every part of the wall time."""
    wall = account.wall_seconds
    rows = [
        {
            "part": name,
            "seconds (s)": round(seconds, 2),
            "share (%)": 100 * seconds / wall if wall else None,
        }
        for name, seconds in [("wall time", wall), *account.parts.items()]
    ]
    return Table(rows, title, source="metrics.jsonl, validation.jsonl, events.jsonl")


def interruptions_table(account: WallTime, title: str = "Interruptions") -> Table:
    """One row per interruption: where, why, what it cost."""
    rows = [
        {
            "job": one.job,
            "after step": one.step,
            "cause": one.cause,
            "detected after s": round(one.detection_seconds, 2),
            "restarted after s": round(one.restart_seconds, 2),
            "steps lost": one.lost_steps,
        }
        for one in account.interruptions
    ]
    return Table(rows, title, source="events.jsonl, metrics.jsonl")


def stalls_table(
    validation: Sequence[ValidationLoss], events: Sequence[Event], *, wall_seconds: float
) -> Table:
    """How often and how long no step was made because a checkpoint was written or an evaluation ran."""
    saves = [
        event.stalled_seconds
        for event in events_named(events, "saved")
        if event.seconds is not None
    ]
    rows = [
        {
            "stall": name,
            "count": len(seconds),
            "median (s)": statistics.median(seconds) if seconds else None,
            "longest (s)": max(seconds, default=None),
            "all (s)": sum(seconds),
            "share of wall time (%)": 100 * sum(seconds) / wall_seconds if wall_seconds else None,
        }
        for name, seconds in (
            ("checkpoint", saves),
            ("evaluation", [one.seconds for one in validation]),
        )
    ]
    return Table(rows, "Stalls", source="events.jsonl, validation.jsonl")


def _interruptions(steps: Sequence[Step], events: Sequence[Event]) -> tuple[Interruption, ...]:
    """One for each pair of jobs between which steps were made."""
    ends = sorted(events_named(events, "ended"), key=_ended_at)
    interruptions = []
    for (*_, last), (following, *_) in pairwise(by_segment(steps)):
        resumed_at = following.time - following.seconds
        between = [
            event
            for event in events
            if event.name in ENDINGS and last.time <= event.time <= resumed_at
        ]
        last_sign = max([last.time, *(event.time for event in between)])
        end = next((one for one in ends if last.time - 1 <= _ended_at(one) <= resumed_at), None)
        noticed = last_sign if end is None else min(max(last_sign, _ended_at(end)), resumed_at)
        jobs = [event.job for event in events_named(events, "submitted") if event.time <= last.time]
        interruptions.append(
            Interruption(
                job=jobs[-1] if jobs else "",
                step=last.iteration,
                cause=end.failure or end.why or end.state if end else _last_words(between),
                detection_seconds=noticed - last_sign,
                restart_seconds=max(0.0, resumed_at - noticed),
                lost_steps=max(0, last.iteration - following.iteration + 1),
            )
        )
    return tuple(interruptions)


def _queue_seconds(at: float, submitted: Sequence[float], started: Sequence[float]) -> float:
    """From a job's submission to its start; 0 where the next was submitted before it started."""
    following = min((other for other in submitted if other > at), default=float("inf"))
    first = min((moment for moment in started if at <= moment <= following), default=at)
    return first - at


def _last_words(events: Sequence[Event]) -> str:
    """The trainer's own reason for its end, where nobody watched it."""
    ends = events_named(events, "stopped") or events_named(events, "failed")
    if not ends:
        return "not noted"
    why = ends[0].signal or ends[0].reason
    return f"{ends[0].name} ({why}), seen by nobody" if why else f"{ends[0].name}, seen by nobody"


def _ended_at(event: Event) -> float:
    return event.time if event.at is None else event.at


@dataclass(frozen=True)
class Rates:
    """What a device costs; None where nobody said."""

    price_per_device_hour: float | None = None
    currency: str = ""
    watts_per_device: float | None = None
    """Measured or of the data sheet; `watts_source` says which."""
    watts_source: str = ""


def cost_table(summary: Summary, account: WallTime, rates: Rates) -> Table:
    """Device-hours, energy and money of the run so far, by its wall time without waiting for a job to begin."""
    devices = summary.world_size
    hours = (account.wall_seconds - account.waiting_seconds) * devices / 3600
    useful = account.parts["productive"] * devices / 3600
    rows = [
        _cost_row(
            "device-hours",
            hours,
            "h",
            f"wall time, jobs not yet begun left out, x {devices} devices",
        ),
        _cost_row(
            "device-hours in steps that count",
            useful,
            "h",
            "without restarts, saving, evaluation, waiting",
        ),
        *_energy_and_money(hours, rates),
    ]
    return Table(rows, "What it cost", source="metrics.jsonl, events.jsonl")


def projection_table(
    summary: Summary, *, target_tokens: int, goodput: float | None, rates: Rates
) -> Table:
    """What it takes to train on a number of tokens at this speed; without a `goodput` it is the best case."""
    speed = summary.tokens_per_second
    days = None
    hours = None
    if speed:
        days = target_tokens / speed / (goodput or 1.0) / 86400
        hours = days * 24 * summary.world_size
    rows = [
        _cost_row("tokens", target_tokens, "tokens", ""),
        _cost_row("speed", speed, "tokens/s", "median after warm-up"),
        _cost_row("time", days, "days", ""),
        _cost_row("device-hours", hours, "h", f"{summary.world_size} devices"),
        *_energy_and_money(hours, rates),
    ]
    best = "without evaluation, checkpoints and restarts: the best case"
    note = f"with a goodput of {goodput:.1%}" if goodput else best
    return Table(rows, "To train on a number of tokens", (note,), source="metrics.jsonl")


def _energy_and_money(hours: float | None, rates: Rates) -> list[dict[str, object]]:
    energy = None
    how = "not measured"
    if hours is not None and rates.watts_per_device:
        energy = hours * rates.watts_per_device / 1000
        how = f"{rates.watts_per_device:g} W a device, {rates.watts_source}"
    money = None
    price = "no price is known: set jobs.price_per_device_hour"
    if hours is not None and rates.price_per_device_hour:
        money = hours * rates.price_per_device_hour
        price = f"{rates.price_per_device_hour:g} a device-hour"
    return [
        _cost_row("energy", energy, "kWh", how),
        _cost_row("cost", money, rates.currency or "currency", price),
    ]


def _cost_row(what: str, value: float | None, unit: str, how: str) -> dict[str, object]:
    return {"what": what, "value": value, "unit": unit, "how": how}
