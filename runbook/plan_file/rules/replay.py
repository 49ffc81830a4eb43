"""Rules for recomputing a micro-batch to detect silent data corruption."""

from collections.abc import Iterator

from runbook.plan_file.diagnostics import RuleResult
from runbook.plan_file.rules.codes import RuleCode
from runbook.plan_file.schema import Tuning


def replay_problems(
    interval: int,
    tuning: Tuning,
    fp8: str,
    *,
    deepspeed: bool,
) -> Iterator[RuleResult]:
    """Yield the reasons why this trainer cannot recompute a micro-batch as the plan requests."""
    if not interval:
        return
    if deepspeed:
        yield RuleResult(
            code=RuleCode.REPLAY_WITH_DEEPSPEED,
            holds=False,
            values={"interval": interval},
            keys=("training.replay_interval", "training.engine"),
        )

    reasons = []
    if tuning.cuda_graphs:
        reasons.append(("training.cuda_graphs", "training.cuda_graphs=true"))
    if fp8 == "delayed":
        reasons.append(("training.fp8", "training.fp8=delayed"))
    for key, reason in reasons:
        yield RuleResult(
            code=RuleCode.REPLAY_REPEATABLE,
            holds=False,
            values={"interval": interval, "reason": reason},
            keys=("training.replay_interval", key),
        )
