"""Reads the last steps in a training run from the end of metrics.jsonl."""

import contextlib
import json
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

COMPUTE_SECONDS = "forward_backward_seconds"
"""Column that only computed steps have. A skipped step has neither this nor a loss."""
TAIL_BYTES = 1_000_000
"""Number of bytes to read from the end of the file. A record has about 700 bytes."""


@dataclass(frozen=True)
class RecentStep:
    """The values in a step that alarms compare. A non-finite loss is None."""

    iteration: int
    loss: float | None = None
    grad_norm: float | None = None
    nan: int = 0
    segment: int = 0
    was_computed: bool = True
    """False for a step skipped after a rollback, together with its samples."""


def read_recent_steps(metrics: Path, iteration: int, count: int) -> list[RecentStep]:
    """Return the last `count` steps up to an iteration, oldest first; the list may be empty."""
    try:
        with metrics.open("rb") as stream:
            stream.seek(max(0, metrics.stat().st_size - TAIL_BYTES))
            lines = stream.read().splitlines()
    except OSError:
        return []

    steps = []
    for line in lines:
        # The seek may begin within a line, and a killed process may leave an incomplete line.
        with contextlib.suppress(ValueError, RecursionError, TypeError, KeyError):
            steps.append(_parse(json.loads(line)))

    return recent_steps(steps, iteration, count)


def _parse(row: dict[str, object]) -> RecentStep:
    iteration = row["iteration"]
    loss = row.get("loss")
    grad_norm = row.get("grad_norm")
    segment = row.get("segment")
    if not isinstance(iteration, int):
        raise TypeError(f"{iteration!r} is not an iteration")
    return RecentStep(
        iteration,
        loss=loss if isinstance(loss, float) else None,
        grad_norm=grad_norm if isinstance(grad_norm, float) else None,
        nan=1 if row.get("nan") else 0,
        segment=segment if isinstance(segment, int) else 0,
        was_computed=loss is not None or COMPUTE_SECONDS in row,
    )


def recent_steps(steps: Iterable[RecentStep], iteration: int, count: int) -> list[RecentStep]:
    """Return the last `count` steps up to and including an iteration, as last recorded.

    Steps that a rollback, or a resume from an older checkpoint, has discarded are no longer part of
    the training. A step skipped in place of a discarded one has no loss.

    >>> steps = [RecentStep(number) for number in (1, 2, 3, 4)]
    >>> steps += [RecentStep(3, segment=1), RecentStep(4, segment=1)]
    >>> [(step.iteration, step.segment) for step in recent_steps(steps, 3, 2)]
    [(2, 0), (3, 1)]
    """
    recent: list[RecentStep] = []
    limit = iteration + 1
    for step in reversed([*steps]):
        if step.iteration >= limit or len(recent) == count:
            continue
        limit = step.iteration
        if step.was_computed:
            recent.append(step)

    return recent[::-1]
