"""Messages about run folders, one per row; `{name}` stands for a value."""

from __future__ import annotations

from runbook.plan_file.diagnostics import Message


class RunMessage(Message):
    """Messages about run folders."""

    ASKED_TO_STOP = "{job_name}: asked to save and stop; it exits with code 75 once it has saved"
    CHAIN_ENDS = "{job_name}: the chain ends here; {waiting} removed from the queue"
    COMMANDS_TO_START = "Commands that the run file asks to start"
    COPIES_IN_MEMORY = "Copies in node memory: {copies}"
    ENVIRONMENT_NOT_PACKED = "{python}: {error}. Its output:\n{out}"
    FEWER_REPLICAS = (
        "Since iteration {iteration}, {replicas} of {planned_replicas} data-parallel replicas "
        "train, because fewer healthy nodes were available. The global batch is the same."
    )
    FILES_ARE_AS_RECORDED = "the files with numbers are as they were recorded"
    FILE_CHANGED_LATER = (
        "{path} cannot be read ({error}); runbook wrote it, and it was changed later."
    )
    FOLDER_OF_NO_RUN = "{folder} has no run.yaml, so it is not a run's folder{there}."
    JOB_CANCELLED = "{job_name}: {state} ({reason})"
    JOB_CONTINUES = (
        "{job_name} is {state} and does not end with this command: {reason}. Repeat the command to "
        "watch it, or end it: runbook cancel {folder_name}"
    )
    JOB_ENDED_AS = "==> {state}: {reason} <=="
    JOB_AT_WORK = (
        "{job} is {state} ({reason}), so its files are not moved. Wait until it has ended, or "
        "cancel it: runbook cancel {folder_name}."
    )
    LEFT_OUT = "Left out: {nodes}"
    NAMED_TWICE = (
        "{word} is the folder of run {stem} with --as {name}, which conflicts with --as {as_name}. "
        "Leave --as out to continue {word}, or name the run: {stem} --as {as_name}."
    )
    NODES_NEEDED = "The job needs {wanted} of the site's {total} nodes."
    NOTHING_CANCELLED = "No job of this run is running, so nothing was cancelled."
    NOTHING_STOPPED = "No job of this run is running, so nothing was stopped."
    NO_JOB_FOLLOWS = "{job_name}: it has ended, and no further job will be submitted"
    NO_JOB_SUBMITTED_YET = (
        "{folder_name} has not submitted a job yet; runbook run {run} submits one."
    )
    NO_PLAN_YET = "{path} does not exist: run 00-plan first."
    NO_RUNS_YET = "No runs yet: runbook run local creates the first one."
    NO_SUCH_RUN_FOLDER = "{root} is not a run's folder{there}. {stem}"
    OUTPUT_MISSING = "{file} is missing"
    OUTPUT_SIZE_CHANGED = "{file} has {size:,} bytes instead of {recorded_size:,}"
    OUTPUT_CHANGED = "{file} was changed after it was created"
    OVERRIDES_HEAD = (
        "# Values set by hand that override the run file of {run}. They are read when the run is "
        "reopened.\n"
    )
    PACKED_IN_A_CONTAINER = (
        "site {site} runs its jobs in a container ({kind}), which is already packed. Leave {key} "
        "empty; jobs.image_copy copies the image to each node."
    )
    PHASE_IS_DONE = "the phase is done, with the present plan and data"
    PBS_LEAVES_OUT_NO_NODE = (
        "PBS cannot exclude a node: ask the site to take it offline (pbsnodes -o), or name the "
        "hosts in select."
    )
    RUN_FOLDER_MOVED = (
        "{folder} was moved or removed while the run was under way. Its job may still be running: "
        "runbook cancel {name} ends it, once the folder is back at its place."
    )
    STEP_OUTPUT_CHANGED = (
        "{step} is finished, but {fault}. Its results are therefore not used, and nothing "
        "was started. Restore the file from a copy (its checksum is in "
        "steps/{step}.json). {remedy}"
    )
    UNKNOWN_JOB_ID = (
        "No run here submitted a job {job_id}. runbook status lists the runs; runbook status RUN "
        "lists their jobs."
    )
