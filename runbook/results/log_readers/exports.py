"""Exports of a log: CSV, JSON, Parquet, TensorBoard; of a run's training: MLPerf log lines."""

import csv
import io
import json
import math
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict
from itertools import accumulate
from operator import attrgetter
from pathlib import Path
from typing import IO

from runbook.core.atomic_files import replacing, write_text
from runbook.core.errors import DataError
from runbook.plan_file.schema import PhasePlan
from runbook.results.history import Step, ValidationLoss, events_named, read_events, read_metrics, read_validation
from runbook.results.log_readers.record import KEYS, ParsedLog, Record
from runbook.results.metrics import find_alarms

_VALUES = attrgetter(*KEYS)
_STRICT_JSON = json.JSONEncoder(allow_nan=False)
BATCH = 100
"""Records encoded as JSON at once."""


def write_json(log: ParsedLog, stream: IO[str]) -> None:
    """One object: format, records, validation, notes, unread_lines, MLPerf's facts; null where the log does not say."""
    stream.write(f'{{"format": {json.dumps(log.format)}, "files": {json.dumps(log.files)},\n "records": [')
    for start in range(0, len(log.records), BATCH):
        part = log.records[start : start + BATCH]
        rows = [dict(zip(KEYS, _VALUES(record), strict=True), source=log.source(record)) for record in part]
        try:
            text = _STRICT_JSON.encode(rows)
        except ValueError:  # NaN and infinities are no JSON and become null
            text = _STRICT_JSON.encode([{key: _finite(value) for key, value in row.items()} for row in rows])
        # a quote inside a value is escaped: only where two records meet do these characters follow each other
        text = text[1:-1].replace('}, {"iteration"', '},\n  {"iteration"')
        stream.write(f"{',' if start else ''}\n  {text}")
    evaluations = [
        {key: getattr(one, key) for key in ("iteration", "loss", "perplexity", "name")} | {"source": log.source(one)}
        for one in log.validation
    ]
    rest = ({"facts": asdict(log.facts)} if log.facts else {}) | {
        "validation": evaluations,
        "notes": log.notes,
        "unread_lines": log.unread_lines,
        "failures": [asdict(failure) for failure in log.failures],
        "alarms": [{name: _finite(fact) for name, fact in asdict(one).items()} for one in find_alarms(log.records)],
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
    "loss": "loss (nat/token)",
    "grad_norm": "gradient norm",
    "learning_rate": "learning rate",
    "loss_scale": "loss scale",
    "seconds": "step time (s)",
    "samples_per_second": "throughput (samples/s)",
    "tokens_per_second": "throughput (tokens/s)",
    "tflops": "speed (TFLOP/s/device)",
}
"""Numbers of a record that make a curve, and what they are called with their units."""
WHOLE = ("iteration", "skipped", "nan", "segment")


def points(record: Record) -> dict[str, float]:
    """Every number the record has."""
    values = {name: getattr(record, name) for name in NUMBERS}
    return {name: float(value) for name, value in values.items() if value is not None and value == value}


def wall_times(log: ParsedLog) -> list[float]:
    """When each record was made, counted back from the end of the log by the step times it tells."""
    ends = [Path(file).stat().st_mtime for file in log.files if Path(file).is_file()]
    seconds = [record.seconds or 0.0 for record in log.records]
    return list(accumulate(seconds, initial=max(ends, default=time.time()) - sum(seconds)))[1:]


def write_csv_file(log: ParsedLog, place: str) -> None:
    """Write beside its place and rename."""
    with replacing(Path(place), error=DataError) as stream:
        text = io.TextIOWrapper(stream, encoding="utf-8", newline="")
        write_csv(log, text)
        text.detach()  # flushes, and leaves the stream open for its sync


def write_parquet(log: ParsedLog, place: str) -> None:
    """Write beside its place and rename; needs the data extra (pyarrow)."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    columns = {key: (pa.int64(), [getattr(record, key) for record in log.records]) for key in WHOLE}
    columns |= {key: (pa.float64(), [getattr(record, key) for record in log.records]) for key in NUMBERS}
    columns |= {
        "tflops_convention": (pa.string(), [record.tflops_convention for record in log.records]),
        "states": (pa.string(), [" ".join(record.states) for record in log.records]),
        "source": (pa.string(), [log.source(record) for record in log.records]),
    }
    told = {key: json.dumps(value) for key, value in (("files", log.files), ("units", NUMBERS), ("notes", log.notes))}
    arrays = {key: pa.array(values, kind) for key, (kind, values) in columns.items()}
    with replacing(Path(place), error=DataError) as stream:
        table = pa.table(arrays).replace_schema_metadata({"format": log.format, **told})
        pq.write_table(table, stream, compression="zstd")


def write_events(log: ParsedLog, place: str) -> None:
    """Write into a folder that `tensorboard --logdir` reads; needs the train extra (tensorboard), not torch."""
    from tensorboard.compat.proto.event_pb2 import Event
    from tensorboard.compat.proto.summary_pb2 import Summary
    from tensorboard.summary.writer.event_file_writer import EventFileWriter

    writer = EventFileWriter(place, filename_suffix=".runbook")

    def add(step: int, moment: float, values: dict[str, float]) -> None:
        summary = Summary(value=[Summary.Value(tag=tag, simple_value=value) for tag, value in values.items()])
        writer.add_event(Event(wall_time=moment, step=step, summary=summary))

    times = wall_times(log)
    for record, moment in zip(log.records, times, strict=True):
        if values := points(record):
            add(record.iteration, moment, {f"training/{NUMBERS[key]}": value for key, value in values.items()})
    for one in log.validation:
        add(one.iteration or 0, times[-1], {f"{one.name}/loss (nat/token)": one.loss})
    writer.close()


WRITERS = {"csv": write_csv_file, "parquet": write_parquet, "tensorboard": write_events}


def parse_target(word: str) -> tuple[str, str]:
    """The kind of export and its place, of what a person wrote; `DataError` names the right forms.

    >>> parse_target("out/a.csv"), parse_target("tensorboard:events/a")
    (('csv', 'out/a.csv'), ('tensorboard', 'events/a'))
    """
    kind, colon, place = word.partition(":")
    if colon and kind in WRITERS and place:
        return kind, place
    suffix = Path(word).suffix.removeprefix(".")
    if suffix in ("csv", "parquet"):
        return suffix, word
    raise DataError(
        f"{word} is no place to export to. Give one of FILE.csv, FILE.parquet, tensorboard:DIR; mllog:FILE of a RUN."
    )


def export(log: ParsedLog, target: tuple[str, str]) -> str:
    """Write the records there; what was written, in words for a person."""
    if not log.records:
        raise DataError(f"There is no record to export: {'; '.join(log.notes) or 'the log holds none'}.")
    kind, place = target
    WRITERS[kind](log, place)
    return f"{len(log.records)} records and {len(log.validation)} evaluations -> {kind}: {place}"


def write_mllog(spec: PhasePlan, place: Path) -> str:
    """Write a run's training as `:::MLLOG` lines for the checker of mlperf-logging; what was written, in words.

    The file is a record, not a submission: its division is `open`, and it names no organization.
    """
    history = read_metrics(spec.path(spec.log.metrics))
    evaluations = {one.iteration: one for one in read_validation(spec.path(spec.log.validation))}
    started = events_named(read_events(spec.path(spec.log.events), spec.phase), "started")
    entries = list(_entries(spec, history.steps, evaluations, [event.time for event in started]))
    write_text(place, "".join(f":::MLLOG {json.dumps(entry)}\n" for entry in entries), error=DataError)
    count = sum(entry["key"] == "eval_accuracy" for entry in entries)
    return f"{len(history.steps)} steps and {count} evaluations -> mllog: {place}"


def _values(spec: PhasePlan) -> dict[str, object]:
    """What is said once, before the first step."""
    batch, rate, adam, parallel = spec.batch, spec.learning_rate, spec.optimizer, spec.parallel
    about = {"benchmark": "gpt3", "org": "none", "division": "open", "status": "research", "platform": spec.device}
    learning_rate = {
        "base_learning_rate": rate.peak,
        "end_learning_rate": rate.minimum,
        "learning_rate_decay_schedule": f"{rate.schedule} with linear warmup",
        "learning_rate_warmup_steps": batch.iterations_within(rate.warmup_samples),
        "learning_rate_decay_steps": batch.iterations_within(rate.decay_samples),
    }
    optimizer = {
        "name": "adam",
        "adam_beta_1": adam.beta1,
        "adam_beta_2": adam.beta2,
        "adam_epsilon": adam.epsilon,
        "gradient_clip_norm": adam.clip_gradient,
        "weight_decay": adam.weight_decay,
    }
    return {
        **{f"submission_{name}": value for name, value in about.items()},
        "cache_clear": False,
        "seed": spec.seed,
        "global_batch_size": batch.global_,
        "micro_batch_size": batch.micro,
        "gradient_accumulation_steps": batch.num_microbatches,
        "max_sequence_length": spec.model.sequence_length,
        "train_samples": spec.duration.samples,
        "eval_samples": spec.evaluation.iterations * batch.global_,
        "init_checkpoint_step": 0,
        **{f"opt_{name}": value for name, value in (learning_rate | optimizer).items()},
        "tensor_parallelism": parallel.tensor,
        "pipeline_parallelism": parallel.pipeline,
        "context_parallelism": parallel.context,
        "expert_parallelism": 1,
    }


def _entries(
    spec: PhasePlan, steps: Sequence[Step], evaluations: Mapping[int, ValidationLoss], starts: Sequence[float]
) -> Iterator[dict[str, object]]:
    """The lines in order; a block is what is trained between two evaluations."""

    def entry(key: str, time: float, value: object = None, **where: object) -> dict[str, object]:
        kind = {"start": "INTERVAL_START", "stop": "INTERVAL_END"}.get(key.rpartition("_")[2], "POINT_IN_TIME")
        head = {"namespace": "", "time_ms": round(1000 * time), "event_type": kind}
        return {**head, "key": key, "value": value, "metadata": where}

    begin, end = steps[0].time - steps[0].seconds, steps[-1].time
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
        yield entry(
            "tracked_stats",
            step.time,
            {"train_step_time": step.seconds, "reduced_train_loss": step.loss},
            step=step.iteration,
        )
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
