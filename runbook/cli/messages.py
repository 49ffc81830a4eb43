"""Messages about the command line, one per row; `{name}` stands for a value."""

from __future__ import annotations

from runbook.plan_file.diagnostics import Message


class CliMessage(Message):
    """Messages about the command line."""

    ALL_WERE_THERE = "all existed already"
    ANY_EXTRA = (
        "pip install 'gpt3-runbook[all]' installs everything that a run needs, "
        "'gpt3-runbook[{extra}]' installs only this"
    )
    BEGINS_FROM = "{run} starts its training from {weights}"
    BAD_OPTION = "{opts}: {error}."
    CHECKS_FAILED = "{number_of_failed} of {number} checks failed: {names}"
    CHECKS_PASSED = "{number} checks, none failed"
    DOCUMENT = "document {number}: {tokens} tokens{cut_note}"
    DOWNLOADED = "{files:,} files, {size} in {folder}: {fetched}; no file is missing"
    DRAFTED_FROM = "Drafted from the output of: {source}."
    EMPTY_PROMPT = (
        "a prompt is empty. Give some text, or leave the option out to use the run's own prompt"
    )
    FETCHED = "{number:,} fetched in {duration}"
    FILL_IN_VALUES = "fill in the {marked} values marked FILL_IN in {site}; "
    FOLDER_OF_PREFIXES = "{folder} is a folder. It has token files at {prefixes}."
    FOLDER_WITHOUT_TOKENS = "{folder} is a folder without token files (*_text_document.idx)."
    FOLDER_NOT_A_PREFIX = "{value!r} is a folder; add a name, such as {folder}/corpus"
    FORECAST_OF_CURVE = (
        "After {share:.0%} of the steps: the last validation loss will be {loss:.4f} ({low:.4f} "
        "to {high:.4f} in {share_in_interval} of forecasts)"
    )
    KEPT = "exists and was kept"
    LAB_LOGIN = "JupyterLab asks for the token or password that you set."
    LAB_URL = "JupyterLab: {url}"
    LEFT_OUT = "left out: {records:,} records, {files:,} files"
    MODULE_REPLACED = (
        "{path} replaces Python's own module {module}. Remove its folder from PYTHONPATH, or rename "
        "the file."
    )
    NOT_A_SHARE = "{share!r} is not I/N, such as 0/32"
    NEEDS_TASKS = "{options} needs --tasks."
    NEXT_STEP = (
        "Next: {change_folder}runbook run local; or open notebooks/00-plan.ipynb in JupyterLab."
    )
    NO_TOKENIZER = (
        "The checkpoint has no tokenizer: make sure that data.tokenizer is the one it was trained "
        "with."
    )
    NOTHING_CHANGED = "nothing was changed after it was recorded."
    NO_BAD_NODE = "No node of {site} is marked as bad."
    NO_METRICS_YET = (
        "{path} does not exist: {phase} has not finished a step. runbook status shows its job; "
        "--phase names another phase that trains."
    )
    NO_RECORD_IN_LOGS = (
        "No record was found in {targets}: {reason}. Give the unmodified log of the last rank, to "
        "which Megatron prints its lines."
    )
    NO_SUCH_COMMAND = "There is no command {command!r}. {hint}"
    NO_SCHEDULER_ANSWERED = "No scheduler answered on this machine."
    ONE_EXTRA = "install the {extra} extra: pip install 'gpt3-runbook[{extra}]'"
    ONE_LOG_OUTPUT = "Give only one of --json, --csv and --to."
    ONE_NODE_ALONE = "Site {site} is this machine alone, so no node of it can be left out."
    ONE_SOURCE = "give exactly one of OLD_SCRIPT, --pid and --job"
    PACKAGE_MISSING = "the package {package} is missing; {remedy}"
    RUNNING_NOT_RECORDED = (
        "{folder}: {phase} is running; {files} will be recorded when it ends. Verify again then."
    )
    RUN_STOPPED_BY_SIGNAL = (
        "Stopped by {signal} while no notebook was running. The same command continues from here."
    )
    SHARE_MADE = (
        "share {share}: {made} of {total} shards made{before}; run without --share to join them"
    )
    PHASE_TRAINS_NOTHING = "{phase} does not train a model: give --phase {phases}."
    PROJECT_KEPT = "; {number} exist and were kept"
    PROJECT_WRITTEN = "{folder}: {number} files written{existing}."
    MEASURED_WITHOUT_PREDICT = "--measured MEASURED.csv needs --predict FILE.csv"
    RUN_OR_PREDICT = "give either RUN or --predict FILE.csv"
    THERE_ARE_COMMANDS = "Commands: {commands}."
    STOPPED_BY_SIGNAL = "Stopped by {signal}."
    TOKENIZED = "{done}: {documents:,} documents, {tokens:,} tokens -> {files}"
    TOKENIZED_BEFORE = "already done"
    TOKENIZED_NOW = "done in {duration}"
