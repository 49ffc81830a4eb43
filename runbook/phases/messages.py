"""Messages about phases, one per row; `{name}` stands for a value."""

from __future__ import annotations

from runbook.plan_file.diagnostics import Message


class PhaseMessage(Message):
    """Messages about phases."""

    ABSENT_DEVICE = "{variable}={device} on {node}"
    ANOTHER_RECIPE = (
        "the rungs were trained with another recipe ({differences}): the interval is {widening:g} "
        "times as wide"
    )
    ANOTHER_TOKENIZER = (
        "{path} encodes {probe!r} as {expected}, but data.tokenizer {name} encodes it as {ids}, "
        "so the weights would see different tokens from those that they were trained on. Set "
        "data.tokenizer to {path}, and tokenize the data with it."
    )
    AVOID_RESERVATION = (
        "Set jobs.{section}.walltime below {seconds}, so that the job ends before, or submit it "
        "after the reservation: until then, the job would wait."
    )
    BAD_INPUT = "{records}, {files}"
    BEGIN_TRAINING_ANEW = "To start over instead: runbook run with --redo training."
    BEST_SIZE = (
        "The best size at this compute: {parameters} parameters on {tokens} tokens, loss "
        "{loss:.4f}."
    )
    BROKEN_PYTHON_IN_FRONT = (
        "{name} on PATH is {path}, which is not a working Python, and it precedes the job's own "
        "{executable}"
    )
    BUDGET_TOO_SMALL_FOR_RUNGS = (
        "The largest rung of this budget has {largest:,.0f} parameters, but a model of width "
        "{width} already has {narrowest:,} with its embeddings, which leaves no room for {rungs} "
        "rungs. Choose a larger budget, or a larger model."
    )
    BUDGET_USED_BY_STARTS = (
        "Starting {count} rungs alone uses up the budget of {hours}: it takes {start_seconds:.0f} "
        "s in total on {devices} devices. Set a budget of more than {start_hours}."
    )
    BUS_BANDWIDTH = (
        "{ranks} ranks, {message_bytes} in {slowest}: {speed:.2f} GB/s bus bandwidth ({backend})"
    )
    ARRAY_OF_JOB = "array of jobs.{section}"
    ARRAY_SIZES = "{size} elements, and Slurm allows {largest} (MaxArraySize)"
    CACHE_LOCKED = "{variable}: a build that is no longer running left the lock {old_lock}"
    CACHE_SHARED = "{variable}: {folder} is on {file_system}"
    CACHE_UNWRITABLE = "{variable}: {folder}: {error}"
    CACHE_WITHOUT_LIBRARIES = "{variable}: {folder} is mounted noexec"
    CHANGE_ARRAY = "Reduce jobs.{section}.array (0 is a single job), or ask the operators to raise MaxArraySize."
    CELLS_COPIED_AGAIN = "  --fresh copies the masters again and keeps these copies."
    CELLS_DIFFER = (
        "  {name} differs from its master in {cells}: either it was edited, or the master is newer."
    )
    CHECKPOINTS_OF_ANOTHER_TRAINING = "{foreign}: from another training run"
    CHECKS_FAILED = "{number_of_failures} of {number_of_checks} checks failed: {failures}"
    CHECK_UNKNOWN = "unknown in {phase}: {name}: {value}"
    COMMAND_FAILED = "{command} ended with {how}.{hint}\n{err}"
    COMPILER_OF_OTHER_CUDA = "nvcc {compiler}, torch built with {cuda}"
    COPIES_CANNOT_RUN = (
        "The notebooks open, but no cell can use the run until this is fixed:\n{problem}\n"
        "The executed notebooks are in records/."
    )
    COPIES_KEPT = "{folder}: {number} notebooks already exist and were kept."
    COPIES_WRITTEN = "{folder}: {number} notebooks copied."
    COPY_WITH_OTHER_OVERRIDES = (
        "{copy} exists, and its parameters cell does not have overrides = {overrides!r}, so --set "
        "would change nothing. Write the values into the cell, add --fresh to copy the notebooks "
        "again, or put these values into a separate folder with --as NAME."
    )
    CORES_SHARED = "{name} gives each core to up to {jobs} jobs at a time (OverSubscribe=FORCE)"
    DATA_FOLDER = "data.folder is {folder!r}, from {where}: {error}"
    DEFAULT_MEMORY = "the job requests no memory, so Slurm ends it above {granted} on a node"
    DIFFERENT_FACT = "{fact}: {values}"
    DIFFERENT_SOURCES = "{versions} ({folder})"
    DIFFERENT_VERSIONS = "{package} {versions}"
    DOCUMENTS_LEFT_OUT = "{documents}: {sources}"
    DOCUMENTS_OF_SOURCE = "{documents:,} of {source}"
    DOCUMENTS_OF_TEXT = "{size} in {documents}, {empty:,} of them empty"
    DO_PHASE_AGAIN = (
        "Or repeat {phase}, which moves the present files to history/: runbook run {run} --redo "
        "{phase}"
    )
    ENDED_WITH_EXIT_CODE = "it ended with exit code {code}"
    END_ASKED_DURING_WAIT = "a user stopped the run during the wait"
    EPILOG_KILLS = "{path} ends processes without asking Slurm whose they are: it may end the user's other jobs"
    EPILOG_READ = "{path} ends no process of other jobs"
    EVERYTHING_FITS = "every value is valid, and the values fit together."
    EVERY_STAGE_FITS = (
        "a job is submitted only if a full-size step runs and every stage fits its device"
    )
    EXPORT_EXISTS = "{path} already exists: {why}. Remove it, or choose another folder with --out."
    EXPORT_LEFT_PART = "an interrupted export left it behind, or an export is running"
    EXPORT_NOT_REPLACED = "nothing is overwritten"
    FETCHED_NOW = "{files}, {size} in {folder}: {fetched:,} downloaded now"
    FINISHED_BEFORE_THE_STOP = "The job finished before it could be stopped at iteration {at}."
    FIRST_FAILED_RANK = "rank {rank} on {node}: {step}{error_text}{later_failures}{hung}"
    FOLDER_IS_READABLE = (
        "this machine can read the files; if the run uses another machine, check there"
    )
    FOLDER_OF_A_SUBMITTED_JOB = (
        "{folder} contains a submitted job, whose script is kept as it ran. Choose another folder "
        "with --out."
    )
    FOLDER_OF_OTHER_VALUES = "{folder} was created with different values:{changes}{remedies}"
    FOLDER_OF_THE_MASTERS = "{folder} contains the original notebooks; choose another folder."
    FOLDER_SLOW = "{folder} ({mount}): a node needs {time} to write a MiB"
    FOREIGN_PROGRAM = "process {pid} keeps a core busy: {command}"
    FULLEST_STAGE = "stage {stage} is the fullest: {gibibytes} GiB"
    GATE_OF_OTHER_PARAMETERS = "done with different parameters"
    GATE_WAIVED = "{gate}; waived by {name} (account {account})"
    GPUS_HIDDEN = "on a site that computes on CPUs, processes see no GPU"
    GPU_IN_USE = "GPU {number} {use} %, {memory} MiB"
    GPU_MEMORY_IN_USE = "{host} {number}: {memory} in use"
    MORE_THREADS_THAN_CORES = (
        "OMP_NUM_THREADS={threads}: the ranks of a node start {total} threads, and it has {cores} "
        "cores"
    )
    HARMFUL_VARIABLE = "{name}={value}: {effect} ({source})"
    HAS_EVERY_FILE = "Nothing to download: {home} (data.folder) has every file."
    HAS_OTHER_FILES = (
        "Nothing to download: {home} (data.folder) contains files that are not part of {name}; "
        "they are used as they are."
    )
    HOME_HIDDEN = "the container hides it"
    HOME_UNWRITABLE = "no file can be written to {home}: {error}"
    HISTORY_NOT_KEPT = "not kept (PBS's default)"
    IMAGE_NOT_READABLE = "{image}: {reason}"
    IMAGE_OF_NO_KIND = "{image} is neither SquashFS nor SIF"
    DELETE_NEIGHBOUR = (
        "Delete the entry on that node (`ip neigh del ADDRESS dev DEVICE`), and the file that makes it "
        "at boot (/etc/ethers)."
    )
    END_COMPLETING = (
        "Ask the operators about these nodes: an epilog that hangs, or a process that cannot be ended "
        "(UnkillableStepTimeout). They accept jobs again after `scontrol update nodename=NAME "
        "state=down reason=completing` and `state=resume`."
    )
    FIXED_NEIGHBOUR = (
        "packets for {name} ({address}) go to the network card {card}, which {name} does not have: a "
        "fixed entry in the table of neighbours (`ip neigh`), as after a card was replaced"
    )
    JOB_ENDED = "{name} ended as {state} ({reason}). Its last output:"
    JOB_FAILED = (
        "{ended}{why}\nThe complete log: {err} and {out}. After fixing the cause, launch again: it "
        "resumes from the newest checkpoint."
    )
    JOB_FINISHED_UNWATCHED = "Job {job_id} has already finished; it is not started again."
    JOB_GOES_ON = "The job ended as {state} ({reason}); it continues as jobs/{folder_name}."
    FORECASTS_NOT_SCORED = (
        "The forecasts are not scored yet, because {phase} is not finished ({missing})."
    )
    JOB_NOT_FINISHED = (
        "{phase} is not finished: jobs/{job_name} is {state} ({reason}). Run the cell that "
        "watches it, or end it: runbook cancel {settings_name}. Then run this cell again."
    )
    JOB_SUBMITTED = "{missing}: submitted jobs/{folder_name} as {job_id}."
    JOB_WAITS_TO_GO_ON = "The job ended with: {why}. The next job is submitted in {wait}."
    JOB_WATCHED = (
        "Job {job_id} of {folder_name} is {state}. It is not started again; its output follows."
    )
    JOB_WITH_OTHER_PARAMETERS = (
        "{latest} is {state} ({reason}) with parameters or data that differ from these. Wait until "
        "it has ended, or end it: runbook cancel {settings_name}. Then launch again."
    )
    KEEP_BOTH_OR_DO_AGAIN = (
        "\nTo keep both: runbook run {run} --as NAME. To repeat the run with the new values and "
        "keep the old results in its history: runbook run {run} --redo 00-plan, with the same "
        "--set."
    )
    KERNEL_SETTING_LOW = "{name} is {value}, below {minimum}"
    KEPT_OVERRIDES = "Kept from earlier calls of {run} ({file}): {values}."
    LADDER_NEEDS_OUR_TRAINER = (
        "A ladder needs the runbook's own trainer, which evaluates after the last step, but "
        "training.framework is {framework}. Add --set training.framework=runbook."
    )
    LADDER_NEEDS_PACKAGE = (
        "its ladder cannot be read without {package}: pip install 'gpt3-runbook[all]'"
    )
    LADDER_OF_A_NAMED_SET = (
        "{folder_name} is a folder made by --as. Name the run instead, with the same values: "
        "runbook ladder {run} --as NAME --set KEY=VALUE."
    )
    LADDER_TIMES_BY_A_CORE = (
        "The times are based on {gflops:.0f} GFLOP/s, just measured in a matrix product on one "
        "core of this machine."
    )
    LADDER_TIMES_NOT_MEASURED = (
        "The times are estimates for another CPU, and yours may take twice as long, because no "
        "smoke test has measured a step on this machine."
    )
    LADDER_OVER_BUDGET = "That is about {time} more than the remaining budget."
    LADDER_TIME_LEFT = "At this pace, the remaining {rungs} rungs take about {time}."
    LADDER_WITH_ANOTHER_BUDGET = (
        "{folder_name} was started with {designed_for}, but {requested} are requested, and its "
        "rungs cannot change. Leave the budget out to continue with them, or start another ladder "
        "with --as NAME."
    )
    LADDER_WITH_OTHER_RUNGS = (
        "{folder_name} was started with {number_of_rungs} rungs, but {rungs} are requested. Leave "
        "--rungs out to continue it, or start another ladder with --as NAME."
    )
    LADDER_WOULD_COST = (
        "A ladder of small training runs forecasts the loss on this text; runbook ladder {run} "
        "--plan shows its cost."
    )
    LAUNCH_FAILED = (
        "Slurm could not start the program on {node}: {text}. Its slurmd log has the reason, "
        "such as a user that the node does not know (`id`), a full spool folder, or a firewall in "
        "front of srun's ports on the first node (SrunPortRange)"
    )
    LAUNCH_UNANSWERED = (
        "no connection from {node} reaches {first} at port {port}, and srun there listens on such "
        "ports ({range}): a firewall. So tasks on {node} end as soon as they start"
    )
    LAUNCH_UNREACHED = (
        "Slurm could not start the program on {node}: {text}. The job's first node does not reach "
        "it: a firewall, isolated ports of a switch, or a wrong address or route"
    )
    LAW_FAR_FROM_RUN = (
        "the run has {decades:.1f} decades more compute than the largest training runs that the "
        "law was fitted to, so its interval is {widening:.1f} times as wide"
    )
    LESS_MEMORY = "it has {total} of memory, another node has {largest}"
    LIBRARIES_NOT_COMPARED = "they were not compared on {nodes}, because the import took too long"
    LIBRARY_REPLACED = (
        "{name} is {path} (version {version}); without LD_LIBRARY_PATH it would be {other_path} "
        "(version {other_version})"
    )
    LIBRARIES_CUT = "{package}: {names} in {folder} ends too early"
    LIKELY_CAUSE = "Differs on the named node: {differences}. Failed: {value}"
    LIMITS_ASKED = "{nodes}, {time_limit}"
    LIMITS_OF_JOB = "limits of jobs.{section}"
    LOCALHOST_ELSEWHERE = "localhost is {address}"
    LONGER_TRAINING_GOES_ON = (
        " A training run that differs only in length or layout continues from its checkpoint."
    )
    LOOPBACK_BLOCKED = (
        "lo is up, but a connection from the node to itself at 127.0.0.1 fails ({error}): a firewall "
        "drops packets of the loopback interface"
    )
    LOOPBACK_UNUSABLE = "{problem}: programs on the node cannot reach each other at 127.0.0.1"
    EARLIER_RESULT = "earlier result"
    LOSS_CURVE = "{phase}  loss {first:.2f} {curve} {last:.2f}"
    LOSSES_OF_TRAINING = "{first:.4f} at first, {latest:.4f} at step {last:,}"
    LOW_PRIORITY = "processes have nice {priority}, so other programs go first"
    MAKE_SETUP_INSTALLS = "make setup installs the versions pinned in requirements.lock."
    MASTER_MISSING = "{master} does not exist; restore it from the repository."
    MEMORY_IN_USE = (
        "the job may use {limit}; programs already running leave {left}, which is less than 1 "
        "GiB for each of its processes"
    )
    MEMORY_MISSING = "the node has {total} of memory, the site states {stated}"
    MEMORY_OF_DEVICE = "Memory of one {device}"
    MEMORY_OF_JOB = "memory of jobs.{section}"
    MFU_OF_PEAK = "{mfu:.1%} of {peak:g} TFLOP/s"
    MISSED_FORECAST = "{run}: {quantity} {actual}, forecast {low} to {high}"
    MISSED_FORECASTS = "Missed: {misses}. {calibration}"
    MORE_DIFFERENCES = "differences not shown: {count}"
    MORE_TOKEN_FILES_THAN_PLANNED = (
        "{text_name} has {number_of_present} pairs of token files ({by_name}), but the plan "
        "expects {number_of_planned} ({planned}): list the .bin files under `files` of {text_name} "
        "in params/datasets.yaml"
    )
    NAMED_FILE_ABSENT = "{name} names {path}, which does not exist"
    NAME_OFFERED_INTERFACES = "Choose one that these nodes have: {offered}."
    NAME_PRESENT_DEVICES = "Choose devices that exist: {devices}."
    NAME_RESERVATION = (
        "Set jobs.{section}.reservation if you may use it, or submit the job after it."
    )
    NAME_SLOW = "{name} took {time} to resolve"
    NEVER_STOPPED = "the job ran to its end without a stop, so a resume was not tried"
    NEWEST_RECORD_SAYS = "its newest record says {state}"
    NODES_IN_MULTIPLES = "nodes in multiples of"
    NODES_COMPLETING = "{nodes}: not free again after job {job} (completing)"
    NODES_NOT_RESERVED = "{free} of {total} nodes are not reserved in the next {time_limit}"
    NOTEBOOKS_MISSING = (
        "The notebooks are neither in {package} nor next to it: this installation is incomplete. "
        "Install it again: pip install --force-reinstall --no-deps gpt3-runbook"
    )
    NOTEBOOK_NOT_AMONG_RECORDS = "its executed notebook is not among the records"
    NOTHING_SUBMITTED = "{phase}: nothing was submitted. {reasons}"
    NOTHING_TO_LAUNCH = "{phase}: done and verified. Nothing to launch."
    NOTHING_TO_WATCH = "{phase}: done and verified. Nothing to watch."
    NOTHING_TRAINED = (
        "{folder_name} has not trained yet, so it has no results. Run it with runbook run "
        "{folder_name}."
    )
    NOT_A_RUN_NAME = (
        "{name!r} is not a valid run name: use letters, digits, '.', '_' and '-', at most 80."
    )
    NOT_RECORDED = "not recorded"
    NOT_REHEARSED = "Not rehearsed: {part}"
    NOT_STARTED_AGAIN = "\nNot started again: {why}."
    NO_ANSWER_HANGS = "no answer within {seconds:g} s: it hangs"
    NO_DIFFERENCE = "there is no difference"
    NO_FOLDER_AND_NO_FILE = "{no_folder}\n{no_file}"
    NO_JOB_YET = "{phase} has no job: run the cell that launches it first."
    NO_KNOWN_WEIGHTS = (
        "{source} has neither the config.json of a Hugging Face model nor any of {folder_files} of "
        "a Megatron-LM checkpoint. Choose the folder of a model or a checkpoint."
    )
    NO_NODE_CAME = "no node has reported so far"
    NO_PROMPT = (
        "Add --prompt: without a prompt, the text would start after an end-of-document token, "
        "which this tokenizer does not have."
    )
    NO_QUEUE_TO_REHEARSE = (
        "Site {site} has no queue to wait in, so there is no dry run. To rehearse it anyway: "
        "runbook rehearse {name}."
    )
    NO_RULE_BROKEN = "no rule is broken; at the top: {open_parts}."
    NO_RUNG_TRAINED = "No rung of this ladder has been trained yet."
    NO_STOP_REHEARSED = "training.rehearse_stop is 0: no stop is rehearsed."
    NO_TRAINER_TO_REHEARSE = (
        "a rehearsal runs the trainer itself, but torch and megatron-core are not both installed "
        "here: pip install 'gpt3-runbook[train]'"
    )
    NO_TEXT_DIFFERS = "{judge}: {judged:,} sampled texts, no differences"
    NO_VARIANTS = "{run} has no variants in params/variants/{run}.yaml."
    NUMBER_OF_GROUPS = (
        "{number_of_inputs} files form {number_of_groups} groups of {size}, but the catalogue has "
        "{number_of_names}: files are missing, or there are too many"
    )
    NUMBER_OF_RUNGS = (
        "A ladder has {fewest_rungs} to {most_rungs} rungs, not {count}: a law of size and tokens "
        "has five parameters, and more than {most_rungs} rungs are not worth their cost."
    )
    ONE_FILE_OF_EACH_NODE = (
        "a single file per node says little about the speed of a whole checkpoint"
    )
    OPENED_FASTER = "{value} (the quickest node: {milliseconds:.2g} ms)"
    OPENING_SLOW = "opening a file takes {milliseconds:.1f} ms, so imports are slow"
    OPTIMIZER_BEGINS_ANEW = (
        "The optimizer states of the engines are incompatible: the weights are kept, and Adam "
        "starts over."
    )
    OUTPUTS_SET_ASIDE = "Outputs made from other inputs were moved to {folder}."
    OVERLAPPING_NETWORKS = (
        "packets for {name} go to {interface}, because the address is in the networks of {interface} "
        "and {other}"
    )
    PACKAGES_OF_ENVIRONMENT = "all from the environment"
    PACKETS_LOST_BETWEEN = (
        "{node} can be reached from this machine, but not from {first}: the network between the "
        "nodes passes nothing (a firewall, or isolated ports of a switch)"
    )
    PHASES_OUT_OF_ORDER = "--from {from_phase} comes after --to {to_phase}; the order is {phases}."
    PHASE_DID_NOT_PASS = "{phase} did not pass; see its checks above."
    PHASE_ENDED = "{phase:16} {state} after {duration}"
    PHASE_FAILED = "\n{message}\n\nThe notebook up to this point: {notebook}"
    PHASE_RUNS = "{phase:16} running ({missing})"
    PHASE_TRAINS_NOTHING = "{phase} does not train; {phases} do."
    PHASE_VERIFIED = "{phase:16} done, verified"
    PLANNED_AND_FOUND = "Planned and found"
    PLANNED_STOP = "the stop planned by training.rehearse_stop={at}"
    PLAN_MAKES = "{origins}\n  the plan derives from it: {derived}"
    PROGRAM_ANSWERS = "{program} answers"
    PROGRAM_BROKEN = "{program} ({path}): {reason}"
    PROJECT_IS_A_FILE = "{folder} is a file, but a project is a folder. Choose another name."
    PUT_CELL_BACK = "\nTo continue this run as it is, reset the parameters cell to its defaults."
    PYTHON_HOME_MISLEADS = "Python does not start ({words}): PYTHONHOME={home} is not its folder"
    PYTHON_IN_FRONT = (
        "{name} on PATH is {path} (Python {version}), and it precedes the job's own {executable}"
    )
    PACKAGES_WITHOUT_LIBRARIES = "{folder} is mounted noexec, so no compiled library loads"
    QUEUE_OF_JOB = "queue of jobs.{section}"
    RANKS_ANSWERED = (
        "{present} of {world_size} ranks answered; rank {missing}{where} did not answer"
    )
    QUEUE_DRAINED_NODES = "{reasons}; {ending}"
    RANKS_SHARE_CORES = (
        "{ranks} ranks run on core {cores} alone, and the job has {allowed} cores ({variables})"
    )
    RANK_ENDED_FIRST = "rank {rank} on {host} ended first, with {ending}"
    RANK_OUTSIDE_JOB = "--ranks {outside}: this job has ranks 0 to {world_size}"
    RATE_FOLLOWS_NEW_LENGTH = (
        "From there the learning rate follows the new length: {new:.3g} in the next step, instead "
        "of {old:.3g} in the old plan. Earlier steps used the old rate, so the losses differ from "
        "those of a run planned for {iterations:,} steps from the start; "
        "training.decay_samples={decay_samples} would keep the old rate."
    )
    RATE_INDEPENDENT_OF_LENGTH = (
        "The learning rate does not depend on the length, so the losses equal those of one "
        "uninterrupted training run."
    )
    RECORD_OF_OTHER_RUN = (
        "This notebook is the record of run {recorded}, but the parameters that were run name run "
        "{bound}. Run the cell `# Parameters` above too, or open your own copies: runbook lab "
        "{recorded}"
    )
    RECIPE_DIFFERENCE = "{key} {rungs} -> {run}"
    REHEARSAL_FAILED = (
        "{phase} cannot be rehearsed at rank {rank_list}: the trainer ended with {exit_code}. "
        "Its last output:\n{errors}"
    )
    REHEARSED_BY_JOB = (
        "No trainer is installed here: {phase} rehearses this layout in a job before its own."
    )
    REQUEST_MEMORY = "Set jobs.{section}.memory (0 is all memory of the node)."
    RESERVED = "{name} is reserved from {start} to {end}"
    RESERVATIONS_OF_JOB = "reservations of jobs.{section}"
    RUNGS_FITTED_AGAIN = (
        "{time} of the budget are left for {rungs} rungs, so the largest rung gets {largest:,} "
        "parameters instead of {before:,}."
    )
    REPAIR_DRAINED_NODES = (
        "Ask the operators for the reason (a prolog's output is in slurmd's log on that node). After "
        "the repair: scontrol update nodename=NAME state=resume."
    )
    REPAIR_LOOPBACK = (
        "Set the interface up on that node (ip link set lo up), and let its firewall accept all "
        "packets of it (nft list ruleset, iptables -S)."
    )
    REPAIR_PATH = (
        "Compare the node's mounts and routes with those of the other nodes (findmnt, ip route get "
        "SERVER): it may reach the file server through a slower network, or have an I/O limit."
    )
    REPORT_WRITTEN = "Report: {path}"
    RUNGS_EVALUATED_ON_OTHER_TOKENS = (
        "the large rungs are evaluated on {rungs} held-out tokens, the run on {run:,}: texts differ, so "
        "the interval includes another {error:.2f} nats"
    )
    RUNGS_OF_FEW_STEPS = (
        "rungs that decide the forecast have few steps ({numbers}): their loss depends on the "
        "steps, not the tokens, so the interval is {widening:g} times as wide; a larger budget helps"
    )
    RUNGS_OF_ONE_SHAPE = (
        "all rungs have about the same tokens per parameter, so they cannot forecast other sizes; "
        "runbook ladder RUN --rungs 7 --as NAME adds rungs of other sizes"
    )
    RUNGS_OF_OTHER_TEXT = (
        "The rungs of {run} were trained on other text or tokens ({differences}), and losses on "
        "different text are not comparable. Start another ladder: runbook ladder {run} --as NAME."
    )
    RUN_ENDED_IN = "{end} in {phase}"
    RUN_FILES_HELD = "process {pid} of job {job}, which has ended, still uses {path}: {command}"
    RUNNING_WITHOUT_STEP = "running; it has completed no step yet and starts after step {iteration}"
    RULES_BROKEN = "{number} broken; they are at the top of the table."
    RUNG_STOPPED = (
        "{folder_name} stopped in {to_phase}. Once the cause is fixed, the same command continues "
        "from there: {message}"
    )
    RUNG_TOOK = "{name}: {measured} (planned: {planned})"
    RUNG_WITHOUT_LOSS = "{folder_name} has no loss on held-out text after its last step."
    RUN_FILE_EXISTS = (
        "{path_name} already exists and was not written by this form. Choose another file name."
    )
    RUN_NEARLY_UNSTABLE = (
        "a learning rate of {rate:g} is high for batches of {batch_tokens:,} tokens and a width of "
        "{width}: such runs end with a higher loss than their narrower rungs predict, so the "
        "interval is {widening:g} times as wide; a lower rate or larger batches help"
    )
    RUN_ON_ANOTHER_SITE = (
        "Run {run} is on site {site_of_run}, not on {site}. Name a run of {site} with --run."
    )
    SAMPLE_AFTER = "after iteration {iteration}: {text}"
    SAME_IN_BOTH_YAML = "the run file has the same meaning in YAML 1.1 and 1.2"
    SAW_REQUESTED_CORES = (
        "the job saw only the {requested} cores that it requested, but the node has {online}. "
        "Request more in jobs.training.cpus_per_task, or remove that key"
    )
    SAW_REQUESTED_MEMORY = (
        "the job saw only the {requested} that it requested, but the node has {total} GiB. Request "
        "all of it (jobs.environment.memory={all_memory})"
    )
    SCORE_AND_BEFORE = "{after:.3f}, {before:.3f} before"
    SCORES_BEFORE_AND_AFTER = "Scores before and after"
    SECOND_OWNER = "it also has {address}, which is the address of {name}"
    SECRET_FILE_READABLE = "; only you may read the file"
    SET_WAIT_TIME = "Add --wait=0 to step_options of the site file, so that srun waits for ranks that end later."
    SHARED_MEMORY_REMOVED = (
        "RemoveIPC={value}: when the user's last login session ends, logind deletes the files of "
        "running jobs in /dev/shm"
    )
    SCORES_OF_OTHER_WEIGHTS = (
        "{phase} cannot end, because its scores are not those of the newest weights ({missing}). "
        "Run the cell that measures them, then run this cell again."
    )
    SHARES_OF_BLEND = "{share:.1%} {text}"
    SHARE_OF_DOCUMENTS = "for {use}, {documents:,} of {all_documents} of {prefix}, with {tokens}"
    SHARE_REMEDY = (
        "Use more text, or divide it into more documents: the shares of data.split are cut between "
        "documents, and a .txt file is one (in a .jsonl file, each line is one). Or change "
        "data.split, or train without evaluation: training.eval_interval=0."
    )
    SHARE_RULE = "training and validation each read at least one sample: {sample_tokens:,} tokens"
    SHARE_OF_TEXT = "{share:.1%} (weight {weight:g} in data.blend)"
    SHARE_UNKNOWN = (
        "this is one of {tasks} tasks, but none of the variables {rank_variables} contains its "
        "number. Use jobs.data.array instead of jobs.data.nodes and jobs.data.tasks_per_node."
    )
    SHARED_MEMORY_UNWRITABLE = "no file can be written to /dev/shm: {error}"
    SHARING_OF_JOB = "cores of jobs.{section}"
    SCHEDULER_SETTINGS_DIFFER = "its slurm.conf differs from that of Slurm's controller"
    SITE_HAS_NODES = "{site} has {nodes} ({devices} devices)"
    SITE_HIDES_GPUS = (
        "site local computes on the CPU and hides the GPUs; site local-gpu uses the GPUs that "
        "torch sees, one per process"
    )
    SLOW_WRITER = "{folder}: it writes {speed}/s, and the fastest node {fastest}/s"
    SMALL_PACKETS = "{interface} has an MTU of {bytes} bytes"
    SOURCES_NOT_READ = "not read there, because time ran out or the package is missing: {packages}"
    STAGE_DOES_NOT_FIT = (
        "stage {stage} (rank {rank}) does not fit: it needs {peak_bytes} GiB, but only {limit} GiB "
        "of one {device} may be used"
    )
    START_MACHINES = (
        "Start the machines from the host that manages the cluster: bash environment/{fleet} start "
        "CLUSTER REGION."
    )
    STEP_FAILED = (
        "{title}: {exit_code}. Its last output:\n{last_lines}\nComplete output: {log}. After "
        "fixing the cause, run the cell again, or this script: bash {script}"
    )
    STOPPED_AND_RESUMED = "Stopped {where}, exit code 75; continues as jobs/{folder_name}."
    STEP_ENDED_LATE = "the step of stage {rung} ended {seconds} after its programs"
    STOP_REHEARSED_ALREADY = "This run was already stopped and resumed; that is not repeated."
    SYSTEM_FOLDER_EMPTY = "{folder} is empty; "
    TASK_ENDED = "task {task} on {node}: {text}"
    TASK_JOB_SUBMITTED = "{task}: submitted jobs/{folder_name} as {job_id}{behind}."
    TASK_JOB_WATCHED = "{state}. It is not started again; its output follows."
    TEMPORARY_FOLDER_ASKED = (
        "TMPDIR={tmpdir} cannot hold files here ({error}); programs use {folder} instead"
    )
    TEMPORARY_FOLDER_UNWRITABLE = (
        "/tmp cannot hold files here ({error}); programs use {folder} instead"
    )
    TEMPORARY_PATH_TOO_LONG = (
        "{folder} has {length} characters; programs that open sockets there fail above {most}"
    )
    TEXT_OF_MODEL_CARD = "- {title} (`{text}`, weight {weight:g}); licence: {licence}"
    TEXT_READ_TOO_OFTEN = (
        "The run reads its text {epochs:.1f} times, but a law for new tokens is valid up to "
        "{most_epochs:.0f} times: beyond that, repeated tokens teach almost nothing "
        "(arXiv:2305.16264). Use more text, or train less."
    )
    TIME_GRANTED = "{granted} of the requested {asked}"
    TOKENIZED_ALREADY = "tokenize: done and verified. Nothing is repeated."
    TOKEN_FILES_MADE_ELSEWHERE = (
        "{number_of_ready} pairs of token files were made elsewhere; they are used as they are."
    )
    TOO_FEW_OPEN_FILES = "{limit} open files, below {needed:.0f}"
    TEXT_IS_EMPTY = "{files}, without any text"
    TO_BE_LOOKED_AT = "{number} to review"
    TRAINER_NOT_INSTALLED = (
        "the trainer is not installed here (pip install 'gpt3-runbook[train]'), and no job is "
        "configured to check it elsewhere. Set a partition or a walltime in jobs.environment"
    )
    TRAINING_GOES_ON = (
        "The training continues from its checkpoint at iteration {saved:,}: {changes}."
    )
    RESULTS_SO_FAR = (
        "{phase} is not finished ({missing}): these are its results up to iteration {last:,}, "
        "of {planned}. Run this notebook again when it is."
    )
    TRAINING_NOT_FINISHED = (
        "{phase} is not finished, because its training is not ({missing}). Run the cells that "
        "launch and watch it, then run this cell again."
    )
    TRAINING_STILL_RUNS = (
        "{phase} cannot end yet: jobs/{job_name} is {state} ({reason}), and its results still "
        "change. When it has ended, run this notebook again; to end it: runbook cancel "
        "{settings_name}."
    )
    USE_BEST_LAYOUT = "To try the first layout: runbook check {run} {options}"
    USER_UNKNOWN = "user id {user_id} has no name in the node's user database"
    VALUE_REPLACED = "{key}: {old} -> {new}"
    VALUE_CHANGED = "\n  {key}: {old} in the folder, {new} now{origin}"
    VERSION_ON_NODES = "{version} on {nodes}"
    WAITING_RANKS = ". Waiting in {step}: rank {ranks} on {nodes}"
    WAIT_TIME = "srun ends the other tasks {seconds} s after the first one has ended (WaitTime)"
    WHAT_IS_BOUND = "{phase}: the run and its main values"
