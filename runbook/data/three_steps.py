"""The documents' own way, for those who need its files: extract, concatenate, then tokenize each chunk.

`prepare` does all of it at once and needs none of these files. Here, as there, a step that is interrupted goes on where
it stopped; unlike there, a half-written file never has its final name, and the number of chunks is computed.
"""

from __future__ import annotations

import multiprocessing
import shutil
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ProcessPoolExecutor, as_completed
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from runbook.data.documents import Parser, find_source_key
from runbook.data.inputs import Segment, cut, find_inputs, kind_of, natural
from runbook.data.pool import without_main
from runbook.data.reading import blocks
from runbook.errors import DataError

Tell = Callable[[int, int], None]
"""Called with files done and files in all."""


@dataclass(frozen=True)
class Extracted:
    """What became of one compressed file."""

    path: Path
    documents: int
    dropped: int


def extract(
    inputs: Sequence[Path],
    out: Path,
    *,
    workers: int = 1,
    text_key: str = "text",
    source_key: str = "auto",
    drop_sources: Sequence[str] = (),
    tell: Tell | None = None,
) -> list[Path]:
    """Decompress each .jsonl.* file to a .jsonl in `out`, without documents of `drop_sources`; finished ones are kept.

    The documents' extraction drops RedPajamaBook without saying so; here nothing is dropped unless it is named.
    """
    segments = [segment for shard in cut(find_inputs(inputs), 1 << 62) for segment in shard.segments]
    targets = [out / (Path(segment.path).name.split(".")[0] + ".jsonl") for segment in segments]
    if len(set(targets)) < len(targets):
        doubled = sorted({path.name for path in targets if targets.count(path) > 1})[:5]
        raise DataError(
            f"several inputs would become the same file: {', '.join(doubled)}; extract them to several folders"
        )
    for segment in segments:
        if kind_of(Path(segment.path))[0] != ".jsonl":
            raise DataError(f"{segment.path} is no file of JSON lines; only such are extracted and concatenated")
    if source_key == "auto":
        source_key = find_source_key(segments[0])
    if drop_sources and not source_key:
        raise DataError(f"{segments[0].path} names no source that could be dropped; give --source-key")
    out.mkdir(parents=True, exist_ok=True)
    calls = [
        (_extract_one, (segment, target, text_key, source_key, tuple(drop_sources)))
        for segment, target in zip(segments, targets, strict=True)
        if not _is_done(target, segment)
    ]
    _run(calls, workers, len(segments), tell)
    return targets


def concatenate(
    files: Sequence[Path], out: Path, *, files_per_chunk: int = 800, workers: int = 1, tell: Tell | None = None
) -> list[Path]:
    """Join extracted files to train_chunk_0.jsonl, ... of `files_per_chunk` files each; the last takes what is left.

    59,166 files give 74 chunks of 800, not 72: fewer mean that files are missing.
    """
    if files_per_chunk < 1:
        raise DataError(f"files_per_chunk is {files_per_chunk}: give a number of files of at least 1")
    ordered = sorted(find_inputs(files), key=natural)
    groups = [ordered[start : start + files_per_chunk] for start in range(0, len(ordered), files_per_chunk)]
    targets = [out / f"train_chunk_{number}.jsonl" for number in range(len(groups))]
    if stale := sorted(set(out.glob("train_chunk_*.jsonl")) - set(targets), key=natural):
        raise DataError(
            f"{out} holds {stale[0].name}, but {len(ordered)} files of {files_per_chunk} a chunk give {len(groups)} "
            "chunks: it is left from another run; remove it, or give another folder"
        )
    out.mkdir(parents=True, exist_ok=True)
    calls = [
        (_join_files, (group, target))
        for group, target in zip(groups, targets, strict=True)
        if not (target.exists() and target.stat().st_size == _joined_size(group))
    ]
    _run(calls, workers, len(groups), tell)
    return targets


def _extract_one(segment: Segment, target: Path, text_key: str, source_key: str, drop: tuple[str, ...]) -> Extracted:
    """One file, block by block; a record that cannot be read stops it, as nothing may be lost here unseen."""
    parser = Parser(text_key, source_key if drop else "")
    part = target.with_name(target.name + ".part")
    documents = dropped = 0
    with part.open("wb") as file:
        for offset, data in blocks(segment):
            if not drop:
                file.write(data)
                continue
            for start, line in _lines(bytes(data)):
                batch = next(parser.parse(line, segment.path, offset + start))
                if batch.bad:
                    bad = batch.bad[0]
                    raise DataError(f"{bad.file}, byte {bad.offset}: {bad.reason}")
                if batch.sources and batch.sources[0] in drop:
                    dropped += 1
                else:
                    file.write(line)
                    documents += 1
    _done(target).write_text(_said(segment))
    part.rename(target)
    return Extracted(target, documents, dropped)


def _lines(data: bytes) -> list[tuple[int, bytes]]:
    """Lines with their offsets, cut at newlines only: a U+2028 inside a text is no end of line."""
    found, start = [], 0
    while start < len(data):
        end = data.find(b"\n", start) + 1 or len(data)
        found.append((start, data[start:end]))
        start = end
    return found


def _done(target: Path) -> Path:
    return target.with_name(target.name + ".from")


def _said(segment: Segment) -> str:
    return f"{segment.path} {segment.size} {segment.mtime_ns}\n"


def _is_done(target: Path, segment: Segment) -> bool:
    return target.exists() and _done(target).exists() and _done(target).read_text() == _said(segment)


def _joined_size(group: list[Path]) -> int:
    return sum(path.stat().st_size + (not _ends_with_newline(path)) for path in group)


def _ends_with_newline(path: Path) -> bool:
    with path.open("rb") as file:
        file.seek(-1, 2)
        return file.read(1) == b"\n"


def _join_files(group: list[Path], target: Path) -> Path:
    part = target.with_name(target.name + ".part")
    with part.open("wb") as file:
        for path in group:
            with path.open("rb") as source:
                shutil.copyfileobj(source, file, 4 << 20)
            if not _ends_with_newline(path):
                file.write(b"\n")
    part.rename(target)
    return target


def _run(calls: list[tuple[Callable[..., Any], tuple[Any, ...]]], workers: int, total: int, tell: Tell | None) -> None:
    """All calls, in processes of their own; the first error stops the rest."""
    done = total - len(calls)
    if tell is not None:
        tell(done, total)
    if workers == 1 or len(calls) < 2:
        for function, arguments in calls:
            function(*arguments)
            done += 1
            if tell is not None:
                tell(done, total)
        return
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(min(workers, len(calls)), mp_context=context) as pool, without_main():
        futures: list[Future[Any]] = [pool.submit(function, *arguments) for function, arguments in calls]
        try:
            for future in as_completed(futures):
                future.result()
                done += 1
                if tell is not None:
                    tell(done, total)
        except BrokenProcessPool:
            raise DataError("a worker died (out of memory?); finished files are kept, run again to go on") from None
        except BaseException:
            pool.shutdown(wait=True, cancel_futures=True)
            raise
