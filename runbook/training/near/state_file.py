"""Stores the state of a rank in a file with a header, random states, tensors and a checksum.

    8 bytes      length of the header
    header       JSON: the identity of the state, and the name and size of each tensor
    body         the random states (torch's plain format), then the tensors in order
    32 bytes     sha256 over the header and the sha256 of each block of the body

The body is hashed in blocks, to let multiple threads hash it. Even a truncated file or a single
flipped bit is detected.
"""

import hashlib
import io
import json
import os
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import Any

import torch

from runbook.plan_file.errors import TrainingError
from runbook.training.checkpoints.state import SavedRandomStates
from runbook.training.engines.engine import OwnTensor
from runbook.training.messages import TrainingMessage

BLOCK_BYTES = 64 * 2**20
"""Block size used for hashing, copying from a device and sending."""
LENGTH_BYTES = 8
DIGEST_BYTES = 32
MOST_HEADER_BYTES = 64 * 2**20
"""Largest header, in bytes, read into memory. A header takes about 100 bytes per tensor."""


@dataclass(frozen=True)
class StateHeader:
    """Header in a state file."""

    rank: int
    iteration: int
    lineage: str
    shared_iteration: int
    identity: dict[str, Any]
    """The training run, layout and number format.

    These values must match when the state is loaded.
    """
    progress: dict[str, Any]
    common: dict[str, Any]
    data_cache: dict[str, str]
    random_bytes: int
    tensors: list[list[Any]] = field(default_factory=list)
    """Name and size in bytes for each tensor, in file order."""

    @property
    def body_bytes(self) -> int:
        """Return the number of bytes between the header and the checksum."""
        return self.random_bytes + sum(int(size) for _, size in self.tensors)

    def encoded(self) -> bytes:
        """Return the beginning of the file: the header length, followed by the header."""
        content = json.dumps(asdict(self), sort_keys=True).encode()
        return len(content).to_bytes(LENGTH_BYTES, "big") + content


@dataclass(frozen=True)
class OpenState:
    """A state file after reading the header. The file size matches the header.

    The content is not verified yet.
    """

    path: Path
    header: StateHeader
    start: int
    """Offset of the body."""

    @property
    def file_bytes(self) -> int:
        """Return the size of the whole file in bytes."""
        return self.start + self.header.body_bytes + DIGEST_BYTES

    def fault(self, threads: int) -> str:
        """Return what is wrong with the content, or an empty string if the checksum is correct."""
        try:
            with self.path.open("rb", buffering=0) as stream:
                expected = os.pread(stream.fileno(), DIGEST_BYTES, self.file_bytes - DIGEST_BYTES)
                actual = digest_of(stream.fileno(), self.start, self.header.body_bytes, threads)
        except OSError as error:
            return f"{self.path} cannot be read: {error}"

        if actual != expected:
            return (
                f"{self.path} has checksum {actual.hex()[:16]}..., expected "
                f"{expected.hex()[:16]}... ({self.file_bytes:,} bytes)"
            )

        return ""

    def read_random(self) -> SavedRandomStates:
        """Return the random states."""
        with self.path.open("rb") as stream:
            stream.seek(self.start)
            content = stream.read(self.header.random_bytes)

        return load_plain(content)

    def read_into(self, tensors: Sequence[OwnTensor]) -> None:
        """Read the file into the tensors on this rank.

        Raise `TrainingError` if the file has different tensors.
        """
        shapes = [[own.name, own.tensor.nbytes] for own in tensors]
        if shapes != self.header.tensors:
            raise TrainingError(TrainingMessage.OTHER_TENSORS, path=self.path)
        with self.path.open("rb", buffering=0) as stream:
            offset = self.start + self.header.random_bytes
            for own in tensors:
                for piece in pieces(own.tensor):
                    _read_piece(stream.fileno(), offset, piece)
                    offset += piece.nbytes


def open_state(path: Path) -> OpenState:
    """Read the header of a file. Raise `TrainingError` if it is damaged."""
    try:
        with path.open("rb") as stream:
            size = os.fstat(stream.fileno()).st_size
            length = int.from_bytes(stream.read(LENGTH_BYTES), "big")
            if length > min(size, MOST_HEADER_BYTES):
                raise ValueError("its header is damaged")
            content = json.loads(stream.read(length))

        names = {each.name for each in fields(StateHeader)}
        if not isinstance(content, dict) or set(content) != names:
            raise ValueError("its header has unexpected fields")
        state = OpenState(path, StateHeader(**content), LENGTH_BYTES + length)
        if size != state.file_bytes:
            raise ValueError(f"it has {size:,} bytes, expected {state.file_bytes:,}")
    except (OSError, ValueError, TypeError, RecursionError) as error:
        raise TrainingError(TrainingMessage.STATE_FILE_UNUSABLE, path=path, error=error) from None

    return state


def write_body(
    path: Path,
    header: StateHeader,
    random: bytes,
    tensors: Sequence[OwnTensor],
    threads: int,
) -> None:
    """Write everything except the checksum.

    An existing file is overwritten in place, to reuse its memory pages.
    """
    beginning = header.encoded()
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT, 0o600)
    try:
        write_all(descriptor, memoryview(beginning + random), 0)
        offset = len(beginning) + len(random)
        jobs = []
        for own in tensors:
            for piece in pieces(own.tensor):
                jobs.append((offset, piece))
                offset += piece.nbytes

        _run(threads, lambda job: _write_piece(descriptor, *job), jobs)
        os.ftruncate(descriptor, offset + DIGEST_BYTES)
    finally:
        os.close(descriptor)


def seal(path: Path, header: StateHeader, threads: int) -> None:
    """Write the checksum at the end of a file with a complete body."""
    start = len(header.encoded())
    descriptor = os.open(path, os.O_RDWR)
    try:
        digest = digest_of(descriptor, start, header.body_bytes, threads)
        write_all(descriptor, memoryview(digest), start + header.body_bytes)
    finally:
        os.close(descriptor)


def digest_of(
    descriptor: int,
    start: int,
    body_bytes: int,
    threads: int,
) -> bytes:
    """Compute the checksum for a file with a body that begins at `start`."""

    def block_digest(offset: int) -> bytes:
        size = min(BLOCK_BYTES, start + body_bytes - offset)
        return hashlib.sha256(_read_all(descriptor, size, offset)).digest()

    blocks = range(start, start + body_bytes, BLOCK_BYTES)
    digests = _run(threads, block_digest, blocks)
    return hashlib.sha256(_read_all(descriptor, start, 0) + b"".join(digests)).digest()


def write_all(descriptor: int, content: memoryview, offset: int) -> None:
    """Write bytes to a file at an offset. Linux writes at most 2 GiB per call."""
    while content:
        written = os.pwrite(descriptor, content, offset)
        content = content[written:]
        offset += written


def pieces(tensor: torch.Tensor) -> Iterator[torch.Tensor]:
    """Yield the bytes of a flat tensor, one block at a time."""
    content = tensor.detach().view(-1).view(torch.uint8)
    for start in range(0, len(content), BLOCK_BYTES):
        yield content[start : start + BLOCK_BYTES]


def load_plain(content: bytes) -> SavedRandomStates:
    """Load data written by `torch.save`, but do not run any code it contains."""
    values: SavedRandomStates = torch.load(
        io.BytesIO(content), map_location="cpu", weights_only=True
    )
    return values


def _read_all(descriptor: int, size: int, offset: int) -> bytes:
    content = os.pread(descriptor, size, offset)
    if len(content) != size:
        raise OSError(f"the file ends at byte {offset + len(content):,}")
    return content


def _write_piece(descriptor: int, offset: int, piece: torch.Tensor) -> None:
    write_all(descriptor, piece.cpu().numpy().data, offset)


def _read_piece(descriptor: int, offset: int, piece: torch.Tensor) -> None:
    if piece.device.type == "cpu":
        buffer = piece
    else:
        buffer = torch.empty(piece.shape, dtype=torch.uint8)

    view = buffer.numpy().data
    done = 0
    while done < len(view):
        count = os.preadv(descriptor, [view[done:]], offset + done)
        if not count:
            raise TrainingError(TrainingMessage.STATE_FILE_CUT_SHORT)
        done += count

    if buffer is not piece:
        piece.copy_(buffer)


def _run(threads: int, action: Callable[[Any], Any], items: Sequence[Any]) -> list[Any]:
    """Apply an action to each item, in multiple threads if there is more than one item."""
    if threads == 1 or len(items) < 2:
        return [action(item) for item in items]
    with ThreadPoolExecutor(threads) as pool:
        return list(pool.map(action, items))
