"""`runbook pack`: the Python environment of the jobs as one archive."""

import json
from dataclasses import asdict

import click

from runbook.runs.command_options import SET


@click.command()
@click.argument("run_name", metavar="RUN")
@click.option("--again", is_flag=True, help="Pack also where nothing has changed.")
@click.option("--json", "as_json", is_flag=True, help="Print the manifest.")
@SET
def pack(
    run_name: str,
    again: bool,
    as_json: bool,
    set_words: tuple[str, ...],
) -> None:
    """Pack the Python environment of RUN's training jobs, unless the archive is current.

    The jobs' interpreter is started after the site's modules and set-up commands. Packed are its
    virtual or conda environment, the installation that a virtual environment builds on (unless it
    is the system's; its packages only with --system-site-packages), and the package runbook. Links,
    first lines of scripts and pyvenv.cfg lead into the copy. Folders that stay where they are
    (editable installs, a checkout of Megatron) and modules without compiled files are named. A
    change of any name, size, time or link is noticed.

    Each node unpacks it to its own disk before the first rank starts, where jobs.environment_copy
    names a folder there (docs/local-environment.md). The submission of a job packs as well. The
    archive lies in environments/ of jobs.stage, or of the project; the two newest are kept. What
    killed jobs leave on a node, your next job there removes after a day. There is no SquashFS: a
    mount ends with the job's step that made it.
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
