"""`runbook cancel`: end all running jobs in a run."""

from pathlib import Path

import click

from runbook.cli.options import on_run_folder


@click.command()
@click.option(
    "--gently",
    is_flag=True,
    help="Let the jobs save and stop (exit code 75) instead of ending them immediately.",
)
@on_run_folder
def cancel(folder: Path, gently: bool) -> None:
    """End the running jobs of RUN with all their processes. Nothing is deleted; `runbook run` continues from there."""
    from runbook.runs.status import cancel_jobs, scheduler_of, stop_jobs

    scheduler = scheduler_of(folder)
    if gently:
        click.echo(stop_jobs(folder, scheduler))
    else:
        click.echo(cancel_jobs(folder, scheduler))
