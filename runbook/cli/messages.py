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
    ONE_LOG_OUTPUT = "--json, --csv and --to exclude each other."
    PACKAGE_MISSING = "the package {package} is missing; {remedy}"
    ANY_EXTRA = "pip install 'gpt3-runbook[all]' brings all that a run needs, 'gpt3-runbook[{extra}]' this one"
    ONE_EXTRA = "install the {extra} extra: pip install 'gpt3-runbook[{extra}]'"
