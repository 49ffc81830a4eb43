"""Messages about logs that cannot be read: one row each, with `{name}` for a value."""

from __future__ import annotations

from runbook.plan_file.diagnostics import Message


class LogMessage(Message):
    """Messages about logs that cannot be read."""

    LOG_IS_A_FOLDER = "{path} is a folder. Give the log files in it, for example {path}/*.out."
    LOG_MISSING = "{path} does not exist. Give the path of a log file, or the name of a run."
    LOG_NOT_READABLE = "{path} cannot be read: {reason}. Ask its owner, or copy it first."
    ZSTD_MISSING = (
        "{stream_name} is zstd and this installation cannot unpack it: pip install "
        "'gpt3-runbook[data]', or unpack it first with `zstd -d {name}`."
    )
