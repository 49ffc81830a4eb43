"""`runbook doctor`: check what this machine has and lacks."""

import click

from runbook.cli.options import SET
from runbook.cli.output import show
from runbook.cli.signals import released_by_signals


@click.command()
@click.argument("run_name", metavar="[RUN]", required=False, default="")
@click.option(
    "--json",
    "as_json",
    is_flag=True,
    help="Print a list of objects with name, status, message, rule and remedy.",
)
@SET
def doctor(run_name: str, as_json: bool, set_words: tuple[str, ...]) -> int:
    """Check what this machine has and lacks, and with RUN also its site; each row has a rule and a remedy.

    With RUN: required values, modules, scheduler, image, disk space for the plan, and the checks of
    `runbook preflight` on the nodes, if jobs.environment says how to reach them. Exit code 1 if a
    check fails.
    """
    from runbook.display import CheckTable
    from runbook.phases.p01_environment.doctor import all_checks, run_checks

    with released_by_signals():
        checks = run_checks(run_name, set_words) if run_name else all_checks()
    rows = []
    for check in checks:
        rows.append({**check.as_dict(), "status": check.verdict, "message": check.value})

    show(rows if as_json else CheckTable(checks).as_text())
    return 1 if any(check.verdict == "fail" for check in checks) else 0
