"""Detects a training run whose last records are no longer finite numbers."""

from collections.abc import Sequence

from runbook.log_readers.record import Record
from runbook.results.failures.finder import Failure
from runbook.results.failures.kinds import NAN
from runbook.results.failures.rule import Level

_LOST = ("nan_loss", "infinite_loss", "nan_grad_norm", "nan_iterations")
SOURCE = "bigscience-workshop/Megatron-DeepSpeed#396"


def find_divergence(records: Sequence[Record]) -> Failure | None:
    """Return the failure "NaN" at the first of the non-finite records that end the log.

    Return None if the last record is finite. A skipped step, or a step with a loss scale, may
    overflow, after which the scale falls and the training continues.
    """
    first: Record | None = None
    count = 0
    for record in reversed(records):
        if not _is_lost(record):
            break
        first = record
        count += 1

    if first is None:
        return None
    evidence = f"iteration {first.iteration}: {', '.join(first.states)}"
    return Failure(
        name=NAN.name,
        line=first.line,
        evidence=evidence,
        count=count,
        remedy=NAN.remedy,
        level=Level.SYMPTOM,
        decision=NAN.decision,
        source=SOURCE,
    )


def _is_lost(record: Record) -> bool:
    is_scaled = record.loss_scale is not None and record.loss_scale != 1.0
    if record.skipped or is_scaled:
        return False
    return any(state in _LOST for state in record.states)
