"""`runbook report`: rewrite the HTML report for a run."""

from pathlib import Path

import click

from runbook.cli.options import EXISTING_FILE, FOLDER, on_run_folder


@click.command()
@click.option(
    "--redact",
    is_flag=True,
    help="Write a copy without users, hosts, accounts, paths and buckets, to send outside.",
)
@click.option(
    "--file",
    "notebooks",
    multiple=True,
    type=EXISTING_FILE,
    metavar="NOTEBOOK",
    help="First add to the records a notebook that JupyterLab or papermill executed and saved.",
)
@click.option(
    "--out",
    type=FOLDER,
    help="With --redact: an empty folder for the copy (default: redacted/ in the run's folder, "
    "replaced).",
)
@click.option(
    "--tables",
    type=FOLDER,
    metavar="DIR",
    help="Write results, plan versus actual and every step to DIR: CSV and Parquet, and tables in "
    "Markdown and LaTeX.",
)
@click.option(
    "--records",
    is_flag=True,
    help="Also write report-with-records.html: every cell of every notebook in one file.",
)
@on_run_folder
def report(
    folder: Path,
    redact: bool,
    notebooks: tuple[Path, ...],
    out: Path | None,
    tables: Path | None,
    records: bool,
) -> None:
    """Rewrite the report of RUN from its files, and print the paths: index.html, and report.html, one page to mail."""
    from runbook.phases.run_report import (
        changed_files,
        file_notebook,
        write_checked_report,
        write_tables,
    )
    from runbook.records.pages.whole_report import write_whole_report
    from runbook.tools.redact.redacted_copy import write_redacted

    if out is not None and not redact:
        raise click.UsageError(
            "--out can only be used with --redact; otherwise the report is written to the run's "
            "folder."
        )

    for notebook in notebooks:
        click.echo(file_notebook(notebook, folder))
    if redact:
        page = write_redacted(folder, out)
    else:
        page = write_checked_report(folder)

    click.echo(page)
    for line in changed_files(folder):
        click.echo(f"{line} after it was recorded; the report says so.", err=True)
    if records:
        click.echo(write_whole_report(page.parent))
    if tables:
        for path in write_tables(folder, tables):
            click.echo(path)
