"""`runbook adopt`: turn a job script or a configuration into a run file."""

from pathlib import Path

import click

from runbook.cli.messages import CliMessage
from runbook.cli.options import EXISTING_FILE, FILE
from runbook.cli.output import show


@click.command()
@click.argument("scripts", metavar="[OLD_SCRIPT]...", nargs=-1, type=EXISTING_FILE)
@click.option("--out", type=FILE, help="The run file to write (default: params/<script>.yaml).")
@click.option("--replace", is_flag=True, help="Overwrite an existing run file.")
@click.option(
    "--pid",
    type=click.IntRange(min=1),
    metavar="N",
    help="Read this running process instead of a script.",
)
@click.option(
    "--job", metavar="ID", help="Read the script of this Slurm or PBS job instead of a file."
)
@click.option(
    "--launch",
    type=click.IntRange(min=1),
    default=None,
    metavar="N",
    help="If the script starts several training runs, use the Nth (default: the last).",
)
@click.option("--json", "as_json", is_flag=True, help="Print the whole report as one JSON object.")
def adopt(
    scripts: tuple[Path, ...],
    out: Path | None,
    replace: bool,
    pid: int | None,
    job: str | None,
    launch: int | None,
    as_json: bool,
) -> None:
    """Turn a job script, or a block of exports, into a run file, by running it in a sandbox with stub programs.

    The sandbox has no network, no devices and none of your files, except copies of small text
    files: those next to the script, and those in its checkout that it names. The report compares
    every option of the script with the run file's own command, most important first, and names the
    script's known errors. If the script starts scripts in other folders, list them after it.
    OLD_SCRIPT may also be a log with Megatron's printed arguments, or the configuration of another
    program: torchtitan's TOML, the YAML of nanotron, GPT-NeoX, NeMo 2 or Megatron Bridge, or a
    recipe in Python, which is read and never executed.
    """
    from runbook.tools.adopt import adopt_scripts

    if sum(map(bool, (scripts, pid, job))) != 1:
        raise click.UsageError(CliMessage.ONE_SOURCE.fill())
    if pid:
        report = adopt_scripts.adopt_process(pid, out, replace=replace)
    elif job:
        report = adopt_scripts.adopt_job(job, out, replace=replace, launch=launch or 0)
    else:
        report = adopt_scripts.adopt(scripts, out, replace=replace, launch=launch or 0)

    show(report.as_dict() if as_json else report.as_text())
