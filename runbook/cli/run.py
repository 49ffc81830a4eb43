"""`runbook run`: execute the phases of a run as notebooks."""

import os
from pathlib import Path
from typing import Any

import click

from runbook.cli.messages import CliMessage
from runbook.cli.options import RUNS, SET, phase_option
from runbook.cli.output import print_while_read
from runbook.cli.signals import released_by_signals
from runbook.plan_file.phase_names import EVALUATION, PLAN


@click.command()
@click.argument("run_name", metavar="RUN")
@SET
@phase_option("First phase.", "--from", "from_phase", default=PLAN)
@phase_option("Last phase.", "--to", "to_phase", default=EVALUATION)
@phase_option(
    "Repeat this phase, and what depends on it; old results are kept.", "--redo", default=""
)
@click.option(
    "--as",
    "name",
    default="",
    metavar="NAME",
    help="Use a separate run folder, RUN--NAME, for these overrides.",
)
@click.option(
    "--all-variants",
    is_flag=True,
    help="Run every variant in params/variants/RUN.yaml, one after the other.",
)
@RUNS
@click.option(
    "--verbose", is_flag=True, help="Print all output from the notebooks, not only progress."
)
def run(
    run_name: str,
    all_variants: bool,
    runs: Path | None,
    **options: Any,
) -> int:
    """Execute the phases of RUN as notebooks, and record each. Finished phases are verified, not repeated.

    Exit codes: 0 done, 1 failed, 2 wrong parameters or usage; if a notebook failed, papermill's own
    (138 kernel died, 143 terminated).
    """
    # The imports take long enough to be stopped.
    with released_by_signals(CliMessage.RUN_STOPPED_BY_SIGNAL):
        from runbook.phases.run_report import card
        from runbook.phases.runner import RunRequest, expand_variants, run_phases
        from runbook.runs.run_folder import RUNS_VARIABLE
        from runbook.runs.run_names import named_run
        from runbook.runs.status import jobs_that_continue, scheduler_of

        if runs is not None:
            os.environ[RUNS_VARIABLE] = str(runs.absolute())
        worst = 0
        named = named_run(run_name, options.pop("name"))
        for name in expand_variants(named.run, all_variants):
            request = RunRequest(name, name=named.as_name, **options)
            outcome, folder = run_phases(request, print_while_read)
            worst = worst or outcome.exit_code
            ended_in = outcome.notebook.stem if outcome.exit_code else ""
            print_while_read(card(folder, request.phases(), ended_in))
            if outcome.exit_code:
                # Below the card, because its length would push the lines off the screen.
                for line in jobs_that_continue(folder, scheduler_of(folder)):
                    print_while_read(line)

        if all_variants:
            from runbook.phases.p05_analysis.phase import variants_of, variants_text

            print_while_read(variants_text(variants_of(run_name), folder.parent, run_name))

    return worst
