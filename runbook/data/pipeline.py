"""Text to .bin/.idx in one go: plan the shards, make what is missing, index, prove, write the manifest."""

from __future__ import annotations

import hashlib
import json
import logging
import os
import shutil
import time
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path

from runbook.data.committer import Committer, PartKeeper
from runbook.data.documents import find_source_key
from runbook.data.encoders import use_one_thread
from runbook.data.indexed import DTYPES, dtype_code, write_index
from runbook.data.inputs import Shard, cut, find_inputs, shard_size, text_estimate
from runbook.data.locking import held, shared
from runbook.data.manifest import Manifest, finished, write_manifest
from runbook.data.marks import Marks, sync
from runbook.data.options import Output, TokenizeOptions
from runbook.data.pool import Pool
from runbook.data.reporting import Callback, Display
from runbook.data.shard import Counts, ShardMaker
from runbook.data.tokenizer import Tokenizer, load_tokenizer
from runbook.data.worker import disk_error, make_shard, throttled
from runbook.errors import DataError
from runbook.units import show_bytes

_log = logging.getLogger(__name__)

BIN_BYTES_PER_TEXT_BYTE = 0.7
"""Two bytes for each 3.1 bytes of text (technical English, the densest measured), and the index."""


def prepare(
    inputs: Sequence[Path], prefix: Path, options: TokenizeOptions | None = None, *, progress: Callback | None = None
) -> Manifest:
    """Tokenize files and folders to PREFIX_text_document.bin and .idx, byte for byte as Megatron's preprocess_data.py.

    Nothing is done twice: finished work is recognised by its manifest, unfinished work goes on at the first missing
    shard. Interrupted at any moment and called again, it gives the same bytes.

    Raises:
        DataError: input missing or broken, tokenizer unusable, disk full; finished shards are kept.
        HeldError: another process is tokenizing to this prefix.
    """
    options = options or TokenizeOptions()
    work = _Job(list(inputs), Output(Path(prefix)), options, progress)
    done = finished(prefix, work.fingerprint)
    if done is not None:
        return work.say_done(done)
    try:
        with held(work.output):
            return work.run()
    except OSError as error:
        raise disk_error(error, work.output) from error


def prepare_share(
    inputs: Sequence[Path],
    prefix: Path,
    share: tuple[int, int],
    options: TokenizeOptions | None = None,
    *,
    progress: Callback | None = None,
) -> tuple[int, int]:
    """One job of an array: tokenize every n-th shard to a part; how many were made, and how many the share has.

    `share` is (index, count), the index from 0. Any number of jobs may run at once, on any number of nodes that see the
    same folder, and come back in any other number; `prepare` with the same arguments joins the parts afterwards.

    Raises:
        DataError: as `prepare`.
        HeldError: a run that joins is at work, or another job has this share.
    """
    index, count = share
    if not 0 <= index < count:
        raise DataError(f"share {index}/{count}: the index counts from 0 and must be below the number of jobs")
    work = _Job(list(inputs), Output(Path(prefix)), options or TokenizeOptions(), progress)
    try:
        with shared(work.output, f"share-{index}-of-{count}"):
            return work.run_share(index, count)
    except OSError as error:
        raise disk_error(error, work.output) from error


class _Job:
    """One call of prepare()."""

    def __init__(self, inputs: list[Path], output: Output, options: TokenizeOptions, progress: Callback | None) -> None:
        self.output = output
        self._began = time.monotonic()
        self._encoder = ""
        self._options = options
        self._progress = progress
        files = find_inputs(inputs)
        size = shard_size(files, options.shard_bytes)
        self._shards = cut(files, size, empty=options.bad_records != "stop")
        self._workers = options.workers or _cores()
        first = self._shards[0].segments[0]
        self._source_key = find_source_key(first) if options.source_key == "auto" else options.source_key
        self._choices = json.dumps([options.choices(), _tokenizer_sums(options.tokenizer)], sort_keys=True)
        whole = hashlib.sha256()
        for file in self._files():
            whole.update(repr(file).encode())
        whole.update(self._choices.encode())
        self.fingerprint = whole.hexdigest()
        self._committer = Committer(output, self._shards, self._choices)
        self._display = Display(self._shards, self._committer, progress, self._began)

    def say_done(self, manifest: Manifest) -> Manifest:
        """Report finished work as such."""
        shutil.rmtree(self.output.parts, ignore_errors=True)
        self._display.say_done(manifest)
        return Manifest(**{**vars(manifest), "reused": True})

    def run(self) -> Manifest:
        """Do what is missing."""
        todo = self._committer.resume(lambda _: self._display.tell("resume"))
        reused = len(self._shards) - len(todo)
        self._display.reused = reused
        if reused:
            _log.info("%s: %d of %d shards are done from an earlier run", self.output.base, reused, len(self._shards))
        if self._options.check_space:
            self._refuse_small_disk(self._shards)
        self.output.manifest.unlink(missing_ok=True)  # from here on the prefix is unfinished
        tokenizer = self._make([self._shards[number] for number in todo])
        self._display.tell("index", force=True)
        manifest = self._close(tokenizer, reused)
        self._display.say_done(manifest)
        return manifest

    def run_share(self, index: int, count: int) -> tuple[int, int]:
        """Make what is missing of one share; the work stays unfinished."""
        keeper = PartKeeper(self.output, self._shards, self._choices)
        missing = keeper.missing(index, count)
        self._committer, self._display = keeper, Display(missing, keeper, self._progress, self._began)
        if missing:
            if self._options.check_space:
                self._refuse_small_disk(missing)
            self.output.manifest.unlink(missing_ok=True)
            self._make(missing)
        return len(missing), len(range(index, len(self._shards), count))

    def _make(self, shards: list[Shard]) -> Tokenizer:
        """Tokenize shards, in this process where one worker is enough, else in several."""
        self._display.workers = min(self._workers, max(1, len(shards)))
        if self._display.workers > 1:
            with Pool(self.output, self._options, self._source_key, self._committer, self._display.workers) as pool:
                tokenizer = self._load_tokenizer("tokenizers")  # only looked at here, and sooner there than a fast one
                self._display.pool = pool
                pool.run(shards, lambda: self._display.tell("tokenize"))
                self._encoder = pool.encoder
            return tokenizer
        tokenizer = self._load_tokenizer(self._options.encoder)
        self._encoder = tokenizer.encoder.name
        maker = ShardMaker(tokenizer, self._options, self._source_key, throttled(self._display.take))
        for shard in shards:
            fingerprint = self._committer.fingerprint(shard.number)
            self._committer.finished(make_shard(maker, shard, fingerprint, self.output, self._committer))
            self._display.snapshot = None
            self._commit()
        self._commit()
        return tokenizer

    def _commit(self) -> None:
        while self._committer.step():
            self._display.tell("tokenize")

    def _load_tokenizer(self, encoder: str) -> Tokenizer:
        options = self._options
        use_one_thread()
        tokenizer = load_tokenizer(options.tokenizer, special_tokens=options.special_tokens, encoder=encoder)
        if options.append_eod:
            tokenizer.end_of_document(options.eod_token)  # refuse a tokenizer without one before the work, not after
        return tokenizer

    def _refuse_small_disk(self, shards: list[Shard]) -> None:
        text = sum(text_estimate(segment) for shard in shards for segment in shard.segments)
        needed = int(text * BIN_BYTES_PER_TEXT_BYTE) - self._committer.length
        free = shutil.disk_usage(self.output.base.parent).free
        if needed > free:
            raise DataError(
                f"about {show_bytes(needed)} are needed below {self.output.base.parent} and {show_bytes(free)} are "
                "free. Make room, or give a prefix on a larger disk; --no-check-space begins all the same."
            )

    def _close(self, tokenizer: Tokenizer, reused: int) -> Manifest:
        """Index, renames, manifest; the order lets an interruption anywhere be mended by a second run."""
        output, committer = self.output, self._committer
        self._refuse_nothing()
        marks = Marks(output)
        code = dtype_code(tokenizer.vocabulary)
        os.truncate(output.bin_part, committer.length)
        with output.idx_part.open("w+b") as file:
            sequences, documents = write_index(
                file, code, lambda: (mark.piece for mark in marks.read_all(len(self._shards)))
            )
            file.seek(0)
            idx_sha256 = hashlib.file_digest(file, "sha256").hexdigest()
        assert (sequences, documents) == (committer.totals.sequences, committer.totals.documents)
        self._join_quarantine(marks)
        for path in (output.bin_part, output.idx_part):
            sync(path)
        output.idx_part.rename(output.idx)
        output.bin_part.rename(output.bin)
        manifest = self._manifest(tokenizer, DTYPES[code], idx_sha256, reused)
        write_manifest(output.prefix, manifest)
        sync(output.manifest)
        shutil.rmtree(output.parts)
        return manifest

    def _refuse_nothing(self) -> None:
        """An input without a single token is a mistake: a wrong key, a wrong folder, files that are all broken."""
        totals = self._committer.totals
        if totals.tokens:
            return
        shutil.rmtree(self.output.parts)
        self.output.bin_part.unlink(missing_ok=True)
        why = "".join(f"\n  {problem}" for problem in self._committer.problems[:5])
        raise DataError(
            f"the input holds no text: {totals.records:,} records read, {totals.skipped_records:,} of them bad, "
            f"{totals.dropped:,} left out by choice, {totals.empty:,} empty; {totals.skipped_files:,} files could not "
            f"be read.{why}\nNothing was written. Look at the input, the text key and the choice of sources."
        )

    def _join_quarantine(self, marks: Marks) -> None:
        output = self.output
        part = output.quarantine.with_name(output.quarantine.name + ".part")
        output.quarantine.unlink(missing_ok=True)
        if self._options.bad_records != "quarantine":
            return
        with part.open("wb") as target:
            for shard in self._shards:
                path = marks.path(shard.number, "quarantine")
                if path.exists():
                    with path.open("rb") as source:
                        shutil.copyfileobj(source, target)
        part.rename(output.quarantine)

    def _manifest(self, tokenizer: Tokenizer, dtype: str, idx_sha256: str, reused: int) -> Manifest:
        import numpy as np

        options, committer, totals = self._options, self._committer, self._committer.totals
        eod = tokenizer.end_of_document(options.eod_token) if options.append_eod else None
        wall = time.monotonic() - self._began
        return Manifest(
            fingerprint=self.fingerprint,
            inputs=[{"path": path, "bytes": size, "mtime_ns": mtime} for path, size, mtime in self._files()],
            options=options.choices() | {"source_key": self._source_key},
            tokenizer={
                "name": tokenizer.name,
                "vocabulary": tokenizer.vocabulary,
                "sha256": tokenizer.sha256,
                "encoder": self._encoder,
                "judge": tokenizer.judge.name,
                "end_of_document": eod,
            },
            dtype=np.dtype(dtype).name,
            end_of_document_tokens=totals.sequences if options.append_eod else 0,
            problems=committer.problems,
            sources={
                name: dict(zip(("documents", "text_bytes", "tokens"), values, strict=True))
                for name, values in sorted(totals.sources.items())
            },
            files={
                "bin": {"name": self.output.bin.name, "bytes": committer.length, "sha256": committer.sha256},
                "idx": {"name": self.output.idx.name, "bytes": self.output.idx.stat().st_size, "sha256": idx_sha256},
            },
            shards=[
                dict(zip(("offset", "bytes", "documents", "tokens"), span, strict=True)) for span in committer.spans
            ],
            seconds={"wall": wall} | totals.seconds,
            rates=_rates(totals, wall, self._display.text_done()),
            speed=self._display.speed,
            workers=self._display.workers,
            made=datetime.now(UTC).isoformat(timespec="seconds"),
            versions=_versions(),
            reused_shards=reused,
            **{name: getattr(totals, name) for name in _SUMS},
        )

    def _files(self) -> list[tuple[str, int, int]]:
        seen = {}
        for shard in self._shards:
            for segment in shard.segments:
                seen[segment.path] = (segment.path, segment.size, segment.mtime_ns)
        return list(seen.values())


_SUMS = (
    *("documents", "empty", "sequences", "tokens", "text_bytes", "records", "skipped_records", "skipped_files"),
    *("dropped", "blank_lines", "judged", "lengths"),
)


def _cores() -> int:
    """Cores this process may use (a job often gets fewer than the node has)."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def _rates(totals: Counts, wall: float, text_now: int) -> dict[str, float]:
    rates = {"wall": text_now / wall / 1e6}
    for stage, seconds in totals.seconds.items():
        if seconds > 0:
            rates[stage] = totals.text_bytes / seconds / 1e6
    return {name: round(value, 1) for name, value in rates.items()}


def _tokenizer_sums(name: str) -> str:
    """Checksum of a tokenizer's file; gpt2 is the same everywhere."""
    path = Path(name).expanduser()
    path = path / "tokenizer.json" if path.is_dir() else path
    if name == "gpt2" or not path.is_file():
        return name  # load_tokenizer says what is wrong with a missing one
    return hashlib.sha256(path.read_bytes()).hexdigest()


def _versions() -> dict[str, str]:
    import platform
    from importlib.metadata import PackageNotFoundError, version

    found = {"python": platform.python_version()}
    for package in ("gpt3-runbook", "fastokens", "tokenizers", "msgspec", "backports.zstd", "numpy"):
        try:
            found[package] = version(package)
        except PackageNotFoundError:
            continue
    return found
