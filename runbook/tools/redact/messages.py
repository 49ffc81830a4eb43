"""Messages about a redacted copy, one per row; `{name}` stands for a value."""

from __future__ import annotations

from runbook.plan_file.diagnostics import Message


class RedactMessage(Message):
    """Messages about a redacted copy."""

    ATTACHMENT_LEFT_OUT = "[attachment left out]"
    FOLDER_NOT_EMPTY = (
        "{out} is not an empty folder, and its files are never overwritten. Name another: --out "
        "DIR."
    )
