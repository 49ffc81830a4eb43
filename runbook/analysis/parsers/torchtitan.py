"""torchtitan: `step: .. loss: .. grad_norm: .. tps: ..`, often once for every rank."""

from __future__ import annotations

import re
from dataclasses import dataclass, field

from runbook.analysis.parsers.assembly import Assembly
from runbook.analysis.parsers.record import Record, finite, number

_STEP = re.compile(r"(validate )?\bstep:\s*(\d+)\s+loss:\s*([-+\w.]+)(.*)")
_FIELD = re.compile(r"([a-z_/()]+):\s*([-+\w.,]+)")


@dataclass
class Torchtitan:
    """One record a step; tps and tflops are those of one device."""

    name: str = "torchtitan"
    arguments: dict[str, str] = field(default_factory=dict)

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
            loss = number(found[3])
            if loss is not None and loss == loss:
                out.evaluate(int(found[2]), loss)
            return True
        states: list[str] = []
        record = Record(int(found[2]), line=out.line)
        record.loss = finite(number(found[3]), "loss", states)
        record.grad_norm = finite(number(values.get("grad_norm", "")), "grad_norm", states)
        record.learning_rate = number(values.get("lr", ""))
        record.seconds = number(values.get("iter", ""))
        rate = values.get("tps", values.get("wps"))
        if rate is not None:
            record.tokens_per_second = number(rate)
            states.append("tokens_per_second_per_device")
        record.tflops = number(values.get("tflops", ""))
        if record.tflops is not None:
            record.tflops_convention = "torchtitan"
        record.states = tuple(states)
        out.add(record, line[: found.start()])
        return True

    def flush(self, out: Assembly) -> None:
        """Nothing is held back."""
