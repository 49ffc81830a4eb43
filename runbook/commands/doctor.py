"""`runbook doctor`: what this machine, and the site of a run, have and lack."""

from __future__ import annotations

import json

import click

from runbook.commands.plan import SET


@click.command()
@click.argument("run_name", metavar="[RUN]", required=False, default="")
@click.option(
    "--json", "as_json", is_flag=True, help="Print a list of objects with name, status, message, rule and remedy."
)
@SET
def doctor(run_name: str, as_json: bool, set_words: tuple[str, ...]) -> int:
    """Check what this machine has and lacks, and with RUN what its site has: each row with rule and remedy.

    With RUN: required values, modules, scheduler, image, space against the plan, and a probe that is started as the
    trainer is: GPUs, network devices, clocks, a sum over all ranks, writing. Exit code 1 if a check fails.
    """
    from runbook.display import CheckTable
    from runbook.phases.doctor import all_checks, run_checks

    checks = run_checks(run_name, set_words) if run_name else all_checks()
    rows = [
        {
            "name": check.name,
            "status": check.verdict,
            "message": check.value,
            "rule": check.rule,
            "remedy": check.remedy,
            "verdict": check.verdict,
            "value": check.value,
        }
        for check in checks
    ]
    click.echo(json.dumps(rows, indent=1, ensure_ascii=False) if as_json else CheckTable(checks).as_text())
    return 1 if any(check.verdict == "fail" for check in checks) else 0
