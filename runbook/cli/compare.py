"""`runbook compare`: runs next to each other, and whether one is worse."""

import json
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING

import click

from runbook.cli.options import FILE, RUNS, NumberRange, phase_option

if TYPE_CHECKING:
    from runbook.results.compare import Comparison, Tolerance


@click.command()
@click.argument("run_names", metavar="RUN RUN...", nargs=-1, required=True)
@phase_option("The training to compare.")
@click.option(
    "--slower",
    type=NumberRange(0.0),
    default=0.05,
    show_default=True,
    help="Allowed loss of tokens/s, as a share of the first run's.",
)
@click.option(
    "--worse",
    type=NumberRange(0.0),
    default=0.01,
    show_default=True,
    help="Allowed increase of the loss at equal tokens, as a share.",
)
@click.option(
    "--memory",
    type=NumberRange(0.0),
    default=0.10,
    show_default=True,
    help="Allowed increase of memory, as a share.",
)
@click.option(
    "--json",
    "as_json",
    is_flag=True,
    help="Print one JSON object: verdict, tolerance, checks and tables.",
)
@click.option(
    "--figure",
    type=FILE,
    help="Draw the losses over tokens and over time: FILE.svg, .png or .pdf.",
)
@RUNS
def compare(
    run_names: tuple[str, ...],
    phase: str,
    runs: Path | None,
    as_json: bool,
    figure: Path | None,
    **shares: float,
) -> int:
    """Compare each run with the first. Exit code 1 if one is worse than allowed."""
    from runbook.display import CheckTable
    from runbook.results.compare import Tolerance, read_run
    from runbook.results.compare import compare as compared
    from runbook.results.messages import ResultMessage
    from runbook.runs.status import run_folder

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

        histories = {run.name: run.history for run in facts}
        save(comparison_figure(histories), figure)

    if as_json:
        _print_comparison_as_json(result, tolerance)
    else:
        for table in (result.parameters, result.metrics, result.environment):
            click.echo(table.as_text() + "\n")
        click.echo(CheckTable(result.checks).as_text())
        verdict = ResultMessage.COMPARED.fill(verdict=_verdict(result), base=facts[0].name)
        click.echo(verdict)

    return 0 if result.passed else 1


def _print_comparison_as_json(result: "Comparison", tolerance: "Tolerance") -> None:
    content: dict[str, object] = {
        "verdict": _verdict(result),
        "tolerance": asdict(tolerance),
        "checks": [check.as_dict() for check in result.checks],
        "parameters": list(result.parameters.rows),
        "metrics": list(result.metrics.rows),
        "environment": list(result.environment.rows),
    }
    click.echo(json.dumps(content, indent=1))


def _verdict(result: "Comparison") -> str:
    return "pass" if result.passed else "fail"
