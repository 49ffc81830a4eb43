"""`runbook preflight`: find faults in a cluster before a job fails because of them."""

import json
import os
from collections.abc import Sequence
from pathlib import Path

import click

from runbook.cli.options import RUNS, SET, WAIT
from runbook.cli.signals import released_by_signals
from runbook.core.checks import Check


@click.command()
@click.argument("run_name", metavar="RUN")
@click.option(
    "--json",
    "as_json",
    is_flag=True,
    help="Print one JSON object: checks with name, verdict, value, rule, remedy and where; each "
    "node's answers.",
)
@WAIT
@SET
@RUNS
def preflight(
    run_name: str,
    as_json: bool,
    wait_minutes: float,
    set_words: tuple[str, ...],
    runs: Path | None,
) -> int:
    """Find the first defect in the cluster that RUN uses, and its cause, in a minute or two.

    Checks that need no job come first. Then one short job checks each node in plain Python, imports
    torch in a separate process, connects the nodes by TCP, and lets the ranks use each process
    group in the plan. The command stops at the first defect; a missing answer is a defect. Exit
    code 1 if there is a defect.
    """
    from runbook.display import CheckTable
    from runbook.phases.p01_environment.doctor import preflight as find_defect
    from runbook.runs.run_folder import RUNS_VARIABLE

    if runs is not None:
        os.environ[RUNS_VARIABLE] = str(runs.absolute())

    def report(text: str) -> None:
        click.echo(f"preflight: {text}", err=True)

    with released_by_signals():
        result = find_defect(run_name, set_words, report, 60 * wait_minutes)
    if as_json:
        click.echo(json.dumps(result.as_dict(), indent=1))
    else:
        click.echo(CheckTable(result.checks).as_text())
        click.echo(_summary(result.defect, result.not_asked))

    return 1 if result.defect else 0


def _summary(defect: Check | None, not_asked: Sequence[str]) -> str:
    """Return the last output lines.

    They show the first defect and its remedy, or say that there was no defect.
    """
    if defect is None:
        return "No defect was found."
    not_asked_note = ""
    if not_asked:
        not_asked_note = f" Not checked after it: {', '.join(not_asked)}."
    return f"First defect: {defect.as_text()}{not_asked_note}"
