"""Messages shown by displays, one per row; `{name}` stands for a value."""

from __future__ import annotations

from runbook.plan_file.diagnostics import Message


class DisplayMessage(Message):
    """Messages shown by displays."""

    ACTION = "{name}: {command}"
    AMOUNT_DONE = "{done} of {total}{unit} ({percent:.0f} %)"
    CURVE_LABEL = (
        "{label} from {first:.4g} (iteration {first_iteration:g}) to {last:.4g} (iteration "
        "{last_iteration:g})"
    )
