"""Writes an environment to an archive, and unpacks it while computing the checksum."""

from __future__ import annotations

import contextlib
import hashlib
import io
import os
import shutil
import stat
import subprocess
import tarfile
import tempfile
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import IO

from runbook.packed_environment.contents import PackedEntry, PackedSource
from runbook.packed_environment.relocation import LONGEST_SCRIPT, moved_link, moved_script
from runbook.plan_file.errors import CodedError

ZSTD = "zstd"
UNCOMPRESSED = "none"
SUFFIXES = {ZSTD: ".tar.zst", UNCOMPRESSED: ".tar"}
PIECE = 4 * 2**20
WORDS = 3
"""An error message repeats this many lines from the program output."""
LONGEST_TEXT = 65_536
"""At most this many bytes are read from the program output."""
_C_LOCALE = {**os.environ, "LC_ALL": "C"}


class PackError(CodedError):
    """An archive cannot be written. The message is the reason."""


class ProgramFailed(Exception):
    """A program that unpacks an archive has failed. The message is from the program."""

    def __init__(self, text: str, sha256: str) -> None:
        super().__init__(text)
        self.sha256 = sha256
        """Checksum of the whole archive, which is read to the end despite the error."""


def default_compression() -> str:
    """Return zstd if that program is installed, and otherwise no compression.

    With zstd, the shared file system sends fewer bytes to each node.
    """
    return ZSTD if shutil.which("zstd") else UNCOMPRESSED


def write_archive(
    path: Path,
    entries: Sequence[PackedEntry],
    sources: Sequence[PackedSource],
    compression: str,
    report: Callable[[int], None],
) -> None:
    """Write all entries to a tar file.

    After every thousand entries, call `report` with the number of entries so far.
    """
    with (
        _compressor(path, compression) as stream,
        tarfile.open(fileobj=stream, mode="w|", format=tarfile.GNU_FORMAT) as tar,
    ):
        for number, entry in enumerate(entries, 1):
            _add(tar, entry, sources)
            if number % 1000 == 0:
                report(number)


@contextlib.contextmanager
def _compressor(path: Path, compression: str) -> Iterator[IO[bytes]]:
    with path.open("wb") as target:
        if compression == UNCOMPRESSED:
            yield target
            return

        command = ["zstd", "-q", "-T0", "-3", "-c"]
        with contextlib.ExitStack() as stack:
            stderr = stack.enter_context(_open_stderr())
            process = _start(stack, command, stderr, stdout=target)
            assert process.stdin is not None
            try:
                with contextlib.suppress(BrokenPipeError):  # the message from zstd gives the reason
                    yield process.stdin
            finally:
                with contextlib.suppress(BrokenPipeError):
                    process.stdin.close()
                code = process.wait()
                stderr_text = _first_words(stderr)

        if code:
            raise PackError(f"zstd ended with exit code {code}: {stderr_text}")


def _add(tar: tarfile.TarFile, entry: PackedEntry, sources: Sequence[PackedSource]) -> None:
    info = tarfile.TarInfo(entry.place)
    mode = entry.status.st_mode
    info.mode = stat.S_IMODE(mode) & 0o755 | 0o400
    # A compiled file records when the source was modified
    info.mtime = int(entry.status.st_mtime)
    if stat.S_ISLNK(mode):
        info.type = tarfile.SYMTYPE
        info.linkname = moved_link(entry, sources)
        tar.addfile(info)
    elif stat.S_ISDIR(mode):
        info.type = tarfile.DIRTYPE
        info.mode |= 0o700
        tar.addfile(info)
    elif stat.S_ISREG(mode):
        _add_file(tar, info, entry)
    # Sockets and pipes do not belong to an environment.


def _add_file(tar: tarfile.TarFile, info: tarfile.TarInfo, entry: PackedEntry) -> None:
    is_script = entry.path.startswith("bin/") and entry.status.st_size < LONGEST_SCRIPT
    if is_script:
        content = entry.file.read_bytes()
        content = moved_script(content) or content
        info.size = len(content)
        tar.addfile(info, io.BytesIO(content))
        return

    info.size = entry.status.st_size
    with entry.file.open("rb") as stream:
        tar.addfile(info, stream)


def checksum(path: Path) -> str:
    """Return the sha256 of a file."""
    digest = hashlib.sha256()
    with path.open("rb") as stream:
        while piece := stream.read(PIECE):
            digest.update(piece)

    return digest.hexdigest()


def extract(archive: Path, folder: Path, compression: str) -> str:
    """Unpack an archive into a folder, and return its sha256.

    Each byte is read only once. Raise `ProgramFailed` with the message from tar or zstd. The caller
    then compares checksums first, because the archive may be damaged.
    """
    with contextlib.ExitStack() as stack:
        stream = stack.enter_context(archive.open("rb", buffering=0))
        tar_stderr = stack.enter_context(_open_stderr())
        zstd_stderr = stack.enter_context(_open_stderr())
        tar_command = ["tar", "-x", "-f", "-", "-C", str(folder), "--no-same-owner"]
        tar = _start(stack, tar_command, tar_stderr)
        programs = [tar]
        if compression == ZSTD:
            zstd_command = ["zstd", "-d", "-q", "-c"]
            programs.insert(0, _start(stack, zstd_command, zstd_stderr, stdout=tar.stdin))
            assert tar.stdin is not None
            # Now only zstd holds the pipe open, so the input to tar ends when zstd ends
            tar.stdin.close()

        target = programs[0].stdin
        assert target is not None
        sha256 = _feed(stream, target)
        with contextlib.suppress(BrokenPipeError):
            target.close()
        codes = [program.wait() for program in programs]
        stderr_text = [_first_words(zstd_stderr), _first_words(tar_stderr)]

    if any(codes):
        raise ProgramFailed("; ".join(filter(None, stderr_text)) or f"exit codes {codes}", sha256)
    return sha256


def _open_stderr() -> IO[bytes]:
    """Return a file a program can write errors to.

    The file is in memory if possible, because temporary files are often on the same full disk.
    """
    # Python lacks memfd_create if it was built for a glibc before 2.27
    if hasattr(os, "memfd_create"):
        return os.fdopen(os.memfd_create("stderr"), "w+b")
    return tempfile.TemporaryFile()


def _start(
    stack: contextlib.ExitStack,
    command: list[str],
    stderr: IO[bytes],
    stdout: IO[bytes] | None = None,
) -> subprocess.Popen[bytes]:
    # Use a file: with a pipe, a program that writes an error for each entry would block on the full
    # pipe while we wait for it to read our input
    process = subprocess.Popen(
        command,
        stdin=subprocess.PIPE,
        stdout=stdout,
        stderr=stderr,
        env=_C_LOCALE,
    )
    return stack.enter_context(process)


def _feed(stream: IO[bytes], target: IO[bytes]) -> str:
    """Copy a stream to a pipe, and return the sha256 of the stream, even if the pipe breaks."""
    digest = hashlib.sha256()
    is_taken = True
    while piece := stream.read(PIECE):
        digest.update(piece)
        if is_taken:
            try:
                target.write(piece)
            except BrokenPipeError:
                # The checksum over the whole stream still shows whether it is damaged
                is_taken = False

    return digest.hexdigest()


def _first_words(stderr: IO[bytes]) -> str:
    """Return the first lines from a program's stderr, which was written to this file."""
    stderr.seek(0)
    text = stderr.read(LONGEST_TEXT).decode(errors="replace").strip()
    return " / ".join(text.splitlines()[:WORDS])
