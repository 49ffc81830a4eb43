"""ezpz: `iter=10 loss=1.18 dt=0.74 dtf=.. loss/mean=..`, and its compact form `loss=0.078(±0.026)`."""

from __future__ import annotations

import re
from dataclasses import dataclass, field

from runbook.analysis.parsers.assembly import Assembly
from runbook.analysis.parsers.record import Record, finite, number

_PAIR = re.compile(r"(?<![\w/])((?:train/|train_)?[a-z_]+(?:/[a-z_]+)?)=\s*([-+\w.]+)")
_CLOCK = re.compile(r"(?<![\w/])(?:train/)?(?:iter|step|global_step)=\s*\d")


@dataclass
class Ezpz:
    """`dt` is the time of a step; `dtf` and `dtb` are only its forward and backward parts and are not taken for it."""

    name: str = "ezpz"
    arguments: dict[str, str] = field(default_factory=dict)

    def feed(self, line: str, out: Assembly) -> bool:
        """Take the line where it is ours."""
        if "loss" not in line or _CLOCK.search(line) is None:
            return False
        values: dict[str, str] = {}
        for key, value in _PAIR.findall(line):
            values.setdefault(key.removeprefix("train/").removeprefix("train_"), value)
        step = number(values.get("iter", values.get("step", values.get("global_step", ""))))
        loss = number(values.get("loss", ""))
        if step is None or loss is None or step != int(step):
            return False
        states: list[str] = []
        record = Record(int(step), finite(loss, "loss", states), line=out.line)
        record.seconds = number(values.get("dt", ""))
        record.learning_rate = number(values.get("lr", ""))
        record.grad_norm = number(values.get("grad_norm", ""))
        record.tflops = number(values.get("tflops", ""))
        if record.tflops is not None:
            record.tflops_convention = "ezpz"
        record.states = tuple(states)
        out.add(record, line)
        return True

    def flush(self, out: Assembly) -> None:
        """Nothing is held back."""
