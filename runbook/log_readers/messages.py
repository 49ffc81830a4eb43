"""Messages about logs that cannot be read, one per row; `{name}` stands for a value."""

from __future__ import annotations

from runbook.plan_file.diagnostics import Message


class LogMessage(Message):
    """Messages about logs that cannot be read."""

    LOG_IS_A_FOLDER = "{path} is a folder. Name the log files in it, for example {path}/*.out."
    LOG_MISSING = "{path} does not exist. Give the path of a log file, or the name of a run."
    LOG_NOT_READABLE = "{path} cannot be read: {reason}. Ask its owner, or copy it first."
    ZSTD_MISSING = (
        "{stream_name} is zstd and this installation cannot unpack it: pip install "
        "'gpt3-runbook[data]', or unpack it first with `zstd -d {name}`."
    )
    COPIES_DROPPED = "records printed by several ranks, counted once"
    NOT_A_RECORD = "lines that mention a step and a loss but that this version cannot read"
    BROKEN_NUMBER = "lines that look like records but contain an unreadable number"
    COUNTED = "{count} x {note}"
    MISSED_LINES = "{count} {kind}, the first at line {first_line}"
    LOG_EMPTY = "{path} is empty"
    LOG_CUT_OFF = (
        "{path} ends in the middle of its compressed data ({problem}): everything before that was "
        "read"
    )
    ACCURACY_IS_NO_LOSS = (
        "eval_accuracy of {benchmark} is not a language model's loss and was left out"
    )
