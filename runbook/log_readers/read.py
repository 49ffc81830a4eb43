"""Reads a training log in bounded memory: decompresses it, and detects which program wrote it."""

import bz2
import codecs
import gzip
import lzma
import re
import sys
import zlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from itertools import chain
from pathlib import Path
from typing import IO, Any

from runbook.core.errors import DataError
from runbook.log_readers.divergence import find_divergence
from runbook.log_readers.megatron import ENDINGS, Megatron
from runbook.log_readers.messages import LogMessage
from runbook.log_readers.mlperf import MARK, MlPerf
from runbook.log_readers.nanogpt import LlmC, Modded, NanoGpt
from runbook.log_readers.nemo import Nemo1, Nemo2
from runbook.log_readers.pytorch_trainers import DeepSpeed, Ezpz, Own, Torchtitan
from runbook.log_readers.record import Assembly, LineReader, ParsedLog
from runbook.results.failures.finder import FailureFinder, may_be_effect

CHUNK = 1 << 20
_UTF16 = (codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)
LONGEST = 1 << 20
"""Lines with more characters are passed on in pieces, cut at a carriage return if possible."""
BROKEN_NUMBER = LogMessage.BROKEN_NUMBER.fill()
_CONTROL = re.compile(
    r"\x1b\[[0-9;:?]*[ -/]*[@-~]|\x1b\][^\x07\x1b]*(?:\x07|\x1b\\)"
    r"|\x1b[@-Zc-z=>]|\^\[(?:\[[0-9;]*m|c)"
    r"|\\(?:u001[bB]|x1[bB]|033|e)\[[0-9;]*m"  # Escape sequences written as visible characters, as in JSON
)


@contextmanager
def open_log(path: Path) -> Iterator[IO[bytes]]:
    """Open a log so that its decompressed bytes can be read.

    The first bytes, not the file name, determine the compression. Raise `DataError` if the file
    cannot be read.
    """
    try:
        stream = path.open("rb")
    except FileNotFoundError:
        raise DataError(LogMessage.LOG_MISSING, path=path) from None
    except IsADirectoryError:
        raise DataError(LogMessage.LOG_IS_A_FOLDER, path=path) from None
    except OSError as error:
        raise DataError(LogMessage.LOG_NOT_READABLE, path=path, reason=error.strerror) from error

    with stream:
        # Unlike a file, a pipe such as <(zcat log.gz) cannot be read from its beginning again.
        unpack = _unpacker(stream.peek(6)[:6])
        with unpack(stream) as unpacked:
            yield unpacked


def _unpacker(head: bytes) -> Callable[[IO[bytes]], Any]:
    """Return the function used to open a file with these first bytes."""
    for magic, unpack in _UNPACKERS.items():
        if head.startswith(magic):
            return unpack

    return nullcontext


def _open_zstd(stream: IO[bytes]) -> Any:
    try:
        from backports import zstd
    except ImportError:
        name = Path(stream.name).name
        raise DataError(LogMessage.ZSTD_MISSING, stream_name=stream.name, name=name) from None

    return zstd.open(stream)


_UNPACKERS: dict[bytes, Callable[[IO[bytes]], Any]] = {
    b"\x1f\x8b": gzip.open,
    b"\xfd7zXZ\x00": lzma.open,
    b"BZh": bz2.open,
    b"\x28\xb5\x2f\xfd": _open_zstd,
}
"""Functions used to open compressed files, keyed by the first bytes in the file."""


def _damage() -> tuple[type[Exception], ...]:
    """Return the exceptions that reading damaged compressed data can raise."""
    errors: list[type[Exception]] = [EOFError, OSError, lzma.LZMAError, zlib.error]
    # The error class in zstd exists only after the package has been imported to decompress a file
    zstd = sys.modules.get("backports.zstd")
    if zstd is not None:
        errors.append(zstd.ZstdError)
    return tuple(errors)


def is_binary(head: bytes) -> bool:
    r"""Return whether these bytes look binary, with null bytes or many control characters.

    >>> is_binary(b"iteration 1/ 2 |"), is_binary("é ± 3".encode())
    (False, False)
    >>> is_binary(b"\x93NUMPY\x01\x00v")
    True
    """
    if head[:2] in _UTF16:
        return False
    num_control = sum(byte < 32 and byte not in b"\t\n\r\x1b\x08\x0c\x07" for byte in head)
    return b"\0" in head or num_control > len(head) // 10


def _chunks(stream: IO[bytes], problems: list[str]) -> Iterator[bytes]:
    """Yield, in chunks, the data that can be read.

    If reading fails before the end of the file, as with truncated compressed data, add the reason
    to `problems`.
    """
    try:
        # Use `read1`, because `read` would lose the data decompressed before the cut.
        while data := stream.read1(CHUNK):  # type: ignore[attr-defined]
            yield data
    except _damage() as error:
        problems.append(str(error) or type(error).__name__)


def lines_of(chunks: Iterable[str]) -> Iterator[list[str]]:
    """Yield lists of complete lines.

    Very long lines are split, so that no file can fill the memory.
    """
    unfinished = ""
    for chunk in chunks:
        lines = (unfinished + chunk).split("\n")
        unfinished = lines.pop()
        if len(unfinished) > LONGEST:
            if "\r" in unfinished:
                piece, _, unfinished = unfinished.rpartition("\r")
            else:
                piece = unfinished
                unfinished = ""

            lines.append(piece)

        yield lines

    if unfinished:
        yield [unfinished]


def clean(line: str) -> str:
    r"""Return the line without colour codes and other control sequences.

    >>> clean("\x1b[32mstep: 1\x1b[0m"), clean("^[c[2024-04-04"), clean("\x1b]0;title\x07step")
    ('step: 1', '[2024-04-04', 'step')
    >>> clean("\\u001b[32mstep: 1\\x1b[0m")
    'step: 1'
    """
    return _CONTROL.sub("", line)


class LogReader:
    """Reads log lines from a run as they arrive.

    `finish` returns everything that has been read.
    """

    def __init__(self) -> None:
        self.megatron = Megatron()
        self.mlperf = MlPerf()
        readers: list[LineReader] = [
            self.megatron,
            Own(),
            Nemo2(),
            Nemo1(),
            Torchtitan(),
            Modded(),
            NanoGpt(),
            LlmC(),
            Ezpz(),
            DeepSpeed(),
            self.mlperf,
        ]
        self.pairs = [(reader, Assembly()) for reader in readers]
        self.megatron_out = self.pairs[0][1]
        self.mlperf_out = self.pairs[-1][1]
        self.files: list[str] = []
        self.notes: list[str] = []
        self.failures = FailureFinder()
        self.unread = 0
        self._last: tuple[LineReader, Assembly] | None = None
        """The reader that read the last record; not used once the Megatron reader has read one.

        This reader is tried first, because most logs come from a single program.
        """
        self.line = 0
        self._near_misses: dict[str, tuple[int, int]] = {}
        """For each kind of line that could not be read, the number of these lines, and the line
        number of the first.
        """

    def next_file(self, name: str) -> None:
        """Start a new log file. The lines that follow belong to it."""
        self._flush()
        for _, out in self.pairs:
            out.next_file(len(self.files))
        self.failures.note_progress(self.num_records())
        self.failures.next_file()
        self.files.append(name)
        self.line = 0

    def feed(self, lines: Iterable[str]) -> None:
        """Read the next log lines.

        If a line contains carriage returns, its parts are read as separate lines with the same
        number.
        """
        for line in lines:
            self.line += 1
            for part in line.split("\r") if "\r" in line else (line,):
                try:
                    self._feed(part)
                except (ValueError, OverflowError):
                    # The line looks like a record, but contains a value such as `4.9.0e-05`.
                    self.unread += 1
                    self._miss(BROKEN_NUMBER)

    def _flush(self) -> None:
        for reader, out in self.pairs:
            try:
                reader.flush(out)
            except (ValueError, OverflowError):
                self._miss(BROKEN_NUMBER)

    def _miss(self, kind: str) -> None:
        """Count a line that looks like a record but could not be read."""
        count, first_line = self._near_misses.get(kind, (0, self.line))
        self._near_misses[kind] = (count + 1, first_line)

    def _feed(self, line: str) -> None:
        """Pass a line to the reader that accepts it, trying the Megatron reader first."""
        if "\x1b" in line or "^[" in line or "1b[" in line or "\\033[" in line:
            line = clean(line)
        if MARK in line:
            self._feed_mlperf(line)
        elif self._feed_megatron(line):
            if any(words in line for words in ENDINGS):
                self.failures.look(line, self.line)
        elif line and not line.isspace():
            self._others(line)

    def _feed_megatron(self, line: str) -> bool:
        """Offer the line to the Megatron reader, and return whether a reader accepted it.

        If the Megatron reader has no pending record, the reader that read the last record is tried
        first.
        """
        megatron = self.megatron
        out = self.megatron_out
        out.line = self.line
        if megatron.layout is not None and megatron.quick(line, out):
            return True
        if megatron.pending is not None:
            is_taken = megatron.extend(line, out)
        else:
            is_taken = self._feed_last(line)

        return is_taken or megatron.feed(line, out)

    def _feed_mlperf(self, line: str) -> None:
        before, mark, entry = line.partition(MARK)
        # This line comes from another program, which did not end it.
        if "loss" in before:
            self._feed(before)
        self.mlperf_out.line = self.line
        self.mlperf.feed(mark + entry, self.mlperf_out)

    def _feed_last(self, line: str) -> bool:
        """Offer the line to the reader of the last record, and return whether it was accepted."""
        if self._last is None:
            return False
        reader, out = self._last
        out.line = self.line
        return reader.feed(line, out)

    def _others(self, line: str) -> None:
        """Offer the line to the other readers, and count it as unread if all reject it."""
        for index in range(1, len(self.pairs)):
            reader, out = self.pairs[index]
            out.line = self.line
            if not reader.feed(line, out):
                continue
            is_deepspeed = isinstance(reader, DeepSpeed)
            if out.records and not self.megatron_out.records and not is_deepspeed:
                self._last = (reader, out)
            # From now on, the readers for this program are tried first.
            if index > 1:
                self.pairs.insert(1, self.pairs.pop(index))
            return

        self.failures.note_progress(self.num_records())
        self.failures.look(line, self.line)
        self.unread += 1
        if _looks_like_record(line):
            self._miss(LogMessage.NOT_A_RECORD.fill())

    def num_records(self) -> int:
        """Return how many records all readers have together.

        A record counts as soon as its first line has been read. Otherwise the last step before a
        failure would seem to follow the failure, because the reader passes that step on only at the
        end of the log.
        """
        return sum(len(out.records) + out.num_held for _, out in self.pairs)

    def finish(self) -> ParsedLog:
        """Return everything that has been read, as a single `ParsedLog`."""
        self._flush()
        reader, out = self._choose()
        log = ParsedLog(
            files=self.files,
            unread_lines=self.unread,
            arguments=dict(reader.arguments),
        )
        if out.records or out.validation or out is self.mlperf_out:
            log.format = reader.name
            log.records = out.records
            log.validation = out.validation
            log.lost_evaluations = out.lost_evaluations

        log.facts = self.mlperf.facts
        log.validation = self.mlperf_out.validation or log.validation
        self.failures.note_progress(self.num_records())
        log.first_error = self.failures.first_error()
        # If an unrecognized exception explains the known failures, they are reported only as its
        # effects.
        if log.first_error is not None and log.first_error.explains_effects:
            log.effects = self.failures.found()
        else:
            log.failures = self.failures.found()
            log.cause = self.failures.cause()
            log.look_next = self.failures.look_next()
        divergence = find_divergence(log.records)
        if divergence is not None:
            log.failures.append(divergence)
            if log.cause is None or not log.cause.is_specific or may_be_effect(log.cause):
                log.cause = divergence
                log.look_next = None

        log.notes = [*self.notes, *self._notes(out)]
        return log

    def _choose(self) -> tuple[LineReader, Assembly]:
        """Return the reader whose records are used, normally the one with the most records.

        Lines from DeepSpeed and MLPerf also occur in logs from other programs. Records from these
        two readers are used only if no other reader has any.
        """
        deepspeed = next(pair for pair in self.pairs if isinstance(pair[0], DeepSpeed))
        deepspeed_out = deepspeed[1]
        others = [
            pair for pair in self.pairs if pair is not deepspeed and pair[0] is not self.mlperf
        ]
        reader, out = max(others, key=lambda pair: (len(pair[1].records), len(pair[1].validation)))
        if deepspeed_out.records and not out.records:
            return deepspeed
        if deepspeed_out.records and reader.name == "megatron-lm":
            reader.name = "megatron-deepspeed"
        if not out.records and self.mlperf.facts:
            return self.mlperf, self.mlperf_out
        return reader, out

    def _notes(self, chosen: Assembly) -> Iterator[str]:
        """Yield notes on how the log was read."""
        for text, count in chosen.counts.items():
            has_count = count > 1 or text[0].islower()
            yield LogMessage.COUNTED.fill(count=count, note=text) if has_count else text

        for reader, out in self.pairs:
            if out is not chosen and out.records:
                yield (
                    f"{len(out.records)} records of {reader.name} cover the same steps in another "
                    "format and were left out"
                )

        for kind, (count, first_line) in self._near_misses.items():
            yield LogMessage.MISSED_LINES.fill(count=count, kind=kind, first_line=first_line)


def _looks_like_record(line: str) -> bool:
    if "loss" not in line or ("iteration" not in line and "step" not in line):
        return False
    return any(letter.isdigit() for letter in line)


def parse_files(paths: Sequence[Path]) -> ParsedLog:
    """Read one or more log files from the same run, in the given order.

    `notes` in the result list the files that are binary, empty, or contain no record. Raise
    `DataError` if a file cannot be opened.
    """
    reader = LogReader()
    for path in paths:
        records_before = reader.num_records()
        _read_file(path, reader)
        has_records = reader.num_records() > records_before
        if len(paths) > 1 and not has_records and path.stat().st_size:
            reader.notes.append(f"{path}: contains no new record")

    return reader.finish()


def _read_file(path: Path, reader: LogReader) -> None:
    """Pass the lines in a file to the reader."""
    problems: list[str] = []
    with open_log(path) as stream:
        reader.next_file(str(path))
        chunks = _chunks(stream, problems)
        head = next(chunks, b"")
        if is_binary(head[:8192]):
            reader.notes.append(f"{path} is binary data, not a log: nothing was read from it")
            return

        if not head and not problems:
            reader.notes.append(LogMessage.LOG_EMPTY.fill(path=path))
            return

        encoding = "utf-16" if head[:2] in _UTF16 else "utf-8-sig"
        text = codecs.iterdecode(chain([head], chunks), encoding, "replace")
        for lines in lines_of(text):
            reader.feed(lines)

    for problem in problems:
        reader.notes.append(LogMessage.LOG_CUT_OFF.fill(path=path, problem=problem))
