"""Run files: metrics.jsonl joined over restarts, validation.jsonl and events.jsonl."""

from __future__ import annotations

import contextlib
import json
import math
from array import array
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

from runbook.core.errors import RecordError
from runbook.core.files import iterate_lines, read_lines
from runbook.core.table import Row
from runbook.plan_file.schema import RANK_TIMES


@dataclass(frozen=True, slots=True)
class Step:
    """One line of metrics.jsonl; None where the trainer had no value (a skipped step has no loss)."""

    iteration: int
    seconds: float
    loss: float | None = None
    grad_norm: float | None = None
    learning_rate: float = 0.0
    loss_scale: float = 1.0
    consumed_tokens: int = 0
    tokens_per_second: float = 0.0
    tflops_per_device: float | None = None
    tflops_convention: str = ""
    global_batch: int = 0
    world_size: int = 1
    skipped: int = 0
    nan: int = 0
    segment: int = 0
    data_wait_seconds: float = 0.0
    memory_bytes: int = 0
    time: float = 0.0
    forward_backward_seconds: float = 0.0
    """Of the rank that writes; 0 in runs of a trainer that did not tell parts of a step."""
    communication_seconds: float = 0.0
    """Part of the one before, where the engine measures it apart."""
    optimizer_seconds: float = 0.0
    line: int = 0
    """Of metrics.jsonl."""


@dataclass(frozen=True, slots=True)
class RankTimes:
    """What each rank took for its forward and backward passes, communication left out: mean of some steps."""

    iteration: int
    steps: int
    segment: int
    seconds: array[float]


@dataclass(frozen=True, slots=True)
class ValidationLoss:
    """One line of validation.jsonl."""

    iteration: int
    loss: float
    perplexity: float
    samples: int
    seconds: float
    time: float = 0.0


@dataclass(frozen=True, slots=True)
class Event:
    """One line of events.jsonl; a field is None or empty where events of its name do not have it."""

    name: str
    time: float = 0.0
    phase: str = ""
    job: str = ""
    iteration: int | None = None
    segment: int | None = None
    world_size: int | None = None
    seconds: float | None = None
    """Of a save or a reload, whole."""
    stall_seconds: float | None = None
    """Of an asynchronous save: the part in which training stood still."""
    folder: str = ""
    same_fingerprint: bool = True
    """Of a resume: whether the checkpoint is one of this training."""
    planned: bool = False
    """Of a job's end: the stop that training.rehearse_stop asked for."""
    at: float | None = None
    """Of a job's end, where it was noticed later."""
    failure: str = ""
    why: str = ""
    state: str = ""
    signal: str = ""
    reason: str = ""
    saved_iteration: int | None = None
    loss_before: float | None = None
    loss_between: float | None = None
    loss_after: float | None = None
    ranks: int = 1
    bytes_per_second: float = 0.0

    @property
    def stalled_seconds(self) -> float:
        """Seconds in which a save kept training from its next step."""
        return self.stall_seconds if self.stall_seconds is not None else self.seconds or 0.0


@dataclass(frozen=True)
class History:
    """All steps of a run, each iteration once: where two segments hold the same one, the later counts."""

    steps: tuple[Step, ...]
    repeated: tuple[Step, ...] = ()
    """Steps done again after a restart: the earlier, replaced ones."""
    unread_lines: int = 0
    """Lines that are not whole records, such as one cut off when the writer was killed."""
    source: str = "metrics.jsonl"
    rank_times: tuple[RankTimes, ...] = ()
    """In order of time; empty where there is one rank, or the trainer did not tell."""

    @property
    def num_segments(self) -> int:
        """How many times training was started or resumed and made at least one step."""
        return len({step.segment for step in (*self.steps, *self.repeated)})

    @property
    def restarts(self) -> tuple[int, ...]:
        """First iteration of each segment after the first, in order."""
        segments = by_segment((*self.steps, *self.repeated))
        return tuple(min(step.iteration for step in steps) for steps in segments[1:])

    def absent_up_to(self, last: int, first: int = 1) -> tuple[int, ...]:
        """Iterations from `first` to `last` that no segment holds."""
        have = {step.iteration for step in self.steps}
        return tuple(n for n in range(first, last + 1) if n not in have)

    @property
    def losses(self) -> tuple[tuple[int, float], ...]:
        """(iteration, loss) of every step that has a finite loss."""
        return tuple(
            (step.iteration, step.loss)
            for step in self.steps
            if step.loss is not None and math.isfinite(step.loss)
        )

    @property
    def grad_norms(self) -> dict[int, float]:
        """Gradient norm by iteration, of every step that has a finite one."""
        return {
            step.iteration: step.grad_norm
            for step in self.steps
            if step.grad_norm is not None and math.isfinite(step.grad_norm)
        }


def by_segment(steps: Iterable[Step]) -> list[list[Step]]:
    """The steps of each segment, in the order of segments; within one as they come."""
    segments: dict[int, list[Step]] = {}
    for step in steps:
        segments.setdefault(step.segment, []).append(step)
    return [segments[segment] for segment in sorted(segments)]


_JSON_TYPES: dict[str, tuple[type, ...]] = {
    "int": (int,),
    "float": (int, float),
    "str": (str,),
    "bool": (bool,),
}
"""What a field of a record may be in JSON; null is a number that was none."""


def _types_of(kind: type[Step] | type[ValidationLoss] | type[Event]) -> dict[str, tuple[type, ...]]:
    """The types of each field's value in JSON, by the field's annotation."""
    return {field.name: _JSON_TYPES[str(field.type).split(" ")[0]] for field in fields(kind)}


def _fits(values: Mapping[str, Any], types: Mapping[str, tuple[type, ...]]) -> bool:
    """Whether each value is of its field's types: a file that was edited may hold a text for a number."""
    for key, value in values.items():
        allowed = types[key]
        if value is None:
            continue
        if not isinstance(value, allowed) or (isinstance(value, bool) and bool not in allowed):
            return False
    return True


_STEP_TYPES = _types_of(Step)
_VALIDATION_TYPES = _types_of(ValidationLoss)
_EVENT_TYPES = {name: types for name, types in _types_of(Event).items() if name != "name"}


def parse_metrics(
    lines: Iterable[str], source: str = "metrics.jsonl", rank_times: Iterable[RankTimes] = ()
) -> History:
    """The history told by the lines of a metrics.jsonl, which are read one by one.

    >>> one = '{"iteration": 1, "seconds": 2.0, "loss": 3.0, "segment": 0}'
    >>> again = '{"iteration": 1, "seconds": 2.5, "loss": 2.9, "segment": 1}'
    >>> history = parse_metrics([one, again, '{"iteration": 2, "sec'])
    >>> [step.loss for step in history.steps], len(history.repeated), history.unread_lines
    ([2.9], 1, 1)
    """
    kept: dict[int, Step] = {}
    repeated: list[Step] = []
    unread = 0
    for number, line in enumerate(lines, 1):
        if not line.strip():
            continue
        if (step := _step(line, number)) is None:
            unread += 1
            continue
        before = kept.setdefault(step.iteration, step)
        if before is not step:
            earlier, kept[step.iteration] = sorted((before, step), key=lambda one: one.segment)
            repeated.append(earlier)
    return History(
        tuple(kept[n] for n in sorted(kept)), tuple(repeated), unread, source, tuple(rank_times)
    )


def _step(line: str, number: int) -> Step | None:
    """The step in a line; None where the line is cut off, holds something else, or lacks a field."""
    try:
        values = json.loads(line)
        known = {key: values[key] for key in values.keys() & _STEP_TYPES.keys()}
        if not _fits(known, _STEP_TYPES) or None in (known.get("iteration"), known.get("seconds")):
            return None
        return Step(**known | {"line": number})
    except (ValueError, AttributeError, TypeError):
        return None


def _rank_times(path: Path) -> Iterator[RankTimes]:
    """The lines of a rank_times.jsonl, one by one; none where there is no file."""
    for values in iterate_lines(path):
        with contextlib.suppress(KeyError, TypeError, ValueError, OverflowError):
            iteration, steps, segment = (
                int(values[key]) for key in ("iteration", "steps", "segment")
            )
            yield RankTimes(iteration, steps, segment, array("d", values["seconds"]))


def read_metrics(path: Path) -> History:
    """The history in a metrics.jsonl; `RecordError` where the file is missing or holds no whole record."""
    try:
        with path.open(encoding="utf-8", errors="replace") as stream:
            history = parse_metrics(stream, str(path), _rank_times(path.with_name(RANK_TIMES)))
    except FileNotFoundError:
        remedy = "the training job writes it; is its job still waiting, or did it fail?"
        raise RecordError(f"{path} does not exist: {remedy}") from None
    if not history.steps:
        why = f"({history.unread_lines} unread lines): no iteration was finished. The job's err file says why."
        raise RecordError(f"{path} holds no whole record {why}")
    return history


def read_validation(path: Path) -> tuple[ValidationLoss, ...]:
    """All evaluations, each iteration once (the last one written counts); empty where none was made."""
    evaluations: dict[int, ValidationLoss] = {}
    for values in read_lines(path):
        known = {key: value for key, value in values.items() if key in _VALIDATION_TYPES}
        if not _fits(known, _VALIDATION_TYPES) or known.get("iteration") is None:
            continue
        with contextlib.suppress(TypeError):  # a line that lacks a field
            numbers: Any = {
                key: math.nan if value is None else value for key, value in known.items()
            }
            one = ValidationLoss(**numbers)
            evaluations[one.iteration] = one
    return tuple(evaluations[n] for n in sorted(evaluations))


def read_events(path: Path, phase: str) -> tuple[Event, ...]:
    """A phase's events since its last `begun`: what came before it belongs to a training that was set aside."""
    events = [event for event in parse_events(read_lines(path)) if event.phase == phase]
    first = max((place for place, event in enumerate(events) if event.name == "begun"), default=0)
    return tuple(events[first:])


def parse_events(lines: Iterable[Mapping[str, Any]]) -> Iterator[Event]:
    """The lines of events.jsonl as events.

    >>> [event] = parse_events([{"event": "saved", "iteration": 5, "seconds": 0.4, "stall_seconds": 0.1}])
    >>> event.name, event.iteration, event.stalled_seconds
    ('saved', 5, 0.1)
    """
    for values in lines:
        given = {
            key: value for key, value in values.items() if key in _EVENT_TYPES and value is not None
        }
        if "event" in values and _fits(given, _EVENT_TYPES):
            yield Event(name=str(values["event"]), **given)


def events_named(events: Iterable[Event], name: str) -> list[Event]:
    """Those events called `name`, in order."""
    return [event for event in events if event.name == name]


def iterations_of(events: Iterable[Event], name: str) -> list[int]:
    """The iterations of the events called `name`: those that were `saved` whole, or from which a job `resumed`."""
    return [event.iteration for event in events_named(events, name) if event.iteration is not None]


PHENOMENON = "right of this kind (share)"
"""Measure of a part of the minimal pairs."""


def read_scores(folder: Path) -> list[Row]:
    """The scores of a run's weights, before and after the training, the built-in ones first."""
    rows = [
        row for path in sorted((folder / "evaluation").glob("*.jsonl")) for row in read_lines(path)
    ]
    return [{key: row[key] for key in _SCORE_TYPES} for row in rows if _is_score(row)]


_SCORE_TYPES: dict[str, tuple[type, ...]] = {
    "what": (str,),
    "measure": (str,),
    "samples": (int,),
    "before": (int, float),
    "after": (int, float),
}


def _is_score(row: Mapping[str, Any]) -> bool:
    """Whether a line has what a score has; `before` alone may be null."""
    known = {key: row[key] for key in _SCORE_TYPES.keys() & row.keys()}
    is_whole = len(known) == len(_SCORE_TYPES) and None not in (known["after"], known["samples"])
    return is_whole and _fits(known, _SCORE_TYPES)
