"""`runbook check`: list everything that is wrong with a run file."""

from dataclasses import asdict

import click

from runbook.cli.options import AS_JSON, SET
from runbook.cli.output import show


@click.command()
@click.argument("run_name", metavar="RUN")
@SET
@AS_JSON
def check(run_name: str, set_words: tuple[str, ...], as_json: bool) -> None:
    """List everything that is wrong with RUN: keys, types, ranges, layout, memory, queue. Nothing is written."""
    from runbook.phases.run_checks import check_text, run_checks

    name, checks = run_checks(run_name, set_words)
    if as_json:
        show({"run": name, "checks": [asdict(check) for check in checks]})
    else:
        click.echo(check_text(name, checks))
    if any(check.verdict == "fail" for check in checks):
        raise click.exceptions.Exit(1)
