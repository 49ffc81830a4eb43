"""Reads the files from a run (metrics.jsonl, validation.jsonl and events.jsonl) into objects."""

from __future__ import annotations

import contextlib
import json
import math
from array import array
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any

from runbook.core.errors import RecordError
from runbook.core.files import iterate_lines, read_lines
from runbook.core.table import Row
from runbook.plan_file.alarms import NO_SETTINGS, AlarmSettings
from runbook.plan_file.resume_sources import is_near
from runbook.plan_file.schema import RANK_TIMES
from runbook.results.messages import ResultMessage


@dataclass(frozen=True, slots=True)
class Step:
    """A training step, which is a line in metrics.jsonl.

    A field is None if the trainer had no value for it. A skipped step, for example, has no loss.
    """

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
    """Time for the forward and backward passes on the rank that writes the file; 0 if the trainer
    did not measure it.
    """
    communication_seconds: float = 0.0
    """Part of `forward_backward_seconds` spent on communication, if the engine measures it
    separately.
    """
    optimizer_seconds: float = 0.0
    line: int = 0
    """Line number in metrics.jsonl."""


@dataclass(frozen=True, slots=True)
class RankTimes:
    """How long each rank took for forward and backward passes, without communication.

    These times are averaged over `steps` steps, up to and including `iteration`.
    """

    iteration: int
    steps: int
    segment: int
    seconds: array[float]


@dataclass(frozen=True, slots=True)
class ValidationLoss:
    """An evaluation, which is a line in validation.jsonl."""

    iteration: int
    loss: float
    perplexity: float
    samples: int
    seconds: float
    time: float = 0.0


@dataclass(frozen=True, slots=True)
class Event:
    """An event in a training run, which is a line in events.jsonl.

    A field is None or empty if events with this name do not have the field.
    """

    name: str
    time: float = 0.0
    phase: str = ""
    job: str = ""
    id: str = ""
    """Scheduler id for the allocation in which the attempt began."""
    iteration: int | None = None
    segment: int | None = None
    world_size: int | None = None
    seconds: float | None = None
    """How long a save or reload took in total."""
    stall_seconds: float | None = None
    """Seconds that an asynchronous save paused training."""
    folder: str = ""
    source: str = ""
    """Where a resume loaded its state from: shared, near own or near partner.

    The source is empty in runs by versions with no copies in node memory.
    """
    same_fingerprint: bool = True
    """Whether the resumed job loaded a checkpoint from the same training run."""
    planned: bool = False
    """Whether the job ended with the stop requested by training.rehearse_stop."""
    at: float | None = None
    """Time when the job ended, if this was noticed only later."""
    waits: float = 0.0
    """Seconds a job in a chain waits before it ends, to let the next job begin."""
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
    replicas: int = 0
    """Number of data-parallel replicas that training continues with."""
    planned_replicas: int = 0
    nodes: int = 0
    nodes_with_copy: int = 0
    """Number of nodes in the job that run Python from a copy of the environment."""
    bytes_per_second: float = 0.0
    copies: int = 0
    """Number of copies in node memory, if the event reports copies."""
    left_out: int = 0
    """Number of copies skipped because the previous copies were still being sent."""

    @property
    def is_near(self) -> bool:
        """Return whether the event is a resume from copies in node memory."""
        return is_near(self.source)

    @property
    def stalled_seconds(self) -> float:
        """Return how many seconds the save delayed the next step."""
        if self.stall_seconds is not None:
            return self.stall_seconds
        return self.seconds or 0.0


@dataclass(frozen=True)
class History:
    """The steps in a run, with each iteration once.

    If two segments contain the same iteration, the step from the later one is used.
    """

    steps: tuple[Step, ...]
    repeated: tuple[Step, ...] = ()
    """Earlier versions of steps repeated after a restart."""
    unread_lines: int = 0
    """Number of unreadable lines, such as a line cut off when the trainer was killed."""
    source: str = "metrics.jsonl"
    rank_times: tuple[RankTimes, ...] = ()
    """Rank times, in the order in which they were recorded.

    The tuple is empty if there is only one rank, or if the trainer did not measure the times.
    """
    alarm_settings: AlarmSettings = NO_SETTINGS
    """The alarm settings in the plan."""

    @property
    def num_segments(self) -> int:
        """Return the number of starts and resumes after which training completed a step."""
        return len({step.segment for step in (*self.steps, *self.repeated)})

    @property
    def restarts(self) -> tuple[int, ...]:
        """Return the first iteration of each segment except the first, in order."""
        segments = by_segment((*self.steps, *self.repeated))
        return tuple(min(step.iteration for step in steps) for steps in segments[1:])

    def absent_up_to(self, last: int, first: int = 1) -> tuple[int, ...]:
        """Return the iterations from `first` to `last` that are in no segment."""
        done = {step.iteration for step in self.steps}
        return tuple(iteration for iteration in range(first, last + 1) if iteration not in done)

    @property
    def losses(self) -> tuple[tuple[int, float], ...]:
        """Return (iteration, loss) for every step with a finite loss."""
        return tuple(
            (step.iteration, step.loss)
            for step in self.steps
            if step.loss is not None and math.isfinite(step.loss)
        )

    @property
    def grad_norms(self) -> dict[int, float]:
        """Return the finite gradient norms by iteration."""
        norms = {}
        for step in self.steps:
            if step.grad_norm is not None and math.isfinite(step.grad_norm):
                norms[step.iteration] = step.grad_norm

        return norms


def by_segment(steps: Iterable[Step]) -> list[list[Step]]:
    """Return the steps by segment, in order.

    Within a segment, the steps are in the same order as in the file.
    """
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
"""JSON types allowed for a field, by annotation. NaN is stored as null."""


def _types_of(kind: type[Step] | type[ValidationLoss] | type[Event]) -> dict[str, tuple[type, ...]]:
    """Return the JSON types each field may have, based on the annotations."""
    return {field.name: _JSON_TYPES[str(field.type).split(" ")[0]] for field in fields(kind)}


def _fits(values: Mapping[str, Any], types: Mapping[str, tuple[type, ...]]) -> bool:
    """Return whether each value has a type allowed for the field.

    An edited file may contain text instead of a number.
    """
    for key, value in values.items():
        allowed = types[key]
        if value is None:
            continue
        if not isinstance(value, allowed):
            return False
        # In Python, `True` and `False` are also integers.
        if isinstance(value, bool) and bool not in allowed:
            return False

    return True


_STEP_TYPES = _types_of(Step)
_VALIDATION_TYPES = _types_of(ValidationLoss)
_EVENT_TYPES = {name: types for name, types in _types_of(Event).items() if name != "name"}


def parse_metrics(
    lines: Iterable[str], source: str = "metrics.jsonl", rank_times: Iterable[RankTimes] = ()
) -> History:
    """Build the history from the lines in a metrics.jsonl. The lines are read one by one.

    >>> first = '{"iteration": 1, "seconds": 2.0, "loss": 3.0, "segment": 0}'
    >>> again = '{"iteration": 1, "seconds": 2.5, "loss": 2.9, "segment": 1}'
    >>> history = parse_metrics([first, again, '{"iteration": 2, "sec'])
    >>> [step.loss for step in history.steps], len(history.repeated), history.unread_lines
    ([2.9], 1, 1)
    """
    steps: dict[int, Step] = {}
    repeated: list[Step] = []
    unread = 0
    for number, line in enumerate(lines, 1):
        if not line.strip():
            continue
        step = _step(line, number)
        if step is None:
            unread += 1
            continue

        before = steps.get(step.iteration)
        if before is None:
            steps[step.iteration] = step
            continue

        # Use the step from the later segment.
        earlier, later = sorted((before, step), key=lambda step: step.segment)
        steps[step.iteration] = later
        repeated.append(earlier)

    return History(
        steps=tuple(steps[iteration] for iteration in sorted(steps)),
        repeated=tuple(repeated),
        unread_lines=unread,
        source=source,
        rank_times=tuple(rank_times),
    )


def _step(line: str, number: int) -> Step | None:
    """Return the step in a line.

    Return None if the line is cut off, is not a step, or lacks a field.
    """
    try:
        values = json.loads(line)
        fields = {key: values[key] for key in values.keys() & _STEP_TYPES.keys()}
        if not _fits(fields, _STEP_TYPES):
            return None
        if fields.get("iteration") is None or fields.get("seconds") is None:
            return None
        return Step(**fields | {"line": number})
    except (ValueError, AttributeError, TypeError):
        return None


def _rank_times(path: Path) -> Iterator[RankTimes]:
    """Yield the records in a rank_times.jsonl one by one. If there is no file, yield nothing."""
    for values in iterate_lines(path):
        # Skip a line that is no record, for example one cut off when the trainer was killed.
        with contextlib.suppress(KeyError, TypeError, ValueError, OverflowError):
            yield RankTimes(
                iteration=int(values["iteration"]),
                steps=int(values["steps"]),
                segment=int(values["segment"]),
                seconds=array("d", values["seconds"]),
            )


def read_metrics(path: Path, alarm_settings: AlarmSettings = NO_SETTINGS) -> History:
    """Read the history from a metrics.jsonl, and attach the alarm settings from the plan.

    Raise `RecordError` if the file is missing or contains no complete record.
    """
    try:
        with path.open(encoding="utf-8", errors="replace") as stream:
            history = parse_metrics(stream, str(path), _rank_times(path.with_name(RANK_TIMES)))
    except FileNotFoundError:
        remedy = "the training job writes it; check whether that job is still waiting or has failed"
        raise RecordError(ResultMessage.NO_METRICS, path=path, remedy=remedy) from None

    if not history.steps:
        raise RecordError(
            ResultMessage.NO_WHOLE_RECORD, path=path, unread_lines=history.unread_lines
        )

    return replace(history, alarm_settings=alarm_settings)


def read_validation(path: Path) -> tuple[ValidationLoss, ...]:
    """Return all evaluations in a validation.jsonl. The result is empty if the file does not exist.

    If an iteration was evaluated twice, the last result is used.
    """
    evaluations: dict[int, ValidationLoss] = {}
    for values in read_lines(path):
        fields = {}
        for key, value in values.items():
            if key in _VALIDATION_TYPES:
                fields[key] = value

        if not _fits(fields, _VALIDATION_TYPES) or fields.get("iteration") is None:
            continue
        numbers: dict[str, Any] = {}
        for key, value in fields.items():
            numbers[key] = math.nan if value is None else value
        with contextlib.suppress(TypeError):  # The line lacks a field.
            evaluation = ValidationLoss(**numbers)
            evaluations[evaluation.iteration] = evaluation

    return tuple(evaluations[iteration] for iteration in sorted(evaluations))


def read_events(path: Path, phase: str) -> tuple[Event, ...]:
    """Return the events in a phase since the last event `begun`.

    Earlier events belong to an execution whose files were moved to the history.
    """
    events = [event for event in parse_events(read_lines(path)) if event.phase == phase]
    begins = [index for index, event in enumerate(events) if event.name == "begun"]
    first = begins[-1] if begins else 0
    return tuple(events[first:])


def parse_events(lines: Iterable[Mapping[str, Any]]) -> Iterator[Event]:
    """Yield the events from lines in events.jsonl.

    >>> line = {"event": "saved", "iteration": 5, "seconds": 0.4, "stall_seconds": 0.1}
    >>> [event] = parse_events([line])
    >>> event.name, event.iteration, event.stalled_seconds
    ('saved', 5, 0.1)
    """
    for values in lines:
        fields = {}
        for key, value in values.items():
            if key in _EVENT_TYPES and value is not None:
                fields[key] = value

        if "event" in values and _fits(fields, _EVENT_TYPES):
            yield Event(name=str(values["event"]), **fields)


def events_named(events: Iterable[Event], name: str) -> list[Event]:
    """Return the events with this name, in order."""
    return [event for event in events if event.name == name]


def iterations_of(events: Iterable[Event], name: str) -> list[int]:
    """Return the iterations of all events with this name, such as `saved` or `resumed`."""
    iterations: list[int] = []
    for event in events_named(events, name):
        if event.iteration is not None:
            iterations.append(event.iteration)

    return iterations


BITS_PER_BYTE = "bits per byte"
TOKEN_PERPLEXITY = "perplexity of a token"
RIGHT_SHARE = "right (share)"
ALL_PAIRS = "all minimal pairs"
"""Name used for the score over all types of minimal pairs."""
PHENOMENON = "right of this kind (share)"
"""Name used for scores on a single type of minimal pair."""


def read_scores(folder: Path) -> list[Row]:
    """Return the scores before and after training, with built-in measures first."""
    scores: list[Row] = []
    for path in sorted((folder / "evaluation").glob("*.jsonl")):
        for row in read_lines(path):
            if _is_score(row):
                score = {key: row[key] for key in _SCORE_TYPES}
                iteration = row.get("iteration")
                # Older files, and exported folders, do not name it.
                score["iteration"] = iteration if isinstance(iteration, int) else None
                scores.append(score)

    return scores


_SCORE_TYPES: dict[str, tuple[type, ...]] = {
    "what": (str,),
    "measure": (str,),
    "samples": (int,),
    "before": (int, float),
    "after": (int, float),
}


def _is_score(row: Mapping[str, Any]) -> bool:
    """Return whether a line has all fields needed for a score. Only `before` may be null."""
    fields = {key: row[key] for key in _SCORE_TYPES.keys() & row.keys()}
    if len(fields) < len(_SCORE_TYPES):
        return False
    if fields["after"] is None or fields["samples"] is None:
        return False
    return _fits(fields, _SCORE_TYPES)
