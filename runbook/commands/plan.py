"""`runbook check`, `plan`, `why`, `render`: what a run is, before anything is submitted."""

from __future__ import annotations

import json
from pathlib import Path

import click

SET = click.option(
    "--set",
    "set_words",
    multiple=True,
    metavar="KEY=VALUE",
    help="Override a value, for example training.iterations=10.",
)


@click.command()
@click.argument("run_name", metavar="RUN")
@SET
def check(run_name: str, set_words: tuple[str, ...]) -> int:
    """Say everything that is wrong with RUN: keys, types, ranges, layout, memory. Nothing is written."""
    from runbook.phases.overview import checks_text, make

    settings, plan = make(run_name, set_words, portable=True)
    click.echo(checks_text(plan))
    click.echo(f"{settings.name}: every value is right, and they fit together.")
    return 0


@click.command()
@click.argument("run_name", metavar="RUN", required=False, default="")
@click.option("--json", "as_json", is_flag=True, help="Print plan.json, or predictions as a JSON list.")
@click.option(
    "--predict",
    "table",
    type=click.Path(path_type=Path),
    metavar="FILE.csv",
    help="Instead of a run: predict the speed of each row of a table with the columns of published_results.csv.",
)
@click.option(
    "--search", "searching", is_flag=True, help="Rank the layouts that fit the nodes of RUN; nothing changes."
)
@SET
def plan(run_name: str, as_json: bool, table: Path | None, searching: bool, set_words: tuple[str, ...]) -> int:
    """Compute sizes, layout, memory and time of RUN; nothing is written or submitted."""
    if bool(run_name) == bool(table):
        raise click.UsageError("give either RUN or --predict FILE.csv")
    if table:
        from runbook.phases.forecast import predict_file, predictions_text

        rows = predict_file(table)
        click.echo(json.dumps(rows, indent=1, ensure_ascii=False) if as_json else predictions_text(rows))
        return 0
    if searching:
        from runbook.phases.forecast import search_run, search_text

        found = search_run(run_name, set_words)
        click.echo(json.dumps(found, indent=1, ensure_ascii=False) if as_json else search_text(found))
        return 0
    from runbook.phases.overview import make, plan_text
    from runbook.phases.plan_file import plan_file

    settings, made = make(run_name, set_words, measured=True)
    click.echo(
        json.dumps(plan_file(settings, made), indent=1, ensure_ascii=False) if as_json else plan_text(settings, made)
    )
    return 0


@click.command()
@click.argument("run_name", metavar="RUN")
@click.argument("key")
@SET
def why(run_name: str, key: str, set_words: tuple[str, ...]) -> int:
    """Where the value of KEY in RUN comes from, its names in the documents, and what the plan makes of it."""
    from runbook.phases.overview import why_text

    click.echo(why_text(run_name, key, set_words))
    return 0


@click.command()
@click.argument("run_name", metavar="RUN")
@click.option("--out", required=True, type=click.Path(file_okay=False, path_type=Path), help="Folder to write into.")
@click.option("--placeholders", is_flag=True, help="Mark required values that were not given in capitals.")
@SET
def render(run_name: str, out: Path, placeholders: bool, set_words: tuple[str, ...]) -> int:
    """Write OUT/<phase>/job.sh and arguments.json for each phase of RUN that submits a job; needs no cluster."""
    from runbook.phases.overview import render_all

    for path in render_all(run_name, set_words, out, placeholders=placeholders):
        click.echo(path)
    return 0
