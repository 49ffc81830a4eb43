"""Writes a training as MLPerf log lines (`:::MLLOG`), in the form that the checker of mlperf-logging reads.

The file is a record, not a submission: its division is `open`, and it names no organization.
"""

import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from runbook.core.atomic_files import write_text
from runbook.core.errors import DataError
from runbook.plan_file.schema import PhasePlan
from runbook.results.history import Step, ValidationLoss, events_named, read_events, read_metrics, read_validation


def write_mllog(spec: PhasePlan, place: Path) -> str:
    """Write a run's training from its plan and what its trainer wrote; what was written, in words for a person."""
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
