"""Messages about plan.json: one row each, with `{name}` for a value."""

from __future__ import annotations

from runbook.plan_file.diagnostics import Message


class PlanFileMessage(Message):
    """Messages about plan.json."""

    PLAN_MISSING = "{plan} does not exist; `runbook plan RUN` writes it"
    PLAN_NOT_JSON = "{plan} is not readable as JSON: {error}"
    PLAN_WITHOUT_PHASE = "{plan} has no phase {phase!r} under 'phases' (it has: {phase_names})"
