"""Messages about the folder of a run: one row each, with `{name}` for a value."""

from __future__ import annotations

from runbook.plan_file.diagnostics import Message


class RunMessage(Message):
    """Messages about the folder of a run."""

    ENVIRONMENT_NOT_PACKED = "{python}: {error}. It said:\n{out}"
    FILE_CHANGED_LATER = (
        "{path} cannot be read ({error}); it was written by runbook and changed later."
    )
    JOB_AT_WORK = (
        "{job} is {state} ({reason}); what it works on is not moved away. Wait until it has "
        "ended, or end it: runbook cancel {folder_name}."
    )
    NAMED_TWICE = (
        "{word} is the folder of run {stem} under the name {name}, and --as {as_name} gives it "
        "another. Leave --as out to go on with {word}, or name the run: {stem} --as {as_name}."
    )
    NO_JOB_SUBMITTED_YET = "{folder_name} has submitted no job yet: runbook run {run} does."
    NO_PLAN_YET = "{path} does not exist: run 00-plan first."
    NO_SUCH_RUN_FOLDER = "{root} is not a run's folder{there}. {stem}"
    PACKED_IN_A_CONTAINER = (
        "site {site} runs its jobs in a container ({kind}), which is packed already. Leave {key} "
        "empty; jobs.image_copy copies the image to each node."
    )
    UNKNOWN_JOB_ID = (
        "No run here submitted a job {job_id}; runbook status lists the runs, runbook status RUN "
        "their jobs."
    )
