"""MLflow and trackio: a run of theirs with our curves; each is an extra of its own and is imported only here."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from runbook.analysis.exports.curves import points, wall_times
from runbook.analysis.parsers.record import ParsedLog

BATCH = 1000
"""Metrics that MLflow takes at once."""
LONGEST_PARAMETER = 500


def write_mlflow(log: ParsedLog, uri: str, *, name: str, end: float) -> None:
    """A run in the experiment `gpt3-runbook` at a tracking URI, such as sqlite:///runs.db or a server's address."""
    import mlflow
    from mlflow.entities import Metric, Param

    mlflow.set_tracking_uri(uri)
    mlflow.set_experiment("gpt3-runbook")
    with mlflow.start_run(run_name=name) as run:
        client = mlflow.MlflowClient()
        told = {"log_format": log.format, "log_files": ", ".join(log.files), **log.arguments}
        parameters = [Param(key, value[:LONGEST_PARAMETER]) for key, value in told.items()]
        for start in range(0, len(parameters), 100):
            client.log_batch(run.info.run_id, params=parameters[start : start + 100])
        metrics = [Metric(key, value, int(time * 1000), step) for key, value, time, step in _metrics(log, end)]
        for start in range(0, len(metrics), BATCH):
            client.log_batch(run.info.run_id, metrics=metrics[start : start + BATCH])


def write_trackio(log: ParsedLog, project: str, *, name: str) -> None:
    """A run in a project of trackio's local database."""
    import trackio

    trackio.init(project=project, name=name, config={"log_format": log.format, "log_files": ", ".join(log.files)})
    evaluated: dict[int, dict[str, Any]] = {}
    for one in log.validation:
        evaluated.setdefault(one.iteration or 0, {})[f"{one.name}_loss"] = one.loss
    for record in log.records:
        trackio.log({**dict(points(record)), **evaluated.pop(record.iteration, {})}, step=record.iteration)
    for iteration, values in sorted(evaluated.items()):
        trackio.log(values, step=iteration)
    trackio.finish()


def _metrics(log: ParsedLog, end: float) -> Iterator[tuple[str, float, float, int]]:
    times = wall_times(log, end)
    for record, time in zip(log.records, times, strict=True):
        for key, value in points(record):
            yield key, value, time, record.iteration
    for one in log.validation:
        yield f"{one.name}_loss", one.loss, times[-1] if times else end, one.iteration or 0
