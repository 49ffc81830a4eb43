"""`runbook doctor`: what this machine has and lacks."""

from __future__ import annotations

import json

import click


@click.command()
@click.option("--json", "as_json", is_flag=True, help="Print a list of objects with name, verdict, value and rule.")
def doctor(as_json: bool) -> int:
    """Check what this machine has and lacks; each row says the rule and the remedy. Exit code 1 if one fails."""
    from runbook.display import CheckTable
    from runbook.phases.doctor import all_checks

    checks = all_checks()
    rows = [
        {"name": check.name, "verdict": check.verdict, "value": check.value, "rule": check.rule} for check in checks
    ]
    click.echo(json.dumps(rows, indent=1) if as_json else CheckTable(checks).as_text())
    return 1 if any(check.verdict == "fail" for check in checks) else 0
