"""Log readers for torchtitan, ezpz, lines printed by DeepSpeed, and our own metrics.jsonl."""

import json
import re
from dataclasses import dataclass
from typing import Any

from runbook.log_readers.record import OVERFLOW, Assembly, LineReader, Record, milliseconds, number

_STEP = re.compile(r"(validate )?\bstep:\s*(\d+)\s+loss:\s*([-+\w.]+)(.*)")
_FIELD = re.compile(r"([a-z_/()]+):\s*([-+\w.,]+)")
_TORCHTITAN_NAMES = {
    "loss": "loss",
    "grad_norm": "grad_norm",
    "lr": "learning_rate",
    "iter": "seconds",
    "tflops": "tflops",
    "tps": "tokens_per_second_per_device",
    "wps": "tokens_per_second_per_device",
}


@dataclass
class Torchtitan(LineReader):
    """Reads a record per step; tps and tflops are per device."""

    name: str = "torchtitan"

    def feed(self, line: str, out: Assembly) -> bool:
        """Read the line if it has this format, and return whether it has."""
        if "step:" not in line:
            if "Training starts at step" in line:
                out.restart()
                return True

            return False

        match = _STEP.search(line)
        if match is None:
            return False
        validate, iteration, loss, fields = match.groups()
        if validate:
            out.evaluate(int(iteration), number(loss))
            return True

        values = dict(_FIELD.findall(fields))
        values["loss"] = loss
        record = out.step(iteration, values, _TORCHTITAN_NAMES)
        if record.tflops is not None:
            record.tflops_convention = "torchtitan"
        out.add(record, line[: match.start()])
        return True


_PAIR = re.compile(r"(?<![\w/])((?:train/|train_)?[a-z_]+(?:/[a-z_]+)?)=\s*([-+\w.]+)")
_CLOCK = re.compile(r"(?<![\w/])(?:train/)?(?:iter|step|global_step)=\s*\d")
_EZPZ_NAMES = {
    "loss": "loss",
    "lr": "learning_rate",
    "grad_norm": "grad_norm",
    "tflops": "tflops",
}
_TIME = re.compile(r"([\d.]+(?:[eE][-+]?\d+)?)(ms|s)?$")


def seconds_of(dt: str, rate: str) -> float | None:
    """Return the step time in seconds, or None if the unit of `dt` is unknown.

    `dt` often has no unit: ezpz writes seconds, and its predecessor wordplay writes milliseconds.
    If the line also has samples per second (`rate`), they reveal the unit, because `dt` times
    `rate` must be a whole number of samples.

    >>> seconds_of("0.744", ""), seconds_of("108.1093", "73.9992"), seconds_of("0.182s", "5.49")
    (0.744, 0.1081093, 0.182)
    >>> seconds_of("108.1", "3.3") is None
    True
    """
    match = _TIME.match(dt)
    if match is None:
        return None
    value = float(match[1])
    unit = match[2]
    if unit:
        return value / 1000 if unit == "ms" else value
    samples_per_second = number(rate)
    if not samples_per_second:
        return value
    if _is_count(value * samples_per_second / 1000):
        return milliseconds(match[1])
    if _is_count(value * samples_per_second):
        return value
    return None


def _is_count(samples: float) -> bool:
    """Return whether a product of rounded numbers can be a whole number of samples."""
    return round(samples) >= 1 and abs(samples - round(samples)) <= min(0.1, 0.01 * samples)


@dataclass
class Ezpz(LineReader):
    """Reads `key=value` lines.

    `dt` is the step time. `dtf` and `dtb` are only its forward and backward parts, so they are
    not used.
    """

    name: str = "ezpz"

    def feed(self, line: str, out: Assembly) -> bool:
        """Read the line if it has this format, and return whether it has."""
        if "loss" not in line or _CLOCK.search(line) is None:
            return False
        values = _ezpz_values(line)
        step = number(values.get("iter", values.get("step", values.get("global_step"))))
        if step is None or step != int(step):
            return False
        if "loss" not in values and "val_loss" in values:
            self.evaluate_once(int(step), values["val_loss"], out)
            return True

        values.setdefault("loss", values.get("train_loss", ""))
        if number(values["loss"]) is None:
            return False
        record = out.step(int(step), values, _EZPZ_NAMES)
        step_time = values.get("dt", "")
        record.seconds = seconds_of(step_time, values.get("sps", ""))
        if record.seconds is None and _TIME.match(step_time):
            record.mark("unknown_unit_of_time")
        if record.tflops is not None:
            record.tflops_convention = "ezpz"
        out.add(record, line)
        self.evaluate_once(record.iteration, values.get("val_loss"), out)
        return True


def _ezpz_values(line: str) -> dict[str, str]:
    """Return the values in a line by key. If a key occurs twice, the first value is used."""
    values: dict[str, str] = {}
    # The statistics over all ranks follow
    own_values = line.partition("/mean=")[0]
    for key, value in _PAIR.findall(own_values):
        # `train_loss` without a prefix keeps its name, because it is an evaluation in logs from
        # wordplay.
        values.setdefault(key.removeprefix("train/"), value)

    return values


_SAME_NAMES = (
    "loss",
    "grad_norm",
    "learning_rate",
    "loss_scale",
    "seconds",
    "skipped",
    "nan",
    "tokens_per_second",
)
_OWN_NAMES = {**{name: name for name in _SAME_NAMES}, "tflops_per_device": "tflops"}


@dataclass
class Own(LineReader):
    """Reads JSON lines from our own trainer, with our field names as keys."""

    name: str = "runbook"
    _segment: int | None = None

    def feed(self, line: str, out: Assembly) -> bool:
        """Read the line if it has this format, and return whether it has."""
        if not line.startswith("{") or '"iteration"' not in line:
            return False
        try:
            return self._keep(json.loads(line), out)
        except (ValueError, TypeError):
            return False

    def _keep(self, values: dict[str, Any], out: Assembly) -> bool:
        """Read a line in validation.jsonl or metrics.jsonl. Return whether it is from such a file."""
        if "perplexity" in values:
            loss = float(values["loss"])
            out.evaluate(int(values["iteration"]), loss, float(values["perplexity"]))
            return True

        if "seconds" not in values or "loss" not in values:
            return False
        record = out.step(values["iteration"], values, _OWN_NAMES)
        record.tflops_convention = values.get("tflops_convention")
        if values.get("global_batch") and record.seconds:
            record.samples_per_second = values["global_batch"] / record.seconds
        if record.loss is None and not record.states:
            record.mark("missing_loss")
        if record.skipped and record.loss is None:
            record.mark("all_skipped")
            record.drop_rates()

        segment = values.get("segment")
        if None not in (segment, self._segment) and segment != self._segment:
            out.restart()
        self._segment = segment
        out.add(record)
        return True


_STEPS = re.compile(
    r"\bsteps: (\d+) loss: ([-\d.naifNAIF]+) (?:iter time|time) \((m?s)\): ([\d.]+)"
    r"(?: samples/sec: ([\d.]+))?"
)
_TIMER = re.compile(
    r"(?:epoch=\d+/micro_step=\d+/global_step=(?P<step>\d+)|\b\d+/(?P<old>\d+)), "
    r"(?:RunningAvgSamplesPerSec=(?P<mean>[\d.]+), CurrSamplesPerSec=(?P<now>[\d.]+)"
    r"|SamplesPerSec=(?P<single>[\d.]+))"
)
_WRAPPED = re.compile(r"epoch=\d+/micro_step=\d+/global_step=\d+,?\s*$")
_STEP_LOG = re.compile(r"\[Rank \d+\] step=(\d+), skipped=(\d+), lr=\[([-\d.eE]+)")


@dataclass
class DeepSpeed(LineReader):
    """Assembles the record for a step from up to three lines.

    The record is dropped if a line from Megatron covers the step.
    """

    name: str = "deepspeed"
    open: Record | None = None
    _timer_text: str = ""
    """First part of a timer line that a terminal or web page has wrapped."""
    _skipped: int | None = None
    _overflow: bool = False

    def feed(self, line: str, out: Assembly) -> bool:
        """Read the line if it has this format, and return whether it has."""
        if self._timer_text:
            line = f"{self._timer_text} {line.strip()}"
            self._timer_text = ""
            if "Curr" not in line and "MemAllocated" not in line and len(line) < 300:
                self._timer_text = line
                return True
        elif "global_step=" in line and _WRAPPED.search(line):
            self._timer_text = line.strip()
            return True

        return self._take_step(line, out) or "[logging.py:" in line or "log_dist]" in line

    def _take_step(self, line: str, out: Assembly) -> bool:
        """Read a line about a step (timer, loss, learning rate or overflow) if it is one."""
        timer = _TIMER.search(line) if "SamplesPerSec=" in line else None
        if timer is not None:
            self._timer(timer, out)
            return True

        steps = _STEPS.search(line) if "steps: " in line else None
        if steps is not None:
            self._steps(steps, out)
            return True

        step = _STEP_LOG.search(line) if "skipped=" in line else None
        if step is not None:
            self._step(step, out)
            return True

        overflow = OVERFLOW.search(line) if "OVERFLOW!" in line else None
        if overflow is not None:
            # An overflow is printed before the other lines about the step.
            self.flush(out)
            self._overflow = self._overflow or overflow[1] == "0"
            return True

        return False

    def flush(self, out: Assembly) -> None:
        """Pass on the step being assembled."""
        record = self.open
        self.open = None
        out.num_held = 0
        if record is None:
            return
        if self._overflow:
            record.mark("overflow")
            self._overflow = False

        out.add(record)

    def _at(self, iteration: int, out: Assembly) -> Record:
        """Return the open record for an iteration.

        If the open record is for an earlier iteration, pass it on first.
        """
        if self.open is not None and self.open.iteration != iteration:
            self.flush(out)
        if self.open is None:
            self.open = Record(iteration, line=out.line)
            out.num_held = 1
        return self.open

    def _steps(self, match: re.Match[str], out: Assembly) -> None:
        """Read `steps: N loss: .. iter time (s): .. samples/sec: ..`."""
        iteration, loss, unit, step_time, samples_per_second = match.groups()
        record = self._at(int(iteration), out)
        record.take("loss", loss)
        record.seconds = float(step_time) / (1000 if unit == "ms" else 1)
        if samples_per_second:
            # This value is more accurate than the one from the timer, so the state used to mark the
            # latter is removed.
            record.samples_per_second = float(samples_per_second)
            record.states = tuple(
                state for state in record.states if not state.startswith("samples_per_second")
            )

    def _timer(self, match: re.Match[str], out: Assembly) -> None:
        """Read a line from the throughput timer. Old versions print only the running average."""
        record = self._at(int(match["step"] or match["old"]), out)
        if record.samples_per_second is not None:
            return
        if match["now"]:
            record.samples_per_second = float(match["now"])
            record.mark("samples_per_second_of_timer")
        else:
            record.samples_per_second = float(match["single"])
            record.mark("samples_per_second_is_running_average")

    def _step(self, match: re.Match[str], out: Assembly) -> None:
        """Read `step=N, skipped=M, lr=[..`, where M counts from the start of training."""
        iteration, skipped, learning_rate = match.groups()
        record = self._at(int(iteration), out)
        record.learning_rate = float(learning_rate)
        total = int(skipped)
        before = self._skipped
        if before is None or total < before:
            record.skipped = total
        else:
            record.skipped = total - before

        self._skipped = total
