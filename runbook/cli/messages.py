"""Messages about the command line: one row each, with `{name}` for a value."""

from __future__ import annotations

from runbook.plan_file.diagnostics import Message


class CliMessage(Message):
    """Messages about the command line."""

    BAD_OPTION = "{opts}: {error}."
    NO_RECORD_IN_LOGS = (
        "No record was found in {targets}: {reason}. Give the log of the last rank, where "
        "Megatron prints its lines, as it was written."
    )
