"""`runbook run`, `status`, `cancel`: work on a run's folder."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import click


@click.command()
@click.argument("run_name", metavar="RUN")
@click.option(
    "--set",
    "set_words",
    multiple=True,
    metavar="KEY=VALUE",
    help="Override a value, for example training.iterations=10.",
)
@click.option("--from", "from_phase", default="00-plan", show_default=True, metavar="PHASE", help="First phase.")
@click.option("--to", "to_phase", default="05-analysis", show_default=True, metavar="PHASE", help="Last phase.")
@click.option(
    "--redo", default="", metavar="PHASE", help="Do this phase again, and what depends on it; old results are kept."
)
@click.option(
    "--as", "name", default="", metavar="NAME", help="Keep this set of overrides in a folder of its own, RUN--NAME."
)
@click.option("--all-variants", is_flag=True, help="Every variant of params/variants/RUN.yaml, one after the other.")
@click.option(
    "--runs", type=click.Path(file_okay=False, path_type=Path), help="Where run folders lie (default: runs/)."
)
@click.option("--verbose", is_flag=True, help="Repeat all of the notebooks' output here, not only progress.")
def run(run_name: str, all_variants: bool, runs: Path | None, **options: Any) -> int:
    """Execute the phases of RUN as notebooks, each recorded. Finished phases are verified, not repeated.

    Exit codes: 0 done, 1 failed, 2 wrong parameters or usage; papermill's own where a notebook failed
    (138 kernel died, 143 terminated).
    """
    from runbook.phases.campaign import RUNS_VARIABLE
    from runbook.phases.report import card
    from runbook.phases.run import Request, expand, run_phases

    if runs is not None:
        os.environ[RUNS_VARIABLE] = str(runs.absolute())
    worst = 0
    for name in expand(run_name, all_variants):
        request = Request(name, **options)
        outcome, folder = run_phases(request, click.echo)
        worst = worst or outcome.exit_code
        click.echo(card(folder))
    if all_variants:
        from runbook.phases.sweep import of_run, show

        click.echo(show(of_run(run_name), folder.parent, run_name))
    return worst


@click.command()
@click.argument("run_name", metavar="[RUN]", default="")
@click.option("--find", "job_id", default="", metavar="JOBID", help="Which run submitted this job.")
@click.option(
    "--runs", type=click.Path(file_okay=False, path_type=Path), help="Where run folders lie (default: runs/)."
)
def status(run_name: str, job_id: str, runs: Path | None) -> int:
    """Show every run, or the phases and jobs of one; rebuilt from the folders alone."""
    from runbook.phases.status import find_job, status_of_all, status_of_one

    if job_id:
        click.echo(find_job(job_id, runs))
    else:
        click.echo(status_of_one(run_name, runs) if run_name else status_of_all(runs))
    return 0


@click.command()
@click.argument("run_name", metavar="RUN")
@click.option("--gently", is_flag=True, help="Ask the jobs to save and stop (exit code 75) instead of ending them.")
@click.option(
    "--runs", type=click.Path(file_okay=False, path_type=Path), help="Where run folders lie (default: runs/)."
)
def cancel(run_name: str, gently: bool, runs: Path | None) -> int:
    """End the running jobs of RUN with all their processes. Nothing is deleted: `runbook run` goes on from there."""
    from runbook.phases.status import cancel_jobs, run_folder, scheduler_of
    from runbook.phases.stopping import stop_gently

    folder = run_folder(run_name, runs)
    click.echo(stop_gently(folder, scheduler_of(folder)) if gently else cancel_jobs(run_name, runs))
    return 0
