"""Messages about step replays, one per row; `{name}` stands for a value."""

from __future__ import annotations

from runbook.plan_file.diagnostics import Message


class ReplayMessage(Message):
    """Messages about step replays."""

    REPLAY_ENDED_EARLY = (
        "The replay ended with {code} before step {step}. Its lines above give the reason; the run "
        "was not changed."
    )
    STEP_NOT_TRAINED = (
        "{metrics} has no step {step}, so there is nothing to compare a replay with. Its last step "
        "is {last}."
    )
    STEP_OUT_OF_RANGE = "--step {step} is not between 1 and the last step, {iterations}."
    FIRST_STEP = (
        "The first step that differs is {step}: its loss was {loss!r} in the run and {again!r} in "
        "the replay"
    )
    FIRST_STEP_WITH_SAME_LOSS = (
        "The first step that differs is {step}: the loss is {loss!r} both times, but the gradients "
        "differ"
    )
    OTHER_PROGRAM_OF_RANK = (
        "rank {rank} on {host} had different versions or code from rank 0 in the run"
    )
    OTHER_SAMPLES_LATER = (
        "{first}; ranks {ranks} read different samples after the first micro-batch."
    )
    SAME_FIRST_MICRO_BATCH = (
        "{first}. The fingerprints of its first micro-batch are the same, so the difference comes "
        "from a different micro-batch or from a sum over ranks; rank and layer are unknown."
    )
    TOKENS_NOT_RECORDED = (
        "Step {step} has no record, because only multiples of training.replay_interval are "
        "recorded."
    )
    WITHOUT_FINGERPRINTS = "{first}. It has no fingerprints, so rank and layer are not known."
