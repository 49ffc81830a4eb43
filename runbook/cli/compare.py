"""`runbook compare`: show runs side by side, and tell whether one of them is worse."""

import json
from collections.abc import Sequence
from dataclasses import asdict, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import click

from runbook.cli.options import FILE, RUNS, NumberRange, training_phase_option

if TYPE_CHECKING:
    from runbook.results.comparison import Comparison, RunFacts, Tolerance


PICTURE_SUFFIXES = (".svg", ".png", ".pdf")

allowed_share = partial(click.option, type=NumberRange(0.0), show_default=True)
"""An option for the share by which a run may be worse than the first run."""


@click.command()
@click.argument("run_names", metavar="RUN RUN...", nargs=-1, required=True)
@training_phase_option("Training phase to compare.")
@allowed_share(
    "--slower", default=0.05, help="Allowed drop in tokens/s, as a share of the first run's."
)
@allowed_share(
    "--worse",
    default=0.01,
    help="Allowed increase in loss at an equal number of tokens, as a share.",
)
@allowed_share("--memory", default=0.10, help="Allowed increase in memory, as a share.")
@click.option(
    "--json",
    "as_json",
    is_flag=True,
    help="Print one JSON object: verdict, tolerance, checks and tables.",
)
@click.option(
    "--figure",
    type=FILE,
    help="Plot the losses against tokens and against time: FILE.svg, .png or .pdf.",
)
@RUNS
def compare(
    run_names: tuple[str, ...],
    phase: str,
    runs: Path | None,
    as_json: bool,
    figure: Path | None,
    slower: float,
    worse: float,
    memory: float,
) -> int:
    """Compare each run with the first. The exit code is 1 if a run is worse than allowed."""
    from runbook.results.comparison import Tolerance, compare_runs, read_run
    from runbook.runs.status import run_folder, state_checks

    if len(run_names) < 2:
        raise click.UsageError("Name at least two runs.")
    if figure is not None and figure.suffix not in PICTURE_SUFFIXES:
        raise click.UsageError(f"--figure {figure}: the name ends with .svg, .png or .pdf.")
    # Resolve all names before reading any run, so that a wrong name is always reported as wrong
    # usage.
    folders = [run_folder(name, runs) for name in run_names]
    compared_runs = [read_run(folder, phase) for folder in folders]
    tolerance = Tolerance(slower, worse, memory)
    result = compare_runs(compared_runs, tolerance)
    result = replace(result, checks=(*state_checks(folders, phase), *result.checks))
    if figure is not None:
        _draw_losses(compared_runs, figure)
    if as_json:
        _print_comparison_as_json(result, tolerance)
    else:
        _print_comparison(result, base=compared_runs[0].name)

    return 0 if result.passed else 1


def _draw_losses(compared_runs: Sequence["RunFacts"], figure: Path) -> None:
    """Draw the losses from all runs into a file."""
    from runbook.results.figures.drawing import save
    from runbook.results.figures.run_figures import comparison_figure

    histories = {run.name: run.history for run in compared_runs}
    save(comparison_figure(histories), figure)


def _print_comparison(result: "Comparison", base: str) -> None:
    """Print the tables, the checks and the verdict; `base` is the run to compare with."""
    from runbook.display import CheckTable
    from runbook.results.messages import ResultMessage

    for table in (result.parameters, result.metrics, result.environment):
        click.echo(table.as_text() + "\n")

    click.echo(CheckTable(result.checks).as_text())
    click.echo(ResultMessage.COMPARED.fill(verdict=_verdict(result), base=base))


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
