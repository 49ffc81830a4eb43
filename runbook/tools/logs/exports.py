"""Exports a log to CSV, JSON, Parquet, TensorBoard, MLflow or trackio.

A run, whose plan is known, can also be exported as MLPerf log lines.
"""

import csv
import io
import json
import math
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict
from operator import attrgetter
from pathlib import Path
from typing import IO, NamedTuple

from runbook.core.errors import DataError
from runbook.core.files import replacing, write_text
from runbook.log_readers.record import KEYS, ParsedLog, Record
from runbook.plan_file.schema import PhasePlan
from runbook.results.history import (
    Step,
    ValidationLoss,
    events_named,
    read_events,
    read_metrics,
    read_validation,
)
from runbook.results.metrics import COLUMNS, find_alarms
from runbook.tools.logs.messages import ExportMessage

_VALUES = attrgetter(*KEYS)
_STRICT_JSON = json.JSONEncoder(allow_nan=False)
BATCH = 100
"""Number of records to encode as JSON at a time."""
_EVALUATION_KEYS = ("iteration", "loss", "perplexity", "name")


def write_json(log: ParsedLog, stream: IO[str]) -> None:
    """Write a log as one JSON object.

    The object contains the format, records, validation losses, notes, failures, alarms and more. A
    value is null if the log does not state it.
    """
    stream.write(
        f'{{"format": {json.dumps(log.format)}, "files": {json.dumps(log.files)},\n "records": ['
    )
    for start in range(0, len(log.records), BATCH):
        rows = [_json_row(log, record) for record in log.records[start : start + BATCH]]
        separator = "," if start else ""
        stream.write(f"{separator}\n  {_rows_text(rows)}")

    others = json.dumps(_without_records(log), ensure_ascii=False)
    stream.write(f"],\n {others[1:]}\n")


def _json_row(log: ParsedLog, record: Record) -> dict[str, object]:
    """Return the values in a record, including its position in the files."""
    row: dict[str, object] = dict(zip(KEYS, _VALUES(record), strict=True))
    row["source"] = log.source(record)
    return row


def _rows_text(rows: Sequence[dict[str, object]]) -> str:
    """Return rows as JSON, one per line, without the brackets around the list."""
    try:
        text = _STRICT_JSON.encode(rows)
    except ValueError:
        # JSON has no NaN and no infinities, so these become null.
        text = _STRICT_JSON.encode([_finite_values(row) for row in rows])

    # Quotes inside a value are escaped, so these characters occur in this order only between
    # records.
    return text[1:-1].replace('}, {"iteration"', '},\n  {"iteration"')


def _without_records(log: ParsedLog) -> dict[str, object]:
    """Return everything in a log except its records, as plain values."""
    values: dict[str, object] = {}
    if log.facts:
        values["facts"] = asdict(log.facts)
    evaluations = []
    for evaluation in log.validation:
        row = {key: getattr(evaluation, key) for key in _EVALUATION_KEYS}
        evaluations.append(row | {"source": log.source(evaluation)})

    values["validation"] = evaluations
    values["notes"] = log.notes
    values["unread_lines"] = log.unread_lines
    values["failures"] = [asdict(failure) for failure in log.failures]
    values["cause"] = asdict(log.cause) if log.cause else None
    values["look_next"] = asdict(log.look_next) if log.look_next else None
    values["first_error"] = asdict(log.first_error) if log.first_error else None
    values["effects"] = [asdict(failure) for failure in log.effects]
    values["alarms"] = [
        _finite_values(asdict(alarm))
        for alarm in find_alarms(log.records, log.evaluations_in_order)
    ]
    return values


def _finite_values(row: dict[str, object]) -> dict[str, object]:
    """Return a row with None instead of NaN and infinities."""
    return {name: _finite(value) for name, value in row.items()}


def _finite(value: object) -> object:
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return value


def write_csv(log: ParsedLog, stream: IO[str]) -> None:
    """Write one line per record.

    A cell is empty if the log does not state the value. Multiple states are separated by spaces.
    """
    writer = csv.writer(stream, lineterminator="\n")
    writer.writerow((*KEYS, "source"))
    for record in log.records:
        *numbers, states = _VALUES(record)
        writer.writerow([*numbers, " ".join(states), log.source(record)])


NUMBERS = {
    "loss": COLUMNS["loss"],
    "grad_norm": COLUMNS["grad_norm"],
    "learning_rate": COLUMNS["learning_rate"],
    "loss_scale": COLUMNS["loss_scale"],
    "seconds": COLUMNS["seconds"],
    "samples_per_second": "throughput (samples/s)",
    "tokens_per_second": COLUMNS["tokens_per_second"],
    "tflops": COLUMNS["tflops_per_device"],
}
"""Record fields to export as curves, with the curve names and units."""
INTEGERS = ("iteration", "skipped", "nan", "segment")


def _write_csv_file(log: ParsedLog, stream: IO[bytes]) -> None:
    text = io.TextIOWrapper(stream, encoding="utf-8", newline="")
    write_csv(log, text)
    # Flush the text, and leave the stream open so that it can be synced
    text.detach()


def _write_parquet(log: ParsedLog, stream: IO[bytes]) -> None:
    """Write the records as a Parquet table.

    Parquet needs the data extra (pyarrow).
    """
    import pyarrow as pa
    import pyarrow.parquet as pq

    types = dict.fromkeys(INTEGERS, pa.int64())
    types |= dict.fromkeys(NUMBERS, pa.float64())
    types["tflops_convention"] = pa.string()
    columns = {}
    for key, column_type in types.items():
        columns[key] = pa.array([getattr(record, key) for record in log.records], column_type)
    states = [" ".join(record.states) for record in log.records]
    columns["states"] = pa.array(states, pa.string())
    sources = [log.source(record) for record in log.records]
    columns["source"] = pa.array(sources, pa.string())
    metadata = {
        "format": log.format,
        "files": json.dumps(log.files),
        "units": json.dumps(NUMBERS),
        "notes": json.dumps(log.notes),
    }
    table = pa.table(columns).replace_schema_metadata(metadata)
    pq.write_table(table, stream, compression="zstd")


class Point(NamedTuple):
    """Metrics for a step, in the form accepted by a tracker."""

    iteration: int
    time: float
    """Unix time, in seconds."""
    values: dict[str, float]


def points(log: ParsedLog) -> Iterator[Point]:
    """Yield the metrics in each record, and each evaluation, at the last step before it.

    The time of a record is computed backwards from the end of the log, using the logged step times.
    """
    evaluations: dict[int, dict[str, float]] = {}
    for evaluation in log.validation:
        iteration = evaluation.iteration or 0
        evaluations.setdefault(iteration, {})[f"{evaluation.name}_loss"] = evaluation.loss

    moment = _end_time(log) - sum(record.seconds or 0.0 for record in log.records)
    for record in log.records:
        moment += record.seconds or 0.0
        values = {}
        for name in NUMBERS:
            value = getattr(record, name)
            if value is not None and not math.isnan(value):
                values[name] = float(value)

        values |= evaluations.pop(record.iteration, {})
        yield Point(record.iteration, moment, values)

    for iteration, losses in sorted(evaluations.items()):
        yield Point(iteration, moment, losses)


def _end_time(log: ParsedLog) -> float:
    """Return when the newest file in a log was written."""
    ends = []
    for file in log.files:
        if Path(file).is_file():
            ends.append(Path(file).stat().st_mtime)

    return max(ends, default=time.time())


def _to_tensorboard(log: ParsedLog, folder: str, name: str) -> None:
    """Write files to a folder that `tensorboard --logdir` reads.

    TensorBoard files need the train extra (tensorboard), not torch.
    """
    from tensorboard.summary import Writer

    writer = Writer(folder)
    for step, moment, values in points(log):
        for key, value in values.items():
            if key in NUMBERS:
                tag = f"training/{NUMBERS[key]}"
            else:
                tag = f"{key.removesuffix('_loss')}/{NUMBERS['loss']}"

            writer.add_scalar(tag, value, step=step, wall_time=moment)

    writer.close()


def _to_mlflow(log: ParsedLog, uri: str, name: str) -> None:
    """Write a run to the experiment `gpt3-runbook` at a tracking URI.

    The URI is a server address or a database, such as sqlite:///runs.db.
    """
    import mlflow
    from mlflow.entities import Metric, Param

    mlflow.set_tracking_uri(uri)
    mlflow.set_experiment("gpt3-runbook")
    texts = {"log_format": log.format, "log_files": ", ".join(log.files), **log.arguments}
    parameters = [Param(key, text[:500]) for key, text in texts.items()]
    metrics = []
    for step, moment, values in points(log):
        milliseconds = int(moment * 1000)
        metrics += [Metric(key, value, milliseconds, step) for key, value in values.items()]

    with mlflow.start_run(run_name=name) as run:
        mlflow.MlflowClient().log_batch(run.info.run_id, metrics=metrics, params=parameters)


def _to_trackio(log: ParsedLog, project: str, name: str) -> None:
    """Write a run to a project in the local trackio database."""
    import trackio

    trackio.init(
        project=project,
        name=name,
        config={"log_format": log.format, "log_files": ", ".join(log.files)},
    )
    for step, _, values in points(log):
        trackio.log(values, step=step)
    trackio.finish()


_FILES = {".csv": _write_csv_file, ".parquet": _write_parquet}
_TRACKERS = {"tensorboard": _to_tensorboard, "mlflow": _to_mlflow, "trackio": _to_trackio}


def export(log: ParsedLog, target: str, *, name: str) -> str:
    """Write the records to a file or to a tracker, and return a description of the output.

    A file is written under a temporary name and renamed.
    """
    path = Path(target)
    tracker, _, destination = target.partition(":")
    is_tracker = tracker in _TRACKERS and bool(destination)
    if not is_tracker and path.suffix not in _FILES:
        forms = (
            "FILE.csv, FILE.parquet, tensorboard:DIR, mlflow:URI (such as "
            "mlflow:sqlite:///runs.db), "
            "trackio:PROJECT"
        )
        raise DataError(ExportMessage.NOT_A_TARGET, target=target, forms=forms)

    if not log.records:
        reason = "; ".join(log.notes) or "the log has none"
        raise DataError(ExportMessage.NOTHING_TO_EXPORT, reason=reason)

    if is_tracker:
        _TRACKERS[tracker](log, destination, name)
    else:
        with replacing(path, error=DataError) as stream:
            _FILES[path.suffix](log, stream)

    return f"{len(log.records)} records and {len(log.validation)} evaluations -> {target}"


def write_mllog(spec: PhasePlan, target: Path) -> str:
    """Write the training as `:::MLLOG` lines for the checker in mlperf-logging.

    Return a description of the output. The file is a record, not a submission: its division is
    `open`, and it names no organization.
    """
    history = read_metrics(spec.path(spec.log.metrics))
    validation = read_validation(spec.path(spec.log.validation))
    evaluations = {evaluation.iteration: evaluation for evaluation in validation}
    starts = events_named(read_events(spec.path(spec.log.events), spec.phase), "started")
    start_times = [event.time for event in starts]
    entries = list(_entries(spec, history.steps, evaluations, start_times))
    text = "".join(f":::MLLOG {json.dumps(entry)}\n" for entry in entries)
    write_text(target, text, error=DataError)
    count = sum(entry["key"] == "eval_accuracy" for entry in entries)
    return f"{len(history.steps)} steps and {count} evaluations -> mllog: {target}"


def _values(spec: PhasePlan) -> dict[str, object]:
    """Return the values logged once, before the first step."""
    batch = spec.batch
    rate = spec.learning_rate
    adam = spec.optimizer
    parallel = spec.parallel
    return {
        "submission_benchmark": "gpt3",
        "submission_org": "none",
        "submission_division": "open",
        "submission_status": "research",
        "submission_platform": spec.device,
        "cache_clear": False,
        "seed": spec.seed,
        "global_batch_size": batch.global_,
        "micro_batch_size": batch.micro,
        "gradient_accumulation_steps": batch.num_microbatches,
        "max_sequence_length": spec.model.shape.sequence_length,
        "train_samples": spec.duration.samples,
        "eval_samples": spec.evaluation.iterations * batch.global_,
        "init_checkpoint_step": 0,
        "opt_base_learning_rate": rate.peak,
        "opt_end_learning_rate": rate.minimum,
        "opt_learning_rate_decay_schedule": f"{rate.schedule} with linear warmup",
        "opt_learning_rate_warmup_steps": batch.iterations_within(rate.warmup_samples),
        "opt_learning_rate_decay_steps": batch.iterations_within(rate.decay_samples),
        "opt_name": "adam",
        "opt_adam_beta_1": adam.beta1,
        "opt_adam_beta_2": adam.beta2,
        "opt_adam_epsilon": adam.epsilon,
        "opt_gradient_clip_norm": adam.clip_gradient,
        "opt_weight_decay": adam.weight_decay,
        "tensor_parallelism": parallel.tensor,
        "pipeline_parallelism": parallel.pipeline,
        "context_parallelism": parallel.context,
        "expert_parallelism": 1,
    }


_EVENT_TYPES = {"start": "INTERVAL_START", "stop": "INTERVAL_END"}
"""Event types in MLPerf, by the last word in a key. Other keys have type POINT_IN_TIME."""


def _entry(
    key: str,
    seconds: float,
    value: object = None,
    **where: object,
) -> dict[str, object]:
    """Return an entry for an MLPerf log."""
    last_word = key.rpartition("_")[2]
    return {
        "namespace": "",
        "time_ms": round(1000 * seconds),
        "event_type": _EVENT_TYPES.get(last_word, "POINT_IN_TIME"),
        "key": key,
        "value": value,
        "metadata": where,
    }


def _entries(
    spec: PhasePlan,
    steps: Sequence[Step],
    evaluations: Mapping[int, ValidationLoss],
    starts: Sequence[float],
) -> Iterator[dict[str, object]]:
    """Yield the entries in order.

    A block is the training between two evaluations.
    """
    begin = steps[0].time - steps[0].seconds
    end = steps[-1].time
    init = min([begin, *starts])
    yield _entry("init_start", init)
    for key, value in _values(spec).items():
        yield _entry(key, init, value)
    yield _entry("init_stop", begin)
    yield _entry("run_start", begin)
    # The GPT-3 benchmark in MLPerf counts epochs in samples
    where = {"epoch_num": 0, "samples_count": 0}
    yield _entry("block_start", begin, **where)
    for step in steps:
        stats = {"train_step_time": step.seconds, "reduced_train_loss": step.loss}
        yield _entry("tracked_stats", step.time, stats, step=step.iteration)
        evaluation = evaluations.get(step.iteration)
        if evaluation is None:
            continue
        evaluation_start = evaluation.time - evaluation.seconds
        yield _entry("block_stop", evaluation_start, **where)
        samples = step.consumed_tokens // spec.model.shape.sequence_length
        where = {"epoch_num": samples, "samples_count": samples}
        yield _entry("eval_start", evaluation_start, **where)
        yield _entry("eval_accuracy", evaluation.time, evaluation.loss, **where)
        yield _entry("eval_stop", evaluation.time, **where)
        end = max(end, evaluation.time)
        if step is not steps[-1]:
            yield _entry("block_start", evaluation.time, **where)

    if steps[-1].iteration not in evaluations:
        yield _entry("block_stop", end, **where)
    if steps[-1].iteration >= spec.duration.iterations:
        status = "success"
    else:
        status = "aborted"

    yield _entry("run_stop", end, None, status=status)
