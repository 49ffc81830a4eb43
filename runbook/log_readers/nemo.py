"""Log readers for NeMo: the progress bar of 1.x, the line of 2.x, DLLogger's JSON."""

import json
import re
from dataclasses import dataclass

from runbook.log_readers.record import Assembly, LineReader, Record, number

_BAR = re.compile(
    r"Epoch \d+:.*?(?:\|\s*|\s)(?P<done>\d+)(?:/\d+|it) \[[^,\]]*(?:, *(?P<rate>[\d.]+)(?P<unit>s/it|it/s))?"
    r"(?P<rest>[^\]]*reduced_train_loss=[^\]]*)\]?"
)
_BEGIN = re.compile(r"(?=Epoch \d+:)")
LONGEST_BAR = 4096
"""Characters of a bar that are looked at; what is longer is no bar."""
_OPEN = re.compile(r"Epoch \d+:.*\d(?:/\d+|it) \[[^\]]*$")
_FIELD = re.compile(r"([A-Za-z_][\w/ ]*?)=\s*([-+\w.]+)")
_LINE = re.compile(r"Training epoch \d+, iteration (\d+)/\d+ \|.*")
_REACHED = re.compile(r"global step (\d+): '?val_loss'? reached ([\d.]+)")
_NAMES = {
    "reduced_train_loss": "loss",
    "lr": "learning_rate",
    "train_step_timing in s": "seconds",
    "grad_norm": "grad_norm",
    "gradient_norm": "grad_norm",
    "loss_scale": "loss_scale",
}
_KNOWN = (*_NAMES, "global_batch_size", "global_step", "consumed_samples", "val_loss")


def _fields(text: str) -> dict[str, str]:
    pieces = [piece.partition(":") for piece in text.split("|")[1:]]
    return {key.strip(): value.strip() for key, _, value in pieces}


def _num_known(text: str) -> int:
    return sum(bool(value) and key in _KNOWN for key, value in _fields(text).items())


@dataclass
class Nemo1(LineReader):
    """PyTorch Lightning's bar: a step may be drawn many times, its counters rounded to three or four digits."""

    name: str = "nemo-1"
    _offset: int = 1
    """Bar's count minus global_step, learned from the bars that print it exactly."""
    _done: int = -1
    _open: str = ""

    def feed(self, line: str, out: Assembly) -> bool:
        """Take the line where it is ours; a bar that a terminal wrapped is joined up to its closing bracket."""
        if (
            self._open
            and "Epoch " not in line
            and ("=" in line or "]" in line)
            and len(self._open) < 2000
        ):
            line = self._open + line
            self._open = ""
        bars = [line] if line.count("Epoch ") < 2 else _BEGIN.split(line)
        self._open = bars.pop() if len(bars[-1]) < LONGEST_BAR and _OPEN.search(bars[-1]) else ""
        if "reduced_train_loss=" in line:
            found = [
                bar for bar in (_BAR.search(text[:LONGEST_BAR]) for text in bars) if bar is not None
            ]
            for bar in found:
                self._bar(bar, out)
            return bool(found or self._open)
        if self._open:
            return True
        if "val_loss" in line and (reached := _REACHED.search(line)):
            out.evaluate(int(reached[1]), float(reached[2]))
            return True
        return False

    def _bar(self, found: re.Match[str], out: Assembly) -> None:
        values = {key.strip(): value for key, value in _FIELD.findall(found["rest"])}
        done = int(found["done"])
        iteration, is_rounded = self._iteration(done, values.get("global_step"))
        record = Record(
            iteration, line=out.line, states=("rounded_iteration",) if is_rounded else ()
        )
        record.read(values, _NAMES)
        rate = float(found["rate"] or 0)
        if rate and "train_step_timing in s" not in values:
            record.seconds = rate if found["unit"] == "s/it" else 1 / rate
            record.mark("seconds_is_running_average")
        self._keep(record, done, is_rounded, out)
        self.evaluate_once(record.iteration, values.get("val_loss"), out)

    def _keep(self, record: Record, done: int, is_rounded: bool, out: Assembly) -> None:
        """A bar is drawn again and again: only one that has moved, to another step as far as it tells, is a record."""
        before = out.previous()
        moved = done - self._done
        self._done = done
        if (
            before is not None
            and record.iteration == before.iteration
            and moved >= 0
            and not (is_rounded and moved)
        ):
            return
        if moved < 0 and is_rounded:
            out.restart()
        out.add(record, rounded=is_rounded)

    def _iteration(self, done: int, printed: str | None) -> tuple[int, bool]:
        """The step a bar is at, and whether that is only its rounded number."""
        exact = done - self._offset
        value = number(printed)
        if printed is None:
            return exact, False
        step = exact if value is None or value != value else int(value)
        mantissa, exponent, _ = printed.lower().partition("e")
        if not exponent:
            if 0 <= done - step <= 2:
                self._offset = done - step
            return step, False
        digits = max(len(mantissa.replace(".", "").lstrip("0")), 1) - 1
        return (exact, False) if f"{exact:.{digits}e}" == f"{step:.{digits}e}" else (step, True)


@dataclass
class Nemo2(LineReader):
    """`Training epoch E, iteration I/N | ...`: I starts again in each epoch, so the clock is global_step."""

    name: str = "nemo-2"
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
            if ":" in line and "epoch " not in line and _num_known(joined) > _num_known(self._text):
                self._text = joined
                return True
            self.flush(out)
        if line.startswith("DLLL {") or " DLLL {" in line:
            return self._logger(line, out)
        return "Validation epoch " in line

    def flush(self, out: Assembly) -> None:
        """Hand on the record that waited for its rest."""
        if self._text is not None and (found := _LINE.search(self._text)):
            line = out.line
            out.line = self._line
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
        step = number(values.get("global_step"))
        record = Record(iteration if step is None else int(step), line=out.line)
        if step is None:
            record.mark("iteration_of_epoch")
        record.read(values, _NAMES)
        if "reduced_train_loss" not in values:
            record.mark("missing_loss")
        for key, value in values.items():
            if key.lower().startswith("tflops_per_gpu"):
                record.tflops = number(value)
                record.tflops_convention = "nemo"
            elif key.startswith("tokens_per_sec"):
                record.tokens_per_second = number(value)
                if "gpu" in key:
                    record.mark("tokens_per_second_per_device")
        out.add(record, self._prefix)
        self.evaluate_once(record.iteration, values.get("val_loss"), out)
