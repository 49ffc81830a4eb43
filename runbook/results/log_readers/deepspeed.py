"""Log reader for DeepSpeed's own lines: pipeline steps, throughput timer, step log, overflows."""

import re
from dataclasses import dataclass

from runbook.results.log_readers.record import Assembly, LineReader, Record

_STEPS = re.compile(
    r"\bsteps: (\d+) loss: ([-\d.naifNAIF]+) (?:iter time|time) \((m?s)\): ([\d.]+)(?: samples/sec: ([\d.]+))?"
)
_TIMER = re.compile(
    r"(?:epoch=\d+/micro_step=\d+/global_step=(?P<step>\d+)|\b\d+/(?P<old>\d+)), "
    r"(?:RunningAvgSamplesPerSec=(?P<mean>[\d.]+), CurrSamplesPerSec=(?P<now>[\d.]+)|SamplesPerSec=(?P<single>[\d.]+))"
)
_WRAPPED = re.compile(r"epoch=\d+/micro_step=\d+/global_step=\d+,?\s*$")
_STEP = re.compile(r"\[Rank \d+\] step=(\d+), skipped=(\d+), lr=\[([-\d.eE]+)")
_OVERFLOW = re.compile(r"OVERFLOW! Rank (\d+) Skipping step")


@dataclass
class DeepSpeed(LineReader):
    """One record a step, put together from up to three lines; dropped where Megatron's own line tells the step."""

    name: str = "deepspeed"
    open: Record | None = None
    _timer_text: str = ""
    """A timer's line that a terminal or a page wrapped, up to where it went on."""
    _skipped: int | None = None
    _overflow: bool = False

    def feed(self, line: str, out: Assembly) -> bool:
        """Take the line where it is ours."""
        if self._timer_text:
            line, self._timer_text = self._timer_text + " " + line.strip(), ""
            if "Curr" not in line and "MemAllocated" not in line and len(line) < 300:
                self._timer_text = line
                return True
        elif "global_step=" in line and _WRAPPED.search(line):
            self._timer_text = line.strip()
            return True
        if "SamplesPerSec=" in line and (timer := _TIMER.search(line)):
            self._timer(timer, out)
        elif "steps: " in line and (steps := _STEPS.search(line)):
            self._steps(steps, out)
        elif "skipped=" in line and (step := _STEP.search(line)):
            self._step(step, out)
        elif "OVERFLOW!" in line and (overflow := _OVERFLOW.search(line)):
            self.flush(out)  # it is told before the other lines of its step
            self._overflow = self._overflow or overflow[1] == "0"
        else:
            return "[logging.py:" in line or "log_dist]" in line
        return True

    def flush(self, out: Assembly) -> None:
        """Hand on the step being put together."""
        if self.open is not None:
            record, self.open = self.open, None
            if self._overflow:
                record.mark("overflow")
                self._overflow = False
            out.add(record)

    def _at(self, iteration: int, out: Assembly) -> Record:
        if self.open is not None and self.open.iteration != iteration:
            self.flush(out)
        if self.open is None:
            self.open = Record(iteration, line=out.line)
        return self.open

    def _steps(self, found: re.Match[str], out: Assembly) -> None:
        record = self._at(int(found[1]), out)
        record.take("loss", found[2])
        record.seconds = float(found[4]) / (1000 if found[3] == "ms" else 1)
        if found[5]:
            record.samples_per_second = float(found[5])
            record.states = tuple(state for state in record.states if not state.startswith("samples_per_second"))

    def _timer(self, found: re.Match[str], out: Assembly) -> None:
        record = self._at(int(found["step"] or found["old"]), out)
        if record.samples_per_second is not None:
            return
        record.samples_per_second = float(found["now"] or found["single"])
        record.mark("samples_per_second_of_timer" if found["now"] else "samples_per_second_is_running_average")

    def _step(self, found: re.Match[str], out: Assembly) -> None:
        record = self._at(int(found[1]), out)
        record.learning_rate = float(found[3])
        total, before = int(found[2]), self._skipped
        record.skipped = total if before is None or total < before else total - before
        self._skipped = total
