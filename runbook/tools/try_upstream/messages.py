"""Messages about a start of upstream's programs: one row each, with `{name}` for a value."""

from __future__ import annotations

from runbook.plan_file.diagnostics import Message


class UpstreamMessage(Message):
    """Messages about a start of upstream's programs."""

    CHECKOUT_WITHOUT_SCRIPT = (
        "{checkout} has no {script}, which the job starts. Give a checkout of {framework}."
    )
    NO_UPSTREAM = (
        "{run} trains with {framework}: --upstream starts Megatron-LM and Megatron-DeepSpeed. "
        "Leave it out, or set training.framework to one of them."
    )
    PYTHON_MISSING = (
        "The site's program runs with Python {python}, and {name} is neither on PATH nor in "
        "{pyenv}. Install that version, or give --installed to start the program with what is "
        "installed here."
    )
