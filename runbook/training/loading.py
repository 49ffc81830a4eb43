"""Find the newest state of a run that is whole and load it, on all ranks together."""

from __future__ import annotations

import dataclasses
import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from runbook.training import checkpoints, recipe, sharded_files
from runbook.training.checkpoints import Found
from runbook.training.distributed import on_first, seed_ranks
from runbook.training.engine import Engine
from runbook.training.errors import RefusedError
from runbook.training.progress import Progress, random_state, restore_random, shape
from runbook.training.spec import Spec


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


def load(spec: Spec, engine: Engine) -> Loaded | None:
    """Take up the newest whole checkpoint; None where there never was one.

    `RefusedError` where none is whole, or where it is of another model.
    """
    root = spec.path(spec.checkpoint.folder)
    on_first(lambda: checkpoints.clean(root))
    found, problems = on_first(lambda: checkpoints.candidates(root))
    newest_ever = on_first(lambda: checkpoints.newest_iteration(root))
    for candidate in found:
        difference = checkpoints.shape_difference(candidate.metadata.get("model", {}), shape(spec))
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


def _take(spec: Spec, engine: Engine, found: Found, problems: list[str]) -> Loaded:
    metadata = found.metadata
    room: dict[str, Any] = engine.sharded_state(loading=True)
    weights_only = metadata["engine"] != spec.engine
    if weights_only:  # each engine's optimizer state is its own
        del room["optimizer"]
    same_ranks = _ranks(metadata["parallel"]) == _ranks(dataclasses.asdict(spec.parallel))
    if same_ranks:
        room["random"] = random_state()
    loaded = sharded_files.read(room, found.folder / checkpoints.SHARDS)
    engine.restore(loaded, metadata["common"])
    if same_ranks:
        restore_random(loaded["random"])
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
