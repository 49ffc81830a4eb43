"""`runbook report`, `verify`: what a run left behind."""

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
