"""`runbook verify`: find every file in a run that has changed since it was recorded."""

import json
from dataclasses import asdict
from pathlib import Path

import click

from runbook.cli.messages import CliMessage
from runbook.cli.options import AS_JSON, on_run_folder


@click.command()
@AS_JSON
@on_run_folder
def verify(folder: Path, as_json: bool) -> int:
    """Find every file of RUN that was changed, lost or added since it was recorded.

    The exit code is 1 if there is a change.
    """
    from runbook.core.checks import counted
    from runbook.records.manifest import split_unrecorded, verify_run
    from runbook.records.run_state import read_run

    findings = verify_run(folder)
    run = read_run(folder)
    findings, unrecorded = split_unrecorded(findings, is_running=run.state == "running")
    if as_json:
        content = {
            "run": run.name,
            "state": str(run.state),
            "findings": [asdict(finding) for finding in findings],
            "not_recorded": [finding.file for finding in unrecorded],
        }
        click.echo(json.dumps(content, indent=1))
        return 1 if findings else 0

    for finding in findings:
        click.echo(str(finding))
    for finding in unrecorded:
        click.echo(f"not recorded yet: {finding.file}")
    if unrecorded:
        files = counted(len(unrecorded), "file")
        click.echo(
            CliMessage.RUNNING_NOT_RECORDED.fill(folder=folder, phase=run.phase, files=files)
        )

    text = CliMessage.NOTHING_CHANGED.fill()
    if findings:
        text = counted(len(findings), "finding")
    click.echo(f"{folder}: {text}")
    return 1 if findings else 0
