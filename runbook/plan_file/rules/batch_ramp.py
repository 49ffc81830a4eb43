"""Rules for a batch size that ramps up during training."""

from collections.abc import Iterator

from runbook.plan_file.batch import Batch, Ramp
from runbook.plan_file.diagnostics import RuleResult
from runbook.plan_file.rules.codes import RuleCode
from runbook.plan_file.schema import Layout

RAMP_KEYS = ("training.rampup_start", "training.rampup_increment", "training.rampup_samples")


def ramp_rules(batch: Batch, parallel: Layout) -> Iterator[RuleResult]:
    """Check that a ramp ends at the global batch, and that the replicas divide every batch."""
    ramp = batch.ramp
    if ramp == Ramp():
        return
    # Interleaved stages process complete groups of micro-batches.
    if parallel.virtual_pipeline > 1:
        microbatch_group = parallel.pipeline
    else:
        microbatch_group = 1

    group = batch.micro * parallel.data * microbatch_group
    values = {
        "start": ramp.start,
        "increment": ramp.increment,
        "samples": ramp.samples,
        "global_batch": batch.global_,
        "group": group,
    }
    yield RuleResult(
        code=RuleCode.BATCH_RAMP,
        holds=batch.ramp_is_sound,
        values=values,
        keys=RAMP_KEYS,
    )
    if batch.ramp_is_sound:
        yield RuleResult(
            code=RuleCode.BATCH_RAMP_DIVIDES,
            holds=ramp.start % group == 0 and ramp.increment % group == 0,
            values=values,
            keys=RAMP_KEYS[:2],
        )
