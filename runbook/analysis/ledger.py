"""One logical run over many jobs: what each interruption cost, and how much of the wall time was training.

productive      steps that count, each once, without waiting for data
lost work       steps that were done again after a restart went back to a checkpoint
detection       from a job's last sign of life to its end being known
restart         from there to the first step of the next job
save stall      time in which no step was made because a checkpoint was written
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

from runbook.analysis.history import Evaluation, History, Step, events_named
from runbook.analysis.metrics import ENDINGS


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
class Ledger:
    """Where the wall time of a logical run went; the parts add up to it."""

    wall_seconds: float
    productive_seconds: float
    data_wait_seconds: float
    evaluation_seconds: float
    save_seconds: float
    lost_work_seconds: float
    detection_seconds: float
    restart_seconds: float
    startup_seconds: float
    other_seconds: float
    jobs: int
    steps: int
    lost_steps: int
    missing_steps: int
    interruptions: tuple[Interruption, ...]

    @property
    def goodput(self) -> float | None:
        """Productive step time / wall time."""
        return self.productive_seconds / self.wall_seconds if self.wall_seconds > 0 else None

    def parts(self) -> list[tuple[str, float]]:
        """(name, seconds), from wall time down to what was productive."""
        return [
            ("start-up", self.startup_seconds),
            ("detection", self.detection_seconds),
            ("restart", self.restart_seconds),
            ("lost work", self.lost_work_seconds),
            ("save stall", self.save_seconds),
            ("evaluation", self.evaluation_seconds),
            ("waiting for data", self.data_wait_seconds),
            ("other", self.other_seconds),
            ("productive", self.productive_seconds),
        ]


def ledger(
    history: History, validation: Sequence[Evaluation] = (), events: Sequence[Mapping[str, Any]] = ()
) -> Ledger | None:
    """The account of a run; None where no step was made."""
    steps = sorted((*history.steps, *history.repeated), key=lambda step: (step.segment, step.iteration))
    if not steps:
        return None
    first = steps[0].time - steps[0].seconds
    submitted = [float(one["time"]) for one in events_named(events, "submitted")]
    begin = min([first, *submitted])
    end = max([step.time for step in steps] + [_moment(one) for one in events if "time" in one])
    interruptions = _interruptions(steps, events)
    wait = sum(step.data_wait_seconds for step in history.steps)
    parts = {
        "productive_seconds": sum(step.seconds for step in history.steps) - wait,
        "data_wait_seconds": wait,
        "evaluation_seconds": sum(one.seconds for one in validation),
        "save_seconds": sum(_stall(one) for one in events_named(events, "saved")),
        "lost_work_seconds": sum(step.seconds for step in history.repeated),
        "detection_seconds": sum(one.detection_seconds for one in interruptions),
        "restart_seconds": sum(one.restart_seconds for one in interruptions),
        "startup_seconds": max(0.0, first - begin),
    }
    return Ledger(
        wall_seconds=end - begin,
        other_seconds=max(0.0, end - begin - sum(parts.values())),
        jobs=max(len(submitted), history.num_segments),
        steps=len(history.steps),
        lost_steps=len(history.repeated),
        missing_steps=len(history.missing_iterations),
        interruptions=interruptions,
        **parts,
    )


def ideal_goodput(
    productive: float,
    *,
    interruptions: int,
    restart: float,
    step: float,
    save_interval: int,
    save: float,
    steps: int,
    start_seconds_lost: float = 0.0,
) -> float:
    """The goodput of a run that is interrupted as often, when nothing is wasted that need not be.

    Each interruption then costs one planned `restart` and half a save interval of steps done again, and every save the
    time it takes; noticing the failure costs nothing. An interruption that comes before a job's first step costs the
    start as far as it had come: `start_seconds_lost` of all of those.

    >>> round(ideal_goodput(90, interruptions=50, restart=1.0, step=0.1, save_interval=10, save=0.1, steps=900), 3)
    0.517
    """
    half = step * save_interval / 2
    lost = interruptions * (restart + half) + start_seconds_lost
    return productive / (productive + lost + steps / save_interval * save)


def ledger_rows(account: Ledger) -> list[dict[str, Any]]:
    """The account as a table: part, seconds, share of the wall time."""
    wall = account.wall_seconds or 1.0
    rows = [
        {"part": name, "seconds": round(seconds, 2), "share": f"{seconds / wall:.1%}"}
        for name, seconds in account.parts()
    ]
    return [*rows, {"part": "wall time", "seconds": round(account.wall_seconds, 2), "share": "100.0%"}]


def interruption_rows(account: Ledger) -> list[dict[str, Any]]:
    """One row an interruption: where, why, what it cost."""
    return [
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


def _interruptions(steps: Sequence[Step], events: Sequence[Mapping[str, Any]]) -> tuple[Interruption, ...]:
    """One for each pair of jobs between which steps were made."""
    segments: dict[int, list[Step]] = {}
    for step in steps:
        segments.setdefault(step.segment, []).append(step)
    order = sorted(segments)
    ended = sorted((_ended_at(one), one) for one in events_named(events, "ended") if one.get("decision") == "go on")
    signs = sorted(_moment(one) for name in ENDINGS for one in events_named(events, name) if "time" in one)
    found = []
    for before, after in pairwise(order):
        last, next_ = segments[before][-1], segments[after][0]
        began = next_.time - next_.seconds
        last_sign = max([last.time, *(moment for moment in signs if last.time <= moment <= began)])
        between = [(at, one) for at, one in ended if last.time - 1 <= at <= began]
        known = min(max(last_sign, between[0][0]), began) if between else last_sign
        found.append(
            Interruption(
                job=str(between[0][1].get("job", "")) if between else "",
                step=last.iteration,
                cause=_cause(between[0][1]) if between else "not noted",
                detection_seconds=known - last_sign,
                restart_seconds=max(0.0, began - known),
                lost_steps=max(0, last.iteration - next_.iteration + 1),
            )
        )
    return tuple(found)


def _cause(ended: Mapping[str, Any]) -> str:
    return str(ended.get("failure") or ended.get("why") or ended.get("state") or "")


def _ended_at(event: Mapping[str, Any]) -> float:
    at = event.get("at")
    return float(at) if isinstance(at, int | float) else _moment(event)


def _moment(event: Mapping[str, Any]) -> float:
    return float(event["time"])


def _stall(event: Mapping[str, Any]) -> float:
    """Seconds in which training stood still: of an asynchronous save only a part."""
    return float(event.get("stall_seconds", event.get("seconds", 0.0)))
