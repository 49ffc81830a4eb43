"""Log readers for nanoGPT and its relatives: llama2.c, nanochat, modded-nanogpt, llm.c."""

import math
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
    """Reads `iter N: loss .., time ..ms, mfu ..%`.

    The printed mfu always refers to an A100, so it is not used.
    """

    name: str = "nanogpt"
    _evaluated: int = -1
    """Iteration at which the last evaluation was made.

    The time printed for this iteration includes the evaluation.
    """

    def feed(self, line: str, out: Assembly) -> bool:
        """Read the line if it has this format, and return whether it has."""
        if "loss" not in line:
            if "Resuming training from" in line:
                out.restart()
                return True

            return False

        step = _ITER.search(line) or _LLAMA2C.search(line)
        if step is not None:
            self._step(step, line, out)
            return True

        evaluation = _EVAL.search(line)
        if evaluation is not None:
            self._evaluated = int(evaluation[1])
            out.evaluate(int(evaluation[1]), number(evaluation[3]))
            return True

        nanochat_step = _NANOCHAT.search(line)
        if nanochat_step is not None:
            self._nanochat_step(nanochat_step, out)
            return True

        return False

    def _step(
        self,
        match: re.Match[str],
        line: str,
        out: Assembly,
    ) -> None:
        record = out.step(match["iteration"], match.groupdict())
        if record.iteration == self._evaluated:
            record.mark("seconds_include_evaluation")
        out.add(record)
        if "ms, mfu -" in line:
            out.counts["nanoGPT prints an mfu of -100 % until it has measured one"] += 1

    def _nanochat_step(self, match: re.Match[str], out: Assembly) -> None:
        iteration, percent, loss, fields = match.groups()
        self.name = "nanochat" if percent else "build-nanogpt"
        values: dict[str, str | float | None] = {}
        for key, value in _PAIR.findall(fields):
            values[key.strip()] = value

        values["loss"] = loss
        values["lr"] = _group(_LR, fields)
        out.add(out.step(iteration, values, _NANOCHAT_NAMES))


def _group(pattern: re.Pattern[str], text: str) -> str | None:
    """Return the first group if a pattern matches in the text, or None."""
    match = pattern.search(text)
    return match[1] if match else None


_MODDED_STEP = re.compile(r"^[^\w\"']*step:(\d+)/\d+ (.*)")
_MODDED_FIELD = re.compile(r"(\w+):([-+\w.]+)")


@dataclass
class Modded(LineReader):
    """Reads lines from modded-nanogpt.

    step_avg is the mean time per step since step 10, not the time for the printed step. The first
    ten steps print `nanms`.
    """

    name: str = "modded-nanogpt"

    def feed(self, line: str, out: Assembly) -> bool:
        """Read the line if it has this format, and return whether it has."""
        match = _MODDED_STEP.match(line) if "step:" in line else None
        if match is None:
            return False
        values = dict(_MODDED_FIELD.findall(match[2]))
        if "train_time" not in values:
            return False
        iteration = int(match[1])
        if "val_loss" in values:
            out.evaluate(iteration, number(values["val_loss"]))
            return True

        record = out.step(iteration, {"loss": values.get("train_loss")})
        if "train_loss" not in values:
            record.mark("missing_loss")
        mean_seconds = milliseconds(values.get("step_avg"))
        if mean_seconds is None or math.isnan(mean_seconds):
            record.mark("seconds_not_measured")
        else:
            record.seconds = mean_seconds
            record.mark("seconds_is_running_average")

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
    """Reads lines from llm.c.

    tok/s is the total over all devices. `(+nanz)` is a z-score for the loss, not a loss, and is NaN
    at first.
    """

    name: str = "llm.c"

    def feed(self, line: str, out: Assembly) -> bool:
        """Read the line if it has this format, and return whether it has."""
        main = _MAIN.match(line) if line.startswith("s:") else None
        if main is not None:
            self._main(main, out)
            return True

        if "val loss" in line:
            return self._validation(line, out)
        if "step" in line and "loss" in line:
            return self._step(line, out)
        return False

    def _validation(self, line: str, out: Assembly) -> bool:
        match = _LLMC_VALIDATION.match(line)
        if match is None:
            return False
        out.evaluate(out.last_iteration(), float(match[1]))
        return True

    def _step(self, line: str, out: Assembly) -> bool:
        match = _LLMC_STEP.search(line)
        if match is None:
            return False
        iteration, loss, fields = match.groups()
        values = {name: _group(pattern, fields) for name, pattern in _LLMC_FIELDS.items()}
        if values["milliseconds"] is None or number(loss) is None:
            return False
        out.add(out.step(iteration, {"loss": loss, **values}))
        return True

    def _main(self, match: re.Match[str], out: Assembly) -> None:
        """Read a line in main.log, which has a HellaSwag accuracy, an evaluation, or a step."""
        iteration, kind, loss, learning_rate, norm = match.groups()
        if kind == "eval":
            out.counts["HellaSwag accuracies (`eval:`) are not losses and were left out"] += 1
        elif kind == "tel":
            out.evaluate(int(iteration), number(loss))
        else:
            values = {"loss": loss, "learning_rate": learning_rate, "grad_norm": norm}
            out.add(out.step(iteration, values))
