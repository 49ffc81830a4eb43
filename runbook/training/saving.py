"""Save the whole state of a run, and find and load the newest state that is whole; on all ranks together."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import shutil
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from megatron.core import parallel_state
from megatron.core.dist_checkpointing.mapping import ShardedObject
from megatron.core.tensor_parallel import get_cuda_rng_tracker

from runbook.training import checkpoints, faults, recipe, sharded_files
from runbook.training.checkpoints import Found
from runbook.training.distributed import device, on_first, seed_ranks, together
from runbook.training.engine import Engine
from runbook.training.errors import RefusedError, TrainingError
from runbook.training.spec import Spec

_SHAPE = (
    "layers", "hidden", "heads", "kv_heads", "ffn_hidden", "positions", "padded_vocabulary", "tied_embeddings",
    "position_embedding", "normalization", "activation", "biases",
)  # fmt: skip


@dataclass
class Progress:
    """How far a run is; what a checkpoint remembers beside tensors."""

    iteration: int = 0
    consumed_samples: int = 0
    segment: int = 0
    skipped: int = 0
    nan: int = 0
    passed_over: list[list[int]] = field(default_factory=list)
    """First and last samples of steps that are left out since a rollback."""

    def passes_over(self, sample: int) -> bool:
        """Whether the step that begins with this sample is left out."""
        return any(first == sample for first, _ in self.passed_over)


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


@dataclass(frozen=True)
class Loaded:
    """Where a run goes on, and what was wrong with newer checkpoints."""

    progress: Progress
    folder: Path
    problems: list[str]
    changes: list[str]
    """Values it was trained with that are not the plan's and change what going on means."""
    harmless: list[str]
    """Those that do not."""
    weights_only: bool = False
    """Whether it is another engine's, so that its optimizer state was left out."""
    tracker: str = ""
    """What was wrong with the tracker, which is written anew; empty: nothing."""
    lost_iterations: int = 0
    """How many iterations the newest checkpoint, which is not whole, was ahead."""


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
        state = {**engine.sharded_state(loading=False), "random": _random_state()}
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
        "model": _shape(spec),
        "parallel": dataclasses.asdict(spec.parallel),
        "common": engine.common_state(),
        "saved_at": time.time(),
    }


def load(spec: Spec, engine: Engine) -> Loaded | None:
    """Take up the newest whole checkpoint; None where there never was one.

    `RefusedError` where none is whole, or where it is of another model.
    """
    root = spec.path(spec.checkpoint.folder)
    on_first(lambda: checkpoints.clean(root))
    found, problems = on_first(lambda: checkpoints.candidates(root))
    newest_ever = on_first(lambda: checkpoints.newest_iteration(root))
    for candidate in found:
        difference = checkpoints.shape_difference(candidate.metadata.get("model", {}), _shape(spec))
        if difference:
            raise RefusedError(
                f"{candidate.folder} is of another model: {difference}. Use the plan it was trained with, or another "
                f"checkpoint folder"
            )
        problem = _verify(candidate)
        if problem:
            problems.append(problem)
            continue
        tracker = on_first(lambda: checkpoints.tracker_fault(root, newest_ever))
        loaded = _take(spec, engine, candidate, problems)
        return dataclasses.replace(loaded, tracker=tracker, lost_iterations=newest_ever - candidate.iteration)
    if on_first(lambda: checkpoints.has_trace(root)):
        raise checkpoints.refuse_none_left(root, problems)
    return None


def _check_room(root: Path, needed: int) -> None:
    """Find a full disk before gigabytes are written to it; a quota shows only in the writing."""
    free = shutil.disk_usage(root).free
    if free < needed:
        raise TrainingError(f"only {free:,} bytes are free on its disk")


def _take(spec: Spec, engine: Engine, found: Found, problems: list[str]) -> Loaded:
    metadata = found.metadata
    room: dict[str, Any] = engine.sharded_state(loading=True)
    weights_only = metadata["engine"] != spec.engine
    if weights_only:  # each engine's optimizer state is its own
        del room["optimizer"]
    same_ranks = _ranks(metadata["parallel"]) == _ranks(dataclasses.asdict(spec.parallel))
    if same_ranks:
        room["random"] = _random_state()
    loaded = sharded_files.read(room, found.folder / checkpoints.SHARDS)
    engine.restore(loaded, metadata["common"])
    if same_ranks:
        _restore_random(loaded["random"])
    else:  # the ranks of another layout have no states to take up: draw anew, but not what was drawn before
        seed_ranks(spec.seed + 7919 * found.iteration)
    on_first(lambda: _mend_tracker(spec.path(spec.checkpoint.folder), found.iteration))
    known = {one.name: metadata[one.name] for one in dataclasses.fields(Progress) if one.name in metadata}
    changes, harmless = _changes(spec, metadata)
    if weights_only:
        harmless = [
            f"the engine {metadata['engine']} (plan: {spec.engine}), whose optimizer state is its own, so that the "
            f"weights alone are taken up and Adam begins anew",
            *harmless,
        ]
    return Loaded(Progress(**known), found.folder, problems, changes, harmless, weights_only=weights_only)


def _ranks(parallel: dict[str, Any]) -> dict[str, Any]:
    """How a layout numbers its ranks; what ZeRO shares out does not count."""
    return {key: value for key, value in parallel.items() if key != "zero_stage"}


def newest(spec: Spec) -> Path | None:
    """The newest checkpoint, if there is one; it is not verified."""
    found, _ = on_first(lambda: checkpoints.candidates(spec.path(spec.checkpoint.folder)))
    return found[0].folder if found else None


def _changes(spec: Spec, metadata: dict[str, Any]) -> tuple[list[str], list[str]]:
    """In what the training that wrote a checkpoint differs from the plan's."""
    if metadata.get("fingerprint") == spec.fingerprint:
        return [], []
    if "recipe" not in metadata:
        return [f"a fingerprint of {str(metadata.get('fingerprint'))[:12]} (plan: {spec.fingerprint[:12]})"], []
    return recipe.differences(metadata["recipe"], json.loads(json.dumps(recipe.recipe(spec))))


def _mend_tracker(root: Path, iteration: int) -> None:
    if checkpoints.tracked(root) != iteration:
        checkpoints.point_to(root, iteration)


def _verify(found: Found) -> str:
    problems = [""] * torch.distributed.get_world_size()
    torch.distributed.all_gather_object(problems, checkpoints.broken(found, _own(sorted(found.metadata["files"]))))
    return next((problem for problem in problems if problem), "")


def _own(files: list[str]) -> list[str]:
    return files[torch.distributed.get_rank() :: torch.distributed.get_world_size()]


def _shape(spec: Spec) -> dict[str, Any]:
    return {key: getattr(spec.model, key) for key in _SHAPE}


def _random_state() -> ShardedObject:
    state: dict[str, Any] = {"torch": torch.get_rng_state(), "tracker": get_cuda_rng_tracker().get_states()}
    if torch.cuda.is_available():
        state["cuda"] = torch.cuda.get_rng_state()
    ranks = (
        (parallel_state.get_pipeline_model_parallel_rank(), parallel_state.get_pipeline_model_parallel_world_size()),
        (parallel_state.get_tensor_model_parallel_rank(), parallel_state.get_tensor_model_parallel_world_size()),
        (parallel_state.get_data_parallel_rank(), parallel_state.get_data_parallel_world_size()),
    )
    return ShardedObject("random", state, tuple(size for _, size in ranks), tuple(rank for rank, _ in ranks))


def _restore_random(state: dict[str, Any]) -> None:
    torch.set_rng_state(state["torch"])
    get_cuda_rng_tracker().set_states(state["tracker"])
    if "cuda" in state and torch.cuda.is_available():
        torch.cuda.set_rng_state(state["cuda"])
