"""Messages about replays of a step: one row each, with `{name}` for a value."""

from __future__ import annotations

from runbook.plan_file.diagnostics import Message


class ReplayMessage(Message):
    """Messages about replays of a step."""

    REPLAY_ENDED_EARLY = (
        "The replay ended with {code} before step {step}. Its lines above say why; nothing of "
        "the run was changed."
    )
    STEP_NOT_TRAINED = "{metrics} has no step {step}: the run did not come so far."
    STEP_OUT_OF_RANGE = "--step {step} is not between 1 and {iterations}, the last step."
