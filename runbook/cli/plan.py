"""`runbook plan`: compute sizes, layout, memory and time for a run, without a job."""

from pathlib import Path

import click

from runbook.cli.messages import CliMessage
from runbook.cli.options import SET
from runbook.cli.output import show


@click.command()
@click.argument("run_name", metavar="RUN", required=False, default="")
@click.option(
    "--json", "as_json", is_flag=True, help="Print plan.json, or predictions as a JSON list."
)
@click.option(
    "--predict",
    "table",
    type=click.Path(path_type=Path),
    metavar="FILE.csv",
    help="Predict a speed for each row in this table, instead of planning a run. Its columns are "
    "those in published_results.csv.",
)
@click.option(
    "--measured",
    type=click.Path(path_type=Path),
    metavar="MEASURED.csv",
    help="Table with speeds measured on the same accelerator, precision and software; they correct "
    "the predictions.",
)
@click.option(
    "--search",
    "searching",
    is_flag=True,
    help="Rank the layouts that fit the nodes of RUN; no file changes.",
)
@SET
def plan(
    run_name: str,
    as_json: bool,
    table: Path | None,
    measured: Path | None,
    searching: bool,
    set_words: tuple[str, ...],
) -> None:
    """Compute sizes, layout, memory and time for RUN; nothing is written or submitted."""
    if bool(run_name) == bool(table):
        raise click.UsageError(CliMessage.RUN_OR_PREDICT.fill())
    if measured and not table:
        raise click.UsageError(CliMessage.MEASURED_WITHOUT_PREDICT.fill())
    if table:
        from runbook.tools.speed.predictions import predict_file, predictions_text

        predictions = predict_file(table, measured)
        if as_json:
            show([prediction.as_dict() for prediction in predictions])
        else:
            show(predictions_text(predictions, are_corrected=measured is not None))

        return

    if searching:
        from runbook.phases.run_search import search_run

        ranking = search_run(run_name, set_words)
        show(ranking.as_dict() if as_json else ranking.as_text())
        return

    from runbook.phases.run_plan import load_plan, plan_text
    from runbook.runs.run_files import with_prompt_ids

    settings, run_plan = load_plan(run_name, set_words, measured=True)
    if as_json:
        show(with_prompt_ids(settings, run_plan).as_dict())
    else:
        from runbook.phases.loss_forecast import show_planned_loss

        show(plan_text(settings, run_plan))
        show(f"\n{show_planned_loss(settings, run_plan)!r}")
