"""Messages about the phases of a run: one row each, with `{name}` for a value."""

from __future__ import annotations

from runbook.plan_file.diagnostics import Message


class PhaseMessage(Message):
    """Messages about the phases of a run."""

    ABSENT_DEVICE = "{variable}={device} on {node}"
    ANOTHER_RECIPE = (
        "the rungs were trained by another recipe ({differences}): the interval is {widening:g} "
        "times as wide"
    )
    ANOTHER_TOKENIZER = (
        "{path} encodes {probe!r} as {expected}, and data.tokenizer {name} as {ids}: the weights "
        "would read other words than they learned. Set data.tokenizer to {path}, and tokenize "
        "the data with it."
    )
    BAD_INPUT = "{skipped_records:,} records, {skipped_files:,} files"
    BEGIN_TRAINING_ANEW = "To begin anew instead: runbook run with --redo training."
    BEST_SIZE = (
        "The best size at this compute: {parameters} parameters on {tokens} tokens, loss "
        "{loss:.4f}."
    )
    BROKEN_PYTHON_IN_FRONT = (
        "{name} on PATH is {path}, which does not start as a Python, in front of the job's own "
        "{executable}"
    )
    BUDGET_TOO_SMALL_FOR_RUNGS = (
        "The largest rung of this budget has {largest:,.0f} parameters, and a model {width} wide "
        "has {narrowest:,} with its embeddings: that is no room for {rungs} rungs. Take a larger "
        "budget, or a larger model."
    )
    BUDGET_USED_BY_STARTS = (
        "A budget of {hours} is used up by starting {count} rungs, {start_seconds:.0f} s in all on "
        "{devices} devices. Give more than {start_hours}."
    )
    BUS_BANDWIDTH = (
        "{ranks} ranks, {message_bytes} in {slowest}: {speed:.2f} GB/s bus bandwidth ({backend})"
    )
    CACHE_SHARED = "{variable}: {folder} is on {file_system}"
    CACHE_UNWRITABLE = "{variable}: {folder}: {error}"
    CACHE_WITHOUT_LIBRARIES = "{variable}: {folder} is mounted noexec"
    CELLS_COPIED_AGAIN = "  --fresh copies the masters again and keeps these copies."
    CELLS_DIFFER = "  {name} differs from its master in {cells}: edited, or the master is newer."
    CHECKPOINTS_OF_ANOTHER_TRAINING = "{foreign}: of another training"
    CHECKS_FAILED = "{number_of_failures} of {number_of_checks} checks failed: {failures}"
    COMMAND_FAILED = "{command} ended with {how}.{hint}\n{err}"
    COMPILER_OF_OTHER_CUDA = "nvcc {compiler}, torch built with {cuda}"
    COPIES_KEPT = "{folder}: {number} notebooks exist and were kept."
    COPIES_WRITTEN = "{folder}: {number} notebooks copied."
    COPY_WITH_OTHER_OVERRIDES = (
        "{copy} is there, and its parameters cell does not say overrides = {overrides!r}: --set "
        "would change nothing. Write the values into the cell, add --fresh to copy the notebooks "
        "again, or give this set a folder of its own with --as NAME."
    )
    DATA_FOLDER = "data.folder is {folder!r}, from {where}: {error}"
    DIFFERENT_SOURCES = "{versions} ({folder})"
    DIFFERENT_VERSIONS = "{package} {versions}"
    DOCUMENTS_LEFT_OUT = "{documents:,} documents: {sources}"
    DOCUMENTS_OF_SOURCE = "{documents:,} of {source}"
    DOCUMENTS_OF_TEXT = "{size} in {documents:,} documents, {empty:,} of them empty"
    DO_PHASE_AGAIN = (
        "Or do {phase} again, which keeps the present files in history/: runbook run {run} "
        "--redo {phase}"
    )
    ENDED_WITH_EXIT_CODE = "it ended with exit code {code}"
    END_ASKED_DURING_WAIT = "a person asked for the end during the wait"
    EVERYTHING_FITS = "every value is right, and they fit together."
    EVERY_STAGE_FITS = (
        "one step at full size runs and every stage fits its device, or nothing is submitted"
    )
    EXPORT_EXISTS = "{path} exists already: {why}. Remove it, or give another folder with --out."
    EXPORT_LEFT_PART = "an export that was ended left it, or one is running"
    EXPORT_NOT_REPLACED = "nothing is written over"
    FETCHED_NOW = "{files:,} files, {size} in {folder}: {fetched:,} fetched now"
    FINISHED_BEFORE_THE_STOP = "The job finished before it could be stopped at iteration {at}."
    FIRST_FAILED_RANK = "rank {rank} on {node}: {step}{error_text}{later_failures}{hung}"
    FOLDER_OF_A_SUBMITTED_JOB = (
        "{folder} holds a job that was submitted, and its script is kept as it ran. Name another "
        "folder with --out."
    )
    FOLDER_OF_OTHER_VALUES = "{folder} was made with other values:{changes}{remedies}"
    FOLDER_OF_THE_MASTERS = "{folder} is where the notebooks come from; name another folder."
    FULLEST_STAGE = "stage {stage} is the fullest: {gibibytes} GiB"
    GATE_OF_OTHER_PARAMETERS = "done with other parameters"
    GATE_WAIVED = "{gate}; waived by {name} (account {account})"
    GPUS_HIDDEN = "GPUs of a node are hidden from its processes"
    GPU_IN_USE = "GPU {number} {use} %, {memory} MiB"
    GPU_MEMORY_IN_USE = "{host} {number}: {memory} in use"
    HAS_EVERY_FILE = "Nothing is fetched: {home}, which data.folder names, has every file."
    HAS_OTHER_FILES = (
        "Nothing is fetched: {home}, which data.folder names, holds other files than {name}'s; "
        "they are read as they are."
    )
    HISTORY_NOT_KEPT = "not kept, which is PBS's default"
    IMAGE_NOT_READABLE = "{image}: {reason}"
    IMAGE_OF_NO_KIND = "{image} is neither SquashFS nor SIF"
    JOB_ENDED = "{name} ended as {state} ({reason}). Its last words:"
    JOB_FAILED = (
        "{ended}{why}\nThe whole log: {err} and {out}. After fixing the cause, launch again: it "
        "resumes from the newest checkpoint."
    )
    JOB_FINISHED_UNWATCHED = "Job {job_id} finished while nobody watched; nothing is started again."
    JOB_GOES_ON = "The job ended as {state} ({reason}); it goes on as jobs/{folder_name}."
    JOB_NOT_FINISHED = (
        "{phase} is not finished: jobs/{job_name} is {state} ({reason}). Run the cell that "
        "watches it, or end it: runbook cancel {settings_name}. Then run this cell again."
    )
    JOB_SUBMITTED = "{missing}: submitted jobs/{folder_name} as {job_id}."
    JOB_WAITS_TO_GO_ON = "The job met this: {why}. The next one is submitted in {wait}."
    JOB_WATCHED = "Job {job_id} of {folder_name} is {state}; it is watched, not started again."
    JOB_WITH_OTHER_PARAMETERS = (
        "{latest} is {state} ({reason}) with other parameters or data than these. Wait until it "
        "has ended, or end it: runbook cancel {settings_name}. Then launch again."
    )
    KEEP_BOTH_OR_DO_AGAIN = (
        "\nTo keep both: runbook run {run} --as NAME. To do it again with the new values, the "
        "old results kept in its history: runbook run {run} --redo 00-plan, with the same --set."
    )
    KEPT_OVERRIDES = "Kept from earlier calls of {run} ({file}): {values}."
    LADDER_NEEDS_OUR_TRAINER = (
        "The rungs of a ladder are trained by the runbook's own trainer, which evaluates after "
        "the last step, and training.framework is {framework}. Add --set "
        "training.framework=runbook."
    )
    LADDER_OF_A_NAMED_SET = (
        "{folder_name} is a folder that --as made. Name the run, and give its values again: "
        "runbook ladder {run} --as NAME --set KEY=VALUE."
    )
    LADDER_TIMES_BY_A_CORE = (
        "The times follow from {gflops:.0f} GFLOP/s, which one core of this machine reached just "
        "now in a matrix product."
    )
    LADDER_TIMES_NOT_MEASURED = (
        "The times are estimates for another CPU, and yours may take twice as long: no smoke test "
        "has measured a step on this machine."
    )
    LADDER_OVER_BUDGET = "That is about {time} more than the budget has left."
    LADDER_TIME_LEFT = "At this pace, the {rungs} rungs that are left take about {time}."
    LADDER_WITH_ANOTHER_BUDGET = (
        "{folder_name} was begun with {designed_for}, and {requested} are asked for: its rungs "
        "do not change. Leave the budget out to go on with them, or begin another ladder by --as "
        "NAME."
    )
    LADDER_WITH_OTHER_RUNGS = (
        "{folder_name} was begun with {number_of_rungs} rungs, and {rungs} are asked for. Leave "
        "--rungs out to go on with it, or begin another by --as NAME."
    )
    LADDER_WOULD_COST = (
        "runbook ladder {run} --plan shows what a ladder of small trainings would cost, which "
        "forecasts the loss on this text."
    )
    LAW_FAR_FROM_RUN = (
        "the run lies {decades:.1f} decades of compute beyond the largest trainings that the law "
        "was fitted to, so its interval is {widening:.1f} times as wide"
    )
    LIBRARIES_NOT_COMPARED = "the import left no time to compare them on {nodes}"
    LIBRARY_REPLACED = (
        "{name} is {path} (version {version}), without LD_LIBRARY_PATH {other_path} "
        "(version {other_version})"
    )
    LIMITS_ASKED = "{nodes}, {time_limit}"
    LIMITS_OF_JOB = "limits of jobs.{section}"
    LONGER_TRAINING_GOES_ON = (
        " A training that only becomes longer or is cut otherwise goes on from its checkpoint."
    )
    LOSS_CURVE = "{phase}  loss {first:.2f} {curve} {last:.2f}"
    LOSSES_OF_TRAINING = "{first:.4f} at first, {latest:.4f} at step {last:,}"
    MAKE_SETUP_INSTALLS = "make setup installs what requirements.lock pins."
    MASTER_MISSING = "{master} does not exist; restore it from the repository."
    MEMORY_OF_DEVICE = "Memory of one {device}"
    MFU_OF_PEAK = "{mfu:.1%} of {peak:g} TFLOP/s"
    MISSED_FORECAST = "{run}: {quantity} {actual}, forecast {low} to {high}"
    MISSED_FORECASTS = "Missed: {misses}. {calibration}"
    MORE_TOKEN_FILES_THAN_PLANNED = (
        "{text_name} has {number_of_present} pairs of token files ({by_name}), and the plan "
        "reads {number_of_planned} ({planned}): list the .bin files under `files` of {text_name} "
        "in params/datasets.yaml, so that the plan knows them"
    )
    NAME_OFFERED_INTERFACES = "Name one that these nodes have: {offered}."
    NAME_PRESENT_DEVICES = "Name devices that are there: {devices}."
    NEWEST_RECORD_SAYS = "its newest record says {state}"
    NODES_IN_MULTIPLES = "nodes in multiples of"
    NOTEBOOKS_MISSING = (
        "The notebooks are neither in {package} nor beside it: this installation is not whole. "
        "Install it again: pip install --force-reinstall --no-deps gpt3-runbook"
    )
    NOTEBOOK_NOT_AMONG_RECORDS = "its executed notebook is not among the records"
    NOTHING_SUBMITTED = "{phase}: nothing was submitted. {reasons}"
    NOTHING_TO_LAUNCH = "{phase}: done, verified. Nothing to launch."
    NOTHING_TO_WATCH = "{phase}: done, verified. Nothing to watch."
    NOTHING_TRAINED = (
        "{folder_name} has trained nothing yet, so it has no results. runbook run {folder_name} "
        "does."
    )
    NOT_A_RUN_NAME = (
        "{name!r} cannot be a run's name: letters, digits, '.', '_' and '-', at most 80."
    )
    NOT_RECORDED = "not recorded"
    NOT_REHEARSED = "Not rehearsed: {part}"
    NOT_STARTED_AGAIN = "\nNot started again: {why}."
    NO_ANSWER_HANGS = "no answer within {seconds:g} s: it hangs"
    NO_DIFFERENCE = "they do not differ"
    NO_FOLDER_AND_NO_FILE = "{no_folder}\n{no_file}"
    NO_JOB_YET = "{phase} has no job: run the cell that launches it first."
    NO_KNOWN_WEIGHTS = (
        "{source} has no config.json, as a Hugging Face model's folder, and none of "
        "{folder_files}, as a Megatron-LM checkpoint's: give one of these folders."
    )
    NO_NODE_CAME = "no node came so far"
    NO_PROMPT = (
        "There is no prompt, and this tokenizer has no end of document to begin after: give "
        "--prompt."
    )
    NO_QUEUE_TO_REHEARSE = (
        "Site {site} has no queue to wait in: nothing is rehearsed. runbook rehearse {name} does "
        "it."
    )
    NO_RULE_BROKEN = "no rule is broken; {open_parts}, at the top."
    NO_RUNG_TRAINED = "No rung of this ladder is trained yet."
    NO_STOP_REHEARSED = "training.rehearse_stop is 0: no stop is rehearsed."
    NO_TRAINER_TO_REHEARSE = (
        "a rehearsal runs the trainer itself, and torch and megatron-core are not both installed "
        "here: pip install 'gpt3-runbook[train]'"
    )
    NO_TEXT_DIFFERS = "{judge}: {judged:,} sampled texts, none differs"
    NO_VARIANTS = "{run} has no variants: params/variants/{run}.yaml names none."
    NUMBER_OF_GROUPS = (
        "{number_of_inputs} files give {number_of_groups} groups of {size}, and the catalogue "
        "names {number_of_names}: files are missing, or there are too many"
    )
    NUMBER_OF_RUNGS = (
        "A ladder has {fewest_rungs} to {most_rungs} rungs, not {count}: a law of size and "
        "tokens has five numbers, and more than {most_rungs} cost more than they tell."
    )
    ONE_FILE_OF_EACH_NODE = "one file of each node says little about a whole checkpoint"
    OPTIMIZER_BEGINS_ANEW = (
        "Each engine's optimizer state is its own: the weights are taken up, and Adam begins anew."
    )
    OUTPUTS_SET_ASIDE = "Outputs made from other inputs were moved to {folder}."
    PHASES_OUT_OF_ORDER = "--from {from_phase} comes after --to {to_phase}; the order is {phases}."
    PHASE_DID_NOT_PASS = "{phase} did not pass; its checks above say why."
    PHASE_ENDED = "{phase:16} {state} after {duration}"
    PHASE_FAILED = "\n{message}\n\nThe notebook as far as it came: {notebook}"
    PHASE_RUNS = "{phase:16} running ({missing})"
    PHASE_TRAINS_NOTHING = "{phase} trains nothing; {phases} do."
    PHASE_VERIFIED = "{phase:16} done, verified"
    PLANNED_AND_FOUND = "Planned and found"
    PLANNED_STOP = "the stop that training.rehearse_stop={at} plans"
    PLAN_MAKES = "{origins}\n  the plan makes of it: {derived}"
    PROGRAM_ANSWERS = "{program} answers"
    PROJECT_IS_A_FILE = "{folder} is a file; a project is a folder. Name another."
    PUT_CELL_BACK = (
        "\nTo go on with this run as it is, put the parameters cell back to its defaults."
    )
    PYTHON_IN_FRONT = (
        "{name} on PATH is {path} (Python {version}), in front of the job's own {executable}"
    )
    QUEUE_OF_JOB = "queue of jobs.{section}"
    RANKS_ANSWERED = (
        "{present} of {world_size} ranks answered; nothing came from rank {missing}{where}"
    )
    RANK_ENDED_FIRST = "rank {rank} on {host} ended first, with {ending}"
    RANK_OUTSIDE_JOB = "--ranks {outside}: this job has ranks 0 to {world_size}"
    RATE_FOLLOWS_NEW_LENGTH = (
        "The learning rate follows the new length from there: {new:.3g} in the next step, where "
        "the old plan had {old:.3g}. The steps before were made by the old one, so the losses "
        "are not those of a training planned for {iterations:,} from its start; "
        "training.decay_samples={decay_samples} would keep the old rate."
    )
    RATE_INDEPENDENT_OF_LENGTH = (
        "The learning rate does not depend on the length: the losses are those of one "
        "undisturbed training."
    )
    RECIPE_DIFFERENCE = "{key} {rungs} -> {run}"
    REHEARSAL_FAILED = (
        "{phase} cannot be rehearsed at rank {rank_list}: the trainer ended with {exit_code}. "
        "Its last words:\n{errors}"
    )
    REHEARSED_BY_JOB = (
        "No trainer is installed here: {phase} rehearses this layout by a job before its own."
    )
    RUNGS_FITTED_AGAIN = (
        "{time} of the budget are left for {rungs} rungs, so the largest gets {largest:,} "
        "parameters instead of {before:,}."
    )
    REPORT_WRITTEN = "Report: {path}"
    RUNGS_OF_FEW_STEPS = (
        "rungs with few steps ({numbers}): their loss follows the steps, not the tokens, so the "
        "interval is {widening:g} times as wide; a larger budget helps"
    )
    RUNGS_OF_ONE_SHAPE = (
        "all rungs have about the same tokens per parameter, so that they do not say what "
        "another size would reach; runbook ladder RUN --rungs 7 --as NAME adds rungs of other "
        "sizes"
    )
    RUNGS_OF_OTHER_TEXT = (
        "The rungs of {run} were trained on other text or tokens ({differences}), and losses on "
        "other text do not compare. Begin another ladder: runbook ladder {run} --as NAME."
    )
    RUNG_STOPPED = (
        "{folder_name} stopped in {to_phase}. The same command goes on from there once the cause "
        "is fixed: {message}"
    )
    RUNG_TOOK = "{name}: {measured}; planned were {planned}"
    RUNG_WITHOUT_LOSS = "{folder_name} has no loss on held-out text after its last step."
    RUN_FILE_EXISTS = (
        "{path_name} exists already and was not written by this form. Choose another file name."
    )
    RUN_ON_ANOTHER_SITE = (
        "Run {run} is on site {site_of_run}, not on {site}. Name a run of {site} by --run."
    )
    SAMPLE_AFTER = "after iteration {iteration}: {text}"
    SAME_IN_BOTH_YAML = "the run file means the same to readers of YAML 1.1 and 1.2"
    SAW_REQUESTED_CORES = (
        "the job saw the {requested} cores that it had asked for, of {online} that the node has. "
        "Ask for more (jobs.training.cpus_per_task), or for none"
    )
    SAW_REQUESTED_MEMORY = (
        "the job saw the {requested} that it had asked for, of {total} GiB that the node has. "
        "Ask for all (jobs.environment.memory={all_memory})"
    )
    SCORE_AND_BEFORE = "{after:.3f}, {before:.3f} before"
    SCORES_BEFORE_AND_AFTER = "Scores before and after"
    SECRET_FILE_READABLE = "; a file is readable by you alone"
    SHARES_OF_BLEND = "{share:.1%} {text}"
    SHARE_OF_TEXT = "{share:.1%} (weight {weight:g} in data.blend)"
    SHARE_UNKNOWN = (
        "this is one of {tasks} tasks, and none of {rank_variables} says which. Use "
        "jobs.data.array instead of jobs.data.nodes and jobs.data.tasks_per_node."
    )
    SITE_HIDES_GPUS = (
        "site local computes on the CPU and hides them; site local-gpu takes those that torch "
        "sees, one a process"
    )
    SOURCES_NOT_READ = "not read there, for want of time or of the package: {packages}"
    STAGE_DOES_NOT_FIT = (
        "stage {stage} (rank {rank}) does not fit: it needs {peak_bytes} GiB, and {limit} GiB of "
        "one {device} may be used"
    )
    START_MACHINES = (
        "Start the machines where the cluster is managed: bash environment/{fleet} start CLUSTER "
        "REGION."
    )
    STEP_FAILED = (
        "{title}: {exit_code}. Its last words:\n{last_lines}\nAll of them: {log}. After fixing "
        "the cause run the cell again, or by hand: bash {script}"
    )
    STOPPED_AND_RESUMED = "Stopped {where}, exit code 75; goes on as jobs/{folder_name}."
    STOPPED_BETWEEN_NOTEBOOKS = (
        "Stopped between two notebooks by signal {signal}; the same command goes on from here."
    )
    STOP_REHEARSED_ALREADY = "This run was already stopped and resumed; it is not done twice."
    TASK_ENDED = "task {task} on {node}: {text}"
    TASK_JOB_SUBMITTED = "{task}: submitted jobs/{folder_name} as {job_id}{behind}."
    TASK_JOB_WATCHED = "{state}; it is watched, not started again."
    TEXT_OF_MODEL_CARD = "- {title} (`{text}`, weight {weight:g}); licence: {licence}"
    TEXT_READ_TOO_OFTEN = (
        "The run reads its text {epochs:.1f} times, and a law of new tokens forecasts at most "
        "{most_epochs:.0f}: from there on a repeated token teaches almost nothing "
        "(arXiv:2305.16264). Take more text, or train less."
    )
    TIME_GRANTED = "{granted} of {asked} that were asked for"
    TOKENIZED_ALREADY = "tokenize: done, verified. Nothing is made again."
    TOKEN_FILES_MADE_ELSEWHERE = (
        "{number_of_ready} pairs of token files were made elsewhere; they are read as they are."
    )
    TOO_FEW_OPEN_FILES = "{limit} open files, below {needed:.0f}"
    TO_BE_LOOKED_AT = "{number} to be looked at"
    TRAINER_NOT_INSTALLED = (
        "the trainer is not installed here (pip install 'gpt3-runbook[train]'), and no job does "
        "it elsewhere: give jobs.environment a partition or a walltime"
    )
    TRAINING_GOES_ON = "The training goes on from its checkpoint of iteration {saved:,}: {changes}."
    TRAINING_NOT_FINISHED = (
        "{phase} is not finished, because its training is not ({missing}). Run the cells that "
        "launch and watch it, then this cell again."
    )
    VALUE_REPLACED = "{key}: {old} -> {new}"
    VALUE_CHANGED = "\n  {key}: {old} there, {new} now{origin}"
    VERSION_ON_NODES = "{version} on {nodes}"
    WAITING_RANKS = ". Waiting in {step}: rank {ranks} on {nodes}"
    WHAT_IS_BOUND = "{phase}: what is bound"
