"""Turns the state of the work into Progress: how far, how fast, how long still."""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable

from runbook.data.committer import Committer
from runbook.data.inputs import Shard, text_estimate
from runbook.data.manifest import Manifest
from runbook.data.pool import Pool
from runbook.data.progress import Progress
from runbook.data.shard import Counts
from runbook.data.worker import Snapshot

Callback = Callable[[Progress], None]
EVERY_SECONDS = 0.2
SPEED_POINTS = 400


class Display:
    """Watches one call of prepare()."""

    def __init__(self, shards: list[Shard], committer: Committer, progress: Callback | None, began: float) -> None:
        self._committer = committer
        self._progress = progress
        self._began = began
        self._estimates = [sum(text_estimate(segment) for segment in shard.segments) for shard in shards]
        self._estimate = max(1.0, sum(self._estimates))
        self._bytes = sum(shard.bytes for shard in shards)
        ends = (sum(segment.end == segment.size for segment in shard.segments) for shard in shards)
        self._files = [0, *itertools.accumulate(ends)]
        self._last = 0.0
        self._text_before = 0
        self._first: tuple[float, float] | None = None
        self.reused = 0
        self.workers = 0
        self.pool: Pool | None = None
        self.snapshot: Snapshot | None = None
        self.speed: list[list[float]] = []
        """Seconds and bytes of text along the way."""

    def take(self, snapshot: Snapshot) -> None:
        """A snapshot of the shard in hand, where one process does all."""
        self.snapshot = snapshot
        self.tell("tokenize")

    def text_done(self) -> int:
        """Bytes of text tokenized by this call."""
        return self._committer.totals.text_bytes - self._text_before

    def tell(self, stage: str, *, force: bool = False) -> None:
        """Call the callback, unless it was called a moment ago."""
        now = time.monotonic()
        if stage == "resume":
            self._text_before = self._committer.totals.text_bytes
        if not force and now - self._last < EVERY_SECONDS:
            return
        self._last = now
        snapshots = self.pool.snapshots if self.pool else [self.snapshot] if self.snapshot else []
        waiting = [mark.counts for mark in self._committer.waiting]
        totals = [self._committer.totals, *waiting]
        made: list[Counts | Snapshot] = [*totals, *snapshots]
        text = sum(each.text_bytes for each in made)
        if len(self.speed) >= SPEED_POINTS:
            self.speed = self.speed[::2]
        self.speed.append([round(now - self._began, 3), text - self._text_before])
        if self._progress is None:
            return
        failures = sum(each.skipped_records + each.skipped_files for each in totals)
        share = self._share(snapshots)
        self._progress(
            Progress(
                stage=stage,
                files=self._files[self._committer.committed],
                files_total=self._files[-1],
                bytes=int(share * self._bytes),
                bytes_total=self._bytes,
                text_bytes=text,
                documents=sum(each.documents for each in made),
                tokens=sum(each.tokens for each in made),
                seconds=now - self._began,
                mb_per_second=(text - self._text_before) / max(now - self._began, 1e-9) / 1e6,
                eta_seconds=self._eta(stage, share, now),
                workers=self.workers,
                failures=failures + sum(each.failures for each in snapshots) + self._deaths,
                shards=self._committer.committed,
                shards_total=len(self._estimates),
                reused=self.reused,
            )
        )

    def say_done(self, manifest: Manifest) -> None:
        """The last word."""
        if self._progress is None:
            return
        seconds = time.monotonic() - self._began
        self._progress(
            Progress(
                stage="done",
                files=self._files[-1],
                files_total=self._files[-1],
                bytes=self._bytes,
                bytes_total=self._bytes,
                text_bytes=manifest.text_bytes,
                documents=manifest.documents,
                tokens=manifest.tokens,
                seconds=seconds,
                mb_per_second=self.text_done() / max(seconds, 1e-9) / 1e6,
                eta_seconds=0.0,
                workers=self.workers,
                failures=manifest.skipped_records + manifest.skipped_files + self._deaths,
                shards=len(manifest.shards),
                shards_total=len(manifest.shards),
                reused=self.reused if self.workers else len(manifest.shards),
            )
        )

    @property
    def _deaths(self) -> int:
        return self.pool.deaths if self.pool else 0

    def _share(self, snapshots: list[Snapshot]) -> float:
        """How much of all text is done, by the sizes of the files."""
        done = sum(self._estimates[: self._committer.committed])
        done += sum(self._estimates[mark.shard] for mark in self._committer.waiting)
        done += sum(min(each.input_bytes, max(self._estimates)) for each in snapshots)
        return min(1.0, done / self._estimate)

    def _eta(self, stage: str, share: float, now: float) -> float | None:
        """Time left at the speed since the first report; not known in the first second."""
        if stage != "tokenize":
            return None
        if self._first is None:
            self._first = (now, share)
        passed, gained = now - self._first[0], share - self._first[1]
        return (1 - share) / gained * passed if passed > 1 and gained > 0 else None
