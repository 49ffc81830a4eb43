"""Any training log in, one object out: finds the program, reads line by line in bounded memory."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Protocol

from runbook.analysis.known_failures import FailureFinder
from runbook.analysis.parsers.assembly import Assembly
from runbook.analysis.parsers.deepspeed import DeepSpeed
from runbook.analysis.parsers.ezpz import Ezpz
from runbook.analysis.parsers.llmc import LlmC
from runbook.analysis.parsers.megatron import Megatron
from runbook.analysis.parsers.modded import Modded
from runbook.analysis.parsers.nanogpt import NanoGpt
from runbook.analysis.parsers.nemo import Nemo1, Nemo2
from runbook.analysis.parsers.own import Own
from runbook.analysis.parsers.reading import Text, clean, lines_of, open_log
from runbook.analysis.parsers.record import ParsedLog
from runbook.analysis.parsers.torchtitan import Torchtitan


class Reader(Protocol):
    """One family of programs: takes its lines, hands records to an assembly."""

    name: str
    arguments: dict[str, str]

    def feed(self, line: str, out: Assembly) -> bool:
        """Take the line; True where it was understood."""

    def flush(self, out: Assembly) -> None:
        """The log ended: hand on what was held back."""


class LogReader:
    """Reads a run's lines as they come; `result` may be asked for at any time after `finish`."""

    def __init__(self) -> None:
        self.megatron = Megatron()
        self.readers: list[Reader] = [
            self.megatron, Own(), Nemo2(), Nemo1(), Torchtitan(), Modded(), NanoGpt(), LlmC(), Ezpz(), DeepSpeed(),
        ]  # fmt: skip
        self.found = [Assembly() for _ in self.readers]
        self.pairs = list(zip(self.readers, self.found, strict=True))
        self.megatron_out = self.found[0]
        self.files: list[str] = []
        self.notes: list[str] = []
        self.failures = FailureFinder()
        self.unread = 0
        self._last: tuple[Reader, Assembly] | None = None
        """The reader of the last record, where Megatron's has found none: most logs are of one program throughout."""
        self.line = 0
        self._near_misses: Counter[str] = Counter()
        self._first_miss: dict[str, int] = {}

    def next_file(self, name: str) -> None:
        """What comes now is from this file."""
        self._flush()
        for _, out in self.pairs:
            out.next_file(len(self.files))
        self.files.append(name)
        self.line = 0

    def feed(self, lines: Iterable[str]) -> None:
        """Read some more lines; the parts of a line between carriage returns count as lines of the same number."""
        for line in lines:
            self.line += 1
            if "\r" in line:
                for part in line.split("\r"):
                    self._take(part)
            else:
                self._take(line)

    def _take(self, line: str) -> None:
        """One line; one that looks like a record but holds `4.9.0e-05` is left unread and told."""
        try:
            self._feed(line)
        except (ValueError, OverflowError):
            self.unread += 1
            self._miss("lines like a record, of which a number cannot be read")

    def _flush(self) -> None:
        for reader, out in self.pairs:
            try:
                reader.flush(out)
            except (ValueError, OverflowError):
                self._miss("lines like a record, of which a number cannot be read")

    def _miss(self, kind: str) -> None:
        self._near_misses[kind] += 1
        self._first_miss.setdefault(kind, self.line)

    def _feed(self, line: str) -> None:
        if "\x1b" in line or "^[" in line or "1b[" in line or "\\033[" in line:
            line = clean(line)
        megatron, out = self.megatron, self.megatron_out
        out.line = self.line
        if megatron.layout is not None and megatron.quick(line, out):
            return
        if megatron.pending is not None:
            if megatron.extend(line, out):
                return
        elif self._last is not None:
            reader, found = self._last
            found.line = self.line
            if reader.feed(line, found):
                return
        if not megatron.feed(line, out) and line and not line.isspace():
            self._others(line, self.line)

    def _others(self, line: str, number: int) -> None:
        for place in range(1, len(self.pairs)):
            reader, out = self.pairs[place]
            out.line = number
            if reader.feed(line, out):
                if out.records and not self.megatron_out.records and not isinstance(reader, DeepSpeed):
                    self._last = (reader, out)
                if place > 1:  # the family of this log comes first from now on
                    self.pairs.insert(1, self.pairs.pop(place))
                return
        self.failures.look(line, number)
        self.unread += 1
        if ("iteration" in line or "step" in line) and ("loss" in line) and any(letter.isdigit() for letter in line):
            self._miss("lines that mention a step and a loss but are no record this version can read")

    def finish(self) -> ParsedLog:
        """Everything read so far as one object."""
        self._flush()
        by_name = {type(reader).__name__: (reader, out) for reader, out in self.pairs}
        deepspeed = by_name.pop("DeepSpeed")
        reader, out = max(by_name.values(), key=lambda pair: (len(pair[1].records), len(pair[1].validation)))
        if not out.records and deepspeed[1].records:
            reader, out = deepspeed
        elif out.records and deepspeed[1].records and isinstance(reader, Megatron) and reader.name == "megatron-lm":
            reader.name = "megatron-deepspeed"
        log = ParsedLog(files=self.files, unread_lines=self.unread, arguments=dict(reader.arguments))
        if out.records or out.validation:
            log.format, log.records, log.validation = reader.name, out.records, out.validation
        log.failures = self.failures.found(num_records=len(out.records))
        log.notes = [*self.notes, *self._notes(out)]
        return log

    def _notes(self, chosen: Assembly) -> Iterator[str]:
        for text, count in chosen.counts.items():
            yield f"{count} x {text}" if count > 1 or text[0].islower() else text
        for reader, out in self.pairs:
            if out is not chosen and out.records:
                yield f"{len(out.records)} records of {reader.name} tell the same steps in other words: left out"
        for kind, count in self._near_misses.items():
            yield f"{count} {kind}, the first at line {self._first_miss[kind]}"


def parse_lines(lines: Iterable[str]) -> ParsedLog:
    """A log given as lines.

    >>> log = parse_lines([" iteration 1/ 5 | elapsed time per iteration (ms): 500.0 | lm loss: 1.1E+01 |"])
    >>> log.format, log.records[0].iteration, log.records[0].loss, log.records[0].seconds
    ('megatron-lm', 1, 11.0, 0.5)
    """
    reader = LogReader()
    reader.next_file("lines")
    reader.feed(lines)
    return reader.finish()


def parse_files(paths: Sequence[Path]) -> ParsedLog:
    """One or several log files of one run, in the order given.

    A file that holds no text, nothing at all, or nothing that was understood is told in `notes`; `DataError` where a
    file cannot be opened.
    """
    reader = LogReader()
    for path in paths:
        before = sum(len(out.records) for out in reader.found)
        _read_file(path, reader)
        if len(paths) > 1 and sum(len(out.records) for out in reader.found) == before and path.stat().st_size:
            reader.notes.append(f"{path}: no record of its own")
    return reader.finish()


def _read_file(path: Path, reader: LogReader) -> None:
    with open_log(path) as stream:
        reader.next_file(str(path))
        text = Text(stream)
        if text.binary:
            reader.notes.append(f"{path} is binary data, not a log: nothing was read from it")
            return
        if not text.head and not text.problem:
            reader.notes.append(f"{path} is empty")
            return
        for lines in lines_of(iter(text)):
            reader.feed(lines)
        if text.problem:
            reader.notes.append(
                f"{path} ends in the middle of its compressed data ({text.problem}): what came before was read"
            )
