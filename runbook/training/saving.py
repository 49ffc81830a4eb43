"""Save the whole state of a run, on all ranks together: between two steps, or beside the training."""

from __future__ import annotations

import contextlib
import dataclasses
import shutil
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from runbook.training import checkpoints, faults, recipe, sharded_files
from runbook.training.distributed import device, on_first, together
from runbook.training.engine import Engine
from runbook.training.errors import TrainingError
from runbook.training.progress import Progress, random_state, shape
from runbook.training.spec import Spec


@dataclass(frozen=True)
class Saved:
    """What a save cost."""

    iteration: int
    folder: Path
    seconds: float
    """From its beginning until it was sealed."""
    bytes: int
    stall_seconds: float
    """How long the training waited for it."""


class Save:
    """One checkpoint on its way to the disk: begun, written (here or beside the training), sealed."""

    def __init__(self, spec: Spec, engine: Engine, progress: Progress, *, beside: bool) -> None:
        """Copy the state where it is written `beside` the training, and agree with all ranks on who writes what."""
        self.spec = spec
        self.iteration = progress.iteration
        self.begun = time.monotonic()
        self._root = spec.path(spec.checkpoint.folder)
        self._part = self._root / f"{checkpoints.name_of(progress.iteration)}.part"
        self._metadata = _metadata(spec, engine, progress)
        state = {**engine.sharded_state(loading=False), "random": random_state()}
        self._needed = sharded_files.size(state)
        self._written: sharded_files.Written | None = None
        self._error: Exception | None = None
        self._thread: threading.Thread | None = None
        with self._cleaning():
            on_first(lambda: checkpoints.begin(self._root, self.iteration))
            on_first(lambda: _check_room(self._root, self._needed))
            faults.save("begin")
            self._writing = sharded_files.Writing(state, self._part / checkpoints.SHARDS, copied=beside)
        if beside:
            self._thread = threading.Thread(target=self._write, name="checkpoint")
            self._thread.start()
        self.stall_seconds = time.monotonic() - self.begun
        """How long the training waited for it so far."""

    def is_written(self) -> bool:
        """Whether all ranks have written their files; asked on all ranks together."""
        ready = self._thread is None or not self._thread.is_alive()
        message = torch.tensor([int(ready)], dtype=torch.int64, device=device())
        torch.distributed.all_reduce(message, op=torch.distributed.ReduceOp.MIN)
        return bool(message.item())

    def finish(self) -> Saved:
        """Wait for the files, seal and rename; `TrainingError` on all ranks, and nothing left, where one failed."""
        began = time.monotonic()
        if self._thread is None:
            self._write()
        else:
            self._thread.join()
        with self._cleaning():
            sums = self._writing.finish(together(self._result))
            faults.save("shards")
            files = {f"{checkpoints.SHARDS}/{name}": digest for name, digest in sums.items()}
            size = on_first(lambda: sum((self._part / name).stat().st_size for name in files))
            keep, every = self.spec.checkpoint.keep, self.spec.checkpoint.keep_every
            final = on_first(lambda: checkpoints.finish(self._part, self._metadata, files, keep, every))
        now = time.monotonic()
        self.stall_seconds += now - began
        return Saved(self.iteration, final, now - self.begun, size, self.stall_seconds)

    def _write(self) -> None:
        try:
            self._written = self._writing.write()
        except (OSError, RuntimeError) as error:
            self._error = error

    def _result(self) -> sharded_files.Written:
        if self._error is not None:
            raise self._error
        assert self._written is not None
        return self._written

    @contextlib.contextmanager
    def _cleaning(self) -> Iterator[None]:
        try:
            yield
        except TrainingError as error:
            on_first(lambda: shutil.rmtree(self._part, ignore_errors=True))
            failure = TrainingError(
                f"checkpoint {self._part.with_suffix('')} of {self._needed:,} bytes could not be written: {error}. "
                f"Nothing of it is left, earlier checkpoints are untouched. Make room (the disk, the quota), then run "
                f"again"
            )
            failure.on_all_ranks = True
            raise failure from error


def save(spec: Spec, engine: Engine, progress: Progress) -> Saved:
    """Write a checkpoint while the training waits."""
    return Save(spec, engine, progress, beside=False).finish()


def _metadata(spec: Spec, engine: Engine, progress: Progress) -> dict[str, Any]:
    return {
        **dataclasses.asdict(progress),
        "fingerprint": spec.fingerprint,
        "recipe": recipe.recipe(spec),
        "engine": spec.engine,
        "precision": spec.precision.format,
        "model": shape(spec),
        "parallel": dataclasses.asdict(spec.parallel),
        "common": engine.common_state(),
        "saved_at": time.time(),
    }


def _check_room(root: Path, needed: int) -> None:
    """Find a full disk before gigabytes are written to it; a quota shows only in the writing."""
    free = shutil.disk_usage(root).free
    if free < needed:
        raise TrainingError(f"only {free:,} bytes are free on its disk")
