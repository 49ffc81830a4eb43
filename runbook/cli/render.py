"""`runbook render`: write the job scripts for a run."""

from pathlib import Path

import click

from runbook.cli.options import FOLDER, SET


@click.command()
@click.argument("run_name", metavar="RUN")
@click.option("--out", required=True, type=FOLDER, help="Folder to write into.")
@click.option(
    "--placeholders",
    is_flag=True,
    help="Print a placeholder in capitals for every required value that is missing.",
)
@SET
def render(
    run_name: str,
    out: Path,
    placeholders: bool,
    set_words: tuple[str, ...],
) -> None:
    """Write OUT/jobs/<phase>/job.sh and arguments.json for each phase in RUN that submits a job, without a cluster.

    OUT has the layout of a run folder: go to OUT/jobs/<phase> and submit job.sh from there.
    """
    from runbook.phases.rendered_jobs import render_all

    for path in render_all(run_name, set_words, out, placeholders=placeholders):
        click.echo(path)
