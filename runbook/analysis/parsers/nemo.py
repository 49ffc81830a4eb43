"""NeMo: the progress bar of 1.x, the line of 2.x, and DLLogger's JSON."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass, field

from runbook.analysis.parsers.assembly import Assembly
from runbook.analysis.parsers.record import Record, finite, number

_BAR = re.compile(
    r"Epoch \d+:.*?(?:\|\s*|\s)(?P<done>\d+)(?:/\d+|it) \[[^,\]]*(?:, *(?P<rate>[\d.]+)(?P<unit>s/it|it/s))?"
    r"(?P<rest>[^\]]*reduced_train_loss=[^\]]*)\]?"
)
_BEGIN = re.compile(r"(?=Epoch \d+:)")
LONGEST_BAR = 4096
"""Characters of a bar that are looked at; what is longer is no bar."""
_OPEN = re.compile(r"Epoch \d+:.*\d(?:/\d+|it) \[[^\]]*$")
_FIELD = re.compile(r"([A-Za-z_][\w/ ]*?)=\s*([-+\w.]+)")
_LINE = re.compile(r"Training epoch \d+, iteration (\d+)/\d+ \|(.*)")
_REACHED = re.compile(r"global step (\d+): '?val_loss'? reached ([\d.]+)")


_KNOWN = (
    "lr",
    "global_batch_size",
    "global_step",
    "reduced_train_loss",
    "train_step_timing in s",
    "consumed_samples",
    "val_loss",
    "grad_norm",
)


def _fields(text: str) -> dict[str, str]:
    values: dict[str, str] = {}
    for piece in text.split("|")[1:]:
        key, _, value = piece.partition(":")
        values[key.strip()] = value.strip()
    return values


def _known(values: dict[str, str]) -> list[str]:
    return [key for key in _KNOWN if values.get(key)]


@dataclass
class Nemo1:
    """PyTorch Lightning's bar: a step may be drawn many times, its counters rounded to three or four digits."""

    name: str = "nemo-1"
    arguments: dict[str, str] = field(default_factory=dict)
    _offset: int = 1
    """Bar's count minus global_step, learned from the bars that print it exactly."""
    _done: int = -1
    _open: str = ""
    _validation: str = ""

    def feed(self, line: str, out: Assembly) -> bool:
        """Take the line where it is ours; a bar that a terminal wrapped is joined up to its closing bracket."""
        if self._open and "Epoch " not in line and ("=" in line or "]" in line) and len(self._open) < 2000:
            line, self._open = self._open + line, ""
        bars = [line] if line.count("Epoch ") < 2 else _BEGIN.split(line)
        if _OPEN.search(bars[-1][:LONGEST_BAR]) and len(bars[-1]) < LONGEST_BAR:
            self._open = bars.pop()
        else:
            self._open = ""
        if "reduced_train_loss=" in line:
            return self._bars(bars, out) or bool(self._open)
        if self._open:
            return True
        if "val_loss" in line and (reached := _REACHED.search(line)):
            loss = float(reached[2])
            out.evaluate(int(reached[1]), loss)
            return True
        return False

    def flush(self, out: Assembly) -> None:
        """Nothing is held back."""

    def _bars(self, bars: list[str], out: Assembly) -> bool:
        found = [bar for bar in (_BAR.search(text[:LONGEST_BAR]) for text in bars) if bar is not None]
        for bar in found:
            self._bar(bar, out)
        return bool(found)

    def _bar(self, found: re.Match[str], out: Assembly) -> None:
        values = {key.strip(): value for key, value in _FIELD.findall(found["rest"])}
        states: list[str] = []
        record = Record(self._iteration(int(found["done"]), values.get("global_step"), states), line=out.line)
        record.loss = finite(number(values.get("reduced_train_loss", "")), "loss", states)
        seconds = values.get("train_step_timing in s")
        if seconds is not None:
            record.seconds = number(seconds)
        elif found["rate"] and float(found["rate"]):
            rate = float(found["rate"])
            record.seconds = rate if found["unit"] == "s/it" else 1 / rate
            states.append("seconds_is_running_average")
        record.learning_rate = number(values.get("lr", ""))
        record.grad_norm = number(values.get("grad_norm", values.get("gradient_norm", "")))
        record.states = tuple(states)
        self._keep(record, int(found["done"]), out)
        validation = values.get("val_loss", "")
        if validation and validation != self._validation:
            self._validation = validation
            loss = number(validation)
            if loss is not None and loss == loss:
                out.evaluate(record.iteration, loss)

    def _keep(self, record: Record, done: int, out: Assembly) -> None:
        """A bar is drawn again and again: only one that has moved, to another step as far as it tells, is a record."""
        before, moved = out.previous(), done - self._done
        self._done = done
        rounded = "rounded_iteration" in record.states
        if before is not None and record.iteration == before.iteration and moved >= 0 and not (rounded and moved):
            return
        if moved < 0 and rounded:
            out.restart()
        out.add(record, rounded=rounded)

    def _iteration(self, done: int, printed: str | None, states: list[str]) -> int:
        if printed is None:
            return done - self._offset
        value = number(printed)
        step = int(value) if value is not None and value == value else done - self._offset
        if "e" not in printed.lower():
            if 0 <= done - step <= 2:
                self._offset = done - step
            return step
        exact = done - self._offset
        digits = len(printed.lower().partition("e")[0].replace(".", "").lstrip("0"))
        if f"{exact:.{max(digits, 1) - 1}e}" == f"{step:.{max(digits, 1) - 1}e}":
            return exact
        states.append("rounded_iteration")
        return step


@dataclass
class Nemo2:
    """`Training epoch E, iteration I/N | ...`: I starts again in each epoch, so the clock is global_step."""

    name: str = "nemo-2"
    arguments: dict[str, str] = field(default_factory=dict)
    _validation: str = ""
    _text: str | None = None
    """A record that the next line may belong to, where a terminal wrapped it."""
    _line: int = 0
    _prefix: str = ""

    def feed(self, line: str, out: Assembly) -> bool:
        """Take the line where it is ours."""
        if "Training epoch " in line and (found := _LINE.search(line)):
            self.flush(out)
            self._text, self._line, self._prefix = found[0], out.line, line[: found.start()]
            return True
        if self._text is not None:
            joined = self._text + line
            if ":" in line and "epoch " not in line and len(_known(_fields(joined))) > len(_known(_fields(self._text))):
                self._text = joined
                return True
            self.flush(out)
        if line.startswith("DLLL {") or " DLLL {" in line:
            return self._logger(line, out)
        return "Validation epoch " in line

    def flush(self, out: Assembly) -> None:
        """Hand on the record that waited for its rest."""
        if self._text is not None and (found := _LINE.search(self._text)):
            line, out.line = out.line, self._line
            self._keep(_fields(self._text), int(found[1]), out)
            out.line = line
        self._text = None

    def _logger(self, line: str, out: Assembly) -> bool:
        try:
            data = json.loads(line[line.index("{") :]).get("data", {})
        except (ValueError, AttributeError):
            return False
        if not isinstance(data, dict) or "reduced_train_loss" not in data:
            return isinstance(data, dict)
        self._keep({key: str(value) for key, value in data.items()}, 0, out)
        return True

    def _keep(self, values: dict[str, str], iteration: int, out: Assembly) -> None:
        states: list[str] = []
        step = number(values.get("global_step", ""))
        if step is None:
            states.append("iteration_of_epoch")
        record = Record(iteration if step is None else int(step), line=out.line)
        if "reduced_train_loss" in values:
            record.loss = finite(number(values["reduced_train_loss"]), "loss", states)
        else:
            states.append("missing_loss")
        record.learning_rate = number(values.get("lr", ""))
        record.seconds = number(values.get("train_step_timing in s", ""))
        record.grad_norm = finite(number(values.get("grad_norm", "")), "grad_norm", states)
        record.loss_scale = number(values.get("loss_scale", ""))
        for key, value in values.items():
            if key.lower().startswith("tflops_per_gpu"):
                record.tflops, record.tflops_convention = number(value), "nemo"
            elif key.startswith("tokens_per_sec"):
                record.tokens_per_second = number(value)
                if "gpu" in key:
                    states.append("tokens_per_second_per_device")
        record.states = tuple(states)
        out.add(record, self._prefix)
        validation = values.get("val_loss", "")
        if validation and validation != self._validation:
            self._validation = validation
            loss = number(validation)
            if loss is not None and loss == loss:
                out.evaluate(record.iteration, loss)
