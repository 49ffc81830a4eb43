"""`runbook report`, `verify`, `compare`: what runs left behind."""

import json
import sys
from dataclasses import asdict
from pathlib import Path

import click

from runbook.cli.options import EXISTING_FILE, FILE, FOLDER, RUNS, on_run_folder, phase_option


@click.command()
@click.option(
    "--redact", is_flag=True, help="A copy without users, hosts, accounts, paths and buckets, to send outside."
)
@click.option(
    "--file",
    "notebooks",
    multiple=True,
    type=EXISTING_FILE,
    metavar="NOTEBOOK",
    help="First file a notebook that was executed and saved in JupyterLab, or by stock papermill, among the records.",
)
@click.option(
    "--out",
    type=FOLDER,
    help="With --redact: an empty folder for the copy (default: redacted/ in the run's folder, replaced).",
)
@click.option(
    "--tables",
    type=FOLDER,
    metavar="DIR",
    help="Write results, plan versus actual and every step to DIR: CSV and Parquet, and tables in Markdown and LaTeX.",
)
@on_run_folder
def report(folder: Path, redact: bool, notebooks: tuple[Path, ...], out: Path | None, tables: Path | None) -> None:
    """Write the report of RUN again from its files, and say where it is: index.html, and report.html with all of it."""
    from runbook.workflow.report import file_notebook, write_redacted, write_report, write_tables

    if out is not None and not redact:
        raise click.UsageError("--out goes with --redact; without it, the report is written to the run's folder.")
    for notebook in notebooks:
        click.echo(file_notebook(notebook, folder))
    page = write_redacted(folder, out) if redact else write_report(folder)
    click.echo(page)
    for path in write_tables(folder, tables) if tables else ():
        click.echo(path)


@click.command()
@on_run_folder
@click.argument("words", metavar="[TEXT]", nargs=-1)
def note(folder: Path, words: tuple[str, ...]) -> None:
    """Write TEXT into the logbook of RUN, also while it runs; `-` reads it from standard input.

    Without TEXT: show the logbook, which the run writes itself, with what people have noted.
    """
    from runbook.records import logbook

    if words:
        click.echo(logbook.add_note(folder, sys.stdin.read() if words == ("-",) else " ".join(words)))
    elif logbook.write_logbook(folder):
        click.echo((folder / logbook.LOGBOOK).read_text(encoding="utf-8"), nl=False)
    else:
        click.echo(f"Nothing has happened in {folder.name} yet.")


@click.command()
@on_run_folder
def verify(folder: Path) -> int:
    """Find every file of RUN that was changed, lost or added after it was recorded. Exit code 1 if there is one."""
    from runbook.records.manifest import verify_run

    findings = verify_run(folder)
    for finding in findings:
        click.echo(str(finding))
    click.echo(
        f"{folder}: " + (f"{len(findings)} findings" if findings else "nothing was changed after it was recorded.")
    )
    return 1 if findings else 0


@click.command()
@click.argument("run_names", metavar="RUN RUN...", nargs=-1, required=True)
@phase_option("Which training is compared.")
@click.option("--slower", default=0.05, show_default=True, help="Share of the first run's tokens/s that may be lost.")
@click.option("--worse", default=0.01, show_default=True, help="Share by which the loss may be higher at equal tokens.")
@click.option("--memory", default=0.10, show_default=True, help="Share by which the memory may grow.")
@click.option("--json", "as_json", is_flag=True, help="One JSON object: verdict, tolerance, checks and tables.")
@click.option("--figure", type=FILE, help="Draw the losses over tokens and over time into FILE.svg, .png or .pdf.")
@RUNS
def compare(
    run_names: tuple[str, ...], phase: str, runs: Path | None, as_json: bool, figure: Path | None, **shares: float
) -> int:
    """Set runs side by side; each is compared with the first. Exit code 1 if one is worse than allowed."""
    from runbook.display import CheckTable
    from runbook.results.compare import Tolerance, read_run
    from runbook.results.compare import compare as compared
    from runbook.workflow.status import run_folder

    if len(run_names) < 2:
        raise click.UsageError("Name at least two runs.")
    if figure is not None and figure.suffix not in (".svg", ".png", ".pdf"):
        raise click.UsageError(f"--figure {figure}: the name ends with .svg, .png or .pdf.")
    tolerance = Tolerance(shares["slower"], shares["worse"], shares["memory"])
    folders = [run_folder(name, runs) for name in run_names]
    facts = [read_run(folder, phase) for folder in folders]
    result = compared(facts, tolerance)
    if figure is not None:
        from runbook.results.figures.drawing import save
        from runbook.results.figures.run_figures import comparison_figure

        save(comparison_figure({fact.name: fact.history for fact in facts}), figure)
    verdict, code = ("pass", 0) if result.passed else ("fail", 1)
    tables = {"parameters": result.parameters, "metrics": result.metrics, "environment": result.environment}
    if as_json:
        checks = [asdict(check) for check in result.checks]
        content = {"verdict": verdict, "tolerance": asdict(tolerance), "checks": checks}
        click.echo(json.dumps(content | {name: list(table.rows) for name, table in tables.items()}, indent=1))
        return code
    for table in tables.values():
        click.echo(table.as_text() + "\n")
    click.echo(CheckTable(result.checks).as_text())
    click.echo(f"Verdict: {verdict} (each compared with {facts[0].name})")
    return code
