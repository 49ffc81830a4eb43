"""Trains a step from a run again, in a separate folder."""

import json
import shutil
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from runbook.core import shell
from runbook.core.errors import ParamsError, ProgramError
from runbook.core.files import read_lines, write_text
from runbook.plan_file.checkpoint_folder import TRACKER, folder_name, saved_iterations
from runbook.plan_file.errors import RefusedError
from runbook.plan_file.json_records import as_json
from runbook.plan_file.replay_file import read_steps
from runbook.plan_file.schema import PhasePlan, read_plan
from runbook.results.history import Step, read_metrics
from runbook.tools.replay.messages import ReplayMessage
from runbook.tools.replay.verdict import ReplayComparison, compare

LIMIT_SECONDS = 7 * 86_400.0
LOG_FILES = ("metrics", "validation", "samples", "events", "tensorboard")


@dataclass(frozen=True)
class ReplayJob:
    """A step to train again."""

    run: Path
    phase: PhasePlan
    step: int
    begin: int
    """Iteration of the checkpoint to start the replay from, or 0 for the initial weights."""

    @property
    def folder(self) -> Path:
        """Return the folder for replay files, so that the run itself stays unchanged."""
        return self.run / "replay" / f"step-{self.step}"

    @property
    def training_mark(self) -> Path:
        """Return the path to the file used to identify the replayed training."""
        return self.folder / "training"

    @property
    def is_done(self) -> bool:
        """Return whether this step in this training run has already been replayed.

        Replays for another phase or an earlier run are ignored.
        """
        try:
            training = self.training_mark.read_text(encoding="utf-8")
        except FileNotFoundError:
            return False

        is_this_training = training.strip() == self.training
        return is_this_training and self.step in _steps(self.folder / "metrics.jsonl")

    @property
    def training(self) -> str:
        """Return the phase and the fingerprint, which together identify this training run."""
        return f"{self.phase.phase} {self.phase.fingerprint}"

    def command(self, processes: int, *, launcher: bool) -> list[str]:
        """Return the command to train the step.

        If there is no launcher, the command starts a single rank.
        """
        command = [sys.executable, "-m"]
        if launcher and processes > 1:
            command += ["torch.distributed.run", "--standalone", "--local-addr=127.0.0.1"]
            command += [f"--nproc-per-node={processes}", "-m"]

        command += ["runbook.training", str(self.folder / "plan.json")]
        return [*command, "--phase", self.phase.phase, "--until", str(self.step)]


def replay_job(run: Path, phase_name: str, step: int) -> ReplayJob:
    """Return the replay for a step, starting from the nearest checkpoint before it.

    Raise ParamsError if the run has no such step to compare with.
    """
    try:
        phase = read_plan(run / "plan.json", phase_name)
    except RefusedError as error:
        raise ParamsError(f"{error}.") from error

    if not 1 <= step <= phase.duration.iterations:
        raise ParamsError(
            ReplayMessage.STEP_OUT_OF_RANGE, step=step, iterations=phase.duration.iterations
        )

    _recorded_steps(run, phase, step)
    saved = saved_iterations(run / phase.checkpoint.folder)
    begin = max((iteration for iteration in saved if iteration < step), default=0)
    return ReplayJob(run, phase, step, begin)


def prepare(job: ReplayJob) -> None:
    """Write the folder for a replay, with an adapted plan and a link to the checkpoint."""
    shutil.rmtree(job.folder, ignore_errors=True)
    checkpoints = job.folder / "checkpoints"
    checkpoints.mkdir(parents=True)
    if job.begin:
        name = folder_name(job.begin)
        source = (job.run / job.phase.checkpoint.folder / name).absolute()
        (checkpoints / name).symlink_to(source)
        write_text(checkpoints / TRACKER, f"{job.begin}\n")

    content = as_json(job.phase)
    data = content["data"]
    for use in ("train", "validation", "test"):
        for source_file in data[use]:
            source_file["prefix"] = str((job.run / source_file["prefix"]).absolute())

    data["cache"] = str((job.run / data["cache"]).absolute())
    content["checkpoint"] |= {"folder": "checkpoints", "interval": 0, "near_interval": 0}
    content["evaluation"] = {"interval": 0, "iterations": 0}
    content["sampling"]["prompt_ids"] = []
    limits = content["limits"]
    limits |= {"exit_duration_seconds": 0, "replay_interval": limits.get("replay_interval") or 1}
    limits.pop("exit_interval", None)
    log = content["log"]
    log |= {name: Path(log[name]).name for name in LOG_FILES}
    for channel in ("alarm_webhook", "alarm_command", "trackers", "tracker_project"):
        log.pop(channel, None)
    plan = {"schema": 1, "run": job.run.name, "phases": {job.phase.phase: content}}
    write_text(job.folder / "plan.json", json.dumps(plan, indent=1) + "\n")
    write_text(job.training_mark, f"{job.training}\n")


def train_again(job: ReplayJob, say: Callable[[str], None]) -> None:
    """Train the step on this machine, with one process per rank in the run."""
    ranks = job.phase.parallel.world_size
    threads = _recorded_threads(job)
    # Use the same number of threads as the run, because a sum over cores depends on it.
    prefix = ["env", f"OMP_NUM_THREADS={threads}"] if threads else []
    command = [*prefix, *job.command(ranks, launcher=True)]
    code = shell.follow(
        command,
        say=say,
        timeout=LIMIT_SECONDS,
        cwd=job.folder,
    )
    if code or not job.is_done:
        raise ProgramError(
            ReplayMessage.REPLAY_ENDED_EARLY, code=shell.how_it_ended(code), step=job.step
        )


def compare_with_run(job: ReplayJob) -> ReplayComparison:
    """Compare results from the replay with records from the run."""
    return compare(
        _recorded_steps(job.run, job.phase, job.step),
        _steps(job.folder / "metrics.jsonl"),
        read_steps(read_lines(job.run / job.phase.log.replay)),  # type: ignore[arg-type]
        read_steps(read_lines(job.folder / "replay.jsonl")),  # type: ignore[arg-type]
        begin=job.begin,
        step=job.step,
    )


def _recorded_steps(run: Path, phase: PhasePlan, step: int) -> dict[int, Step]:
    """Return the steps in the metrics file. Raise ParamsError if `step` is not one of them."""
    metrics = run / phase.log.metrics
    steps = _steps(metrics)
    if step not in steps:
        raise ParamsError(
            ReplayMessage.STEP_NOT_TRAINED, metrics=metrics, step=step, last=max(steps, default=0)
        )
    return steps


def _steps(path: Path) -> dict[int, Step]:
    if not path.exists():
        return {}
    return {step.iteration: step for step in read_metrics(path).steps}


def _recorded_threads(job: ReplayJob) -> int:
    recorded = read_steps(read_lines(job.run / job.phase.log.replay))  # type: ignore[arg-type]
    threads = [step.circumstances.threads for step in recorded.values()]
    return threads[-1] if threads else 0
