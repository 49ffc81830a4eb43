"""Reading a training log: unpack it, find the program that wrote it, read line by line in bounded memory."""

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
from runbook.log_readers.megatron import Megatron
from runbook.log_readers.mlperf import MARK, MlPerf
from runbook.log_readers.nanogpt import LlmC, Modded, NanoGpt
from runbook.log_readers.nemo import Nemo1, Nemo2
from runbook.log_readers.pytorch_trainers import DeepSpeed, Ezpz, Own, Torchtitan
from runbook.log_readers.record import Assembly, LineReader, ParsedLog
from runbook.results.failures.finder import FailureFinder

CHUNK = 1 << 20
_UTF16 = (codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)
LONGEST = 1 << 20
"""A line longer than this many characters is handed on in pieces, cut at a carriage return where it has one."""
BROKEN_NUMBER = "lines like a record, of which a number cannot be read"
_CONTROL = re.compile(
    r"\x1b\[[0-9;:?]*[ -/]*[@-~]|\x1b\][^\x07\x1b]*(?:\x07|\x1b\\)|\x1b[@-Zc-z=>]|\^\[(?:\[[0-9;]*m|c)"
    r"|\\(?:u001[bB]|x1[bB]|033|e)\[[0-9;]*m"  # written out, as in JSON
)


@contextmanager
def open_log(path: Path) -> Iterator[IO[bytes]]:
    """The bytes of a log, unpacked by what it begins with and not by its name; `DataError` where it cannot be read."""
    try:
        stream = path.open("rb")
    except FileNotFoundError:
        raise DataError(
            f"{path} does not exist. Give the path of a log file, or the name of a run."
        ) from None
    except IsADirectoryError:
        raise DataError(
            f"{path} is a folder. Give the log files in it, for example {path}/*.out."
        ) from None
    except OSError as error:
        raise DataError(
            f"{path} cannot be read: {error.strerror}. Ask its owner, or copy it first."
        ) from error
    with stream:
        head = stream.read(6)
        stream.seek(0)
        unpack = next(
            (unpack for magic, unpack in _UNPACKERS.items() if head.startswith(magic)), nullcontext
        )
        with unpack(stream) as unpacked:
            yield unpacked


def _open_zstd(stream: IO[bytes]) -> Any:
    try:
        from backports import zstd
    except ImportError:
        raise DataError(
            f"{stream.name} is zstd and this installation cannot unpack it: "
            f"pip install 'gpt3-runbook[data]', or unpack it first with `zstd -d {Path(stream.name).name}`."
        ) from None
    return zstd.open(stream)


_UNPACKERS: dict[bytes, Callable[[IO[bytes]], Any]] = {
    b"\x1f\x8b": gzip.open,
    b"\xfd7zXZ\x00": lzma.open,
    b"BZh": bz2.open,
    b"\x28\xb5\x2f\xfd": _open_zstd,
}
"""How a file is opened, by its first bytes."""


def _damage() -> tuple[type[Exception], ...]:
    """What reading damaged data raises; zstd's own error exists only once its package was imported to unpack it."""
    zstd = sys.modules.get("backports.zstd")
    return (EOFError, OSError, lzma.LZMAError, zlib.error, *([zstd.ZstdError] if zstd else []))


def is_binary(head: bytes) -> bool:
    r"""Whether bytes are no text: they hold zeros, or many control characters.

    >>> is_binary(b"iteration 1/ 2 |"), is_binary(b"\x93NUMPY\x01\x00v"), is_binary("é ± 3".encode())
    (False, True, False)
    """
    if head[:2] in _UTF16:
        return False
    strange = sum(byte < 32 and byte not in b"\t\n\r\x1b\x08\x0c\x07" for byte in head)
    return b"\0" in head or strange > len(head) // 10


def _chunks(stream: IO[bytes], problems: list[str]) -> Iterator[bytes]:
    """What can be read; `problems` gets why reading stopped before the end, such as compressed data cut off."""
    try:
        # read1 hands on what could be unpacked before the place where the data is cut off; read would lose it
        while data := stream.read1(CHUNK):  # type: ignore[attr-defined]
            yield data
    except _damage() as error:
        problems.append(str(error) or type(error).__name__)


def lines_of(chunks: Iterable[str]) -> Iterator[list[str]]:
    """Lists of whole lines; a line without end is cut into pieces, so that no file can fill the memory."""
    rest = ""
    for chunk in chunks:
        lines = (rest + chunk).split("\n")
        rest = lines.pop()
        if len(rest) > LONGEST:
            piece, _, rest = rest.rpartition("\r") if "\r" in rest else (rest, "", "")
            lines.append(piece)
        yield lines
    if rest:
        yield [rest]


def clean(line: str) -> str:
    r"""The line without colours and other control sequences.

    >>> clean("\x1b[32mstep: 1\x1b[0m"), clean("^[c[2024-04-04"), clean("\x1b]0;title\x07step")
    ('step: 1', '[2024-04-04', 'step')
    >>> clean("\\u001b[32mstep: 1\\x1b[0m")
    'step: 1'
    """
    return _CONTROL.sub("", line)


class LogReader:
    """Reads a run's lines as they come; `result` may be asked for at any time after `finish`."""

    def __init__(self) -> None:
        self.megatron, self.mlperf = Megatron(), MlPerf()
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
        self.megatron_out, self.mlperf_out = self.pairs[0][1], self.pairs[-1][1]
        self.files: list[str] = []
        self.notes: list[str] = []
        self.failures = FailureFinder()
        self.unread = 0
        self._last: tuple[LineReader, Assembly] | None = None
        """The reader of the last record, where Megatron's has found none: most logs are of one program throughout."""
        self.line = 0
        self._near_misses: dict[str, tuple[int, int]] = {}
        """How many there are of each kind, and the line of the first."""

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
            for part in line.split("\r") if "\r" in line else (line,):
                try:
                    self._feed(part)
                except (ValueError, OverflowError):  # it looks like a record, but holds `4.9.0e-05`
                    self.unread += 1
                    self._miss(BROKEN_NUMBER)

    def _flush(self) -> None:
        for reader, out in self.pairs:
            try:
                reader.flush(out)
            except (ValueError, OverflowError):
                self._miss(BROKEN_NUMBER)

    def _miss(self, kind: str) -> None:
        count, first = self._near_misses.get(kind, (0, self.line))
        self._near_misses[kind] = count + 1, first

    def _feed(self, line: str) -> None:
        if "\x1b" in line or "^[" in line or "1b[" in line or "\\033[" in line:
            line = clean(line)
        if MARK in line:
            before, mark, entry = line.partition(MARK)
            if "loss" in before:  # another program's line without end
                self._feed(before)
            self.mlperf_out.line = self.line
            self.mlperf.feed(mark + entry, self.mlperf_out)
            return
        megatron = self.megatron
        out = self.megatron_out
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
            self._others(line)

    def _others(self, line: str) -> None:
        for place in range(1, len(self.pairs)):
            reader, out = self.pairs[place]
            out.line = self.line
            if reader.feed(line, out):
                if (
                    out.records
                    and not self.megatron_out.records
                    and not isinstance(reader, DeepSpeed)
                ):
                    self._last = (reader, out)
                if place > 1:  # the family of this log comes first from now on
                    self.pairs.insert(1, self.pairs.pop(place))
                return
        self.failures.note_progress(self.num_records())
        self.failures.look(line, self.line)
        self.unread += 1
        if (
            ("iteration" in line or "step" in line)
            and ("loss" in line)
            and any(letter.isdigit() for letter in line)
        ):
            self._miss(
                "lines that mention a step and a loss but are no record this version can read"
            )

    def num_records(self) -> int:
        """How many records all readers have found together."""
        return sum(len(out.records) for _, out in self.pairs)

    def finish(self) -> ParsedLog:
        """Everything read so far as one object."""
        self._flush()
        deepspeed = next(pair for pair in self.pairs if isinstance(pair[0], DeepSpeed))
        others = [
            pair for pair in self.pairs if pair is not deepspeed and pair[0] is not self.mlperf
        ]
        reader, out = max(others, key=lambda pair: (len(pair[1].records), len(pair[1].validation)))
        if deepspeed[1].records and not out.records:
            reader, out = deepspeed
        elif deepspeed[1].records and reader.name == "megatron-lm":
            reader.name = "megatron-deepspeed"
        if not out.records and self.mlperf.facts:
            reader = self.mlperf
            out = self.mlperf_out
        log = ParsedLog(
            files=self.files, unread_lines=self.unread, arguments=dict(reader.arguments)
        )
        if out.records or out.validation or out is self.mlperf_out:
            log.format, log.records, log.validation = reader.name, out.records, out.validation
        log.facts, log.validation = self.mlperf.facts, self.mlperf_out.validation or log.validation
        self.failures.note_progress(self.num_records())
        log.failures = self.failures.found()
        log.cause = self.failures.cause()
        log.notes = [*self.notes, *self._notes(out)]
        return log

    def _notes(self, chosen: Assembly) -> Iterator[str]:
        for text, count in chosen.counts.items():
            yield f"{count} x {text}" if count > 1 or text[0].islower() else text
        for reader, out in self.pairs:
            if out is not chosen and out.records:
                yield f"{len(out.records)} records of {reader.name} tell the same steps in other words: left out"
        for kind, (count, first) in self._near_misses.items():
            yield f"{count} {kind}, the first at line {first}"


def parse_files(paths: Sequence[Path]) -> ParsedLog:
    """One or several log files of one run, in the order given.

    A file that holds no text, nothing at all, or nothing that was understood is told in `notes`; `DataError` where a
    file cannot be opened.
    """
    reader = LogReader()
    for path in paths:
        before = reader.num_records()
        _read_file(path, reader)
        if len(paths) > 1 and reader.num_records() == before and path.stat().st_size:
            reader.notes.append(f"{path}: no record of its own")
    return reader.finish()


def _read_file(path: Path, reader: LogReader) -> None:
    problems: list[str] = []
    with open_log(path) as stream:
        reader.next_file(str(path))
        chunks = _chunks(stream, problems)
        head = next(chunks, b"")
        if is_binary(head[:8192]):
            reader.notes.append(f"{path} is binary data, not a log: nothing was read from it")
            return
        if not head and not problems:
            reader.notes.append(f"{path} is empty")
            return
        encoding = "utf-16" if head[:2] in _UTF16 else "utf-8-sig"
        for lines in lines_of(codecs.iterdecode(chain([head], chunks), encoding, "replace")):
            reader.feed(lines)
    reader.notes += [
        f"{path} ends in the middle of its compressed data ({problem}): what came before was read"
        for problem in problems
    ]
