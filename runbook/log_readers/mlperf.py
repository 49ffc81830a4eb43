"""Log reader for MLPerf, which finds the `:::MLLOG` lines from mlperf-logging among other lines."""

import json
import math
import re
from dataclasses import dataclass, field

from runbook.log_readers.messages import LogMessage
from runbook.log_readers.record import (
    Assembly,
    Facts,
    LineReader,
    Record,
    Validation,
    number,
    whole,
)

MARK = ":::MLLOG"
_ENTRY = json.JSONDecoder()
_LANGUAGE_MODEL = re.compile(r"gpt|llama|deepseek|mixtral|mistral|qwen|nemotron", re.IGNORECASE)
"""Benchmarks whose `eval_accuracy` is a loss.

In other benchmarks, such as bert, it is an accuracy.
"""
_RENAMED = {
    "submission_benchmark": "benchmark",
    "max_sequence_length": "sequence_length",
    "run_start": "run_start_ms",
}
_FACTS = {*_RENAMED, "global_batch_size", "sequence_length", "seed"}
_STEP_SECONDS_KEYS = ("train_step_time", "train_step_timing", "train_step_timing in s")
_LOSS_KEYS = ("reduced_train_loss", "train_loss")


@dataclass
class MlPerf(LineReader):
    """Reads facts, evaluations and steps from MLPerf lines.

    More than one rank may print the same line, and a file may contain more than one run.
    """

    name: str = "mlperf"
    facts: Facts | None = None
    _evaluations: set[tuple[object, ...]] = field(default_factory=set)
    """Evaluations in this run, each as loss and position."""
    _block: dict[str, float | None] = field(default_factory=dict)
    """Mean step time and throughput since the last evaluation."""
    _timed: bool = False
    """Whether the log contains times for single steps. If so, the mean over a block is not
    needed.
    """
    _unit: int = 0
    """By how much `step` in an entry increases with each training step."""

    def feed(self, line: str, out: Assembly) -> bool:
        """Read the line if it is in this format, and return whether it is.

        Raise `ValueError` if an entry in the line is cut off.
        """
        is_broken = False
        # Two ranks may write into the same line.
        for piece in line.split(MARK)[1:]:
            try:
                entry = _ENTRY.raw_decode(piece.lstrip())[0]
                self._take(entry, entry["metadata"] or {}, out)
            except (ValueError, TypeError, KeyError, AttributeError):
                is_broken = True

        if is_broken:
            raise ValueError(line)
        return MARK in line

    def _take(
        self,
        entry: dict[str, object],
        metadata: dict[str, object],
        out: Assembly,
    ) -> None:
        """Read an entry. Its `metadata` contains its step."""
        key = str(entry.get("key")).strip()
        value = entry.get("value")
        time_ms = whole(entry.get("time_ms"))
        if self.facts is None:
            self.facts = Facts()
        facts = self.facts
        if key in _FACTS:
            self._take_fact(
                facts,
                key,
                value,
                time_ms,
                out,
            )
        elif key == "run_stop" and facts.run_stop_ms is None:
            facts.run_stop_ms = time_ms
            facts.status = str(metadata["status"]) if metadata.get("status") else None
        elif key == "eval_accuracy":
            self._evaluate(number(str(value)), metadata, facts, out)
        elif key in ("tracked_stats", "train_loss"):
            values = value if isinstance(value, dict) else {key: value}
            self._step(values, metadata, facts, out)

    def _take_fact(
        self,
        facts: Facts,
        key: str,
        value: object,
        time_ms: int | None,
        out: Assembly,
    ) -> None:
        """Store a fact about the run.

        If the log contains several values, keep the first.
        """
        if facts.run_stop_ms and time_ms and time_ms > facts.run_stop_ms:
            facts = self._begin_run(out)
        fact: object
        if key == "run_start":
            fact = time_ms
        elif key == "submission_benchmark":
            fact = value
        else:
            fact = whole(value)

        name = _RENAMED.get(key, key)
        if getattr(facts, name) is None:
            setattr(facts, name, fact)

    def _begin_run(self, out: Assembly) -> Facts:
        """Start a new run in the same file."""
        self.facts = Facts()
        self._evaluations = set()
        self._block = {}
        self._unit = 0
        self._timed = False
        out.restart()
        return self.facts

    def _iteration(self, metadata: dict[str, object], facts: Facts) -> int | None:
        """Return the training step for an entry, or None if the unit of its position is unknown.

        Logs give the position in samples, tokens (GPT-3) or steps.
        """
        batch = facts.global_batch_size
        samples = whole(metadata.get("samples_count"))
        position = samples or whole(metadata.get("step", metadata.get("epoch_num")))
        if not batch or not position:
            return None
        tokens = 0 if samples else batch * (facts.sequence_length or 0)
        unit = next((unit for unit in (tokens, batch) if _divides(unit, position)), 0)
        if not samples and "step" in metadata:
            # The first step in a run determines the unit for all steps.
            self._unit = self._unit or unit or 1
            unit = self._unit

        return position // unit if _divides(unit, position) else None

    def _evaluate(
        self,
        loss: float | None,
        metadata: dict[str, object],
        facts: Facts,
        out: Assembly,
    ) -> None:
        """Store an evaluation, and mean values over the steps since the previous evaluation."""
        position = [metadata.get(name) for name in ("samples_count", "epoch_num", "step")]
        evaluation = (loss, *position)
        if evaluation in self._evaluations:
            return
        self._evaluations.add(evaluation)
        iteration = self._iteration(metadata, facts)
        if facts.benchmark is not None and not _LANGUAGE_MODEL.search(str(facts.benchmark)):
            note = LogMessage.ACCURACY_IS_NO_LOSS.fill(benchmark=facts.benchmark)
            out.counts[note] += 1
        elif loss is not None and math.isfinite(loss):
            out.validation.append(
                Validation(
                    iteration,
                    loss,
                    None,
                    "validation",
                    out.line,
                    out.file,
                )
            )

        if self._block and iteration and not self._timed:
            self._keep(iteration, self._block, out, "seconds_is_running_average")
        self._block = {}

    def _step(
        self,
        values: dict[str, object],
        metadata: dict[str, object],
        facts: Facts,
        out: Assembly,
    ) -> None:
        """Store the metrics for a step, or keep mean values over a block of steps for later."""
        seconds = _first_number(values, _STEP_SECONDS_KEYS)
        loss = _first_number(values, _LOSS_KEYS)
        has_only_mean = seconds is not None and loss is None and "step" not in metadata
        if "throughput" in values or has_only_mean:
            samples_per_second = number(str(values.get("throughput")))
            mean_seconds = None
            if facts.global_batch_size and samples_per_second:
                mean_seconds = facts.global_batch_size / samples_per_second
            self._block = {
                "seconds": seconds or mean_seconds,
                "samples_per_second": samples_per_second,
            }
            return

        if seconds is None and loss is None:
            return
        self._timed = self._timed or seconds is not None
        iteration = self._iteration(metadata, facts)
        if iteration is not None:
            learning_rate = number(str(metadata.get("lr")))
            numbers = {"loss": loss, "seconds": seconds, "learning_rate": learning_rate}
            self._keep(iteration, numbers, out)

    def _keep(
        self,
        iteration: int,
        numbers: dict[str, float | None],
        out: Assembly,
        state: str = "",
    ) -> None:
        """Add a record, or fill in fields that the last record lacks.

        If a step occurs again, another rank has printed it.
        """
        last = out.previous()
        if last is None or iteration > last.iteration:
            last = Record(iteration, line=out.line)
            out.add(last)

        if last.iteration != iteration:
            return
        if state and last.seconds is None:
            last.mark(state)
        for name, value in numbers.items():
            if value is not None and getattr(last, name) is None:
                last.take(name, value)


def _divides(unit: int, position: int) -> bool:
    return unit != 0 and position % unit == 0


def _first_number(values: dict[str, object], keys: tuple[str, ...]) -> float | None:
    """Return the number under the first of these keys that is present."""
    for key in keys:
        if key in values:
            return number(str(values[key]))

    return None
