"""Messages about programs and locks: one row each, with `{name}` for a value."""

from __future__ import annotations

from runbook.plan_file.diagnostics import Message


class CoreMessage(Message):
    """Messages about programs and locks."""

    DETACHED_NOT_STARTED = "{command} could not be started.{last_words}"
    LOCK_TAKEN_AGAIN = (
        "{path} is being taken over by others again and again. Try again when they have ended."
    )
    NO_FOLDER_TO_RUN_IN = "{folder} is not a folder, so {program} cannot be run there."
    NUL_CHARACTER = "{word!r} holds a NUL character, which no program can be given. Remove it."
    PROGRAM_FAILED = "{command} ended with {exit_code}.{last_words}"
    PROGRAM_NOT_FOUND = (
        "{program} cannot be run: {where}. Install it, or load the module that brings it."
    )
    PROGRAM_NOT_STARTED = "{command} could not be started: {reason}."
    PROGRAM_TIMED_OUT = "{command} did not end within {timeout:g} s and was killed.{last_words}"
    THINGS_DO_NOT_FIT = "{things} not fit together; nothing was written or started:"
    NO_VERDICT = "check {name!r}: verdict {verdict!r} is none of {verdicts}"
