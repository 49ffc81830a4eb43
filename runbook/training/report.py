"""What a run tells: log lines, metrics.jsonl, validation.jsonl, samples.jsonl, events.jsonl, TensorBoard."""

from __future__ import annotations

import contextlib
import datetime
import json
import math
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from runbook.training import log_line
from runbook.training.flops import CONVENTION, flops_per_token
from runbook.training.log_line import Interval
from runbook.training.ranks import Ranks
from runbook.training.spec import Spec


def append(path: Path, record: dict[str, Any]) -> None:
    """Add one line of JSON in a single write; a line torn by a kill is closed first."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("ab+") as stream:
        torn = b""
        if stream.seek(0, 2):
            stream.seek(-1, 2)
            torn = b"" if stream.read(1) == b"\n" else b"\n"
        stream.write(torn + json.dumps(_plain(record)).encode() + b"\n")


def _events(path: Path) -> Iterator[dict[str, Any]]:
    try:
        lines = path.read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return
    for line in lines:
        with contextlib.suppress(ValueError, RecursionError):  # torn by a kill
            event = json.loads(line)
            if isinstance(event, dict):
                yield event


def _plain(record: dict[str, Any]) -> dict[str, Any]:
    """JSON has no NaN: it becomes null."""
    return {
        key: None if isinstance(value, float) and not math.isfinite(value) else value for key, value in record.items()
    }


def say(text: str) -> None:
    """A line of the job's output, at once; training goes on when nobody can read it any more."""
    with contextlib.suppress(OSError):
        sys.stdout.write(text + "\n")
        sys.stdout.flush()


class Report:
    """Writes on behalf of all ranks: events from rank 0, everything else from the last rank."""

    def __init__(self, spec: Spec, ranks: Ranks) -> None:
        self.spec = spec
        self.ranks = ranks
        self.segment = 0
        self.measured_tflops = spec.log.measured_tflops
        """Of one large matrix product on this machine; 0: not measured."""
        self._unwritable: set[Path] = set()
        self._interval: list[dict[str, Any]] = []
        self._board: Any = None

    def begin(self, segment: int) -> None:
        """Open what is kept open; called when training really begins, so that a refusal leaves nothing behind."""
        self.segment = segment
        if self.ranks.is_last:
            self._board = _board(self.spec)

    def event(self, event: str, **fields: Any) -> None:
        """Append to events.jsonl."""
        if self.ranks.rank == 0:
            record = {"time": time.time(), "event": event, "phase": self.spec.phase, **fields}
            self._append(self.spec.log.events, record)

    def earlier_starts(self) -> int:
        """How many segments this training had before, by its starts and rollbacks in events.jsonl; ask on rank 0.

        Whoever sets an earlier training of the phase aside says so by the event "begun": counting starts there.
        """
        starts = 0
        for event in _events(self.spec.path(self.spec.log.events)):
            if event.get("phase") == self.spec.phase:
                starts = 0 if event.get("event") == "begun" else starts + (event.get("event") in _BEGINS)
        return starts

    def rolled_back(self) -> list[list[int]]:
        """First and last samples of the steps that this training went back for, by events.jsonl; ask on rank 0."""
        found: list[list[int]] = []
        for event in _events(self.spec.path(self.spec.log.events)):
            if event.get("phase") != self.spec.phase:
                continue
            if event.get("event") == "begun":
                found = []
            elif event.get("event") == "bad_step" and event.get("action") == "rollback":
                found.append([event["first_sample"], event["last_sample"]])
        return found

    def step(self, record: dict[str, Any], skipped: int, nan: int) -> None:
        """One iteration: metrics.jsonl, TensorBoard, and a log line every `log.interval`."""
        if not self.ranks.is_last:
            return
        spec, seconds = self.spec, record["seconds"]
        tokens = record["global_batch"] * spec.model.sequence_length
        tflops = tokens / seconds * flops_per_token(spec.model) / 1e12 / self.ranks.world_size
        record = {
            **record,
            "consumed_tokens": record["consumed_samples"] * spec.model.sequence_length,
            "tokens_per_second": tokens / seconds,
            "tflops_per_device": tflops,
            "tflops_convention": CONVENTION,
            "mfu": tflops / spec.log.peak_tflops if spec.log.peak_tflops else None,
            "mfu_measured": tflops / self.measured_tflops if self.measured_tflops else None,
            "world_size": self.ranks.world_size,
            "segment": self.segment,
            "time": time.time(),
        }
        self._append(spec.log.metrics, record)
        self._draw(record["iteration"], {key: record[key] for key in _DRAWN})
        self._interval.append(record)
        if record["iteration"] % spec.log.interval == 0:
            say(log_line.training_line(self._averaged(skipped, nan), datetime.datetime.now()))
            self._interval.clear()

    def validation(self, iteration: int, loss: float, samples: int, seconds: float) -> None:
        """One evaluation."""
        if not self.ranks.is_last:
            return
        say(log_line.validation_lines(iteration, loss))
        record = {"iteration": iteration, "loss": loss, "perplexity": log_line.perplexity(loss), "samples": samples}
        self._append(self.spec.log.validation, {**record, "seconds": seconds, "time": time.time()})
        self._draw(iteration, {"validation_loss": loss})

    def sample(self, iteration: int, prompt: list[int], ids: list[int]) -> None:
        """One continuation of the prompt."""
        if self.ranks.is_last:
            record = {"iteration": iteration, "prompt_ids": prompt, "ids": ids, "time": time.time()}
            self._append(self.spec.log.samples, record)

    def close(self) -> None:
        """Flush TensorBoard's file."""
        if self._board is not None:
            with contextlib.suppress(OSError):
                self._board.close()

    def _append(self, name: str, record: dict[str, Any]) -> None:
        """A file that cannot be written is told of once, and does not end the training."""
        path = self.spec.path(name)
        try:
            append(path, record)
        except OSError as error:
            if path not in self._unwritable:
                say(f"{path} cannot be written, training goes on without it: {error}")
                self._unwritable.add(path)

    def _averaged(self, skipped: int, nan: int) -> Interval:
        last, count = self._interval[-1], len(self._interval)
        losses = [record["loss"] for record in self._interval if record["loss"] is not None]
        return Interval(
            iteration=last["iteration"],
            iterations=self.spec.duration.iterations,
            consumed_samples=last["consumed_samples"],
            seconds=sum(record["seconds"] for record in self._interval) / count,
            tflops=sum(record["tflops_per_device"] for record in self._interval) / count,
            learning_rate=last["learning_rate"],
            global_batch=last["global_batch"],
            loss=sum(losses) / len(losses) if losses else None,
            loss_scale=last["loss_scale"],
            gradient_norm=last["grad_norm"],
            skipped=skipped,
            nan=nan,
        )

    def _draw(self, iteration: int, values: dict[str, float | None]) -> None:
        if self._board is not None:
            for name, value in values.items():
                if value is not None and math.isfinite(value):
                    with contextlib.suppress(OSError):
                        self._board.add_scalar(name, value, iteration)


_BEGINS = ("started", "rolled_back")
_DRAWN = ("loss", "learning_rate", "grad_norm", "loss_scale", "seconds", "tokens_per_second", "memory_bytes", "mfu")


def _board(spec: Spec) -> Any:
    try:
        from torch.utils.tensorboard import SummaryWriter
    except ImportError:
        say("tensorboard is not installed: no TensorBoard events; metrics.jsonl has the same numbers")
        return None
    return SummaryWriter(str(spec.path(spec.log.tensorboard)))
