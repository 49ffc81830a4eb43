"""Messages about exported logs, one per row; `{name}` stands for a value."""

from __future__ import annotations

from runbook.plan_file.diagnostics import Message


class ExportMessage(Message):
    """Messages about exported logs."""

    NOTHING_TO_EXPORT = "There are no records to export: {reason}."
    NOT_A_TARGET = "{target} is not a place to export to. Use one of {forms}; mllog:FILE for a RUN."


class SummaryMessage(Message):
    """Lines in the summary of a log."""

    RECORDS = "{format}: {num_records} records in {segments}, {unread_lines} lines not read"
    STATE = "{count} x {state}"
    MLPERF = "MLPerf: {facts}"
    ALARM = "ALARM {kind}, iteration {iteration}: {evidence}"
    FAILURE = "{label} {name} ({count} x, first at line {line}{place}): {evidence}"
    DECISION = "Then: {advice}"
    LOOK_NEXT = (
        "The cause is not in this log. Read the output of {who} next (line {line}: {evidence})"
    )
    LOOK_ANYWHERE = "The cause is not in this log, and no line says which rank ended first."
    FIRST_ERROR = "UNKNOWN CAUSE, first error (line {line}{place}): {evidence}"
    NO_REMEDY = "No rule recognizes this line, so there is no remedy for it here."
    MAY_FOLLOW = "Read the log from there: these later lines may be its effects ({effects})."
