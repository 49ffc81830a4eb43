"""The training loop: steps, evaluations, saves, and a clean stop, on all ranks alike."""

from __future__ import annotations

import math
import resource
import time
from dataclasses import dataclass
from typing import Any

import torch
from megatron.core import parallel_state

from runbook.training import data, faults, saving, token_files
from runbook.training.distributed import device, on_first, share
from runbook.training.engine import Engine, Update, make_engine
from runbook.training.errors import FINISHED, STOPPED, TrainingError
from runbook.training.order import Share
from runbook.training.pulse import Pulse
from runbook.training.report import Report, say
from runbook.training.sampling import continue_text
from runbook.training.saving import Progress
from runbook.training.schedule import learning_rate
from runbook.training.spec import Spec
from runbook.training.stopping import SIGNALS, Stopping


@dataclass(frozen=True)
class Shared:
    """What all ranks know after the backward pass: the loss of the global batch, and who wishes to stop."""

    loss: float
    wish: int


class Run:
    """One segment of a training run, from its start or its newest checkpoint to its end or its stop."""

    def __init__(self, spec: Spec, report: Report, stopping: Stopping, pulse: Pulse) -> None:
        self.spec = spec
        self.report = report
        self.stopping = stopping
        self.pulse = pulse
        on_first(lambda: token_files.check(spec))
        self.engine: Engine = make_engine(spec)
        self.progress = Progress()
        self.saved_iteration = -1
        self.reader = data.Reader(_share(spec), spec.model.vocabulary, device())

    def train(self) -> int:
        """Train to the end; the exit code."""
        self._start()
        spec, progress, total = self.spec, self.progress, self.spec.duration.iterations
        train, validation = data.datasets(spec)
        if progress.iteration == 0:
            self._sample()
        while progress.iteration < total:
            wish = self._step(train)
            at_end = progress.iteration == total
            if validation is not None and (at_end or progress.iteration % spec.evaluation.interval == 0):
                with self.pulse.during("evaluating"):
                    self._evaluate(validation)
            if wish and not at_end:
                self._save()
                self.report.event("stopped", iteration=progress.iteration, signal=self.stopping.reason(wish))
                return STOPPED
            if at_end or (spec.checkpoint.interval and progress.iteration % spec.checkpoint.interval == 0):
                self._save()
        if self.saved_iteration >= 0:
            self._sample()
        self.report.event("finished", iteration=progress.iteration)
        return FINISHED

    def _start(self) -> None:
        """Go on from the newest whole checkpoint, or begin."""
        loaded = saving.load(self.spec, self.engine)
        starts = share(self.report.earlier_starts())
        if loaded is not None:
            self.progress = loaded.progress
        self.progress.segment = max(starts, self.progress.segment + 1 if loaded else 0)
        self.report.begin(self.progress.segment)
        world_size = self.spec.parallel.world_size
        counted, planned = self.engine.parameters(), self.spec.model.parameters
        if planned not in (0, counted):
            self._tell(f"the model has {counted:,} parameters, and the plan says {planned:,}")
        self.report.event(
            "started",
            world_size=world_size,
            segment=self.progress.segment,
            from_iteration=self.progress.iteration,
            parameters=counted,
        )
        if loaded is None:
            return
        for problem in loaded.problems:
            self._tell(f"checkpoint passed over: {problem}")
            self.report.event("checkpoint_broken", message=problem)
        if not loaded.same_fingerprint:
            self._tell(f"{loaded.folder} was written with other values than this plan has; going on with the plan's")
        self._tell(f"going on from {loaded.folder}")
        self.report.event(
            "resumed",
            iteration=self.progress.iteration,
            folder=str(loaded.folder.relative_to(self.spec.root)),
            same_fingerprint=loaded.same_fingerprint,
        )

    def _step(self, train: Any) -> int:
        """One iteration; the wish to stop that any rank has."""
        spec, progress = self.spec, self.progress
        begun = time.monotonic()
        self.pulse.step(progress.iteration + 1)
        faults.step(progress.iteration + 1)
        count = spec.batch.num_microbatches
        batches = _Timed(self.reader.step(train, progress.consumed_samples, count))
        rate = learning_rate(spec.learning_rate, progress.consumed_samples, spec.batch.global_)
        shared = self._share(self.engine.compute(batches, count))
        if not math.isfinite(shared.loss) and spec.precision.format != "fp16":
            raise self._not_finite("the loss", shared.loss)
        update = self.engine.update(rate)
        if not update.skipped and not math.isfinite(update.gradient_norm):
            raise self._not_finite("the gradient norm", update.gradient_norm)
        progress.iteration += 1
        progress.consumed_samples += spec.batch.global_
        progress.skipped += update.skipped
        progress.nan += not math.isfinite(shared.loss)
        seconds = time.monotonic() - begun
        self.stopping.stepped(seconds)
        self._report_step(shared, update, rate, seconds, batches.seconds)
        return shared.wish

    def _report_step(self, shared: Shared, update: Update, rate: float, seconds: float, waited: float) -> None:
        record = {
            "iteration": self.progress.iteration,
            "consumed_samples": self.progress.consumed_samples,
            "loss": shared.loss if math.isfinite(shared.loss) else None,
            "learning_rate": rate,
            "grad_norm": update.gradient_norm,
            "loss_scale": update.loss_scale,
            "seconds": seconds,
            "skipped": int(update.skipped),
            "nan": int(not math.isfinite(shared.loss)),
            "data_wait_seconds": waited,
            "memory_bytes": _memory(),
        }
        self.report.step(record, self.progress.skipped, self.progress.nan)

    def _share(self, own_loss: float) -> Shared:
        """Bring losses and wishes together in one small reduction."""
        holds, wish = self.engine.holds_loss(), self.stopping.wish()
        own_loss = faults.loss(own_loss, self.progress.iteration + 1)
        values = [own_loss if holds else 0.0, float(wish < 0), *(float(wish == number) for number in SIGNALS)]
        message = torch.tensor(values, dtype=torch.float64, device=device())
        torch.distributed.all_reduce(message)
        loss, clock, *counts = message.tolist()
        signals = [number for number, count in zip(SIGNALS, counts, strict=True) if count]
        parts = self.spec.batch.num_microbatches * self.spec.parallel.data
        return Shared(loss / parts, signals[0] if signals else -int(clock > 0))

    def _not_finite(self, what: str, value: float) -> TrainingError:
        first = self.progress.consumed_samples
        error = TrainingError(
            f"{what} is {value} at iteration {self.progress.iteration + 1} (samples {first} to "
            f"{first + self.spec.batch.global_ - 1}); nothing of this step was saved. Lower the learning rate or "
            f"lengthen the warm-up, then run again: it goes on from the last checkpoint"
        )
        error.on_all_ranks = True
        return error

    def _evaluate(self, validation: Any) -> None:
        begun = time.monotonic()
        spec = self.spec
        count = spec.evaluation.iterations * spec.batch.num_microbatches
        own = self.engine.evaluate(self.reader.step(validation, 0, count), count)
        value = torch.tensor([own if self.engine.holds_loss() else 0.0], dtype=torch.float64, device=device())
        torch.distributed.all_reduce(value)
        loss = float(value) / count / spec.parallel.data
        samples = spec.evaluation.iterations * spec.batch.global_
        self.report.validation(self.progress.iteration, loss, samples, time.monotonic() - begun)

    def _save(self) -> None:
        with self.pulse.during("saving"):
            saved = saving.save(self.spec, self.engine, self.progress)
        self.stopping.saved(saved.seconds)
        self.saved_iteration = self.progress.iteration
        self.report.event(
            "saved",
            iteration=self.progress.iteration,
            seconds=saved.seconds,
            bytes=saved.bytes,
            folder=str(saved.folder.relative_to(self.spec.root)),
        )

    def _sample(self) -> None:
        if self.spec.sampling.prompt_ids and self.spec.sampling.tokens:
            ids = continue_text(self.spec, self.engine)
            self.report.sample(self.progress.iteration, self.spec.sampling.prompt_ids, ids)

    def _tell(self, text: str) -> None:
        if torch.distributed.get_rank() == 0:
            say(text)


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


def _share(spec: Spec) -> Share:
    copies, copy = parallel_state.get_data_parallel_world_size(), parallel_state.get_data_parallel_rank()
    return Share(spec.batch.micro, copies, copy)


def _memory() -> int:
    """Most memory used so far: of the GPU, or of this process (Linux counts it in KiB)."""
    if torch.cuda.is_available():
        return int(torch.cuda.max_memory_allocated())
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
