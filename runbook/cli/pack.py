"""`runbook pack`: pack the Python environment for jobs into one archive."""

import json
from dataclasses import asdict

import click

from runbook.cli.options import SET


@click.command()
@click.argument("run_name", metavar="RUN")
@click.option("--again", is_flag=True, help="Pack even if nothing has changed.")
@click.option("--json", "as_json", is_flag=True, help="Print the manifest as JSON.")
@SET
def pack(
    run_name: str,
    again: bool,
    as_json: bool,
    set_words: tuple[str, ...],
) -> None:
    """Pack the Python environment of RUN's training jobs, unless the archive is current.

    The archive contains the virtual or conda environment that the jobs' interpreter belongs to, the installation
    that a virtual environment builds on, and the package runbook. The system's own installation is
    left out; with --system-site-packages its packages are packed. Links, the first lines of scripts
    and pyvenv.cfg are changed to point into the copy. The command names folders that are not packed
    (editable installs, a checkout of Megatron) and modules without compiled files. It packs again
    when the name, size, time or link of a file has changed.

    If jobs.environment_copy names a folder on the node's own disk, each node unpacks the archive
    there before the first rank starts (docs/local-environment.md). Submitting a job also packs.
    Archives are in the folder `environments` in jobs.stage, or in the project if there is no stage.
    The two newest are kept. If a killed job leaves a copy on a node, your next job there removes it
    after a day. SquashFS is not used, because a mount ends with the job step that created it.
    """
    from runbook import params
    from runbook.runs.packed_environments import describe_packed, ensure_packed

    settings = params.load(run_name, set_words=set_words)

    def say(text: str) -> None:
        click.echo(text, err=True)

    manifest, is_new = ensure_packed(settings, say, again=again)
    if as_json:
        click.echo(json.dumps(asdict(manifest), indent=1))
        return

    for line in describe_packed(settings, manifest, is_new):
        click.echo(line)
