"""Scores of a run's newest checkpoint, or of its exported folder, in tasks of lm-evaluation-harness."""

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

from runbook import params
from runbook.core.checks import counted
from runbook.core.errors import DataError, ParamsError
from runbook.core.files import read_lines, write_text
from runbook.core.table import Row, Table
from runbook.phases.open_phase import phase_fingerprint
from runbook.phases.p06_evaluation.phase import PHASE
from runbook.plan_file.checkpoint_folder import newest_checkpoint
from runbook.planning import FULL
from runbook.records.manifest import note_files
from runbook.runs import run_files
from runbook.runs.run_folder import hold_run
from runbook.tools.evaluate.trainer_model import TrainerModel

GPT3 = (
    *("lambada_openai", "hellaswag", "storycloze_2016", "triviaqa", "nq_open", "webqs"),
    *("wmt14-en-fr", "wmt14-fr-en", "wmt16-de-en", "wmt16-en-de", "wmt16-en-ro", "wmt16-ro-en"),
    *(
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
    ),
    *(
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
    ),
    *(
        f"arithmetic_{kind}"
        for kind in ("2da", "2ds", "3da", "3ds", "4da", "4ds", "5da", "5ds", "2dm", "1dc")
    ),
    *("anagrams1", "anagrams2", "cycle_letters", "random_insertion", "reversed_words"),
)
"""The tasks of GPT-3's paper (arXiv:2005.14165) that the harness has; it lacks QuAC and the SAT analogies."""
OURS = "evaluation/harness.jsonl"
EXPORTED = "evaluation/harness-exported.jsonl"
SAME = ("training", "harness", "limit", "shots")
"""Scores that agree in these are the same scores."""
BATCH = 8
"""Texts at once where `transformers` computes."""


@dataclass(frozen=True)
class Wish:
    """What to score."""

    tasks: tuple[str, ...]
    folder: Path | None = None  # of task files besides the harness's own
    limit: int | None = None  # so many samples of each task
    shots: int | None = None  # solved examples before each; None: as the task says
    exported: Path | None = None  # a Hugging Face folder in place of the checkpoint
    again: bool = False


def score(run_folder: Path, wish: Wish) -> Table:
    """Score what is not scored yet; all scores of these tasks. Nothing is written where a task fails."""
    settings = params.load(str(run_folder / "run.yaml"))
    plan = run_files.read_plan_file(run_folder)
    manager = _task_manager(wish.folder)
    names = _known_names(manager, wish.tasks)
    about = {"harness": version("lm_eval"), "limit": wish.limit, "shots": wish.shots}
    newest = newest_checkpoint(run_folder / plan.phases[FULL].checkpoint.folder)
    checkpoint = newest.name if newest else ""
    # The second tells checkpoints of a training that still goes on apart.
    about["training"] = f"{phase_fingerprint(settings, plan, run_folder, PHASE)} {checkpoint}"
    path = run_folder / (EXPORTED if wish.exported else OURS)
    known = read_lines(path) if path.exists() else []
    kept: list[Row] = [row for row in known if row.get("training") == about["training"]]
    done = {row["task"] for row in kept if all(row.get(key) == about[key] for key in SAME)}
    left = [name for name in names if wish.again or wish.exported or name not in done]
    if len(left) < len(names):
        said = f"{', '.join(name for name in names if name not in left)}: scored before."
    else:
        said = ""
    if left:
        with hold_run(run_folder, "evaluating"):
            _require_data(manager, left)
            model: Any = "hf"
            if wish.exported is None:
                model = TrainerModel(run_folder, plan.phases[FULL], settings.run.data.tokenizer)
            device = "cpu" if plan.phases[FULL].device == "cpu" else "cuda"
            found = run_tasks(manager, left, model, wish, device)
            about["iteration"] = None if wish.exported else model.iteration
            rows = list(_rows(found, about, "exported folder" if wish.exported else ""))
            again = {row["what"] for row in rows}
            kept = [row for row in kept if row["what"] not in again] + rows
            write_text(path, "".join(json.dumps(row) + "\n" for row in kept))
            note_files(run_folder, [path])
    notes = (f"lm-evaluation-harness {about['harness']}", *filter(None, [said]))
    return Table(
        [{key: row[key] for key in row if key not in SAME} for row in kept],
        "Scores in tasks",
        notes,
    )


def run_tasks(
    manager: TaskManager, names: Sequence[str], model: Any, wish: Wish, device: str = "cpu"
) -> Mapping[str, Any]:
    """What the harness answers: `results`, `n-shot`, `n-samples`, `versions`, `samples`, each by task."""
    if model == "hf":
        ready = {"pretrained": str(wish.exported), "dtype": "float32", "device": device}
    else:
        ready = None
    found: Mapping[str, Any] | None = simple_evaluate(
        model=model,
        model_args=ready,
        tasks=list(names),
        task_manager=manager,
        limit=wish.limit,
        num_fewshot=wish.shots,
        batch_size=BATCH,
    )
    if found is None:
        raise DataError(f"lm-evaluation-harness gave no scores for {', '.join(names)}.")
    return found


def list_tasks(names: Sequence[str], folder: Path | None) -> Table:
    """Tasks with the data that each reads, and whether it is in the cache; without names those of GPT-3's paper."""
    manager = _task_manager(folder)
    rows = [
        {
            "task": name,
            "data": data,
            "part": part,
            "in the cache": "yes" if _is_cached(data) else "no",
        }
        for name in _known_names(manager, names or ("gpt3",))
        for data, part in [_data_of(manager, name)]
    ]
    return Table(
        rows, "Tasks", ("Where there is a network, scoring fetches what is not in the cache.",)
    )


def _task_manager(folder: Path | None) -> TaskManager:
    logging.getLogger("lm_eval").setLevel(logging.ERROR)
    if folder and not any(folder.rglob("*.yaml")):
        raise ParamsError(
            f"--task-folder {folder} has no task: it needs a .yaml file of lm-evaluation-harness."
        )
    return TaskManager(include_path=str(folder) if folder else None)


def _known_names(manager: TaskManager, wanted: Sequence[str]) -> list[str]:
    """The tasks meant, each once; `ParamsError` names one that the harness lacks, and the nearest ones."""
    names = list(
        dict.fromkeys(name for one in wanted for name in (GPT3 if one == "gpt3" else (one,)))
    )
    for name in names:
        if name not in manager.task_index:
            near = difflib.get_close_matches(name, manager.task_index, 3)
            if near:
                meant = f"Did you mean {' or '.join(near)}?"
            else:
                meant = "`lm_eval ls tasks` prints all names."
            raise ParamsError(f"--tasks: lm-evaluation-harness has no task {name!r}. {meant}")
    return names


def _data_of(manager: TaskManager, name: str) -> tuple[str, str]:
    """The dataset of a task and its part; of a group of tasks the file that names them."""
    entry = manager.task_index[name]
    content = entry.cfg or {}
    data = content.get("dataset_path") or f"see {entry.yaml_path.name if entry.yaml_path else name}"
    files = (content.get("dataset_kwargs") or {}).get(
        "data_files"
    )  # of a task that reads files itself
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
    """`DataError` with all that has to be fetched, where a task's data is not here and cannot be."""
    missing = []
    for name in names:
        try:
            manager.load([name])
        except (OSError, ValueError, RuntimeError) as error:
            missing.append((name, *_data_of(manager, name), str(error).strip().splitlines()[0]))
    if missing:
        lines = [f"  {name} ({data} {part}): {why}" for name, data, part, why in missing]
        words = {
            ", ".join(repr(word) for word in (data, part) if word) for _, data, part, _ in missing
        }
        loads = "; ".join(f"load_dataset({one})" for one in sorted(words))
        raise DataError(
            "The data of these tasks is not in the cache and could not be fetched; nothing was scored:\n"
            + "\n".join(lines)
            + f'\nWhere there is a network: python -c "from datasets import load_dataset; {loads}"\n'
            "Then carry the folder $HF_HOME (~/.cache/huggingface) here, and set HF_HUB_OFFLINE=1."
        )


def _rows(found: Mapping[str, Any], about: Row, suffix: str) -> Iterator[Row]:
    """A row for each measure of each task."""
    for task, measures in found["results"].items():
        shots = found["n-shot"].get(task, 0)
        what = ", ".join(filter(None, (task, counted(shots, "shot"), suffix)))
        for key, value in measures.items():
            name, _, way = key.partition(",")
            if isinstance(value, int | float) and not name.endswith("_stderr") and way:
                error = measures.get(f"{name}_stderr,{way}")
                yield {
                    "what": what,
                    "measure": name if way == "none" else f"{name} ({way})",
                    "samples": measures.get("sample_len"),  # `n-samples` lacks groups of tasks
                    "before": None,
                    "after": value,
                    "standard error": error if isinstance(error, int | float) else None,
                    "task": task,
                    "version": found["versions"].get(task),
                    **about,
                }
