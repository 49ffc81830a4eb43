"""An .xz file as a stream: every one of its parts, and an error where one of them is damaged.

Python's own LZMAFile takes a damaged beginning of a second part for the end of the file and says nothing, so that the
rest of the text would be lost.
"""

from __future__ import annotations

import io
import lzma
from typing import IO

CHUNK = 128 << 10


class XzStream(io.RawIOBase):
    """Decompresses one xz stream after the other; zero bytes between them are padding."""

    def __init__(self, file: IO[bytes]) -> None:
        self._file = file
        self._decoder = lzma.LZMADecompressor(lzma.FORMAT_AUTO)

    def readable(self) -> bool:
        """It is."""
        return True

    def readinto(self, buffer: memoryview) -> int:  # type: ignore[override]
        """Fill some of the buffer; 0 only at the end of a whole file."""
        while True:
            data = self._next_input()
            if data is None:
                return 0
            found = self._decoder.decompress(data, len(buffer))
            if found:
                buffer[: len(found)] = found
                return len(found)

    def _next_input(self) -> bytes | None:
        """Compressed bytes for the decoder, a new one where the last is done; None at the end of the file."""
        if not self._decoder.eof:
            if not self._decoder.needs_input:
                return b""
            data = self._file.read(CHUNK)
            if not data:
                raise EOFError("the file ends inside a compressed stream")
            return data
        data = self._decoder.unused_data.lstrip(b"\0")
        while not data:
            chunk = self._file.read(CHUNK)
            if not chunk:
                return None
            data = chunk.lstrip(b"\0")
        self._decoder = lzma.LZMADecompressor(lzma.FORMAT_XZ)
        return data
