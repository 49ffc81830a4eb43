"""`runbook compare`: two or more runs side by side, and a verdict."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path

import click

from runbook.commands.report import RUNS


@click.command()
@click.argument("run_names", metavar="RUN RUN...", nargs=-1, required=True)
@click.option("--phase", default="04-training", show_default=True, metavar="PHASE", help="Which training is compared.")
@click.option("--slower", default=0.05, show_default=True, help="Share of the first run's tokens/s that may be lost.")
@click.option("--worse", default=0.01, show_default=True, help="Share by which the loss may be higher at equal tokens.")
@click.option("--memory", default=0.10, show_default=True, help="Share by which the memory may grow.")
@click.option("--json", "as_json", is_flag=True, help="One JSON object: verdict, tolerance, checks and tables.")
@click.option(
    "--figure",
    type=click.Path(dir_okay=False, path_type=Path),
    help="Draw the losses over tokens and over time into FILE.svg, .png or .pdf.",
)
@RUNS
def compare(
    run_names: tuple[str, ...], phase: str, runs: Path | None, as_json: bool, figure: Path | None, **shares: float
) -> int:
    """Set runs side by side; each is held against the first. Exit code 1 if one is worse than allowed."""
    from runbook.analysis.compare import Tolerance, read_run
    from runbook.analysis.compare import compare as compared
    from runbook.display import CheckTable, Table
    from runbook.params.schema import phase_name
    from runbook.phases.status import run_folder

    if len(run_names) < 2:
        raise click.UsageError("Name at least two runs.")
    if figure is not None and figure.suffix not in (".svg", ".png", ".pdf"):
        raise click.UsageError(f"--figure {figure}: the name ends with .svg, .png or .pdf.")
    try:
        chosen = phase_name(phase)
    except ValueError as error:
        raise click.UsageError(str(error)) from None
    tolerance = Tolerance(shares["slower"], shares["worse"], shares["memory"])
    facts = [read_run(run_folder(name, runs), chosen) for name in run_names]
    result = compared(facts, tolerance)
    if figure is not None:
        from runbook.analysis.drawing import save
        from runbook.analysis.figures_beside import comparison_figure

        save(comparison_figure({fact.name: fact.history for fact in facts}), figure)
    verdict = "pass" if result.passed else "fail"
    tables = {"parameters": result.parameters, "metrics": result.metrics, "environment": result.environment}
    if as_json:
        checks = [check.as_dict() for check in result.checks]
        content = {"verdict": verdict, "tolerance": asdict(tolerance), "checks": checks}
        click.echo(json.dumps(content | {name: list(table.rows) for name, table in tables.items()}, indent=1))
        return 0 if result.passed else 1
    for table in tables.values():
        click.echo(Table(table.rows, table.title, table.notes).as_text() + "\n")
    click.echo(CheckTable(result.checks).as_text())
    click.echo(f"Verdict: {verdict} (each held against {facts[0].name})")
    return 0 if result.passed else 1
