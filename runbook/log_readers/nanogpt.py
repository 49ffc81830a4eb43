"""Log readers for nanoGPT and its relatives: llama2.c, nanochat, modded-nanogpt, llm.c."""

import re
from dataclasses import dataclass

from runbook.log_readers.record import Assembly, LineReader, milliseconds, number

_ITER = re.compile(
    r"\biter (?P<iteration>\d+): loss (?P<loss>[-+\w.]+), time (?P<milliseconds>[\d.]+)ms"
)
_EVAL = re.compile(r"\bstep (\d+): train loss ([-+\w.]+), val loss ([-+\w.]+)")
_LLAMA2C = re.compile(
    r"^\s*(?P<iteration>\d+) \| loss (?P<loss>[-+\w.]+) \| lr (?P<learning_rate>[-+\d.e]+) "
    r"\| (?P<milliseconds>[\d.]+)ms \| mfu"
)
_NANOCHAT = re.compile(r"\bstep\s+(\d+)(?:/\d+)?( \([\d.]+%\))? \| loss: ([-+\w.]+) \|(.*)")
_LR = re.compile(r"\blr:? ([-+\d.e]+)")
_PAIR = re.compile(r"([\w/ ]+): ([\d.,]+)")
_NANOCHAT_NAMES = {
    "loss": "loss",
    "norm": "grad_norm",
    "dt": "milliseconds",
    "tok/sec": "tokens_per_second",
    "lr": "learning_rate",
}


@dataclass
class NanoGpt(LineReader):
    """`iter N: loss .., time ..ms, mfu ..%`; its mfu is always against an A100 and is therefore not taken."""

    name: str = "nanogpt"
    _evaluated: int = -1

    def feed(self, line: str, out: Assembly) -> bool:
        """Take the line where it is ours."""
        if "loss" not in line:
            if "Resuming training from" in line:
                out.restart()
                return True
            return False
        if found := _ITER.search(line) or _LLAMA2C.search(line):
            record = out.step(found["iteration"], found.groupdict())
            if record.iteration == self._evaluated:
                record.mark("seconds_include_evaluation")
            out.add(record)
            if "ms, mfu -" in line:
                out.counts["mfu of -100 % is nanoGPT's sign for 'not measured yet'"] += 1
        elif found := _EVAL.search(line):
            self._evaluated = int(found[1])
            out.evaluate(int(found[1]), number(found[3]))
        elif found := _NANOCHAT.search(line):
            self.name = "nanochat" if found[2] else "build-nanogpt"
            values = {key.strip(): value for key, value in _PAIR.findall(found[4])}
            values |= {"loss": found[3], "lr": _group(_LR, found[4])}
            out.add(out.step(found[1], values, _NANOCHAT_NAMES))
        else:
            return False
        return True


def _group(pattern: re.Pattern[str], text: str) -> str | None:
    """What the first group of a pattern is somewhere in the text."""
    found = pattern.search(text)
    return found[1] if found else None


_MODDED_STEP = re.compile(r"^[^\w\"']*step:(\d+)/\d+ (.*)")
_MODDED_FIELD = re.compile(r"(\w+):([-+\w.]+)")


@dataclass
class Modded(LineReader):
    """step_avg is the mean since step 10, not the time of the step; the first ten print `nanms`."""

    name: str = "modded-nanogpt"

    def feed(self, line: str, out: Assembly) -> bool:
        """Take the line where it is ours."""
        found = _MODDED_STEP.match(line) if "step:" in line else None
        if found is None:
            return False
        values = dict(_MODDED_FIELD.findall(found[2]))
        if "train_time" not in values:
            return False
        iteration = int(found[1])
        if "val_loss" in values:
            out.evaluate(iteration, number(values["val_loss"]))
            return True
        record = out.step(iteration, {"loss": values.get("train_loss")})
        if "train_loss" not in values:
            record.mark("missing_loss")
        mean = milliseconds(values.get("step_avg"))
        if mean is not None and mean == mean:
            record.seconds = mean
        record.mark(
            "seconds_not_measured" if record.seconds is None else "seconds_is_running_average"
        )
        out.add(record)
        return True


_LLMC_STEP = re.compile(r"\bstep\s+(\d+)(?:/\d+)?(?:\s*\||:)\s*(?:train )?loss ([-+\w.]+)(.*)")
_MAIN = re.compile(
    r"^s:(\d+) (tel|trl|eval):([-+\w.]+)(?: lr:([-+\w.]+))?(?: norm:([-+\w.]+))?\s*$"
)
_LLMC_VALIDATION = re.compile(r"^\s*val loss:? ([\d.]+)\s*$")
_LLMC_FIELDS = {
    "milliseconds": re.compile(r"(?<![\w.])([\d.]+) ms\b"),
    "grad_norm": re.compile(r"\bnorm ([-+\w.]+)"),
    "learning_rate": _LR,
    "tokens_per_second": re.compile(r"\b(\d+) tok/s\b"),
}


@dataclass
class LlmC(LineReader):
    """tok/s is that of all devices; `(+nanz)` is the deviation of the first losses, not a loss."""

    name: str = "llm.c"

    def feed(self, line: str, out: Assembly) -> bool:
        """Take the line where it is ours."""
        if line.startswith("s:") and (found := _MAIN.match(line)):
            self._main(found, out)
            return True
        if (
            "step" in line
            and "loss" in line
            and "val loss" not in line
            and (found := _LLMC_STEP.search(line))
        ):
            return self._step(found, out)
        if "val loss" in line and (found := _LLMC_VALIDATION.match(line)):
            out.evaluate(out.last_iteration(), float(found[1]))
            return True
        return False

    def _step(self, found: re.Match[str], out: Assembly) -> bool:
        values = {name: _group(pattern, found[3]) for name, pattern in _LLMC_FIELDS.items()}
        if values["milliseconds"] is None or number(found[2]) is None:
            return False
        out.add(out.step(found[1], {"loss": found[2], **values}))
        return True

    def _main(self, found: re.Match[str], out: Assembly) -> None:
        if found[2] == "eval":
            out.counts["HellaSwag accuracies (`eval:`) are no losses and were left out"] += 1
        elif found[2] == "tel":
            out.evaluate(int(found[1]), number(found[3]))
        else:
            out.add(
                out.step(
                    found[1], {"loss": found[3], "learning_rate": found[4], "grad_norm": found[5]}
                )
            )
