"""Messages about records and notebooks, one per row; `{name}` stands for a value."""

from __future__ import annotations

from runbook.plan_file.diagnostics import Message


class RecordMessage(Message):
    """Messages about records and notebooks."""

    ALL_CHECKS_PASSED = "{checks}, all passed"
    ALL_PHASES_TOOK = "Total time of all phases"
    ANSWER = "{progress}; {problems}"
    BYTES = "{size:,} bytes"
    CLOCK_SET_BACK = "not known: the clock was set back"
    DELETE_MARK = (
        "Delete it. The step then runs again and keeps the outputs that are already complete."
    )
    DONE_MARK = "a done marker"
    FILE_DIFFERS = "{kind}: {file} (expected {expected}, got {got})"
    FILE_TOO_LARGE = "{name} ({size}, too large to attach)"
    FOLDER_NOT_LISTED = (
        "{filename} cannot be listed ({reason}), so its files cannot be checked. Give this user "
        "read permission, or check the disk."
    )
    EXECUTE_AGAIN = (
        "runbook wrote it, but it was changed later or its disk failed; `runbook verify` shows "
        "which. Execute the phase again to write a new record."
    )
    KERNEL_DIED = "the kernel died{how}"
    MANIFEST = "a manifest"
    NOTEBOOK_MISSING = "{path} does not exist."
    NOTEBOOK_NOT_READABLE = "{path} cannot be read as a notebook: {error}"
    NOTEBOOK_OF_NO_RUN = (
        "{notebook} does not name its run: it was not executed, stopped before its record was "
        "opened, or its outputs were removed. Execute it first; `runbook run` files its notebooks "
        "automatically."
    )
    NOTE_LENGTH = (
        "A note has 1 to {longest_note:,} characters; this one has {number_of_text:,}. It was "
        "not saved."
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
        "{phase} left no record in {output_parent}; the log above shows why it was not written."
    )
    RECORD_IS_NEWER = (
        "{notebook} was executed at {execution}, but the record of {phase} belongs to a later "
        "execution ({started}). The earlier record is in records/history; keep the notebook next "
        "to it."
    )
    RECORD_OF_ANOTHER_EXECUTION = (
        "{path} belongs to another execution of {phase}, which started at {recorded_start}. This "
        "one started at {started} and does not overwrite it. Continue in the other notebook, or "
        "start again here from the first cell."
    )
    RECORD_MISSING = (
        "The record of {phase} is missing (records/{phase}.json), although the phase has ended. "
        "Restore it from a copy, or let `runbook run {run}` execute the phase again; finished "
        "training is not repeated."
    )
    RESTORE_MANIFEST = (
        "Without it, later edits of this run cannot be detected. Restore it from a copy. Only if "
        "there is none, delete it and execute a phase again to write a new one."
    )
    RUN_FOLDER_GONE = "{belongs}, and that folder does not exist here."
    RUN_IS_ANOTHER = "{belongs}, not to {run_folder}."
    SCORES_NOT_CURRENT = (
        "06-evaluation was not executed again since an earlier phase changed, so these scores are "
        "those of earlier weights."
    )
    STATES_NOT_READABLE = "{path} cannot be read ({error}). Publish the run again."
    STATES_DONE = "{done} of {phases} done"
    OUTDATED = "{phase} is of an earlier plan, other data or an earlier training"
    PHASE_RECORD = "the record of a notebook"
    VALUE_NOT_RECORDABLE = (
        "{where} is {value!r} ({kind}); a record can contain numbers, text, true, false, lists "
        "and tables. Convert the value before recording it."
    )

    PHASES_DONE = "{done} of {phases} phases done"
    CELLS_ONLY_IN = "To save space, the cells are only in {report}."
    CELL_INTERRUPTED = "the cell was interrupted"
    EARLIER_EXECUTIONS = "; {duration} with {number}"
    FILES_CHANGED_LATER = "This page shows files that were changed after they were recorded"
    LAST_CELL_MISSING = (
        "every cell ran, but the notebook has lost its last cell, which finishes the record"
    )
    LINES_IN_NOTEBOOK = "... {lines:,} lines ({characters:,} characters) are in the notebook ..."
    LOSS_WENT = "The loss changed from {first:.4g} to {last:.4g}."
    MORE_LINES = "... {lines} more lines in the notebook"
    NEWEST_EXECUTIONS = "{duration}, the newest execution of each"
    END_OF_CELL_MISSING = "There was no output, and the kernel did not report the end of the cell"
    NEVER_FINISHED = "the record was never finished: {reason}"
    NOTHING_PLANNED = "Nothing is planned yet."
    NOT_SAVED_AND_GOES_ON = (
        "The notebook could not be saved. It continues, and saving is tried again after each "
        "cell. {error}"
    )
    NO_RUN_YET = "No run yet."
    OUTPUT_TOO_LARGE = "({kind} of this output is too large for the report; it is in the notebook)"
    RECORD_NOT_UP_TO_DATE = "The record is not up to date: {error}"
    SCORE_WENT = "{name}, {measure}: from {before} to {after} ({change})."
    STILL_RUNNING = "not finished: still running, or killed"
    STOPPED_BY_SIGTERM = (
        "stopped by SIGTERM, which a scheduler sends at cancellation, preemption or the time limit"
    )
    VALUE_OF_RECORD = "{key} {value}, as in the record"
    VALUE_ONLY = "{key} {value}"
