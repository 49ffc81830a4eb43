"""ezpz: `iter=10 loss=1.18 dt=0.74 loss/mean=..`, its compact form `loss=0.078(±0.026)`, and wordplay's lines."""

from __future__ import annotations

import re
from dataclasses import dataclass, field

from runbook.analysis.parsers.assembly import Assembly
from runbook.analysis.parsers.record import Record, finite, number

_PAIR = re.compile(r"(?<![\w/])((?:train/|train_)?[a-z_]+(?:/[a-z_]+)?)=\s*([-+\w.]+)")
_CLOCK = re.compile(r"(?<![\w/])(?:train/)?(?:iter|step|global_step)=\s*\d")


_TIME = re.compile(r"([\d.]+(?:[eE][-+]?\d+)?)(ms|s)?$")


def seconds_of(dt: str, rate: str, states: list[str]) -> float | None:
    """The time of a step. `dt` has no unit of its own: ezpz writes seconds, its forerunner wordplay milliseconds.

    Where the line has samples per second too, they tell which: their product is the number of samples, a whole one.

    >>> seconds_of("0.744", "", []), seconds_of("108.1093", "73.9992", []), seconds_of("0.182s", "5.49", [])
    (0.744, 0.1081093, 0.182)
    >>> states = []
    >>> seconds_of("108.1", "3.3", states), states
    (None, ['unknown_unit_of_time'])
    """
    found = _TIME.match(dt)
    if found is None:
        return None
    value, speed = float(found[1]), number(rate)
    if found[2]:
        return value / 1000 if found[2] == "ms" else value
    if not speed:
        return value
    if _whole(value * speed / 1000):
        return float(f"{found[1]}e-3") if "e" not in found[1].lower() else value / 1000
    if _whole(value * speed):
        return value
    states.append("unknown_unit_of_time")
    return None


def _whole(samples: float) -> bool:
    return round(samples) >= 1 and abs(samples - round(samples)) <= min(0.1, 0.01 * samples)


@dataclass
class Ezpz:
    """`dt` is the time of a step; `dtf` and `dtb` are only its forward and backward parts and are not taken for it."""

    name: str = "ezpz"
    arguments: dict[str, str] = field(default_factory=dict)
    _validation: str = ""

    def feed(self, line: str, out: Assembly) -> bool:
        """Take the line where it is ours."""
        if "loss" not in line or _CLOCK.search(line) is None:
            return False
        values: dict[str, str] = {}
        for key, value in _PAIR.findall(line.partition("/mean=")[0]):  # behind it: the same over all ranks
            if key[0] == "t":
                key = key.removeprefix("train/")  # its own `train_loss` is an evaluation of wordplay's
            values.setdefault(key, value)
        step = number(values.get("iter", values.get("step", values.get("global_step", ""))))
        if step is None or step != int(step):
            return False
        if "loss" not in values and "val_loss" in values:
            return self._evaluate(int(step), values["val_loss"], out)
        loss = number(values.get("loss", values.get("train_loss", "")))
        if loss is None:
            return False
        states: list[str] = []
        record = Record(int(step), finite(loss, "loss", states), line=out.line)
        record.seconds = seconds_of(values.get("dt", ""), values.get("sps", ""), states)
        record.learning_rate = number(values.get("lr", ""))
        record.grad_norm = number(values.get("grad_norm", ""))
        record.tflops = number(values.get("tflops", ""))
        if record.tflops is not None:
            record.tflops_convention = "ezpz"
        record.states = tuple(states)
        out.add(record, line)
        self._evaluate(record.iteration, values.get("val_loss", ""), out)
        return True

    def _evaluate(self, iteration: int, text: str, out: Assembly) -> bool:
        """Wordplay repeats the last evaluation on every line until the next one."""
        if text and text != self._validation:
            self._validation = text
            loss = number(text)
            if loss is not None and loss == loss:
                out.evaluate(iteration, loss)
        return True

    def flush(self, out: Assembly) -> None:
        """Nothing is held back."""
