"""Messages about programs and locks, one per row; `{name}` stands for a value."""

from __future__ import annotations

from runbook.plan_file.diagnostics import Message


class CoreMessage(Message):
    """Messages about programs and locks."""

    CURVE_FROM_TO = "{name}: from {first:.4g} to {last:.4g}"
    DETACHED_NOT_STARTED = "{command} could not be started.{last_words}"
    HOLDER_ELSEWHERE = (
        " {host} cannot see whether it is still running. If it is not, remove {path}."
    )
    INTEGER_TOO_LARGE = "an integer of {bits} bits is not {expected}: it is too large"
    LOCK_HELD = "{folder} is in use by {holder}. Wait until it has ended, or stop it.{advice}"
    LOCK_HOLDER = "process {pid} of {user} on {host}, {purpose}, since {since} ({age}): {command}"
    LOCK_TAKEN_AGAIN = "Other processes keep taking over {path}. Try again when they have ended."
    LOCK_TAKEN_OVER = "The lock of a dead process was taken over: {holder}."
    LOSS_AXIS = "loss (nat / token)"
    MINUTES_OVER_59 = "{text!r} has more than 59 minutes or seconds"
    NEEDS_PANDAS = "a DataFrame needs pandas ({error}): pip install 'gpt3-runbook[jupyter]'"
    NOT_A_QUANTITY = "{text!r} is not {expected}"
    NOT_A_WHOLE_NUMBER = "{text!r} is not {expected}: not a whole number"
    NOT_WRITTEN = (
        "{path} could not be written: {reason}. A record is written completely or not at all, so "
        "the old file is unchanged. Free space in that folder or fix its permissions, then run "
        "the cell or phase again."
    )
    NO_FOLDER_TO_RUN_IN = "{folder} is not a folder, so {program} cannot be run there."
    NUL_CHARACTER = "{word!r} contains a NUL character, which no argument may have. Remove it."
    PROGRAM_FAILED = "{command} ended with {exit_code}.{last_words}"
    PROGRAM_NOT_FOUND = (
        "{program} cannot be run: {where}. Install it, or load the module that provides it."
    )
    PROGRAM_NOT_STARTED = "{command} could not be started: {reason}."
    PROGRAM_TIMED_OUT = "{command} did not end within {timeout:g} s and was killed.{last_words}"
    QUANTITY_TOO_LARGE = "{text!r} is not {expected}: it is too large"
    THINGS_DO_NOT_FIT = "{things} not fit together. Nothing was written or started:"
    NO_VERDICT = "check {name!r}: verdict {verdict!r} is not one of {verdicts}"
    RECORD_UNREADABLE = "{path} is not {meaning} ({problem}). {remedy}"
    ONE_THING = "One thing does"
    MANY_THINGS = "{number} things do"
