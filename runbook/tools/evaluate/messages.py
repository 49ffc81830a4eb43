"""Messages about evaluations, one per row; `{name}` stands for a value."""

from __future__ import annotations

from runbook.plan_file.diagnostics import Message


class EvaluationMessage(Message):
    """Messages about evaluations."""

    DATA_MISSING = (
        "The data of these tasks is not in the cache and could not be fetched; nothing was "
        'scored:\n{tasks}\nOn a machine with network access: python -c "from datasets import '
        'load_dataset; {loads}"\nThen copy the folder $HF_HOME (~/.cache/huggingface) to this '
        "machine, and set HF_HUB_OFFLINE=1."
    )
    DATA_OF_TASK = "  {name} ({data} {part}): {why}"
    LOAD_DATASET = "load_dataset({arguments})"
    NO_END_OF_DOCUMENT = (
        "The tokenizer {tokenizer} has no end-of-document token, but every text must begin with "
        "one."
    )
    NO_SCORES = "lm-evaluation-harness returned no scores for {names}."
    NO_SUCH_TASK = "--tasks: lm-evaluation-harness has no task {name!r}. {hint}"
    NO_TASK_IN_FOLDER = (
        "--task-folder {folder} has no task: it needs a .yaml file of lm-evaluation-harness."
    )
    SCORED_BEFORE = "{tasks}: scored before."
    TOO_MANY_NEW_TOKENS = "A task requests {tokens} new tokens; the model has {positions}."
