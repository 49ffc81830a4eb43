"""Lists the files that training writes to the run folder, and moves them to the history."""

from collections.abc import Sequence
from pathlib import Path

from runbook.core.files import make_dated_folder
from runbook.plan_file.checkpoint_folder import newest_checkpoint
from runbook.plan_file.phase_names import FULL
from runbook.plan_file.schema import PhasePlan
from runbook.records.manifest import move_files
from runbook.results.forecast_seal import FORECASTS_FILE


def training_paths(folder: Path, phase_plan: PhasePlan) -> list[Path]:
    """Return all paths that a training phase writes outside its job folders."""
    log = phase_plan.log
    names = (
        log.metrics,
        log.rank_times,
        log.validation,
        log.samples,
        log.tensorboard,
        phase_plan.checkpoint.folder,
    )
    return [folder / name for name in names]


def training_outputs(folder: Path, phase_plan: PhasePlan) -> list[Path]:
    """Return the files whose checksums prove that a training run is unchanged.

    These are the logs, such as the metrics, and the newest checkpoint.
    """
    newest = newest_checkpoint(folder / phase_plan.checkpoint.folder)
    weights = newest.rglob("*") if newest else ()
    written = [*training_paths(folder, phase_plan), *weights]
    return [path for path in written if path.is_file()]


def sealed_paths(folder: Path, phase: str) -> list[Path]:
    """Return the paths to forecasts sealed for training in a phase."""
    if phase == FULL:
        return [folder / FORECASTS_FILE]
    return []


def move_to_history(folder: Path, phase: str, outputs: Sequence[Path]) -> Path | None:
    """Move earlier outputs from a phase to the run history, so that nothing is overwritten."""
    present = [path for path in outputs if path.exists()]
    if not present:
        return None
    history = make_dated_folder(folder / "history", phase)
    move_files(
        folder,
        {
            path: history / path.relative_to(folder).as_posix().replace("/", "--")
            for path in present
        },
    )
    return history
