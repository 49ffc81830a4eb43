"""Log readers for torchtitan, ezpz, DeepSpeed's own lines, and our own metrics.jsonl."""

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
    """One record a step; tps and tflops are those of one device."""

    name: str = "torchtitan"

    def feed(self, line: str, out: Assembly) -> bool:
        """Take the line where it is ours."""
        if "step:" not in line:
            if "Training starts at step" in line:
                out.restart()
                return True
            return False
        found = _STEP.search(line)
        if found is None:
            return False
        values = dict(_FIELD.findall(found[4]))
        if found[1]:
            out.evaluate(int(found[2]), number(found[3]))
            return True
        record = out.step(found[2], values | {"loss": found[3]}, _TORCHTITAN_NAMES)
        if record.tflops is not None:
            record.tflops_convention = "torchtitan"
        out.add(record, line[: found.start()])
        return True


_PAIR = re.compile(r"(?<![\w/])((?:train/|train_)?[a-z_]+(?:/[a-z_]+)?)=\s*([-+\w.]+)")
_CLOCK = re.compile(r"(?<![\w/])(?:train/)?(?:iter|step|global_step)=\s*\d")
_EZPZ_NAMES = {"loss": "loss", "lr": "learning_rate", "grad_norm": "grad_norm", "tflops": "tflops"}
_TIME = re.compile(r"([\d.]+(?:[eE][-+]?\d+)?)(ms|s)?$")


def seconds_of(dt: str, rate: str) -> float | None:
    """The time of a step. `dt` has no unit of its own: ezpz writes seconds, its forerunner wordplay milliseconds.

    Where the line has samples per second too, they tell which: their product is the number of samples, a whole one.

    >>> seconds_of("0.744", ""), seconds_of("108.1093", "73.9992"), seconds_of("0.182s", "5.49")
    (0.744, 0.1081093, 0.182)
    >>> seconds_of("108.1", "3.3") is None
    True
    """
    found = _TIME.match(dt)
    if found is None:
        return None
    value = float(found[1])
    speed = number(rate)
    if found[2]:
        return value / 1000 if found[2] == "ms" else value
    if speed and _whole(value * speed / 1000):
        return milliseconds(found[1])
    return value if not speed or _whole(value * speed) else None


def _whole(samples: float) -> bool:
    return round(samples) >= 1 and abs(samples - round(samples)) <= min(0.1, 0.01 * samples)


@dataclass
class Ezpz(LineReader):
    """`dt` is the time of a step; `dtf` and `dtb` are only its forward and backward parts and are not taken for it."""

    name: str = "ezpz"

    def feed(self, line: str, out: Assembly) -> bool:
        """Take the line where it is ours."""
        if "loss" not in line or _CLOCK.search(line) is None:
            return False
        values: dict[str, str] = {}
        for key, value in _PAIR.findall(
            line.partition("/mean=")[0]
        ):  # behind it: the same over all ranks
            if key[0] == "t":
                key = key.removeprefix(
                    "train/"
                )  # its own `train_loss` is an evaluation of wordplay's
            values.setdefault(key, value)
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
        record.seconds = seconds_of(values.get("dt", ""), values.get("sps", ""))
        if record.seconds is None and _TIME.match(values.get("dt", "")):
            record.mark("unknown_unit_of_time")
        if record.tflops is not None:
            record.tflops_convention = "ezpz"
        out.add(record, line)
        self.evaluate_once(record.iteration, values.get("val_loss"), out)
        return True


_OWN_NAMES = {
    **{
        name: name
        for name in (
            "loss",
            "grad_norm",
            "learning_rate",
            "loss_scale",
            "seconds",
            "skipped",
            "nan",
        )
    },
    "tokens_per_second": "tokens_per_second",
    "tflops_per_device": "tflops",
}


@dataclass
class Own(LineReader):
    """JSON lines that name their fields."""

    name: str = "runbook"
    _segment: int | None = None

    def feed(self, line: str, out: Assembly) -> bool:
        """Take the line where it is ours."""
        if not line.startswith("{") or '"iteration"' not in line:
            return False
        try:
            return self._keep(json.loads(line), out)
        except (ValueError, TypeError):
            return False

    def _keep(self, values: dict[str, Any], out: Assembly) -> bool:
        if "perplexity" in values:
            out.evaluate(
                int(values["iteration"]), float(values["loss"]), float(values["perplexity"])
            )
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
            record.samples_per_second = record.tokens_per_second = record.tflops = (
                record.tflops_convention
            ) = None
        segment = values.get("segment")
        if None not in (segment, self._segment) and segment != self._segment:
            out.restart()
        self._segment = segment
        out.add(record)
        return True


_STEPS = re.compile(
    r"\bsteps: (\d+) loss: ([-\d.naifNAIF]+) (?:iter time|time) \((m?s)\): ([\d.]+)(?: samples/sec: ([\d.]+))?"
)
_TIMER = re.compile(
    r"(?:epoch=\d+/micro_step=\d+/global_step=(?P<step>\d+)|\b\d+/(?P<old>\d+)), "
    r"(?:RunningAvgSamplesPerSec=(?P<mean>[\d.]+), CurrSamplesPerSec=(?P<now>[\d.]+)|SamplesPerSec=(?P<single>[\d.]+))"
)
_WRAPPED = re.compile(r"epoch=\d+/micro_step=\d+/global_step=\d+,?\s*$")
_STEP_LOG = re.compile(r"\[Rank \d+\] step=(\d+), skipped=(\d+), lr=\[([-\d.eE]+)")


@dataclass
class DeepSpeed(LineReader):
    """One record a step, put together from up to three lines; dropped where Megatron's own line tells the step."""

    name: str = "deepspeed"
    open: Record | None = None
    _timer_text: str = ""
    """A timer's line that a terminal or a page wrapped, up to where it went on."""
    _skipped: int | None = None
    _overflow: bool = False

    def feed(self, line: str, out: Assembly) -> bool:
        """Take the line where it is ours."""
        if self._timer_text:
            line = self._timer_text + " " + line.strip()
            self._timer_text = ""
            if "Curr" not in line and "MemAllocated" not in line and len(line) < 300:
                self._timer_text = line
                return True
        elif "global_step=" in line and _WRAPPED.search(line):
            self._timer_text = line.strip()
            return True
        if "SamplesPerSec=" in line and (timer := _TIMER.search(line)):
            self._timer(timer, out)
        elif "steps: " in line and (steps := _STEPS.search(line)):
            self._steps(steps, out)
        elif "skipped=" in line and (step := _STEP_LOG.search(line)):
            self._step(step, out)
        elif "OVERFLOW!" in line and (overflow := OVERFLOW.search(line)):
            self.flush(out)  # it is told before the other lines of its step
            self._overflow = self._overflow or overflow[1] == "0"
        else:
            return "[logging.py:" in line or "log_dist]" in line
        return True

    def flush(self, out: Assembly) -> None:
        """Hand on the step being put together."""
        if self.open is not None:
            record = self.open
            self.open = None
            if self._overflow:
                record.mark("overflow")
                self._overflow = False
            out.add(record)

    def _at(self, iteration: int, out: Assembly) -> Record:
        if self.open is not None and self.open.iteration != iteration:
            self.flush(out)
        if self.open is None:
            self.open = Record(iteration, line=out.line)
        return self.open

    def _steps(self, found: re.Match[str], out: Assembly) -> None:
        record = self._at(int(found[1]), out)
        record.take("loss", found[2])
        record.seconds = float(found[4]) / (1000 if found[3] == "ms" else 1)
        if found[5]:
            record.samples_per_second = float(found[5])
            record.states = tuple(
                state for state in record.states if not state.startswith("samples_per_second")
            )

    def _timer(self, found: re.Match[str], out: Assembly) -> None:
        record = self._at(int(found["step"] or found["old"]), out)
        if record.samples_per_second is not None:
            return
        record.samples_per_second = float(found["now"] or found["single"])
        record.mark(
            "samples_per_second_of_timer"
            if found["now"]
            else "samples_per_second_is_running_average"
        )

    def _step(self, found: re.Match[str], out: Assembly) -> None:
        record = self._at(int(found[1]), out)
        record.learning_rate = float(found[3])
        total = int(found[2])
        before = self._skipped
        record.skipped = total if before is None or total < before else total - before
        self._skipped = total
