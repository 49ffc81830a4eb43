"""Messages about a published site, one per row; `{name}` stands for a value."""

from __future__ import annotations

from runbook.plan_file.diagnostics import Message


class PublishMessage(Message):
    """Messages about a published site."""

    NOTHING_TO_PUBLISH = "There is no run to publish. Create one with runbook run RUN."
    NOT_A_PUBLISHED_FOLDER = (
        "{site} is not empty, and was not written by runbook publish. Its files are never "
        "overwritten; name another folder."
    )
