"""Records from a training log: one per iteration, without copies printed by other ranks."""

import math
import re
from abc import ABC, abstractmethod
from bisect import bisect_left
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field, fields

from runbook.log_readers.messages import LogMessage
from runbook.results.failures.finder import Failure
from runbook.results.failures.first_ended import LookNext
from runbook.results.failures.first_error import FirstError


@dataclass(slots=True)
class Record:
    """An iteration in a log. A field is None if the log does not contain its value."""

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
        """Set a field. For NaN and infinity, add a state such as `nan_loss` instead."""
        value = number(value) if isinstance(value, str) else value
        if value is not None and not math.isfinite(value):
            kind = "nan" if math.isnan(value) else "infinite"
            self.mark(f"{kind}_{name}")
            value = None

        setattr(self, name, value)

    def read(
        self, values: Mapping[str, str | float | None], names: Mapping[str, str] | None = None
    ) -> None:
        """Set fields to values from a log.

        A number that is already set is kept. `names` maps keys in the log to our field names;
        without `names`, the keys are used as field names. `milliseconds` is converted to seconds,
        and a `tokens_per_second_per_device` is stored as `tokens_per_second`, with the original
        name added to the record states.
        """
        field_by_key = names or {key: key for key in values}
        for key, name in field_by_key.items():
            value = values.get(key)
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
        """Add a state to the record."""
        self.states += (state,)

    def drop_rates(self) -> None:
        """Discard throughput and TFLOP/s in a record for which all steps were skipped."""
        self.samples_per_second = None
        self.tokens_per_second = None
        self.tflops = None
        self.tflops_convention = None


KEYS = tuple(field.name for field in fields(Record) if field.name not in ("line", "file"))
"""Keys of a record in JSON and CSV, in output order.

`source` (file and line) follows them.
"""


@dataclass(frozen=True, slots=True)
class Validation:
    """An evaluation in a log."""

    iteration: int | None
    loss: float
    perplexity: float | None
    name: str
    """Which texts were evaluated: validation, test, or the name in the log."""
    line: int
    file: int


@dataclass
class Facts:
    """Facts about the run, taken from MLPerf lines in a log.

    A field is None if the MLPerf lines do not contain it.
    """

    benchmark: str | None = None
    global_batch_size: int | None = None
    sequence_length: int | None = None
    seed: int | None = None
    run_start_ms: int | None = None
    run_stop_ms: int | None = None
    status: str | None = None


@dataclass
class ParsedLog:
    """What one or more log files from the same run contain."""

    format: str = "unknown"
    records: list[Record] = field(default_factory=list)
    validation: list[Validation] = field(default_factory=list)
    lost_evaluations: list[Validation] = field(default_factory=list)
    """Evaluations whose loss is not finite."""
    notes: list[str] = field(default_factory=list)
    unread_lines: int = 0
    files: list[str] = field(default_factory=list)
    arguments: dict[str, str] = field(default_factory=dict)
    """Arguments printed by the program, by name."""
    failures: list[Failure] = field(default_factory=list)
    """Known failures, found in the lines between the records."""
    cause: Failure | None = None
    """The failure that explains why training ended.

    The cause is None if no known failure occurred, or if the training continued afterwards.
    """
    look_next: LookNext | None = None
    """The rank or node whose output to read next.

    The value is None if the cause is in this log, or if the log does not name such a rank.
    """
    first_error: FirstError | None = None
    """The first error that no rule recognizes.

    The value is None if the log shows a known failure that this error did not cause.
    """
    effects: list[Failure] = field(default_factory=list)
    """Known failures that result from the first error. They are not in `failures`."""
    facts: Facts | None = None
    """Facts from MLPerf lines, or None if the log has no such lines."""

    @property
    def segments(self) -> int:
        """Return how often training was started in this log."""
        return 1 + max((record.segment for record in self.records), default=-1)

    @property
    def evaluations_in_order(self) -> list[Validation]:
        """Return all evaluations in log order, including those without a finite loss."""
        evaluations = [*self.validation, *self.lost_evaluations]
        return sorted(evaluations, key=lambda evaluation: (evaluation.file, evaluation.line))

    def source(self, entry: Record | Validation) -> str:
        """Return the file and line from which a record or evaluation was read."""
        if self.files:
            return f"{self.files[entry.file]}:{entry.line}"
        return str(entry.line)


_LEADING = re.compile(
    r"\s*([-+]?(?:\d[\d,]*\.?\d*|\.\d+)(?:[eE][-+]?\d+)?|[-+]?nan|[-+]?inf)", re.IGNORECASE
)


def number(text: str | None) -> float | None:
    """Parse the number at the start of a value, as any log format may write it, or return None.

    >>> number(" 1.5E-04 "), number("10,050"), number("1467.8/1466.1"), number("112.9TFLOPS")
    (0.00015, 10050.0, 1467.8, 112.9)
    >>> number("nan.0"), number("abc")
    (nan, None)
    """
    try:
        return float(text or "")
    except ValueError:
        match = _LEADING.match(text or "")
        return float(match[1].replace(",", "")) if match else None


def whole(value: object) -> int | None:
    """Return the value as a whole number, or None if it is not a whole number.

    >>> whole(" 12 "), whole(8.0), whole("0.5"), whole("nan"), whole(None)
    (12, 8, None, None, None)
    """
    parsed = number(str(value))
    if parsed is None or not parsed.is_integer():
        return None
    return int(parsed)


def milliseconds(text: str | None) -> float | None:
    """Convert milliseconds, given as text, to seconds.

    Return None if the text does not start with a number. An exponent is appended, because a
    division would not make 150471.3 ms exactly 150.4713 s.

    >>> milliseconds(" 150471.3 "), milliseconds(" 1467.8/1466.1 ")
    (150.4713, 1.4678)
    >>> milliseconds("9371.81ms"), milliseconds("nanms")
    (9.37181, nan)
    """
    match = _LEADING.match(text or "")
    if match is None:
        return None
    digits = match[1].replace(",", "").lower()
    # The number already has an exponent, or is nan or inf.
    if "e" in digits or "n" in digits:
        return float(digits) / 1000
    return float(digits + "e-3")


NEAR = 3
"""A copy that another rank printed may lag behind by this many records.

A record that goes back further, or has different values, belongs to a restart.
"""
_RANK = re.compile(
    r"\[?(?:rank|default)[\s-]*(\d+)\]?|\bpid=(\d+)|^\s*(\d+):\s"
    r"|^\s*\[?([A-Za-z][\w.-]*\d[\w.-]*(?::\d+)?)\]?:\s?"
    r"|^\s*[\w.-]+/(\d+)\s"
)
OVERFLOW = re.compile(r"OVERFLOW! Rank (\d+) Skipping step")
CLOSE_LINES = 64
"""Within this many lines, a repeated record comes from another rank, even if its time stamp is new.
"""


class Assembly:
    """The records that a reader has found in a run, sorted by iteration."""

    def __init__(self) -> None:
        self.records: list[Record] = []
        self.validation: list[Validation] = []
        self.lost_evaluations: list[Validation] = []
        self.counts: Counter[str] = Counter()
        """How often each note applies, by note text."""
        self.num_held = 0
        """How many steps the reader has begun to read but not passed on yet."""
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
        """Return a record for the current line, with values set by `Record.read`.

        The caller stores the record with `add`.
        """
        record = Record(int(iteration), line=self.line)
        record.read(values, names)
        return record

    def restart(self) -> None:
        """Note that training has started again, to begin a new segment with the next record."""
        if len(self.records) > self._start:
            self._restarting = True

    def next_file(self, index: int) -> None:
        """Note that the following lines come from another file for the same run."""
        self.file = index
        self._new_file = len(self.records) > self._start

    def last_iteration(self) -> int | None:
        """Return the iteration of the newest record, or None if there is no record."""
        return self.records[-1].iteration if self.records else None

    def previous(self) -> Record | None:
        """Return the newest record of this segment, or None if the segment is empty."""
        if len(self.records) > self._start and not self._restarting:
            return self.records[-1]
        return None

    def add(
        self,
        record: Record,
        prefix: str = "",
        *,
        rounded: bool = False,
    ) -> None:
        """Store the record, unless it is a copy of a stored record.

        `rounded` means that the log rounds its counter, so a repeated number may belong to a later
        step.
        """
        record.file = self.file
        is_later = record.iteration > self._last or (rounded and record.iteration == self._last)
        if is_later and not self._restarting:
            self._new_file = False
        elif self._is_copy(record, prefix):
            self.counts[LogMessage.COPIES_DROPPED.fill()] += 1
            return
        elif self.records:
            self._begin_segment()

        self._last = record.iteration
        self._prefix = prefix
        record.segment = self._segment
        self.records.append(record)

    def _begin_segment(self) -> None:
        self._segment += 1
        self._start = len(self.records)
        self._restarting = False
        self._new_file = False

    def _is_copy(self, record: Record, prefix: str) -> bool:
        """Return whether the record repeats one from another rank or another log file."""
        index = self._place_of(record.iteration)
        if index is None:
            return False
        earlier = self.records[index]
        has_same_values = _have_same_values(earlier, record)
        is_same_step = has_same_values and _close(earlier.seconds, record.seconds)
        if self._new_file:
            return is_same_step
        if self._restarting:
            return False
        is_other_rank = _other_rank(self._prefix, prefix)
        # If a rank prints a loss twice, both lines are close together.
        is_printed_again = is_other_rank or self._follows_closely(earlier, record)
        if has_same_values and record.loss is not None and is_printed_again:
            return True
        records_late = len(self.records) - 1 - index
        if records_late > NEAR:
            return False
        return is_other_rank or is_same_step

    def _follows_closely(self, earlier: Record, record: Record) -> bool:
        """Return whether `earlier` is the newest record, at most a few lines above this one."""
        lines_apart = record.line - earlier.line
        return earlier is self.records[-1] and 0 <= lines_apart <= CLOSE_LINES

    def _place_of(self, iteration: int) -> int | None:
        """Return the index of the record for an iteration in this segment, or None."""
        # Within a segment, iterations increase.
        index = bisect_left(
            self.records, iteration, lo=self._start, key=lambda record: record.iteration
        )
        if index == len(self.records) or self.records[index].iteration != iteration:
            return None
        return index

    def evaluate(
        self,
        iteration: int | None,
        loss: float | None,
        perplexity: float | None = None,
        name: str = "validation",
    ) -> None:
        """Store an evaluation. If its loss is not finite, store it in a separate list.

        A repeated evaluation, from another rank or a redrawn progress bar, is dropped.
        """
        if loss is None:
            return
        if not math.isfinite(loss):
            lost = Validation(
                iteration,
                loss,
                perplexity,
                name,
                self.line,
                self.file,
            )
            self.lost_evaluations.append(lost)
            return

        recent = [
            (evaluation.iteration, evaluation.loss, evaluation.name)
            for evaluation in self.validation[-4:]
        ]
        if (iteration, loss, name) in recent:
            return
        evaluation = Validation(
            iteration,
            loss,
            perplexity,
            name,
            self.line,
            self.file,
        )
        self.validation.append(evaluation)


def _have_same_values(first: Record, second: Record) -> bool:
    return (
        first.loss == second.loss
        and first.grad_norm == second.grad_norm
        and first.learning_rate == second.learning_rate
    )


def _close(first: float | None, second: float | None) -> bool:
    """Return whether two step times differ by at most 2 %, or are both unknown."""
    if first is None or second is None:
        return first is second
    return abs(first - second) <= 0.02 * max(abs(first), abs(second))


def _other_rank(first_prefix: str, second_prefix: str) -> bool:
    """Return whether two prefixes name different ranks.

    >>> _other_rank("[rank0]:", "[rank1]:"), _other_rank("0: ", "0: "), _other_rank("", "3: ")
    (True, False, False)
    >>> _other_rank("[lrdn3321:3]: ", "[lrdn3321:2]: "), _other_rank("trainer/0 ", "trainer/7 ")
    (True, True)
    """
    first = _RANK.search(first_prefix)
    second = _RANK.search(second_prefix)
    return bool(first and second and first.groups() != second.groups())


@dataclass
class LineReader(ABC):
    """Base class for log readers, which parse lines and pass records to an assembly."""

    name: str
    arguments: dict[str, str] = field(default_factory=dict)
    """Arguments printed by the program, by name."""
    evaluated: str = ""
    """The loss in the last evaluation, as printed."""

    @abstractmethod
    def feed(self, line: str, out: Assembly) -> bool:
        """Read a line, and return whether the reader understood it."""

    def flush(self, out: Assembly) -> None:  # noqa: B027 - most readers hold nothing back
        """Pass on records that were held back, because the log has ended."""

    def evaluate_once(
        self,
        iteration: int,
        text: str | None,
        out: Assembly,
    ) -> None:
        """Store an evaluation only once, even if the program repeats it in every following line."""
        if text and text != self.evaluated:
            self.evaluated = text
            out.evaluate(iteration, number(text))
