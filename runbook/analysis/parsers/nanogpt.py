"""nanoGPT, llama2.c, build-nanogpt and nanochat."""

from __future__ import annotations

import re
from dataclasses import dataclass, field

from runbook.analysis.parsers.assembly import Assembly
from runbook.analysis.parsers.record import Record, finite, milliseconds, number

_ITER = re.compile(r"\biter (\d+): loss ([-+\w.]+), time ([\d.]+)ms(?:, mfu (-?[\d.]+)%)?")
_EVAL = re.compile(r"\bstep (\d+): train loss ([-+\w.]+), val loss ([-+\w.]+)")
_LLAMA2C = re.compile(r"^\s*(\d+) \| loss ([-+\w.]+) \| lr ([-+\d.e]+) \| ([\d.]+)ms \| mfu")
_NANOCHAT = re.compile(r"\bstep\s+(\d+)(?:/\d+)?( \([\d.]+%\))? \| loss: ([-+\w.]+) \|(.*)")
_NANOCHAT_EVAL = re.compile(r"\bStep (\d+) \| Validation bpb: ([\d.]+)")
_LR = re.compile(r"\blr:? ([-+\d.e]+)")
_PAIR = re.compile(r"([\w/ ]+): ([\d.,]+)")


@dataclass
class NanoGpt:
    """`iter N: loss .., time ..ms, mfu ..%`; its mfu is always against an A100 and is therefore not taken."""

    name: str = "nanogpt"
    arguments: dict[str, str] = field(default_factory=dict)
    _evaluated: int = -1

    def feed(self, line: str, out: Assembly) -> bool:
        """Take the line where it is ours."""
        if "loss" not in line:
            if "Resuming training from" in line:
                out.restart()
                return True
            return False
        if found := _ITER.search(line):
            self._keep(int(found[1]), found[2], milliseconds(found[3]), None, out)
            if found[4] and float(found[4]) < 0:
                out.counts["mfu of -100 % is nanoGPT's sign for 'not measured yet'"] += 1
        elif found := _EVAL.search(line):
            self._evaluated = int(found[1])
            loss = number(found[3])
            if loss is not None and loss == loss:
                out.evaluate(int(found[1]), loss)
        elif found := _LLAMA2C.search(line):
            self._keep(int(found[1]), found[2], milliseconds(found[4]), float(found[3]), out)
        elif found := _NANOCHAT.search(line):
            self._nanochat(found, out)
        else:
            return False
        return True

    def flush(self, out: Assembly) -> None:
        """Nothing is held back."""

    def _keep(self, iteration: int, loss: str, seconds: float | None, rate: float | None, out: Assembly) -> None:
        states: list[str] = []
        record = Record(iteration, finite(number(loss), "loss", states), seconds=seconds, learning_rate=rate)
        if iteration == self._evaluated:
            states.append("seconds_include_evaluation")
        record.line, record.states = out.line, tuple(states)
        out.add(record)

    def _nanochat(self, found: re.Match[str], out: Assembly) -> None:
        self.name = "nanochat" if found[2] else "build-nanogpt"
        values = {key.strip(): value for key, value in _PAIR.findall(found[4])}
        states: list[str] = []
        record = Record(int(found[1]), finite(number(found[3]), "loss", states), line=out.line)
        record.grad_norm = finite(number(values.get("norm", "")), "grad_norm", states)
        if rate := _LR.search(found[4]):
            record.learning_rate = number(rate[1])
        record.seconds = milliseconds(values.get("dt", ""))
        record.tokens_per_second = number(values.get("tok/sec", ""))
        record.states = tuple(states)
        out.add(record)
