"""Exports of a log: CSV, JSON, Parquet, TensorBoard, MLflow, trackio; of a run's training: MLPerf log lines."""

import csv
import io
import json
import math
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict
from operator import attrgetter
from pathlib import Path
from typing import IO

from runbook.core.errors import DataError
from runbook.core.files import replacing, write_text
from runbook.log_readers.record import KEYS, ParsedLog
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

_VALUES = attrgetter(*KEYS)
_STRICT_JSON = json.JSONEncoder(allow_nan=False)
BATCH = 100
"""Records encoded as JSON at once."""


def write_json(log: ParsedLog, stream: IO[str]) -> None:
    """One object: format, records, validation, notes, unread_lines, MLPerf's facts; null where the log does not say."""
    stream.write(
        f'{{"format": {json.dumps(log.format)}, "files": {json.dumps(log.files)},\n "records": ['
    )
    for start in range(0, len(log.records), BATCH):
        part = log.records[start : start + BATCH]
        rows = [
            dict(zip(KEYS, _VALUES(record), strict=True), source=log.source(record))
            for record in part
        ]
        try:
            text = _STRICT_JSON.encode(rows)
        except ValueError:  # NaN and infinities are no JSON and become null
            text = _STRICT_JSON.encode(
                [{key: _finite(value) for key, value in row.items()} for row in rows]
            )
        # a quote inside a value is escaped: only where two records meet do these characters follow each other
        text = text[1:-1].replace('}, {"iteration"', '},\n  {"iteration"')
        stream.write(f"{',' if start else ''}\n  {text}")
    evaluations = [
        {key: getattr(one, key) for key in ("iteration", "loss", "perplexity", "name")}
        | {"source": log.source(one)}
        for one in log.validation
    ]
    rest = ({"facts": asdict(log.facts)} if log.facts else {}) | {
        "validation": evaluations,
        "notes": log.notes,
        "unread_lines": log.unread_lines,
        "failures": [asdict(failure) for failure in log.failures],
        "cause": asdict(log.cause) if log.cause else None,
        "alarms": [
            {name: _finite(fact) for name, fact in asdict(one).items()}
            for one in find_alarms(log.records)
        ],
    }
    stream.write(f"],\n {json.dumps(rest, ensure_ascii=False)[1:]}\n")


def _finite(value: object) -> object:
    return None if isinstance(value, float) and not math.isfinite(value) else value


def write_csv(log: ParsedLog, stream: IO[str]) -> None:
    """One line a record; an empty cell where the log does not say, several states joined by a space."""
    writer = csv.writer(stream, lineterminator="\n")
    writer.writerow((*KEYS, "source"))
    for record in log.records:
        *numbers, states = _VALUES(record)
        writer.writerow([*numbers, " ".join(states), log.source(record)])


NUMBERS = {
    **{
        key: COLUMNS[key] for key in ("loss", "grad_norm", "learning_rate", "loss_scale", "seconds")
    },
    "samples_per_second": "throughput (samples/s)",
    "tokens_per_second": COLUMNS["tokens_per_second"],
    "tflops": COLUMNS["tflops_per_device"],
}
"""Numbers of a record that make a curve, and what they are called with their units."""
WHOLE = ("iteration", "skipped", "nan", "segment")


def _write_csv_file(log: ParsedLog, stream: IO[bytes]) -> None:
    text = io.TextIOWrapper(stream, encoding="utf-8", newline="")
    write_csv(log, text)
    text.detach()  # flushes, and leaves the stream open for its sync


def _write_parquet(log: ParsedLog, stream: IO[bytes]) -> None:
    """Needs the data extra (pyarrow)."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    kinds = (
        dict.fromkeys(WHOLE, pa.int64())
        | dict.fromkeys(NUMBERS, pa.float64())
        | {"tflops_convention": pa.string()}
    )
    arrays = {
        key: pa.array([getattr(record, key) for record in log.records], kind)
        for key, kind in kinds.items()
    }
    arrays["states"] = pa.array([" ".join(record.states) for record in log.records], pa.string())
    arrays["source"] = pa.array([log.source(record) for record in log.records], pa.string())
    told = {
        key: json.dumps(value)
        for key, value in (("files", log.files), ("units", NUMBERS), ("notes", log.notes))
    }
    table = pa.table(arrays).replace_schema_metadata({"format": log.format, **told})
    pq.write_table(table, stream, compression="zstd")


def points(log: ParsedLog) -> Iterator[tuple[int, float, dict[str, float]]]:
    """Step, moment and numbers of each record, evaluations with the step that they follow.

    A record's moment is counted back from the end of the log by the step times that it tells.
    """
    evaluated: dict[int, dict[str, float]] = {}
    for one in log.validation:
        evaluated.setdefault(one.iteration or 0, {})[f"{one.name}_loss"] = one.loss
    ends = [Path(file).stat().st_mtime for file in log.files if Path(file).is_file()]
    moment = max(ends, default=time.time()) - sum(record.seconds or 0.0 for record in log.records)
    for record in log.records:
        moment += record.seconds or 0.0
        values = {name: getattr(record, name) for name in NUMBERS}
        known = {
            name: float(value)
            for name, value in values.items()
            if value is not None and value == value
        }
        yield record.iteration, moment, known | evaluated.pop(record.iteration, {})
    for iteration, losses in sorted(evaluated.items()):
        yield iteration, moment, losses


def _to_tensorboard(log: ParsedLog, place: str, name: str) -> None:
    """Into a folder that `tensorboard --logdir` reads; needs the train extra (tensorboard), not torch."""
    from tensorboard.summary import Writer

    writer = Writer(place)
    for step, moment, values in points(log):
        for key, value in values.items():
            if key in NUMBERS:
                tag = f"training/{NUMBERS[key]}"
            else:
                tag = f"{key.removesuffix('_loss')}/{NUMBERS['loss']}"
            writer.add_scalar(tag, value, step=step, wall_time=moment)
    writer.close()


def _to_mlflow(log: ParsedLog, place: str, name: str) -> None:
    """A run in the experiment `gpt3-runbook` at a tracking URI, such as sqlite:///runs.db or a server's address."""
    import mlflow
    from mlflow.entities import Metric, Param

    mlflow.set_tracking_uri(place)
    mlflow.set_experiment("gpt3-runbook")
    told = {"log_format": log.format, "log_files": ", ".join(log.files), **log.arguments}
    parameters = [Param(key, value[:500]) for key, value in told.items()]
    moments = ((step, int(moment * 1000), values) for step, moment, values in points(log))
    metrics = [
        Metric(key, value, at, step)
        for step, at, values in moments
        for key, value in values.items()
    ]
    with mlflow.start_run(run_name=name) as run:
        mlflow.MlflowClient().log_batch(run.info.run_id, metrics=metrics, params=parameters)


def _to_trackio(log: ParsedLog, place: str, name: str) -> None:
    """A run in a project of trackio's local database."""
    import trackio

    trackio.init(
        project=place,
        name=name,
        config={"log_format": log.format, "log_files": ", ".join(log.files)},
    )
    for step, _, values in points(log):
        trackio.log(values, step=step)
    trackio.finish()


_FILES = {".csv": _write_csv_file, ".parquet": _write_parquet}
_TRACKERS = {"tensorboard": _to_tensorboard, "mlflow": _to_mlflow, "trackio": _to_trackio}


def export(log: ParsedLog, target: str, *, name: str) -> str:
    """Write the records to a file, which is written beside its place and renamed, or to a tracker; in words, what."""
    (kind, _, place), path = target.partition(":"), Path(target)
    if not (kind in _TRACKERS and place) and path.suffix not in _FILES:
        forms = "FILE.csv, FILE.parquet, tensorboard:DIR, mlflow:URI (such as mlflow:sqlite:///runs.db), trackio:PROJECT"
        raise DataError(
            f"{target} is no place to export to. Give one of {forms}; mllog:FILE of a RUN."
        )
    if not log.records:
        raise DataError(
            f"There is no record to export: {'; '.join(log.notes) or 'the log holds none'}."
        )
    if kind in _TRACKERS and place:
        _TRACKERS[kind](log, place, name)
    else:
        with replacing(path, error=DataError) as stream:
            _FILES[path.suffix](log, stream)
    return f"{len(log.records)} records and {len(log.validation)} evaluations -> {target}"


def write_mllog(spec: PhasePlan, place: Path) -> str:
    """Write a run's training as `:::MLLOG` lines for the checker of mlperf-logging; what was written, in words.

    The file is a record, not a submission: its division is `open`, and it names no organization.
    """
    history = read_metrics(spec.path(spec.log.metrics))
    evaluations = {one.iteration: one for one in read_validation(spec.path(spec.log.validation))}
    started = events_named(read_events(spec.path(spec.log.events), spec.phase), "started")
    entries = list(_entries(spec, history.steps, evaluations, [event.time for event in started]))
    write_text(
        place, "".join(f":::MLLOG {json.dumps(entry)}\n" for entry in entries), error=DataError
    )
    count = sum(entry["key"] == "eval_accuracy" for entry in entries)
    return f"{len(history.steps)} steps and {count} evaluations -> mllog: {place}"


def _values(spec: PhasePlan) -> dict[str, object]:
    """What is said once, before the first step."""
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
        "max_sequence_length": spec.model.sequence_length,
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


def _entries(
    spec: PhasePlan,
    steps: Sequence[Step],
    evaluations: Mapping[int, ValidationLoss],
    starts: Sequence[float],
) -> Iterator[dict[str, object]]:
    """The lines in order; a block is what is trained between two evaluations."""

    def entry(key: str, time: float, value: object = None, **where: object) -> dict[str, object]:
        kind = {"start": "INTERVAL_START", "stop": "INTERVAL_END"}.get(
            key.rpartition("_")[2], "POINT_IN_TIME"
        )
        head = {"namespace": "", "time_ms": round(1000 * time), "event_type": kind}
        return {**head, "key": key, "value": value, "metadata": where}

    begin = steps[0].time - steps[0].seconds
    end = steps[-1].time
    init = min([begin, *starts])
    yield entry("init_start", init)
    for key, value in _values(spec).items():
        yield entry(key, init, value)
    yield entry("init_stop", begin)
    yield entry("run_start", begin)
    where = {"epoch_num": 0, "samples_count": 0}  # MLPerf's GPT-3 counts epochs in samples
    yield entry("block_start", begin, **where)
    for step in steps:
        done = step.consumed_tokens // spec.model.sequence_length
        stats = {"train_step_time": step.seconds, "reduced_train_loss": step.loss}
        yield entry("tracked_stats", step.time, stats, step=step.iteration)
        if (one := evaluations.get(step.iteration)) is None:
            continue
        yield entry("block_stop", one.time - one.seconds, **where)
        where = {"epoch_num": done, "samples_count": done}
        yield entry("eval_start", one.time - one.seconds, **where)
        yield entry("eval_accuracy", one.time, one.loss, **where)
        yield entry("eval_stop", one.time, **where)
        end = max(end, one.time)
        if step is not steps[-1]:
            yield entry("block_start", one.time, **where)
    if steps[-1].iteration not in evaluations:
        yield entry("block_stop", end, **where)
    status = "success" if steps[-1].iteration >= spec.duration.iterations else "aborted"
    yield entry("run_stop", end, None, status=status)
