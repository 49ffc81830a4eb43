"""llm.c: the line on the terminal, the older ones, and main.log."""

from __future__ import annotations

import re
from dataclasses import dataclass, field

from runbook.analysis.parsers.assembly import Assembly
from runbook.analysis.parsers.record import Record, finite, milliseconds, number

_STEP = re.compile(r"\bstep\s+(\d+)(?:/\d+)?(?:\s*\||:)\s*(?:train )?loss ([-+\w.]+)(.*)")
_MAIN = re.compile(r"^s:(\d+) (tel|trl|eval):([-+\w.]+)(?: lr:([-+\w.]+))?(?: norm:([-+\w.]+))?\s*$")
_VALIDATION = re.compile(r"^\s*val loss:? ([\d.]+)\s*$")
_NORM = re.compile(r"\bnorm ([-+\w.]+)")
_RATE = re.compile(r"\blr ([-+\d.e]+)")
_MILLISECONDS = re.compile(r"(?<![\w.])([\d.]+) ms\b")
_TOKENS = re.compile(r"\b(\d+) tok/s\b")


@dataclass
class LlmC:
    """tok/s is that of all devices; `(+nanz)` is the deviation of the first losses, not a loss."""

    name: str = "llm.c"
    arguments: dict[str, str] = field(default_factory=dict)

    def feed(self, line: str, out: Assembly) -> bool:
        """Take the line where it is ours."""
        if line.startswith("s:") and (found := _MAIN.match(line)):
            self._main(found, out)
            return True
        if "step" in line and "loss" in line and "val loss" not in line and (found := _STEP.search(line)):
            return self._step(found, out)
        if "val loss" in line and (found := _VALIDATION.match(line)):
            out.evaluate(out.last_iteration(), float(found[1]))
            return True
        return False

    def flush(self, out: Assembly) -> None:
        """Nothing is held back."""

    def _step(self, found: re.Match[str], out: Assembly) -> bool:
        rest = found[3]
        elapsed = _MILLISECONDS.search(rest)
        if elapsed is None:
            return False
        loss = number(found[2])
        if loss is None:
            return False
        states: list[str] = []
        record = Record(int(found[1]), finite(loss, "loss", states), line=out.line)
        record.seconds = milliseconds(elapsed[1])
        if norm := _NORM.search(rest):
            record.grad_norm = finite(number(norm[1]), "grad_norm", states)
        if rate := _RATE.search(rest):
            record.learning_rate = number(rate[1])
        if tokens := _TOKENS.search(rest):
            record.tokens_per_second = float(tokens[1])
        record.states = tuple(states)
        out.add(record)
        return True

    def _main(self, found: re.Match[str], out: Assembly) -> None:
        value = number(found[3])
        if found[2] == "eval":
            out.counts["HellaSwag accuracies (`eval:`) are no losses and were left out"] += 1
            return
        if found[2] == "tel":
            if value is not None and value == value:
                out.evaluate(int(found[1]), value)
            return
        states: list[str] = []
        record = Record(int(found[1]), finite(value, "loss", states), line=out.line)
        record.learning_rate, record.grad_norm = number(found[4] or ""), number(found[5] or "")
        record.states = tuple(states)
        out.add(record)
