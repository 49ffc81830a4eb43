"""Saves and resumes a training run. All ranks call these functions together."""

import contextlib
import dataclasses
import json
import shutil
import time
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeAlias, TypedDict

import torch
from megatron.core import parallel_state
from megatron.core.dist_checkpointing.mapping import ShardedObject
from megatron.core.tensor_parallel import get_cuda_rng_tracker

from runbook.plan_file import identity
from runbook.plan_file.checkpoint_folder import PART, saved_iterations
from runbook.plan_file.errors import RefusedError, TrainingError
from runbook.plan_file.resume_sources import SHARED
from runbook.plan_file.schema import PhasePlan
from runbook.training.checkpoints import folders, torch_dist
from runbook.training.checkpoints.folders import CheckpointFolder
from runbook.training.engines.engine import CommonState, TrainingEngine
from runbook.training.health import injected_faults
from runbook.training.job_output import say
from runbook.training.messages import TrainingMessage
from runbook.training.process_groups import (
    reduce_number,
    run_on_all_ranks,
    run_on_first_rank,
    seed_ranks,
)
from runbook.training.ranks import on_gpu

_SHAPE_KEYS = (
    "layers",
    "hidden",
    "heads",
    "kv_heads",
    "ffn_hidden",
    "positions",
    "padded_vocabulary",
    "tied_embeddings",
    "position_embedding",
    "normalization",
    "activation",
    "biases",
)


@dataclass
class TrainingProgress:
    """How far a training run has come."""

    iteration: int = 0
    consumed_samples: int = 0
    segment: int = 0
    skipped: int = 0
    nan: int = 0
    passed_over: list[list[int]] = field(default_factory=list)
    """First and last sample in each step skipped since a rollback."""


def model_shape(spec: PhasePlan) -> dict[str, object]:
    """Return all model settings that determine the weights."""
    return {key: getattr(spec.model.shape, key) for key in _SHAPE_KEYS}


def random_state() -> ShardedObject:
    """Return the random states on this rank, keyed by rank."""
    state = {"torch": torch.get_rng_state(), "tracker": tracker_states()}
    if on_gpu():
        state["cuda"] = torch.cuda.get_rng_state()
    groups = (
        parallel_state.get_pipeline_model_parallel_group(),
        parallel_state.get_tensor_model_parallel_group(),
        parallel_state.get_data_parallel_group(with_context_parallel=True),
    )
    return ShardedObject(
        "random",
        state,
        tuple(group.size() for group in groups),
        tuple(group.rank() for group in groups),
    )


class SavedRandomStates(TypedDict, total=False):
    """Random states on a rank. `cuda` is included if the rank has a GPU."""

    torch: torch.Tensor
    tracker: dict[str, torch.Tensor]
    cuda: torch.Tensor


def restore_random(random: SavedRandomStates) -> None:
    """Restore the random states on this rank."""
    torch.set_rng_state(random["torch"])
    restore_tracker_states(random["tracker"])
    if "cuda" in random and on_gpu():
        torch.cuda.set_rng_state(random["cuda"])


def tracker_states() -> dict[str, torch.Tensor]:
    """Return the states in the random generator tracker from megatron-core, as tensors.

    With CUDA graphs the tracker contains generators, which cannot be saved as data.
    """
    tensors = {}
    for name, state in get_cuda_rng_tracker().get_states().items():
        if isinstance(state, torch.Generator):
            tensors[name] = state.get_state()
        else:
            tensors[name] = state

    return tensors


def restore_tracker_states(stored: Mapping[str, torch.Tensor]) -> None:
    """Restore the states in the random generator tracker from megatron-core.

    Generators stay the same objects, since CUDA graphs refer to them.
    """
    tracker = get_cuda_rng_tracker()
    states: dict[str, torch.Tensor | torch.Generator] = dict(stored)
    for name, generator in tracker.get_states().items():
        if isinstance(generator, torch.Generator) and name in stored:
            generator.set_state(stored[name])
            states[name] = generator

    tracker.set_states(states)


@dataclass(frozen=True)
class SaveResult:
    """What a save cost."""

    iteration: int
    # Time from starting the save until the checkpoint was complete
    seconds: float
    # How long training waited for the save
    stall_seconds: float
    bytes: int
    folder: Path


class PendingSave:
    """A checkpoint being saved.

    It is started, then written (possibly in a thread), then sealed.
    """

    def __init__(
        self,
        spec: PhasePlan,
        engine: TrainingEngine,
        progress: TrainingProgress,
        *,
        in_background: bool,
        data_cache: Mapping[str, str] | None = None,
    ) -> None:
        """Agree with all ranks on which rank writes what.

        A state that will be written in the background is copied first.
        """
        self.spec = spec
        self.iteration = progress.iteration
        self.started = time.monotonic()
        self._part = (
            spec.path(spec.checkpoint.folder) / f"{folders.folder_name(progress.iteration)}{PART}"
        )
        self._metadata = {
            **dataclasses.asdict(progress),
            "fingerprint": spec.fingerprint,
            "recipe": identity.recipe(spec),
            "engine": spec.engine,
            "precision": spec.precision.format,
            "model": model_shape(spec),
            "parallel": dataclasses.asdict(spec.parallel),
            "common": dataclasses.asdict(engine.common_state()),
            "data_cache": dict(data_cache or {}),
            "saved_at": time.time(),
        }
        # On a GPU the state is always copied, because the torch writer would copy one tensor at a
        # time to new, unpinned memory.
        copies = engine.host_copies if in_background or on_gpu() else None
        if copies is not None:
            copies.begin_save()
        state = {**engine.sharded_state(), "random": {"state": random_state()}}
        self._needed = torch_dist.state_bytes(state)
        self._background: Future[torch_dist.WrittenShards] | None = None
        with self._cleaning():
            run_on_first_rank(self._begin)
            injected_faults.armed.save("begin")
            # Imported weights are read only when they are written
            read = getattr(engine, "read_weight", None)
            self._writing = torch_dist.ShardWriter(
                state, self._part / folders.SHARDS, copies=copies, read=read
            )

        if in_background:
            executor = ThreadPoolExecutor(1, thread_name_prefix="checkpoint")
            self._background = executor.submit(self._writing.write)
            executor.shutdown(wait=False)

        # Time that training has spent waiting for the save so far
        self.stall_seconds = time.monotonic() - self.started

    def _begin(self) -> None:
        """Detect a full disk before gigabytes are written.

        An exceeded quota can only be detected while writing.
        """
        part = folders.begin_checkpoint(self._part.parent, self.iteration)
        if (free := shutil.disk_usage(part).free) < self._needed:
            raise TrainingError(TrainingMessage.DISK_FULL, free=free)

    def is_written(self) -> bool:
        """Return whether all ranks have written their files. All ranks call this together."""
        ready = self._background is None or self._background.done()
        return bool(reduce_number(int(ready), torch.distributed.ReduceOp.MIN))

    def finish(self) -> SaveResult:
        """Wait for the files, seal the checkpoint and rename it.

        If a rank failed, remove the files and raise `TrainingError` on all ranks.
        """
        start = time.monotonic()
        write = self._background.result if self._background else self._writing.write
        with self._cleaning():
            sums = self._writing.finish(run_on_all_ranks(write))
            injected_faults.armed.save("shards")
            files = {f"{folders.SHARDS}/{name}": digest for name, digest in sums.items()}
            size = run_on_first_rank(
                lambda: sum((self._part / name).stat().st_size for name in files)
            )
            plan = self.spec.checkpoint
            in_background = self._background is not None
            final = run_on_first_rank(
                lambda: folders.seal_checkpoint(
                    self._part, self._metadata, files, plan, in_background=in_background
                )
            )

        end = time.monotonic()
        self.stall_seconds += end - start
        return SaveResult(
            self.iteration,
            end - self.started,
            self.stall_seconds,
            size,
            final,
        )

    @contextlib.contextmanager
    def _cleaning(self) -> Iterator[None]:
        try:
            yield
        except TrainingError as error:
            run_on_first_rank(lambda: shutil.rmtree(self._part, ignore_errors=True))
            # An imported weight was refused: keep that reason
            if isinstance(error, RefusedError):
                raise
            failure = TrainingError(
                TrainingMessage.CHECKPOINT_NOT_WRITTEN,
                checkpoint=self._part.with_suffix(""),
                needed=self._needed,
                error=error,
            )
            failure.on_all_ranks = True
            raise failure from error


@dataclass(frozen=True)
class LoadedCheckpoint:
    """The checkpoint a run resumes from, and what is wrong with newer ones."""

    progress: TrainingProgress
    folder: Path
    problems: list[str]
    # Values that differ from the plan and change the training
    changes: list[str]
    harmless: list[str]  # Values that differ without changing the training
    # Whether the optimizer state was not loaded because a different engine wrote the checkpoint
    weights_only: bool
    # What was wrong with the tracker, which is then rewritten; empty if nothing was
    tracker_fault: str
    # How many iterations a newer but incomplete checkpoint is ahead of this one
    lost_iterations: int
    # sha256 of the cached sample order; empty in older checkpoints
    data_cache: dict[str, str]
    source: str = SHARED
    """Where the checkpoint came from: the shared disk, or copies in memory on this node or its
    partner."""


LoadNear: TypeAlias = Callable[[int, int], LoadedCheckpoint | None]
"""A function that loads copies in node memory if they are newer than the first argument.

The first argument is an iteration. The second is the iteration at which the newest checkpoint on
the shared disk was saved.
"""


def load_checkpoint(
    spec: PhasePlan, engine: TrainingEngine, load_near: LoadNear | None = None
) -> LoadedCheckpoint | None:
    """Load the newest complete checkpoint.

    Return None if there has never been a checkpoint. Raise `RefusedError` if no checkpoint is both
    complete and compatible. Newer copies in node memory are preferred to the checkpoint.
    """
    root = spec.path(spec.checkpoint.folder)
    run_on_first_rank(lambda: folders.remove_leftovers(root))
    checkpoints, problems = run_on_first_rank(lambda: folders.candidates(root))
    shape = dict(sorted(model_shape(spec).items()))
    newest = run_on_first_rank(lambda: max(saved_iterations(root), default=0))
    for checkpoint in checkpoints:
        near = load_near(checkpoint.iteration, newest) if load_near else None
        if near is not None:
            return _with_problems(near, problems, newest)
        if difference := folders.differences(checkpoint.metadata.get("model", {}), shape):
            raise RefusedError(
                TrainingMessage.CHECKPOINT_OF_ANOTHER_MODEL,
                folder=checkpoint.folder,
                difference=difference,
            )

        problem = _verify(checkpoint)
        if not problem:
            return _load_candidate(spec, engine, checkpoint, problems)
        problems.append(problem)

    near = load_near(0, newest) if load_near else None
    if near is not None:
        return _with_problems(near, problems, newest)
    if run_on_first_rank(lambda: folders.has_checkpoints(root)):
        tracker = root / folders.TRACKER
        problems = problems or [TrainingMessage.TRACKER_NAMES_NOTHING.fill(tracker=tracker)]
        raise RefusedError(
            TrainingMessage.NO_WHOLE_CHECKPOINT, root=root, problems="\n  ".join(problems)
        )

    return None


def _with_problems(near: LoadedCheckpoint, problems: list[str], newest: int) -> LoadedCheckpoint:
    """Return the copy loaded from node memory, and add what is wrong with skipped checkpoints."""
    lost_iterations = max(0, newest - near.progress.iteration)
    return dataclasses.replace(near, problems=problems, lost_iterations=lost_iterations)


def _load_candidate(
    spec: PhasePlan,
    engine: TrainingEngine,
    checkpoint: CheckpointFolder,
    problems: list[str],
) -> LoadedCheckpoint:
    metadata = checkpoint.metadata
    # Optimizer states differ between engines
    weights_only = metadata["engine"] != spec.engine
    stored = torch_dist.open_shards(checkpoint)
    engine.restore(stored.read, CommonState(**metadata["common"]), with_optimizer=not weights_only)
    # The ZeRO stage does not change how a layout numbers its ranks.
    same_ranks = {**metadata["parallel"], "zero_stage": 0} == {
        **dataclasses.asdict(spec.parallel),
        "zero_stage": 0,
    }
    if same_ranks:
        restore_random(run_on_all_ranks(lambda: stored.read_object(random_state().unique_key)))
    else:
        # If the layout has changed, no random states were saved for these ranks. A new seed keeps
        # earlier random numbers from being repeated
        seed_ranks(spec.seed + 7919 * checkpoint.iteration, graphs=spec.tuning.cuda_graphs)

    root = spec.path(spec.checkpoint.folder)
    tracker_fault, newest = run_on_first_rank(
        lambda: folders.mend_tracker(root, checkpoint.iteration)
    )
    progress = TrainingProgress(
        **{key.name: metadata[key.name] for key in dataclasses.fields(TrainingProgress)}
    )
    changes, harmless = _changes(spec, checkpoint)
    if weights_only:
        crossing = TrainingMessage.WEIGHTS_ALONE.fill(
            engine=metadata["engine"], planned_engine=spec.engine
        )
        harmless = [crossing, *harmless]

    lost_iterations = newest - checkpoint.iteration
    return LoadedCheckpoint(
        progress,
        checkpoint.folder,
        problems,
        changes,
        harmless,
        weights_only,
        tracker_fault,
        lost_iterations,
        dict(metadata.get("data_cache", {})),
    )


def _changes(spec: PhasePlan, checkpoint: CheckpointFolder) -> tuple[list[str], list[str]]:
    """Return the differences between the training run that saved a checkpoint and the plan.

    The first list contains the differences that change training, and the second the harmless ones.
    """
    metadata = checkpoint.metadata
    if metadata.get("fingerprint") == spec.fingerprint:
        return [], []
    if "recipe" not in metadata:
        difference = TrainingMessage.FINGERPRINT_DIFFERS.fill(
            fingerprint=str(metadata.get("fingerprint"))[:12],
            planned_fingerprint=spec.fingerprint[:12],
        )
        return [difference], []

    return identity.differences(metadata["recipe"], json.loads(json.dumps(identity.recipe(spec))))


def _verify(checkpoint: CheckpointFolder) -> str:
    """Return the first problem in the checkpoint files, or ''. Each rank verifies some of them."""
    rank = torch.distributed.get_rank()
    ranks = torch.distributed.get_world_size()
    problems = [""] * ranks
    own_files = sorted(checkpoint.metadata["files"])[rank::ranks]
    # On a CPU, the other ranks use the other cores.
    threads = torch_dist.MOST_FILES if on_gpu() else 1
    fault = folders.checksum_fault(checkpoint, own_files, threads)
    torch.distributed.all_gather_object(problems, fault)
    return next(filter(None, problems), "")


def keep_checkpoint_padding(spec: PhasePlan) -> PhasePlan:
    """Return `spec` with the padded vocabulary from the newest checkpoint, if it can be used.

    The checkpoint must have the same vocabulary, and the padded size must be divisible by the
    tensor-parallel size. Megatron pads to a multiple of 128 x tensor, so a different
    tensor-parallel size would change the padding.
    """
    model = spec.model
    tensor = spec.parallel.tensor
    padded = run_on_first_rank(lambda: _newest_padding(spec))
    if (
        padded in (0, model.shape.padded_vocabulary)
        or padded < model.shape.vocabulary
        or padded % tensor
    ):
        return spec
    if torch.distributed.get_rank() == 0:
        say(
            TrainingMessage.PADDING_KEPT.fill(
                vocabulary=model.shape.vocabulary,
                padded=padded,
                planned=model.shape.padded_vocabulary,
            )
        )

    shape = dataclasses.replace(model.shape, padded_vocabulary=padded)
    return dataclasses.replace(spec, model=dataclasses.replace(model, shape=shape, parameters=0))


def _newest_padding(spec: PhasePlan) -> int:
    """Return the newest checkpoint's padded vocabulary, or 0 if the plan has a different one."""
    checkpoints, _ = folders.candidates(spec.path(spec.checkpoint.folder))
    for checkpoint in checkpoints:
        if "recipe" in checkpoint.metadata:
            same = (
                checkpoint.metadata["recipe"].get("model.vocabulary") == spec.model.shape.vocabulary
            )
            if same:
                return int(checkpoint.metadata["model"]["padded_vocabulary"])
            return 0

    return 0
