"""`runbook report`, `verify`, `compare`: what a run left behind."""

from __future__ import annotations

from pathlib import Path

import click

RUNS = click.option(
    "--runs", type=click.Path(file_okay=False, path_type=Path), help="Where run folders lie (default: runs/)."
)


@click.command()
@click.argument("run_name", metavar="RUN")
@click.option(
    "--redact", is_flag=True, help="A copy without users, hosts, accounts, paths and buckets, to send outside."
)
@click.option("--pdf", is_flag=True, help="Print the whole report to report.pdf by the installed Chromium.")
@click.option(
    "--file",
    "notebooks",
    multiple=True,
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    metavar="NOTEBOOK",
    help="First file a notebook that was executed and saved in JupyterLab, or by stock papermill, among the records.",
)
@click.option(
    "--out",
    type=click.Path(file_okay=False, path_type=Path),
    help="With --redact: an empty folder for the copy (default: redacted/ in the run's folder, written anew).",
)
@RUNS
def report(
    run_name: str, redact: bool, pdf: bool, notebooks: tuple[Path, ...], out: Path | None, runs: Path | None
) -> int:
    """Write the report of RUN anew from its files, and say where it is: index.html, and report.html with all of it."""
    from runbook.phases.printing import print_page
    from runbook.phases.redacting import write_redacted
    from runbook.phases.report import file_notebook, write_report
    from runbook.phases.status import run_folder
    from runbook.records.manifest import note_files

    if out is not None and not redact:
        raise click.UsageError("--out is for --redact; the report itself lies in the run's folder.")
    folder = run_folder(run_name, runs)
    for notebook in notebooks:
        click.echo(file_notebook(notebook, folder))
    page = write_redacted(folder, out) if redact else write_report(folder)
    click.echo(page)
    if pdf:
        printed = print_page(page.with_name("report.html"))
        note_files(folder, [] if redact else [printed])
        click.echo(printed)
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


@click.command()
@click.argument("run_names", metavar="RUN RUN...", nargs=-1, required=True)
@click.option("--phase", default="04-training", show_default=True, metavar="PHASE", help="Which training is compared.")
@click.option("--slower", default=0.05, show_default=True, help="Share of the first run's tokens/s that may be lost.")
@click.option("--worse", default=0.01, show_default=True, help="Share by which the last loss may be higher.")
@click.option("--memory", default=0.10, show_default=True, help="Share by which the memory may grow.")
@RUNS
def compare(run_names: tuple[str, ...], phase: str, runs: Path | None, **shares: float) -> int:
    """Set runs side by side; each is held against the first. Exit code 1 if one is worse than allowed."""
    from runbook.analysis.compare import Tolerance, read_run
    from runbook.analysis.compare import compare as compared
    from runbook.display import CheckTable, Table
    from runbook.params.schema import phase_name
    from runbook.phases.status import run_folder

    if len(run_names) < 2:
        raise click.UsageError("Name at least two runs.")
    try:
        chosen = phase_name(phase)
    except ValueError as error:
        raise click.UsageError(str(error)) from None
    tolerance = Tolerance(shares["slower"], shares["worse"], shares["memory"])
    result = compared([read_run(run_folder(name, runs), chosen) for name in run_names], tolerance)
    for table in (result.parameters, result.metrics, result.environment):
        click.echo(Table(table.rows, table.title, table.notes).as_text() + "\n")
    click.echo(CheckTable(result.checks).as_text())
    return 1 if any(check.verdict == "fail" for check in result.checks) else 0
