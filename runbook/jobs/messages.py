"""Messages about jobs, queues and their scripts, one per row; `{name}` stands for a value."""

from __future__ import annotations

from runbook.plan_file.diagnostics import Message


class JobMessage(Message):
    """Messages about jobs, queues and their scripts."""

    ACCOUNT_DENIED = "account {account} is denied by {partition}"
    ANSWER_LOST = "{program} gave no reply: {error}"
    BINDING_LENGTH = (
        "site {site}: binding.{name} has {number_of_entries} entries, but a node has {num_ranks} "
        "ranks. Set one entry per rank."
    )
    CANCELLED_AND_FORGOTTEN = "cancelled; the queue no longer lists the job"
    CANCELLED_AND_KILLED = "cancelled; it did not end in time and was killed"
    CANCELLED_ELSEWHERE = "cancelled from another machine; {sign_of_life} from {host}"
    CANCEL_SAYS_SO = "{sighting}; if that machine is permanently gone, use `runbook cancel`"
    CHAIN_STOPS_WAITING = (
        "{follower}, the next job of the chain, is {job}. The job before it ended: {reason}"
    )
    COPY_REMOVED_TWICE = (
        "another job removed {copy} twice while Python started. Submit the training again"
    )
    DELETED_BEFORE_IT_RAN = "deleted before it ran"
    ENDED_BEFORE_IT_BEGAN = (
        "The job's script in {folder} ended before the job started. Its last output:\n{tail}"
    )
    FOLDER_HOLDS_JOB = (
        "{folder} contains a job that is {state} ({reason}); its files are not changed. Submit the "
        "next job from the folder that `next_job_folder` returns."
    )
    FORGOTTEN_BY_QUEUE = "the queue no longer lists the job, which {course} and left no exit code"
    FROM_COPY = "from {copy}"
    FROM_SHARED = "from the shared environment"
    IMAGE_NOT_A_FILE = (
        "jobs.image_copy={folder}: {image} is not a file that can be copied to nodes. Leave "
        "jobs.image_copy empty, or set jobs.image to a .sqsh or .sif file."
    )
    IMPORT_TOO_SLOW = "the trainer was not imported within {warm_seconds:.0f} s"
    JOB_REFUSED = "{name} refused the job of {folder}; nothing was submitted. {last_words}"
    LAUNCHER_NEEDS_SSH = (
        "jobs requests {nodes} nodes, but the deepspeed launcher needs ssh without a password "
        "between nodes, which queues do not provide. Set the site's launcher to torchrun, or nodes "
        "to 1."
    )
    MACHINE_REBOOTED = "machine {host} was rebooted while the job ran"
    MORE_NODES_THAN_ALLOWED = "{nodes} nodes are more than {partition} allows per job ({max_nodes})"
    MORE_NODES_THAN_THERE = "{nodes} nodes are more than {partition} has ({total_nodes})"
    MOUNT_NOT_ABSOLUTE = (
        "{mount!r} cannot be mounted: a mount must be an absolute path. Start it with /."
    )
    MOUNT_WITH_SEPARATOR = (
        "{mount!r} cannot be mounted: ',' and ':' separate mounts. Rename the folder, or link to "
        "it under another name."
    )
    NEVER_STARTS = (
        "The job in {folder} could never start, so it was removed from the queue (its number was "
        "{number}). Slurm gives this reason: {reason} (partition {partition}). Change jobs.<phase> "
        "in the run file."
    )
    NOTHING_TO_CANCEL = "{folder}: {reason}. No job id is known, so there is nothing to cancel."
    NOTHING_TO_FOLLOW = "{folder} has no job that another job could wait for: submit it first."
    NOTHING_TO_STOP = (
        "{folder} has no training process to stop: either the job is still setting up, or it has "
        "already ended. See {err}."
    )
    NOT_AN_IMAGE_NAME = (
        "{name!r} is not a valid container image name: use only letters, digits and . _ - / : @."
    )
    NOT_A_DIRECTIVE_WORD = (
        "{name}: {text!r} is not allowed in a queue directive, which cannot be quoted: use only "
        "letters, digits and _ . , : / @ % + = * [ ] -."
    )
    NOT_A_SIZE_OF_QUEUE = (
        "jobs.<phase>.memory: {text!r} is not a size for {queue}. Use a number with K, M, G or T, "
        "such as 480G, or leave it empty for the queue's default ({queue} cannot request all of a "
        "node's memory)."
    )
    NOT_A_VARIABLE_NAME = (
        "{name!r} in the site's environment is not a valid variable name: use only letters, digits "
        "and '_', and do not start with a digit."
    )
    NOT_IN_QUEUE_YET = (
        "{lost} The queue has no job with the token {token} yet. Submit again in {wait}: if the job "
        "appears late, its token identifies it, and no second job is submitted."
    )
    NOT_RUNNING = "{folder} is {state} ({reason}); only a running job can be stopped."
    NOT_UTF8 = "{text!r} is not text that can be written as UTF-8: {reason}. Change the value."
    NO_COPY_IN_TIME = (
        "no copy of the Python environment within {seconds} s: a file system on this node hangs"
    )
    NO_DATED_SIGN_OF_LIFE = "no heartbeat with a usable time"
    NO_IMAGE = (
        "site {site} runs jobs in a container, but no image is named. Set jobs.image to a file or "
        "a registry reference."
    )
    NO_JOB_ID = "{program} did not report whether it submitted the job. {last_words}"
    NO_JOB_SUBMITTED = "No job was submitted from {folder}: it has no {record_name}."
    NO_LOGIN_NODE = (
        "{missing}: not on the PATH, so this is not a login node with {name}. Use one, or load the "
        "module that provides {name}. Nothing was submitted."
    )
    NO_MANIFEST_IN_JOB = (
        "no environment.json in the job's folder: Python runs from the shared environment"
    )
    NO_QUEUE_FOR_A_CHAIN = (
        "This machine has no queue in which {jobs} jobs could wait. Set jobs.training.chain to 1."
    )
    NO_QUEUE_HERE = (
        "--job {job_id}: there is no scontrol or qstat here. Run adopt where the job was submitted."
    )
    NO_SIGN_OF_LIFE = "no heartbeat for {age}"
    NO_TRAINING_JOB = "{phase} has no training job; these phases have one: {training_phases}."
    NUL_CHARACTER = (
        "{text!r} contains a NUL character, which cannot be passed to any program. Remove it from "
        "the value."
    )
    PBS_HAS_NO_SCRIPT = "--job {job_id}: PBS does not report which file was submitted ({reason})."
    PBS_RESERVATION = (
        "jobs.<phase>.reservation={reservation}: in PBS a reservation is a queue (pbs_rstat "
        "shows its name). Leave this empty, and set jobs.<phase>.partition to that queue."
    )
    PERHAPS_QUEUED_AGAIN = "{reason}; the queue reports {job}, so the job may be queued again"
    PREPARATION_SECRET = (
        "preparation.secret is not a reference to a secret: write env:NAME or file:PATH."
    )
    PROCESSES_LEFT = (
        "; {num_running} of its processes are still running; cancelling the job ends them"
    )
    PROCESSES_NOT_KILLED = (
        "These processes of {job_id} could not be killed: {pids}. They wait for a device or a file "
        "system that does not respond, or belong to another user."
    )
    PROCESS_VANISHED = "process {pid} vanished without an exit code (killed?)"
    PROGRAM_ANSWERED = "{program} ended with {ending}. Its output: {last_words}"
    PROGRESS_UNKNOWN = (
        "chain={chain}, spares={spares}: the progress of {framework} cannot be read from its "
        "checkpoints, so a chain that makes no progress would never end. Leave both keys out."
    )
    PYTHON_RUNS = "Python runs {where}"
    PYTHON_RUNS_ON_NODES = (
        "Python runs from {folder} on {copies} of {nodes} nodes, after {seconds} s"
    )
    QUEUED_AGAIN = "queued again after: {reason}"
    QUEUES_UNKNOWN = "{speaker} does not list its {queue_word}s, so nothing was submitted."
    QUEUE_SAYS = "{problem} (the queue reports: {words})"
    QUEUE_FULL = (
        "{name} accepts no further job at present: it holds as many jobs of all users as it may "
        "(MaxJobCount in slurm.conf), or is too busy. Submit again later, or ask the operators. {lost}"
    )
    QUEUE_NOT_REACHED = "{speaker} could not be reached; nothing was submitted. {last_words}"
    QUEUE_SILENT = "{speaker} does not answer."
    QUEUE_WITHOUT_QOS = (
        "jobs.<phase>.qos={qos}: {queue} has no quality of service. Leave it empty, and name the "
        "queue in jobs.<phase>.partition."
    )
    QUEUE_WITHOUT_SRUN = (
        "site {site}: launcher {launcher} needs srun on every node, which {queue} does not have. "
        "Set the site's launcher to mpiexec."
    )
    RAN_ELSEWHERE = "the job ran on {host}: {sign_of_life}. Check on that machine"
    REQUEST_NOT_POSSIBLE = "Nothing was submitted: {text}. Change jobs.<phase> in the run file."
    RUNS_ELSEWHERE = "{folder} runs on {where}; it can only be stopped from there."
    SAME_FILES = (
        "{job} is {state} ({reason}), and two jobs would write to the same files. Wait for it, "
        "or end it with `runbook cancel`."
    )
    SCRIPT_MISSING = "{script} does not exist: write the job (`write_job`) before submitting it."
    SITE_IS_ONE_MACHINE = (
        "{phase} requests {nodes} nodes, but site {site} is this one machine. Set "
        "jobs.<phase>.nodes to 1, or choose a site with a queue."
    )
    SLURM_HAS_NO_SCRIPT = (
        "--job {job_id}: Slurm has no script for it ({reason}). Slurm keeps scripts only while "
        "their jobs wait or run, and only their owner may read them."
    )
    START_NOTE_DAMAGED = "{started} cannot be read: it is damaged, or the disk is full"
    SUBMISSION_CUT_OFF = (
        "the submission was interrupted, and the queue has no job with its token: the job never "
        "began"
    )
    SUBMISSION_INTERRUPTED = "the submission was interrupted; the job never began"
    SUBMISSION_MAY_BE_LATE = (
        "The submission of {folder} {age} ago was not answered. Its job may still appear in the "
        "queue. Submit again in {wait}."
    )
    SUBMISSION_UNKNOWN = (
        "{lost} It is unknown whether the job is in the queue: {silent} Submit again later: a job "
        "that is already in the queue is identified by its token and not submitted twice."
    )
    SUBMITTED_ELSEWHERE = "the job was being submitted from {host}. Check on that machine"
    SUBMITTED_SCRIPT_GONE = (
        "--job {job_id}: PBS was given {path}, which does not exist. Pass the script itself to "
        "adopt."
    )
    TRAINER_NOT_IMPORTED = (
        "the trainer cannot be imported: pip install 'gpt3-runbook[train]'.\n{last_lines}"
    )
    VARIABLES_READ = (
        " {program} also read {variables} from this shell: unset what the job does not need, in the "
        "shell or in the file that sets it."
    )


class JobReason(Message):
    """The reason why a job ended, as written by the job's own script.

    A value may be a shell variable, such as `$code`.
    """

    AT = " at {request}"

    CHECKPOINT_WITHOUT_TRACKER = (
        "{checkpoint} exists but {tracker} does not: the program would start from random weights. "
        "Restore that file, or move {checkpoint} away if its save was cut off"
    )
    BY_SIGNAL = " (signal {signal})"
    COPY_CHANGED = (
        "a node has no copy of the Python environment, and the shared one has changed since it was "
        "packed (see err). Submit again"
    )
    ENDED = "ended with exit code {code}{by}"
    END_OF_WALLTIME = "the end of the walltime"
    EXIT_CODE = "exit code {code}"
    FEWER_NODES_GRANTED = "the queue granted {granted} nodes, but the plan is for {nodes}"
    KILLED = "; killed because they did not end on their own: rank {ranks}"
    RANK_ENDED = "rank {rank} ended with exit code {code}{by}"
    REFUSED_AFTER = "refused to begin: {job} ended with {code}"
    REQUEST_TO_CANCEL = "the request to cancel"
    SAVED_AND_STOPPED = "saved and stopped{by}"
    SCRIPT_FAILED = "the job's script failed before the training was started"
    STEP_LEFT_BEHIND = "; its failed step did not end within {seconds} s and was left behind"
    STOPPED = "stopped{by}"
    STOPPED_BEFORE_TRAINING = "stopped before the training was started"
    TOO_FEW_FOR_ANY = "; {left} nodes are left, and training needs at least {needed}"
    TOO_FEW_NODES = "; {left} nodes are left, and training needs {needed}"
    WITHOUT_CHECKPOINT = (
        "the program ran a step without loading the checkpoint that {tracker} names"
    )


class JobLine(Message):
    """Lines that a job script writes to its log.

    A value may be a shell variable, such as `$attempt`.
    """

    ALREADY_RUN = "this job has already run, or its folder cannot be written: {marker}"

    ATTEMPT_TRAINS = "attempt {attempt} trains on {nodes}"
    COPIES_LEFT = (
        "removing the copies in node memory failed on {failures} of {nodes} nodes; some copies may "
        "be left"
    )
    DECISION = "{reason}; then: {action}{cause}"
    DECISION_CAUSE = ", because {why}"
    FEWER_NODES_TRAIN = (
        "only {num_nodes} of {nodes} nodes train, with fewer data-parallel replicas and the same "
        "global batch"
    )
    FIRST_SAVE_CUT_OFF = "the first save was cut off: {checkpoint} is moved to {folder}"
    LEAVES_AT_ONCE = "{job} exits immediately. The decision after {previous}: {action}"
    NODE = "node {node} {fate}"
    NODE_LEFT_OUT = "does not answer and is left out"
    NODE_TRAINS_AGAIN = "trains again, because too few others are available"
    NO_ANSWER = "the program that decides what to do next gave no answer"


class SetupLine(Message):
    """Lines written by the scripts that set up a site or start a rented cluster.

    A value may be a shell variable, such as `$folder`.
    """

    CHECKOUT_AT_OTHER_COMMIT = (
        "{folder} is not at {commit}: check that commit out, or move the folder away"
    )
    CHECKOUT_CHANGED = (
        "{folder} has changes that are not in {commit}: commit them elsewhere, or undo them with "
        "git checkout -- ."
    )
    CHECKOUT_THERE = "the checkout exists: {folder}"
    CLUSTER_SAYS = "fleet.sh: {cluster} reports {status}"
    CLUSTER_TIMED_OUT = (
        "fleet.sh: {cluster} did not report {status} within {minutes} minutes; its last answer "
        "was: {answer}"
    )
    NO_FLEET_COMMAND = "{command} is not one of {commands}"
    STEP_THERE = "{title}: already done, {creates} exists"
