"""Records of a training log: one per iteration, restarts counted, copies by other ranks dropped."""

import math
import re
from abc import ABC, abstractmethod
from bisect import bisect_left
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field, fields

from runbook.results.failures.finder import Failure


@dataclass(slots=True)
class Record:
    """One iteration as the log tells it; None where the log does not say."""

    iteration: int
    loss: float | None = None
    grad_norm: float | None = None
    learning_rate: float | None = None
    loss_scale: float | None = None
    seconds: float | None = None
    samples_per_second: float | None = None
    tokens_per_second: float | None = None
    tflops: float | None = None
    tflops_convention: str | None = None
    skipped: int | None = None
    nan: int | None = None
    segment: int = 0
    states: tuple[str, ...] = ()
    line: int = 0
    file: int = 0

    def take(self, name: str, value: str | float | None) -> None:
        """Set a field; NaN and infinity leave it None and become a state (`nan_loss`, `infinite_loss`)."""
        value = number(value) if isinstance(value, str) else value
        if value is not None and not math.isfinite(value):
            self.mark(f"{'nan' if math.isnan(value) else 'infinite'}_{name}")
            value = None
        setattr(self, name, value)

    def read(
        self, values: Mapping[str, str | float | None], names: Mapping[str, str] | None = None
    ) -> None:
        """Take what a log says; `names` has our field for each of its words, and a number that is there stays.

        `milliseconds` become seconds; `tokens_per_second_per_device` are a state as well.
        """
        for word, name in (names or {word: word for word in values}).items():
            value = values.get(word)
            if value is None:
                continue
            if name == "milliseconds":
                name = "seconds"
                value = milliseconds(str(value))
            elif name == "tokens_per_second_per_device":
                self.mark(name)
                name = "tokens_per_second"
            if name in ("loss", "grad_norm"):
                self.take(name, value)
            elif getattr(self, name) is None:
                setattr(self, name, number(value) if isinstance(value, str) else value)

    def mark(self, state: str) -> None:
        """Add a state."""
        self.states += (state,)


KEYS = tuple(field.name for field in fields(Record) if field.name not in ("line", "file"))
"""Keys of a record in JSON and CSV, in order; `source` (file and line) follows."""


@dataclass(frozen=True, slots=True)
class Validation:
    """One evaluation as the log tells it."""

    iteration: int | None
    loss: float
    perplexity: float | None
    name: str
    """Which set: validation, test, or the name the log gives."""
    line: int
    file: int


@dataclass
class Facts:
    """What the MLPerf lines of a log say of the run as a whole; None where they do not."""

    benchmark: str | None = None
    global_batch_size: int | None = None
    sequence_length: int | None = None
    seed: int | None = None
    run_start_ms: int | None = None
    run_stop_ms: int | None = None
    status: str | None = None


@dataclass
class ParsedLog:
    """A log, or several files of one run, understood."""

    format: str = "unknown"
    records: list[Record] = field(default_factory=list)
    validation: list[Validation] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    unread_lines: int = 0
    files: list[str] = field(default_factory=list)
    arguments: dict[str, str] = field(default_factory=dict)
    """What the program printed of its own arguments."""
    failures: list[Failure] = field(default_factory=list)
    """Known failures that the lines between the records name."""
    cause: Failure | None = None
    """The failure that explains the end of the training. None: no failure is known, or it went on afterwards."""
    facts: Facts | None = None
    """None where the log has no line of MLPerf's."""

    @property
    def segments(self) -> int:
        """How often training was started in this log."""
        return 1 + max((record.segment for record in self.records), default=-1)

    def source(self, one: Record | Validation) -> str:
        """File and line a record or evaluation was read from."""
        return f"{self.files[one.file]}:{one.line}" if self.files else str(one.line)


_LEADING = re.compile(
    r"\s*([-+]?(?:\d[\d,]*\.?\d*|\.\d+)(?:[eE][-+]?\d+)?|[-+]?nan|[-+]?inf)", re.IGNORECASE
)


def number(text: str | None) -> float | None:
    """The number a value begins with, as logs write it; None where it begins with none.

    >>> number(" 1.5E-04 "), number("10,050"), number("1467.8/1466.1"), number("112.9TFLOPS"), number("abc")
    (0.00015, 10050.0, 1467.8, 112.9, None)
    >>> number("nan.0")
    nan
    """
    try:
        return float(text or "")
    except ValueError:
        match = _LEADING.match(text or "")
        return float(match[1].replace(",", "")) if match else None


def whole(value: object) -> int | None:
    """The whole number of a value; None where it is another, or none at all.

    >>> whole(" 12 "), whole(8.0), whole("0.5"), whole("nan"), whole(None)
    (12, 8, None, None, None)
    """
    found = number(str(value))
    return int(found) if found is not None and found.is_integer() else None


def milliseconds(text: str | None) -> float | None:
    """Seconds; the exponent is written rather than divided by, so that 150471.3 ms is 150.4713 s and no digit more.

    >>> milliseconds(" 150471.3 "), milliseconds(" 1467.8/1466.1 "), milliseconds("9371.81ms"), milliseconds("nanms")
    (150.4713, 1.4678, 9.37181, nan)
    """
    match = _LEADING.match(text or "")
    if match is None:
        return None
    digits = match[1].replace(",", "")
    if "e" in digits.lower() or "n" in digits.lower():
        return float(digits) / 1000
    return float(digits + "e-3")


NEAR = 3
"""How many records late a copy by another rank may come; a restart goes back further or shows other numbers."""
_RANK = re.compile(
    r"\[?(?:rank|default)[\s-]*(\d+)\]?|\bpid=(\d+)|^\s*(\d+):\s|^\s*\[?([A-Za-z][\w.-]*\d[\w.-]*(?::\d+)?)\]?:\s?"
    r"|^\s*[\w.-]+/(\d+)\s"
)
OVERFLOW = re.compile(r"OVERFLOW! Rank (\d+) Skipping step")
CLOSE_LINES = 64
"""A record that repeats the last one within so many lines was printed by another rank, even where its clock differs."""


class Assembly:
    """What one parser found in a run, iteration by iteration."""

    def __init__(self) -> None:
        self.records: list[Record] = []
        self.validation: list[Validation] = []
        self.counts: Counter[str] = Counter()
        """Things worth a note, by text."""
        self.file = 0
        self.line = 0
        self._last = -1
        self._start = 0
        self._segment = 0
        self._restarting = False
        self._new_file = False
        self._prefix = ""

    def step(
        self,
        iteration: str | int,
        values: Mapping[str, str | float | None],
        names: Mapping[str, str] | None = None,
    ) -> Record:
        """The record of this line with its values, as `Record.read` takes them; `add` keeps it."""
        record = Record(int(iteration), line=self.line)
        record.read(values, names)
        return record

    def restart(self) -> None:
        """The log says that training starts; what follows the next record belongs to a new segment."""
        if len(self.records) > self._start:
            self._restarting = True

    def next_file(self, index: int) -> None:
        """What comes now is from another file of the same run."""
        self.file = index
        self._new_file = len(self.records) > self._start

    def last_iteration(self) -> int | None:
        """Of the newest record."""
        return self.records[-1].iteration if self.records else None

    def previous(self) -> Record | None:
        """The newest record of this segment."""
        if len(self.records) > self._start and not self._restarting:
            return self.records[-1]
        return None

    def add(self, record: Record, prefix: str = "", *, rounded: bool = False) -> None:
        """Keep the record, unless it is a copy of one that is kept.

        `rounded`: the log rounds its counter, so that the same number may be a later step.
        """
        record.file = self.file
        later = record.iteration > self._last or (rounded and record.iteration == self._last)
        if later and not self._restarting:
            self._new_file = False
        elif self._is_copy(record, prefix):
            self.counts["records printed by several ranks, counted once"] += 1
            return
        elif self.records:
            self._segment += 1
            self._start = len(self.records)
            self._restarting = self._new_file = False
        self._last = record.iteration
        self._prefix = prefix
        record.segment = self._segment
        self.records.append(record)

    def _is_copy(self, record: Record, prefix: str) -> bool:
        # iterations rise within a segment
        place = bisect_left(
            self.records, record.iteration, lo=self._start, key=lambda kept: kept.iteration
        )
        if place == len(self.records) or self.records[place].iteration != record.iteration:
            return False
        twin = self.records[place]
        alike = all(
            getattr(twin, name) == getattr(record, name)
            for name in ("loss", "grad_norm", "learning_rate")
        )
        same = alike and _close(twin.seconds, record.seconds)
        if self._new_file:
            return same
        if self._restarting:
            return False
        other = _other_rank(self._prefix, prefix)
        last = twin is self.records[-1] and 0 <= record.line - twin.line <= CLOSE_LINES
        if alike and record.loss is not None and (last or other):
            return True
        return len(self.records) - 1 - place <= NEAR and (same or other)

    def evaluate(
        self,
        iteration: int | None,
        loss: float | None,
        perplexity: float | None = None,
        name: str = "validation",
    ) -> None:
        """Keep an evaluation whose loss is a number; a repeat (another rank, another refresh of a bar) is dropped."""
        if loss is None or math.isnan(loss):
            return
        before = [(other.iteration, other.loss, other.name) for other in self.validation[-4:]]
        if (iteration, loss, name) not in before:
            self.validation.append(
                Validation(iteration, loss, perplexity, name, self.line, self.file)
            )


def _close(one: float | None, other: float | None) -> bool:
    if one is None or other is None:
        return one is other
    return abs(one - other) <= 0.02 * max(abs(one), abs(other))


def _other_rank(one: str, other: str) -> bool:
    """Whether two prefixes name two ranks.

    >>> _other_rank("[rank0]:", "[rank1]:"), _other_rank("0: ", "0: "), _other_rank("", "3: ")
    (True, False, False)
    >>> _other_rank("[lrdn3321:3]: ", "[lrdn3321:2]: "), _other_rank("trainer/0 ", "trainer/7 ")
    (True, True)
    """
    first = _RANK.search(one)
    second = _RANK.search(other)
    return bool(first and second and first.groups() != second.groups())


@dataclass
class LineReader(ABC):
    """Reader of one program's log: takes its lines, hands records to an assembly."""

    name: str
    arguments: dict[str, str] = field(default_factory=dict)
    """What the program printed of its own arguments."""
    evaluated: str = ""
    """The last evaluation, as it was printed."""

    @abstractmethod
    def feed(self, line: str, out: Assembly) -> bool:
        """Take the line; True where it was understood."""

    def flush(self, out: Assembly) -> None:  # noqa: B027 - most readers hold nothing back
        """Hand on what was held back: the log ended."""

    def evaluate_once(self, iteration: int, text: str | None, out: Assembly) -> None:
        """Keep an evaluation that the program prints again in every line until the next one."""
        if text and text != self.evaluated:
            self.evaluated = text
            out.evaluate(iteration, number(text))
