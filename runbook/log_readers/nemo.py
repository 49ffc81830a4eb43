"""Log readers for NeMo.

They read the progress bar from 1.x, the log lines from 2.x, and JSON from DLLogger.
"""

import json
import math
import re
from dataclasses import dataclass

from runbook.log_readers.record import Assembly, LineReader, Record, number

_BAR = re.compile(
    r"Epoch \d+:.*?(?:\|\s*|\s)(?P<done>\d+)(?:/\d+|it) "
    r"\[[^,\]]*(?:, *(?P<rate>[\d.]+)(?P<unit>s/it|it/s))?"
    r"(?P<fields>[^\]]*reduced_train_loss=[^\]]*)\]?"
)
_BEGIN = re.compile(r"(?=Epoch \d+:)")
LONGEST_BAR = 4096
"""Longest text to read as a progress bar, in characters."""
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
    """Return the values between the bars in a line, by key."""
    values = {}
    for piece in text.split("|")[1:]:
        key, _, value = piece.partition(":")
        values[key.strip()] = value.strip()

    return values


def _num_known(text: str) -> int:
    """Count the fields in a line that have a value and a known key."""
    return sum(bool(value) and key in _KNOWN for key, value in _fields(text).items())


@dataclass
class Nemo1(LineReader):
    """Reads the progress bar from PyTorch Lightning.

    The bar for a step may be drawn many times, with counters rounded to three or four
    digits.
    """

    name: str = "nemo-1"
    _offset: int = 1
    """Count in the bar minus global_step, from bars that print global_step without rounding.
    """
    _done: int = -1
    _open: str = ""
    """First part of a bar that a terminal has wrapped."""

    def feed(self, line: str, out: Assembly) -> bool:
        """Read the line if it is in this format, and return whether it is.

        Join the lines if a bar was wrapped.
        """
        if self._continues_bar(line):
            line = self._open + line
            self._open = ""

        bars = [line] if line.count("Epoch ") < 2 else _BEGIN.split(line)
        is_open = len(bars[-1]) < LONGEST_BAR and _OPEN.search(bars[-1]) is not None
        self._open = bars.pop() if is_open else ""
        if "reduced_train_loss=" in line:
            return self._take_bars(bars, out) or is_open
        if is_open:
            return True
        reached = _REACHED.search(line) if "val_loss" in line else None
        if reached is None:
            return False
        out.evaluate(int(reached[1]), float(reached[2]))
        return True

    def _continues_bar(self, line: str) -> bool:
        """Return whether the line may be the rest of the open bar."""
        if not self._open or len(self._open) >= 2000 or "Epoch " in line:
            return False
        return "=" in line or "]" in line

    def _take_bars(self, bars: list[str], out: Assembly) -> bool:
        """Read the complete progress bars among these texts, and return whether there is any."""
        matches = [_BAR.search(text[:LONGEST_BAR]) for text in bars]
        whole_bars = [match for match in matches if match is not None]
        for match in whole_bars:
            self._bar(match, out)
        return bool(whole_bars)

    def _bar(self, match: re.Match[str], out: Assembly) -> None:
        """Read a bar."""
        values = {key.strip(): value for key, value in _FIELD.findall(match["fields"])}
        done = int(match["done"])
        iteration, is_rounded = self._iteration(done, values.get("global_step"))
        record = Record(iteration, line=out.line)
        if is_rounded:
            record.mark("rounded_iteration")
        record.read(values, _NAMES)
        rate = float(match["rate"] or 0)
        if rate and "train_step_timing in s" not in values:
            record.seconds = rate if match["unit"] == "s/it" else 1 / rate
            record.mark("seconds_is_running_average")

        self._keep(record, done, is_rounded, out)
        self.evaluate_once(record.iteration, values.get("val_loss"), out)

    def _keep(
        self,
        record: Record,
        done: int,
        is_rounded: bool,
        out: Assembly,
    ) -> None:
        """Add the record for a bar if the bar has moved to a different step.

        A bar is redrawn many times without moving.
        """
        before = out.previous()
        moved = done - self._done
        self._done = done
        if before is not None and record.iteration == before.iteration and moved >= 0:
            # A rounded number may stay the same even though the bar has moved.
            is_later_step = is_rounded and moved > 0
            if not is_later_step:
                return

        if moved < 0 and is_rounded:
            out.restart()
        out.add(record, rounded=is_rounded)

    def _iteration(self, done: int, printed: str | None) -> tuple[int, bool]:
        """Return the step shown by a bar, and whether it is only a rounded number.

        `printed` is global_step as the bar shows it, such as `1.23e+4`.
        """
        exact = done - self._offset
        if printed is None:
            return exact, False
        value = number(printed)
        step = exact if value is None or math.isnan(value) else int(value)
        mantissa, exponent, _ = printed.lower().partition("e")
        if not exponent:
            if 0 <= done - step <= 2:
                self._offset = done - step
            return step, False

        digits = max(len(mantissa.replace(".", "").lstrip("0")), 1) - 1
        agrees = f"{exact:.{digits}e}" == f"{step:.{digits}e}"
        return (exact, False) if agrees else (step, True)


@dataclass
class Nemo2(LineReader):
    """Reads `Training epoch E, iteration I/N | ...`.

    The iteration restarts in each epoch, so records are numbered by global_step.
    """

    name: str = "nemo-2"
    _text: str | None = None
    """The record that the next line may continue, if a terminal wrapped it."""
    _line: int = 0
    _prefix: str = ""

    def feed(self, line: str, out: Assembly) -> bool:
        """Read the line if it has this format, and return whether it has."""
        match = _LINE.search(line) if "Training epoch " in line else None
        if match is not None:
            self.flush(out)
            self._text = match[0]
            self._line = out.line
            self._prefix = line[: match.start()]
            return True

        if self._text is not None:
            if self._continues(line, self._text):
                self._text += line
                return True

            self.flush(out)

        if line.startswith("DLLL {") or " DLLL {" in line:
            return self._logger(line, out)
        return "Validation epoch " in line

    @staticmethod
    def _continues(line: str, text: str) -> bool:
        """Return whether the line adds fields to the wrapped record in `text`."""
        if ":" not in line or "epoch " in line:
            return False
        return _num_known(text + line) > _num_known(text)

    def flush(self, out: Assembly) -> None:
        """Pass on the record that was waiting for its continuation."""
        match = _LINE.search(self._text) if self._text is not None else None
        if self._text is not None and match is not None:
            line = out.line
            out.line = self._line
            self._keep(_fields(self._text), int(match[1]), out)
            out.line = line

        self._text = None

    def _logger(self, line: str, out: Assembly) -> bool:
        """Read a JSON line from DLLogger, and return whether it is valid."""
        try:
            data = json.loads(line[line.index("{") :]).get("data", {})
        except (ValueError, AttributeError):
            return False

        if not isinstance(data, dict):
            return False
        if "reduced_train_loss" in data:
            self._keep({key: str(value) for key, value in data.items()}, 0, out)
        return True

    def _keep(
        self,
        values: dict[str, str],
        iteration: int,
        out: Assembly,
    ) -> None:
        """Add the record for a step. `iteration` counts from the start of the epoch."""
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
