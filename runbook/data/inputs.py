"""Which files are read, in which order, and how they are cut into shards."""

from __future__ import annotations

import hashlib
import itertools
import re
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import astuple, dataclass
from pathlib import Path

from runbook.errors import DataError

LINES = (".jsonl", ".ndjson", ".json")
COMPRESSIONS = (".zst", ".gz", ".xz")
KINDS = (*LINES, ".txt", ".parquet")
MAX_SHARDS = 20_000
MANY_SHARDS = 48
"""A smaller input is cut into about so many, so that workers end at about the same time; but not below SMALL_SHARD."""

SMALL_SHARD = 4_000_000
_EXPANSION = {".zst": 3.0, ".gz": 3.0, ".xz": 3.5, ".parquet": 2.5, "": 1.0}
"""Text in a byte of file, for estimates; measured on English at the compressors' usual levels."""


@dataclass(frozen=True)
class Segment:
    """The lines of a file that begin in [start, end); the whole file where it cannot be cut."""

    path: str
    start: int
    end: int
    size: int
    mtime_ns: int

    @property
    def whole(self) -> bool:
        """Nothing of the file lies outside."""
        return self.start == 0 and self.end == self.size


@dataclass(frozen=True)
class Shard:
    """A unit of work: done, or not done."""

    number: int
    segments: tuple[Segment, ...]

    @property
    def bytes(self) -> int:
        """Bytes of file."""
        return sum(segment.end - segment.start for segment in self.segments)

    def fingerprint(self, choices: str) -> str:
        """Changes when any of its files or the choices change."""
        words = repr([astuple(segment) for segment in self.segments]) + choices
        return hashlib.sha256(words.encode()).hexdigest()

    def describe(self) -> str:
        """Its files in words, for errors."""
        first = self.segments[0]
        cut = "" if first.whole else f" (bytes {first.start} to {first.end})"
        more = f" and {len(self.segments) - 1} more files" if len(self.segments) > 1 else ""
        return f"shard {self.number}: {first.path}{cut}{more}"


def kind_of(path: Path) -> tuple[str, str]:
    """What a file holds and how it is compressed, by its name.

    >>> kind_of(Path("a/b.jsonl.zst")), kind_of(Path("b.txt")), kind_of(Path("b.json.gz"))
    (('.jsonl', '.zst'), ('.txt', ''), ('.jsonl', '.gz'))
    """
    name = path.name.lower()
    compression = next((each for each in COMPRESSIONS if name.endswith(each)), "")
    kind = next((each for each in KINDS if name.removesuffix(compression).endswith(each)), "")
    if not kind or (kind == ".parquet" and compression):
        endings = ", ".join(KINDS)
        raise DataError(
            f"{path}: its name does not say what it holds. Known: {endings}, "
            f"each (Parquet excepted) also with {', '.join(COMPRESSIONS)}. Rename the file."
        )
    return (".jsonl" if kind in LINES else kind), compression


def natural(path: Path) -> list[tuple[int, int | str]]:
    """Sorting key that puts chunk_2 before chunk_10."""
    return [(0, int(part)) if part.isdigit() else (1, part) for part in re.split(r"(\d+)", str(path)) if part]


def find_inputs(inputs: Sequence[Path], pattern: str = "*") -> list[Path]:
    """The files of the given files and folders, in the given order, a folder's own in natural order.

    A folder gives the .jsonl, .ndjson, .txt and .parquet files under it (compressed ones too) that match `pattern`;
    .json files must be named, because manifests are such. What is missing is an error: nothing is left out silently.
    """
    files: list[Path] = []
    for each in inputs:
        if each.is_dir():
            files += _in_folder(each, pattern)
        elif each.exists():
            kind_of(each)
            files.append(each)
        else:
            raise DataError(f"input {each} does not exist. Check the path, or download the dataset first.")
    if not files:
        raise DataError("no input: name at least one file or folder")
    times = Counter(str(file.resolve()) for file in files)
    if doubled := [path for path, count in times.items() if count > 1]:
        raise DataError(
            f"named more than once: {', '.join(doubled[:5])}. Its documents would be trained on twice; name it once."
        )
    return files


def _in_folder(folder: Path, pattern: str) -> list[Path]:
    found = []
    root = folder.resolve()
    for path in sorted(folder.rglob(pattern), key=natural):
        if not path.is_file() and not path.is_symlink():
            continue
        try:
            kind, _ = kind_of(path)
        except DataError:
            continue
        if kind == ".jsonl" and ".json" in [suffix.lower() for suffix in path.suffixes]:
            continue
        if not path.resolve().is_relative_to(root):
            raise DataError(
                f"{path} leads out of {folder}, to {path.resolve()}. Name that file itself as an input, "
                "or take the link away."
            )
        if not path.exists():
            raise DataError(f"{path} is a link to nothing; restore the file, or take the link away")
        found.append(path)
    if not found:
        raise DataError(
            f"{folder} holds no {', '.join(KINDS)} file (or one with {', '.join(COMPRESSIONS)}) matching {pattern!r}"
        )
    return found


def inside(folder: Path, name: str) -> Path:
    """The path of a listed file below a folder; a name that leaves the folder is an error.

    >>> inside(Path("/data"), "../etc/passwd")
    Traceback (most recent call last):
    ...
    runbook.errors.DataError: '../etc/passwd' leaves the folder /data; a listed file must lie below it: correct the list
    """
    parts = Path(name).parts
    path = folder / name
    if not parts or Path(name).is_absolute() or ".." in parts or "\\" in name or "\x00" in name:
        raise DataError(f"{name!r} leaves the folder {folder}; a listed file must lie below it: correct the list")
    if not path.parent.resolve().is_relative_to(folder.resolve()):
        raise DataError(f"{name!r} leaves the folder {folder} through a link; a listed file must lie below it")
    return path


def cut(files: Iterable[Path], shard_bytes: int, *, empty: bool = False) -> list[Shard]:
    """Shards of about `shard_bytes` of text, in the files' order: small files together, big plain ones cut at newlines.

    A compressed file is never cut. The same files give the same shards, whatever the number of workers. An empty file
    is refused at once, or, where `empty` is given, when it is read, as every other that cannot be.
    """
    whole = [_segment(path, empty) for path in files]
    shard_bytes = max(shard_bytes, int(sum(text_estimate(each) for each in whole)) // MAX_SHARDS)
    shards: list[Shard] = []
    waiting: list[Segment] = []
    weight = 0.0

    def close() -> None:
        nonlocal weight
        if waiting:
            shards.append(Shard(len(shards), tuple(waiting)))
            waiting.clear()
            weight = 0.0

    for segment in whole:
        for piece in _pieces(segment, shard_bytes):
            estimate = text_estimate(piece)
            if weight + estimate > shard_bytes:
                close()
            waiting.append(piece)
            weight += estimate
    close()
    return shards


def shard_size(files: Iterable[Path], most: int) -> int:
    """Bytes of text for a shard: at most as asked, less where the whole input is small. The same for the same files."""
    total = sum(text_estimate(_segment(path, True)) for path in files)
    return min(most, max(SMALL_SHARD, int(total) // MANY_SHARDS))


def text_estimate(segment: Segment) -> float:
    """Bytes of text expected in a segment."""
    kind, compression = kind_of(Path(segment.path))
    return (segment.end - segment.start) * _EXPANSION[compression or (kind if kind == ".parquet" else "")]


def _segment(path: Path, empty: bool) -> Segment:
    try:
        status = path.stat()
    except OSError as error:
        raise DataError(f"input {path} cannot be read: {error.strerror}") from None
    if status.st_size == 0 and not empty:
        raise DataError(f"input {path} is empty (0 bytes): a download that failed? Fetch it again, or do not name it.")
    return Segment(str(path.resolve()), 0, status.st_size, status.st_size, status.st_mtime_ns)


def _pieces(segment: Segment, shard_bytes: int) -> list[Segment]:
    if kind_of(Path(segment.path)) != (".jsonl", "") or segment.size <= shard_bytes * 3 // 2:
        return [segment]
    count = -(-segment.size // shard_bytes)
    borders = [segment.size * number // count for number in range(count + 1)]
    return [
        Segment(segment.path, start, end, segment.size, segment.mtime_ns) for start, end in itertools.pairwise(borders)
    ]
