"""`runbook report`, `verify`, `compare`: what a run left behind."""

from __future__ import annotations

from pathlib import Path

import click

RUNS = click.option(
    "--runs", type=click.Path(file_okay=False, path_type=Path), help="Where run folders lie (default: runs/)."
)


@click.command()
@click.argument("run_name", metavar="RUN")
@RUNS
def report(run_name: str, runs: Path | None) -> int:
    """Write the report of RUN anew from its files, and say where it is."""
    from runbook.phases.report import write_report
    from runbook.phases.status import run_folder

    click.echo(write_report(run_folder(run_name, runs)))
    return 0


@click.command()
@click.argument("run_name", metavar="RUN")
@RUNS
def verify(run_name: str, runs: Path | None) -> int:
    """Find every file of RUN that was changed, lost or added after it was recorded. Exit code 1 if there is one."""
    from runbook.phases.status import run_folder
    from runbook.records.verify import verify_run

    folder = run_folder(run_name, runs)
    findings = verify_run(folder)
    for finding in findings:
        click.echo(str(finding))
    click.echo(
        f"{folder}: {len(findings)} findings" if findings else f"{folder}: nothing was changed after it was recorded."
    )
    return 1 if findings else 0
