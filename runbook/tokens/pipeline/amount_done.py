"""Reports progress while tokenizing and downloading: amount, speed and remaining time."""

import itertools
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from runbook.core.table import Row
from runbook.core.units import show_bytes, show_duration
from runbook.tokens.pipeline.bin_writer import Committer
from runbook.tokens.pipeline.parts_folder import ShardCounts
from runbook.tokens.pipeline.tokenize_options import Counts, Manifest
from runbook.tokens.sources.input_files import Shard, text_estimate

EVERY_SECONDS = 0.2
LONG_PIECE = 8 << 20
"""A piece of text that cannot be cut is shown from this size on, in bytes.

Encoding such a piece takes seconds to a minute, during which no count changes.
"""


@dataclass(frozen=True)
class DataProgress:
    """How far the work has come at a point in time."""

    stage: str
    """Current stage: resume, tokenize, index or done, or download for a download."""
    files: int
    files_total: int
    bytes: int
    """How much of the input is done, in bytes on disk."""
    bytes_total: int
    seconds: float
    """Seconds since the current call began."""
    mb_per_second: float
    """Megabytes (10^6 bytes) tokenized or downloaded per second since the current call began."""
    eta_seconds: float | None
    """Remaining seconds; None if they are not known yet."""
    workers: int
    failures: int
    """How many records and files were left out, plus how many workers died."""
    text_bytes: int = 0
    documents: int = 0
    tokens: int = 0
    shards: int = 0
    shards_total: int = 0
    longest_piece: int = 0
    """The longest piece that a worker is encoding at once, in bytes, or 0."""

    def as_facts(self) -> Row:
        """Return the current state as facts to print next to a progress bar.

        The facts are the stage, files, speed, remaining time, workers and failures.
        """
        facts: dict[str, object] = {
            "done": self.bytes,
            "total": self.bytes_total,
            "stage": None if self.stage == "done" else self.stage,
            "files": f"{self.files:,} of {self.files_total:,}",
        }
        if self.shards_total:
            facts["shards"] = f"{self.shards} of {self.shards_total}"
        facts["GB"] = f"{self.bytes / 1e9:.3f} of {self.bytes_total / 1e9:.3f}"
        if self.tokens:
            facts["documents"] = self.documents
            facts["tokens"] = self.tokens

        speed_name = "MB/s" if self.stage == "download" else "MB/s of text"
        facts[speed_name] = round(self.mb_per_second, 1) if self.mb_per_second else None
        if self.longest_piece >= LONG_PIECE:
            facts["encoding in one piece"] = show_bytes(self.longest_piece)
        else:
            facts["encoding in one piece"] = None

        facts["to go"] = show_duration(self.eta_seconds) if self.eta_seconds else None
        facts["workers"] = self.workers
        facts["failures"] = self.failures
        return facts


ProgressCallback = Callable[[DataProgress], None]


class ProgressReporter:
    """Reports progress during one call to prepare()."""

    def __init__(
        self,
        shards: list[Shard],
        committer: Committer,
        callback: ProgressCallback | None,
        began: float,
    ) -> None:
        self._committer = committer
        self._callback = callback or (lambda progress: None)
        self._began = began
        self._estimates = [sum(map(text_estimate, shard.segments)) for shard in shards]
        self._bytes = sum(shard.bytes for shard in shards)
        ends = (sum(segment.end == segment.size for segment in shard.segments) for shard in shards)
        self._files = [0, *itertools.accumulate(ends)]
        self._last = 0.0
        self._text_before = 0
        self._deaths = 0
        self._first: tuple[float, float] | None = None
        self.workers = 0

    def report_resumed(self) -> None:
        """Report the work that this run takes over from an earlier run."""
        self._text_before = sum(counts.text_bytes for counts in self._counts())
        self.report("resume")

    def text_done(self) -> int:
        """Return how many bytes of text this call has tokenized."""
        return self._committer.totals.text_bytes - self._text_before

    def report(
        self,
        stage: str,
        in_hand: Sequence[ShardCounts] = (),
        deaths: int = 0,
        *,
        force: bool = False,
    ) -> None:
        """Call the progress callback, unless it was called very recently.

        `in_hand` contains the counts for unfinished shards.
        """
        now = time.monotonic()
        self._deaths = max(self._deaths, deaths)
        if not force and now - self._last < EVERY_SECONDS:
            return
        self._last = now
        counts = [*self._counts(), *in_hand]
        done = sum(self._estimates[: self._committer.committed])
        done += sum(self._estimates[shard] for shard in self._committer.waiting)
        for shard_counts in in_hand:
            done += min(shard_counts.input_bytes, max(self._estimates))
        share = min(1.0, done / max(1.0, sum(self._estimates)))
        eta = self._eta(share, now) if stage == "tokenize" else None
        self._send(
            stage,
            counts,
            share,
            self._committer.committed,
            eta,
            max((shard_counts.piece_bytes for shard_counts in in_hand), default=0),
        )

    def report_done(self, manifest: Manifest) -> None:
        """Send the last report."""
        if manifest.reused:
            self._text_before = manifest.text_bytes
        self._send(
            "done",
            [manifest],
            1.0,
            len(self._estimates),
            0.0,
        )

    def _counts(self) -> list[ShardCounts]:
        """Return the counts for all finished shards, including those not yet committed."""
        return [self._committer.totals, *(mark.counts for mark in self._committer.waiting.values())]

    def _send(
        self,
        stage: str,
        counts: Sequence[Counts],
        share: float,
        shards: int,
        eta: float | None,
        longest_piece: int = 0,
    ) -> None:
        seconds = time.monotonic() - self._began
        text_bytes = sum(shard_counts.text_bytes for shard_counts in counts)
        failures = self._deaths
        for shard_counts in counts:
            failures += shard_counts.skipped_records + shard_counts.skipped_files
        text_bytes_now = text_bytes - self._text_before
        self._callback(
            DataProgress(
                stage=stage,
                files=self._files[shards],
                files_total=self._files[-1],
                bytes=int(share * self._bytes),
                bytes_total=self._bytes,
                seconds=seconds,
                mb_per_second=text_bytes_now / max(seconds, 1e-9) / 1e6,
                eta_seconds=eta,
                workers=self.workers,
                failures=failures,
                shards=shards,
                shards_total=len(self._estimates),
                text_bytes=text_bytes,
                documents=sum(shard_counts.documents for shard_counts in counts),
                tokens=sum(shard_counts.tokens for shard_counts in counts),
                longest_piece=longest_piece,
            )
        )

    def _eta(self, share: float, now: float) -> float | None:
        """Return the remaining time in seconds, computed from the speed since the first report.

        Return None during the first second.
        """
        if self._first is None:
            self._first = (now, share)
        passed = now - self._first[0]
        gained = share - self._first[1]
        if passed > 1 and gained > 0:
            return (1 - share) / gained * passed
        return None
