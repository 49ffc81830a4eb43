"""Messages about plans: one row each, with `{name}` for a value."""

from __future__ import annotations

from runbook.plan_file.diagnostics import Message


class PlanningMessage(Message):
    """Messages about plans."""

    OLD_PLAN = "{error}\nDelete it and run 00-plan again."
    PLAN_NOT_JSON = "{source} is not JSON ({error}); delete it and run 00-plan again."
