"""`runbook evaluate`: the built-in scores, and with --tasks those from lm-evaluation-harness."""

import json
from pathlib import Path
from typing import Any

import click

from runbook.cli.messages import CliMessage
from runbook.cli.options import AS_JSON, FOLDER, on_run_folder
from runbook.cli.signals import ended_in_order


@click.command()
@click.option(
    "--tasks",
    help="Tasks in lm-evaluation-harness, as A,B; gpt3: the tasks of GPT-3's paper. Needs the "
    "evaluation extra.",
)
@click.option("--task-folder", type=FOLDER, help="Folder with your own task files.")
@click.option(
    "--limit", type=click.IntRange(1), help="Use only this many samples for each task, for a trial."
)
@click.option(
    "--shots",
    type=click.IntRange(0),
    help="Solved examples before each sample (default: the task's own).",
)
@click.option(
    "--exported", type=FOLDER, help="Score this exported folder with `transformers` instead."
)
@click.option("--again", is_flag=True, help="Score tasks again that already have scores.")
@click.option(
    "--list",
    "lists",
    is_flag=True,
    help="List the tasks, the data each needs, and whether it is available here.",
)
@AS_JSON
@on_run_folder
@ended_in_order
def evaluate(
    folder: Path,
    tasks: str | None,
    task_folder: Path | None,
    lists: bool,
    as_json: bool,
    **options: Any,
) -> None:
    """Score RUN's newest checkpoint and its initial weights on minimal pairs and held-out text (bits per byte).

    Nothing is downloaded. Notebook 06 does the same. docs/evaluation.md explains what the scores
    mean, and how to use --tasks on nodes without internet.
    """
    names = tuple(name.strip() for name in (tasks or "").split(",") if name.strip())
    stray = []
    for name, value in {"task-folder": task_folder, **options}.items():
        if value:
            stray.append(f"--{name}")

    if names or lists:
        from runbook.tools.evaluate import task_scores  # needs lm_eval

        if lists:
            table = task_scores.list_tasks(names, task_folder)
        else:
            table = task_scores.score(folder, task_scores.Wish(names, task_folder, **options))
    elif stray:
        raise click.UsageError(CliMessage.NEEDS_TASKS.fill(options=", ".join(stray)))
    else:
        from runbook.phases.p06_evaluation import phase as evaluation

        table = evaluation.evaluate(folder)

    if as_json:
        click.echo(json.dumps({"rows": [dict(row) for row in table]}, indent=1))
    else:
        click.echo(table.as_text())
