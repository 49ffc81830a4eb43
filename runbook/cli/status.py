"""`runbook status`: show all runs, or the phases and jobs in one."""

import json
from pathlib import Path

import click

from runbook.cli.options import AS_JSON, RUNS


@click.command()
@click.argument("run_name", metavar="[RUN]", default="")
@click.option(
    "--find", "job_id", default="", metavar="JOBID", help="Find the run that submitted this job."
)
@AS_JSON
@RUNS
def status(
    run_name: str,
    job_id: str,
    as_json: bool,
    runs: Path | None,
) -> None:
    """Show every run, or the phases and jobs of one, read from the run folders."""
    from runbook.runs.status import (
        facts_of_all,
        facts_of_one,
        find_job,
        status_of_all,
        status_of_one,
    )

    if job_id:
        click.echo(find_job(job_id, runs))
    elif as_json:
        if run_name:
            facts = facts_of_one(run_name, runs)
        else:
            facts = {"runs": facts_of_all(runs)}

        click.echo(json.dumps(facts, indent=1))
    else:
        click.echo(status_of_one(run_name, runs) if run_name else status_of_all(runs))
