"""Files as clean lines: plain, gzip, xz, bzip2 or zstd; carriage returns, colours and endless lines taken care of."""

from __future__ import annotations

import bz2
import codecs
import gzip
import lzma
import re
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any, cast

from runbook.errors import DataError

CHUNK = 1 << 20
LONGEST = 1 << 20
"""A line longer than this many characters is handed on in pieces, cut at a carriage return where it has one."""
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
        raise DataError(f"{path} does not exist. Give the path of a log file, or the name of a run.") from None
    except IsADirectoryError:
        raise DataError(f"{path} is a folder. Give the log files in it, for example {path}/*.out.") from None
    except OSError as error:
        raise DataError(f"{path} cannot be read: {error.strerror}. Ask its owner, or copy it first.") from error
    with stream:
        head = stream.read(6)
        stream.seek(0)
        if head[:2] == b"\x1f\x8b":
            with gzip.GzipFile(fileobj=stream) as unpacked:
                yield cast("IO[bytes]", unpacked)
        elif head == b"\xfd7zXZ\x00":
            with lzma.LZMAFile(stream) as unpacked:
                yield cast("IO[bytes]", unpacked)
        elif head[:3] == b"BZh":
            with bz2.BZ2File(stream) as unpacked:
                yield cast("IO[bytes]", unpacked)
        elif head[:4] == b"\x28\xb5\x2f\xfd":
            with _open_zstd(path, stream) as unpacked:
                yield unpacked
        else:
            yield stream


def _open_zstd(path: Path, stream: IO[bytes]) -> Any:
    try:
        from backports import zstd
    except ImportError:
        raise DataError(
            f"{path} is zstd and this installation cannot unpack it: "
            f"pip install 'gpt3-runbook[data]', or unpack it first with `zstd -d {path.name}`."
        ) from None
    return zstd.ZstdFile(stream)


def is_binary(head: bytes) -> bool:
    r"""Whether bytes are no text: they hold zeros, or many control characters.

    >>> is_binary(b"iteration 1/ 2 |"), is_binary(b"\x93NUMPY\x01\x00v"), is_binary("é ± 3".encode())
    (False, True, False)
    """
    if head[:2] in (codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE):
        return False
    strange = sum(byte < 32 and byte not in b"\t\n\r\x1b\x08\x0c\x07" for byte in head)
    return b"\0" in head or strange > len(head) // 10


class Text:
    """The text of a stream in chunks."""

    def __init__(self, stream: IO[bytes]) -> None:
        self._stream = stream
        self.problem = ""
        """Why reading stopped before the end, such as compressed data that was cut off."""
        self.head = self._read()
        self.binary = is_binary(self.head[:8192])

    def _read(self) -> bytes:
        try:
            # read1 hands on what could be unpacked before the place where the data is cut off; read would lose it
            return self._stream.read1(CHUNK)  # type: ignore[attr-defined, no-any-return]
        except (EOFError, OSError, lzma.LZMAError, zlib.error) as error:
            self.problem = str(error) or type(error).__name__
        except Exception as error:
            if type(error).__name__ != "ZstdError":  # its class exists only where backports.zstd is installed
                raise
            self.problem = str(error)
        return b""

    def __iter__(self) -> Iterator[str]:
        utf16 = self.head[:2] in (codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)
        name = "utf-16" if utf16 else "utf-8-sig"
        decoder = codecs.getincrementaldecoder(name)("replace")
        data, self.head = self.head, b""
        while data:
            yield decoder.decode(data)
            data = self._read()
        yield decoder.decode(b"", final=True)


def lines_of(chunks: Iterator[str]) -> Iterator[list[str]]:
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
