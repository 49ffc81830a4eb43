"""Scores a run on tasks from lm-evaluation-harness.

Scores are computed for the newest checkpoint or the exported folder.
"""

import difflib
import json
import logging
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any

from lm_eval import simple_evaluate
from lm_eval.tasks import TaskManager

from runbook.core.checks import counted
from runbook.core.errors import DataError, ParamsError
from runbook.core.files import read_lines, write_text
from runbook.core.table import Row, Table
from runbook.phases.phase_steps import measuring_step
from runbook.plan_file.checkpoint_folder import newest_checkpoint
from runbook.plan_file.phase_names import FULL
from runbook.plan_file.schema import PhasePlan
from runbook.planning.messages import PlanningMessage
from runbook.records.manifest import note_files
from runbook.runs import run_files
from runbook.runs.run_folder import hold_run
from runbook.tools.evaluate.messages import EvaluationMessage
from runbook.tools.evaluate.trainer_model import TrainerModel

_LANGUAGE = ("lambada_openai", "hellaswag", "storycloze_2016")
_CLOSED_BOOK = ("triviaqa", "nq_open", "webqs")
_TRANSLATION = (
    "wmt14-en-fr",
    "wmt14-fr-en",
    "wmt16-de-en",
    "wmt16-en-de",
    "wmt16-en-ro",
    "wmt16-ro-en",
)
_REASONING_AND_READING = (
    "wsc273",
    "winogrande",
    "piqa",
    "arc_easy",
    "arc_challenge",
    "openbookqa",
    "coqa",
    "drop",
    "squadv2",
    "race",
)
_SUPERGLUE_AND_NLI = (
    "boolq",
    "cb",
    "copa",
    "rte",
    "wic",
    "wsc",
    "multirc",
    "record",
    "anli_r1",
    "anli_r2",
    "anli_r3",
)
_ARITHMETIC = (
    "arithmetic_2da",
    "arithmetic_2ds",
    "arithmetic_3da",
    "arithmetic_3ds",
    "arithmetic_4da",
    "arithmetic_4ds",
    "arithmetic_5da",
    "arithmetic_5ds",
    "arithmetic_2dm",
    "arithmetic_1dc",
)
_WORD_PUZZLES = ("anagrams1", "anagrams2", "cycle_letters", "random_insertion", "reversed_words")
GPT3 = (
    *_LANGUAGE,
    *_CLOSED_BOOK,
    *_TRANSLATION,
    *_REASONING_AND_READING,
    *_SUPERGLUE_AND_NLI,
    *_ARITHMETIC,
    *_WORD_PUZZLES,
)
"""Tasks used in the GPT-3 paper (arXiv:2005.14165) that the harness has.

The harness lacks QuAC and the SAT analogies.
"""
OURS = "evaluation/harness.jsonl"
EXPORTED = "evaluation/harness-exported.jsonl"
SAME = ("training", "harness", "limit", "shots")
"""Keys that are equal in two scores for the same weights."""
BATCH = 8
"""Batch size used when `transformers` computes the scores."""


@dataclass(frozen=True)
class Wish:
    """The requested scores."""

    tasks: tuple[str, ...]
    # Folder with additional task files
    folder: Path | None = None
    # Number of samples for each task
    limit: int | None = None
    # Number of solved examples before each sample, or None to let the task decide
    shots: int | None = None
    # Hugging Face folder to use instead of the checkpoint
    exported: Path | None = None
    again: bool = False


def score(run_folder: Path, request: Wish) -> Table:
    """Score the tasks that have no scores yet, and return all scores for these weights.

    If a task fails, nothing is written.
    """
    plan = run_files.read_plan_file(run_folder)
    spec = plan.phases[FULL]
    manager = _task_manager(request.folder)
    names = _known_names(manager, request.tasks)
    newest = newest_checkpoint(run_folder / spec.checkpoint.folder)
    checkpoint = newest.name if newest else ""
    # While training is under way, the name distinguishes its checkpoints.
    training = f"{measuring_step(run_folder, plan).fingerprint} {checkpoint}"
    about: Row = {
        "harness": version("lm_eval"),
        "limit": request.limit,
        "shots": request.shots,
        "training": training,
    }
    path = run_folder / (EXPORTED if request.exported else OURS)
    rows = _rows_of_training(path, about)
    missing = _unscored(names, rows, about, request)
    notes = [f"lm-evaluation-harness {about['harness']}"]
    if len(missing) < len(names):
        scored = [name for name in names if name not in missing]
        notes.append(EvaluationMessage.SCORED_BEFORE.fill(tasks=", ".join(scored)))

    if missing:
        with hold_run(run_folder, "evaluating"):
            _require_data(manager, missing)
            if request.exported is None:
                model = TrainerModel(run_folder, spec, run_files.tokenizer_of(run_folder))
            else:
                model = None

            new_rows = _new_rows(
                manager,
                missing,
                model,
                request,
                spec,
                about,
            )
            replaced = {row["what"] for row in new_rows}
            rows = [row for row in rows if row["what"] not in replaced] + new_rows
            write_text(path, "".join(json.dumps(row) + "\n" for row in rows))
            note_files(run_folder, [path])

    plain_rows = [_without_identity(row) for row in rows]
    return Table(plain_rows, "Scores in tasks", tuple(notes))


def _new_rows(
    manager: TaskManager,
    names: Sequence[str],
    model: TrainerModel | None,
    request: Wish,
    spec: PhasePlan,
    about: Row,
) -> list[Row]:
    """Score tasks with the model in the trainer, or with the exported folder if `model` is None."""
    device = "cpu" if spec.device == "cpu" else "cuda"
    if model is None:
        answers = run_tasks(
            manager,
            names,
            "hf",
            request,
            device,
        )
        return list(_rows(answers, {**about, "iteration": None}, "exported folder"))

    answers = run_tasks(
        manager,
        names,
        model,
        request,
        device,
    )
    # The iteration is known only once the trainer has answered.
    return list(_rows(answers, {**about, "iteration": model.iteration}, ""))


def _rows_of_training(path: Path, about: Row) -> list[Row]:
    """Return the scores in a file computed for the same weights."""
    rows = read_lines(path) if path.exists() else []
    return [row for row in rows if row.get("training") == about["training"]]


def _unscored(
    names: Sequence[str],
    rows: Sequence[Row],
    about: Row,
    request: Wish,
) -> list[str]:
    """Return the tasks without a score.

    For --again or an exported folder, return all tasks.
    """
    if request.again or request.exported:
        return list(names)
    scored = set()
    for row in rows:
        if all(row.get(key) == about[key] for key in SAME):
            scored.add(row["task"])

    return [name for name in names if name not in scored]


def _without_identity(row: Row) -> Row:
    """Return a score without the keys used to identify its weights."""
    return {key: value for key, value in row.items() if key not in SAME}


def run_tasks(
    manager: TaskManager,
    names: Sequence[str],
    model: Any,
    request: Wish,
    device: str = "cpu",
) -> Mapping[str, Any]:
    """Return the answers from the harness by task.

    The answers are `results`, `n-shot`, `n-samples`, `versions` and `samples`.
    """
    model_args = None
    if model == "hf":
        model_args = {"pretrained": str(request.exported), "dtype": "float32", "device": device}
    answers: Mapping[str, Any] | None = simple_evaluate(
        model=model,
        model_args=model_args,
        tasks=list(names),
        task_manager=manager,
        limit=request.limit,
        num_fewshot=request.shots,
        batch_size=BATCH,
    )
    if answers is None:
        raise DataError(EvaluationMessage.NO_SCORES, names=", ".join(names))
    return answers


def list_tasks(names: Sequence[str], folder: Path | None) -> Table:
    """Return the tasks, the data read by each task, and whether the data is cached.

    Without names, these are the tasks in the GPT-3 paper.
    """
    manager = _task_manager(folder)
    rows: list[Row] = []
    for name in _known_names(manager, names or ("gpt3",)):
        data, part = _data_of(manager, name)
        cached = "yes" if _is_cached(data) else "no"
        rows.append({"task": name, "data": data, "part": part, "in the cache": cached})

    note = "With network access, scoring downloads data that is not in the cache."
    return Table(rows, "Tasks", (note,))


def _task_manager(folder: Path | None) -> TaskManager:
    logging.getLogger("lm_eval").setLevel(logging.ERROR)
    if folder and not any(folder.rglob("*.yaml")):
        raise ParamsError(EvaluationMessage.NO_TASK_IN_FOLDER, folder=folder)

    return TaskManager(include_path=str(folder) if folder else None)


def _known_names(manager: TaskManager, task_words: Sequence[str]) -> list[str]:
    """Return the task names, each once. `gpt3` means the tasks in the GPT-3 paper.

    Raise `ParamsError` for a task that the harness lacks, with the nearest names.
    """
    expanded: list[str] = []
    for word in task_words:
        expanded += GPT3 if word == "gpt3" else (word,)
    names = list(dict.fromkeys(expanded))
    for name in names:
        if name not in manager.task_index:
            near = difflib.get_close_matches(name, manager.task_index, 3)
            if near:
                hint = PlanningMessage.DID_YOU_MEAN.fill(name=" or ".join(near))
            else:
                hint = "`lm_eval ls tasks` prints all names."

            raise ParamsError(EvaluationMessage.NO_SUCH_TASK, name=name, hint=hint)

    return names


def _data_of(manager: TaskManager, name: str) -> tuple[str, str]:
    """Return the dataset for a task, and which part of it the task reads.

    For a task group, return the file that defines it.
    """
    entry = manager.task_index[name]
    content = entry.cfg or {}
    data = content.get("dataset_path") or f"see {entry.yaml_path.name if entry.yaml_path else name}"
    # A task that reads files itself has this key
    files = (content.get("dataset_kwargs") or {}).get("data_files")
    if files:
        data = next(iter(files.values())) if isinstance(files, dict) else files
    return str(data[0] if isinstance(data, list) else data), str(content.get("dataset_name") or "")


def _is_cached(data: str) -> bool:
    import datasets

    return (
        Path(data).is_file()
        or (Path(datasets.config.HF_DATASETS_CACHE) / data.replace("/", "___")).is_dir()
    )


def _require_data(manager: TaskManager, names: Sequence[str]) -> None:
    """Raise `DataError` if data for a task is missing and cannot be fetched.

    The error names everything that is missing.
    """
    missing = []
    for name in names:
        try:
            manager.load([name])
        except (OSError, ValueError, RuntimeError) as error:
            missing.append((name, *_data_of(manager, name), str(error).strip().splitlines()[0]))

    if missing:
        lines = []
        for name, data, part, why in missing:
            lines.append(
                EvaluationMessage.DATA_OF_TASK.fill(name=name, data=data, part=part, why=why)
            )

        arguments = set()
        for _, data, part, _ in missing:
            arguments.add(", ".join(repr(word) for word in (data, part) if word))
        loads = []
        for call_arguments in sorted(arguments):
            loads.append(EvaluationMessage.LOAD_DATASET.fill(arguments=call_arguments))

        raise DataError(
            EvaluationMessage.DATA_MISSING, tasks="\n".join(lines), loads="; ".join(loads)
        )


def _rows(answers: Mapping[str, Any], about: Row, suffix: str) -> Iterator[Row]:
    """Yield a row for each measure in each task."""
    for task, measures in answers["results"].items():
        shots = answers["n-shot"].get(task, 0)
        labels = [task, counted(shots, "shot")]
        if suffix:
            labels.append(suffix)
        for key, value in measures.items():
            name, _, aggregation = key.partition(",")
            is_measure = isinstance(value, int | float) and not name.endswith("_stderr")
            if not is_measure or not aggregation:
                continue
            error = measures.get(f"{name}_stderr,{aggregation}")
            yield {
                "what": ", ".join(labels),
                "measure": name if aggregation == "none" else f"{name} ({aggregation})",
                # `n-samples` lacks entries for task groups
                "samples": measures.get("sample_len"),
                "before": None,
                "after": value,
                "standard error": error if isinstance(error, int | float) else None,
                "task": task,
                "version": answers["versions"].get(task),
                **about,
            }
