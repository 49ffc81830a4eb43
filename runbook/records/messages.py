"""Messages about records and notebooks: one row each, with `{name}` for a value."""

from __future__ import annotations

from runbook.plan_file.diagnostics import Message


class RecordMessage(Message):
    """Messages about records and notebooks."""

    FILE_DIFFERS = "{kind}: {file} (expected {expected}, got {got})"
    FOLDER_NOT_LISTED = (
        "{filename} cannot be listed ({reason}), so nothing can be said about the files in it. "
        "Give this user the right to read it, or look after its disk."
    )
    KERNEL_DIED = "the kernel died{how}"
    NOTEBOOK_MISSING = "{path} does not exist."
    NOTEBOOK_NOT_READABLE = "{path} cannot be read as a notebook: {error}"
    NOTEBOOK_OF_NO_RUN = (
        "{notebook} does not say which run it belongs to: it was not executed, stopped before "
        "its record was opened, or its outputs were removed. Execute it first; `runbook run` "
        "files its notebooks itself."
    )
    NOTE_LENGTH = (
        "A note has 1 to {longest_note:,} characters; this one has {number_of_text:,}. Nothing "
        "was noted."
    )
    NOT_A_NOTEBOOK = "{notebook} is not a notebook ({error}); restore it from the repository."
    NOT_EXECUTED_YET = "{path} does not exist: the phase was not executed yet."
    NO_NOTEBOOK = (
        "{notebook} does not exist: {phase} has no notebook. Restore it from the repository."
    )
    NO_RECORD_LEFT = (
        "{phase} left no record in {output_parent}; the log above says why it could not be written."
    )
    RECORD_IS_NEWER = (
        "{notebook} was executed at {execution}, and the record of {phase} is of a later one "
        "({started}). The twin of the earlier one is in records/history; keep the notebook "
        "beside it."
    )
    RECORD_OF_ANOTHER_EXECUTION = (
        "{path} belongs to another execution of {phase}, begun {recorded_start}; this one began "
        "{started} and writes nothing over it. Go on in that notebook, or begin anew here from "
        "the first cell."
    )
    RUN_FOLDER_GONE = "{belongs}, and that folder does not exist here."
    RUN_IS_ANOTHER = "{belongs}, not to {run_folder}."
    STATES_DONE = "{done} of {phases} done"
    VALUE_NOT_RECORDABLE = (
        "{where} is {value!r} ({kind}); a record holds numbers, text, true, false, lists and "
        "tables. Convert it before it is recorded."
    )
