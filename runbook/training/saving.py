"""Save the whole state of a run, and find and load the newest state that is whole; on all ranks together."""

from __future__ import annotations

import dataclasses
import json
import shutil
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from megatron.core import parallel_state
from megatron.core.dist_checkpointing.mapping import ShardedObject
from megatron.core.tensor_parallel import get_cuda_rng_tracker

from runbook.training import checkpoints, faults, recipe, sharded_files
from runbook.training.checkpoints import Found
from runbook.training.distributed import on_first, seed_ranks, together
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
    bytes: int


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


def save(spec: Spec, engine: Engine, progress: Progress) -> Saved:
    """Write a checkpoint; `TrainingError` on all ranks, and nothing left behind, where it could not be written."""
    begun = time.monotonic()
    root = spec.path(spec.checkpoint.folder)
    common = engine.common_state()
    part = root / f"{checkpoints.name_of(progress.iteration)}.part"
    state = {**engine.sharded_state(loading=False), "random": _random_state()}
    needed = sharded_files.size(state)
    try:
        on_first(lambda: checkpoints.begin(root, progress.iteration))
        on_first(lambda: _check_room(root, needed))
        faults.save("begin")
        sharded_files.write(state, part / checkpoints.SHARDS)
        faults.save("shards")
        files = on_first(lambda: checkpoints.shard_files(part))
        sums = _checksums(part, files)
        size = on_first(lambda: sum((part / name).stat().st_size for name in files))
        metadata = {
            **dataclasses.asdict(progress),
            "fingerprint": spec.fingerprint,
            "recipe": recipe.recipe(spec),
            "engine": spec.engine,
            "precision": spec.precision.format,
            "model": _shape(spec),
            "parallel": dataclasses.asdict(spec.parallel),
            "common": common,
            "saved_at": time.time(),
        }
        final = on_first(lambda: checkpoints.finish(part, metadata, sums, spec.checkpoint.keep))
    except TrainingError as error:
        on_first(lambda: shutil.rmtree(part, ignore_errors=True))
        failure = TrainingError(
            f"checkpoint {part.with_suffix('')} of {needed:,} bytes could not be written: {error}. Nothing of it is "
            f"left, earlier checkpoints are untouched. Make room (the disk, the quota), then run again"
        )
        failure.on_all_ranks = True
        raise failure from error
    return Saved(progress.iteration, final, time.monotonic() - begun, size)


def load(spec: Spec, engine: Engine) -> Loaded | None:
    """Take up the newest whole checkpoint; None where there never was one.

    `RefusedError` where none is whole, or where it is of another model.
    """
    root = spec.path(spec.checkpoint.folder)
    on_first(lambda: checkpoints.clean(root))
    found, problems = on_first(lambda: checkpoints.candidates(root))
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
        return _take(spec, engine, candidate, problems)
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
    same_ranks = metadata["parallel"] == dataclasses.asdict(spec.parallel)
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
    return Loaded(Progress(**known), found.folder, problems, *_changes(spec, metadata))


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


def _checksums(part: Path, files: list[str]) -> dict[str, str]:
    """sha256 of every file, the ranks sharing the work."""
    own = together(lambda: {name: checkpoints.sha256(part / name) for name in _own(files)})
    parts: list[dict[str, str]] = [{} for _ in range(torch.distributed.get_world_size())]
    torch.distributed.all_gather_object(parts, own)
    return {name: digest for part_ in parts for name, digest in part_.items()}


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
