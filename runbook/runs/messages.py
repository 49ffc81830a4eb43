"""Messages about the folder of a run: one row each, with `{name}` for a value."""

from __future__ import annotations

from runbook.plan_file.diagnostics import Message


class RunMessage(Message):
    """Messages about the folder of a run."""

    ASKED_TO_STOP = (
        "{job_name}: asked to save and stop; it ends with exit code 75 when it has saved"
    )
    CHAIN_ENDS = "{job_name}: the chain ends here; {waiting} taken out of the queue"
    COMMANDS_TO_START = "Commands that the run file wants to have started"
    COPIES_IN_MEMORY = "Copies in node memory: {copies}"
    DELETE_MARK = "Delete it: the step then runs again and finds what is already there."
    DONE_MARK = "a done-mark"
    ENVIRONMENT_NOT_PACKED = "{python}: {error}. It said:\n{out}"
    FEWER_REPLICAS = (
        "{replicas} of {planned_replicas} data-parallel replicas train since iteration "
        "{iteration}, because fewer healthy nodes were there; the global batch is the same."
    )
    FILE_CHANGED_LATER = (
        "{path} cannot be read ({error}); it was written by runbook and changed later."
    )
    JOB_CANCELLED = "{job_name}: {state} ({reason})"
    JOB_ENDED_AS = "==> {state}: {reason} <=="
    JOB_AT_WORK = (
        "{job} is {state} ({reason}); what it works on is not moved away. Wait until it has "
        "ended, or end it: runbook cancel {folder_name}."
    )
    LEFT_OUT = "Left out: {nodes}"
    NAMED_TWICE = (
        "{word} is the folder of run {stem} under the name {name}, and --as {as_name} gives it "
        "another. Leave --as out to go on with {word}, or name the run: {stem} --as {as_name}."
    )
    NODES_NEEDED = "The job needs {wanted} of the site's {total} nodes."
    NOTHING_CANCELLED = "No job of this run is running; nothing was cancelled."
    NOTHING_STOPPED = "No job of this run is running; none was stopped."
    NO_JOB_FOLLOWS = "{job_name}: it has ended, and no job follows it"
    NO_JOB_SUBMITTED_YET = "{folder_name} has submitted no job yet: runbook run {run} does."
    NO_PLAN_YET = "{path} does not exist: run 00-plan first."
    NO_RUNS_YET = "No runs yet: runbook run local makes the first one."
    NO_SUCH_RUN_FOLDER = "{root} is not a run's folder{there}. {stem}"
    OUTPUT_MISSING = "{file} is missing"
    OUTPUT_SIZE_CHANGED = "{file} has {size:,} bytes instead of {recorded_size:,}"
    OUTPUT_CHANGED = "{file} was changed after it was made"
    OVERRIDES_HEAD = (
        "# Given by hand, over the run file of {run}; who opens this run again has it from here.\n"
    )
    PACKED_IN_A_CONTAINER = (
        "site {site} runs its jobs in a container ({kind}), which is packed already. Leave {key} "
        "empty; jobs.image_copy copies the image to each node."
    )
    PBS_LEAVES_OUT_NO_NODE = (
        "PBS cannot leave out a node: ask the site to take it offline (pbsnodes -o), or name the "
        "hosts in select."
    )
    STEP_OUTPUT_CHANGED = (
        "{step} is finished, and {fault}. Nothing is computed from it: the records stay as they "
        "are, and nothing was started. Restore the file from a copy (its checksum is in "
        "steps/{step}.json). {remedy}"
    )
    UNKNOWN_JOB_ID = (
        "No run here submitted a job {job_id}; runbook status lists the runs, runbook status RUN "
        "their jobs."
    )
