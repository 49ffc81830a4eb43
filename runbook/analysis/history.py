"""What the trainer wrote: metrics.jsonl joined over restarts, validation.jsonl and events.jsonl."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

from runbook.errors import RecordError


@dataclass(frozen=True, slots=True)
class Step:
    """One line of metrics.jsonl; None where the trainer had no value (a skipped step has no loss)."""

    iteration: int
    consumed_samples: int
    consumed_tokens: int
    loss: float | None
    learning_rate: float
    grad_norm: float | None
    loss_scale: float
    seconds: float
    tokens_per_second: float
    tflops_per_device: float | None
    tflops_convention: str
    global_batch: int
    world_size: int
    skipped: int
    nan: int
    segment: int
    data_wait_seconds: float
    memory_bytes: int
    time: float
    forward_backward_seconds: float = 0.0
    """Of the rank that writes; 0 in runs of a trainer that did not tell parts of a step."""
    communication_seconds: float = 0.0
    """Part of the one before, where the engine measures it apart."""
    optimizer_seconds: float = 0.0
    rank_seconds: tuple[float, ...] = ()
    """Forward and backward of each rank, communication left out; empty where the trainer did not tell."""
    line: int = 0
    """Of metrics.jsonl."""


@dataclass(frozen=True, slots=True)
class Evaluation:
    """One line of validation.jsonl."""

    iteration: int
    loss: float
    perplexity: float
    samples: int
    seconds: float
    time: float


@dataclass(frozen=True)
class History:
    """All steps of a run, each iteration once: where two segments hold the same one, the later counts."""

    steps: tuple[Step, ...]
    repeated: tuple[Step, ...] = ()
    """Steps done again after a restart: the earlier, replaced ones."""
    unread_lines: int = 0
    """Lines that are not whole records, such as one cut off when the writer was killed."""
    source: str = ""

    @property
    def num_segments(self) -> int:
        """How many times training was started or resumed and made at least one step."""
        return len({step.segment for step in (*self.steps, *self.repeated)})

    @property
    def restarts(self) -> tuple[int, ...]:
        """First iteration of each segment after the first, in order."""
        first: dict[int, int] = {}
        for step in (*self.steps, *self.repeated):
            first[step.segment] = min(step.iteration, first.get(step.segment, step.iteration))
        return tuple(first[segment] for segment in sorted(first)[1:])

    @property
    def missing_iterations(self) -> tuple[int, ...]:
        """Iterations between the first and the last that no segment holds."""
        if not self.steps:
            return ()
        have = {step.iteration for step in self.steps}
        return tuple(n for n in range(self.steps[0].iteration, self.steps[-1].iteration + 1) if n not in have)

    @property
    def losses(self) -> tuple[tuple[int, float], ...]:
        """(iteration, loss) of every step that has a finite loss."""
        return tuple(
            (step.iteration, step.loss) for step in self.steps if step.loss is not None and math.isfinite(step.loss)
        )


_STEP_FIELDS = {field.name for field in fields(Step)}
_DEFAULTS: dict[str, Any] = {
    "consumed_samples": 0,
    "consumed_tokens": 0,
    "loss": None,
    "learning_rate": 0.0,
    "grad_norm": None,
    "loss_scale": 1.0,
    "tokens_per_second": 0.0,
    "tflops_per_device": None,
    "tflops_convention": "",
    "global_batch": 0,
    "world_size": 1,
    "skipped": 0,
    "nan": 0,
    "segment": 0,
    "data_wait_seconds": 0.0,
    "memory_bytes": 0,
    "time": 0.0,
}


def join(lines: Iterable[str], source: str = "") -> History:
    """The history told by the lines of a metrics.jsonl.

    >>> one = '{"iteration": 1, "seconds": 2.0, "loss": 3.0, "segment": 0}'
    >>> again = '{"iteration": 1, "seconds": 2.5, "loss": 2.9, "segment": 1}'
    >>> history = join([one, again, '{"iteration": 2, "sec'])
    >>> [step.loss for step in history.steps], len(history.repeated), history.unread_lines
    ([2.9], 1, 1)
    """
    kept: dict[int, Step] = {}
    repeated: list[Step] = []
    unread = 0
    for number, line in enumerate(lines, 1):
        if not line.strip():
            continue
        step = _step(line, number)
        if step is None:
            unread += 1
            continue
        before = kept.get(step.iteration)
        if before is None:
            kept[step.iteration] = step
        elif step.segment >= before.segment:
            repeated.append(before)
            kept[step.iteration] = step
        else:
            repeated.append(step)
    return History(tuple(kept[n] for n in sorted(kept)), tuple(repeated), unread, source)


def _step(line: str, number: int) -> Step | None:
    try:
        values = json.loads(line)
        values["rank_seconds"] = tuple(values.get("rank_seconds") or ())
        values["line"] = number
        return Step(**(_DEFAULTS | {key: value for key, value in values.items() if key in _STEP_FIELDS}))
    except (ValueError, TypeError, AttributeError):
        return None


def read_metrics(path: Path) -> History:
    """The history in a metrics.jsonl; `RecordError` where the file is missing or holds no whole record."""
    history = join(_lines(path, "the training job writes it; is its job still waiting, or did it fail?"), str(path))
    if not history.steps:
        raise RecordError(
            f"{path} holds no whole record ({history.unread_lines} unread lines): no iteration was finished. "
            "The job's err file says why."
        )
    return history


def read_validation(path: Path) -> tuple[Evaluation, ...]:
    """All evaluations, each iteration once (the last one written counts); empty where none was made."""
    if not path.exists():
        return ()
    found: dict[int, Evaluation] = {}
    names = {field.name for field in fields(Evaluation)}
    for values in _objects(path):
        try:
            one = Evaluation(**({"time": 0.0} | {key: value for key, value in values.items() if key in names}))
        except TypeError:
            continue
        found[one.iteration] = one
    return tuple(found[n] for n in sorted(found))


def read_events(path: Path, phase: str = "") -> tuple[dict[str, Any], ...]:
    """Events as they were appended, those of one phase where `phase` is given; empty where none was written."""
    if not path.exists():
        return ()
    return tuple(event for event in _objects(path) if not phase or event.get("phase") == phase)


def _objects(path: Path) -> list[dict[str, Any]]:
    found = []
    for line in _lines(path, ""):
        try:
            value = json.loads(line)
        except ValueError:
            continue
        if isinstance(value, dict):
            found.append(value)
    return found


def _lines(path: Path, remedy: str) -> list[str]:
    try:
        return path.read_text(encoding="utf-8", errors="replace").splitlines()
    except FileNotFoundError:
        raise RecordError(f"{path} does not exist: {remedy}") from None


def events_named(events: Iterable[Mapping[str, Any]], name: str) -> list[Mapping[str, Any]]:
    """Those events called `name`, in order."""
    return [event for event in events if event.get("event") == name]
