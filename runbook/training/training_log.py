"""Writes the training log and TensorBoard events, and sends alarms.

The log consists of lines as in Megatron-LM, metrics.jsonl and events.jsonl.
"""

import contextlib
import dataclasses
import datetime
import json
import math
import socket
import statistics
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from runbook.plan_file.alarms import WINDOW, Alarm
from runbook.plan_file.json_records import append_line
from runbook.plan_file.recent_steps import RecentStep, read_recent_steps
from runbook.plan_file.schema import FLOPS_CONVENTION, PhasePlan
from runbook.plan_file.slow_ranks import ExchangedTimes
from runbook.training.alerts import AlertSender
from runbook.training.job_output import say
from runbook.training.messages import TrainingMessage
from runbook.training.ranks import Ranks
from runbook.training.trackers.tracker_processes import TrackerProcesses


@dataclass(frozen=True)
class StepRecord:
    """An iteration, as a line in metrics.jsonl."""

    iteration: int
    consumed_samples: int
    loss: float | None
    learning_rate: float
    grad_norm: float
    loss_scale: float
    seconds: float
    skipped: int
    nan: int
    data_wait_seconds: float
    memory_bytes: int
    global_batch: int
    communication_seconds: float | None
    # Seconds for the forward and backward passes, and for the optimizer (on a GPU, in the previous
    # step). Empty for a skipped step
    parts: dict[str, float]
    # Other numbers from the engine, by their names in metrics.jsonl
    numbers: Mapping[str, float]


class TrainingLog:
    """Writes on behalf of all ranks: events from rank 0, everything else from the last rank."""

    def __init__(self, spec: PhasePlan, ranks: Ranks) -> None:
        self.spec = spec
        self.ranks = ranks
        self.segment = 0
        self.measured_tflops = spec.log.measured_tflops
        """TFLOP/s in a large matmul on this machine; 0 if not measured."""
        self._unwritable: set[Path] = set()
        self._interval: list[StepRecord] = []
        self._board: Any = None
        self.alerts = AlertSender(spec)
        self._trackers = TrackerProcesses(say)

    def begin(self, segment: int) -> None:
        """Open the log files, which stay open during training.

        Call this only once training really begins, to leave no files behind after a refused start.
        """
        self.segment = segment
        if self.ranks.is_last:
            self._trackers.start(self.spec)
            try:
                from torch.utils.tensorboard import SummaryWriter
            except ImportError:
                say(TrainingMessage.NO_TENSORBOARD.fill())
            else:
                self._board = SummaryWriter(str(self.spec.path(self.spec.log.tensorboard)))

    def event(self, event: str, **fields: Any) -> None:
        """Append an event to events.jsonl."""
        if self.ranks.rank == 0:
            record = {
                "time": time.time(),
                "event": event,
                "phase": self.spec.phase,
                **fields,
            }
            self._append(self.spec.log.events, record)
            self.alerts.send_event(record)

    def earlier_starts(self) -> int:
        """Return the number of earlier segments in this training run, from events.jsonl.

        A segment begins with a start or a rollback. Call this on rank 0 only.
        """
        names = [event.get("event") for event in self.earlier_events()]
        return names.count("started") + names.count("rolled_back")

    def rolled_back(self) -> list[list[int]]:
        """Return the first and last sample in each step that was rolled back, from events.jsonl.

        Call this on rank 0 only.
        """
        sample_ranges = []
        for event in self.earlier_events():
            if event.get("event") == "bad_step" and event.get("action") == "rollback":
                sample_ranges.append([event["first_sample"], event["last_sample"]])

        return sample_ranges

    def earlier_events(self) -> list[dict[str, Any]]:
        """Return the events in this phase since the last "begun". Call this on rank 0 only.

        The event "begun" means that an earlier training run was moved away.
        """
        path = self.spec.path(self.spec.log.events)
        events = list[dict[str, Any]]()
        try:
            lines = path.read_text(encoding="utf-8", errors="replace").splitlines()
        except OSError:
            return []

        for line in lines:
            with contextlib.suppress(ValueError, RecursionError):  # A kill has truncated the line
                event = json.loads(line)
                if isinstance(event, dict) and event.get("phase") == self.spec.phase:
                    if event.get("event") == "begun":
                        events.clear()
                    events.append(event)

        return events

    def recent_steps(self, iteration: int) -> list[RecentStep]:
        """Return the most recent steps up to an iteration, to know which values are usual.

        Call this on rank 0 only.
        """
        metrics = self.spec.path(self.spec.log.metrics)
        return read_recent_steps(metrics, iteration, WINDOW)

    def step(
        self,
        step: StepRecord,
        skipped: int,
        nan: int,
    ) -> None:
        """Write an iteration to metrics.jsonl and TensorBoard, and at `log.interval` to the log."""
        if not self.ranks.is_last:
            return
        spec = self.spec
        tflops = self._tflops(step)
        record = {
            **step.numbers,
            **vars(step),
            **step.parts,
            "consumed_tokens": step.consumed_samples * spec.model.shape.sequence_length,
            "tokens_per_second": step.global_batch
            * spec.model.shape.sequence_length
            / step.seconds,
            "tflops_per_device": tflops,
            "tflops_convention": FLOPS_CONVENTION,
            "mfu": tflops / spec.log.peak_tflops if spec.log.peak_tflops else None,
            "mfu_measured": tflops / self.measured_tflops if self.measured_tflops else None,
            "world_size": self.ranks.world_size,
            "segment": self.segment,
            "time": time.time(),
        }
        del record["parts"]
        del record["numbers"]
        self._append(spec.log.metrics, record)
        self._draw(step.iteration, {key: record[key] for key in (*_DRAWN, *step.numbers)})
        self._trackers.check()
        self._interval.append(step)
        if step.iteration % spec.log.interval == 0:
            steps = self._interval
            losses = [step.loss for step in steps if step.loss is not None]
            averaged = dataclasses.replace(
                step,
                seconds=statistics.fmean(step.seconds for step in steps),
                loss=statistics.fmean(losses) if losses else None,
                skipped=skipped,
                nan=nan,
            )
            tflops = statistics.fmean(map(self._tflops, steps))
            say(training_line(averaged, spec.duration.iterations, tflops, datetime.datetime.now()))
            steps.clear()

    def rank_times(self, times: ExchangedTimes) -> None:
        """Write the rank times since the last exchange to rank_times.jsonl, with four digits."""
        if self.ranks.is_last and self.ranks.world_size > 1:
            seconds = [float(f"{value:.4g}") for value in times.seconds]
            line = {
                "iteration": times.iteration,
                "steps": times.steps,
                "segment": self.segment,
                "seconds": seconds,
            }
            self._append(self.spec.log.rank_times, line)

    def replay(self, line: Mapping[str, object]) -> None:
        """Write a line to replay.jsonl about a part computed twice, on rank 0."""
        self._append(self.spec.log.replay, {**line, "segment": self.segment})

    def alarms(self, alarms: Iterable[Alarm]) -> None:
        """Log alarms, write them as events and send them.

        Only the rank that raised the alarms calls this.
        """
        for alarm in alarms:
            text = TrainingMessage.ALARM.fill(
                kind=alarm.kind, iteration=alarm.iteration, evidence=alarm.evidence
            )
            say(text)
            about = {
                "time": time.time(),
                "event": "alarm",
                "phase": self.spec.phase,
                "host": socket.gethostname(),
            }
            record = about | vars(alarm)
            self._append(self.spec.log.events, record)
            self.alerts.send(text, record)

    def _tflops(self, step: StepRecord) -> float:
        """Return the TFLOP/s per device."""
        flops = step.global_batch * self.spec.model.shape.flops_per_sequence()
        return flops / step.seconds / 1e12 / self.ranks.world_size

    def validation(
        self,
        iteration: int,
        loss: float,
        samples: int,
        seconds: float,
    ) -> None:
        """Report an evaluation."""
        if not self.ranks.is_last:
            return
        say(validation_lines(iteration, loss))
        record = {
            "iteration": iteration,
            "loss": loss,
            "perplexity": perplexity(loss),
            "samples": samples,
        }
        self._append(self.spec.log.validation, {**record, "seconds": seconds, "time": time.time()})
        self._draw(iteration, {"validation_loss": loss})

    def sample(
        self,
        iteration: int,
        prompt: Sequence[int],
        ids: list[int],
    ) -> None:
        """Report a continuation of the prompt."""
        if self.ranks.is_last:
            record = {
                "iteration": iteration,
                "prompt_ids": prompt,
                "ids": ids,
                "time": time.time(),
            }
            self._append(self.spec.log.samples, record)

    def close(self) -> None:
        """Flush the TensorBoard file, and wait briefly for alarms and trackers."""
        self.alerts.close()
        self._trackers.close()
        if self._board is not None:
            with contextlib.suppress(OSError):
                self._board.close()

    def _append(self, name: str, record: Mapping[str, object]) -> None:
        """Append a line.

        If a file cannot be written, this is reported once, and training continues.
        """
        path = self.spec.path(name)
        try:
            append_line(path, record)
        except OSError as error:
            if path not in self._unwritable:
                say(TrainingMessage.FILE_NOT_WRITABLE.fill(path=path, error=error))
                self._unwritable.add(path)

    def _draw(self, iteration: int, values: Mapping[str, Any]) -> None:
        for name, value in values.items() if self._board is not None else []:
            if value is not None and math.isfinite(value):
                with contextlib.suppress(OSError):
                    self._board.add_scalar(name, value, iteration)


_DRAWN = (
    "loss",
    "learning_rate",
    "grad_norm",
    "loss_scale",
    "seconds",
    "tokens_per_second",
    "memory_bytes",
    "mfu",
)


def training_line(
    step: StepRecord,
    iterations: int,
    tflops: float,
    moment: datetime.datetime,
) -> str:
    """Return the log line printed by megatron-core 0.16 with `--log-throughput`.

    `step` has averages since the previous line.
    """
    loss = "" if step.loss is None else f" lm loss: {step.loss:.6E} |"
    if math.isnan(step.grad_norm):
        norm = ""
    else:
        norm = f" grad norm: {step.grad_norm:.3f} |"

    return (
        f" [{moment:%Y-%m-%d %H:%M:%S.%f}] iteration {step.iteration:8d}/{iterations:8d} |"
        f" consumed samples: {step.consumed_samples:12d} |"
        f" elapsed time per iteration (ms): {step.seconds * 1000:.1f} |"
        f" throughput per GPU (TFLOP/s/GPU): {tflops:.1f} |"
        f" learning rate: {step.learning_rate:.6E} |"
        f" global batch size: {step.global_batch:5d} |"
        f"{loss} loss scale: {step.loss_scale:.1f} |{norm}"
        f" number of skipped iterations: {step.skipped:3d} |"
        f" number of nan iterations: {step.nan:3d} |"
    )


def validation_lines(iteration: int, loss: float) -> str:
    """Return the three lines printed by Megatron-LM after an evaluation."""
    line = (
        f" validation loss at iteration {iteration} | lm loss value: {loss:.6E} | "
        f"lm loss PPL: {perplexity(loss):.6E} | "
    )
    rule = "-" * (len(line) + 1)
    return f"{rule}\n{line}\n{rule}"


def perplexity(loss: float) -> float:
    """Return the exponential of the loss, capped as in Megatron-LM."""
    return math.exp(min(20.0, loss))
