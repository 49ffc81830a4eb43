"""Calls the library for each tracker.

Addresses, accounts and keys come from the environment variables the tracker defines.
"""

import dataclasses
import netrc
import os
import secrets
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol
from urllib.parse import urlsplit

from runbook.plan_file.schema import PhasePlan

PROJECT = "gpt3-runbook"
"""Project (or experiment in MLflow) to use if neither the run file nor a tracker variable names
one.
"""
FOLDER = "trackers"
"""Folder in the run folder for local stores, logs, and tracker progress."""
METRICS_PER_CALL = 1000
"""Largest number of metrics an MLflow server accepts in one log_batch (mlflow 3.17,
MAX_METRICS_PER_BATCH)."""
WANDB_ADDRESS = "https://api.wandb.ai"


@dataclass(frozen=True)
class TrackedPoint:
    """The metrics from a step or an evaluation."""

    iteration: int
    time: float
    values: dict[str, float]


class Service(Protocol):
    """A tracker service.

    The methods may raise errors or hang, so they are called only in a process for this tracker.
    """

    def open(self, run: str) -> str:
        """Begin a run if `run` is empty, or else continue the run with this id.

        Return the run id.
        """

    def log(self, points: Sequence[TrackedPoint]) -> None:
        """Send the points in order."""

    def close(self) -> None:
        """Send buffered numbers, and end the run."""


Setting = str | int | float


def settings_of(spec: PhasePlan) -> dict[str, Setting]:
    """Return a flat description of the training: names and numbers in the plan, but no paths."""
    sections = ("model", "parallel", "batch", "duration", "learning_rate", "optimizer", "precision")
    values: dict[str, Setting] = {"phase": spec.phase, "engine": spec.engine, "seed": spec.seed}
    for section in sections:
        content = dataclasses.asdict(getattr(spec, section))
        # Model sizes are stored next to the model name, as in plan.json.
        sizes = content.pop("shape", {})
        values |= dict(_flat(section, sizes | content))
    return values


def _flat(prefix: str, content: Mapping[str, object]) -> Iterator[tuple[str, Setting]]:
    for key, value in content.items():
        name = f"{prefix}.{key}"
        if isinstance(value, Mapping):
            yield from _flat(name, value)
        elif isinstance(value, Setting):
            yield name, value


class WandbService:
    """Weights & Biases.

    Without a key or with WANDB_MODE=offline, W&B writes files for `wandb sync`.
    """

    def __init__(self, spec: PhasePlan) -> None:
        import wandb

        self._wandb = wandb
        self._spec = spec

    def open(self, run: str) -> str:
        """Begin or continue a run."""
        spec = self._spec
        run = run or secrets.token_hex(4)
        self._run = self._wandb.init(
            project=spec.log.tracker_project or os.environ.get("WANDB_PROJECT") or PROJECT,
            name=spec.root.resolve().name,
            id=run,
            resume="allow",
            dir=str(spec.path(FOLDER)),
            mode=os.environ.get("WANDB_MODE") or ("online" if _has_wandb_key() else "offline"),
            config=settings_of(spec),
            settings=self._wandb.Settings(console="off"),
        )
        # The step counter in W&B is not used: a rollback repeats iterations, which W&B would drop.
        self._run.define_metric("*", step_metric="iteration")
        return run

    def log(self, points: Sequence[TrackedPoint]) -> None:
        """Send the points in order."""
        for point in points:
            self._run.log({"iteration": point.iteration, **point.values})

    def close(self) -> None:
        """End the run."""
        self._run.finish()


def _has_wandb_key() -> bool:
    """Return whether `wandb login` was run here, or WANDB_API_KEY is set.

    Otherwise `wandb.init` would ask for a key.
    """
    if os.environ.get("WANDB_API_KEY"):
        return True
    host = urlsplit(os.environ.get("WANDB_BASE_URL", WANDB_ADDRESS)).hostname or ""
    try:
        return netrc.netrc().authenticators(host) is not None
    except (OSError, netrc.NetrcParseError):
        return False


class MlflowService:
    """MLflow, with the server at MLFLOW_TRACKING_URI or a SQLite file in the run folder."""

    def __init__(self, spec: PhasePlan) -> None:
        from mlflow.entities import Metric, Param
        from mlflow.tracking import MlflowClient

        self._metric = Metric
        self._parameter = Param
        self._spec = spec
        folder = spec.path(FOLDER).resolve()
        self._artifacts = ""
        address = os.environ.get("MLFLOW_TRACKING_URI", "")
        if not address:
            database = folder / "mlflow.db"
            if not database.exists():
                # MLflow creates its tables in about forty steps, and cannot open a file if it was
                # interrupted between two of these steps. Creating them takes 4 s on an idle
                # machine, and minutes on a busy one.
                part = database.with_name(f"mlflow.{os.getpid()}.part")
                MlflowClient(f"sqlite:///{part}")
                part.replace(database)

            address = f"sqlite:///{database}"
            self._artifacts = (folder / "mlflow").as_uri()

        self._client = MlflowClient(address)

    def open(self, run: str) -> str:
        """Begin or continue a run."""
        if run:
            self._run = run
            self._client.update_run(run, status="RUNNING")
            return run

        spec = self._spec
        name = spec.log.tracker_project or os.environ.get("MLFLOW_EXPERIMENT_NAME") or PROJECT
        experiment = self._client.get_experiment_by_name(name)
        if experiment is None:
            number = self._client.create_experiment(name, self._artifacts or None)
        else:
            number = experiment.experiment_id

        created = self._client.create_run(number, run_name=spec.root.resolve().name)
        self._run = str(created.info.run_id)
        parameters = [self._parameter(key, str(value)) for key, value in settings_of(spec).items()]
        self._client.log_batch(self._run, params=parameters)
        return self._run

    def log(self, points: Sequence[TrackedPoint]) -> None:
        """Send the points in order."""
        metrics = []
        for point in points:
            for name, value in point.values.items():
                metrics.append(self._metric(name, value, int(point.time * 1000), point.iteration))

        for start in range(0, len(metrics), METRICS_PER_CALL):
            self._client.log_batch(self._run, metrics=metrics[start : start + METRICS_PER_CALL])

    def close(self) -> None:
        """End the run."""
        self._client.set_terminated(self._run)


class TrackioService:
    """trackio, with a Space (TRACKIO_SPACE_ID) or a folder (TRACKIO_DIR, or a folder in the run)."""

    def __init__(self, spec: PhasePlan) -> None:
        folder = str(spec.path(FOLDER).resolve() / "trackio")
        # trackio reads this variable when it is imported.
        os.environ.setdefault("TRACKIO_DIR", folder)
        import trackio

        self._trackio = trackio
        self._spec = spec

    def open(self, run: str) -> str:
        """Begin or continue a run. trackio identifies runs by name."""
        spec = self._spec
        run = run or spec.root.resolve().name
        self._run = self._trackio.init(
            project=spec.log.tracker_project or PROJECT,
            name=run,
            space_id=os.environ.get("TRACKIO_SPACE_ID"),
            config=settings_of(spec),
            resume="allow",
            embed=False,
        )
        return run

    def log(self, points: Sequence[TrackedPoint]) -> None:
        """Send the points in order."""
        for point in points:
            self._run.log(point.values, step=point.iteration)

    def close(self) -> None:
        """End the run."""
        self._run.finish()


SERVICES: dict[str, Callable[[PhasePlan], Service]] = {
    "wandb": WandbService,
    "mlflow": MlflowService,
    "trackio": TrackioService,
}
"""The trackers, by their names in `training.trackers`."""
