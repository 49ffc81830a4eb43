"""The training loop, with its steps, evaluations, saves, smoke-test checks and clean stops."""

import contextlib
import gc
import math
import os
import resource
import socket
import time
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import torch
from megatron.core import parallel_state

from runbook.plan_file.alarms import CONFIRMING, Alarm, MetricWatch
from runbook.plan_file.checkpoint_folder import saved_iterations
from runbook.plan_file.errors import FINISHED, STOPPED, RefusedError, TrainingError
from runbook.plan_file.fewer_replicas import REPLICAS_CHANGED, replicas_change
from runbook.plan_file.phase_names import SMOKE
from runbook.plan_file.resume_sources import SHARED
from runbook.plan_file.schema import PhasePlan, exchange_interval
from runbook.plan_file.slow_ranks import ExchangedTimes, StragglerDetector
from runbook.training import cpu, data_cache, token_files
from runbook.training.batch_reader import BatchReader, ReadAhead
from runbook.training.checkpoints import folders, state
from runbook.training.checkpoints.state import LoadedCheckpoint, PendingSave, TrainingProgress
from runbook.training.data_cache import CacheCheck
from runbook.training.datasets import make_datasets
from runbook.training.engines.engine import (
    COMMUNICATION,
    COMPUTE,
    DATA,
    OPTIMIZER,
    OptimizerUpdate,
    TrainingEngine,
)
from runbook.training.engines.gpt_model import DTYPES
from runbook.training.health import bad_steps, injected_faults
from runbook.training.health.bad_steps import BadStep, BadStepPolicy
from runbook.training.health.heartbeat import HeartbeatWriter
from runbook.training.health.memory_and_disk import DiskWatch, MemoryWatch
from runbook.training.health.stopping import SIGNALS, StopConditions
from runbook.training.job_output import say
from runbook.training.kernels.compile_faults import is_said_by, slower_kernels, watch_compiler
from runbook.training.messages import TrainingMessage
from runbook.training.near.copies import NearCopies, SaveAccount
from runbook.training.process_groups import (
    device,
    run_long_on_first_rank,
    run_on_first_rank,
    share_value,
    sum_speed,
    wait_for_gpu,
)
from runbook.training.ranks import on_gpu
from runbook.training.sample_order import DataParallelShare
from runbook.training.sampling import draw_token
from runbook.training.training_log import StepRecord, TrainingLog


def make_engine(spec: PhasePlan, *, draw: bool = True) -> TrainingEngine:
    """Return the engine the plan names.

    With `draw`, the model gets initial weights, which are not needed if a checkpoint is loaded.
    """
    if spec.engine == "megatron-core":
        from runbook.training.engines.megatron_engine import MegatronEngine

        return MegatronEngine(spec, draw=draw)

    from runbook.training.engines import deepspeed_start

    deepspeed_start.import_deepspeed()
    from runbook.training.engines.deepspeed_engine import DeepSpeedEngine
    from runbook.training.engines.deepspeed_pipeline import DeepSpeedPipeline

    kind = DeepSpeedPipeline if spec.parallel.pipeline > 1 else DeepSpeedEngine
    return kind(spec, draw=draw)


class TrainingLoop:
    """One segment in a training run, from the start or newest checkpoint to the end or a stop."""

    def __init__(
        self,
        spec: PhasePlan,
        log: TrainingLog,
        stopping: StopConditions,
        heartbeat: HeartbeatWriter,
        until: int = 0,
    ) -> None:
        """Prepare to train to step `until` without a save there, or to the end if `until` is 0."""
        self.spec = spec
        self.until = until
        self.log = log
        self.compiler_faults = watch_compiler()
        self.heartbeat = heartbeat
        self.stopping = stopping
        check = partial(token_files.check_token_files, spec)
        timeout = spec.limits.process_group_timeout_seconds
        self.tokens = run_long_on_first_rank(check, "checking the token files", timeout)
        run_on_first_rank(lambda: _check_writable(spec.path(spec.checkpoint.folder)))
        root = spec.path(spec.checkpoint.folder)
        self.engine = make_engine(
            spec, draw=not run_on_first_rank(lambda: folders.has_checkpoints(root))
        )
        self.progress = TrainingProgress()
        self.saved_iteration = -1
        self.saved_order: dict[str, str] = {}
        """Checksums for the cached sample order by file: from the checkpoint, and later from this
        start.
        """
        self.pending: PendingSave | None = None
        self.newest_shared = 0
        """Iteration of the newest checkpoint on the shared file system."""
        self.near: NearCopies | None = None
        if spec.checkpoint.near_interval and not until:
            self.near = NearCopies(spec, self.engine, log)
        self.stepper = Stepper(spec, self.engine, stopping)
        self.disk = DiskWatch(spec)
        self.stragglers = StragglerDetector(spec.parallel.pipeline)
        self.bad_steps = BadStepPolicy(spec)
        self.newest = deque[BadStep](maxlen=CONFIRMING)

    def train(self) -> int:
        """Train to the end, and return the exit code."""
        self._start()
        spec = self.spec
        tokens_per_micro_batch = spec.batch.micro * spec.model.shape.sequence_length
        datasets = make_datasets(spec, self.tokens)
        self._compare_order(datasets.cache)
        reader = ReadAhead(self.stepper.reader, tokens_per_micro_batch, spec.duration.samples)
        with contextlib.closing(reader) as self.stepper.batches:
            return self._train(datasets.train, datasets.validation)

    def _train(self, train: Any, validation: Any) -> int:
        """Run steps until the end or a stop, and return the exit code."""
        progress = self.progress
        total = self.spec.duration.iterations
        if progress.iteration == 0:
            self._sample()

        if self.spec.tuning.gc_interval:
            # Automatic Python garbage collection would run at different steps on each rank, and all
            # ranks would wait for each collection.
            gc.disable()
            gc.collect()

        while progress.iteration < total:
            stop_request = self._step(train)
            self._report_compiler_faults()
            if progress.iteration == self.until:
                self.log.event("replayed", iteration=progress.iteration)
                return FINISHED

            at_end = progress.iteration >= total
            self._do_between_steps(validation, at_end=at_end)
            reason = self._stop_reason(stop_request)
            if reason and not at_end:
                self._save()
                self._end_near()
                self.log.event("stopped", iteration=progress.iteration, signal=reason)
                return STOPPED

            self._save_if_due(at_end=at_end)

        self._end_near()
        if self.saved_iteration >= 0:
            self._sample()
        if self.spec.phase == SMOKE and self.saved_iteration == progress.iteration:
            with self.heartbeat.during("proving"):
                self._prove_smoke_test(train)

        self.log.event("finished", iteration=progress.iteration)
        return FINISHED

    def _do_between_steps(self, validation: Any, *, at_end: bool) -> None:
        """Collect garbage, evaluate, and copy to node memory, whenever each is due."""
        # All ranks collect at the same step, to avoid waiting for each other
        if self._at(self.spec.tuning.gc_interval):
            gc.collect()

        if validation is not None and (at_end or self._at(self.spec.evaluation.interval)):
            with self.heartbeat.during("evaluating", self.spec.evaluation.iterations):
                self._evaluate(validation)

        if self.near is not None:
            self.near.stepped()

    def _stop_reason(self, stop_request: int) -> str:
        """Return the reason to end the training after this step, or an empty string to continue."""
        if stop_request:
            return self.stopping.reason(stop_request)
        if self._at(self.spec.limits.exit_interval):
            return "exit_interval"
        return ""

    def _save_if_due(self, *, at_end: bool) -> None:
        checkpoint = self.spec.checkpoint
        self._seal_written_save()
        if at_end or self._at(checkpoint.interval):
            # No training follows the last save, so saving in the background would not help.
            self._save(in_background=checkpoint.asynchronous and not at_end)
        if self._at(checkpoint.near_interval) and not at_end:
            self._save_near()

    def _at(self, interval: int) -> bool:
        return bool(interval) and self.progress.iteration % interval == 0

    def _start(self) -> None:
        """Resume from the newest complete checkpoint, or start from initial weights."""
        load_near = self.near.load_newer if self.near is not None else None
        loaded = state.load_checkpoint(self.spec, self.engine, load_near)
        if loaded is None and self.near is not None and self.near.is_spoiled:
            raise TrainingError(TrainingMessage.COPY_NOT_LOADED)

        starts = share_value(self.log.earlier_starts())
        if loaded is not None:
            self._refuse_other_training(loaded)
            vars(self.progress).update(vars(loaded.progress))
            # All ranks need the recent steps, because all ranks skip the samples in a spike
            # together.
            recent = share_value(self.log.recent_steps(self.progress.iteration))
            self.stepper.watch.remember(recent)
            self.saved_order = loaded.data_cache
            self._pass_over_again()

        self.progress.segment = max(starts, self.progress.segment + 1 if loaded else 0)
        self.log.begin(self.progress.segment)
        if (
            not self.spec.log.measured_tflops
            and self.spec.duration.iterations >= SHORTEST_MEASURED_ITERATIONS
        ):
            self.log.measured_tflops = measured_tflops(self.spec.precision.format)

        counted = self.engine.num_parameters()
        planned = self.spec.model.parameters
        if planned not in (0, counted):
            self._say(f"the model has {counted:,} parameters, but the plan says {planned:,}")
        start: dict[str, Any] = {
            "segment": self.progress.segment,
            "from_iteration": self.progress.iteration,
            "parameters": counted,
        }
        if self.near is not None:
            root = self.spec.path(self.spec.checkpoint.folder)
            self.newest_shared = run_on_first_rank(lambda: max(saved_iterations(root), default=0))
            self.near.begin()
            start["near"] = self.near.lineage

        self.log.event("started", world_size=self.spec.parallel.world_size, **start)
        self._report_replicas()
        self._report_slower_kernels()
        if loaded is not None:
            self._report_resume(loaded)

    def _report_replicas(self) -> None:
        """Report the number of data-parallel replicas if it has changed."""
        if torch.distributed.get_rank() != 0:
            return
        # This also applies to a plan that does not allow fewer replicas, because the previous start
        # may have used a different plan.
        change = replicas_change(self.spec, self.log.earlier_events())
        if change is not None:
            self._say(
                TrainingMessage.FEWER_REPLICAS_TRAIN.fill(
                    iteration=self.progress.iteration + 1,
                    replicas=change.replicas,
                    planned_replicas=change.planned_replicas,
                    num_microbatches=change.num_microbatches,
                )
            )
            self.log.event(REPLICAS_CHANGED, iteration=self.progress.iteration, **vars(change))

    def _report_slower_kernels(self) -> None:
        """Report why our own kernels are not used, each reason once."""
        reason = slower_kernels(self.spec)
        if is_said_by(torch.distributed.get_rank(), reason, first_reason=share_value(reason)):
            self._report_slower(reason)

    def _report_compiler_faults(self) -> None:
        """Report functions torch could not compile on this rank since the last step."""
        for reason in self.compiler_faults.take():
            self._report_slower(reason)

    def _report_slower(self, reason: str) -> None:
        """Report a reason why steps take longer than planned. Rank 0 also writes an event."""
        rank = torch.distributed.get_rank()
        say(f"rank {rank} on {socket.gethostname()}: {reason}")
        self.log.event("slower_kernels", reason=reason)

    def _compare_order(self, cache: CacheCheck) -> None:
        """Report which parts of the cached sample order were rebuilt.

        Refuse to continue with a different order.
        """
        if changed := cache.changed:
            folder = self.spec.data.cache
            self._say(
                f"{folder}: changed after it was built, so it was rebuilt: {', '.join(changed)}"
            )
            self.log.event("data_cache_rebuilt", folder=folder, files=changed)

        other_order = data_cache.other_order(self.saved_order, cache.checksums)
        if other_order and not self.spec.checkpoint.resume_changed:
            raise RefusedError(
                TrainingMessage.ORDER_CHANGED,
                cache=self.spec.data.cache,
                iteration=self.progress.iteration,
                other_order=", ".join(other_order),
            )

        self.saved_order = dict(cache.checksums)

    def _report_resume(self, loaded: LoadedCheckpoint) -> None:
        for problem in loaded.problems:
            self._say(TrainingMessage.CHECKPOINT_PASSED_OVER.fill(problem=problem))
            self.log.event("checkpoint_broken", message=problem)

        if loaded.problems:
            self._say(
                f"{loaded.lost_iterations} iterations are lost, because newer checkpoints could "
                "not be used"
            )

        if loaded.tracker_fault:
            self._say(f"{loaded.tracker_fault}: rewritten from the checkpoints that exist")
            self.log.event("tracker_rebuilt", message=loaded.tracker_fault)

        for change in loaded.changes + loaded.harmless:
            self._say(
                TrainingMessage.GOING_ON_WITH_THE_PLAN.fill(folder=loaded.folder, change=change)
            )
        where = "" if loaded.source == SHARED else f" ({loaded.source})"
        self._say(f"continuing from iteration {self.progress.iteration} in {loaded.folder}{where}")
        self.log.event(
            "resumed",
            source=loaded.source,
            iteration=self.progress.iteration,
            folder=self._relative(loaded.folder),
            same_fingerprint=not loaded.changes,
            changes=[*loaded.changes],
            weights_only=loaded.weights_only,
            lost_iterations=loaded.lost_iterations,
        )

    def _pass_over_again(self) -> None:
        """Skip again the steps that an earlier segment skipped without saving afterwards."""
        if bad_steps.may_roll_back(self.spec.limits):
            earlier = share_value(self.log.rolled_back())
            passed_over = self.progress.passed_over
            consumed_samples = self.progress.consumed_samples
            missing = []
            for samples_of_step in earlier:
                is_to_come = samples_of_step[0] >= consumed_samples
                if is_to_come and samples_of_step not in passed_over:
                    missing.append(samples_of_step)

            passed_over += missing

    def _refuse_other_training(self, loaded: LoadedCheckpoint) -> None:
        if loaded.changes and not self.spec.checkpoint.resume_changed:
            raise RefusedError(
                TrainingMessage.TRAINED_WITH_OTHER_VALUES,
                folder=loaded.folder,
                changes="; ".join(loaded.changes),
            )

        if loaded.progress.iteration > self.spec.duration.iterations:
            raise RefusedError(
                TrainingMessage.NOTHING_LEFT_TO_TRAIN,
                folder=loaded.folder,
                iteration=loaded.progress.iteration,
                iterations=self.spec.duration.iterations,
            )

    def _step(self, train: Any) -> int:
        """Run one iteration, and handle a bad step. Return the stop request if any rank has one."""
        self.heartbeat.step(self.progress.iteration + 1)
        record, stop_request, bad = self.stepper.step(train, self.progress)
        self.stopping.stepped(record.seconds)
        self._report_slow_ranks()
        # A skipped step has no loss to judge.
        was_computed = bool(record.parts) or record.loss is not None
        alarms = [*self.stepper.watch.look(record)] if was_computed else []
        if self.log.ranks.is_last:
            self.log.alarms(alarms)
        if self.stepper.is_replayed:
            self._report_replay()

        self.log.alarms(self.stepper.memory.agree(self.stepper.leaks))
        # A save in progress already occupies the space it needs
        if self.log.ranks.rank == 0 and was_computed and self.pending is None:
            self.log.alarms(self.disk.look(record.iteration, record.seconds))

        steps = [bad] if bad else self._spike(record, alarms)
        action = self._answer(steps) if steps else ""
        self.log.step(record, self.progress.skipped, self.progress.nan)
        if not steps:
            self.bad_steps.in_a_row = 0
        elif action == "rollback":
            self._roll_back(steps)

        return stop_request

    def _report_slow_ranks(self) -> None:
        """Report this rank if it is slow.

        All ranks have all times, but only a slow rank itself knows the name of its machine.
        """
        times = self.stepper.rank_times
        if times is None:
            return
        self.log.rank_times(times)
        rank = self.log.ranks.rank
        slow = self.stragglers.look(times, time.monotonic())
        self.log.alarms(alarm for alarm in slow if alarm.rank == rank)

    def _report_replay(self) -> None:
        """Record results computed twice, and report ranks with different results.

        Each rank reports itself, since only that rank knows the name of its machine.
        """
        replayer = self.stepper.replayer
        for line in replayer.lines():
            self.log.replay(line)
        rank = self.log.ranks.rank
        findings = [finding for finding in replayer.last.findings if finding.rank == rank]
        self.log.alarms(finding.as_alarm() for finding in findings)

    def _spike(self, record: StepRecord, alarms: list[Alarm]) -> list[BadStep]:
        """Return the steps in a confirmed spike, if the planned policy acts on spikes."""
        last = record.consumed_samples - 1
        fault = TrainingMessage.LOSS_JUMPED.fill()
        first = last - record.global_batch + 1
        self.newest.append(
            BadStep(
                record.iteration,
                fault,
                record.loss or math.nan,
                first,
                last,
                "spike_policy",
            )
        )
        spikes = []
        for alarm in alarms:
            if alarm.kind == "spike" and alarm.metric == "loss":
                spikes.append(alarm)

        if not spikes or not bad_steps.answers_spikes(self.spec.limits):
            return []
        first_iteration = spikes[0].since
        return [step for step in self.newest if step.iteration >= first_iteration]

    def _answer(self, steps: list[BadStep]) -> str:
        """Decide whether to continue without this step, or to roll back and skip its samples.

        Raise an error if training must stop.
        """
        root = self.spec.path(self.spec.checkpoint.folder)
        bad = steps[-1]
        has_checkpoint = self.pending is not None
        policy = self.bad_steps.policy(bad)
        if self.bad_steps.needs_checkpoint(bad) and not has_checkpoint:
            has_checkpoint = run_on_first_rank(lambda: bool(folders.candidates(root)[0]))
        action = self.bad_steps.action(bad, has_checkpoint=has_checkpoint)
        for step in steps:
            self.log.event("bad_step", **step.as_event(), policy=policy, action=action)
        if action == "stop":
            raise self.bad_steps.error(bad)
        self._say(
            f"{bad.fault} is {bad.value} at iteration {bad.iteration}: {action} "
            f"(training.{bad.key})"
        )
        return action

    def _roll_back(self, steps: list[BadStep]) -> None:
        self._end_save()
        loaded = state.load_checkpoint(self.spec, self.engine)
        assert loaded is not None, "a step is rolled back only if a checkpoint exists"
        segment = self.progress.segment + 1
        passed_over = list(self.progress.passed_over)
        for step in steps:
            passed_over.append([step.first_sample, step.last_sample])

        # The same object is updated in place, since other objects refer to it.
        vars(self.progress).update(vars(loaded.progress))
        self.progress.passed_over = passed_over
        self.progress.segment = segment
        # If the later checkpoint was damaged, its iteration must be saved again, so it no longer
        # counts as saved
        self.saved_iteration = self.progress.iteration
        self.log.segment = segment
        lineage = {}
        if self.near is not None:
            self.near.begin_lineage()
            lineage["near"] = self.near.lineage

        self.log.event(
            "rolled_back",
            iteration=self.progress.iteration,
            folder=self._relative(loaded.folder),
            **lineage,
        )

    def _evaluate(self, validation: Any) -> None:
        start = time.monotonic()
        iterations = self.spec.evaluation.iterations
        batch = self.spec.batch
        loss = self._loss(validation, iterations * batch.num_microbatches)
        samples = iterations * batch.global_
        iteration = self.progress.iteration
        self.log.validation(iteration, loss, samples, time.monotonic() - start)
        if self.log.ranks.is_last:
            self.log.alarms(self.stepper.watch.look_at_evaluation(iteration, loss))

    def _loss(self, dataset: Any, num_microbatches: int) -> float:
        """Return the mean loss on the first micro-batches of a dataset, over all ranks."""
        batches = self.stepper.reader.step(dataset, 0, num_microbatches)
        rank_loss = self.engine.evaluate(batches, num_microbatches)
        # Only the last pipeline stage has a loss; the others add zero.
        counted_loss = rank_loss if self.engine.holds_loss() else 0.0
        value = torch.tensor([counted_loss], dtype=torch.float64, device=device())
        torch.distributed.all_reduce(value)
        return float(value) / num_microbatches / self.stepper.copies

    def _save(self, *, in_background: bool = False) -> None:
        """Save a checkpoint.

        If the save is in the background, files are written while training continues, and
        `_seal_written_save` completes it.
        """
        if self.progress.iteration == self.saved_iteration:
            return
        with self.heartbeat.during("saving"):
            self._end_save()
            self.saved_iteration = self.progress.iteration
            self.pending = PendingSave(
                self.spec,
                self.engine,
                self.progress,
                in_background=in_background,
                data_cache=self.saved_order,
            )
            if not in_background:
                self._end_save()

    def _seal_written_save(self) -> None:
        """Seal the background checkpoint once all ranks have written their part."""
        if self.pending is not None and self.pending.is_written():
            with self.heartbeat.during("saving"):
                self._end_save()

    def _end_save(self) -> None:
        if self.pending is None:
            return
        pending = self.pending
        self.pending = None
        saved = pending.finish()
        self.newest_shared = saved.iteration
        self.stopping.saved(saved.seconds)
        self.disk.saved(saved.bytes)
        if self.log.ranks.is_last:
            self.log.alarms(self.stepper.watch.look_at_save(saved.iteration, saved.seconds))
        self.log.event("saved", **{**vars(saved), "folder": self._relative(saved.folder)})
        self._report_near()

    def _save_near(self) -> None:
        """Copy the state to node memory, unless a checkpoint has just been saved."""
        if self.near is None or (
            self.saved_iteration == self.progress.iteration and self.pending is None
        ):
            return

        # The activity is not called "saving", because a hundred short copies would make the
        # watchdog expect short saves.
        with self.heartbeat.during("copying"):
            self.near.save(self.progress, self.saved_order, self.newest_shared)

    def _report_near(self) -> None:
        """Record what copies in node memory have cost since the last record, if there were any."""
        if self.near is not None and (self.near.account.copies or self.near.account.left_out):
            self.log.event("near_saved", **vars(self.near.account))
            self.near.account = SaveAccount()

    def _end_near(self) -> None:
        if self.near is not None:
            self._report_near()
            self.near.end()

    def _prove_smoke_test(self, train: Any) -> None:
        """Measure the network speed and reload a checkpoint, as required for the smoke test gate.

        The results are written as events: the speed, and the loss on a batch before a step, after
        it, and after a reload.
        """
        seconds, speed = sum_speed(MESSAGE_BYTES, NETWORK_ROUNDS)
        ranks = self.spec.parallel.world_size
        self.log.event(
            "network",
            ranks=ranks,
            bytes=MESSAGE_BYTES,
            seconds=seconds,
            bytes_per_second=speed,
        )
        start = time.monotonic()
        before = self._loss(train, 1)
        count = self.spec.batch.num_microbatches
        self.engine.compute(self.stepper.reader.step(train, 0, count), count)
        self.engine.update(self.spec.learning_rate.peak)
        between = self._loss(train, 1)
        loaded = state.load_checkpoint(self.spec, self.engine)
        after = self._loss(train, 1)
        self.log.event(
            "reloaded",
            iteration=loaded.progress.iteration if loaded else None,
            saved_iteration=self.progress.iteration,
            folder=self._relative(loaded.folder) if loaded else None,
            seconds=time.monotonic() - start,
            loss_before=before,
            loss_between=between,
            loss_after=after,
        )

    def _relative(self, folder: Path) -> str:
        # A copy in node memory is outside the run folder
        is_in_run = folder.is_relative_to(self.spec.root)
        return str(folder.relative_to(self.spec.root) if is_in_run else folder)

    def _sample(self) -> None:
        """Continue the planned prompt until the document ends, or up to `sampling.tokens` tokens.

        The same weights always produce the same text.
        """
        spec = self.spec
        prompt = self.spec.sampling.prompt_ids
        if not prompt or not spec.sampling.tokens:
            return
        ids = list(prompt)
        generator = torch.Generator().manual_seed(spec.seed)
        for _ in range(spec.sampling.tokens):
            logits = self.engine.next_token_logits(torch.tensor([ids], device=device()))
            token = torch.zeros(1, dtype=torch.int64, device=device())
            if logits is not None:
                token[0] = draw_token(
                    logits[0, -1, : spec.model.shape.vocabulary].float().cpu(), generator
                )

            # The last rank is in the last pipeline stage, so it has the scores and sends the token
            # to the other ranks.
            torch.distributed.broadcast(token, src=torch.distributed.get_world_size() - 1)
            ids.append(int(token))
            if ids[-1] == spec.sampling.end_of_document:
                break

        self.log.sample(self.progress.iteration, prompt, ids[len(prompt) :])

    def _say(self, text: str) -> None:
        if torch.distributed.get_rank() == 0:
            say(text)


@dataclass
class StepOutcome:
    """Result of a step."""

    # Mean over all ranks, or NaN if the step was skipped
    loss: float
    stop_request: int
    update: OptimizerUpdate
    # Seconds spent in each part of the step
    parts: dict[str, float] = field(default_factory=dict)
    # Whether the update was skipped because the loss is far above earlier losses
    jumped: bool = False
    was_computed: bool = False


class Stepper:
    """Computes a step, shares the loss with all ranks, updates the weights, and finds bad steps."""

    def __init__(
        self,
        spec: PhasePlan,
        engine: TrainingEngine,
        stopping: StopConditions,
    ) -> None:
        self.spec = spec
        self.engine = engine
        self.stopping = stopping
        copies = parallel_state.get_data_parallel_world_size()
        copy = parallel_state.get_data_parallel_rank()
        share = DataParallelShare(spec.batch.micro, copies, copy)
        self.clock = engine.clock
        self.reader = BatchReader(spec, share, self.clock)
        self.watch = MetricWatch(spec.log.alarms)
        self.batches: BatchReader | ReadAhead = self.reader
        # Loss scale after the last step
        self.scale = math.inf
        # Number of ranks over which the mean losses are averaged
        self.copies = spec.parallel.data * spec.parallel.context
        # Times from all ranks, if the last step exchanged them
        self.rank_times: ExchangedTimes | None = None
        self.memory = MemoryWatch(spec)
        # Memory leaks on all ranks in bytes per step, if the last step exchanged them
        self.leaks: list[float] = []
        # Computing time on this rank in each step since the last exchange
        self._own_seconds: list[float] = []
        self.replayer = make_replayer(spec, engine)
        # Whether part of the last step was computed twice
        self.is_replayed = False

    def step(
        self, train: Any, progress: TrainingProgress
    ) -> tuple[StepRecord, int, BadStep | None]:
        """Run one iteration.

        Return the step record, a stop request from any rank, and the fault if the step is bad. A
        bad step does not change any weight.
        """
        spec = self.spec
        self.is_replayed = False
        start = time.monotonic()
        consumed_samples = progress.consumed_samples
        global_batch = spec.batch.at(consumed_samples)
        num_microbatches = global_batch // (spec.batch.micro * spec.parallel.data)
        rate = spec.learning_rate.at(consumed_samples + global_batch)
        # Discard the times for work outside steps, such as an evaluation or collectives in the
        # optimizer.
        self.clock.forget(DATA, COMMUNICATION)
        if any(first == consumed_samples for first, _ in progress.passed_over):
            outcome = self._pass_over(num_microbatches, progress.iteration + 1)
        else:
            outcome = self._compute_and_update(train, progress, num_microbatches, rate)

        update = outcome.update
        bad = None
        if outcome.was_computed:
            bad = self._judge(
                outcome.loss,
                update,
                progress,
                global_batch,
                outcome.jumped,
            )

        # Linux reports KiB
        memory_bytes = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
        self.memory.look(progress.iteration + 1, time.monotonic() - start)
        if on_gpu():
            memory_bytes = torch.cuda.max_memory_allocated()

        is_finite = math.isfinite(outcome.loss)
        progress.iteration += 1
        progress.consumed_samples += global_batch
        progress.skipped += update.skipped
        progress.nan += not is_finite
        parts = outcome.parts
        record = StepRecord(
            iteration=progress.iteration,
            consumed_samples=progress.consumed_samples,
            loss=outcome.loss if is_finite else None,
            learning_rate=rate,
            grad_norm=update.gradient_norm,
            loss_scale=update.loss_scale,
            seconds=time.monotonic() - start,
            skipped=int(update.skipped),
            nan=int(not is_finite),
            data_wait_seconds=parts.pop(DATA, 0.0),
            memory_bytes=memory_bytes,
            global_batch=global_batch,
            communication_seconds=parts.pop(COMMUNICATION, None),
            parts=parts,
            numbers=update.numbers,
        )
        return record, outcome.stop_request, bad

    def _no_update(self) -> OptimizerUpdate:
        """Return an optimizer result for a step not taken."""
        loss_scale = self.scale if math.isfinite(self.scale) else 1.0
        return OptimizerUpdate(math.nan, True, loss_scale)

    def _pass_over(self, num_microbatches: int, iteration: int) -> StepOutcome:
        """Skip a step with samples that were bad before a rollback.

        Ranks still exchange stop requests.
        """
        _, stop_request = self._share(0.0, num_microbatches, iteration)
        return StepOutcome(math.nan, stop_request, self._no_update())

    def _compute_and_update(
        self,
        train: Any,
        progress: TrainingProgress,
        num_microbatches: int,
        rate: float,
    ) -> StepOutcome:
        """Compute the gradients, share the loss, and update the weights unless the loss is bad."""
        spec = self.spec
        iteration = progress.iteration + 1
        update = self._no_update()
        with self.clock.during(COMPUTE):
            injected_faults.armed.step(iteration)
            batches = self.batches.step(train, progress.consumed_samples, num_microbatches)
            rank_loss = self._compute(batches, num_microbatches, iteration)

        rank_loss = injected_faults.armed.loss(rank_loss, iteration)
        # If the clock reports late, these are the times of the previous step, because the GPU has
        # not finished this step.
        parts = {} if self.clock.is_late else self._take_times()
        with self.clock.during(OPTIMIZER):
            loss, stop_request = self._share(rank_loss, num_microbatches, iteration)
            # The GPU has finished these parts by now. The optimizer time belongs to the previous
            # step.
            parts = parts or self._take_times()
            is_finite = math.isfinite(loss)
            jumped = (
                bad_steps.withholds_jumps(spec.limits)
                and is_finite
                and self.watch.loss.excess(loss) > 1
            )
            # In fp16, the optimizer handles an overflow by skipping the step and halving the loss
            # scale.
            if not jumped and (is_finite or spec.precision.format == "fp16"):
                update = self.engine.update(rate)

        if not self.clock.is_late:
            parts[OPTIMIZER] = self.clock.take()[OPTIMIZER]
        return StepOutcome(
            loss,
            stop_request,
            update,
            parts=parts,
            jumped=jumped,
            was_computed=True,
        )

    def _compute(
        self,
        batches: Iterator[Any],
        count: int,
        iteration: int,
    ) -> float:
        """Run the forward and backward passes, and repeat one micro-batch if a replay is due."""
        self.is_replayed = self.replayer is not None and self.replayer.is_due(iteration)
        if self.replayer is None or not self.is_replayed:
            return self.engine.compute(batches, count)
        return float(self.replayer.compute(batches, count, iteration))

    def _take_times(self) -> dict[str, float]:
        """Return the seconds spent in each part.

        The computing time on this rank is exchanged with the next loss.
        """
        parts = self.clock.take()
        if not self.clock.is_late:
            # A step without communication spends 0 seconds on it; the clock for a GPU may not have
            # measured it yet.
            parts = {COMMUNICATION: 0.0} | parts
        self._own_seconds.append(parts[COMPUTE] - parts.get(COMMUNICATION, 0.0))
        return parts

    def _judge(
        self,
        loss: float,
        update: OptimizerUpdate,
        progress: TrainingProgress,
        size: int,
        jumped: bool,
    ) -> BadStep | None:
        """Return what is wrong with the step after `progress`, or None if nothing is.

        An fp16 overflow that halves the loss scale does not count.
        """
        before = self.scale
        self.scale = update.loss_scale
        precision = self.spec.precision
        fault = ""
        value = 0.0
        key = "nan_policy"
        if jumped:
            fault = TrainingMessage.LOSS_JUMPED.fill()
            value = loss
            key = "spike_policy"
        elif precision.format == "fp16":
            at_floor = precision.static_loss_scale or before <= precision.minimum_loss_scale
            if update.skipped and at_floor:
                fault = TrainingMessage.GRADIENT_OVERFLOWS.fill()
                value = update.loss_scale
        elif not math.isfinite(loss):
            fault = TrainingMessage.LOSS.fill()
            value = loss
        elif not math.isfinite(update.gradient_norm):
            fault = TrainingMessage.GRADIENT_NORM.fill()
            value = update.gradient_norm

        if not fault:
            return None
        first = progress.consumed_samples
        return BadStep(
            progress.iteration + 1,
            fault,
            value,
            first,
            first + size - 1,
            key,
        )

    def _share(
        self,
        rank_loss: float,
        num_microbatches: int,
        iteration: int,
    ) -> tuple[float, int]:
        """Return the mean loss over the global batch, and a stop request from any rank.

        Every few steps, all ranks also exchange their times. A single reduction carries everything,
        because each additional reduction would make all ranks wait for each other again.
        """
        request = self.stopping.stop_request()
        requests = [float(request < 0), *(float(request == number) for number in SIGNALS)]
        num_ranks = torch.distributed.get_world_size()
        rank = torch.distributed.get_rank()
        num_steps = len(self._own_seconds)
        exchanges_times = num_steps > 0 and iteration % exchange_interval(num_ranks) == 0
        # Each rank fills its own column and adds zeros to the others, so the sum has all columns.
        times = torch.zeros((2, num_ranks) if exchanges_times else 0, dtype=torch.float64)
        if exchanges_times:
            mean_seconds = sum(self._own_seconds) / num_steps
            times[:, rank] = torch.tensor([mean_seconds, self.memory.bytes_per_step])

        counted_loss = rank_loss if self.engine.holds_loss() else 0.0
        values = torch.tensor([counted_loss, *requests], dtype=torch.float64)
        message = torch.cat([values, times.flatten()]).to(device())
        torch.distributed.all_reduce(message)
        loss_sum, clock_requests, *numbers = message.tolist()
        signal_requests = numbers[: len(SIGNALS)]
        seconds_and_leaks = numbers[len(SIGNALS) :]
        self.rank_times = None
        self.leaks = seconds_and_leaks[num_ranks:]
        if exchanges_times:
            self.rank_times = ExchangedTimes(iteration, num_steps, seconds_and_leaks[:num_ranks])
            self._own_seconds.clear()

        loss = loss_sum / (num_microbatches * self.copies)
        for number, num_requests in zip(SIGNALS, signal_requests, strict=True):
            if num_requests:
                return loss, number

        # If no signal has arrived, -1 means that at least one rank has reached its time limit.
        return loss, -int(clock_requests > 0)


def make_replayer(spec: PhasePlan, engine: TrainingEngine) -> Any:
    """Return the object used to recompute micro-batches and detect silent data corruption.

    Return None if the plan does not request replays.
    """
    if not spec.limits.replay_interval:
        return None
    from runbook.training.engines.megatron_engine import MegatronEngine
    from runbook.training.replay.replayer import Replayer

    assert isinstance(engine, MegatronEngine), "a rule of the plan rejects every other engine"
    return Replayer(spec, engine)


def _check_writable(folder: Path) -> None:
    """Raise `RefusedError` if the checkpoint folder is not writable.

    Without this check, hours of training might be lost.
    """
    parent = folder
    while not parent.exists() and not parent.is_symlink():
        parent = parent.parent
    if not parent.is_dir() or not os.access(parent, os.W_OK | os.X_OK):
        why = "may not be written to" if parent.is_dir() else "is not a folder"
        raise RefusedError(TrainingMessage.CHECKPOINT_FOLDER, folder=folder, parent=parent, why=why)


MESSAGE_BYTES = 32 * 2**20
NETWORK_ROUNDS = 3

PEAK_SIZES = {"cpu": 1024, "cuda": 8192}
PEAK_REPEATS = 4
# For a shorter training run, the measurement is not worth the time
SHORTEST_MEASURED_ITERATIONS = 10


def measured_tflops(number_format: str) -> float:
    """Return the best TFLOP/s in a few square matrix products, measured on all ranks together."""
    size = PEAK_SIZES[device().type]
    matrix = torch.rand(size, size, device=device()).to(DTYPES[number_format])
    transposed = matrix.T.contiguous()
    multiply: Callable[..., Any]
    if number_format == "fp32" and cpu.onednn_is_faster():
        multiply = cpu.onednn_matmul
    else:
        multiply = torch.matmul

    best_seconds = float("inf")
    for _ in range(PEAK_REPEATS):
        wait_for_gpu()
        start = time.perf_counter()
        multiply(matrix, transposed)
        wait_for_gpu()
        best_seconds = min(best_seconds, time.perf_counter() - start)

    # One multiplication and one addition for each of size^3 terms
    flops = 2 * size**3
    return flops / best_seconds / 1e12
