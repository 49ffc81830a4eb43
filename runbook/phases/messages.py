"""Messages about the phases of a run: one row each, with `{name}` for a value."""

from __future__ import annotations

from runbook.plan_file.diagnostics import Message


class PhaseMessage(Message):
    """Messages about the phases of a run."""

    ANOTHER_TOKENIZER = (
        "{path} encodes {probe!r} as {expected}, and data.tokenizer {name} as {ids}: the weights "
        "would read other words than they learned. Set data.tokenizer to {path}, and tokenize "
        "the data with it."
    )
    BUDGET_TOO_SMALL_FOR_RUNGS = (
        "The largest rung of this budget has {largest:,.0f} parameters, and a model {width} wide "
        "has {narrowest:,} with its embeddings: that is no room for {rungs} rungs. Take a larger "
        "budget, or a larger model."
    )
    BUDGET_USED_BY_STARTS = (
        "A budget of {hours} is used up by starting {count} rungs, {start_seconds:.0f} s each on "
        "{devices} devices. Give more than {start_hours}."
    )
    CHECKS_FAILED = "{number_of_failures} of {number_of_checks} checks failed: {failures}"
    COMMAND_FAILED = "{command} ended with {how}.{hint}\n{err}"
    COPY_WITH_OTHER_OVERRIDES = (
        "{copy} is there, and its parameters cell does not say overrides = {overrides!r}: --set "
        "would change nothing. Write the values into the cell, add --fresh to copy the notebooks "
        "again, or give this set a folder of its own with --as NAME."
    )
    DATA_FOLDER = "data.folder is {folder!r}, from {where}: {error}"
    EXPORT_EXISTS = "{path} exists already: {why}. Remove it, or give another folder with --out."
    FOLDER_OF_A_SUBMITTED_JOB = (
        "{folder} holds a job that was submitted, and its script is kept as it ran. Name another "
        "folder with --out."
    )
    FOLDER_OF_THE_MASTERS = "{folder} is where the notebooks come from; name another folder."
    JOB_NOT_FINISHED = (
        "{phase} is not finished: jobs/{job_name} is {state} ({reason}). Run the cell that "
        "watches it, or end it: runbook cancel {settings_name}. Then run this cell again."
    )
    JOB_WITH_OTHER_PARAMETERS = (
        "{latest} is {state} ({reason}) with other parameters or data than these. Wait until it "
        "has ended, or end it: runbook cancel {settings_name}. Then launch again."
    )
    LADDER_NEEDS_OUR_TRAINER = (
        "The rungs of a ladder are trained by the runbook's own trainer, which evaluates after "
        "the last step, and training.framework is {framework}. Add --set "
        "training.framework=runbook."
    )
    LADDER_OF_A_NAMED_SET = (
        "{folder_name} is a folder that --as made. Name the run, and give its values again: "
        "runbook ladder {run} --as NAME --set KEY=VALUE."
    )
    LADDER_WITH_ANOTHER_BUDGET = (
        "{folder_name} was begun with {designed_for}, and {requested} are asked for: its rungs "
        "do not change. Leave the budget out to go on with them, or begin another ladder by --as "
        "NAME."
    )
    LADDER_WITH_OTHER_RUNGS = (
        "{folder_name} was begun with {number_of_rungs} rungs, and {rungs} are asked for. Leave "
        "--rungs out to go on with it, or begin another by --as NAME."
    )
    MASTER_MISSING = "{master} does not exist; restore it from the repository."
    MORE_TOKEN_FILES_THAN_PLANNED = (
        "{text_name} has {number_of_present} pairs of token files ({by_name}), and the plan "
        "reads {number_of_planned} ({planned}): list the .bin files under `files` of {text_name} "
        "in params/datasets.yaml, so that the plan knows them"
    )
    NOTEBOOKS_MISSING = (
        "The notebooks are neither in {package} nor beside it: this installation is not whole. "
        "Install it again: pip install --force-reinstall --no-deps gpt3-runbook"
    )
    NOTHING_SUBMITTED = "{phase}: nothing was submitted. {reasons}"
    NOTHING_TRAINED = (
        "{folder_name} has trained nothing yet, so it has no results. runbook run {folder_name} "
        "does."
    )
    NOT_A_RUN_NAME = (
        "{name!r} cannot be a run's name: letters, digits, '.', '_' and '-', at most 80."
    )
    NO_FOLDER_AND_NO_FILE = "{no_folder}\n{no_file}"
    NO_JOB_YET = "{phase} has no job: run the cell that launches it first."
    NO_KNOWN_WEIGHTS = (
        "{source} has no config.json, as a Hugging Face model's folder, and none of "
        "{folder_files}, as a Megatron-LM checkpoint's: give one of these folders."
    )
    NO_PROMPT = (
        "There is no prompt, and this tokenizer has no end of document to begin after: give "
        "--prompt."
    )
    NO_RUNG_TRAINED = "No rung of this ladder is trained yet."
    NO_TRAINER_TO_REHEARSE = (
        "a rehearsal runs the trainer itself, and torch and megatron-core are not both installed "
        "here: pip install 'gpt3-runbook[train]'"
    )
    NO_VARIANTS = "{run} has no variants: params/variants/{run}.yaml names none."
    NUMBER_OF_GROUPS = (
        "{number_of_inputs} files give {number_of_groups} groups of {size}, and the catalogue "
        "names {number_of_names}: files are missing, or there are too many"
    )
    NUMBER_OF_RUNGS = (
        "A ladder has {fewest_rungs} to {most_rungs} rungs, not {count}: a law of size and "
        "tokens has five numbers, and more than {most_rungs} cost more than they tell."
    )
    PHASES_OUT_OF_ORDER = "--from {from_phase} comes after --to {to_phase}; the order is {phases}."
    PHASE_DID_NOT_PASS = "{phase} did not pass; its checks above say why."
    PHASE_TRAINS_NOTHING = "{phase} trains nothing; {phases} do."
    PROJECT_IS_A_FILE = "{folder} is a file; a project is a folder. Name another."
    RANK_OUTSIDE_JOB = "--ranks {outside}: this job has ranks 0 to {world_size}"
    REHEARSAL_FAILED = (
        "{phase} cannot be rehearsed at rank {rank_list}: the trainer ended with {exit_code}. "
        "Its last words:\n{errors}"
    )
    RUNGS_OF_OTHER_TEXT = (
        "The rungs of {run} were trained on other text or tokens ({differences}), and losses on "
        "other text do not compare. Begin another ladder: runbook ladder {run} --as NAME."
    )
    RUNG_STOPPED = (
        "{folder_name} stopped in {to_phase}. The same command goes on from there once the cause "
        "is fixed: {message}"
    )
    RUNG_WITHOUT_LOSS = "{folder_name} has no loss on held-out text after its last step."
    RUN_FILE_EXISTS = (
        "{path_name} exists already and was not written by this form. Choose another file name."
    )
    RUN_ON_ANOTHER_SITE = (
        "Run {run} is on site {site_of_run}, not on {site}. Name a run of {site} by --run."
    )
    SHARE_UNKNOWN = (
        "this is one of {tasks} tasks, and none of {rank_variables} says which. Use "
        "jobs.data.array instead of jobs.data.nodes and jobs.data.tasks_per_node."
    )
    STEP_FAILED = (
        "{title}: {exit_code}. Its last words:\n{last_lines}\nAll of them: {log}. After fixing "
        "the cause run the cell again, or by hand: bash {script}"
    )
    TEXT_READ_TOO_OFTEN = (
        "The run reads its text {epochs:.1f} times, and a law of new tokens forecasts at most "
        "{most_epochs:.0f}: from there on a repeated token teaches almost nothing "
        "(arXiv:2305.16264). Take more text, or train less."
    )
    TRAINER_NOT_INSTALLED = (
        "the trainer is not installed here (pip install 'gpt3-runbook[train]'), and no job does "
        "it elsewhere: give jobs.environment a partition or a walltime"
    )
    TRAINING_NOT_FINISHED = (
        "{phase} is not finished, because its training is not ({missing}). Run the cells that "
        "launch and watch it, then this cell again."
    )
