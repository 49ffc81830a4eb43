"""Converts text to .bin and .idx files: tokenizes missing shards, writes the index and verifies."""

import contextlib
import hashlib
import itertools
import json
import logging
import os
import platform
import shutil
import time
from collections.abc import Sequence
from dataclasses import fields, replace
from datetime import UTC, datetime
from pathlib import Path

import numpy as np

from runbook.core.errors import DataError, HeldError
from runbook.core.files import replacing, sha256_of, write_text
from runbook.core.units import show_bytes
from runbook.plan_file.token_index import DTYPES, dtype_code, token_bytes
from runbook.tokens.indexed_files import read_header, write_index
from runbook.tokens.messages import TokenMessage
from runbook.tokens.package_versions import package_version
from runbook.tokens.pipeline.amount_done import ProgressCallback, ProgressReporter
from runbook.tokens.pipeline.bin_writer import Committer, PartCommitter, ShardSink
from runbook.tokens.pipeline.parts_folder import (
    PartsFolder,
    hold_prefix,
    hold_share,
    remove_unused,
)
from runbook.tokens.pipeline.shard import ShardMaker
from runbook.tokens.pipeline.tokenize_options import (
    Counts,
    Manifest,
    TokenFiles,
    TokenizeOptions,
    read_manifest,
)
from runbook.tokens.sources.documents import DocumentBatch, Parser, find_source_key, read_documents
from runbook.tokens.sources.fixed_text import load_ftfy
from runbook.tokens.sources.input_files import (
    Shard,
    cut_shards,
    decompression_errors,
    expansion,
    find_inputs,
    text_estimate,
)
from runbook.tokens.tokenizer import Tokenizer, load_tokenizer, tokenizer_path, use_one_thread

BIN_BYTES_PER_TEXT_BYTE = 0.7
"""Estimated output (.bin and .idx) in bytes per byte of text, used if no text could be read.

The ratio allows for two bytes per 3.1 bytes of text (technical English), and for the index.
"""
AMPLE_ROOM = 32
"""If the free space is more than this many times the first estimate, the estimate is not refined.

A better estimate would need some text to be encoded, and that took 0.2 s. Plain text needs at most
3 times the first estimate.
"""
BYTES_PER_DOCUMENT = 24
"""Bytes needed per document: 20 in the .idx and 4 in a done marker.

The .idx stores the document length, place and number. The done marker exists until everything is
done.
"""
SAMPLE = 200_000
"""Number of characters to encode from each sampled piece."""
_log = logging.getLogger(__name__)


def prepare(
    inputs: Sequence[Path],
    prefix: Path,
    options: TokenizeOptions | None = None,
    *,
    progress: ProgressCallback | None = None,
) -> Manifest:
    """Tokenize files and folders to PREFIX_text_document.bin and .idx.

    The files are byte-identical to what preprocess_data.py from Megatron writes.

    No work is repeated: finished work is recognized by its manifest, and unfinished work continues
    at the first missing shard. If this function is interrupted at any time and called again, the
    result is the same.

    Raises:
        DataError: input missing or broken, tokenizer unusable, disk full; finished shards are kept.
        HeldError: another process is tokenizing to this prefix.
    """
    job = _Job(inputs, TokenFiles(Path(prefix)), options or TokenizeOptions(), progress)
    manifest = finished_manifest(prefix, job.fingerprint)
    try:
        if manifest is None:
            with hold_prefix(job.files):
                # Another process may have finished the work between the check and the lock.
                manifest = finished_manifest(prefix, job.fingerprint)
                if manifest is None:
                    return _run_and_tidy(job)
    except OSError as error:
        raise _disk_error(error, job.files) from error

    return job.report_finished(manifest)


def prepare_share(
    inputs: Sequence[Path],
    prefix: Path,
    share: tuple[int, int],
    options: TokenizeOptions | None = None,
    *,
    progress: ProgressCallback | None = None,
) -> tuple[int, int]:
    """Tokenize every n-th shard into a part, as one job in an array.

    Return how many shards this call tokenized, and how many are in the share.

    `share` is (index, count), where the index starts at 0. Any number of jobs may run at the same
    time on any nodes that see the same folder, and a later attempt may use more or fewer jobs.
    `prepare` with the same arguments joins the parts afterwards.

    Raises:
        DataError: as `prepare`.
        HeldError: another run is joining the shards, or another job has this share.
    """
    index, count = share
    if not 0 <= index < count:
        raise DataError(TokenMessage.SHARE_OUT_OF_RANGE, index=index, count=count)

    job = _Job(inputs, TokenFiles(Path(prefix)), options or TokenizeOptions(), progress)
    try:
        with hold_share(job.files, f"share-{index}-of-{count}"):
            return job.run_share(index, count)
    except OSError as error:
        raise _disk_error(error, job.files) from error
    finally:
        # Matters only if no job has finished a shard, as after a refusal or Ctrl-C.
        remove_unused(job.files)


def _run_and_tidy(job: "_Job") -> Manifest:
    """Run a job. If it ends before its first shard is done, remove the files it began."""
    try:
        return job.run()
    except (DataError, OSError, KeyboardInterrupt):
        if not PartsFolder(job.files).has_finished_shards:
            shutil.rmtree(job.files.parts, ignore_errors=True)
            job.files.bin_part.unlink(missing_ok=True)
        raise


def _disk_error(error: OSError, files: TokenFiles) -> DataError:
    from runbook.tokens.pipeline.worker_pool import disk_error

    return disk_error(error, files)


def finished_manifest(prefix: Path, fingerprint: str) -> Manifest | None:
    """Return the manifest if the same work has been done and both token files are complete."""
    files = TokenFiles(prefix)
    try:
        manifest = read_manifest(prefix)
        sizes = {"bin": files.bin.stat().st_size, "idx": files.idx.stat().st_size}
        is_same = (
            manifest.fingerprint == fingerprint and read_header(files.idx)[1] == manifest.sequences
        )
    except (DataError, OSError):
        return None

    if is_same and all(manifest.files[name]["bytes"] == size for name, size in sizes.items()):
        return manifest
    return None


class _Job:
    """What a single call to `prepare` or `prepare_share` does."""

    def __init__(
        self,
        inputs: Sequence[Path],
        files: TokenFiles,
        options: TokenizeOptions,
        progress: ProgressCallback | None,
    ) -> None:
        self.files = files
        self._began = time.monotonic()
        self._encoder = ""
        self._reused = 0
        self._progress = progress
        self._shards = cut_shards(
            find_inputs(inputs), options.shard_bytes, empty=options.bad_records != "stop"
        )
        first = self._shards[0].segments[0]
        if options.source_key == "auto":
            source_key = find_source_key(first)
        else:
            source_key = options.source_key

        self._options = replace(options, source_key=source_key)
        if options.chosen_sources.names_any and not source_key:
            raise DataError(TokenMessage.NO_SOURCE_NAMED, first=first.path)

        if options.fix_text == "ftfy":
            # Report a missing package before the work starts, not in a worker.
            load_ftfy()

        segments = {}
        for shard in self._shards:
            for segment in shard.segments:
                segments[segment.path] = segment

        self._inputs = [
            (segment.path, segment.size, segment.mtime_ns, segment.sample)
            for segment in segments.values()
        ]
        tokenizer = options.tokenizer
        path = tokenizer_path(options.tokenizer)
        # If the file is missing, `load_tokenizer` reports what is wrong.
        if tokenizer != "gpt2" and path.is_file():
            tokenizer = sha256_of(path)
        self._choices = json.dumps([options.choices(), tokenizer], sort_keys=True)
        everything = "".join(map(repr, self._inputs)) + self._choices
        self.fingerprint = hashlib.sha256(everything.encode()).hexdigest()
        self._committer = Committer(files, self._shards, self._choices)
        self._reporter = ProgressReporter(self._shards, self._committer, progress, self._began)

    def report_finished(self, manifest: Manifest) -> Manifest:
        if self.files.parts.exists():
            # The folder is removed only if no other run works in it.
            with (
                contextlib.suppress(HeldError, OSError),
                hold_prefix(self.files),
            ):
                shutil.rmtree(self.files.parts)

        reused = replace(manifest, reused=True)
        self._reporter.report_done(reused)
        return reused

    def run(self) -> Manifest:
        todo = self._committer.resume(self._reporter.report_resumed)
        self._reused = len(self._shards) - len(todo)
        if self._reused:
            counts = self._reused, len(self._shards)
            _log.info("%s: %d of %d shards are done from an earlier run", self.files.base, *counts)
            # Including shards finished but not yet committed
            self._reporter.report_resumed()

        tokenizer = self._make([self._shards[number] for number in todo], self._shards)
        self._reporter.report("index", force=True)
        manifest = self._close(tokenizer)
        self._reporter.report_done(manifest)
        return manifest

    def run_share(self, index: int, count: int) -> tuple[int, int]:
        """Tokenize the missing shards in one share. The work as a whole remains unfinished."""
        self._committer = committer = PartCommitter(self.files, self._shards, self._choices)
        missing = committer.missing(index, count)
        self._reporter = ProgressReporter(missing, committer, self._progress, self._began)
        if missing:
            self._make(missing, missing)
        return len(missing), len(range(index, len(self._shards), count))

    def _make(self, shards: list[Shard], stored: list[Shard]) -> Tokenizer:
        """Tokenize shards in this process if one worker is enough, or else in worker processes.

        `stored` lists the shards that need disk space.
        """
        reporter = self._reporter
        committer = self._committer
        options = self._options
        self._refuse_small_disk(stored)
        # From here on, the prefix is unfinished.
        self.files.manifest.unlink(missing_ok=True)
        reporter.workers = min(options.workers or num_cores(), max(1, len(shards)))
        if reporter.workers > 1:
            # The import is here because it takes 10 ms, and a single worker needs no processes.
            from runbook.tokens.pipeline.worker_pool import Pool

            with contextlib.closing(Pool(self.files, options, committer)) as pool:
                pool.start(reporter.workers)
                # This process only inspects the tokenizer, so use the encoder that loads fastest.
                tokenizer = self._load_tokenizer("tokenizers")
                pool.run(shards, lambda: reporter.report("tokenize", pool.in_hand, pool.deaths))

            self._encoder = pool.encoder
            return tokenizer

        tokenizer = self._load_tokenizer(options.encoder)
        self._encoder = tokenizer.encoder.name
        maker = ShardMaker(tokenizer, options, lambda counts: reporter.report("tokenize", [counts]))
        for shard in shards:
            sink = ShardSink(
                self.files,
                shard,
                committer.placement,
                leaves_mark=not committer.joins,
                checksum=committer.checksum_before(shard),
            )
            with contextlib.closing(sink):
                mark = maker.make(shard, committer.fingerprints[shard.number], sink)
                committer.written(mark, sink.checksum)

            self._commit()

        self._commit()
        return tokenizer

    def _commit(self) -> None:
        while self._committer.step():
            self._reporter.report("tokenize")

    def _load_tokenizer(self, encoder: str) -> Tokenizer:
        options = self._options
        use_one_thread()
        tokenizer = load_tokenizer(
            options.tokenizer, special_tokens=options.special_tokens, encoder=encoder
        )
        if options.append_eod:
            # Look up the token now, so that its absence is reported before the work starts.
            tokenizer.end_of_document(options.eod_token)

        return tokenizer

    def _refuse_small_disk(self, shards: list[Shard]) -> None:
        if not self._options.check_space:
            return
        free = shutil.disk_usage(self.files.base.parent).free
        if free > AMPLE_ROOM * first_guess(shards):
            return
        needed = (
            bytes_needed(shards, self._load_tokenizer("tokenizers"), self._options)
            - self._committer.length
        )
        if needed > free:
            raise DataError(
                TokenMessage.NO_ROOM_FOR_TOKENS,
                needed=show_bytes(needed),
                base_parent=self.files.base.parent,
                free=show_bytes(free),
            )

    def _close(self, tokenizer: Tokenizer) -> Manifest:
        """Write the index, rename the files, and write the manifest.

        These operations are ordered so that a second run can recover from an interruption at any
        point.
        """
        files = self.files
        totals = self._committer.totals
        self._refuse_no_tokens()
        parts = PartsFolder(files)
        os.truncate(files.bin_part, self._committer.length)
        with files.idx_part.open("wb") as file:
            written = write_index(
                file, dtype_code(tokenizer.vocabulary), lambda: parts.pieces(len(self._shards))
            )

        assert written == (totals.sequences, totals.documents)
        idx_sha256 = sha256_of(files.idx_part)
        self._join_quarantine(parts)
        for part in (files.bin_part, files.idx_part):
            with part.open("rb") as file:
                os.fsync(file.fileno())

        files.idx_part.rename(files.idx)
        files.bin_part.rename(files.bin)
        manifest = self._manifest(tokenizer, idx_sha256)
        content = {}
        for name, value in vars(manifest).items():
            if name != "reused":
                content[name] = value

        write_text(files.manifest, json.dumps(content, indent=1) + "\n", error=DataError)
        # Another run may be requesting the lock at this moment.
        shutil.rmtree(files.parts, ignore_errors=True)
        return manifest

    def _refuse_no_tokens(self) -> None:
        """Raise an error if the input has no tokens at all.

        If there are no tokens, the key or the folder is wrong, or all files are broken.
        """
        totals = self._committer.totals
        if totals.tokens:
            return
        shutil.rmtree(self.files.parts)
        self.files.bin_part.unlink(missing_ok=True)
        why = "".join(f"\n  {problem}" for problem in self._committer.problems[:5])
        raise DataError(
            TokenMessage.NO_TEXT,
            records=totals.records,
            skipped_records=totals.skipped_records,
            dropped=totals.dropped,
            empty=totals.empty,
            skipped_files=totals.skipped_files,
            why=why,
        )

    def _join_quarantine(self, parts: PartsFolder) -> None:
        quarantine = self.files.quarantine
        quarantine.unlink(missing_ok=True)
        if self._options.bad_records != "quarantine":
            return
        with replacing(quarantine, error=DataError) as target:
            for shard in self._shards:
                path = parts.path(shard.number, "quarantine")
                if path.exists():
                    target.write(path.read_bytes())

    def _manifest(self, tokenizer: Tokenizer, idx_sha256: str) -> Manifest:
        options = self._options
        files = self.files
        committer = self._committer
        totals = self._committer.totals
        if options.append_eod:
            eod = tokenizer.end_of_document(options.eod_token)
        else:
            eod = None

        wall = time.monotonic() - self._began
        # Text tokenized in MB per second, overall and by stage.
        rates = {"wall": round(self._reporter.text_done() / wall / 1e6, 1)}
        for stage, stage_seconds in totals.seconds.items():
            if stage_seconds > 0:
                rates[stage] = round(totals.text_bytes / stage_seconds / 1e6, 1)

        inputs = []
        for file in self._inputs:
            inputs.append(dict(zip(("path", "bytes", "mtime_ns", "sample"), file, strict=True)))
        return Manifest(
            fingerprint=self.fingerprint,
            inputs=inputs,
            options=options.choices(),
            tokenizer={
                "name": tokenizer.name,
                "vocabulary": tokenizer.vocabulary,
                "sha256": tokenizer.sha256,
                "encoder": self._encoder,
                "judge": tokenizer.judge.name,
                "end_of_document": eod,
            },
            dtype=np.dtype(DTYPES[dtype_code(tokenizer.vocabulary)]).name,
            end_of_document_tokens=totals.sequences if options.append_eod else 0,
            problems=committer.problems,
            sources=dict(sorted(totals.sources.items())),
            dropped_sources=dict(sorted(totals.dropped_sources.items())),
            files={
                "bin": {
                    "name": files.bin.name,
                    "bytes": committer.length,
                    "sha256": committer.hash.hexdigest(),
                },
                "idx": {
                    "name": files.idx.name,
                    "bytes": files.idx.stat().st_size,
                    "sha256": idx_sha256,
                },
            },
            shards=committer.spans,
            seconds={"wall": wall} | totals.seconds,
            rates=rates,
            workers=self._reporter.workers,
            made=datetime.now(UTC).isoformat(timespec="seconds"),
            versions=_versions(),
            reused_shards=self._reused,
            **{count.name: getattr(totals, count.name) for count in fields(Counts)},
        )


def num_cores() -> int:
    """Return how many cores this process may use.

    A job is often given fewer cores than the node has.
    """
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def _versions() -> dict[str, str]:
    versions = {"python": platform.python_version()}
    for package in (
        "gpt3-runbook",
        "fastokens",
        "tokenizers",
        "msgspec",
        "backports.zstd",
        "ftfy",
        "numpy",
    ):
        installed = package_version(package)
        if installed:
            versions[package] = installed

    return versions


def first_guess(shards: Sequence[Shard]) -> int:
    """Estimate the total size of .bin and .idx for these shards, using only file sizes."""
    text = sum(text_estimate(segment) for shard in shards for segment in shard.segments)
    return int(text * BIN_BYTES_PER_TEXT_BYTE)


def bytes_needed(shards: Sequence[Shard], tokenizer: Tokenizer, options: TokenizeOptions) -> int:
    """Estimate the bytes that the .bin, the .idx and the done markers need for these shards.

    The estimate is made from the first, the middle and the last shard.
    """
    text = measured = estimated = 0.0
    tokens = documents = 0
    unreadable: tuple[type[BaseException], ...] = (DataError, *decompression_errors())
    for number in sorted({0, len(shards) // 2, len(shards) - 1}):
        segment = shards[number].segments[0]
        try:
            parser = Parser(options.text_key, "", options.max_record_bytes)
            batch = next(read_documents(segment, parser), DocumentBatch())
            measured += expansion(segment)
        except unreadable:
            # Ignore the error here, because tokenizing will report what is wrong with the file.
            continue

        estimated += text_estimate(segment) / (segment.end - segment.start)
        starts = itertools.accumulate(map(len, batch.texts), initial=0)
        pieces = []
        for start, piece in zip(starts, batch.texts, strict=False):
            if start < SAMPLE:
                pieces.append(piece[: SAMPLE - start])

        tokens += len(tokenizer.encoder.encode_batch(pieces)[0]) + len(pieces) * options.append_eod
        documents += len(pieces)
        text += batch.read_bytes * sum(map(len, pieces)) / max(1, sum(map(len, batch.texts)))

    if not text:
        return first_guess(shards)
    whole = sum(text_estimate(segment) for shard in shards for segment in shard.segments)
    written_bytes = tokens * token_bytes(tokenizer.vocabulary) + documents * BYTES_PER_DOCUMENT
    return int(whole * measured / estimated * written_bytes / text)
