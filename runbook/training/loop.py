"""The training loop: steps, evaluations, saves, and a clean stop, on all ranks alike."""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import Any

import torch

from runbook.training import data, faults, loading, peak, proofs, token_files
from runbook.training.bad_steps import BadStep, BadSteps
from runbook.training.distributed import device, on_first, share
from runbook.training.engine import Engine, make_engine
from runbook.training.errors import FINISHED, STOPPED, RefusedError
from runbook.training.loading import Loaded
from runbook.training.progress import Progress
from runbook.training.pulse import Pulse
from runbook.training.report import Report, say
from runbook.training.sampling import continue_text
from runbook.training.saving import Save
from runbook.training.spec import Spec
from runbook.training.step import Stepper
from runbook.training.stopping import Stopping


class Run:
    """One segment of a training run, from its start or its newest checkpoint to its end or its stop."""

    def __init__(self, spec: Spec, report: Report, stopping: Stopping, pulse: Pulse) -> None:
        self.spec = spec
        self.report = report
        self.pulse = pulse
        self.stopping = stopping
        on_first(lambda: token_files.check(spec))
        on_first(lambda: _check_writable(spec.path(spec.checkpoint.folder)))
        self.engine: Engine = make_engine(spec)
        self.progress = Progress()
        self.saved_iteration = -1
        self.pending: Save | None = None
        self.stepper = Stepper(spec, self.engine, stopping)
        self.bad_steps = BadSteps(spec)

    def train(self) -> int:
        """Train to the end; the exit code."""
        self._start()
        spec, progress, total = self.spec, self.progress, self.spec.duration.iterations
        train, validation = data.datasets(spec)
        if progress.iteration == 0:
            self._sample()
        while progress.iteration < total:
            wish = self._step(train)
            at_end = progress.iteration >= total
            if validation is not None and (at_end or self._at(spec.evaluation.interval)):
                with self.pulse.during("evaluating"):
                    self._evaluate(validation)
            why = self.stopping.reason(wish) if wish else "exit_interval" if self._at(spec.limits.exit_interval) else ""
            if why and not at_end:
                self._save()
                self.report.event("stopped", iteration=progress.iteration, signal=why)
                return STOPPED
            self._look_after_save()
            if at_end or self._at(spec.checkpoint.interval):
                self._save(beside=spec.checkpoint.asynchronous and not at_end)
        if self.saved_iteration >= 0:
            self._sample()
        proofs.prove(self, train)
        self.report.event("finished", iteration=progress.iteration)
        return FINISHED

    def _at(self, interval: int) -> bool:
        return bool(interval) and self.progress.iteration % interval == 0

    def _start(self) -> None:
        """Go on from the newest whole checkpoint, or begin."""
        loaded = loading.load(self.spec, self.engine)
        starts = share(self.report.earlier_starts())
        if loaded is not None:
            self._refuse_other(loaded)
            vars(self.progress).update(vars(loaded.progress))
            self._pass_over_again()
        self.progress.segment = max(starts, self.progress.segment + 1 if loaded else 0)
        self.report.begin(self.progress.segment)
        if not self.spec.log.measured_tflops and self.spec.duration.iterations >= peak.SHORTEST:
            self.report.measured_tflops = peak.measured_tflops(self.spec.precision.format)
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
        if loaded.problems:
            self._tell(f"{loaded.lost_iterations} iterations are lost: they were in what was passed over")
        if loaded.tracker:
            self._tell(f"{loaded.tracker}: written anew from the checkpoints that are there")
            self.report.event("tracker_rebuilt", message=loaded.tracker)
        for change in loaded.changes + loaded.harmless:
            self._tell(f"{loaded.folder} was trained with {change}; going on with the plan's")
        self._tell(f"going on from {loaded.folder}")
        self.report.event(
            "resumed",
            iteration=self.progress.iteration,
            folder=self._relative(loaded.folder),
            same_fingerprint=not loaded.changes,
            weights_only=loaded.weights_only,
            lost_iterations=loaded.lost_iterations,
        )

    def _pass_over_again(self) -> None:
        """A segment that ended after a rollback and before its next save left word of it in events.jsonl alone."""
        if self.spec.limits.nan_policy == "rollback":
            earlier, known = share(self.report.rolled_back()), self.progress.passed_over
            seen = self.progress.consumed_samples
            known += [samples for samples in earlier if samples not in known and samples[0] >= seen]

    def _refuse_other(self, loaded: Loaded) -> None:
        if loaded.changes and not self.spec.checkpoint.resume_changed:
            raise RefusedError(
                f"{loaded.folder} was trained with other values than this plan has: {'; '.join(loaded.changes)}. "
                f"Going on would be another training than either; use the values it was trained with, another "
                f"checkpoint folder, or set training.resume_changed true to go on with the plan's values"
            )
        if loaded.progress.iteration > self.spec.duration.iterations:
            raise RefusedError(
                f"{loaded.folder} is of iteration {loaded.progress.iteration}, and this plan ends at "
                f"{self.spec.duration.iterations}: nothing is left to train. Plan a longer training, or another "
                f"checkpoint folder to begin a shorter one anew"
            )

    def _step(self, train: Any) -> int:
        """One iteration, with what follows a bad one; the wish to stop that any rank has."""
        self.pulse.step(self.progress.iteration + 1)
        faults.step(self.progress.iteration + 1)
        done = self.stepper.step(train, self.progress)
        self.stopping.stepped(done.record["seconds"])
        action = self._answer(done.bad) if done.bad else ""
        self.report.step(done.record, self.progress.skipped, self.progress.nan)
        if done.bad is None:
            self.bad_steps.good()
        elif action == "rollback":
            self._roll_back(done.bad)
        return done.wish

    def _answer(self, bad: BadStep) -> str:
        """Whether to go on without the step, or to go back and leave its samples out; raises where it is to stop."""
        folder = loading.newest(self.spec) if self.spec.limits.nan_policy == "rollback" else None
        has_checkpoint = folder is not None or self.pending is not None
        action = self.bad_steps.action(has_checkpoint=has_checkpoint)
        self.report.event("bad_step", **bad.fields(), policy=self.spec.limits.nan_policy, action=action)
        if action == "stop":
            raise self.bad_steps.error(bad)
        self._tell(f"{bad.what} is {bad.value} at iteration {bad.iteration}: {action}, by training.nan_policy")
        return action

    def _roll_back(self, bad: BadStep) -> None:
        self._end_save()
        passed = [*self.progress.passed_over, [bad.first_sample, bad.last_sample]]
        segment = self.progress.segment + 1
        loaded = loading.load(self.spec, self.engine)
        assert loaded is not None, "it was there a moment ago"
        vars(self.progress).update(vars(loaded.progress))
        self.progress.passed_over, self.progress.segment = passed, segment
        self.saved_iteration = self.progress.iteration  # a later one that was broken is saved anew
        self.report.segment = segment
        self.report.event("rolled_back", iteration=self.progress.iteration, folder=self._relative(loaded.folder))

    def _evaluate(self, validation: Any) -> None:
        begun = time.monotonic()
        spec = self.spec
        count = spec.evaluation.iterations * spec.batch.num_microbatches
        own = self.engine.evaluate(self.stepper.reader.step(validation, 0, count), count)
        value = torch.tensor([own if self.engine.holds_loss() else 0.0], dtype=torch.float64, device=device())
        torch.distributed.all_reduce(value)
        loss = float(value) / count / spec.parallel.data
        samples = spec.evaluation.iterations * spec.batch.global_
        self.report.validation(self.progress.iteration, loss, samples, time.monotonic() - begun)

    def _save(self, *, beside: bool = False) -> None:
        """Save; where `beside`, the files are written while the training goes on, and `_look_after_save` ends it."""
        if self.progress.iteration == self.saved_iteration:
            return
        with self.pulse.during("saving"):
            self._end_save()
            self.saved_iteration = self.progress.iteration
            self.pending = Save(self.spec, self.engine, self.progress, beside=beside)
            if not beside:
                self._end_save()

    def _look_after_save(self) -> None:
        """Seal the checkpoint that is written beside the training once all ranks have written their part."""
        if self.pending is not None and self.pending.is_written():
            with self.pulse.during("saving"):
                self._end_save()

    def _end_save(self) -> None:
        if self.pending is None:
            return
        pending, self.pending = self.pending, None
        saved = pending.finish()
        self.stopping.saved(saved.seconds)
        self.report.event(
            "saved",
            iteration=saved.iteration,
            seconds=saved.seconds,
            stall_seconds=saved.stall_seconds,
            bytes=saved.bytes,
            folder=self._relative(saved.folder),
        )

    def _relative(self, folder: Any) -> str:
        return str(folder.relative_to(self.spec.root))

    def _sample(self) -> None:
        if self.spec.sampling.prompt_ids and self.spec.sampling.tokens:
            ids = continue_text(self.spec, self.engine)
            self.report.sample(self.progress.iteration, self.spec.sampling.prompt_ids, ids)

    def _tell(self, text: str) -> None:
        if torch.distributed.get_rank() == 0:
            say(text)


def _check_writable(folder: Path) -> None:
    """`RefusedError` where no checkpoint could be written, before hours of training are lost at the first save."""
    there = folder
    while not there.exists() and not there.is_symlink():
        there = there.parent
    if not there.is_dir() or not os.access(there, os.W_OK | os.X_OK):
        why = "may not be written to" if there.is_dir() else "is no folder"
        raise RefusedError(f"checkpoint.folder {folder}: {there} {why}, so that no checkpoint could be saved")
