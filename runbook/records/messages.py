"""Messages about records and notebooks: one row each, with `{name}` for a value."""

from __future__ import annotations

from runbook.plan_file.diagnostics import Message


class RecordMessage(Message):
    """Messages about records and notebooks."""

    ALL_CHECKS_PASSED = "{checks}, all passed"
    ALL_PHASES_TOOK = "All phases took"
    ANSWER = "{progress}; {problems}"
    BYTES = "{size:,} bytes"
    FILE_DIFFERS = "{kind}: {file} (expected {expected}, got {got})"
    FILE_TOO_LARGE = "{name} ({size}, too large to travel)"
    FOLDER_NOT_LISTED = (
        "{filename} cannot be listed ({reason}), so nothing can be said about the files in it. "
        "Give this user the right to read it, or look after its disk."
    )
    EXECUTE_AGAIN = (
        "It was written by runbook and changed later, or its disk failed; `runbook verify` says "
        "which. Execute the phase again to have a new one."
    )
    KERNEL_DIED = "the kernel died{how}"
    MANIFEST = "a manifest"
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
    NOTED = "Noted: {text}{masked}"
    NOT_A_NOTEBOOK = "{notebook} is not a notebook ({error}); restore it from the repository."
    NOT_EXECUTED_YET = "{path} does not exist: the phase was not executed yet."
    NO_FILE = "no file"
    NO_SUCH_FILE = "no such file"
    NO_NOTEBOOK = (
        "{notebook} does not exist: {phase} has no notebook. Restore it from the repository."
    )
    NO_RECORD_LEFT = (
        "{phase} left no record in {output_parent}; the log above says why it could not be written."
    )
    RECORD_IS_NEWER = (
        "{notebook} was executed at {execution}, and the record of {phase} is of a later one "
        "({started}). The record of the earlier one is in records/history; keep the notebook "
        "beside it."
    )
    RECORD_OF_ANOTHER_EXECUTION = (
        "{path} belongs to another execution of {phase}, begun {recorded_start}; this one began "
        "{started} and writes nothing over it. Go on in that notebook, or begin anew here from "
        "the first cell."
    )
    RESTORE_MANIFEST = (
        "Later edits of this run can therefore not be detected. Restore it from a copy; only if "
        "none exists, delete it and execute a phase again to have a new one."
    )
    RUN_FOLDER_GONE = "{belongs}, and that folder does not exist here."
    RUN_IS_ANOTHER = "{belongs}, not to {run_folder}."
    STATES_DONE = "{done} of {phases} done"
    PHASE_RECORD = "the record of a notebook"
    VALUE_NOT_RECORDABLE = (
        "{where} is {value!r} ({kind}); a record holds numbers, text, true, false, lists and "
        "tables. Convert it before it is recorded."
    )

    PHASES_DONE = "{done} of {phases} phases done"
    CELLS_ONLY_IN = "For size, the cells are only in {report}."
    CELL_INTERRUPTED = "the cell was interrupted"
    EARLIER_EXECUTIONS = "; {duration} with {number}"
    FILES_CHANGED_LATER = "This page shows files that were changed after they were recorded"
    LAST_CELL_MISSING = (
        "every cell ran, but the notebook did not finish its record: its last cell is missing"
    )
    LINES_IN_NOTEBOOK = "... {lines:,} lines ({characters:,} characters) are in the notebook ..."
    LOSS_WENT = "The loss went from {first:.4g} to {last:.4g}."
    MORE_LINES = "... {lines} more lines in the notebook"
    NEWEST_EXECUTIONS = "{duration}, the newest execution of each"
    END_OF_CELL_MISSING = "No output came, and the kernel did not report the end of the cell"
    NEVER_FINISHED = "the record was never finished: {reason}"
    NOTHING_PLANNED = "Nothing is planned yet."
    NOT_SAVED_AND_GOES_ON = (
        "The notebook is not saved, and goes on; it is tried again after each cell. {error}"
    )
    NO_RUN_YET = "No run yet."
    OUTPUT_TOO_LARGE = "({kind} of this output is too large for the report; it is in the notebook)"
    RECORD_NOT_UP_TO_DATE = "The record is not up to date: {error}"
    SCORE_WENT = "{name}, {measure}: from {before} to {after} ({change})."
    STILL_RUNNING = "not finished: still running, or ended without a word"
    STOPPED_BY_SIGTERM = (
        "stopped by SIGTERM, as a scheduler sends at cancellation, preemption or the time limit"
    )
    VALUE_OF_RECORD = "{key} {value}, as the record says"
    VALUE_ONLY = "{key} {value}"
