"""The documents' own way, for those who need its files: extract, concatenate, then tokenize each chunk.

`prepare` does all of it at once and needs none of these files. Here, as there, a step that is interrupted goes on where
it stopped; unlike in the documents, a half-written file never has its final name, and the number of chunks is computed.
"""

import contextlib
import io
import multiprocessing
import shutil
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from concurrent.futures.process import BrokenProcessPool
from pathlib import Path
from typing import Any, BinaryIO

from runbook.core.errors import DataError
from runbook.tokens.pipeline.worker_pool import without_main
from runbook.tokens.sources.documents import Parser, find_source_key
from runbook.tokens.sources.input_files import Segment, find_inputs, kind_of, natural_key, read_blocks, whole_files

Call = tuple[Any, ...]
"""A function and its arguments."""
FilesCallback = Callable[[int, int], None]
"""Called with files done and files in all."""


def extract(
    inputs: Sequence[Path],
    out: Path,
    *,
    workers: int = 1,
    text_key: str = "text",
    source_key: str = "auto",
    drop_sources: Sequence[str] = (),
    progress: FilesCallback | None = None,
) -> list[Path]:
    """Decompress each .jsonl.* file to a .jsonl in `out`, without documents of `drop_sources`; finished ones are kept.

    The documents' extraction drops RedPajamaBook without saying so; here nothing is dropped unless it is named.
    """
    segments = whole_files(find_inputs(inputs))
    targets = [out / (Path(segment.path).name.split(".")[0] + ".jsonl") for segment in segments]
    if doubled := [path.name for path, count in Counter(targets).items() if count > 1]:
        names = ", ".join(sorted(doubled)[:5])
        raise DataError(f"several inputs would become the same file: {names}; extract them to several folders")
    for segment in segments:
        if kind_of(Path(segment.path))[0] != ".jsonl":
            raise DataError(f"{segment.path} is no file of JSON lines; only such are extracted and concatenated")
    if source_key == "auto":
        source_key = find_source_key(segments[0])
    if drop_sources and not source_key:
        raise DataError(f"{segments[0].path} names no source that could be dropped; give --source-key")
    out.mkdir(parents=True, exist_ok=True)
    calls = [
        (_extract_file, segment, target, text_key, source_key, tuple(drop_sources))
        for segment, target in zip(segments, targets, strict=True)
        if not (target.exists() and _origin(target).exists() and _origin(target).read_text() == _description(segment))
    ]
    _run(calls, workers, len(segments), progress)
    return targets


def concatenate(
    files: Sequence[Path],
    out: Path,
    *,
    files_per_chunk: int = 800,
    workers: int = 1,
    progress: FilesCallback | None = None,
) -> list[Path]:
    """Join extracted files to train_chunk_0.jsonl, ... of `files_per_chunk` files each; the last takes what is left.

    59,166 files give 74 chunks of 800, not 72: fewer mean that files are missing.
    """
    if files_per_chunk < 1:
        raise DataError(f"files_per_chunk is {files_per_chunk}: give a number of files of at least 1")
    ordered = sorted(find_inputs(files), key=natural_key)
    groups = [ordered[start : start + files_per_chunk] for start in range(0, len(ordered), files_per_chunk)]
    targets = [out / f"train_chunk_{number}.jsonl" for number in range(len(groups))]
    if stale := sorted(set(out.glob("train_chunk_*.jsonl")) - set(targets), key=natural_key):
        raise DataError(
            f"{out} holds {stale[0].name}, but {len(ordered)} files of {files_per_chunk} a chunk give {len(groups)} "
            "chunks: it is left from another run; remove it, or give another folder"
        )
    out.mkdir(parents=True, exist_ok=True)
    calls = [
        (_join_files, group, target)
        for group, target in zip(groups, targets, strict=True)
        if not target.exists()
        or target.stat().st_size != sum(path.stat().st_size + (not _ends_with_newline(path)) for path in group)
    ]
    _run(calls, workers, len(groups), progress)
    return targets


def _extract_file(segment: Segment, target: Path, text_key: str, source_key: str, drop: tuple[str, ...]) -> None:
    """Extract block by block; a record that cannot be read stops it, as nothing may be lost here unseen."""
    parser = Parser(text_key, source_key if drop else "")
    with _written_beside(target) as file:
        for offset, data in read_blocks(segment):
            if not drop:
                file.write(data)
                continue
            for line in io.BytesIO(data):
                batch = parser.parse(line, segment.path, offset)
                if batch.bad:
                    bad = batch.bad[0]
                    raise DataError(f"{bad.file}, byte {bad.offset}: {bad.reason}")
                if not batch.sources or batch.sources[0] not in drop:
                    file.write(line)
                offset += len(line)
        _origin(target).write_text(_description(segment))


@contextlib.contextmanager
def _written_beside(target: Path) -> Iterator[BinaryIO]:
    """A file beside its place, renamed there at the end; not synced, as it can be made again."""
    part = target.with_name(target.name + ".part")
    with part.open("wb") as file:
        yield file
    part.rename(target)


def _origin(target: Path) -> Path:
    """Where it is written down what an extracted file was made from."""
    return target.with_name(target.name + ".from")


def _description(segment: Segment) -> str:
    return f"{segment.path} {segment.size} {segment.mtime_ns} {segment.sample}\n"


def _ends_with_newline(path: Path) -> bool:
    with path.open("rb") as file:
        file.seek(-1, 2)
        return file.read(1) == b"\n"


def _join_files(group: list[Path], target: Path) -> None:
    with _written_beside(target) as file:
        for path in group:
            with path.open("rb") as source:
                shutil.copyfileobj(source, file, 4 << 20)
            if not _ends_with_newline(path):
                file.write(b"\n")


def _run(calls: list[Call], workers: int, total: int, progress: FilesCallback | None) -> None:
    """All calls, in processes of their own; the first error stops the rest."""
    report = progress or (lambda done, total: None)
    done = total - len(calls)
    report(done, total)
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(max(1, min(workers, len(calls))), mp_context=context) as pool, without_main():
        futures = [pool.submit(function, *arguments) for function, *arguments in calls]
        try:
            for number, future in enumerate(as_completed(futures), 1):
                future.result()
                report(done + number, total)
        except BrokenProcessPool:
            raise DataError("a worker died (out of memory?); finished files are kept, run again to go on") from None
        except BaseException:
            pool.shutdown(wait=True, cancel_futures=True)
            raise
