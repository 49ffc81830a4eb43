"""Log reader for MLPerf: the `:::MLLOG` lines of mlperf-logging, alone or among another program's lines."""

import json
import math
import re
from dataclasses import dataclass, field

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
"""Benchmarks whose `eval_accuracy` is a loss; that of the others, such as bert, is an accuracy."""
_RENAMED = {
    "submission_benchmark": "benchmark",
    "max_sequence_length": "sequence_length",
    "run_start": "run_start_ms",
}
_FACTS = {*_RENAMED, "global_batch_size", "sequence_length", "seed"}
_STATS = (
    ("train_step_time", "train_step_timing", "train_step_timing in s"),
    ("reduced_train_loss", "train_loss"),
)


@dataclass
class MlPerf(LineReader):
    """Facts, evaluations and steps; several ranks may print each line, and a file may hold several runs."""

    name: str = "mlperf"
    facts: Facts | None = None
    _kept: set[tuple[object, ...]] = field(
        default_factory=set
    )  # evaluations of this run, by place and value
    _block: dict[str, float | None] = field(
        default_factory=dict
    )  # mean of the steps since the last evaluation
    _timed: bool = (
        False  # the log gives the time of single steps: the mean of a block says nothing new
    )
    _unit: int = 0  # how much of a position `step` is one step

    def feed(self, line: str, out: Assembly) -> bool:
        """Take the line where it is ours; `ValueError` where an entry of it is cut off."""
        broken = False
        for piece in line.split(MARK)[1:]:  # two ranks may write into the same line
            try:
                entry = _ENTRY.raw_decode(piece.lstrip())[0]
                self._take(entry, entry["metadata"] or {}, out)
            except (ValueError, TypeError, KeyError, AttributeError):
                broken = True
        if broken:
            raise ValueError(line)
        return MARK in line

    def _take(self, entry: dict[str, object], where: dict[str, object], out: Assembly) -> None:
        key = str(entry.get("key")).strip()
        value = entry.get("value")
        time = whole(entry.get("time_ms"))
        facts = self.facts = self.facts or Facts()
        if key in _FACTS:
            if (
                facts.run_stop_ms and time and time > facts.run_stop_ms
            ):  # the next run in the same file
                facts = self.facts = Facts()
                self._kept = set()
                self._block = {}
                self._unit = 0
                self._timed = False
                out.restart()
            name = _RENAMED.get(key, key)
            fact: object
            if key == "run_start":
                fact = time
            elif key == "submission_benchmark":
                fact = value
            else:
                fact = whole(value)
            if getattr(facts, name) is None:
                setattr(facts, name, fact)
        elif key == "run_stop" and facts.run_stop_ms is None:
            facts.run_stop_ms, facts.status = (
                time,
                str(where["status"]) if where.get("status") else None,
            )
        elif key == "eval_accuracy":
            self._evaluate(number(str(value)), where, facts, out)
        elif key in ("tracked_stats", "train_loss"):
            self._step(value if isinstance(value, dict) else {key: value}, where, facts, out)

    def _iteration(self, where: dict[str, object], facts: Facts) -> int | None:
        """The step a position stands for; logs count samples, tokens (GPT-3) or steps."""
        batch = facts.global_batch_size
        tokens = (facts.global_batch_size or 0) * (facts.sequence_length or 0)
        samples = whole(where.get("samples_count"))
        position = samples or whole(where.get("step", where.get("epoch_num")))
        if not batch or not position:
            return None
        unit = next(
            (unit for unit in (0 if samples else tokens, batch) if unit and position % unit == 0), 0
        )
        if not samples and "step" in where:
            unit = self._unit = self._unit or unit or 1
        return position // unit if unit and position % unit == 0 else None

    def _evaluate(
        self, loss: float | None, where: dict[str, object], facts: Facts, out: Assembly
    ) -> None:
        place = (loss, *(where.get(name) for name in ("samples_count", "epoch_num", "step")))
        if place in self._kept:
            return
        self._kept.add(place)
        iteration = self._iteration(where, facts)
        if facts.benchmark is not None and not _LANGUAGE_MODEL.search(str(facts.benchmark)):
            out.counts[
                f"eval_accuracy of {facts.benchmark} is no loss of a language model: left out"
            ] += 1
        elif loss is not None and math.isfinite(loss):
            out.validation.append(
                Validation(iteration, loss, None, "validation", out.line, out.file)
            )
        if self._block and iteration and not self._timed:
            self._keep(iteration, self._block, out, "seconds_is_running_average")
        self._block = {}

    def _step(
        self, values: dict[str, object], where: dict[str, object], facts: Facts, out: Assembly
    ) -> None:
        seconds, loss = (
            next((number(str(values[key])) for key in keys if key in values), None)
            for keys in _STATS
        )
        if "throughput" in values or (seconds is not None and loss is None and "step" not in where):
            rate = number(str(values.get("throughput")))
            mean = facts.global_batch_size / rate if facts.global_batch_size and rate else None
            self._block = {"seconds": seconds or mean, "samples_per_second": rate}
        elif seconds is not None or loss is not None:
            self._timed = self._timed or seconds is not None
            known = {
                "loss": loss,
                "seconds": seconds,
                "learning_rate": number(str(where.get("lr"))),
            }
            if (iteration := self._iteration(where, facts)) is not None:
                self._keep(iteration, known, out)

    def _keep(
        self, iteration: int, known: dict[str, float | None], out: Assembly, state: str = ""
    ) -> None:
        """Add a record, or to the last what it lacks; a step that comes again was printed by another rank."""
        last = out.previous()
        if last is None or iteration > last.iteration:
            out.add(last := Record(iteration, line=out.line))
        if last.iteration == iteration:
            if state and last.seconds is None:
                last.mark(state)
            for name, value in known.items():
                if value is not None and getattr(last, name) is None:
                    last.take(name, value)
