"""Messages about exported logs: one row each, with `{name}` for a value."""

from __future__ import annotations

from runbook.plan_file.diagnostics import Message


class ExportMessage(Message):
    """Messages about exported logs."""

    NOTHING_TO_EXPORT = "There is no record to export: {reason}."
    NOT_A_TARGET = "{target} is no place to export to. Give one of {forms}; mllog:FILE of a RUN."
