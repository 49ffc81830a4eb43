"""Messages about the command line: one row each, with `{name}` for a value."""

from __future__ import annotations

from runbook.plan_file.diagnostics import Message


class CliMessage(Message):
    """Messages about the command line."""

    ANY_EXTRA = (
        "pip install 'gpt3-runbook[all]' brings all that a run needs, 'gpt3-runbook[{extra}]' "
        "this one"
    )
    BAD_OPTION = "{opts}: {error}."
    DRAFTED_FROM = "Drafted from the answers of: {source}."
    FILL_IN_VALUES = "fill in the {marked} values marked FILL_IN in {site}; "
    FORECAST_OF_CURVE = (
        "After {share:.0%} of the steps: the last validation loss will be {loss:.4f} ({low:.4f} "
        "to {high:.4f} in 80% of forecasts)"
    )
    KEPT = "exists and was kept"
    NO_BAD_NODE = "No node of {site} is known as bad."
    NO_RECORD_IN_LOGS = (
        "No record was found in {targets}: {reason}. Give the log of the last rank, where "
        "Megatron prints its lines, as it was written."
    )
    NO_SCHEDULER_ANSWERED = "No scheduler answered on this machine."
    ONE_EXTRA = "install the {extra} extra: pip install 'gpt3-runbook[{extra}]'"
    ONE_LOG_OUTPUT = "--json, --csv and --to exclude each other."
    PACKAGE_MISSING = "the package {package} is missing; {remedy}"
    RUNNING_NOT_RECORDED = (
        "{folder}: {phase} is running, and {files} of it will be recorded when it ends. Verify "
        "again then."
    )
    THERE_ARE_COMMANDS = "There are {commands}."
