"""One iteration: read, compute, agree on the loss over all ranks, update, and say whether it was sound."""

from __future__ import annotations

import math
import resource
import time
from dataclasses import dataclass, field
from typing import Any

import torch
from megatron.core import parallel_state

from runbook.training import data, faults
from runbook.training.bad_steps import BadStep
from runbook.training.distributed import device
from runbook.training.engine import Engine, Update
from runbook.training.order import Share
from runbook.training.progress import Progress
from runbook.training.ramp import global_batch
from runbook.training.schedule import learning_rate
from runbook.training.spec import Spec
from runbook.training.stopping import SIGNALS, Stopping


@dataclass(frozen=True)
class Shared:
    """What all ranks know after the backward pass."""

    loss: float
    """Mean over the global batch."""

    wish: int
    """Who wishes to stop; see `Stopping.wish`."""

    rank_seconds: list[float]
    """Forward and backward of each rank, without waiting for the others' gradients."""


@dataclass(frozen=True)
class Done:
    """What one iteration did."""

    record: dict[str, Any]
    wish: int
    bad: BadStep | None = None


@dataclass
class Clock:
    """Seconds of the parts of a step."""

    begun: float = field(default_factory=time.monotonic)
    parts: dict[str, float] = field(default_factory=dict)

    def lap(self, name: str, since: float) -> float:
        """Note the seconds since `since`; the time now."""
        now = time.monotonic()
        self.parts[name] = now - since
        return now


class Stepper:
    """Makes the iterations of one engine."""

    def __init__(self, spec: Spec, engine: Engine, stopping: Stopping) -> None:
        self.spec = spec
        self.engine = engine
        self.stopping = stopping
        self.reader = data.Reader(_part(spec), spec.model.vocabulary, device())
        self.scale = math.inf
        """Loss scale after the last step."""

    def step(self, train: Any, progress: Progress) -> Done:
        """One iteration; `progress` is moved on. A bad one has changed no weight."""
        spec, seen, clock = self.spec, progress.consumed_samples, Clock()
        size = global_batch(spec.batch, seen)
        count = size // (spec.batch.micro * spec.parallel.data)
        rate = learning_rate(spec.learning_rate, seen, size)
        if progress.passes_over(seen):
            shared, update, waited = self._share(0.0, count, 0.0), Update(math.nan, True, self._last_scale()), 0.0
            shared = Shared(math.nan, shared.wish, shared.rank_seconds)
            bad, apart = None, None
        else:
            batches = _Timed(self.reader.step(train, seen, count))
            own = self.engine.compute(batches, count)
            apart = getattr(self.engine, "communication_seconds", None)
            now = clock.lap("forward_backward_seconds", clock.begun)
            own_seconds = clock.parts["forward_backward_seconds"] - (apart or 0.0)
            shared = self._share(faults.loss(own, progress.iteration + 1), count, own_seconds)
            update, waited = self._update(shared, rate), batches.seconds
            clock.lap("optimizer_seconds", now)
            bad = self._judged(shared, update, progress, size)
        progress.iteration += 1
        progress.consumed_samples += size
        progress.skipped += update.skipped
        progress.nan += not math.isfinite(shared.loss)
        record = {
            "iteration": progress.iteration,
            "consumed_samples": progress.consumed_samples,
            "loss": shared.loss if math.isfinite(shared.loss) else None,
            "learning_rate": rate,
            "grad_norm": update.gradient_norm,
            "loss_scale": update.loss_scale,
            "seconds": time.monotonic() - clock.begun,
            "skipped": int(update.skipped),
            "nan": int(not math.isfinite(shared.loss)),
            "data_wait_seconds": waited,
            "memory_bytes": _memory(),
            "global_batch": size,
            "communication_seconds": apart,
            **clock.parts,
            "rank_seconds": [round(seconds, 6) for seconds in shared.rank_seconds],
        }
        return Done(record, shared.wish, bad)

    def _update(self, shared: Shared, rate: float) -> Update:
        if not math.isfinite(shared.loss) and self.spec.precision.format != "fp16":
            return Update(math.nan, True, self._last_scale())
        return self.engine.update(rate)

    def _last_scale(self) -> float:
        return self.scale if math.isfinite(self.scale) else 1.0

    def _judged(self, shared: Shared, update: Update, progress: Progress, size: int) -> BadStep | None:
        """What is wrong with the step that comes after `progress`; an fp16 overflow that halves the scale is usual."""
        before, self.scale = self.scale, update.loss_scale
        precision = self.spec.precision
        what, value = "", 0.0
        if precision.format == "fp16":
            at_floor = precision.static_loss_scale or before <= precision.minimum_loss_scale
            if update.skipped and at_floor:
                what, value = "the gradient overflows at the smallest loss scale: the scale", update.loss_scale
        elif not math.isfinite(shared.loss):
            what, value = "the loss", shared.loss
        elif not math.isfinite(update.gradient_norm):
            what, value = "the gradient norm", update.gradient_norm
        if not what:
            return None
        first = progress.consumed_samples
        return BadStep(progress.iteration + 1, what, value, first, first + size - 1)

    def _share(self, own_loss: float, count: int, seconds: float) -> Shared:
        """Bring losses, wishes and times together in one small reduction."""
        holds, wish = self.engine.holds_loss(), self.stopping.wish()
        times = [0.0] * torch.distributed.get_world_size()
        times[torch.distributed.get_rank()] = seconds
        values = [own_loss if holds else 0.0, float(wish < 0), *(float(wish == number) for number in SIGNALS), *times]
        message = torch.tensor(values, dtype=torch.float64, device=device())
        torch.distributed.all_reduce(message)
        loss, clock, *rest = message.tolist()
        counts, times = rest[: len(SIGNALS)], rest[len(SIGNALS) :]
        signals = [number for number, sent in zip(SIGNALS, counts, strict=True) if sent]
        parts = count * self.spec.parallel.data
        return Shared(loss / parts, signals[0] if signals else -int(clock > 0), times)


class _Timed:
    """An iterator that knows how long it was waited for."""

    def __init__(self, batches: Any) -> None:
        self._batches = batches
        self.seconds = 0.0

    def __iter__(self) -> _Timed:
        return self

    def __next__(self) -> Any:
        begun = time.monotonic()
        try:
            return next(self._batches)
        finally:
            self.seconds += time.monotonic() - begun


def _part(spec: Spec) -> Share:
    copies, copy = parallel_state.get_data_parallel_world_size(), parallel_state.get_data_parallel_rank()
    return Share(spec.batch.micro, copies, copy)


def _memory() -> int:
    """Most memory used so far: of the GPU, or of this process (Linux counts it in KiB)."""
    if torch.cuda.is_available():
        return int(torch.cuda.max_memory_allocated())
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
